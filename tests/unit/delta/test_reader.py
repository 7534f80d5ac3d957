"""Reading tables without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from offsets_pipeline.common.clock import EPOCH
from offsets_pipeline.errors import UnsupportedTable
from offsets_pipeline.store.delta import data_file, reader, table_folder
from offsets_pipeline.store.delta.reader import UNREADABLE
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS, TOPICS
from offsets_pipeline.store.delta.snapshot import Snapshot
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.unit.coordinator.stores import SECOND_ROW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def topics(*numbers: int) -> pa.Table:
    names = [str(number) for number in numbers]
    return pa.table({"topic_id": names, "topic": names})


def test_files_are_found_in_a_folder_with_a_space_in_its_name(place: Path) -> None:
    folder = place / "a table"
    for number in (1, 2):
        write_deltalake(folder, topics(number), mode="append")
    assert sorted(TableFolder(str(folder), TOPICS).snapshot().rows()["topic"].to_pylist()) == ["1", "2"]


def test_rows_with_some_values_come_from_files_and_row_groups_that_may_have_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TableFolder(str(place / TOPICS.name), TOPICS)
    folder.create()
    monkeypatch.setattr(table_folder, "ROW_GROUP_ROWS", 2)
    files = [folder.write_file(topics(*numbers)) for numbers in ((1, 2, 3, 4), (5, 6), (8, 9))]
    folder.commit(files, seen=folder.snapshot())
    snapshot = folder.snapshot()
    groups: list[int] = []
    read_row_group = pq.ParquetFile.read_row_group

    def read(file: pq.ParquetFile, number: int, *arguments: Any, **options: Any) -> pa.Table:  # noqa: ANN401
        groups.append(number)
        return read_row_group(file, number, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    found = {
        wanted: snapshot.rows(["topic"], {"topic_id": list(wanted)})["topic"].to_pylist()
        for wanted in ("", "0", "4", "29", "57", "7", "\u00e9")
    }
    assert found == {"": [], "0": [], "4": ["4"], "29": ["2", "9"], "57": ["5"], "7": [], "\u00e9": []}
    assert groups == [1, 0, 0, 0]
    assert snapshot.rows(["topic_id"], {"topic_id": ["4"]}).to_pylist() == [{"topic_id": "4"}]
    assert snapshot.rows(["topic"], {"topic_id": ["1", "2"], "topic": ["2", "3"]})["topic"].to_pylist() == ["2"]
    assert [file.may_hold({"topic_id": ["7"]}) for file in files] == [False, False, False]
    assert [file.may_hold({"topic_id": ["4", "8"]}) for file in files] == [True, False, True]
    for unbounded in (replace(files[0], highest={}), replace(files[0], lowest={})):  # a writer may know neither
        assert [unbounded.may_hold({"topic_id": wanted}) for wanted in (["7"], [])] == [True, False]


@pytest.mark.parametrize("wanted", ["", "1", "8", "17", "0358", "0123456789"])
def test_rows_come_from_all_pieces_of_a_row_group(place: Path, monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setattr(data_file, "_READ_ROWS", 2)
    folder = TableFolder(str(place / TOPICS.name), TOPICS)
    folder.create()
    folder.commit([folder.write_file(topics(*range(10)))], seen=folder.snapshot())
    rows = folder.snapshot().rows(["topic", "topic_id"], {"topic_id": list(wanted)})
    assert rows.to_pylist() == [{"topic": each, "topic_id": each} for each in wanted]


def test_a_row_group_has_bounds_of_columns_with_values_alone(tmp_path: Path) -> None:
    columns = {"a": pa.array([3, None, 1]), "b": pa.nulls(3, pa.int64()), "c": pa.array([5, 5, 5])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as parquet:
        assert data_file.bounds_of_group(parquet.metadata.row_group(0), ["a", "b"]) == ({"a": 1}, {"a": 3})


def test_bounds_of_times_are_those_of_the_commit_file(place: Path) -> None:
    folder = TableFolder(str(place / LOG_PARTITIONS.name), LOG_PARTITIONS)
    folder.create()
    numbers = dict.fromkeys(("log_partition", "log_incarnation", "start_offset", "end_offset"), 1)
    rows = [
        numbers | {"updated_at": EPOCH + timedelta(microseconds=at)} for at in (1_700_000_000_123_456, 1_800 * 10**12)
    ]
    file = folder.write_file(pa.Table.from_pylist(rows, LOG_PARTITIONS.arrow_schema()))
    folder.commit([file], seen=folder.snapshot())
    (read,) = TableFolder(folder.folder, LOG_PARTITIONS).snapshot().files()
    assert (read.lowest, read.highest) == (file.lowest, file.highest)
    assert read.lowest["updated_at"] == "2023-11-14T22:13:20.123Z"


@pytest.mark.parametrize("read", [Snapshot.rows, Snapshot.files])
def test_deleted_rows_are_never_read_from_the_files(place: Path, read: Callable[[Snapshot], object]) -> None:
    folder = place / TOPICS.name
    write_deltalake(folder, topics(1, 2))
    commit = folder / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = SECOND_ROW
        if "protocol" in action:
            features = ["deletionVectors"]
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7}
            action["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
    commit.write_text("\n".join(map(json.dumps, actions)))
    table = TableFolder(str(folder), TOPICS).snapshot()
    with pytest.raises(UnsupportedTable, match=r"\(deletion vectors\); run REORG TABLE"):
        read(table)
    assert issubclass(UnsupportedTable, UNREADABLE)  # so folds let Spark read the table


def test_a_commit_that_a_list_of_files_misses_is_looked_for_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = TableFolder(str(place / "topics"), TOPICS)
    folder.create()
    attempts: list[str] = []

    def listed(path: str, **_: object) -> DeltaTable:
        attempts.append(path)
        if len(attempts) < 3:
            raise DeltaError("Kernel error: Expected contiguous commit files, but found gap")
        return DeltaTable(path)

    monkeypatch.setattr(reader, "DeltaTable", listed)
    assert reader.open_table(folder.folder).version() == 0
    attempts[:] = []
    monkeypatch.setattr(reader, "_LISTINGS", 2)
    with pytest.raises(DeltaError, match="gap"):
        reader.open_table(folder.folder)
