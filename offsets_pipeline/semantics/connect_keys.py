"""Keys and values of the topics of a Kafka Connect worker (R30)."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, NamedTuple

from offsets_pipeline.common.input_text import parse_json, shown
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.semantics.topic_kind import TopicKind


class ConnectRecordType(StrEnum):
    """The subject of a record. A kind of topic has records of some of these types."""

    OFFSET = "offset"
    CONNECTOR_STATUS = "connector-status"
    TASK_STATUS = "task-status"
    TOPIC_STATUS = "topic-status"
    CONNECTOR_CONFIG = "connector-config"
    TASK_CONFIG = "task-config"
    TARGET_STATE = "target-state"
    TASKS_COMMIT = "tasks-commit"
    TASK_COUNT = "task-count"
    RESTART_REQUEST = "restart-request"
    SESSION_KEY = "session-key"
    LOGGER_LEVEL = "logger-level"
    TASK_FLUSH = "task-flush"  # in owned stores only: the last flush of an exactly-once task


class ConnectKey(NamedTuple):
    """A parsed key.

    ``source_partition`` is canonical JSON: equal for equal JSON values, whatever the order of an object's members. It
    is None for records other than offsets. ``task`` is the number of a task.
    """

    record_type: ConnectRecordType
    connector: str = ""
    source_partition: str | None = None
    task: int | None = None


_TYPE = ConnectRecordType
_STATUS_KEYS = (
    (re.compile(r"status-connector-(?P<connector>.+)", re.DOTALL), _TYPE.CONNECTOR_STATUS),
    (re.compile(r"status-task-(?P<connector>.+)-(?P<task>\d{1,9})", re.DOTALL), _TYPE.TASK_STATUS),
    (re.compile(r"status-topic-(.*):connector-(?P<connector>.+)", re.DOTALL), _TYPE.TOPIC_STATUS),
)
_CONFIG_KEYS = (
    (re.compile(r"connector-(?P<connector>.+)", re.DOTALL), _TYPE.CONNECTOR_CONFIG),
    (re.compile(r"target-state-(?P<connector>.+)", re.DOTALL), _TYPE.TARGET_STATE),
    (re.compile(r"task-(?P<connector>.+)-(?P<task>\d{1,9})", re.DOTALL), _TYPE.TASK_CONFIG),
    (re.compile(r"commit-(?P<connector>.+)", re.DOTALL), _TYPE.TASKS_COMMIT),
    (re.compile(r"tasks-fencing-(?P<connector>.+)", re.DOTALL), _TYPE.TASK_COUNT),
    (re.compile(r"restart-connector-(?P<connector>.+)", re.DOTALL), _TYPE.RESTART_REQUEST),
    (re.compile(r"session-key"), _TYPE.SESSION_KEY),
    (re.compile(r"logger-cluster-.+", re.DOTALL), _TYPE.LOGGER_LEVEL),
)
_OWNED_KEYS = ((re.compile(r"flush-(?P<connector>.+)-(?P<task>\d{1,9})", re.DOTALL), _TYPE.TASK_FLUSH),)
_TEXT_KEYS = {
    TopicKind.CONNECT_STATUS: _STATUS_KEYS,
    TopicKind.CONNECT_CONFIGS: _CONFIG_KEYS,
    TopicKind.CONNECT: (*_STATUS_KEYS, *_CONFIG_KEYS, *_OWNED_KEYS),
}


def parse_connect_key(key: bytes | None, kind: TopicKind) -> ConnectKey | None:
    """Parse a record's key; returns None for one that a newer worker may have written (R6).

    Raises CorruptRecord if the key is null, or no key of such a topic.
    """
    if key is None:
        raise CorruptRecord("key", "null")  # R3
    text = _text(key, "key")
    if kind is TopicKind.CONNECT_OFFSETS or (kind is TopicKind.CONNECT and text.startswith("[")):
        return _offset_key(text)
    for pattern, record_type in _TEXT_KEYS[kind]:
        found = pattern.fullmatch(text)
        if found is not None:
            named = found.groupdict()
            task = named.get("task")
            return ConnectKey(record_type, named.get("connector", ""), task=None if task is None else int(task))
    return None


def _offset_key(text: str) -> ConnectKey:
    """A key ``["<connector>", {source partition}]``. A connector without partitions has null in place of the object."""
    parsed = _json(text, "key")
    if not isinstance(parsed, list) or len(parsed) != 2 or not isinstance(parsed[0], str):
        raise CorruptRecord("key", f"expected a JSON array of a connector's name and an object, found {shown(text)}")
    connector, partition = parsed
    if not isinstance(partition, dict) and partition is not None:
        raise CorruptRecord("key", f"expected an object as source partition, found {shown(text)}")
    canonical_json(connector)
    return ConnectKey(_TYPE.OFFSET, connector, canonical_json(partition))


def offset_key(connector: str, source_partition: object) -> bytes:
    """The key of an offset as JSON without spaces, members in the order of their names: the same for equal partitions.

    Connect's converter writes members in the order of the task's map, and some numbers and characters in another form.

    Raises CorruptRecord for a source partition that is not null or an object, or that JSON cannot hold.
    """
    _refuse_other_names(source_partition, "key")
    text = f"[{canonical_json(connector)},{canonical_json(source_partition)}]"
    _offset_key(text)
    return text.encode()


def offset_value(source_offset: object) -> bytes | None:
    """The value of an offset in the form of Connect's JSON converter; None for a null offset, which deletes.

    Raises CorruptRecord for a source offset that is not null or an object, or that JSON cannot hold.
    """
    if source_offset is None:
        return None
    _refuse_other_names(source_offset, "value")
    text = canonical_json(source_offset, "value").encode()
    parse_connect_value(text)
    return text


def _refuse_other_names(value: object, what: str) -> None:
    """Raise CorruptRecord for names that are no texts: JSON would hold the text of 1, and a reader would miss 1."""
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        raise CorruptRecord(what, f"expected texts as names of its members, found {value!r}")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _refuse_other_names(each, what)


def parse_connect_value(value: bytes | None) -> str | None:
    """A record's value as JSON text; None for a tombstone, which is a null or empty value or JSON null.

    Raises CorruptRecord if the value is no JSON object, or holds what JSON cannot: an infinite number, a single
    surrogate.
    """
    if not value:
        return None
    text = _text(value, "value")
    parsed = _json(text, "value")
    if parsed is None:
        return None
    if not isinstance(parsed, dict):
        raise CorruptRecord("value", f"expected a JSON object, found {shown(text)}")
    return text


def canonical_json(value: object, what: str = "key") -> str:
    """The same text for equal JSON values: members in order of their names, no spaces.

    Raises CorruptRecord for a value that JSON or UTF-8 cannot hold, such as a single surrogate; ``what`` is the part of
    the record.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise CorruptRecord(what, f"cannot be written as JSON: {error}") from None
    return text


def state_value(text: str | None) -> str | None:
    """The value of `parse_connect_value` as the state holds it: without spaces, each name of an object once.

    Engines read some JSON texts differently, because of numbers or repeated names. All read this text alike.
    """
    return None if text is None else json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(what, f"not UTF-8 at position {error.start}") from None


def _json(text: str, what: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return parse_json(text)
    except ValueError as error:
        raise CorruptRecord(what, f"not JSON: {error} in {shown(text)}") from None
