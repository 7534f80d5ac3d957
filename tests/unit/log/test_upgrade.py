"""Stores of older formats, copied to new ones. `tests/data/stores` has one that the program of format 1 wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.cli.program import main
from offsets_pipeline.delta import TableFolder
from offsets_pipeline.delta.properties import StoreProperties
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.delta.store_folder import create_tables, properties_of
from offsets_pipeline.errors import StorageFailed, WriteConflict
from offsets_pipeline.log.upgrade import upgrade
from tests.compare import compare, compared_offsets
from tests.logs import CAPTURES, capture_rows

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT_1 = Path(__file__).parents[2] / "data" / "stores" / "format-1"
CAPTURE = "4.2.0-classic"  # from its segment files, by `offsets ingest-segments` of that program
FOLLOWED = {"complete_since": pa.timestamp("us", tz="UTC"), "read_at": pa.timestamp("us", tz="UTC")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the store of format 1."""
    return Path(shutil.copytree(FORMAT_1, tmp_path / "old"))


def test_a_store_of_the_first_format_answers_as_the_broker_again(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert main(["describe", "--store", str(old), "--all-groups"]) == 1
    assert (
        f"it has format 1, this program reads 5; copy it to the new format: offsets upgrade --store {old} --to NEW"
        in (capsys.readouterr().err)
    )
    new = tmp_path / "new"
    assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 0
    rows = [row for of_partition in capture_rows(CAPTURE).values() for row in of_partition]
    assert capsys.readouterr().out == (
        f"{new} has the {len(rows)} records of {old}; offsets reload --store {new} makes its state\n"
    )
    assert main(["describe", "--store", str(new), "--all-groups", "--format", "json"]) == 0
    oracle = json.loads((CAPTURES / CAPTURE / "oracle.json").read_text())
    assert compared_offsets(oracle)
    assert not compare(json.loads(capsys.readouterr().out), oracle)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_an_interrupted_copy_is_begun_again(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, write_file = tmp_path / "new", TableFolder.write_file

    def full(self: TableFolder, *arguments: object, **options: str) -> object:
        if self.table is LOG:
            raise StorageFailed("no space")
        return write_file(self, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(TableFolder, "write_file", full)
        with pytest.raises(StorageFailed):
            upgrade(str(old), str(new))
    assert not TableFolder(f"{new}/log", LOG).snapshot().files()
    records = upgrade(str(old), str(new))
    assert records == sum(len(of_partition) for of_partition in capture_rows(CAPTURE).values())
    ends = DeltaTable(new / "log_partitions").to_pyarrow_table()
    assert ends.num_rows == DeltaTable(old / "log_partitions").to_pyarrow_table().num_rows


def test_a_writer_of_the_old_store_stops_the_copy(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file = TableFolder.write_file

    def beside(self: TableFolder, *arguments: object, **options: str) -> object:
        if self.table is LOG:
            log = DeltaTable(old / "log")
            write_deltalake(log, log.to_pyarrow_table().slice(0, 1), mode="append")
        return write_file(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TableFolder, "write_file", beside)
    with pytest.raises(WriteConflict, match="stop all writers of the store, then try again"):
        upgrade(str(old), str(tmp_path / "new"))
    new = TableFolder(f"{tmp_path}/new/log", LOG)
    assert not new.snapshot().files()
    assert not list(Path(new.folder).glob("*.parquet"))


def test_a_reading_of_committed_records_only_is_not_continued(old: Path, tmp_path: Path) -> None:
    """Its log lacks control records; without progress, `follow` begins a new log incarnation (test_topic_plan.py)."""
    with_progress(old)
    upgrade(str(old), str(tmp_path / "new"))
    rows = DeltaTable(tmp_path / "new" / "log_partitions").to_pyarrow_table()
    assert rows.num_rows
    for name in FOLLOWED:
        assert rows[name].null_count == rows.num_rows


def test_a_reading_of_all_records_is_continued(old: Path, tmp_path: Path) -> None:
    with_progress(old, leader_epoch=3)
    upgrade(str(old), str(tmp_path / "new"))
    rows = DeltaTable(tmp_path / "new" / "log_partitions").to_pyarrow_table()
    assert rows["leader_epoch"].to_pylist() == [3] * rows.num_rows
    for name in FOLLOWED:
        assert rows[name].null_count == 0


def with_progress(store: Path, **more: int) -> None:
    """Write progress of `follow` to a store's table of log partitions."""
    table = DeltaTable(store / "log_partitions")
    rows = table.to_pyarrow_table()
    for name, kind in FOLLOWED.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pa.repeat(pa.scalar(1, kind), rows.num_rows))
    for name, value in more.items():
        rows = rows.append_column(pa.field(name, pa.int32()), pa.repeat(pa.scalar(value, pa.int32()), rows.num_rows))
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda _: None,
            "no store at {store}; ingest a log, run offsets create for an owned store, or check the path",
        ),
        (
            lambda store: create_tables(str(store), StoreProperties("mirrored", 2)),
            "{store} has format 5 already, the one of this program; use it as it is",
        ),
        (
            lambda store: _of_format(store, "6"),
            "{store} has format 6, this program writes 5; use a newer version of the program",
        ),
    ],
)
def test_what_needs_no_upgrade_is_refused(
    make: Callable[[Path], object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    make(store)
    assert main(["upgrade", "--store", str(store), "--to", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err == f"offsets: error: {said.format(store=store)}\n"
    assert not (tmp_path / "new").exists()


def _of_format(store: Path, version: str) -> None:
    create_tables(str(store), StoreProperties("mirrored", 2))
    first = store / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(
        first.read_text().replace('"offsets.format.version": "5"', f'"offsets.format.version": "{version}"')
    )


def test_a_copy_that_was_complete_when_it_was_killed_is_found_complete(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, commit = tmp_path / "new", TableFolder.commit

    def killed(self: TableFolder, *arguments: object, **options: object) -> object:
        version = commit(self, *arguments, **options)  # type: ignore[arg-type]
        if self.table is LOG:
            raise KeyboardInterrupt
        return version

    with monkeypatch.context() as patched:
        patched.setattr(TableFolder, "commit", killed)
        assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 130
    held = TableFolder(f"{new}/log", LOG).snapshot().version
    records = sum(map(len, capture_rows(CAPTURE).values()))
    assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 0
    assert capsys.readouterr().out == (
        f"{new} has the {records} records of {old}; offsets reload --store {new} makes its state\n"
    )
    assert TableFolder(f"{new}/log", LOG).snapshot().version == held
    assert DeltaTable(new / "log").to_pyarrow_table().num_rows == records


def test_a_folder_with_another_log_is_refused(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    upgrade(str(old), str(new))
    log = DeltaTable(old / "log")
    write_deltalake(log, log.to_pyarrow_table().slice(0, 1), mode="append")  # the copy lacks it
    held = properties_of(str(new)), TableFolder(f"{new}/log", LOG).snapshot().version
    assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 1
    assert capsys.readouterr().err == (
        f"offsets: error: cannot copy {old} to {new}: it holds a log already; name a new folder\n"
    )
    assert (properties_of(str(new)), TableFolder(f"{new}/log", LOG).snapshot().version) == held
    assert main(["upgrade", "--store", "schema:x", "--to", str(new)]) == 1
    assert "name folders" in capsys.readouterr().err
