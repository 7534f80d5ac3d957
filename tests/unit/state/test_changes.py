"""Files of the state tables as a replay writes them, without Spark: their rows, order and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.state import changes as changes_module
from offsets_pipeline.state.changes import Changes, StateFolders, write_changes
from offsets_pipeline.state.known import KnownGroups
from offsets_pipeline.state.replay_start import ReplayStart
from tests.logs import LogPartition
from tests.unit.state.tables import append

if TYPE_CHECKING:
    from offsets_pipeline.delta.data_file import AddFile
    from offsets_pipeline.delta.table_folder import TableFolder

PARTITIONS = 2


def replayed(
    tables: dict[str, TableFolder], *logs: LogPartition, known: KnownGroups | None = None, folded_to: int = 0
) -> Changes:
    """The changes of replaying these log partitions into incarnation 1."""
    rows = [row._asdict() | {"backfill": False, "records": 1} for log in logs for row in log.rows]
    start = ReplayStart(PARTITIONS, MODERN, dict.fromkeys(range(PARTITIONS), folded_to))
    folders = StateFolders(tables, PARTITIONS, MODERN, dict.fromkeys(range(PARTITIONS), 1), known)
    return write_changes(start.replay([pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)]), folders)


def rows_in(folder: TableFolder, file: AddFile) -> list[dict[str, Any]]:
    """The rows of a file."""
    rows: list[dict[str, Any]] = pq.read_table(f"{folder.folder}/{file.name}", partitioning=None).to_pylist()
    return rows


def two_log_partitions() -> tuple[LogPartition, LogPartition]:
    first, second = LogPartition(0), LogPartition(1)
    for log in (second, first):
        for group in ("ü", "b", "a"):
            for partition in (10, 9):
                log.commit((group, "t", partition), 7 * partition)
            log.delete((group, "t", 10))
    second.group(2, "a", protocol="range")
    second.group_tombstone(2, "b")
    second.commit(("open", "t", 0), 1, producer_id=3)
    return first, second


@pytest.mark.parametrize("file_rows", [1_000_000, 5])
def test_rows_are_in_the_order_of_their_keys_and_have_bounds(
    tables: dict[str, TableFolder], monkeypatch: pytest.MonkeyPatch, file_rows: int
) -> None:
    monkeypatch.setattr(changes_module, "_FILE_ROWS", file_rows)
    changes = replayed(tables, *two_log_partitions())
    assert len(changes.files["committed_offsets"]) == (1 if file_rows > 12 else 3)
    assert not changes.quarantine
    assert [len(changes.partitions[at].pending) for at in (0, 1)] == [0, 1]
    found = []
    for file in changes.files["committed_offsets"]:
        assert file.partition == {"base": "true", "incarnation": "1"}
        rows = rows_in(tables["committed_offsets"], file)
        assert file.rows == len(rows)
        for name in ("log_partition", "group_id", "record_offset"):
            values = [row[name] for row in rows]
            assert (file.lowest[name], file.highest[name]) == (min(values), max(values))
        found += rows
    places = [(row["log_partition"], row["group_id"], row["topic"], row["partition"]) for row in found]
    assert places == [
        (at, group, "t", partition) for at in (0, 1) for group in ("a", "b", "ü") for partition in (9, 10)
    ]
    assert [row["committed_offset"] for row in found] == [63, None] * 6


def test_groups_are_described_where_their_records_are(tables: dict[str, TableFolder]) -> None:
    changes = replayed(tables, *two_log_partitions())
    (file,) = changes.files["groups"]
    groups = rows_in(tables["groups"], file)
    assert [(row["log_partition"], row["group_id"], row["state"]) for row in groups] == [
        (0, "a", "Empty"),
        (0, "b", "Empty"),
        (0, "ü", "Empty"),
        (1, "a", "Empty"),
        (1, "b", "Dead"),  # R14: removed after its commits
        (1, "open", "Empty"),
        (1, "ü", "Empty"),
    ]
    (file,) = changes.files["group_records"]
    records = rows_in(tables["group_records"], file)
    keys = [(row["log_partition"], row["group_id"], row["record_type"], row["record_key"]) for row in records]
    assert [key for key in keys if key[2] == 2] == [(1, "a", 2, ""), (1, "b", 2, "")]
    assert len(records) == 7 + 2


def test_log_without_state_writes_no_file(tables: dict[str, TableFolder]) -> None:
    log = LogPartition()
    log.record(None, b"corrupt")
    changes = replayed(tables, log)
    assert not any(changes.files.values())
    assert (changes.records, changes.quarantined) == (1, 1)
    assert changes.first_corrupt() == "record 0 of log partition 0 does not decode: key: record has no key"


def test_commits_of_groups_that_exist_write_nothing_about_groups(tables: dict[str, TableFolder]) -> None:  # R14
    log = LogPartition()
    log.commit(("known", "t", 0), 1)
    log.group(2, "dead")
    log.group_tombstone(2, "dead")
    append(tables, replayed(tables, log))
    known = KnownGroups.read(tables, {0: 1, 1: 1}, MODERN)
    log.rows.clear()
    log.commit(("known", "t", 0), 2)
    assert not replayed(tables, log, known=known, folded_to=log.rows[0].record_offset).files["groups"]
    log.commit(("dead", "t", 0), 2)
    log.commit(("new", "t", 0), 2)
    changes = replayed(tables, log, known=known, folded_to=log.rows[0].record_offset)
    assert [each.partition["base"] for each in changes.files["groups"]] == ["false"]
    described = rows_in(tables["groups"], changes.files["groups"][0])
    assert [(row["group_id"], row["state"]) for row in described] == [("dead", "Empty"), ("new", "Empty")]


def test_group_is_described_from_its_new_records_and_those_that_are_known(tables: dict[str, TableFolder]) -> None:
    log = LogPartition()
    log.group(3, "consumer", epoch=7)
    log.group(2, "changed", generation=1)
    log.group(2, "removed", generation=1)
    append(tables, replayed(tables, log))
    known = KnownGroups.read(tables, {0: 1, 1: 1}, MODERN)
    log.rows.clear()
    log.group(5, "consumer", "member")
    log.group(2, "changed", generation=2)
    log.group_tombstone(2, "removed")
    changes = replayed(tables, log, known=known, folded_to=3)
    described = {row["group_id"]: row for row in rows_in(tables["groups"], changes.files["groups"][0])}
    assert described["consumer"]["group_epoch"] == 7
    assert [member["member_id"] for member in described["consumer"]["members"]] == ["member"]
    assert described["changed"]["generation"] == 2
    assert described["removed"]["state"] == "Dead"
    (file,) = changes.files["group_records"]
    assert {
        (row["group_id"], row["record_type"], row["value_offset"], row["tombstone_offset"])
        for row in rows_in(tables["group_records"], file)
    } == {("consumer", 5, 3, None), ("changed", 2, 4, None), ("removed", 2, 2, 5)}


def test_each_incarnation_gets_the_rows_of_its_log_partitions(tables: dict[str, TableFolder]) -> None:
    first, second = two_log_partitions()
    rows = [row._asdict() | {"backfill": False, "records": 1} for log in (first, second) for row in log.rows]
    folders = StateFolders(tables, PARTITIONS, MODERN, {0: 4, 1: 5})
    changes = write_changes(
        ReplayStart(PARTITIONS, MODERN).replay([pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)]), folders
    )
    for name, files in changes.files.items():
        found = {
            (file.partition["incarnation"], row["log_partition"])
            for file in files
            for row in rows_in(tables[name], file)
        }
        assert found == {("4", 0), ("5", 1)}


def test_groups_of_another_incarnation_are_not_known(tables: dict[str, TableFolder]) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    append(tables, replayed(tables, log))
    assert KnownGroups.read(tables, {0: 1}, MODERN).existing({(0, "g")}) == {(0, "g")}
    assert KnownGroups.read(tables, {0: 2}, MODERN).existing({(0, "g")}) == set()
    assert KnownGroups.read(tables, {0: 2, 1: 1}, MODERN).existing({(0, "g")}) == set()
    assert KnownGroups.read(tables, {0: 1}, MODERN).existing({(1, "g"), (0, "h")}) == set()
