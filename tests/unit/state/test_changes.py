"""Files of the state tables as a replay writes them, without Spark: their rows, order and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.fold.state import published_rows
from offsets_pipeline.fold.state.changes import Changes, ReplayStart, StateWriter, existing_groups
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.unit.state.state_files import put
from tests.unit.state.tables import append, known_groups

if TYPE_CHECKING:
    from offsets_pipeline.fold.state.stored_rows import StoredRows
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.table_folder import TableFolder

PARTITIONS = 2
#: All facts count.
ENDS = dict.fromkeys(range(PARTITIONS), 1_000)


def replayed(
    tables: dict[str, TableFolder], *logs: LogPartition, known: StoredRows | None = None, folded_to: int = 0
) -> Changes:
    """The changes of replaying these log partitions into incarnation 1."""
    rows = [row._asdict() | {"backfill": False, "records": 1} for log in logs for row in log.rows]
    start = ReplayStart(PARTITIONS, MODERN, dict.fromkeys(range(PARTITIONS), folded_to))
    writer = StateWriter(start, tables, dict.fromkeys(range(PARTITIONS), 1), known)
    return writer.changes([pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)])


def rows_in(folder: TableFolder, file: DataFile) -> list[dict[str, Any]]:
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


KEYS = [(at, group, "t", partition) for at in (0, 1) for group in ("a", "b", "ü") for partition in (9, 10)]


def offsets_in(tables: dict[str, TableFolder], name: str, files: list[DataFile]) -> list[tuple[Any, ...]]:
    """Key and committed offset of the rows of files, which have the bounds that they say."""
    found = []
    for file in files:
        rows = rows_in(tables[name], file)
        assert file.rows == len(rows)
        for column in ("log_partition", "group_id", "record_offset"):
            values = [row[column] for row in rows]
            assert (file.lowest[column], file.highest[column]) == (min(values), max(values))
        found += rows
    names = ("log_partition", "group_id", "topic", "partition", "committed_offset")
    return [tuple(row[name] for name in names) for row in found]


@pytest.mark.parametrize("file_rows", [1_000_000, 5])
def test_facts_are_in_the_order_of_their_keys_and_have_bounds(
    tables: dict[str, TableFolder], monkeypatch: pytest.MonkeyPatch, file_rows: int
) -> None:
    monkeypatch.setattr(published_rows, "_FILE_ROWS", file_rows)
    changes = replayed(tables, *two_log_partitions(), known=known_groups(tables, {0: 1, 1: 1}))
    assert not changes.quarantine
    assert [len(changes.partitions[at].pending) for at in (0, 1)] == [0, 1]
    files = changes.files["offset_facts"]
    assert len(files) == (1 if file_rows > 12 else 3)
    assert {file.partition["incarnation"] for file in files} == {"1"}
    expected = [(*key, 63 if key[3] == 9 else None) for key in KEYS]
    assert offsets_in(tables, "offset_facts", files) == expected
    ends = {at: each.folded_to for at, each in changes.partitions.items()}
    assert {
        row["folded_to"] - ends[row["log_partition"]] for file in files for row in rows_in(tables["offset_facts"], file)
    } == {0}
    assert not changes.files["current_offsets"]


@pytest.mark.parametrize("file_rows", [1_000_000, 1])
def test_replay_from_the_start_publishes_what_is_answered(
    tables: dict[str, TableFolder], monkeypatch: pytest.MonkeyPatch, file_rows: int
) -> None:
    monkeypatch.setattr(published_rows, "_FILE_ROWS", file_rows)
    changes = replayed(tables, *two_log_partitions())
    removed = (1, "b")  # R14: its tombstone came after its commits
    answered = [
        key for key in KEYS if partition_for(key[1], PARTITIONS) == key[0] and key[3] == 9 and key[:2] != removed
    ]
    files = changes.files["current_offsets"]
    assert len(files) == (1 if file_rows > 1 else len(answered)) > 0
    assert {file.partition.get("incarnation") for file in files} == {None}
    assert offsets_in(tables, "current_offsets", files) == [(*key, 63) for key in answered]
    kept = [(*key, 63 if key[3] == 9 else None) for key in KEYS if key not in answered]
    assert offsets_in(tables, "offset_facts", changes.files["offset_facts"]) == kept


def test_groups_are_described_where_their_records_are(tables: dict[str, TableFolder]) -> None:
    changes = replayed(tables, *two_log_partitions())
    (file,) = changes.files["consumer_groups"]
    listed = [(row["log_partition"], row["group_id"], row["state"]) for row in rows_in(tables["consumer_groups"], file)]
    assert listed == [
        (0, "a", "Empty"),
        (0, "b", "Empty"),
        (0, "ü", "Empty"),
        (1, "a", "Empty"),
        (1, "open", "Empty"),
        (1, "ü", "Empty"),
    ]
    (file,) = changes.files["group_facts"]
    kept = {(row["log_partition"], row["group_id"]): row["state"] for row in rows_in(tables["group_facts"], file)}
    misplaced = {(at, group): state for at, group, state in listed if partition_for(group, PARTITIONS) != at}
    assert kept == misplaced | {(1, "b"): "Dead"}  # R14: removed after its commits
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
    assert (changes.records, len(changes.quarantine)) == (1, 1)
    assert changes.first_corrupt() == "record 0 of log partition 0 does not decode: key: record has no key"


def test_commits_of_groups_that_exist_write_nothing_about_groups(tables: dict[str, TableFolder]) -> None:  # R14
    log = LogPartition()
    log.commit(("known", "t", 0), 1)
    log.group(2, "dead")
    log.group_tombstone(2, "dead")
    append(tables, replayed(tables, log))
    known = known_groups(tables, {0: 1, 1: 1})
    log.rows.clear()
    log.commit(("known", "t", 0), 2)
    assert not replayed(tables, log, known=known, folded_to=log.rows[0].record_offset).files["group_facts"]
    log.commit(("dead", "t", 0), 2)
    log.commit(("new", "t", 0), 2)
    changes = replayed(tables, log, known=known, folded_to=log.rows[0].record_offset)
    assert not changes.files["consumer_groups"]
    described = rows_in(tables["group_facts"], changes.files["group_facts"][0])
    assert [(row["group_id"], row["state"]) for row in described] == [("dead", "Empty"), ("new", "Empty")]


def test_group_is_described_from_its_new_records_and_those_that_are_known(tables: dict[str, TableFolder]) -> None:
    log = LogPartition()
    log.group(3, "consumer", epoch=7)
    log.group(2, "changed", generation=1)
    log.group(2, "removed", generation=1)
    append(tables, replayed(tables, log))
    known = known_groups(tables, {0: 1, 1: 1})
    log.rows.clear()
    log.group(5, "consumer", "member")
    log.group(2, "changed", generation=2)
    log.group_tombstone(2, "removed")
    changes = replayed(tables, log, known=known, folded_to=3)
    described = {row["group_id"]: row for row in rows_in(tables["group_facts"], changes.files["group_facts"][0])}
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
    writer = StateWriter(ReplayStart(PARTITIONS, MODERN), tables, {0: 4, 1: 5})
    changes = writer.changes([pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)])
    for name in ("offset_facts", "group_facts", "group_records"):
        found = {
            (file.partition["incarnation"], row["log_partition"])
            for file in changes.files[name]
            for row in rows_in(tables[name], file)
        }
        assert found == {("4", 0), ("5", 1)}


def test_groups_are_known_by_facts_of_their_incarnation_and_by_what_is_published(
    tables: dict[str, TableFolder],
) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    append(tables, replayed(tables, log, known=known_groups(tables, {0: 1, 1: 1})))
    assert existing_groups(known_groups(tables, {0: 1}), {(0, "g")}, ENDS) == {(0, "g")}
    assert existing_groups(known_groups(tables, {0: 2}), {(0, "g")}, ENDS) == set()
    assert existing_groups(known_groups(tables, {0: 2, 1: 1}), {(0, "g")}, ENDS) == set()
    assert existing_groups(known_groups(tables, {0: 1}), {(1, "g"), (0, "h")}, ENDS) == set()
    put(
        tables["consumer_groups"],
        [
            {
                "group_id": "h",
                "state": "Empty",
                "member_count": 0,
                "log_partition": 1,
                "record_offset": 3,
                "misplaced": True,
            }
        ],
    )
    assert existing_groups(known_groups(tables, {0: 2, 1: 2}), {(0, "g"), (0, "h"), (1, "h")}, ENDS) == {(1, "h")}
