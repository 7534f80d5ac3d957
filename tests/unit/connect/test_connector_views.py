"""The views of Kafka Connect on rows made by hand (R30, R32)."""

from __future__ import annotations

import json
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from offsets_pipeline.connect.connector_offsets import connector_type
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import BadConnectRequest, NoSuchConnector, StoreMismatch
from offsets_pipeline.fold.state.merge_on_read import CONNECT
from offsets_pipeline.fold.state.published_rows import connect_rows
from offsets_pipeline.questions.query.connectors import (
    ConnectorInfo,
    describe_connector,
    list_connectors,
    stopped_sink_group,
)
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.data_file import ALL_ROWS
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offsets_pipeline.store.delta.data_file import Only


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
    for named in ("mine", "$x:y", "${x}", "a:{b}"):
        assert connectors(TopicKind.CONNECT_CONFIGS, config(**{override: named})) == [("s", "sink", named)]


@pytest.mark.parametrize("reference", ["${env:GROUP}", "${file:/run/group:id}", "prod-${env:GROUP}-1"])
def test_a_group_that_only_the_worker_resolves_is_not_named(reference: str) -> None:
    settings = {"connector.class": "x.FileSink", "consumer.override.group.id": reference}
    configs = reader_of(
        TopicKind.CONNECT_CONFIGS,
        record("connector-config", "s", {"properties": settings}, 1),
        record("target-state", "s", {"state": "STOPPED"}, 2),
    )
    assert list_connectors([configs]) == [ConnectorInfo("s", "sink", None, None, "STOPPED")]
    groups = cast("StateReader", SimpleNamespace(properties=StoreProperties(MIRRORED, 1), location="/g"))
    for request in (
        lambda: stopped_sink_group("s", configs),
        lambda: describe_connector(groups, "s", configs),
        lambda: describe_connector(OFFSETS, "s", configs),
    ):
        with pytest.raises(StoreMismatch) as refused:
            request()
        assert str(refused.value) == (
            "consumer.override.group.id of s is a reference, which only its worker resolves; name the group itself, to "
            "offsets describe or offsets reset-offsets"
        )


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


def test_the_newest_record_of_an_identity_answers_with_all_its_raw_keys() -> None:  # R30
    def offset(raw_key: str, value: str | None, at_us: int | None, at: int, connector: str = "c") -> dict[str, object]:
        return record("offset", connector, value, at, raw_key) | {"record_timestamp": at_us}

    records = [
        *[offset("k2", "late", 7, 1), offset("k1", "early", 6, 9), offset("k3", None, 5, 3)],
        *[offset("k1", "before", 0, 1, "b"), offset("k2", "untimed", None, 9, "b")],
        *[offset("k1", "lower", 7, 1, "a"), offset("k2", "higher", 7, 2, "a")],
        *[offset("k1", "kept", 7, 1, "d"), offset("k2", None, 7, 2, "d")],
    ]
    rows = pa.Table.from_pylist(records, schema=CONNECT.row_schema())
    found = connect_rows("connector_offsets", [(TopicKind.CONNECT_OFFSETS, rows)])
    named = found.select(["connector", "source_offset", "raw_keys"]).to_pylist()
    assert [tuple(each.values()) for each in named] == [
        ("a", '"higher"', ["k1", "k2"]),
        ("b", '"before"', ["k1", "k2"]),
        ("c", '"late"', ["k1", "k2"]),
    ]


def test_the_order_of_an_owned_store_is_that_of_its_record_offsets() -> None:  # R30
    ahead = record("offset", "a", {"p": 1}, 1, "k1") | {"record_timestamp": 9_000}
    ahead_too = record("target-state", "a", {"state": "PAUSED"}, 2) | {"record_timestamp": 9_000}
    later = record("offset", "a", {"p": 3}, 3, "k2")
    stopped = record("target-state", "a", {"state": "STOPPED"}, 4, "k3")
    rows = pa.Table.from_pylist([ahead, ahead_too, later, stopped], schema=CONNECT.row_schema())
    for kind, offset, state in (
        (TopicKind.CONNECT, '{"p": 3}', "STOPPED"),
        (TopicKind.CONNECT_OFFSETS, '{"p": 1}', "PAUSED"),
    ):
        assert connect_rows("connector_offsets", [(kind, rows)])["source_offset"].to_pylist() == [offset]
        assert connect_rows("connectors", [(kind, rows)])["target_state"].to_pylist() == [state]


@pytest.mark.parametrize("name", ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"])
def test_connectors_of_mirrormaker_are_sources_although_their_settings_name_topics(name: str) -> None:
    config = {"properties": {"connector.class": f"org.apache.kafka.connect.mirror.{name}", "topics": ".*"}}
    assert connectors(TopicKind.CONNECT_CONFIGS, record("connector-config", "m", config, 1)) == [("m", "source", None)]
    assert connector_type(config["properties"]) == "source"


def reader_of(kind: TopicKind, *records: dict[str, object]) -> StateReader:
    """A reader of a store with these rows, in memory."""
    rows = pa.Table.from_pylist(list(records), schema=CONNECT.row_schema())

    def newest(_: object, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table:
        wanted = [pc.is_in(rows[name], pa.array(values, rows[name].type)) for name, values in only.items()]
        return rows.filter(reduce(pc.and_, wanted, pa.array([True] * rows.num_rows))).select(columns)

    properties = StoreProperties(MIRRORED, 1, topic_kind=kind)
    store = SimpleNamespace(properties=properties, location="/s", current=SimpleNamespace(newest=newest))
    return cast("StateReader", store)


def offset_of(connector: str, file: str, record_offset: int) -> dict[str, object]:
    row = record("offset", connector, {"position": record_offset}, record_offset, f"{connector}-{file}")
    return row | {"source_partition": json.dumps({"file": file})}


CONFIGS = reader_of(
    TopicKind.CONNECT_CONFIGS,
    record("connector-config", "new", {"properties": {}}, 1),
    record("connector-config", "a", {"properties": {}}, 2),
    record("connector-config", "s", {"properties": {"connector.class": "x.FileSink"}}, 3),
    record("target-state", "s", {"state": "STOPPED"}, 4),
    record("connector-config", "r", {"properties": {"connector.class": "x.FileSink"}}, 5),
    record("connector-config", "gone", None, 6),
)
OFFSETS = reader_of(
    TopicKind.CONNECT_OFFSETS,
    *(offset_of("a", "x", 7), offset_of("a", "w", 8), offset_of("s", "x", 9), offset_of("gone", "x", 10)),
)
OF_A = {
    "offsets": [
        {"partition": {"file": "w"}, "offset": {"position": 8}},
        {"partition": {"file": "x"}, "offset": {"position": 7}},
    ]
}


def test_connectors_of_a_worker_are_those_of_its_configurations() -> None:
    """A sink has no source offsets, although a source of its name had some."""
    started, stopped = (None, None, "STARTED", 0), (None, None, "STOPPED", 0)
    assert list_connectors([OFFSETS, CONFIGS]) == [
        ConnectorInfo("a", "source", *started, None, 2),
        ConnectorInfo("new", "source", *started, None, 0),
        ConnectorInfo("r", "sink", *started, "connect-r"),
        ConnectorInfo("s", "sink", *stopped, "connect-s"),
    ]
    assert [(each.name, each.offsets) for each in list_connectors([OFFSETS])] == [("a", 2), ("gone", 1), ("s", 1)]


def test_offsets_of_a_source_are_answered_if_its_worker_has_it() -> None:
    assert describe_connector(OFFSETS, "a") == describe_connector(OFFSETS, "a", CONFIGS) == OF_A
    assert describe_connector(OFFSETS, "gone")["offsets"] == [{"partition": {"file": "x"}, "offset": {"position": 10}}]
    assert describe_connector(OFFSETS, "new", CONFIGS) == {"offsets": []}
    for error, message, connector, configs in (
        (NoSuchConnector, "Connector new not found: /s has no offsets of it, or it was deleted", "new", None),
        (NoSuchConnector, "Connector gone not found: /s has no configuration of it", "gone", CONFIGS),
        (StoreMismatch, "its offsets are those of the group connect-s; name the store of __consumer", "s", CONFIGS),
        (StoreMismatch, "but this command needs connect-configs", "a", OFFSETS),
    ):
        with pytest.raises(error, match=message):
            describe_connector(OFFSETS, connector, configs)
    with pytest.raises(StoreMismatch, match="but this command needs connect-offsets"):
        describe_connector(CONFIGS, "a")


def test_an_owned_store_answers_for_connectors_that_were_not_deleted() -> None:
    config = record("connector-config", "new", {"properties": {}}, 1)
    deleted = record("connector-config", "gone", None, 3)
    owned = reader_of(TopicKind.CONNECT, offset_of("a", "w", 8), offset_of("a", "x", 7), config, deleted)
    assert describe_connector(owned, "a") == OF_A
    assert describe_connector(owned, "new") == {"offsets": []}
    for name in ("gone", "never"):
        with pytest.raises(NoSuchConnector, match=f"Connector {name} not found: /s has no offsets of it"):
            describe_connector(owned, name)


def test_offsets_of_a_sink_are_those_of_the_group_that_its_configuration_names(tmp_path: Path) -> None:  # R32
    override = {"connector.class": "x.FileSink", "consumer.override.group.id": "connect-s"}
    configs = reader_of(TopicKind.CONNECT_CONFIGS, record("connector-config", "other", {"properties": override}, 1))
    with Coordinator.open(OwnedStore.create(tmp_path / "groups", 1)) as coordinator:
        coordinator.commit_offsets("connect-s", {("t", 1): 6, ("t", 0): 5})
    groups = StateReader(str(tmp_path / "groups"))
    expected = {
        "offsets": [
            {"partition": {"kafka_topic": "t", "kafka_partition": at}, "offset": {"kafka_offset": 5 + at}}
            for at in (0, 1)
        ]
    }
    assert describe_connector(groups, "s") == describe_connector(groups, "other", configs) == expected
    assert describe_connector(groups, "other") == {"offsets": []}
    with pytest.raises(StoreMismatch, match="a is a source connector: its offsets are in offset"):
        describe_connector(groups, "a", CONFIGS)


def test_only_offsets_of_a_stopped_sink_may_change() -> None:
    assert stopped_sink_group("s", CONFIGS) == "connect-s"
    for error, name in ((BadConnectRequest, "r"), (StoreMismatch, "a"), (NoSuchConnector, "gone")):
        with pytest.raises(error):
            stopped_sink_group(name, CONFIGS)


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
