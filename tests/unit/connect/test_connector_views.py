"""The views of Kafka Connect on rows made by hand (R30, R32)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from offsets_pipeline.connect.connector_offsets import connector_type
from offsets_pipeline.fold.state.merge_on_read import CONNECT
from offsets_pipeline.fold.state.published_rows import connect_rows
from offsets_pipeline.semantics.topic_kind import TopicKind


def record(record_type: str, connector: str, value: object, record_offset: int, raw_key: str = "") -> dict[str, object]:
    """A row of `connect_records`; without a value a tombstone."""
    return {
        "log_partition": 0,
        "raw_key": raw_key or f"{record_type}-{connector}",
        "record_type": record_type,
        "connector": connector,
        "source_partition": '{"file":"a"}' if record_type == "offset" else None,
        "value": None if value is None else json.dumps(value),
        "record_timestamp": record_offset * 1000,
        "record_offset": record_offset,
    }


def viewed(kind: TopicKind, *records: dict[str, object]) -> list[dict[str, Any]]:
    """The rows of the view `connectors`."""
    rows = pa.Table.from_pylist(list(records), schema=CONNECT.row_schema())
    found: list[dict[str, Any]] = connect_rows("connectors", [(kind, rows)]).to_pylist()
    return found


def connectors(kind: TopicKind, *records: dict[str, object]) -> list[tuple[str, str, str | None]]:
    return [(each["name"], each["type"], each["group_id"]) for each in viewed(kind, *records)]


def test_a_source_partition_has_no_offset_if_the_newest_of_its_keys_is_deleted() -> None:
    older, newer = '["a",{"file":"a"}]', '["a", {"file": "a"}]'
    kept = record("offset", "a", {"position": 1}, 1, older)
    assert connectors(TopicKind.CONNECT_OFFSETS, kept) == [("a", "source", None)]
    assert connectors(TopicKind.CONNECT_OFFSETS, kept, record("offset", "a", None, 2, newer)) == []
    assert connectors(
        TopicKind.CONNECT_OFFSETS, kept, record("offset", "a", None, 2, newer), record("offset", "b", {"p": 1}, 3)
    ) == [("b", "source", None)]


def test_a_sink_without_a_group_of_its_own_has_the_group_of_its_name() -> None:
    def config(**settings: str) -> dict[str, object]:
        return record("connector-config", "s", {"properties": {"connector.class": "x.FileSink", **settings}}, 1)

    override = "consumer.override.group.id"
    assert connectors(TopicKind.CONNECT_CONFIGS, config()) == [("s", "sink", "connect-s")]
    assert connectors(TopicKind.CONNECT_CONFIGS, config(**{override: ""})) == [("s", "sink", "connect-s")]
    assert connectors(TopicKind.CONNECT_CONFIGS, config(**{override: "mine"})) == [("s", "sink", "mine")]


def test_a_connector_is_started_until_a_record_says_else() -> None:
    """As `KafkaConfigBackingStore` of Connect 4.2 holds it."""
    config = record("connector-config", "a", {"properties": {}}, 1)
    for more, expected in (
        ([], "STARTED"),
        ([record("target-state", "a", {"state": "PAUSED"}, 2)], "PAUSED"),
        ([record("target-state", "a", None, 2)], "STARTED"),
    ):
        (found,) = viewed(TopicKind.CONNECT_CONFIGS, config, *more)
        assert found["target_state"] == expected


@pytest.mark.parametrize("name", ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"])
def test_connectors_of_mirrormaker_are_sources_although_their_settings_name_topics(name: str) -> None:
    config = {"properties": {"connector.class": f"org.apache.kafka.connect.mirror.{name}", "topics": ".*"}}
    assert connectors(TopicKind.CONNECT_CONFIGS, record("connector-config", "m", config, 1)) == [("m", "source", None)]
    assert connector_type(config["properties"]) == "source"


def test_the_state_of_a_connector_without_a_worker_is_its_target_state() -> None:
    def states(kind: TopicKind, *records: dict[str, object]) -> dict[str, str | None]:
        return {each["name"]: each["state"] for each in viewed(kind, *records)}

    def target(state: str) -> dict[str, object]:
        return record("target-state", "a", {"state": "RUNNING", "state.v2": state}, 2)

    offset = record("offset", "a", {"position": 1}, 1)
    assert states(TopicKind.CONNECT, offset) == {"a": "RUNNING"}
    assert states(TopicKind.CONNECT, offset, target("STARTED")) == {"a": "RUNNING"}
    assert states(TopicKind.CONNECT, offset, target("STOPPED")) == {"a": "STOPPED"}
    assert states(TopicKind.CONNECT, offset, record("connector-config", "a", None, 3)) == {}
    # with workers only their status tells
    assert states(TopicKind.CONNECT_OFFSETS, offset, target("STOPPED")) == {"a": None}
