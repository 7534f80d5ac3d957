"""The owned log: record offsets, reading it, compare-and-swap, and its storage (R2, R4)."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from concurrent.futures import Future
from contextlib import ExitStack
from time import CLOCK_BOOTTIME, clock_gettime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.handlers import FetchedOffset
from offsets_pipeline.coordinator.owned_log import CHECKPOINT_COMMITS, OwnedLog, Record
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import (
    InvalidPartitionCount,
    LogMovedOn,
    NoSuchStore,
    NotAStore,
    NotCoordinator,
    StoreMismatch,
    StoreReplaced,
    WriteConflict,
)
from offsets_pipeline.store.delta import storage, table_folder
from offsets_pipeline.store.delta.data_file import APPLICATION
from offsets_pipeline.store.delta.protocol import commit_path
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS, TABLES
from offsets_pipeline.store.delta.storage import LocalStorage, NoAnswer, ObjectStorage, Winners
from offsets_pipeline.store.delta.table_folder import READERS_SECONDS
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import NOW_MS, append, log_of, opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow.parquet as pq

    from offsets_pipeline.store.delta.data_file import DataFile


def records(*partitions: int) -> list[Record]:
    return [Record(partition, b"key", b"value") for partition in partitions]


def log_at(store: Path) -> OwnedLog:
    log = OwnedLog(str(store), 3, "a test")
    log.open((), [].append)
    return log


def written(log: OwnedLog, *partitions: int) -> None:
    append = log.prepare(records(*partitions), NOW_MS)
    list(log.accept(append, log.write(append, durable=True)))


def test_record_offsets_are_gapless_in_each_log_partition(store: Path) -> None:  # R2
    log = log_at(store)
    written(log, 2, 0, 2, 2)
    written(log, 0, 1)
    assert log.ends == [2, 1, 3]
    assert {partition: [row.record_offset for row in rows] for partition, rows in log_of(store).items()} == {
        0: [0, 1],
        1: [0],
        2: [0, 1, 2],
    }
    assert log_at(store).ends == [2, 1, 3]


def test_rows_are_as_the_table_wants_them(store: Path) -> None:
    log = log_at(store)
    append = log.prepare([Record(1, b"k", None, 7, 2, "ABORT")], NOW_MS)
    log.write(append, durable=True)
    table = DeltaTable(store / "log")
    (row,) = table.to_pyarrow_table().to_pylist()
    stamps = {row.pop(name).timestamp() * 1000 for name in ("record_timestamp", "appended_at")}
    assert stamps == {NOW_MS}
    assert row == {
        "log_partition": 1,
        "record_offset": 0,
        "key": b"k",
        "value": None,
        "producer_id": 7,
        "producer_epoch": 2,
        "control_type": "ABORT",
        "source": "a test",
        "log_incarnation": 0,
        "backfill": False,
    }
    assert table.transaction_version(APPLICATION) == 0
    (add,) = [json.loads(line) for line in commit_of(store, 1) if "add" in json.loads(line)]
    stats = json.loads(add["add"]["stats"])
    assert stats["numRecords"] == 1
    assert stats["minValues"] == stats["maxValues"] | {"appended_at": stats["minValues"]["appended_at"]}
    assert stats["minValues"].keys() == set(LOG.properties["delta.dataSkippingStatsColumns"].split(","))


def commit_of(store: Path, version: int) -> list[str]:
    return (store / "log" / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


@pytest.mark.on_s3
def test_of_two_writers_of_one_version_one_is_refused(store: Path) -> None:
    first, second = log_at(store), log_at(store)
    written(first, 0, 1)
    late = second.prepare(records(1, 2), NOW_MS)
    with pytest.raises(WriteConflict, match="another writer committed version 1"):
        second.write(late, durable=True)
    # its file is removed again; on S3 beside what follows
    wait_until("the file of the refused writer is gone", lambda: len(list((store / "log").glob("*.parquet"))) == 1)
    assert [row["record_offset"] for rows in second.catch_up() for row in rows.to_pylist()] == [0, 0]
    written(second, 1, 2)
    assert second.ends == [1, 2, 1]
    assert [rows.num_rows for rows in first.catch_up()] == [2]
    assert first.ends == second.ends
    assert first.number == second.number == DeltaTable(store / "log").transaction_version(APPLICATION)


def test_appends_of_others_are_noticed_by_transaction_number(store: Path) -> None:
    """The last transaction version of the application, which appends by Spark and `deltalake` compare."""
    log = log_at(store)
    written(log, 0)
    table = DeltaTable(store / "log")
    rows = table.to_pyarrow_table()
    number = table.transaction_version(APPLICATION)
    assert number == 0
    write_deltalake(
        table,
        rows.set_column(1, rows.schema.field(1), [[1]]),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, number + 1)]),
    )
    with pytest.raises(WriteConflict):
        written(log, 0)
    assert [rows["record_offset"].to_pylist() for rows in log.catch_up()] == [[1]]
    assert (log.number, log.ends) == (1, [2, 0, 0])
    written(log, 0)
    assert log.ends == [3, 0, 0]


def test_commit_that_only_rewrites_rows_adds_no_records(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, follower = log_at(store), log_at(store)
    for _ in range(3):
        written(log, 0, 1)
    table = DeltaTable(store / "log")
    assert table.optimize.compact()["numFilesAdded"] == 1
    read: list[str] = []
    open_file = follower._table.open_file

    def noted(file: DataFile, **options: Any) -> AbstractContextManager[pq.ParquetFile]:  # noqa: ANN401
        read.append(file.name)
        return open_file(file, **options)

    monkeypatch.setattr(follower._table, "open_file", noted)
    assert sum(rows.num_rows for rows in follower.catch_up()) == 6
    assert len(read) == 3  # not the one that OPTIMIZE made of them
    assert follower.ends == [3, 3, 0]
    written(follower, 0)
    assert sum(rows.num_rows for rows in log.catch_up()) == 1
    table = DeltaTable(store / "log")
    table.delete("record_offset = 0 AND log_partition = 1")
    path = store / "log" / "_delta_log" / f"{table.version():020d}.json"
    path.write_text(path.read_text().replace('"dataChange":true', '"dataChange":false'))  # as a cleaning commits
    assert list(log.catch_up()) == []
    assert log.ends == log_at(store).ends == [4, 3, 0]


def test_an_end_whose_records_were_cleaned_away_is_not_used_again(store: Path) -> None:  # R2, R23
    log = log_at(store)
    written(log, 0, 0, 1)
    noted = {"log_partition": 0, "log_incarnation": 0, "start_offset": 0, "end_offset": 2, "updated_at": 0}
    rows = pa.Table.from_pylist([noted], LOG_PARTITIONS.arrow_schema())
    write_deltalake(DeltaTable(store / LOG_PARTITIONS.name), rows, mode="append")
    DeltaTable(store / "log").delete("log_partition = 0")
    assert log_at(store).ends == [2, 1, 0]


def test_log_with_missing_commits_is_read_again(store: Path) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        behind = log_at(store)
        with opened(store) as other:
            other.commit_offsets("g", {("t", 0): 2})
            other.commit_offsets("h", {("t", 0): 3})
            other.remove_group("h")
        DeltaTable(store / "log").create_checkpoint()
        for version in (0, 1, 2):  # as Delta does after a week
            (store / "log" / "_delta_log" / f"{version:020d}.json").unlink()
        with pytest.raises(WriteConflict):
            behind.write(behind.prepare(records(0), NOW_MS), durable=True)
        with pytest.raises(LogMovedOn):
            list(behind.catch_up())
        assert coordinator.fetch_offsets("g")[at()].offset == 2
        coordinator.commit_offsets("g", {("t", 0): 4})
    assert [[row.record_offset for row in rows] for rows in log_of(store).values()] == [
        list(range(len(rows))) for rows in log_of(store).values()
    ]


def test_delta_s_log_is_summed_up_from_time_to_time(store: Path) -> None:
    with opened(store) as coordinator:
        for offset in range(CHECKPOINT_COMMITS + 1):
            coordinator.commit_offsets("g", {("t", 0): offset}, acks=1)
        coordinator._core.appender.await_checkpoint()
    assert list((store / "log" / "_delta_log").glob("*.checkpoint*.parquet"))
    with opened(store) as coordinator:
        assert coordinator.fetch_offsets("g")[at()].offset == CHECKPOINT_COMMITS


@pytest.mark.local_only("of a folder alone are there two storages")
@pytest.mark.parametrize("kind", [LocalStorage, ObjectStorage])
def test_storages_do_the_same(store: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], object]) -> None:
    monkeypatch.setattr(table_folder, "storage_of", kind)
    first, second = log_at(store), log_at(store)
    with first.turn(lambda: None):
        written(first, 0, 1)
    late = second.prepare(records(1), NOW_MS)
    with pytest.raises(WriteConflict):
        second.write(late, durable=True)
    wait_until("the unused file is gone", lambda: len(list((store / "log").glob("*.parquet"))) == 1)
    assert sum(rows.num_rows for rows in second.catch_up()) == 2
    written(second, 1)
    assert sum(rows.num_rows for rows in first.catch_up()) == 1
    assert first.ends == second.ends == [1, 2, 0]
    assert DeltaTable(store / "log").transaction_version(APPLICATION) == 1


def at_once(request: Callable[..., Any], *arguments: object) -> Future[Any]:
    """Send a request that would be sent beside others."""
    done: Future[Any] = Future()
    done.set_result(request(*arguments))
    return done


class Turns:
    """A writer on an object store whose requests take 0.1 s, by a clock that only these and its waits move on."""

    def __init__(self, table: Path, monkeypatch: pytest.MonkeyPatch, winners: Winners) -> None:
        self.storage, self.winners = ObjectStorage(str(table)), winners
        self.now = self.tick = 0.0
        monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=self.time, sleep=self.sleep))
        monkeypatch.setattr(storage, "beside", at_once)

    def time(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def wins(self, *meanwhile: str) -> float:
        """Has a turn, and wins it. In each look of its wait one of these has won. Returns the wait's seconds."""
        begun, others = self.now, iter(meanwhile)

        def look() -> None:
            for each in itertools.islice(others, 1):
                self.winners.note(each)

        with self.storage.turn(look, self.winners):
            waited = self.now - begun
            self.tick = 0.1
            self.storage.create(f"_delta_log/{uuid.uuid4()}.json", b"", durable=True)
            self.tick = 0.0
        self.winners.note("own")
        return round(waited, 3)

    def loses(self) -> None:
        with pytest.raises(WriteConflict), self.storage.turn(lambda: None, self.winners):
            raise WriteConflict("another writer came first")


def test_winner_waits_for_as_many_as_won_between_its_last_commits(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winners = Winners("own")
    writer = Turns(store / "log", monkeypatch, winners)
    assert [writer.wins(), writer.wins()] == [0, 0]
    for each in ("a", "b", "a"):
        winners.note(each)
    assert writer.wins() == 0  # the two won before this turn
    assert writer.wins("a", "b") == 0.6  # looks after the time of a round; goes on when two have won
    assert writer.wins("b", "b", "b") == 1.0  # five requests for each of the two: one is idle
    assert writer.wins() == 0.5
    assert writer.wins() == 0
    for number in range(30):
        winners.note(str(number))
    writer.wins()
    assert writer.wins() == 2.5


def test_winner_lets_one_go_first_that_lost_twice(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loser = Turns(store / "log", monkeypatch, Winners("loser"))
    winner = Turns(store / "log", monkeypatch, Winners("own"))
    assert [winner.wins(), winner.wins()] == [0, 0]
    loser.loses()
    assert [winner.wins(), winner.wins()] == [0, 0]  # it may win by chance the next time
    loser.loses()
    assert [winner.wins() for _ in range(4)] == [0, 0.5, 0, 0]  # it looked before the first turn


def test_a_writer_in_a_folder_waits_for_its_turn_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_delta_log").mkdir()
    times, looks = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: times[-1], sleep=lambda seconds: times.append(times[-1] + seconds))
    monkeypatch.setattr(storage, "time", clock)
    first, second, third = (LocalStorage(str(tmp_path)) for _ in range(3))
    with ExitStack() as held:
        held.enter_context(first.turn(lambda: None, Winners("first")))

        def look() -> None:
            looks.append(times[-1])
            if len(looks) == 3:
                held.close()

        with second.turn(look, Winners("second")):
            assert len(looks) == 3
            begun = times[-1]
            with third.turn(lambda: None, Winners("third")):
                assert times[-1] - begun == pytest.approx(0.2, abs=0.001)


def test_a_loser_reads_what_it_lost_to_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_folder, "storage_of", ObjectStorage)
    winner, loser = log_at(store), log_at(store)
    late = loser.prepare(records(1), NOW_MS)
    written(winner, 0, 1)
    reads: list[str] = []
    read = ObjectStorage.read

    def noted(self: ObjectStorage, name: str) -> bytes | None:
        reads.append(name)
        return read(self, name)

    monkeypatch.setattr(ObjectStorage, "read", noted)
    with pytest.raises(WriteConflict):
        loser.write(late, durable=True)
    assert sum(rows.num_rows for rows in loser.catch_up()) == 2
    assert reads.count(commit_path(1)) == 1


@pytest.mark.local_only("each kind of storage, in a folder")
@pytest.mark.parametrize("kind", [LocalStorage, ObjectStorage])
def test_many_commits_of_others_are_read_in_order(
    store: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], object]
) -> None:
    monkeypatch.setattr(table_folder, "storage_of", kind)
    writer, reader = log_at(store), log_at(store)
    for _ in range(20):
        written(writer, 1)
    offsets = [rows["record_offset"].to_pylist() for rows in reader.catch_up()]
    assert offsets == [[each] for each in range(20)]


@pytest.mark.local_only("storage of objects, in a folder that is deleted")
def test_a_table_that_is_replaced_while_it_is_read_is_noticed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_folder, "storage_of", ObjectStorage)
    writer, reader = log_at(store), log_at(store)
    written(writer, 1)
    read = ObjectStorage.read

    def read_of_another_table(self: ObjectStorage, name: str) -> bytes | None:
        contents = read(self, name)
        if name == commit_path(1):  # then the table is deleted
            shutil.rmtree(store / "log", ignore_errors=True)
        return contents

    monkeypatch.setattr(ObjectStorage, "read", read_of_another_table)
    with pytest.raises(StoreReplaced):
        list(reader.catch_up())
    assert reader.version == 0


def test_written_commit_is_not_a_conflict_despite_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_folder, "storage_of", ObjectStorage)
    log = log_at(store)
    create = ObjectStorage.create

    def written_and_lost(storage: ObjectStorage, name: str, contents: bytes, *, durable: bool) -> bool:
        create(storage, name, contents, durable=durable)
        raise NoAnswer("connection reset")

    monkeypatch.setattr(ObjectStorage, "create", written_and_lost)
    written(log, 0)
    assert [row.record_offset for row in log_of(store)[0]] == [0]


def test_a_mirrored_store_has_another_coordinator(store: Path) -> None:  # R4
    path = store / "log" / "_delta_log" / f"{0:020d}.json"
    path.write_text(path.read_text().replace('"owned"', '"mirrored"'))
    with pytest.raises(NotCoordinator, match="in a mirrored store only the broker writes"):
        Coordinator.open(store)


def test_refused_store_names_the_reason(place: Path, store: Path) -> None:
    with pytest.raises(NoSuchStore):
        Coordinator.open(place / "nothing")
    with pytest.raises(NotAStore):
        Coordinator.open(place)
    with pytest.raises(NotAStore, match="a coordinator does not read Spark's catalog"):
        Coordinator.open("schema:ops")
    assert OwnedStore.open(store).properties.offsets_partitions == 3
    with pytest.raises(NoSuchStore):
        OwnedLog(str(place), 3, "a test").open((), [].append)


def test_a_store_is_created_once(store: Path, place: Path) -> None:
    assert OwnedStore.create(store, 3) == OwnedStore.open(store)
    with pytest.raises(StoreMismatch, match="it has a store with other properties"):
        OwnedStore.create(store, 4)
    for impossible in (0, 100_001):
        with pytest.raises(InvalidPartitionCount):
            OwnedStore.create(place / "none", impossible)
    (place / "other").mkdir()
    (place / "other" / "photo.jpg").write_bytes(b"")
    with pytest.raises(NotAStore, match="it is not empty; name a new"):
        OwnedStore.create(place / "other", 3)
    with pytest.raises(NotAStore, match="it is a file; name a new or empty folder"):
        OwnedStore.create(place / "other" / "photo.jpg", 3)


@pytest.mark.parametrize("left", ["log/_delta_log", "log", "."])
def test_creation_goes_on_where_another_process_stands_or_was_killed(tmp_path: Path, left: str) -> None:
    OwnedStore.create(tmp_path, 3)
    gone = tmp_path / "log" / "_delta_log"
    (gone / f"{0:020d}.json").unlink()
    while gone != tmp_path / left:
        gone.rmdir()
        gone = gone.parent
    assert OwnedStore.create(tmp_path, 3).properties.offsets_partitions == 3
    assert {path.name for path in tmp_path.iterdir()} == {table.name for table in TABLES}


def test_append_of_a_test_is_an_append(store: Path) -> None:
    append(store, records(0), 3)
    assert log_at(store).ends == [1, 0, 0]


@pytest.mark.local_only("removes a commit by its path")
def test_a_coordinator_that_was_idle_finds_out_that_the_next_commit_was_removed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta removes commits that a checkpoint has in any order: the one that is known may still be there."""
    with opened(store) as idle, opened(store) as other:
        idle.commit_offsets("g", {("t", 0): 1})
        known = idle._core.log.version
        for offset in range(3):
            other.commit_offsets("g", {("t", 0): offset})
        other._core.log.checkpoint()
        (store / "log" / commit_path(known + 1)).unlink()
        now = clock_gettime(CLOCK_BOOTTIME)
        monkeypatch.setattr("offsets_pipeline.coordinator.owned_log.clock_gettime", lambda _: now + READERS_SECONDS)
        idle.commit_offsets("g", {("t", 1): 7})
        assert not (store / "log" / commit_path(known + 1)).exists()
    with opened(store) as fresh:
        assert fresh.fetch_offsets("g") == {at("t", 0): FetchedOffset(2), at("t", 1): FetchedOffset(7)}
