"""Values of `config.storage.topic` without their secrets, as the log keeps them (docs/adr/0020)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.semantics.connect_keys import ConnectRecordType, parse_connect_key, parse_connect_value
from offsets_pipeline.semantics.topic_kind import TopicKind

_PROPERTIES = "properties"
#: Settings of connectors and tasks that the log keeps. No value of these is a password, a token or a URL.
KEPT_SETTINGS = frozenset(
    {
        "name",
        "connector.class",
        "task.class",
        "tasks.max",
        "topics",
        "topics.regex",
        "exactly.once.support",
        "consumer.override.group.id",
    }
)
_KEPT_MEMBERS = {
    ConnectRecordType.CONNECTOR_CONFIG: frozenset({_PROPERTIES}),
    ConnectRecordType.TASK_CONFIG: frozenset({_PROPERTIES}),
    ConnectRecordType.TARGET_STATE: frozenset({"state", "state.v2"}),
    ConnectRecordType.TASKS_COMMIT: frozenset({"tasks"}),
    ConnectRecordType.TASK_COUNT: frozenset({"task-count"}),
}
#: In place of a value that does not decode, so that the replay puts its record into quarantine.
_NOTHING = b"?"


def redacted_values(keys: pa.Array, values: pa.Array) -> pa.Array:
    """The values of records of `config.storage.topic`; removes each text that may be secret."""
    pairs = zip(keys.to_pylist(), values.to_pylist(), strict=True)
    return pa.array([_redacted(key, value) for key, value in pairs], pa.binary())


def _redacted(key: bytes | None, value: bytes | None) -> bytes | None:
    if value is None:
        return None
    try:
        text = parse_connect_value(value)
    except CorruptRecord:
        return _NOTHING
    if text is None:
        return b"null"
    try:
        parsed = parse_connect_key(key, TopicKind.CONNECT_CONFIGS)
    except CorruptRecord:
        parsed = None
    kept = frozenset() if parsed is None else _KEPT_MEMBERS.get(parsed.record_type, frozenset())
    members = {name: _without_secrets(name, member) for name, member in json.loads(text).items() if name in kept}
    return json.dumps(members, separators=(",", ":")).encode()


def _without_secrets(name: str, member: Any) -> Any:  # noqa: ANN401 - any JSON value
    if name != _PROPERTIES:
        return member if isinstance(member, (str, int)) else None
    settings: Mapping[str, object] = member if isinstance(member, dict) else {}
    return {name: value for name, value in settings.items() if name in KEPT_SETTINGS and isinstance(value, str)}
