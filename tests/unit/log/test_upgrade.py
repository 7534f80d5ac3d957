"""Stores of format 5, copied to new ones. `tests/data/stores` has four, and what the program of format 5 answered."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.cli.program import main
from offsets_pipeline.common.config import Settings
from offsets_pipeline.errors import StorageFailed, WriteConflict
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicDescription
from offsets_pipeline.ingest.topic.topic_plan import Reading, plan_reading
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.store_folder import create_tables, properties_of
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.upgrade import upgrade
from offsets_pipeline.store.store import Store
from tests.places import copied, place_of
from tests.spark.stores import CLOCK
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

FORMAT_5 = Path(__file__).parents[2] / "data" / "stores" / "format-5"
#: By store and command: the lines of JSON that the program of format 5 printed.
ANSWERS: dict[str, dict[str, list[dict[str, Any]]]] = json.loads((FORMAT_5 / "answers.json").read_text("utf-8"))
RECORDS = {"mirrored": 55, "owned": 5, "connect": 4, "followed": 7}
#: Fields that depend on the time of the question: an owned store answers as of it, a followed store was read before it.
OF_THE_QUESTION = {"owned": ["as_of"], "connect": ["as_of"], "followed": ["stale"]}
TOO_OLD = (
    "it has format {}, which the last version 0.1.0 of the program can copy to format 5; "
    "run its `offsets upgrade` first, then that of this version"
)
MIRRORED_LOG = StoreProperties("mirrored", 2)
COPIED = ("log", "log_partitions", "topics", "quarantine", "topic_offsets")
PROGRESS = {
    "cleaned_to": pa.scalar(3, pa.int64()),
    "complete_since": pa.scalar(1_795_000_000_000_000, pa.timestamp("us", tz="UTC")),
    "read_at": pa.scalar(1_795_000_001_000_000, pa.timestamp("us", tz="UTC")),
    "stable_offset": pa.scalar(4, pa.int64()),
    "topic_end_offset": pa.scalar(5, pa.int64()),
    "open_since": pa.scalar(1_795_000_002_000_000, pa.timestamp("us", tz="UTC")),
    "leader_epoch": pa.scalar(6, pa.int32()),
    "open_producer_id": pa.scalar(7, pa.int64()),
    "open_transactional_id": pa.scalar("orders-1"),
}


@pytest.fixture
def old(place: Path) -> Path:
    """A copy of the mirrored store of format 5."""
    return copied(FORMAT_5 / "mirrored", place / "old")


def _of_format(store: Path, version: str, properties: StoreProperties = MIRRORED_LOG) -> None:
    create_tables(str(store), properties)
    first = store / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(
        first.read_text().replace('"offsets.format.version": "6"', f'"offsets.format.version": "{version}"')
    )


def rows_of(table: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=repr)


def answer(store: Path, command: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines of JSON that a command prints."""
    capsys.readouterr()
    assert main([*command.split(), "--store", str(store), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_copy_answers_as_the_program_of_format_5_did(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, *, is_folded: bool
) -> None:
    """From the log alone, and after a fold. Small logs are folded in the driver, which needs no Spark."""
    old, new = place / "old" / name, place / "new" / name
    copied(FORMAT_5 / name, old)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 0
    assert capsys.readouterr().out == (
        f"{new} has the {RECORDS[name]} records of {old}; offsets reload --store {new} makes its state\n"
    )
    if is_folded:
        store = Store(cast("SparkSession", None), str(new), properties_of(str(new)))
        assert fold_log(store, Settings(), CLOCK) == RECORDS[name]
    for command, lines in ANSWERS[name].items():
        found = answer(new, command, capsys)
        for line in (*found, *lines):
            for field in OF_THE_QUESTION.get(name, ()):
                line.pop(field, None)
            for group in line["groups"].values() if command.startswith("describe ") else ():
                for member in group["members"]:
                    assert member.pop("streams", None) is None  # a newer field
            if line.get("method") == "at_least":  # a newer answer
                line |= {"lag_seconds": None, "method": "none"}
        assert found == lines, command
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ANSWERS)
def test_a_copy_has_all_rows_that_no_fold_makes(place: Path, name: str) -> None:
    upgrade(str(FORMAT_5 / name), str(place / "new"))
    found = {table: len(rows_of(FORMAT_5 / name / table)) for table in COPIED if (FORMAT_5 / name / table).exists()}
    assert found["log"] == RECORDS[name]
    assert name != "mirrored" or found == {
        "log": 55,
        "log_partitions": 50,
        "topics": 1,
        "quarantine": 5,
        "topic_offsets": 4,
    }
    for table in found:
        assert rows_of(place / "new" / table) == rows_of(FORMAT_5 / name / table)


def test_a_copy_has_the_properties_of_the_store(place: Path) -> None:
    properties = StoreProperties(
        OWNED, 3, "cluster", "id", "t", CoordinatorSemantics.CLASSIC, TopicKind.CONNECT_STATUS, "lab"
    )
    _of_format(place / "old", "5", properties)
    upgrade(str(place / "old"), str(place / "new"))
    assert properties_of(str(place / "new")) == properties
    assert properties_of(str(place / "new")).cluster_name == "lab"


def test_a_coordinator_goes_on_in_the_copy(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upgrade(str(FORMAT_5 / "owned"), str(place / "new"))
    assert main(["commit", "--store", str(place / "new"), "--group", "billing", "orders:1=18"]) == 0
    (found,) = answer(place / "new", "describe --group billing", capsys)
    assert [each["offset"] for each in found["groups"]["billing"]["offsets"]] == [40, 18]
    billing = found["groups"]["billing"]["log_partition"]
    offsets = [row["record_offset"] for row in rows_of(place / "new" / "log") if row["log_partition"] == billing]
    assert sorted(offsets) == list(range(6))


def test_an_interrupted_copy_is_begun_again(old: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, write_file = place / "new", TableFolder.write_file

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
    assert records == RECORDS["mirrored"]
    for table in COPIED:
        assert rows_of(new / table) == rows_of(old / table)


def test_a_writer_of_the_old_store_stops_the_copy(old: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file = TableFolder.write_file

    def beside(self: TableFolder, *arguments: object, **options: str) -> object:
        if self.table is LOG:
            log = DeltaTable(old / "log")
            write_deltalake(log, log.to_pyarrow_table().slice(0, 1), mode="append")
        return write_file(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TableFolder, "write_file", beside)
    with pytest.raises(WriteConflict, match="stop all writers of the store, then try again"):
        upgrade(str(old), str(place / "new"))
    new = TableFolder(f"{place}/new/log", LOG)
    assert not new.snapshot().files()
    wait_until("no file is left", lambda: not list(place_of(new.folder).glob("*.parquet")))


def test_follow_goes_on_in_the_copy_where_the_old_program_ended(place: Path) -> None:
    new = str(place / "new")
    upgrade(str(FORMAT_5 / "followed"), new)
    properties = properties_of(new)
    store = Store(cast("SparkSession", None), new, properties)
    known = TopicWatch(store, "__consumer_offsets", Settings(), CLOCK, TopicObserver(), print).known()
    assert known.read_to == {0: 0, 1: 7, 2: 0}
    assert known.complete is not None
    assert known.complete.last_ms is not None
    topic = TopicDescription(properties.cluster_id, properties.topic_id, 3)
    bounds = {at: LogPartitionBounds(0, 9, 9) for at in range(3)}
    reading = plan_reading(known, properties.topic_id, topic, bounds, {}, 1000, known.complete.last_ms + 1)
    assert reading == Reading(0, known.read_to, known.complete)


def test_a_copy_has_each_column_of_the_progress_of_follow(old: Path, place: Path) -> None:
    table = DeltaTable(old / "log_partitions")
    rows = table.to_pyarrow_table()
    for name, value in PROGRESS.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.repeat(value, rows.num_rows))
    write_deltalake(table, rows, mode="overwrite")
    upgrade(str(old), str(place / "new"))
    found = rows_of(place / "new" / "log_partitions")
    assert len(found) == 50
    for row in found:
        assert {name: row[name] for name in PROGRESS} == {name: each.as_py() for name, each in PROGRESS.items()}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda _: None,
            "no store at {store}; ingest a log, run offsets create for an owned store, or check the path",
        ),
        (
            lambda store: create_tables(str(store), StoreProperties("mirrored", 2)),
            "{store} has format 6 already, the one of this program; use it as it is",
        ),
        (
            lambda store: _of_format(store, "7"),
            "{store} has format 7, this program writes 6; use a newer version of the program",
        ),
        *(
            (
                partial(_of_format, version=version),
                f"cannot copy {{store}}: {TOO_OLD.format(version)}",
            )
            for version in "1234"
        ),
    ],
)
def test_what_needs_no_upgrade_is_refused(
    make: Callable[[Path], object], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = place / "store"
    make(store)
    assert main(["upgrade", "--store", str(store), "--to", str(place / "new")]) == 1
    assert capsys.readouterr().err == f"offsets: error: {said.format(store=store)}\n"
    assert not (place / "new").exists()


def test_a_copy_that_was_complete_when_it_was_killed_is_found_complete(
    old: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, commit = place / "new", TableFolder.commit

    def killed(self: TableFolder, *arguments: object, **options: object) -> object:
        version = commit(self, *arguments, **options)  # type: ignore[arg-type]
        if self.table is LOG:
            raise KeyboardInterrupt
        return version

    with monkeypatch.context() as patched:
        patched.setattr(TableFolder, "commit", killed)
        assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 130
    held = TableFolder(f"{new}/log", LOG).snapshot().version
    assert main(["upgrade", "--store", str(old), "--to", str(new)]) == 0
    assert capsys.readouterr().out == (
        f"{new} has the {RECORDS['mirrored']} records of {old}; offsets reload --store {new} makes its state\n"
    )
    assert TableFolder(f"{new}/log", LOG).snapshot().version == held
    assert DeltaTable(new / "log").to_pyarrow_table().num_rows == RECORDS["mirrored"]


def test_a_folder_with_another_log_is_refused(old: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = place / "new"
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
