"""Reading tables without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from offsets_pipeline.delta import reader
from offsets_pipeline.delta.reader import UNREADABLE
from offsets_pipeline.delta.schemas import TOPICS
from offsets_pipeline.delta.snapshot import Snapshot
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import UnsupportedTable
from tests.unit.coordinator.stores import SECOND_ROW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def topics(*numbers: int) -> pa.Table:
    names = [str(number) for number in numbers]
    return pa.table({"topic_id": names, "topic": names})


def test_files_are_found_in_a_folder_with_a_space_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a table"
    for number in (1, 2):
        write_deltalake(folder, topics(number), mode="append")
    assert sorted(TableFolder(str(folder), TOPICS).snapshot().rows()["topic"].to_pylist()) == ["1", "2"]


@pytest.mark.parametrize("read", [Snapshot.rows, Snapshot.files, lambda seen: list(seen.batches(["topic"]))])
def test_deleted_rows_are_never_read_from_the_files(tmp_path: Path, read: Callable[[Snapshot], object]) -> None:
    folder = tmp_path / TOPICS.name
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
    assert table.query("SELECT topic FROM topics").read_all()["topic"].to_pylist() == ["1"]


def test_a_commit_that_a_list_of_files_misses_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TableFolder(str(tmp_path / "topics"), TOPICS)
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
