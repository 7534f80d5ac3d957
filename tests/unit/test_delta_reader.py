"""Reading tables without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.delta_reader import whole

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_found_in_a_folder_with_a_space_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a table"
    for number in (1, 2):
        write_deltalake(folder, pa.table({"n": [number]}), mode="append")
    assert sorted(whole(DeltaTable(folder))["n"].to_pylist()) == [1, 2]
