"""Unloaded, Loading, Loaded (R28), and the records that loading reads (R16)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.loading import LoadStatus, Partitions
from offsets_pipeline.coordinator.registry import BELIEVED_MS, FOLDER, FORGOTTEN_MS, Instance, Registry
from offsets_pipeline.errors import (
    CoordinatorLoadInProgress,
    NotCoordinator,
    UndecodableRecord,
    UnexpectedActiveGroup,
)
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.random_logs import Log, examples, logs, several
from tests.replays import Replayed, replay
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at, table_of
from tests.unit.coordinator.stores import NOW_MS, append_rows, log_of, opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from offsets_pipeline.semantics.log_row import LogRow

FIXED = examples(100)


@pytest.fixture(scope="module", autouse=True)
def compacts_at_once() -> Iterator[None]:
    """The first rows of a load are compacted, and then all whenever they have doubled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offsets_pipeline.coordinator.loading._COMPACT_AT_BYTES", 1)
        yield


def loaded_in_chunks(rows: list[LogRow], chunks: list[list[LogRow]], n: int) -> dict[int, Replayed]:
    partitions = Partitions(n)
    loading = partitions.begin_load(range(n))
    for chunk in chunks:
        loading.add(table_of(chunk))
    loading.replay()
    partitions.publish(loading)
    return {number: Replayed.of(partitions.state(number)) for number in {row.log_partition for row in rows}}


@FIXED
@given(logs(several(2), max_steps=40), st.data())
def test_loading_compacts_and_gives_what_a_replay_gives(log: Log, data: st.DataObject) -> None:  # R16
    rows = log.rows()
    shuffled = data.draw(st.permutations(rows))  # files come in any order
    size = data.draw(st.sampled_from([1, 3, 1000]))
    chunks = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    for number, state in loaded_in_chunks(rows, chunks, 2).items():
        assert state == replay(log.partitions[number], number, 2)


def test_keys_that_stay_are_not_compacted_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compacted: list[int] = []

    def counted(rows: pa.Table) -> pa.Table:
        compacted.append(rows.num_rows)
        return rows

    monkeypatch.setattr("offsets_pipeline.coordinator.loading._compacted", counted)
    loading = Partitions(1).begin_load([0])
    log = LogPartition()
    for number in range(64):
        log.commit(("g", "t", number), 1)
        loading.add(table_of(log.rows[-1:]))
    assert compacted == [1, 3, 7, 15, 31, 63]


def test_written_records_are_there_after_reopening(store: Path) -> None:
    with opened(store) as coordinator:
        coordinator.store_group(stable("active"))
        coordinator.commit_offsets("a", {("t", 0): 1})
        coordinator.begin_transaction(7, 0)
        coordinator.txn_commit_offsets(7, 0, "b", {("t", 0): 2})
        coordinator.remove_group("a")
        before = [Replayed.of(coordinator._core.partitions.state(number)) for number in range(3)]
        ends = list(coordinator._core.log.ends)
    with opened(store) as coordinator:
        assert [Replayed.of(coordinator._core.partitions.state(number)) for number in range(3)] == before
        assert coordinator._core.log.ends == ends
        coordinator.end_transaction(7, 0, commit=True)
        assert coordinator.fetch_offsets("b")[at()].offset == 2


def test_each_partition_is_loaded_on_its_own(store: Path) -> None:
    with opened(store) as coordinator:
        for group_id in ("a", "b", "c"):
            coordinator.commit_offsets(group_id, {("t", 0): 1})
    here = partition_for("b", 3)
    with opened(store, partitions=[here]) as coordinator:
        assert [coordinator.status(number) for number in range(3)].count(LoadStatus.LOADED) == 1
        assert [each.group_id for each in coordinator.list_groups()] == ["b"]
        coordinator.commit_offsets("b", {("t", 0): 2})
        for ask in (lambda: coordinator.fetch_offsets("a"), lambda: coordinator.commit_offsets("a", {("t", 0): 2})):
            with pytest.raises(NotCoordinator) as refused:
                ask()
            assert refused.value.kafka_name == "NOT_COORDINATOR"
        coordinator.load_partition(partition_for("a", 3))
        coordinator.unload_partition(here)
        assert [each.group_id for each in coordinator.list_groups()] == ["a"]
        coordinator.commit_offsets("a", {("t", 0): 3})
        with pytest.raises(NotCoordinator):
            coordinator.load_partition(3)
    # record offsets of an owned log have no gaps, also after another writer
    assert all([row.record_offset for row in rows] == list(range(len(rows))) for rows in log_of(store).values())


def test_while_it_is_loading_it_answers_nothing_and_others_go_on(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group_id in ("a", "b"):
        coordinator.commit_offsets(group_id, {("t", 0): 1})
    reading, go_on = threading.Event(), threading.Event()
    load = coordinator._core.log.load

    def slow(*arguments: object) -> Iterator[pa.Table]:
        rows = list(load(*arguments))  # type: ignore[arg-type]
        reading.set()
        assert go_on.wait(10)
        yield from rows

    monkeypatch.setattr(coordinator._core.log, "load", slow)
    number = coordinator.partition_for("a")
    thread = threading.Thread(target=coordinator.load_partition, args=(number,))
    thread.start()
    assert reading.wait(10)
    assert coordinator.status(number) is LoadStatus.LOADING
    for ask in (
        lambda: coordinator.fetch_offsets("a"),
        lambda: coordinator.commit_offsets("a", {("t", 0): 2}),
        coordinator.list_groups,
    ):
        with pytest.raises(CoordinatorLoadInProgress) as refused:
            ask()
        assert refused.value.kafka_name == "COORDINATOR_LOAD_IN_PROGRESS"
    coordinator.commit_offsets("b", {("t", 0): 2})
    with opened(coordinator.store.location) as other:  # what comes into the log meanwhile is not lost
        other.commit_offsets("a", {("t", 0): 3})
    go_on.set()
    thread.join(10)
    assert coordinator.status(number) is LoadStatus.LOADED
    assert coordinator.fetch_offsets("a")[at()].offset == 3
    assert coordinator.fetch_offsets("b")[at()].offset == 2


def test_a_load_that_is_stopped_midway_publishes_nothing(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    number = coordinator.partition_for("a")
    coordinator.unload_partition(number)
    load = coordinator._core.log.load

    def unloaded_midway(*arguments: object) -> Iterator[pa.Table]:
        for rows in load(*arguments):  # type: ignore[arg-type]
            coordinator.unload_partition(number)
            yield rows

    monkeypatch.setattr(coordinator._core.log, "load", unloaded_midway)
    coordinator.load_partition(number)
    assert coordinator.status(number) is LoadStatus.UNLOADED

    def broken(*_: object) -> NoReturn:
        raise OSError("gone")

    monkeypatch.setattr(coordinator._core.log, "load", broken)
    with pytest.raises(OSError, match="gone"):
        coordinator.load_partition(number)
    assert coordinator.status(number) is LoadStatus.UNLOADED
    monkeypatch.undo()
    coordinator.load_partition(number)
    assert coordinator.fetch_offsets("a")[at()].offset == 1


def test_of_two_loads_the_later_one_publishes() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    partitions = Partitions(1)
    first = partitions.begin_load([0])
    second = partitions.begin_load([0])
    first.add(table_of(log.rows))
    for loading in (first, second):
        loading.replay()
    partitions.publish(first)
    assert partitions.status(0) is LoadStatus.LOADING
    partitions.give_up(first)
    assert partitions.status(0) is LoadStatus.LOADING
    second.add(table_of(log.rows))
    second.replay()
    partitions.publish(second)
    assert partitions.state(0).offsets_of("g").keys() == {at()}


def test_failed_reload_keeps_the_loaded_state(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})

    def broken(*_: object) -> NoReturn:
        append_rows(coordinator.store.location, more.rows, 3)
        raise OSError("gone")

    more = LogPartition(coordinator.partition_for("a"))
    more.commit(("a", "t", 0), 2)
    monkeypatch.setattr(coordinator._core.log, "load", broken)
    with pytest.raises(OSError, match="gone"):
        coordinator.load_partition(coordinator.partition_for("a"))
    assert coordinator.fetch_offsets("a")[at()].offset == 2


def test_a_removed_group_that_is_still_active_is_an_error(coordinator: Coordinator) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    coordinator.remove_group("a")
    number = coordinator.partition_for("a")
    active = coordinator._core.partitions.state(number)
    log = LogPartition(number)
    log.group(2, "a", version=3, protocol_type="consumer", members=[])
    coordinator.store_group(stable("b"))
    active.groups["a"] = coordinator._core.partitions.state(coordinator.partition_for("b")).groups["b"]  # gone astray
    with pytest.raises(UnexpectedActiveGroup, match=r"log partition \d+ deletes group 'a', which is active here"):
        coordinator.load_partition(number)
    assert coordinator.status(number) is LoadStatus.LOADED
    coordinator.unload_partition(number)
    coordinator.load_partition(number)
    assert coordinator.get_group("a") is None


def test_a_group_that_another_process_removes_during_a_reload_is_none(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.store_group(stable("a"))
    number = coordinator.partition_for("a")
    load = coordinator._core.log.load

    def removed_meanwhile(*arguments: object) -> Iterator[pa.Table]:
        yield from load(*arguments)  # type: ignore[arg-type]
        log = LogPartition(number)
        log.group(2, "a", version=3)
        log.group_tombstone(2, "a")
        append_rows(coordinator.store.location, log.rows, 3)

    monkeypatch.setattr(coordinator._core.log, "load", removed_meanwhile)
    coordinator.load_partition(number)
    assert coordinator.get_group("a") is None


def test_a_corrupt_record_is_passed_over_or_stops_the_load(store: Path) -> None:  # R6
    log = LogPartition(partition_for("a", 3))
    log.commit(("a", "t", 0), 5)
    log.record(log.rows[0].key, b"\x00")
    append_rows(store, log.rows, 3)
    with opened(store) as coordinator:
        assert coordinator.fetch_offsets("a")[at()].offset == 5
    with pytest.raises(UndecodableRecord, match=f"log partition {log.log_partition}, record offset 1"):
        Coordinator.open(store, Settings(log=LogSettings(corrupt_records="fail")))


def test_coordinator_that_has_a_partition_loaded_is_found(store: Path) -> None:
    with (
        opened(store, partitions=[0], housekeeping=True) as one,
        opened(store, partitions=[0, 1], housekeeping=True) as two,
        opened(store) as unregistered,
    ):
        groups = {one.partition_for(group_id): group_id for group_id in ("a", "b", "c")}
        found = {number: set(unregistered.find_coordinator(groups[number]).loaded_by) for number in range(3)}
        assert found == {0: {one.instance, two.instance}, 1: {two.instance}, 2: set()}
        unregistered.unload_partition(0)
        assert {path.stem for path in (store / FOLDER).iterdir()} == {one.instance.name, two.instance.name}
        assert one.find_coordinator(groups[1]).status is LoadStatus.UNLOADED
        two.unload_partition(0)
        two.load_partition(2)
        found = {number: set(one.find_coordinator(groups[number]).loaded_by) for number in range(3)}
        assert found == {0: {one.instance}, 1: {two.instance}, 2: {two.instance}}
    with opened(store, partitions=[]) as three:
        assert three.find_coordinator(groups[0]).loaded_by == []


@pytest.mark.local_only("a file's time is set")
def test_files_of_ended_processes_and_forgotten_files_are_deleted(store: Path) -> None:
    here, folder, long_ago_ms = Instance.here(), store / FOLDER, NOW_MS - FORGOTTEN_MS - 1
    for instance, at_ms in (
        (Instance(here.host, here.pid, "runs"), NOW_MS - FORGOTTEN_MS),
        (Instance(here.host, here.pid, "hangs"), long_ago_ms),
        (Instance(here.host, 2**22 + 1, "killed"), NOW_MS),
        (Instance("another machine", 2**22 + 1, "elsewhere"), NOW_MS - FORGOTTEN_MS),
        (Instance("another machine", 2**22 + 1, "silent"), long_ago_ms),
    ):
        Registry(str(store), instance).note([0], at_ms)
    (folder / "killed.json.tmp").write_bytes((folder / "killed.json").read_bytes())
    for name, at_ms in (("writes.json.tmp", NOW_MS), ("crashed.json.tmp", long_ago_ms), ("notes.txt", long_ago_ms)):
        (folder / name).write_bytes(b"{")
        os.utime(folder / name, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    with opened(store, housekeeping=True) as coordinator:
        left = {each.name for each in folder.iterdir()}
        assert left == {
            f"{coordinator.instance.name}.json",
            "runs.json",
            "elsewhere.json",
            "writes.json.tmp",
            "notes.txt",
        }


@pytest.mark.local_only("a folder in the place of a file")
def test_a_note_that_cannot_be_written_leaves_no_file(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(store, housekeeping=True) as coordinator:
        own = store / FOLDER / f"{coordinator.instance.name}.json"
        own.unlink()
        own.mkdir()  # so that the move fails
        coordinator.unload_partition(0)
        assert [each.name for each in (store / FOLDER).iterdir()] == [own.name]
        own.rmdir()
    assert "cannot write to" in caplog.text


def test_the_last_note_has_the_last_loaded_partitions(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has read which log partitions are loaded writes them before another thread reads."""
    with opened(store, housekeeping=True) as coordinator:
        unload_in_two_threads(coordinator, monkeypatch)
        loaded = [coordinator._core.registry.instances_with(number, NOW_MS) for number in range(3)]
        assert loaded == [[], [], [coordinator.instance]]


def unload_in_two_threads(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unload log partition 0, and 1 while the note of the first one is on its way."""
    begun, goes_on = threading.Event(), threading.Event()
    note = coordinator._core.registry.note

    def late(partitions: list[int], now_ms: int) -> None:
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(10)
        note(partitions, now_ms)

    monkeypatch.setattr(coordinator._core.registry, "note", late)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(coordinator.unload_partition, 0)
        assert begun.wait(10)
        second = threads.submit(coordinator.unload_partition, 1)
        wait_until("log partition 1 is unloaded", lambda: coordinator.status(1) is LoadStatus.UNLOADED)
        goes_on.set()
        first.result(10)
        second.result(10)


def test_an_old_note_or_one_of_a_dead_process_is_not_believed(store: Path) -> None:
    elsewhere = Instance("another machine", 1, "elsewhere")
    Registry(str(store), elsewhere).note([0], NOW_MS)
    dead = Instance(Instance.here().host, 2**22 + 1, "dead")
    Registry(str(store), dead).note([0], NOW_MS)
    for name, text in (("empty", b""), ("list", b"[]"), ("other", b'{"host": 1}')):
        (store / "_coordinators" / f"{name}.json").write_bytes(text)
    registry = Registry(str(store), Instance.here())
    assert registry.instances_with(0, NOW_MS + BELIEVED_MS) == [elsewhere]
    assert registry.instances_with(0, NOW_MS + BELIEVED_MS + 1) == []
