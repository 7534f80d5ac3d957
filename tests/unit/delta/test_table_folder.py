"""Creating, reading and committing to a table through its folder."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from offsets_pipeline.errors import (
    CommitUnknown,
    DamagedTable,
    NoSuchTable,
    StorageFailed,
    StoreReplaced,
    UnsafeStorage,
    UnsupportedTable,
    WriteConflict,
)
from offsets_pipeline.store.delta import retry, table_folder
from offsets_pipeline.store.delta import snapshot as snapshot_module
from offsets_pipeline.store.delta.filesystems import children
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.protocol import NOT_DURABLE
from offsets_pipeline.store.delta.reader import damage_of
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION, LOG_PARTITIONS, OFFSET_FACTS
from offsets_pipeline.store.delta.snapshot import Commit, Snapshot
from offsets_pipeline.store.delta.storage import LocalStorage, NoAnswer, ObjectStorage, RenamingStorage, storage_of
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact, vacuum
from tests.places import place_of, remove_place
from tests.unit.coordinator.stores import SECOND_ROW
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

APP = "an application"


def rows(*numbers: int) -> pa.Table:
    """Rows of `log_partitions` by log partition."""
    at = pa.scalar(0, pa.timestamp("us", tz="UTC"))
    columns = {
        "log_partition": list(numbers),
        "log_incarnation": [LOG_INCARNATION] * len(numbers),
        "start_offset": [0] * len(numbers),
        "end_offset": [1] * len(numbers),
        "updated_at": [at.as_py()] * len(numbers),
    }
    return pa.Table.from_pydict(
        {each.name: columns.get(each.name, [None] * len(numbers)) for each in LOG_PARTITIONS.arrow_schema()},
        LOG_PARTITIONS.arrow_schema(),
    )


@pytest.fixture
def folder(place: Path) -> TableFolder:
    folder = TableFolder(str(place / LOG_PARTITIONS.name), LOG_PARTITIONS)
    assert folder.create()
    return folder


def again(folder: TableFolder) -> TableFolder:
    """The same table as another process sees it."""
    return TableFolder(folder.folder, folder.table)


def append(folder: TableFolder, *numbers: int, **how: Any) -> int:  # noqa: ANN401 - as `commit`
    return folder.commit([folder.write_file(rows(*numbers))], seen=how.pop("seen", None) or folder.snapshot(), **how)


def numbers(folder: TableFolder) -> list[int]:
    """Rows of the table by deltalake."""
    return sorted(DeltaTable(folder.folder).to_pyarrow_table()["log_partition"].to_pylist())


def data_files(folder: TableFolder) -> set[str]:
    return {path.name for path in place_of(folder.folder).rglob("*.parquet") if "_delta_log" not in path.parts}


def commit_file(folder: TableFolder, version: int) -> Path:
    return place_of(folder.folder) / "_delta_log" / f"{version:020d}.json"


def commit_by_hand(folder: TableFolder, *actions: dict[str, Any]) -> None:
    version = DeltaTable(folder.folder).version() + 1
    commit_file(folder, version).write_text("\n".join(map(json.dumps, [{"commitInfo": {"timestamp": 0}}, *actions])))


# --- commits


def test_a_table_is_created_once_and_read_as_it_was_written(folder: TableFolder) -> None:
    assert not again(folder).create()
    assert append(folder, 1, 2) == 1
    assert append(folder, 3, advance={APP: 7}) == 2
    assert numbers(folder) == [1, 2, 3]
    for snapshot in (folder.snapshot(), again(folder).snapshot(), pickle.loads(pickle.dumps(folder)).snapshot()):
        assert (snapshot.version, snapshot.transaction(APP), snapshot.transaction("another")) == (2, 7, -1)
        assert sorted(snapshot.rows()["log_partition"].to_pylist()) == [1, 2, 3]
        assert snapshot.rows().num_rows == 3
        assert sorted((file.rows, file.lowest["log_partition"]) for file in snapshot.files()) == [(1, 3), (2, 1)]
        assert snapshot.properties == LOG_PARTITIONS.properties
    assert folder.snapshot(1).rows().num_rows == 2
    assert str(DeltaTable(folder.folder).metadata().id) == folder.snapshot().table_id


def test_a_commit_of_others_is_seen_in_the_next_snapshot(folder: TableFolder) -> None:
    before = folder.snapshot()
    append(again(folder), 1)
    write_deltalake(folder.folder, rows(2), mode="append")
    after = folder.snapshot()
    assert (before.version, after.version) == (0, 2)
    assert {file.name for file in after.files()} == data_files(folder)
    assert before.files() == []


@pytest.mark.parametrize("at_once", [1, 5])
def test_commits_are_seen_however_many_there_were_since_the_log_was_read(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(table_folder, "MOST_COMMITS", 2)
    folder.snapshot()
    for step in range(1, 6):
        for _ in range(at_once):
            append(again(folder), step)
        found = folder.snapshot()
        assert found.version == step * at_once
        assert {file.name for file in found.files()} == data_files(folder)


def test_one_snapshot_is_made_of_all_commits_since_another_began(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = folder.snapshot()
    for number in range(5):
        append(again(folder), number, advance={APP: number})
    made: list[int] = []
    after = Snapshot.after

    def counted(snapshot: Snapshot, *commits: Commit) -> Snapshot:
        made.append(len(commits))
        return after(snapshot, *commits)

    monkeypatch.setattr(Snapshot, "after", counted)
    assert append(folder, 5, seen=seen) == 6
    assert made == [5, 1]  # not a snapshot for each: that takes quadratic time
    assert folder.snapshot().transaction(APP) == 4
    assert numbers(folder) == [0, 1, 2, 3, 4, 5]


def test_files_in_partitions_are_written_and_replaced(place: Path) -> None:
    folder = TableFolder(str(place / "offset_facts"), OFFSET_FACTS)
    folder.create()
    schema = pa.schema([field for field in OFFSET_FACTS.arrow_schema() if field.name != "incarnation"])
    nothing = {name: [None] for name in schema.names}
    row = nothing | {"log_partition": [1], "group_id": ["g"], "topic": ["t"], "partition": [0], "folded_to": [6]}
    table = pa.Table.from_pydict(row | {"record_offset": [5], "position": [5], "misplaced": [False]}, schema)
    folder.commit([folder.write_file(table, {"incarnation": "1"})], seen=folder.snapshot())
    folder.commit([folder.write_file(table, {"incarnation": "1"})], seen=folder.snapshot())
    for snapshot in (folder.snapshot(), again(folder).snapshot()):
        first, second = snapshot.files()
        assert first.partition == second.partition == {"incarnation": "1"}
        assert first.lowest == {"log_partition": 1, "group_id": "g", "record_offset": 5}
    folder.commit([folder.write_file(table, {"incarnation": "2"})], seen=folder.snapshot())
    assert compact(folder) == 2
    for snapshot in (folder.snapshot(), again(folder).snapshot()):
        assert sorted((file.partition["incarnation"], file.rows) for file in snapshot.files()) == [("1", 2), ("2", 1)]
    assert sorted(DeltaTable(folder.folder).to_pyarrow_table()["incarnation"].to_pylist()) == [1, 1, 2]


def test_second_writer_of_one_application_version_is_refused(folder: TableFolder) -> None:
    other = again(folder)
    seen = other.snapshot()
    append(folder, 1, advance={APP: 0})
    before = data_files(folder)
    for conditions in ({"advance": {APP: 0}}, {"unless_advanced": [APP]}):
        with pytest.raises(WriteConflict, match="another writer"):
            append(other, 2, seen=seen, **conditions)
    wait_until("no orphans are left", lambda: data_files(folder) == before)
    assert append(other, 3, seen=seen, advance={"another": 0}) == 2
    assert append(other, 4, seen=seen) == 3
    assert numbers(folder) == [1, 3, 4]


def test_second_removal_of_one_file_is_refused(folder: TableFolder) -> None:
    append(folder, 1)
    other = again(folder)
    seen = other.snapshot()
    append(folder, 2)  # beside it: no conflict
    folder.commit([folder.write_file(rows(1))], seen.files(), seen=folder.snapshot(), is_change=False)
    with pytest.raises(WriteConflict, match="replaced files"):
        other.commit([other.write_file(rows(1))], seen.files(), seen=seen, is_change=False)
    assert numbers(folder) == [1, 2]


def test_properties_are_changed_by_one_at_a_time(folder: TableFolder) -> None:
    other = again(folder)
    seen = other.snapshot()
    folder.commit(seen=seen, metadata=folder.with_properties(seen, {"offsets.kind": "owned"}))
    assert DeltaTable(folder.folder).metadata().configuration["offsets.kind"] == "owned"
    assert {each.name for each in DeltaTable(folder.folder).schema().fields} == set(LOG_PARTITIONS.names())
    with pytest.raises(WriteConflict, match="properties"):
        other.commit(seen=seen, metadata=folder.with_properties(seen, {"offsets.kind": "mirrored"}))
    assert append(other, 1, seen=seen) == 2
    assert other.snapshot().properties["offsets.kind"] == again(folder).snapshot().properties["offsets.kind"] == "owned"


@pytest.mark.parametrize("when", ["before it was opened", "since it was seen"])
def test_unsupported_table_is_not_written_to(folder: TableFolder, when: str) -> None:
    seen = folder.snapshot() if when == "since it was seen" else None
    commit_by_hand(
        folder, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    )
    with pytest.raises(
        UnsupportedTable, match="requires the writer feature 'rowTracking', which this program does not"
    ):
        append(folder, 1, seen=seen)
    wait_until("the unused file is gone", lambda: data_files(folder) == set())  # a commit on S3 does not wait
    assert not commit_file(folder, 2).exists()


def protocol(reader: int, *features: str) -> dict[str, Any]:
    names = {"readerFeatures": list(features)} if reader == 3 else {}
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": 7, "writerFeatures": list(features), **names}}


@pytest.mark.parametrize(
    ("action", "requirement"),
    [
        (lambda _: protocol(4), "reader version 4"),
        (lambda _: protocol(3, "typeWidening"), "the reader feature 'typeWidening'"),
        (
            lambda seen: {
                "metaData": {**seen.metadata, "configuration": {**seen.properties, "delta.columnMapping.mode": "name"}}
            },
            "column mapping",
        ),
        (
            lambda seen: {
                "add": {
                    **seen.files()[0].removal(),
                    "modificationTime": 0,
                    "dataChange": True,
                    "deletionVector": SECOND_ROW,
                }
            },
            "deletion vectors",
        ),
    ],
    ids=["reader version", "reader feature", "column mapping", "deletion vectors"],
)
def test_files_that_only_spark_can_read_are_refused_once_the_table_is_open(
    folder: TableFolder, action: Callable[[Snapshot], dict[str, Any]], requirement: str
) -> None:
    append(folder, 1, 2)
    commit_by_hand(folder, action(folder.snapshot()))
    with pytest.raises(UnsupportedTable, match=requirement):
        folder.snapshot().files()


def test_table_that_a_commit_made_another_is_not_written_to(folder: TableFolder) -> None:
    seen = folder.snapshot()
    commit_by_hand(folder, {"metaData": {**seen.metadata, "id": "of another table"}})
    with pytest.raises(StoreReplaced, match="created again"):
        append(folder, 1, seen=seen)
    wait_until("no file is left", lambda: data_files(folder) == set())


def test_rows_of_an_append_only_table_stay(folder: TableFolder) -> None:
    append(folder, 1)
    folder.commit(
        seen=folder.snapshot(), metadata=folder.with_properties(folder.snapshot(), {"delta.appendOnly": "true"})
    )
    seen = folder.snapshot()
    with pytest.raises(UnsupportedTable, match=r"delta\.appendOnly"):
        folder.commit(remove=seen.files(), seen=seen)
    folder.commit([folder.write_file(rows(1))], seen.files(), seen=seen, is_change=False)
    assert numbers(folder) == [1]


def test_table_that_was_created_again_is_not_written_to(folder: TableFolder) -> None:
    append(folder, 1)
    seen = folder.snapshot()
    remove_place(place_of(folder.folder))
    assert again(folder).create()
    append(again(folder), 5)
    with pytest.raises(StoreReplaced, match="created again"):
        append(folder, 2, seen=seen)
    assert numbers(folder) == [5]
    assert folder.snapshot().rows()["log_partition"].to_pylist() == [5]
    remove_place(place_of(folder.folder))
    with pytest.raises(StoreReplaced, match="was deleted, restored or created again"):
        folder.commit(seen=seen)


def test_a_table_whose_last_commit_is_another_now_is_not_written_to(folder: TableFolder) -> None:
    append(folder, 1)
    seen = folder.snapshot()
    of_seen, text = seen.known, commit_file(folder, 1).read_text()
    assert list(folder.commits_after(of_seen)) == []
    commit_file(folder, 1).write_text(f'{text.rstrip()}\n{{"txn": {{"appId": "another", "version": 1}}}}\n')
    with pytest.raises(StoreReplaced, match="it differs from version 1, which was read"):
        list(folder.commits_after(of_seen))
    commit_file(folder, 1).write_text(text)
    assert list(folder.commits_after(of_seen)) == []


def test_commits_after_one_that_was_removed_are_not_asked_for(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone, too, and a question asks an object store for one after the other."""
    for number in range(5):
        append(folder, number)
    DeltaTable(folder.folder).create_checkpoint()
    for version in range(4):
        commit_file(folder, version).unlink()
    snapshot = again(folder).snapshot()
    asked: list[int] = []
    read = TableFolder.commit_file

    def noted(of: TableFolder, version: int) -> bytes | None:
        asked.append(version)
        return read(of, version)

    monkeypatch.setattr(TableFolder, "commit_file", noted)
    assert snapshot.has_rows_of(1, "a hash")
    assert asked == [1]


def test_old_commits_that_were_removed_are_a_conflict_and_no_damage(folder: TableFolder) -> None:
    seen = folder.snapshot()
    other = again(folder)
    for number in range(3):
        append(other, number)
    DeltaTable(folder.folder).create_checkpoint()
    for version in range(3):
        commit_file(folder, version).unlink()
    with pytest.raises(WriteConflict, match="no longer has the commits since"):
        append(folder, 7, seen=seen)
    assert append(folder, 8) == 4
    commit_file(folder, 3).unlink()
    assert numbers(folder) == [0, 1, 2, 8]


def test_a_reader_that_goes_on_needs_no_commit_that_upkeep_has_removed(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `follow` does for hours: it reads on commit by commit, and asks late for files and for a transaction."""
    now = [0.0]
    monkeypatch.setattr(snapshot_module, "monotonic", lambda: now[0])
    append(folder, 0, advance={APP: 7})
    reader = again(folder)
    assert reader.snapshot().transaction(APP) == 7
    for number in range(1, 4):
        append(folder, number)
        assert reader.snapshot().version == number + 1
    DeltaTable(folder.folder).create_checkpoint()
    now[0] = 599  # commits stay for ten minutes after their checkpoint
    for version in range(4):
        commit_file(folder, version).unlink()
    found = reader.snapshot()
    assert (found.transaction(APP), found.transaction("another")) == (7, -1)
    assert sorted(found.rows()["log_partition"].to_pylist()) == [0, 1, 2, 3]


def test_a_transaction_that_was_asked_for_needs_no_commit_again(folder: TableFolder) -> None:
    append(folder, 0, advance={APP: 7})
    reader = again(folder)
    assert [reader.snapshot().transaction(each) for each in (APP, "another")] == [7, -1]
    append(folder, 1)
    assert reader.snapshot().version == 2
    commit_file(folder, 1).unlink()
    append(folder, 2, advance={"another": 3})
    assert [reader.snapshot().transaction(each) for each in (APP, "another")] == [7, 3]


def test_checkpoints_are_made_and_old_commits_go(place: Path) -> None:
    folder = TableFolder(str(place / LOG_PARTITIONS.name), LOG_PARTITIONS)
    folder.create({"delta.checkpointInterval": "3", "delta.logRetentionDuration": "interval 0 seconds"})
    for number in range(7):
        append(folder, number, advance={APP: number})
    checkpoints = list((place_of(folder.folder) / "_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints
    assert not commit_file(folder, 0).exists()
    found = again(folder).snapshot()
    assert (found.version, found.transaction(APP), found.rows().num_rows) == (7, 6, 7)


def test_a_table_with_a_checkpoint_and_no_commit_is_whole_and_one_without_both_is_damaged(folder: TableFolder) -> None:
    append(folder, 1)
    DeltaTable(folder.folder).create_checkpoint()
    for version in range(2):
        commit_file(folder, version).unlink()
    assert damage_of(folder.folder) is None
    assert numbers(again(folder)) == [1]
    remove_place(place_of(folder.folder, "_delta_log"))
    place_of(folder.folder, "_delta_log").mkdir()
    assert "has no commit; all rows are lost" in str(damage_of(folder.folder))


def test_the_newest_of_two_corrupt_checkpoints_is_named(folder: TableFolder) -> None:
    for number in (1, 2):
        append(folder, number)
        DeltaTable(folder.folder).create_checkpoint()
    for version in (1, 2):
        place_of(folder.folder, "_delta_log", f"{version:020}.checkpoint.parquet").write_bytes(b"none")
    assert f"the checkpoint file _delta_log/{2:020}.checkpoint.parquet (version 2)" in str(damage_of(folder.folder))


# --- races


def _racing(folder: TableFolder, worker: int, seed: int) -> list[tuple[int, int]]:
    """Append with random delays around each link; returns versions and log partitions. Runs in a process of its own."""
    chance = random.Random(seed)
    link = os.link

    def slow(*args: Any, **more: Any) -> None:  # noqa: ANN401 - as os.link
        time.sleep(chance.random() * 0.003)
        link(*args, **more)
        time.sleep(chance.random() * 0.003)

    os.link = slow
    try:
        return [(append(folder, number), number) for number in range(worker * 100, worker * 100 + 12)]
    finally:
        os.link = link


def test_every_acknowledged_commit_of_racing_processes_is_there_once(folder: TableFolder, run_seed: int) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as processes:
        done = [
            each
            for found in processes.starmap(_racing, [(folder, at, run_seed + at) for at in range(3)])
            for each in found
        ]
    assert sorted(version for version, _ in done) == list(range(1, 37))
    assert numbers(folder) == sorted(number for _, number in done)
    for version, number in done:
        (add,) = [json.loads(line)["add"] for line in commit_file(folder, version).read_text().splitlines()[1:]]
        assert json.loads(add["stats"])["minValues"]["log_partition"] == number


def test_racing_swaps_succeed_one_at_a_time(folder: TableFolder) -> None:
    def swap(worker: int) -> int:
        mine, done = again(folder), 0
        while done < 5:
            seen = mine.snapshot()
            try:
                append(mine, worker, seen=seen, advance={APP: seen.transaction(APP) + 1})
                done += 1
            except WriteConflict:
                continue
        return done

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(swap, range(4))) == 20
    assert folder.snapshot().transaction(APP) == 19
    assert len(numbers(folder)) == 20
    wait_until("files of refused swaps are gone", lambda: len(data_files(folder)) == 20)


# --- storage that fails


@pytest.mark.local_only("the disk of a folder is full")
def test_a_full_disk_leaves_no_file_and_the_next_commit_goes_well(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*_: object, **__: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(StorageFailed, match="No space left on device; nothing was committed; check its free space"):
            append(folder, 1)
    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.ParquetWriter.write_table", fails)
        with pytest.raises(StorageFailed, match="No space left"):
            append(folder, 1)
    assert sorted(os.listdir(folder.folder)) == ["_delta_log"]  # noqa: PTH208
    assert os.listdir(f"{folder.folder}/_delta_log") == [f"{0:020d}.json"]  # noqa: PTH208
    assert append(folder, 2) == 1


@pytest.mark.local_only("all machines see the files of an object store")
def test_a_file_that_a_task_wrote_to_another_machines_disk_is_not_committed(folder: TableFolder) -> None:
    file = folder.write_file(rows(1))
    Path(folder.folder, file.name).unlink()
    with pytest.raises(StorageFailed, match=r"^cannot write to .*: .*No such file .*; nothing was committed; "):
        folder.commit([file], seen=folder.snapshot())
    assert again(folder).snapshot().version == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a commit without an answer again only once."""
    monkeypatch.setattr(retry, "_UNANSWERED_SECONDS", 0.0)


def answers(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch, *those: bool | OSError, arrives: Sequence[int] = ()
) -> None:
    """The storage gives these answers to requests to create a file, and does those whose numbers are in ``arrives``."""
    create, left = folder.storage.create, list(enumerate(those))

    def answered(name: str, contents: bytes, *, durable: bool) -> bool:
        if not left:
            return create(name, contents, durable=durable)
        number, answer = left.pop(0)
        if number in arrives:
            create(name, contents, durable=durable)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(folder.storage, "create", answered)


LOST, REFUSED = NoAnswer("connection reset"), OSError("403 Forbidden")


@pytest.mark.parametrize(
    ("those", "arrives"),
    [
        ([LOST], [0]),  # the client then finds its own commit
        ([LOST], []),
        ([False], [0]),  # the answer to a request that the network doubled
        ([False], []),  # another request for the name is being decided: a store answers 409, and the file is not there
        ([LOST, REFUSED], [1]),
        ([LOST, REFUSED, LOST], []),
    ],
)
def test_a_commit_without_an_answer_is_put_again_until_its_version_has_an_owner(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch, those: list[bool | OSError], arrives: list[int]
) -> None:
    answers(folder, monkeypatch, *those, arrives=arrives)
    assert append(folder, 1) == 1
    assert numbers(again(folder)) == [1]
    assert append(folder, 2) == 2


@pytest.mark.usefixtures("impatient")
def test_a_commit_whose_first_request_took_all_the_time_is_put_again(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(folder, monkeypatch, LOST)
    assert append(folder, 1) == 1


def test_a_request_without_an_answer_is_sent_for_a_minute_with_growing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits double from 50 ms to 5 s; ten of these end after 6.35 + 50 s, an eleventh would after the minute."""
    waits, requests = list[float](), list[float]()

    def request() -> bool:
        requests.append(sum(waits))
        raise LOST

    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append))
    with pytest.raises(NoAnswer):
        retry.answered(request)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5] * 10]
    assert requests[:3] == [0, 0, 0.05]


@pytest.mark.parametrize("then", [LOST, REFUSED, False])
@pytest.mark.usefixtures("impatient")
def test_a_commit_that_stays_unknown_keeps_its_files(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch, then: bool | OSError
) -> None:
    """Even a refusal says nothing about the request before it, which may still arrive."""
    late: list[tuple[str, bytes]] = []
    with monkeypatch.context() as patch:
        answers(folder, patch, LOST, then)
        answered = folder.storage.create

        def noted(name: str, contents: bytes, *, durable: bool) -> bool:
            late.append((name, contents))
            return answered(name, contents, durable=durable)

        patch.setattr(folder.storage, "create", noted)
        with pytest.raises(CommitUnknown, match=r"version 1 of .* may have been committed"):
            append(folder, 1)
    assert folder.storage.create(*late[0], durable=True)
    assert numbers(folder) == [1]
    assert append(folder, 2) == 2


@pytest.mark.local_only("an object store acknowledges what is durable")
def test_what_a_commit_adds_is_synchronised_before_the_commit_has_its_name(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: dict[int, int] = {}  # size by inode
    fsync, link, root = os.fsync, Path.hardlink_to, Path(folder.folder)

    def noted(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synchronised[found.st_ino] = found.st_size
        fsync(descriptor)

    def linked(path: Path, target: Path) -> None:
        if path.is_relative_to(root):  # no thread of another test
            for file in (target, *root.glob("*.parquet")):
                assert synchronised.get(file.stat().st_ino) == file.stat().st_size > 0
            assert root.stat().st_ino in synchronised
            synchronised.clear()
        link(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "hardlink_to", linked)
    assert append(folder, 1) == 1
    assert (root / "_delta_log").stat().st_ino in synchronised  # its name


@pytest.mark.local_only("fsync of a folder")
def test_a_commit_that_may_not_survive_a_loss_of_power_stays_with_its_files(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: str) -> None:
        if path.endswith("_delta_log"):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("offsets_pipeline.store.delta.storage.synchronise", fails)
        with pytest.raises(CommitUnknown, match="may not survive a loss of power"):
            append(folder, 1)
        with pytest.raises(CommitUnknown):
            TableFolder(f"{folder.folder}-new", folder.table).create()
    assert numbers(folder) == [1]
    assert append(folder, 2) == 2
    assert TableFolder(f"{folder.folder}-new", folder.table).create() is False


@pytest.mark.usefixtures("impatient")
def test_an_unknown_commit_whose_version_another_commit_takes_adds_nothing(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        answers(folder, patch, LOST, LOST)
        with pytest.raises(CommitUnknown):
            append(folder, 1)
    assert append(again(folder), 2) == 1
    assert numbers(folder) == [2]
    assert len(data_files(folder)) == 2  # vacuum removes the other one


def test_a_commit_to_a_table_that_is_replaced_meanwhile_is_not_put_again(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder, 1)
    create = folder.storage.create

    def replaces(_: str, __: bytes, *, durable: bool) -> bool:
        monkeypatch.setattr(folder.storage, "create", create)
        remove_place(place_of(folder.folder))
        again(folder).create()
        raise LOST

    seen = folder.snapshot()
    monkeypatch.setattr(folder.storage, "create", replaces)
    with pytest.raises(CommitUnknown):
        append(folder, 2, seen=seen)
    assert numbers(folder) == []
    assert not commit_file(folder, 2).exists()


@pytest.mark.local_only("of a link and a rename")
@pytest.mark.parametrize("kind", [LocalStorage, RenamingStorage])
@pytest.mark.parametrize("fails", [("name",), ("name", "remove")])
@pytest.mark.parametrize("is_done", [True, False])
def test_a_link_or_rename_that_fails_leaves_nothing_that_may_appear_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[LocalStorage],
    fails: tuple[str, ...],
    is_done: bool,
) -> None:
    """As on NFS and HDFS, where the answer to a link or a rename can get lost."""
    (tmp_path / "_delta_log").mkdir()
    place = tmp_path / "_delta_log" / "x"
    storage = kind(str(tmp_path))
    lost = OSError(errno.EIO, "Input/output error")

    def named(*_: object) -> None:
        if is_done:
            place.write_bytes(b"1")
        raise lost

    def removed(*_: object, **__: object) -> None:
        raise lost

    with monkeypatch.context() as patch:
        if kind is LocalStorage:
            patch.setattr(Path, "hardlink_to", named)
        else:
            patch.setattr(storage, "_system", FailingSystem(storage._system, named))  # type: ignore[attr-defined]
        if "remove" in fails:
            patch.setattr(Path, "unlink", removed)
            patch.setattr(RenamingStorage, "remove", removed)
            with pytest.raises(NoAnswer, match="Input/output error"):
                storage.create("_delta_log/x", b"1", durable=True)
        elif is_done:
            assert not storage.create("_delta_log/x", b"1", durable=True)  # the caller reads whose it is
        else:
            with pytest.raises(OSError, match="Input/output error") as refused:
                storage.create("_delta_log/x", b"1", durable=True)
            assert not isinstance(refused.value, NoAnswer)
            assert list(place.parent.iterdir()) == []


class FailingSystem:
    """A file system of Arrow with another `move`."""

    def __init__(self, system: fs.FileSystem, move: Callable[..., None]) -> None:
        self._system = system
        self.move = move

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of Arrow's
        return getattr(self._system, name)


# --- damage


@pytest.fixture
def damaged(place: Path) -> TableFolder:
    folder = TableFolder(str(place / "store" / LOG_PARTITIONS.name), LOG_PARTITIONS)
    folder.create()
    for number in range(3):
        append(folder, number)
    return folder


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _corrupt_checkpoint(folder: TableFolder, *, missing: int = 0) -> None:
    """Corrupt the checkpoint of version 3, and remove one of the commits up to it."""
    DeltaTable(folder.folder).create_checkpoint()
    (path,) = (place_of(folder.folder) / "_delta_log").glob("*.checkpoint.parquet")
    path.write_bytes(b"PAR1 is not all")
    commit_file(folder, missing).unlink()


def _first_data_file(folder: TableFolder) -> Path:
    return place_of(folder.folder) / again(folder).snapshot(1).files()[0].name


DAMAGE: dict[str, tuple[Callable[[TableFolder], object], str]] = {
    "a commit is missing": (
        lambda folder: commit_file(folder, 2).unlink(),
        r"the commit file _delta_log/0+2\.json \(version 2\) of .* is missing: the changes of version 2 are lost",
    ),
    "a commit is cut": (
        lambda folder: _cut(commit_file(folder, 2)),
        r"the commit file _delta_log/0+2\.json \(version 2\) of .* is corrupt",
    ),
    "the first commit is missing": (
        lambda folder: commit_file(folder, 0).unlink(),
        r"the commit file _delta_log/0+0\.json \(version 0\) of .* is missing",
    ),
    "a checkpoint is corrupt": (
        _corrupt_checkpoint,
        r"the checkpoint file _delta_log/0+3\.checkpoint\.parquet \(version 3\) of .*; versions up to 3 are lost",
    ),
    "a checkpoint is corrupt and its commit missing": (
        lambda folder: _corrupt_checkpoint(folder, missing=3),
        r"the checkpoint file _delta_log/0+3\.checkpoint\.parquet \(version 3\) of .*; versions up to 3 are lost",
    ),
    "all commits are missing": (
        lambda folder: remove_place(place_of(folder.folder, "_delta_log")),
        r"its folder _delta_log has no commit",
    ),
    "a data file is missing": (
        lambda folder: _first_data_file(folder).unlink(),
        r"the data file part-.*\.parquet \(added by version 1\) of .* is missing: its 1 rows are lost",
    ),
    "a data file is cut": (
        lambda folder: _cut(_first_data_file(folder)),
        r"the data file part-.*\.parquet \(added by version 1\) of .* is corrupt: it has \d+ bytes instead of",
    ),
    "a data file is overwritten": (
        lambda folder: _first_data_file(folder).write_bytes(b"x" * _first_data_file(folder).stat().st_size),
        r"the data file part-.*\.parquet \(added by version 1\) of .* is corrupt \(",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_file_and_version(damaged: TableFolder, damage: str) -> None:
    harm, expected = DAMAGE[damage]
    harm(damaged)
    with pytest.raises(DamagedTable, match=expected) as raised:
        all_rows(again(damaged))
    assert "restore the file from a backup" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("left", [b"", None])
def test_a_table_with_an_empty_checkpoint_opens_again_as_the_message_says(
    damaged: TableFolder, left: bytes | None
) -> None:
    held = all_rows(damaged)
    DeltaTable(damaged.folder).create_checkpoint()
    (path,) = (place_of(damaged.folder) / "_delta_log").glob("*.checkpoint.parquet")
    path.unlink() if left is None else path.write_bytes(left)
    with pytest.raises(DamagedTable) as raised:
        all_rows(again(damaged))
    said, _, removable = str(raised.value).partition("nothing is lost: delete ")
    assert said.startswith("the checkpoint file ")
    assert removable == ("it and " if left is not None else "") + "_delta_log/_last_checkpoint"
    path.unlink(missing_ok=True)
    (path.parent / "_last_checkpoint").unlink()
    assert all_rows(again(damaged)) == held


def test_files_that_another_writer_replaced_and_removed_are_no_damage(damaged: TableFolder) -> None:
    seen = again(damaged).snapshot()
    assert compact(damaged) == 3
    for file in seen.files():
        (place_of(damaged.folder) / file.name).unlink()
    with pytest.raises(
        WriteConflict, match=r"files of .* were compacted or cleaned while they were read; run it again"
    ):
        seen.rows()


def all_rows(folder: TableFolder) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = folder.snapshot().rows().sort_by("log_partition").to_pylist()
    return rows


def test_missing_table_is_a_clear_error(place: Path) -> None:
    with pytest.raises(NoSuchTable, match="no Delta table at"):
        TableFolder(str(place / "none"), LOG_PARTITIONS).snapshot()
    assert not TableFolder(str(place / "none"), LOG_PARTITIONS).exists()


# --- upkeep


@pytest.mark.on_s3
def test_small_files_become_one_and_their_rows_stay(folder: TableFolder) -> None:
    for number in range(5):
        append(folder, number)
    assert compact(folder) == 5
    assert len(folder.snapshot().files()) == 1
    assert numbers(folder) == list(range(5))
    adds = [json.loads(line) for line in commit_file(folder, 6).read_text().splitlines()]
    assert not any(each[kind]["dataChange"] for each in adds for kind in ("add", "remove") if kind in each)
    assert compact(folder) == 0


def test_added_files_are_known_unless_the_commits_are_gone_too_many_or_rearranged(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(folder, number)
    seen = folder.snapshot()
    files = [[file.lowest["log_partition"] for file in seen.added_after(version) or ()] for version in range(4)]
    assert files == [[0, 1, 2], [1, 2], [2], []]
    assert seen.added_after(4) is None  # of a log that was restored
    monkeypatch.setattr(snapshot_module, "MOST_COMMITS", 2)
    assert [seen.added_after(version) is None for version in range(3)] == [True, False, False]
    compact(folder)
    compacted = folder.snapshot()
    assert compacted.added_after(2) is None  # what this commit added is in another file now
    assert compacted.added_after(3) == []


@pytest.mark.local_only("an object store has no files that are not synchronised")
def test_commits_of_the_last_minutes_are_made_durable_unless_their_writers_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TableFolder(str(tmp_path / LOG_PARTITIONS.name), LOG_PARTITIONS)
    folder.create()
    ages_ms = (300_001, 300_000, 5, 5, 0)  # a machine has written the first one by itself
    for number, age_ms in enumerate(ages_ms, 1):
        said = None if number == 3 else f"me{NOT_DURABLE}"
        folder.commit([folder.write_file(rows(number))], seen=folder.snapshot(), user_metadata=said)
        path = tmp_path / folder.table.name / "_delta_log" / f"{number:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        actions[0]["commitInfo"]["timestamp"] = 1_000_000 - age_ms
        path.write_text("\n".join(map(json.dumps, actions)))
    asked: list[str] = []
    may_be_gone: list[bool] = []  # a cleaning or a compaction may have replaced them

    def noted(_: LocalStorage, names: list[str], **how: bool) -> None:
        asked.extend(names)
        may_be_gone.append(how["may_be_gone"])

    monkeypatch.setattr(LocalStorage, "sync", noted)
    for after, expected in ((0, [5, 4, 2]), (1, [5, 4, 2]), (2, [5, 4]), (5, [])):
        again(folder).snapshot().make_durable(after)
        assert [int(name[-25:-5]) for name in asked if name.endswith(".json")] == expected
        assert sum(name.endswith(".parquet") for name in asked) == len(expected)
        asked.clear()
    assert may_be_gone == [True] * 4


def test_a_commit_that_adds_and_removes_a_file_is_refused(folder: TableFolder) -> None:
    append(folder, 1)
    seen = folder.snapshot()
    with pytest.raises(ValueError, match="would add and remove"):
        folder.commit(seen.files(), seen.files(), seen=seen)
    assert all_rows(again(folder)) == all_rows(folder)
    assert again(folder).snapshot().version == seen.version


@pytest.mark.local_only("a server sets the times of its files")
def test_vacuum_removes_what_the_retention_allows(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path / LOG_PARTITIONS.name), LOG_PARTITIONS)
    folder.create()  # which keeps files for a day
    append(folder, 1)
    append(folder, 2)
    (orphan, young) = (place_of(folder.folder) / folder.write_file(rows(9)).name for _ in range(2))
    compact(folder)
    long_ago = time.time() - 25 * 3600
    os.utime(orphan, (long_ago, long_ago))
    assert vacuum(folder)[0] == 1
    assert not orphan.exists()
    assert young.exists()
    assert len(data_files(folder)) == 4  # the compacted one, and those that a query may still read
    assert numbers(folder) == [1, 2]


# --- other storages


@pytest.mark.local_only("a folder is of all kinds")
@pytest.mark.parametrize("kind", [LocalStorage, ObjectStorage, RenamingStorage])
def test_storages_do_the_same(tmp_path: Path, kind: type[LocalStorage]) -> None:
    (tmp_path / "t").mkdir()
    storage = kind(str(tmp_path / "t"))
    log = str(tmp_path / "t" / "_delta_log")
    assert storage.read("_delta_log/a") is None
    assert children(log) == set()
    assert storage.is_unchanged("_delta_log/a", None)
    assert storage.create("_delta_log/a", b"1", durable=True)
    assert storage.read("_delta_log/a") == b"1"
    assert children(log) == {"a"}
    assert storage.is_unchanged("_delta_log/a", b"1")
    assert not storage.is_unchanged("_delta_log/a", b"2")
    storage.remove("_delta_log/a")
    storage.remove("_delta_log/a")
    assert children(log) == set()


@pytest.mark.local_only("a folder is of all kinds")
@pytest.mark.parametrize("kind", [LocalStorage, ObjectStorage])
def test_a_name_is_given_once(tmp_path: Path, kind: type[LocalStorage]) -> None:
    storage = kind(str(tmp_path))
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda at: storage.create("_delta_log/x", b"%d" % at, durable=False), range(20)))
    assert sum(taken) == 1
    assert storage.read("_delta_log/x") == b"%d" % taken.index(True)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data/store/log", LocalStorage),
        ("file:///data/store/log", LocalStorage),
        ("s3://bucket/store/log", ObjectStorage),
        ("s3a://bucket/store/log", ObjectStorage),
        ("gs://bucket/store/log", ObjectStorage),
        ("abfss://container@account/store/log", ObjectStorage),
        ("hdfs://name/store/log", RenamingStorage),
    ],
)
def test_each_storage_has_its_way_to_commit(folder: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsets_pipeline.store.delta.storage.open_path", lambda _: (None, ""))
    monkeypatch.setattr("offsets_pipeline.store.delta.storage._object_store", lambda *_, **__: None)
    assert isinstance(storage_of(folder), kind)


@pytest.mark.parametrize("scheme", ["ftp", "az"])  # Arrow cannot open az://
def test_storage_without_put_if_absent_is_refused(scheme: str) -> None:
    for use in (
        lambda: TableFolder(f"{scheme}://host/store/log_partitions", LOG_PARTITIONS).snapshot(),
        lambda: create_tables(f"{scheme}://host/store", StoreProperties(MIRRORED, 1)),
    ):
        with pytest.raises(UnsafeStorage, match=rf"cannot use a store on {scheme}:// .* no known atomic put-if-absent"):
            use()


# --- an S3-compatible server


def test_on_s3_two_writers_commit_beside_each_other(s3: str) -> None:
    folder = TableFolder(f"{s3}/store/{LOG_PARTITIONS.name}", LOG_PARTITIONS)
    assert folder.create()
    assert not again(folder).create()

    def write(worker: int) -> list[int]:
        mine = again(folder)
        return [append(mine, worker * 10 + at) for at in range(4)]

    with ThreadPoolExecutor(2) as threads:
        versions = [version for found in threads.map(write, range(2)) for version in found]
    assert sorted(versions) == list(range(1, 9))
    assert sorted(folder.snapshot().rows()["log_partition"].to_pylist()) == [0, 1, 2, 3, 10, 11, 12, 13]
    seen = again(folder).snapshot()
    append(folder, 20, advance={APP: 0})
    with pytest.raises(WriteConflict):
        append(again(folder), 21, seen=seen, advance={APP: 0})
    assert compact(folder) == 9
    found = again(folder).snapshot()
    assert (len(found.files()), found.rows().num_rows, found.transaction(APP)) == (1, 9, 0)
    folder.checkpoint(folder.snapshot().version)
    assert again(folder).snapshot().version == found.version


def test_on_s3_damage_is_named(s3: str) -> None:
    folder = TableFolder(f"{s3}/damaged/{LOG_PARTITIONS.name}", LOG_PARTITIONS)
    folder.create()
    for number in range(3):
        append(folder, number)
    folder.storage.remove(f"_delta_log/{2:020d}.json")
    with pytest.raises(DamagedTable, match=r"0+2\.json \(version 2\) of s3://"):
        again(folder).snapshot()


def test_a_store_that_ignores_conditions_is_refused(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStorage, "create", lambda *_, **__: True)
    with pytest.raises(UnsafeStorage, match="ignores conditional puts"):
        TableFolder(f"{s3}/unsafe/{LOG_PARTITIONS.name}", LOG_PARTITIONS).create()
