"""Required table features, and rows deleted by other programs: supported, or refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.errors import NotAStore, NotCoordinator, UnsupportedTable
from offsets_pipeline.store.delta.schemas import LOG
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import SECOND_ROW, log_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Action = dict[str, Any]

PLAIN = {"minReaderVersion": 1, "minWriterVersion": 3}


def commit(store: Path, *actions: Action) -> None:
    """Commit to the log as another writer."""
    version = DeltaTable(store / "log").version() + 1
    said = {"commitInfo": {"operation": "A TEST", "version": version}}
    path = store / "log" / "_delta_log" / f"{version:020d}.json"
    path.write_text("\n".join(map(json.dumps, [said, *actions])))


def actions_of(store: Path, version: int) -> dict[str, Any]:
    lines = (store / "log" / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return {name: fields for line in lines for name, fields in json.loads(line).items()}


def features(writer: list[str], reader: list[str] | None = None) -> Action:
    if reader is None:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writer}}
    both = {"minReaderVersion": 3, "readerFeatures": reader, "minWriterVersion": 7, "writerFeatures": writer + reader}
    return {"protocol": both}


def metadata(store: Path, properties: dict[str, str], **columns: dict[str, Any]) -> Action:
    """The log's metadata with other properties, and other fields of its columns."""
    fields = actions_of(store, 0)["metaData"]
    fields["configuration"] |= properties
    schema = json.loads(fields["schemaString"])
    for field in schema["fields"]:
        field |= columns.pop(field["name"], {})  # noqa: PLW2901 - in place
    schema["fields"] += [{"name": name, "metadata": {}} | each for name, each in columns.items()]
    fields["schemaString"] = json.dumps(schema)
    return {"metaData": fields}


UNWRITABLE: dict[str, Callable[[Path], list[Action]]] = {
    "the writer feature 'rowTracking'": lambda _: [features(["rowTracking", "domainMetadata"])],
    "the writer feature 'icebergCompatV2'": lambda _: [features(["icebergCompatV2"])],
    "writer version 8": lambda _: [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}],
    "the writer feature 'inCommitTimestamp' (delta.enableInCommitTimestamps)": lambda store: [
        features(["inCommitTimestamp"]),
        metadata(store, {"delta.enableInCommitTimestamps": "true"}),
    ],
    "the constraint few (record_offset < 10)": lambda store: [
        metadata(store, {"delta.constraints.few": "record_offset < 10"})
    ],
    "delta.generationExpression of column source": lambda store: [
        metadata(store, {}, source={"metadata": {"delta.generationExpression": "upper('x')"}})
    ],
    "delta.invariants of column source": lambda store: [
        metadata(store, {}, source={"metadata": {"delta.invariants": '{"expression":{"expression":"source < 5"}}'}})
    ],
    "the type string of column log_incarnation": lambda store: [
        metadata(store, {}, log_incarnation={"type": "string"})
    ],
    "a value of column more": lambda store: [metadata(store, {}, more={"type": "string", "nullable": False})],
}


@pytest.mark.parametrize("feature", UNWRITABLE)
@pytest.mark.parametrize("is_open", [True, False])
def test_unsupported_writer_features_are_refused_by_name(store: Path, feature: str, is_open: bool) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        if is_open:
            commit(store, *UNWRITABLE[feature](store))
            assert_only_reads(coordinator, store, feature)
    if not is_open:
        commit(store, *UNWRITABLE[feature](store))
        with opened(store) as coordinator:
            assert_only_reads(coordinator, store, feature)
    with opened(store) as coordinator:
        commit(store, {"protocol": PLAIN}, metadata(store, {}))
        coordinator.commit_offsets("g", {("t", 0): 2})
    assert DeltaTable(store / "log").version() == 4


def test_an_open_coordinator_notices_a_newer_format_of_the_store(store: Path) -> None:
    said = f"cannot open store {store}: it has format 7, this program reads 6; use a newer version of the program"
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        commit(store, metadata(store, {"offsets.format.version": "7"}))
        for ask in (
            lambda: coordinator.commit_offsets("g", {("t", 0): 2}),
            lambda: coordinator.fetch_offsets("g"),
            lambda: coordinator.load_partition(0),
        ):
            with pytest.raises(NotAStore) as refused:
                ask()
            assert said in str(refused.value)
        assert DeltaTable(store / "log").version() == 2
        commit(store, metadata(store, {"offsets.format.version": "6"}))
        coordinator.commit_offsets("g", {("t", 0): 3})
        assert coordinator.fetch_offsets("g")[at()].offset == 3


def test_a_log_that_its_owner_partitioned_is_refused(store: Path) -> None:
    first = store / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(first.read_text().replace('"partitionColumns": []', '"partitionColumns": ["log_incarnation"]'))
    with (
        opened(store) as coordinator,
        pytest.raises(UnsupportedTable, match=r"requires partition columns \(log_incarnation\)"),
    ):
        coordinator.commit_offsets("g", {("t", 0): 1})


def assert_only_reads(coordinator: Coordinator, store: Path, feature: str) -> None:
    for acks in (1, -1):
        with pytest.raises(UnsupportedTable) as refused:
            coordinator.commit_offsets("g", {("t", 0): 2}, acks=acks)
        assert f"cannot append to {store}/log: its table requires {feature}, which this program" in str(refused.value)
        assert "it was not written" in str(refused.value)
    assert coordinator.fetch_offsets("g")[at()].offset == 1
    assert DeltaTable(store / "log").version() == 2


@pytest.mark.parametrize(
    "harmless",
    [
        lambda store: [
            features(["appendOnly", "changeDataFeed"]),
            metadata(store, {"delta.enableChangeDataFeed": "true"}),
        ],
        lambda store: [features(["appendOnly"]), metadata(store, {"delta.appendOnly": "true"})],
        lambda _: [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 6}}],
        lambda _: [features(["inCommitTimestamp", "generatedColumns", "checkConstraints"], ["deletionVectors"])],
        lambda store: [metadata(store, {}, more={"type": "string", "nullable": True})],
    ],
)
def test_supported_features_allow_an_append(store: Path, harmless: Callable[[Path], list[Action]]) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        commit(store, *harmless(store))
        coordinator.commit_offsets("g", {("t", 0): 2})
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 3})
        assert coordinator.fetch_offsets("g")[at()].offset == 3


UNREADABLE: dict[str, Callable[[Path], list[Action]]] = {
    "the reader feature 'variantType'": lambda _: [features([], ["variantType"])],
    "column mapping (delta.columnMapping.mode)": lambda store: [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        metadata(
            store,
            {"delta.columnMapping.mode": "name"},
            **{
                name: {"metadata": {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": name}}
                for at, name in enumerate(LOG.names(), 1)
            },
        ),
    ],
}


@pytest.mark.parametrize("feature", UNREADABLE)
def test_unsupported_reader_features_are_refused_by_name(store: Path, feature: str) -> None:
    said = f"without Spark: it requires {feature}"
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        commit(store, *UNREADABLE[feature](store))
        for ask in (lambda: coordinator.fetch_offsets("g"), lambda: coordinator.commit_offsets("g", {("t", 0): 2})):
            with pytest.raises(UnsupportedTable) as refused:
                ask()
            assert said in str(refused.value)
    with pytest.raises(UnsupportedTable) as refused:
        Coordinator.open(store)
    assert said in str(refused.value)
    assert DeltaTable(store / "log").version() == 2


@pytest.mark.local_only("the vector is written by hand beside a file of a folder")
def test_rows_that_spark_deletes_by_deletion_vectors_are_never_served(store: Path) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 2})
        added = actions_of(store, 1)["add"]
        removed = {"remove": {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}}
        deleted = {"add": added | {"deletionVector": SECOND_ROW}}
        commit(store, features(["checkConstraints"], ["deletionVectors"]), removed, deleted)
        for ask in (
            lambda: coordinator.fetch_offsets("g"),
            lambda: coordinator.commit_offsets("g", {("t", 0): 3}),
            lambda: Coordinator.open(store),
        ):
            with pytest.raises(UnsupportedTable, match=r"\(deletion vectors\); run REORG TABLE .* APPLY \(PURGE\)"):
                ask()
        assert DeltaTable(store / "log").version() == 2
        rows = pq.read_table(store / "log" / added["path"]).slice(0, 1)
        pq.write_table(rows, store / "log" / "purged.parquet")
        size = (store / "log" / "purged.parquet").stat().st_size
        commit(  # as REORG TABLE does
            store,
            {"remove": removed["remove"] | {"dataChange": False, "deletionVector": SECOND_ROW}},
            {"add": added | {"path": "purged.parquet", "size": size, "dataChange": False}},
        )
        assert {where: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {at("t", 0): 1}
        coordinator.commit_offsets("g", {("t", 0): 3})
    with opened(store) as coordinator:
        assert {where: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {at("t", 0): 3}
        assert sorted(coordinator._core.log.ends) == [0, 0, 3]  # R2


def test_rows_that_another_writer_deletes_are_forgotten(store: Path) -> None:
    with opened(store, partitions=range(2)) as coordinator:
        group_id = next(name for name in "abcdef" if coordinator.partition_for(name) == 0)
        other = next(name for name in "abcdef" if coordinator.partition_for(name) == 1)
        unloaded = next(name for name in "abcdef" if coordinator.partition_for(name) == 2)
        for offset in (1, 2):
            coordinator.commit_offsets(group_id, {("t", 0): offset})
            coordinator.commit_offsets(other, {("t", 0): offset})
        DeltaTable(store / "log").delete("log_partition = 0 AND record_offset = 1")
        assert coordinator.fetch_offsets(group_id)[at()].offset == 1
        assert coordinator.fetch_offsets(other)[at()].offset == 2
        with pytest.raises(NotCoordinator):
            coordinator.fetch_offsets(unloaded)
        DeltaTable(store / "log").delete("log_partition = 0")
        coordinator.commit_offsets(group_id, {("t", 1): 3})
        assert coordinator.fetch_offsets(group_id) == {at("t", 1): coordinator.fetch_offsets(group_id)[at("t", 1)]}
    assert [row.record_offset for row in log_of(store)[0]] == [2]  # R2: what was deleted is not used again


def test_own_store_requires_only_supported_features(store: Path) -> None:
    first = actions_of(store, 0)
    assert first["protocol"] == PLAIN
    assert {key for key in first["metaData"]["configuration"] if key.startswith("delta.constraints.")} == {
        key for key in LOG.properties if key.startswith("delta.constraints.")
    }
