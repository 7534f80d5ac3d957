"""Reading tables without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.delta.reader import UNREADABLE, answer, file_paths, stored_files, whole
from offsets_pipeline.errors import UnsupportedTable
from tests.unit.coordinator.stores import SECOND_ROW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_files_are_found_in_a_folder_with_a_space_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a table"
    for number in (1, 2):
        write_deltalake(folder, pa.table({"n": [number]}), mode="append")
    assert sorted(whole(DeltaTable(folder))["n"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("read", [whole, stored_files, file_paths])
def test_deleted_rows_are_never_read_from_the_files(tmp_path: Path, read: Callable[[DeltaTable], object]) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = SECOND_ROW
        if "protocol" in action:
            features = ["deletionVectors"]
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7}
            action["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
    commit.write_text("\n".join(map(json.dumps, actions)))
    table = DeltaTable(tmp_path)
    with pytest.raises(UnsupportedTable, match=r"\(deletion vectors\); REORG TABLE"):
        read(table)
    assert issubclass(UnsupportedTable, UNREADABLE)  # so folds let Spark read the table
    assert answer("SELECT n FROM t", t=table).read_all()["n"].to_pylist() == [1]
