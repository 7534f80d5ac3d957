"""Folds and reloads while another process folds, dies or cleans the log: what they give is the replay's result."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.fold.state.fold import _Fold, fold_log, next_fold, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.delta.data_file import CLEANED
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION
from tests.folded_stores import new_store, opened
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, export_of, rows_of
from tests.unit.coordinator.stores import opened as open_coordinator
from tests.unit.history.history_stores import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offsets_pipeline.store.store import Store


class Died(BaseException):
    """The process was killed."""


def dying_fold(store: Store) -> None:
    """A fold of another process that appends its facts, and is killed before its swap."""
    with pytest.MonkeyPatch.context() as patch:

        def die(*_: object, **__: object) -> None:
            raise Died

        patch.setattr(FoldProgress, "replace", die)
        with pytest.raises(Died):
            fold_log(opened(Path(store.location)), Settings(), CLOCK)


def preceded_by(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, others: Callable[[], object]) -> None:
    """Let ``others`` run once, before the next call of a method."""
    method = getattr(owner, name)

    def beside(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(owner, name, method)
        others()
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, beside)


@contextmanager
def synchronised_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The inodes of all that is synchronised in the context."""
    found, fsync = set[int](), os.fsync

    def noted(descriptor: int) -> None:
        found.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        yield found


@pytest.fixture
def log() -> LogPartition:
    return LogPartition()


@pytest.fixture
def store(tmp_path: Path, log: LogPartition) -> Store:
    """A store with one log partition, and a folded commit of a group."""
    store = new_store(tmp_path / "store", 1)
    log.commit(("h", "a", 0), 1)
    append_rest(store, log)
    fold_log(store, Settings(), CLOCK)
    return store


def append_rest(store: Store, log: LogPartition) -> None:
    """Append the rows of the log partition that the table lacks."""
    there = store.table(LOG.name).snapshot().rows(["record_offset"]).num_rows
    appended(store.location, log.rows[there:])


def append_beside_a_dying_fold(
    store: Store, log: LogPartition, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Append a commit of a new group. At the next call of a method, another process appends one more, and folds both.

    It dies before its fold ends.
    """
    log.commit(("new", "t", 0), 5)
    append_rest(store, log)

    def fold_and_die() -> None:
        log.commit(("new", "t", 1), 6)
        append_rest(store, log)
        dying_fold(store)

    preceded_by(monkeypatch, owner, name, fold_and_die)


def test_a_group_that_a_dead_fold_wrote_is_published_with_its_offsets(
    store: Store, log: LogPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R14, R38: facts behind the end of a fold do not count, neither as the group nor as a reason to leave it out."""
    append_beside_a_dying_fold(store, log, monkeypatch, _Fold, "_known")
    assert fold_log(store, Settings(), CLOCK) == 1
    assert publish(store, CLOCK)
    assert {row["record_offset"] for row in rows_of(store.location, "published_as_of")} == {2}
    assert {row["group_id"] for row in rows_of(store.location, "consumer_groups")} == {"h", "new"}
    offsets = {(row["group_id"], row["partition"]) for row in rows_of(store.location, "current_offsets")}
    assert offsets == {("h", 0), ("new", 0)}


def test_a_question_has_a_group_that_a_fold_beside_it_writes(
    store: Store, log: LogPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_beside_a_dying_fold(store, log, monkeypatch, StateReader, "_pin")
    answers = describe_groups(StateReader(store.location))
    assert {name: [(each.partition, each.offset) for each in group.offsets] for name, group in answers.items()} == {
        "h": [(0, 1)],
        "new": [(0, 5)],
    }


def test_a_reload_beside_a_fold_and_a_cleaning_begins_again(
    store: Store, log: LogPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11, R23: a cleaning leaves out an aborted commit with its marker, and the next marker commits the rest.

    A replay that has the aborted commit and goes on in the cleaned log would take that marker for its own.
    """
    log.commit(("h", "aborted", 0), 111, producer_id=7)
    append_rest(store, log)

    def fold_and_clean() -> None:
        log.end_abort(7)
        log.commit(("h", "z", 0), 2, producer_id=7)
        log.end_commit(7)
        log.commit(("h", "a", 0), 3)
        append_rest(store, log)
        assert fold_log(opened(Path(store.location)), Settings(), CLOCK) == 5
        table, kept = store.table(LOG.name), log.rows[3:]
        seen = table.snapshot()
        rows = table_of(kept, {(0, row.record_offset): CLOCK.now_ms() for row in kept})
        table.commit([table.write_file(rows)], seen.files(), seen=seen, advance={CLEANED: 1}, is_change=False)

    preceded_by(monkeypatch, _Fold, "_append", fold_and_clean)
    reload_partitions(store, None, Settings(), CLOCK)
    (group,) = export_of(store.location)["groups"].values()
    assert [(each["topic"], each["offset"]) for each in group["offsets"]] == [("a", 3), ("z", 2)]


def test_a_reload_that_another_one_overtook_begins_again(
    store: Store, log: LogPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later incarnation of the state counts: a reload that has begun earlier must not end with an older one."""
    reload = partial(reload_partitions, store, None, Settings(), CLOCK)
    incarnations = []

    def reload_beside() -> None:
        reload()
        incarnations.append(FoldProgress.read(store.table("fold_progress")).incarnation)

    preceded_by(monkeypatch, _Fold, "_append", reload_beside)
    reload()
    incarnations.append(FoldProgress.read(store.table("fold_progress")).incarnation)
    assert incarnations == [3, 4]  # the first fold was 1, and this reload began as 2
    assert set(export_of(store.location)["groups"]) == {"h"}


@pytest.mark.local_only("a loss of power loses what a local folder has not synchronised")
@pytest.mark.parametrize("left", [None, b""], ids=["gone", "empty"])
def test_the_state_is_not_ahead_of_an_owned_log_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None
) -> None:
    """R27: what was committed with acks=1 may be lost; its record offsets then go to others, which must be folded."""
    location = tmp_path / "owned"
    OwnedStore.create(location, 1)
    created = set(location.rglob("*"))

    def fold() -> dict[int, int]:
        fold_log(opened(location), Settings(), CLOCK)
        publish(opened(location), CLOCK)
        rows = rows_of(str(location), "current_offsets")
        return {row["partition"]: row["committed_offset"] for row in rows}

    with open_coordinator(location) as coordinator, synchronised_files(monkeypatch) as synchronised:
        coordinator.commit_offsets("g", {("t", 0): 1}, acks=-1)
        assert fold() == {0: 1}
        coordinator.commit_offsets("g", {("t", 0): 2}, acks=1)
        assert fold() == {0: 2}
        coordinator.commit_offsets("g", {("t", 0): 3}, acks=1)
    lost = [path for path in set(location.rglob("*")) - created if path.is_file()]
    lost = [path for path in lost if path.stat().st_ino not in synchronised]
    assert any(path.suffix == ".json" and path.parent.parent.name == "log" for path in lost)
    for path in lost:
        path.unlink() if left is None or path.suffix != ".json" else path.write_bytes(left)
    with open_coordinator(location) as coordinator:
        coordinator.commit_offsets("g", {("t", 1): 71}, acks=-1)
        coordinator.commit_offsets("g", {("t", 2): 72}, acks=-1)
        held = {place.partition: each.offset for place, each in coordinator.fetch_offsets("g").items()}
    assert held == {0: 2, 1: 71, 2: 72}
    assert fold() == held


@pytest.mark.local_only("an object store has no files that are not synchronised")
def test_what_a_reload_catches_up_with_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: another process folds a commit while this reload runs, and a further commit comes before its end."""
    location = tmp_path / "owned"
    OwnedStore.create(location, 1)
    with open_coordinator(location) as coordinator, synchronised_files(monkeypatch) as synchronised:
        coordinator.commit_offsets("g", {("t", 0): 1}, acks=-1)
        fold_log(opened(location), Settings(), CLOCK)

        def commit_and_fold() -> None:
            coordinator.commit_offsets("g", {("t", 0): 2}, acks=1)
            fold_log(opened(location), Settings(), CLOCK)
            coordinator.commit_offsets("g", {("t", 0): 3}, acks=1)

        preceded_by(monkeypatch, _Fold, "_append", commit_and_fold)
        reload_partitions(opened(location), None, Settings(), CLOCK)
    log = opened(location).table(LOG.name)
    assert [row["folded_to"] for row in rows_of(str(location), "fold_progress")] == [3]
    names = [file.name for file in log.snapshot().files()]
    assert all((location / LOG.name / name).stat().st_ino in synchronised for name in names)


@pytest.mark.local_only("copies a table's folder")
@pytest.mark.parametrize("is_reload", [False, True], ids=["fold", "reload"])
@pytest.mark.parametrize("commits", [0, 2], ids=["shorter", "as-long"])
def test_a_log_that_was_restored_alone_is_what_the_state_answers(
    tmp_path: Path, *, is_reload: bool, commits: int
) -> None:
    """The state equals the replay of the log that is there, and new commits get record offsets that were folded.

    Also if the log has got as many commits since as it has lost.
    """
    location = tmp_path / "owned"
    OwnedStore.create(location, 3)

    def commit(partition: int, group: str = "g") -> None:
        with open_coordinator(location) as coordinator:
            coordinator.commit_offsets(group, {("t", partition): 7}, acks=-1)

    def described() -> dict[str, list[int]]:
        groups = describe_groups(StateReader(str(location)))
        return {name: [each.partition for each in group.offsets] for name, group in groups.items()}

    commit(0)
    shutil.copytree(location / LOG.name, tmp_path / "backup")
    commit(1)
    commit(0, "lost")
    fold_log(opened(location), Settings(), CLOCK)
    publish(opened(location), CLOCK)
    assert described() == {"g": [0, 1], "lost": [0]}
    shutil.rmtree(location / LOG.name)
    shutil.copytree(tmp_path / "backup", location / LOG.name)
    for each in range(commits):
        commit(each, "h")
    held = {"g": [0], "h": list(range(commits))} if commits else {"g": [0]}
    assert described() == held
    if is_reload:
        reload_partitions(opened(location), [0], Settings(), CLOCK)
    else:
        fold_log(opened(location), Settings(), CLOCK)
    assert described() == held
    commit(2)
    fold_log(opened(location), Settings(), CLOCK)
    publish(opened(location), CLOCK)
    held["g"] = [0, 2]
    assert described() == held
    rows = rows_of(str(location), "current_offsets")
    assert [row["partition"] for row in rows if row["group_id"] == "g"] == [0, 2]
    assert [row["partition"] for row in rows if row["group_id"] == "h"] == list(range(commits))


@pytest.mark.local_only("copies a table's folder")
def test_a_replay_of_a_restored_log_does_not_step_back_behind_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R38: the other one ends first, and folds go on from it."""
    store, log = new_store(tmp_path / "store", 1), LogPartition()
    log.commit(("h", "a", 0), 1)
    append_rest(store, log)
    shutil.copytree(tmp_path / "store" / LOG.name, tmp_path / "backup")
    appended(store.location, [log.rows[0]._replace(record_offset=1)])
    fold_log(store, Settings(), CLOCK)
    shutil.rmtree(tmp_path / "store" / LOG.name)
    shutil.copytree(tmp_path / "backup", tmp_path / "store" / LOG.name)
    swap = _Fold._swap
    first: list[tuple[Any, ...]] = []

    def published() -> list[int]:
        return [row["committed_offset"] for row in rows_of(store.location, "current_offsets")]

    def second_swap(*arguments: Any) -> None:  # noqa: ANN401 - as of the method
        monkeypatch.setattr(_Fold, "_swap", swap)
        swap(*first[0])
        log.commit(("h", "a", 0), 2)
        append_rest(store, log)
        fold_log(opened(tmp_path / "store"), Settings(), CLOCK)
        publish(opened(tmp_path / "store"), CLOCK)
        assert published() == [2]
        swap(*arguments)

    def first_swap(*arguments: Any) -> None:  # noqa: ANN401 - as of the method
        first.append(arguments)
        monkeypatch.setattr(_Fold, "_swap", second_swap)
        reload_partitions(opened(tmp_path / "store"), None, Settings(), CLOCK)

    monkeypatch.setattr(_Fold, "_swap", first_swap)
    fold_log(opened(tmp_path / "store"), Settings(), CLOCK)
    assert published() == [2]


@pytest.mark.local_only("copies a table's folder")
def test_a_fold_of_an_append_does_not_continue_the_state_of_another_log(tmp_path: Path) -> None:
    """`follow` folds what it appends; its log was restored alone, and has got as many commits since."""
    store, log = new_store(tmp_path / "store", 1), LogPartition()
    log.commit(("h", "a", 0), 1)
    append_rest(store, log)
    shutil.copytree(tmp_path / "store" / LOG.name, tmp_path / "backup")
    log.commit(("h", "a", 0), 2)
    append_rest(store, log)
    fold_log(store, Settings(), CLOCK)
    assert next_fold(opened(tmp_path / "store"), Settings(), CLOCK, LOG_INCARNATION) is not None
    shutil.rmtree(tmp_path / "store" / LOG.name)
    shutil.copytree(tmp_path / "backup", tmp_path / "store" / LOG.name)
    other = LogPartition(start=1)
    other.commit(("h", "a", 0), 3)
    appended(store.location, other.rows)
    assert next_fold(opened(tmp_path / "store"), Settings(), CLOCK, LOG_INCARNATION) is None


def test_records_that_another_program_deletes_from_the_log_leave_the_state(store: Store, log: LogPartition) -> None:
    """The state equals the replay of the log that is there."""
    log.commit(("gone", "t", 0), 5)
    append_rest(store, log)
    fold_log(store, Settings(), CLOCK)
    publish(store, CLOCK)
    table = DeltaTable(store.table(LOG.name).folder)
    table.delete("record_offset = 1")
    assert set(describe_groups(StateReader(store.location))) == {"h"}
    assert fold_log(opened(Path(store.location)), Settings(), CLOCK) == 1
    publish(store, CLOCK)
    assert {row["group_id"] for row in rows_of(store.location, "current_offsets")} == {"h"}
    log.commit(("h", "b", 0), 6)
    appended(store.location, log.rows[-1:])
    assert fold_log(opened(Path(store.location)), Settings(), CLOCK) == 1
