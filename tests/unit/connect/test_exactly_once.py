"""Exactly-once source tasks: rows and source offsets in one commit, fencing, and recovery (R31)."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.exactly_once import ExactlyOnceTask
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageReader
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.connect.target_states import RUNNING, STOPPED
from offsets_pipeline.connect.target_table import FlushedOffsets, TargetTable
from offsets_pipeline.errors import (
    CommitUnknown,
    ConfigError,
    ConnectorStopped,
    InvalidRequest,
    OffsetsLost,
    StorageFailed,
    StoreReplaced,
    TaskFenced,
    UnsupportedTable,
)
from offsets_pipeline.store.delta import retry
from offsets_pipeline.store.delta.storage import NoAnswer, Storage, storage_of
from tests.places import copied, remove_place
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.store.delta.snapshot import Commit

A, B = {"filename": "/a"}, {"filename": "/é"}
SCHEMA = pa.schema([pa.field("line", pa.string(), nullable=False), ("price", pa.decimal128(9, 2))])
APPLICATION = "lab-files-0"


@pytest.fixture
def backing(place: Path) -> Iterator[OffsetBackingStore]:
    """An empty owned store, started."""
    ConnectLog.create(place / "owned", "lab", 3)
    with OffsetBackingStore(place / "owned") as started:
        yield started


@pytest.fixture
def target(place: Path) -> Path:
    """The folder of the target table."""
    return place / "target"


def task_of(backing: OffsetBackingStore, target: Path, number: int = 0) -> ExactlyOnceTask:
    """Another instance of a task, not started."""
    return ExactlyOnceTask(backing, "files", TargetTable(target, SCHEMA), number)


def rows(*lines: str) -> pa.Table:
    """Rows of the target table."""
    return pa.table({"price": [None] * len(lines), "line": list(lines)}).cast(
        pa.schema([SCHEMA.field("price"), pa.field("line", pa.string())])
    )


def written(task: ExactlyOnceTask, position: int, *lines: str, partition: dict[str, str] = A) -> bool:
    """Commit lines with the position after them."""
    task.offset(partition, {"position": position})
    return task.commit(rows(*lines))


def in_table(target: Path) -> list[str]:
    """The lines in the target table, by another reader of Delta."""
    return sorted(DeltaTable(target).to_pyarrow_table()["line"].to_pylist())


def in_store(backing: OffsetBackingStore) -> list[Any]:
    """The positions of both source partitions in the store."""
    return [each and each["position"] for each in OffsetStorageReader(backing, "files").offsets([A, B])]


def without_store(task: ExactlyOnceTask) -> None:
    """Let the task die before the store follows its next commit."""
    task._follow = lambda: False  # type: ignore[method-assign]


# --- one commit


def test_a_commit_carries_rows_application_flush_number_and_source_offsets(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        assert (task.application, task.epoch, task.flush) == (APPLICATION, 0, -1)
        assert written(task, 10, "one", "two")
        task.offset(B, {"position": 7})
        assert written(task, 20, "three")
        assert task.flush == 1
    assert in_table(target) == ["one", "three", "two"]
    assert in_store(backing) == [20, 7]
    table = DeltaTable(target)
    assert (table.transaction_version(APPLICATION), table.transaction_version(f"{APPLICATION}/epoch")) == (1, 0)
    history = table.history()
    assert [each["operation"] for each in history] == ["WRITE", "WRITE", "WRITE", "CREATE TABLE"]
    assert json.loads(history[0]["userMetadata"]) == {
        "application": APPLICATION,
        "epoch": 0,
        "flush": 1,
        "offsets": [
            {"partition": A, "offset": {"position": 20}, "flush": 1},
            {"partition": B, "offset": {"position": 7}, "flush": 1},
        ],
    }


def test_offsets_without_rows_are_a_flush_and_rows_without_offsets_are_refused(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        assert written(task, 5)
        assert task.commit(rows())
        assert task.flush == 0
        with pytest.raises(InvalidRequest, match="rows without a source offset would be written again"):
            task.commit(rows("x"))
        task.offset(A, None)
        assert task.commit(rows("x"))
    assert in_store(backing) == [None, None]
    assert in_table(target) == ["x"]
    with task_of(backing, target) as again:
        assert again.flush == 1
        assert in_store(backing) == [None, None]


def test_rows_that_do_not_fit_are_refused_and_their_offsets_stay_queued(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        task.offset(A, {"position": 3})
        for bad in (pa.table({"line": ["a"]}), pa.table({"line": ["a"], "price": ["much"]}), rows(None)):  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                task.commit(bad)
        assert task.commit(rows("a"))
    assert in_store(backing) == [3, None]
    assert in_table(target) == ["a"]


def test_rows_with_more_columns_or_members_than_the_table_are_refused(
    backing: OffsetBackingStore, target: Path
) -> None:
    one, two = pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("y", pa.int64())])

    def kinds(each: pa.StructType) -> dict[str, pa.DataType]:
        return {"a": each, "list": pa.list_(each), "map": pa.map_(pa.string(), pa.list_(each))}

    fitting = {name: pa.nulls(1, kind) for name, kind in kinds(one).items()}
    table = TargetTable(target, pa.schema(kinds(one)))
    with ExactlyOnceTask(backing, "files", table) as task:
        task.offset(A, {"position": 3})
        for name, kind in {**kinds(two), "b": pa.int64()}.items():
            found = {"a": "a.y", "list": "list.y", "map": "map.value.y", "b": "b"}[name]
            with pytest.raises(InvalidRequest, match=f"target: it lacks the column {found}$"):
                task.commit(pa.table({**fitting, name: pa.nulls(1, kind)}))
        assert task.commit(pa.table(fitting))
    assert DeltaTable(target).to_pyarrow_table().num_rows == 1


def test_a_target_of_another_form_is_refused_before_anything_is_written(
    backing: OffsetBackingStore, place: Path
) -> None:
    write_deltalake(place / "other", pa.table({"line": ["a"], "n": [1]}))
    with pytest.raises(UnsupportedTable, match="a schema without the column price"):
        task_of(backing, place / "other").start()
    write_deltalake(place / "parts", rows("a"), partition_by=["line"])
    with pytest.raises(UnsupportedTable, match="partition columns"):
        task_of(backing, place / "parts").start()
    with pytest.raises(InvalidRequest, match="which Delta lacks"):
        TargetTable(place / "new", pa.schema([("at", pa.time32("s"))]))


def test_a_table_has_its_columns_and_statistics_of_numbers_that_are_never_null(place: Path) -> None:
    columns = [("at", pa.int64(), False), ("n", pa.int32(), False), ("m", pa.int64(), True), ("s", pa.string(), False)]
    schema = pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in columns])
    for name, found, statistics in (("a", schema, "at,n"), ("b", SCHEMA, None)):
        target = TargetTable(f"{place / name}/", found)
        assert (target.location, target.epoch("x")) == (str(place / name), -1)
        table = DeltaTable(place / name)
        fields = [(each.name, each.nullable) for each in table.schema().fields]
        assert fields == [(each.name, each.nullable) for each in found]
        assert table.metadata().configuration.get("delta.dataSkippingStatsColumns") == statistics
        target.fence("x", 3)
        assert (target.epoch("x"), target.flushed("x", -1)) == (3, FlushedOffsets(-1, {}))
        with pytest.raises(TaskFenced, match="as x with epoch 3: another instance of this task has started"):
            target.fence("x", 3)


@pytest.mark.parametrize("location", ["s3://bucket/t/../u", "s3a://bucket//t", "gs://bucket/./t", "abfss:///t"])
def test_a_location_that_clients_of_object_stores_read_differently_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match=f"wrong location {location}: names in an object store are not empty"):
        TargetTable(location, SCHEMA)


def test_an_existing_table_with_more_columns_is_written_beside_other_writers(
    backing: OffsetBackingStore, target: Path
) -> None:
    write_deltalake(target, pa.table({"more": ["m"], "price": [None], "line": ["old"]}).cast(
        pa.schema([("more", pa.string()), SCHEMA.field("price"), ("line", pa.string())])
    ))  # fmt: skip
    with task_of(backing, target) as task:
        assert written(task, 1, "one")
        write_deltalake(target, DeltaTable(target).to_pyarrow_table(), mode="append")
        DeltaTable(target).optimize.compact()
        assert written(task, 2, "two")
    assert in_table(target) == ["old", "old", "one", "one", "two"]
    with task_of(backing, target) as again:
        assert again.flush == 1


# --- fencing


def test_a_second_instance_fences_the_first_whose_next_commit_writes_nothing(
    backing: OffsetBackingStore, target: Path
) -> None:
    first, second = task_of(backing, target), task_of(backing, target)
    first.start()
    assert written(first, 1, "one")
    second.start()
    assert (first.epoch, second.epoch) == (0, 1)
    files, version = set(target.rglob("*.parquet")), DeltaTable(target).version()
    for _ in range(2):
        with pytest.raises(TaskFenced, match=r"lab-files-0 with epoch 0: another instance of this task has started"):
            written(first, 2, "lost")
    assert (set(target.rglob("*.parquet")), DeltaTable(target).version()) == (files, version)
    assert in_store(backing) == [1, None]
    assert written(second, 2, "two")
    first.close()
    assert in_table(target) == ["one", "two"]
    assert in_store(backing) == [2, None]


def test_an_instance_in_another_process_is_fenced_while_it_commits(place: Path, target: Path) -> None:
    ConnectLog.create(place / "owned", "lab", 3)
    with OffsetBackingStore(place / "owned") as one, OffsetBackingStore(place / "owned") as other:
        first, second = task_of(one, target), task_of(other, target)
        first.start()
        write_file = first._target._folder.write_file

        def slow(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of the original
            second.start()  # after the first looked at the epoch, before its commit
            return write_file(*arguments, **options)

        first._target._folder.write_file = slow  # type: ignore[method-assign]
        with pytest.raises(TaskFenced, match="nothing was written"):
            written(first, 1, "lost")
        assert written(second, 1, "one")
        assert in_table(target) == ["one"]
        wait_until("the refused file is gone", lambda: len(list(target.glob("*.parquet"))) == 1)
        assert in_store(one) == in_store(other) == [1, None]


def test_a_fenced_instance_cannot_turn_the_store_back(backing: OffsetBackingStore, target: Path) -> None:
    first, second = task_of(backing, target), task_of(backing, target)
    first.start()
    follow = first._follow
    without_store(first)
    assert not written(first, 1, "one")
    second.start()
    assert in_store(backing) == [1, None]  # the table was ahead
    assert written(second, 2, "two")
    first._follow = follow  # type: ignore[method-assign]
    assert not first.close()
    assert in_store(backing) == [2, None]


def test_of_instances_that_start_together_one_can_write(backing: OffsetBackingStore, target: Path) -> None:
    tasks = [task_of(backing, target) for _ in range(4)]
    threads = [threading.Thread(target=each.start) for each in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    able = []
    for number, task in enumerate(tasks):
        try:
            written(task, number, str(number))
        except TaskFenced:
            continue
        able.append(str(number))
    assert len(able) == 1
    assert in_table(target) == able
    assert len({each.epoch for each in tasks}) == 4


def test_tasks_of_a_connector_do_not_fence_each_other(backing: OffsetBackingStore, target: Path) -> None:
    with task_of(backing, target, 0) as one, task_of(backing, target, 1) as other:
        assert written(one, 1, "one")
        assert written(other, 2, "two", partition=B)
        assert written(one, 3, "three")
    assert in_store(backing) == [3, 2]
    assert in_table(target) == ["one", "three", "two"]


# --- recovery


def test_a_task_killed_before_the_store_followed_resumes_after_its_commit(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one", partition=B)
        without_store(task)
        assert not written(task, 2, "two")
        assert not written(task, 3, "three")
    assert in_store(backing) == [None, 1]
    with task_of(backing, target) as again:
        assert in_store(backing) == [3, 1]
        assert again.flush == 2
        assert written(again, 4, "four")
    assert in_table(target) == ["four", "one", "three", "two"]


def test_an_offset_that_the_store_had_already_is_not_written_again(backing: OffsetBackingStore, target: Path) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one", partition=B)
        with task_of(backing, target, 1) as other:  # the partition is the other task's now
            assert written(other, 9, "nine", partition=B)
        assert written(task, 5, "five")
        without_store(task)
        written(task, 6, "six")
    with task_of(backing, target):
        assert in_store(backing) == [6, 9]


def test_the_table_wins_over_a_store_that_was_lost(backing: OffsetBackingStore, target: Path, place: Path) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one", partition=B)
        assert written(task, 2, "two")
    ConnectLog.create(place / "new", "lab", 5)
    with OffsetBackingStore(place / "new") as new:
        with task_of(new, target) as again:
            assert in_store(new) == [2, 1]
            assert again.epoch == 1
        with pytest.raises(TaskFenced):
            written(task, 3, "lost")


def test_other_writers_commits_and_checkpoints_do_not_hide_the_offsets(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        without_store(task)
        written(task, 2, "two")
    for _ in range(3):
        write_deltalake(target, rows("other"), mode="append", schema_mode="merge")
    DeltaTable(target).create_checkpoint()
    with task_of(backing, target):
        assert in_store(backing) == [2, None]


def test_offsets_whose_commit_is_gone_are_needed_only_if_the_store_lacks_them(
    backing: OffsetBackingStore, target: Path
) -> None:
    def lose_commits() -> None:
        DeltaTable(target).create_checkpoint()
        newest = DeltaTable(target).version()
        for version in range(newest):
            (target / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)

    with task_of(backing, target) as task:
        assert written(task, 1, "one", partition=B)
        assert written(task, 2, "two")
    write_deltalake(target, rows("other"), mode="append", schema_mode="merge")
    lose_commits()
    with task_of(backing, target) as again:
        assert (again.flush, in_store(backing)) == (1, [2, 1])
        without_store(again)
        written(again, 3, "three")
    write_deltalake(target, rows("other"), mode="append", schema_mode="merge")
    lose_commits()
    with pytest.raises(OffsetsLost, match=r"has its flush 2, and no longer the commit .* those of flush 1"):
        task_of(backing, target).start()


def test_an_older_copy_of_the_table_is_refused(backing: OffsetBackingStore, target: Path) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one")
        assert written(task, 2, "two")
    newest = DeltaTable(target).version()
    (target / "_delta_log" / f"{newest:020}.json").unlink()
    with pytest.raises(OffsetsLost, match=r"offsets of its flush 1, .* only of flush 0; restore the newest version"):
        task_of(backing, target).start()


def test_a_task_goes_on_in_another_table_after_the_stores_offsets(
    backing: OffsetBackingStore, target: Path, place: Path
) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one")
        assert written(task, 2, "two")
    with task_of(backing, place / "other") as moved:
        assert in_store(backing) == [2, None]
        assert written(moved, 3, "three")
        assert moved.flush == 2
    with task_of(backing, target) as back:
        assert in_store(backing) == [3, None]
        assert written(back, 4, "four")
        assert back.flush == 3
    assert in_table(target) == ["four", "one", "two"]


def test_the_log_of_a_store_that_was_read_again_still_knows_the_flush(
    backing: OffsetBackingStore, target: Path
) -> None:
    with task_of(backing, target) as task:
        assert written(task, 1, "one")
        backing.log._load()
        assert written(task, 2, "two")
    with task_of(backing, target) as again:
        assert (again.epoch, again.flush) == (1, 1)


# --- an operator


def test_a_stopped_connector_writes_nothing_and_keeps_what_an_operator_altered(
    backing: OffsetBackingStore, target: Path
) -> None:
    management = OffsetManagement(backing.log)
    task = task_of(backing, target)
    task.start()
    assert written(task, 1, "one", partition=B)
    assert written(task, 5, "five")
    without_store(task)
    written(task, 6, "six")
    task.offset(B, {"position": 2})
    written(task, 7, "seven")
    management.set_target_state("files", STOPPED)
    management.alter("files", [{"partition": A, "offset": {"position": 3}}])
    version = DeltaTable(target).version()
    with pytest.raises(ConnectorStopped, match=r"connector files is STOPPED; resume it"):
        written(task, 8, "eight")
    with pytest.raises(ConnectorStopped):
        task_of(backing, target).start()
    assert DeltaTable(target).version() == version
    management.set_target_state("files", RUNNING)
    with task_of(backing, target):
        assert in_store(backing) == [3, 2]  # altered after the store's last flush; the other one follows the table


def test_a_reset_offset_does_not_come_back(backing: OffsetBackingStore, target: Path) -> None:
    management = OffsetManagement(backing.log)
    with task_of(backing, target) as task:
        assert written(task, 5, "five")
    management.set_target_state("files", STOPPED)
    management.reset("files")
    management.set_target_state("files", RUNNING)
    with task_of(backing, target) as again:
        assert in_store(backing) == [None, None]
        assert written(again, 1, "again", partition=B)
    with task_of(backing, target):
        assert in_store(backing) == [None, 1]


def test_a_stop_ends_a_task_even_if_it_sees_neither_the_stop_nor_the_resume(
    backing: OffsetBackingStore, target: Path
) -> None:
    management = OffsetManagement(backing.log)
    with task_of(backing, target) as task:
        assert written(task, 5, "five")
        management.set_target_state("files", STOPPED)
        management.alter("files", [{"partition": A, "offset": {"position": 3}}])
        management.set_target_state("files", RUNNING)
        with pytest.raises(ConnectorStopped, match=r"was stopped after this task had begun.*; start the task again"):
            written(task, 6, "six")
        assert (in_table(target), in_store(backing)) == (["five"], [3, None])
        task.start()
        assert written(task, 4, "four")
        assert in_store(backing) == [4, None]


@pytest.mark.parametrize("change", ["reset", "alter"])
def test_a_deleted_offset_that_only_the_table_has_does_not_come_back(
    backing: OffsetBackingStore, target: Path, change: str
) -> None:
    management = OffsetManagement(backing.log)
    task = task_of(backing, target)
    task.start()
    without_store(task)
    assert not written(task, 5, "five")
    management.set_target_state("files", STOPPED)
    if change == "reset":
        management.reset("files")
    else:
        management.alter("files", [{"partition": A, "offset": None}])
    management.set_target_state("files", RUNNING)
    with task_of(backing, target) as again:
        assert in_store(backing) == [None, None]
        assert written(again, 1, "one")
    with task_of(backing, target):
        assert in_store(backing) == [1, None]


# --- other tasks


def test_the_offsets_of_a_killed_task_are_recovered_by_the_next_task_that_starts(
    backing: OffsetBackingStore, target: Path, place: Path
) -> None:
    killed = task_of(backing, target, 1)
    killed.start()
    assert written(killed, 1, "one", partition=B)
    without_store(killed)
    assert not written(killed, 2, "two", partition=B)
    with task_of(backing, place / "other", 2):  # writes another table
        assert in_store(backing) == [None, 1]
    with task_of(backing, target) as task:
        assert in_store(backing) == [None, 2]
        assert written(task, 3, "three", partition=B)
    with task_of(backing, target), task_of(backing, target, 1):
        assert in_store(backing) == [None, 3]
    assert in_table(target) == ["one", "three", "two"]


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_number_that_no_task_has_is_refused(backing: OffsetBackingStore, target: Path, number: int) -> None:
    with pytest.raises(InvalidRequest, match=f"task {number} is not allowed; it takes 0 to 999999999"):
        task_of(backing, target, number)


# --- failures


def test_a_store_that_is_away_follows_later(
    backing: OffsetBackingStore, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write = backing.log._log.write

    def failing(*_: Any, **__: Any) -> list[Commit]:  # noqa: ANN401
        raise OSError("storage is away")

    with task_of(backing, target) as task:
        backing.log._log.write = failing  # type: ignore[method-assign]
        assert not written(task, 1, "one")
        assert "flush 0 of lab-files-0 is in" in caplog.text
        task.offset(B, {"position": 9})
        assert not written(task, 2, "two")
        backing.log._log.write = write  # type: ignore[method-assign]
        assert in_store(backing) == [None, None]
        assert task.commit(rows())
        assert in_store(backing) == [2, 9]
    assert in_table(target) == ["one", "two"]


def test_without_a_look_at_the_store_nothing_is_committed(
    backing: OffsetBackingStore, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with task_of(backing, target) as task:
        with monkeypatch.context() as away:

            def failing(*_: Any) -> list[Commit]:  # noqa: ANN401
                raise OSError("storage is away")

            away.setattr(backing.log._log._table.storage, "read", failing)
            with pytest.raises(StorageFailed, match=r"cannot read the table .*: storage is away"):
                written(task, 1, "one")
        assert task.flush == -1
        assert task.commit(rows("one"))
    assert in_table(target) == ["one"]


def test_a_target_that_is_away_keeps_the_offsets_queued(
    backing: OffsetBackingStore, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with task_of(backing, target) as task:
        with monkeypatch.context() as away:

            def failing(*_: Any, **__: Any) -> bool:  # noqa: ANN401
                raise OSError("storage is away")

            away.setattr(type(storage_of(str(target))), "create", failing)
            with pytest.raises(StorageFailed, match="nothing was committed"):
                written(task, 1, "one")
        assert task.commit(rows("one"))
    assert in_table(target) == ["one"]
    assert in_store(backing) == [1, None]


@pytest.mark.parametrize("is_there", [True, False])
def test_after_a_commit_without_an_answer_the_task_has_to_start_again(
    backing: OffsetBackingStore, target: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    task = task_of(backing, target)
    task.start()
    kind = type(storage_of(str(target)))
    create = kind.create
    with monkeypatch.context() as away:

        def answerless(storage: Storage, name: str, contents: bytes, *, durable: bool) -> bool:
            if is_there:
                create(storage, name, contents, durable=durable)
            away.setattr(kind, "read", failing)
            raise NoAnswer("no answer")

        def failing(*_: Any) -> list[Commit]:  # noqa: ANN401
            raise OSError("away")

        away.setattr(kind, "create", answerless)
        away.setattr(retry, "_UNANSWERED_SECONDS", 0.0)
        with pytest.raises(CommitUnknown):
            written(task, 1, "one")
    with pytest.raises(InvalidRequest, match="start the task again"):
        written(task, 1, "one")
    assert task.close()
    task.start()
    assert in_store(backing) == ([1, None] if is_there else [None, None])
    if not is_there:
        assert written(task, 1, "one")
    assert in_table(target) == ["one"]


def test_a_table_that_was_created_again_is_not_written(backing: OffsetBackingStore, target: Path) -> None:
    task = task_of(backing, target)
    task.start()
    copied(target, target.with_name("moved"))
    remove_place(target)
    TargetTable(target, SCHEMA).epoch("x")
    with pytest.raises(StoreReplaced, match="start the task again"):
        written(task, 1, "one")
    assert in_table(target) == []


def test_a_task_that_has_not_started_says_so(backing: OffsetBackingStore, target: Path) -> None:
    task = task_of(backing, target)
    with pytest.raises(InvalidRequest, match="call start first"):
        written(task, 1, "one")
    assert task.close()
