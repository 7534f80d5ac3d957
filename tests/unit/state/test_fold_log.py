"""Which files of the log a fold reads, and what it does with them. Without Spark."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.errors import NotAStore
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state import fold as fold_module
from offsets_pipeline.fold.state import replay_job
from offsets_pipeline.fold.state.fold import fold_log, next_fold, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.verify import verify_store
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.delta.data_file import FOLDED, LATE
from offsets_pipeline.store.delta.properties import FORMAT_VERSION
from offsets_pipeline.store.delta.schemas import GROUP_RECORDS, LOG, RECORD_COLUMNS
from offsets_pipeline.store.delta.upkeep import compact
from offsets_pipeline.store.log.append import Append, LogAppender
from offsets_pipeline.store.log.metadata import LogMetadata
from offsets_pipeline.store.store import Store
from tests.folded_stores import opened
from tests.logs import LogPartition
from tests.places import place_of, remove_place
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, versions
from tests.unit.state.state_files import before_swap, progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.table_folder import TableFolder


@pytest.fixture
def behind(store: Store, settings: Settings) -> Store:
    """A store that is folded up to an open transaction, and has 12 commits to the table `log` after it."""
    log, other = LogPartition(0), LogPartition(1)
    for number in range(3):
        log.commit(("g", "a", number), number)
        other.group(2, f"classic{number}")
    log.commit(("g", "open", 0), 7, producer_id=1)
    log.commit(("g", "open", 1), 8, producer_id=2)
    appended(store.location, [*log.rows, *other.rows])
    assert fold_log(store, settings, CLOCK) == 8
    for number in range(10):
        log.rows.clear()
        log.commit(("g", "a", number % 4), 100 + number)
        appended(store.location, log.rows)
    log.rows.clear()
    log.delete(("g", "a", 0))
    log.end_commit(1)
    appended(store.location, log.rows)
    other.rows.clear()
    other.group_tombstone(2, "classic0")
    appended(store.location, other.rows)
    return store


@pytest.mark.on_s3
def test_a_fold_of_the_log_takes_what_came_after_the_last_fold_and_only_once(
    behind: Store, settings: Settings
) -> None:  # R11, R15
    assert fold_log(behind, settings, CLOCK) == 13
    assert progress_of(behind).incarnations == {0: 1, 1: 1}  # it continues the state
    assert_as_reference(behind.location, log_of(behind.location))
    folded = versions(place_of(behind.location))
    assert fold_log(behind, settings, CLOCK) == 0
    assert versions(place_of(behind.location)) == folded


def test_pending_commits_count_among_the_rows_that_the_driver_replays(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits are pending, and 13 rows follow: the driver holds 15."""
    monkeypatch.setattr(Store, "spark", property(lambda _: pytest.fail("the fold asked for Spark")))
    with pytest.raises(pytest.fail.Exception, match="asked for Spark"):
        fold_log(behind, replace(settings, fold=replace(settings.fold, driver_rows=14)), CLOCK)
    assert fold_log(behind, replace(settings, fold=replace(settings.fold, driver_rows=15)), CLOCK) == 13


def test_a_running_program_notices_a_newer_format_of_the_store(behind: Store, settings: Settings) -> None:
    """As `follow`, a fold, `snapshot` and repeated upkeep, each before it writes."""
    log = behind.table(LOG.name)
    ingest = LogAppender(behind)
    file = log.write_file(log.snapshot().rows().slice(0, 1))
    seen = log.snapshot()
    newer = str(int(FORMAT_VERSION) + 1)
    metadata = log.with_properties(seen, {"offsets.format.version": newer})
    path = place_of(log.folder, "_delta_log", f"{seen.version + 1:020d}.json")
    path.write_text(json.dumps({"metaData": metadata}), encoding="utf-8")  # as a newer version of the program does
    before = versions(place_of(behind.location))
    for write in (
        lambda: fold_log(behind, settings, CLOCK),
        lambda: maintain_store(behind, CLOCK, settings, publishes=False),
        lambda: ingest.append_files([file]),
        lambda: LogAppender(behind),
    ):
        reason = f"it has format {newer}, this program reads {FORMAT_VERSION}; use a newer"
        with pytest.raises(NotAStore, match=f"{behind.location}: {reason}"):
            write()
    assert versions(place_of(behind.location)) == before


def test_a_fold_of_the_log_that_dies_before_it_notes_its_progress_runs_again(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:  # R15
    with monkeypatch.context() as patch:
        patch.setattr(FoldProgress, "swap", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            fold_log(behind, settings, CLOCK)
    assert fold_log(behind, settings, CLOCK) == 13
    assert_as_reference(behind.location, log_of(behind.location))


def test_a_verification_beside_a_fold_compares_the_state_that_the_progress_names(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold has written its facts, and ends while the verification reads them, or never."""
    found = []
    with monkeypatch.context() as patch:
        before_swap(patch, lambda: found.append(verify_store(opened(place_of(behind.location)), settings.fold)))
        fold_log(behind, settings, CLOCK)
    (beside,) = found
    assert (beside.equal, beside.records) == (True, 8), beside.examples
    after = verify_store(behind, settings.fold)
    assert (after.equal, after.records) == (True, 21), after.examples

    log = LogPartition(0, start=100)
    log.commit(("g", "a", 1), 5)
    appended(behind.location, log.rows)
    read = FoldProgress.read
    folds = iter([True])

    def read_and_folded(table: TableFolder) -> FoldProgress:
        progress = read(table)
        if next(folds, False):
            fold_log(opened(place_of(behind.location)), settings, CLOCK)
        return progress

    monkeypatch.setattr(FoldProgress, "read", read_and_folded)
    ended = verify_store(behind, settings.fold)
    assert ended.equal, ended.examples


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of the files of the log that each replay gets."""
    found: list[set[str]] = []
    replay = replay_job.replay_log

    def noted(spark: object, reader: object, files: Sequence[DataFile], *more: Any) -> list[Any]:  # noqa: ANN401
        found.append({file.name for file in files})
        return replay(spark, reader, files, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(fold_module, "replay_log", noted)
    return found


def files_of(store: Store) -> set[str]:
    return {file.name for file in store.table(LOG.name).snapshot().files()}


def test_a_fold_reads_the_files_that_were_added_since_the_last_one(
    store: Store, settings: Settings, files_read: list[set[str]]
) -> None:
    """Log partition 1 is empty: by record offsets alone, each file might have its first record."""
    log = LogPartition(0)
    for number in range(3):
        known = files_of(store)
        log.rows.clear()
        log.commit(("g", "a", 0), number)
        appended(store.location, log.rows)
        assert fold_log(opened(place_of(store.location)), settings, CLOCK) == 1
        assert files_read.pop() == files_of(store) - known
    fold_log(store, settings, CLOCK)
    assert files_read == [set()]


@pytest.mark.parametrize("gone", ["compacted", "commits"])
def test_a_fold_whose_commits_are_gone_goes_on_at_its_record_offsets(
    behind: Store, settings: Settings, gone: str
) -> None:
    store = behind
    if gone == "compacted":
        assert compact(behind.table(LOG.name)) > 1
    else:
        table = behind.table(LOG.name)
        table.checkpoint(table.snapshot().version)
        for each in place_of(table.folder, "_delta_log").glob("*.json"):
            each.unlink()
        store = opened(place_of(behind.location))
    assert fold_log(store, settings, CLOCK) == 13
    assert progress_of(store).log_version == store.version(LOG.name)
    assert_as_reference(behind.location, log_of(behind.location))
    assert fold_log(store, settings, CLOCK) == 0


def test_a_fold_of_an_older_copy_of_the_log_begins_at_its_start(behind: Store, settings: Settings) -> None:
    """The progress names a version that the log does not have."""
    progress = progress_of(behind)
    progress.replace(progress.partitions, progress.versions, {FOLDED: 1_000})
    rows = log_of(behind.location)
    assert fold_log(behind, settings, CLOCK) == len(rows) == 21
    assert progress_of(behind).log_version == behind.version(LOG.name)
    assert_as_reference(behind.location, rows)
    assert fold_log(behind, settings, CLOCK) == 0


def test_a_fold_of_a_log_that_got_nothing_to_fold_reads_its_commits_once(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_log(behind, settings, CLOCK)
    monkeypatch.setattr(fold_module, "_UNFOLDED_COMMITS", 3)
    table = behind.table(LOG.name)
    folded = progress_of(behind).log_version
    for noted in (folded, folded, folded, folded + 4):
        table.commit(seen=table.snapshot())
        assert fold_log(behind, settings, CLOCK) == 0
        assert progress_of(behind).log_version == noted


@pytest.mark.parametrize("is_named", [True, False])
def test_late_records_bring_a_replay_of_their_log_partition(
    behind: Store, settings: Settings, is_named: bool
) -> None:  # R15
    fold_log(behind, settings, CLOCK)
    log = LogPartition(1, start=1_000)
    log.group(2, "later")
    appended(behind.location, log.rows)
    fold_log(behind, settings, CLOCK)
    late = LogPartition(1, start=500)
    late.commit(("late", "t", 0), 0)
    appended(behind.location, late.rows, backfill=is_named)
    table = behind.table(LOG.name)
    if not is_named:  # as an older program
        table.commit(seen=table.snapshot(), advance={LATE: 0})
    fold_log(behind, settings, CLOCK)
    assert progress_of(behind).incarnations == {0: 1 if is_named else 2, 1: 2}
    assert_as_reference(behind.location, log_of(behind.location))
    assert fold_log(behind, settings, CLOCK) == 0


def test_a_reload_of_other_log_partitions_leaves_late_records_to_the_fold(behind: Store, settings: Settings) -> None:
    fold_log(behind, settings, CLOCK)
    late = LogPartition(1, start=500)
    late.commit(("late", "t", 0), 0)
    appended(behind.location, late.rows, backfill=True)
    reload_partitions(behind, [0], settings, CLOCK)
    assert progress_of(behind).late == -1
    fold_log(behind, settings, CLOCK)
    assert (progress_of(behind).late, progress_of(behind).incarnations) == (0, {0: 2, 1: 3})
    assert_as_reference(behind.location, log_of(behind.location))


@pytest.mark.parametrize("lost", [1, 2])
def test_records_that_the_progress_lost_are_folded_again(store: Store, settings: Settings, lost: int) -> None:  # R11
    producer_id = 7
    log = LogPartition(0, start=1)
    log.commit(("g", "t", 1), 1)
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    for _ in range(lost):
        log.rows.clear()
        log.commit(("g", "t", 0), log.next_offset, producer_id)
        appended(store.location, log.rows)
        fold_log(store, settings, CLOCK)
    commits = sorted(place_of(store.location, "fold_progress", "_delta_log").glob("*.json"))
    for each in commits[-lost:]:
        each.unlink()
    assert fold_log(opened(place_of(store.location)), settings, CLOCK) == lost
    log.rows.clear()
    log.end_commit(producer_id)
    appended(store.location, log.rows)
    fold_log(opened(place_of(store.location)), settings, CLOCK)
    assert_as_reference(store.location, log_of(store.location))


def appended_at_once(
    store: Store, settings: Settings, log: LogPartition, meanwhile: Callable[[], object] = lambda: None
) -> Append:
    """Append the rows of a log and fold them where they are, as an ingest does."""
    fold = next_fold(store, settings, CLOCK, 0)
    meanwhile()
    appended(store.location, log.rows)
    rows = store.table(LOG.name).snapshot()
    (file,) = rows.added_after(rows.version - 1) or []
    if fold is None:
        return Append(rows.version, len(log.rows))
    folded = pickle.loads(pickle.dumps(fold))(store.table(LOG.name).read_file(file, RECORD_COLUMNS).to_batches())
    return Append(rows.version, len(log.rows), fold, [folded])


def test_a_fold_takes_the_rows_of_an_append_that_follows_what_is_folded(
    store: Store, settings: Settings, files_read: list[set[str]]
) -> None:
    fold_log(store, settings, CLOCK)
    files_read.clear()
    log = LogPartition(0)
    for number in range(3):
        log.rows.clear()
        log.commit(("g", "a", number), number, producer_id=1)
        append = appended_at_once(store, settings, log)
        assert fold_log(store, settings, CLOCK, None, append) == 1
        assert progress_of(store).log_version == append.version
    log.rows.clear()
    log.end_commit(1)
    assert fold_log(store, settings, CLOCK, None, appended_at_once(store, settings, log)) == 1
    assert files_read == []
    assert_as_reference(store.location, log_of(store.location))


def test_a_fold_of_an_append_that_another_fold_came_before_reads_the_log(store: Store, settings: Settings) -> None:
    """The other fold has the commit, and this append its marker (R11)."""
    fold_log(store, settings, CLOCK)
    log, other = LogPartition(0, start=1), LogPartition(0)
    other.commit(("g", "a", 0), 1, producer_id=7)
    log.end_commit(7)

    def another_process() -> None:
        appended(store.location, other.rows)
        assert fold_log(opened(place_of(store.location)), settings, CLOCK) == 1

    append = appended_at_once(store, settings, log, another_process)
    assert append.version == progress_of(store).log_version + 1
    assert fold_log(store, settings, CLOCK, None, append) == 1
    assert_as_reference(store.location, log_of(store.location))


@pytest.mark.parametrize("which", ["the first fold", "an append before it", "an append after it"])
def test_a_fold_of_an_append_loses_no_other_append(store: Store, settings: Settings, which: str) -> None:
    log, other = LogPartition(0), LogPartition(1)
    log.commit(("g", "a", 0), 1)
    other.commit(("h", "a", 0), 2)
    if which != "the first fold":
        fold_log(store, settings, CLOCK)
    if which != "an append after it":
        appended(store.location, other.rows)
    append = appended_at_once(store, settings, log)
    if which == "an append after it":
        appended(store.location, other.rows)
        assert fold_log(store, settings, CLOCK, None, append) == 1
        assert fold_log(store, settings, CLOCK) == 1
    else:
        assert fold_log(store, settings, CLOCK, None, append) == 2
    assert_as_reference(store.location, log_of(store.location))


def test_a_fold_of_an_append_that_a_reload_came_before_reads_the_log(
    store: Store, settings: Settings, files_read: list[set[str]]
) -> None:
    log = LogPartition(0)
    log.commit(("g", "a", 0), 1)
    fold_log(store, settings, CLOCK)
    append = appended_at_once(store, settings, log, lambda: reload_partitions(store, None, settings, CLOCK))
    assert append.version == progress_of(store).log_version + 1
    files_read.clear()
    assert fold_log(store, settings, CLOCK, None, append) == 1
    assert len(files_read) == 1
    assert_as_reference(store.location, log_of(store.location))


def test_records_of_another_incarnation_of_the_log_are_not_folded_where_they_are(
    store: Store, settings: Settings
) -> None:
    assert next_fold(store, settings, CLOCK, 0) is None  # nothing is folded yet
    fold_log(store, settings, CLOCK)
    assert next_fold(store, settings, CLOCK, 0) is not None
    assert next_fold(store, settings, CLOCK, 1) is None
    log = LogPartition(0)
    log.commit(("h", "a", 0), 1)
    appended(store.location, log.rows)
    assert next_fold(store, settings, CLOCK, 0) is None  # this append is not folded yet
    fold_log(store, settings, CLOCK)
    assert next_fold(store, settings, CLOCK, 0) is not None
    commit = place_of(store.table(LOG.name).folder, "_delta_log", f"{store.version(LOG.name):020d}.json")
    text = commit.read_text()
    commit.write_text(text.replace('"WRITE"', '"RESTORE"'))  # as in a copy of the log with another commit
    assert next_fold(opened(place_of(store.location)), settings, CLOCK, 0) is None
    commit.write_text(text)
    LogMetadata(store, CLOCK, 1).bounds({0: (0, 0), 1: (0, 0)})  # now this incarnation counts
    assert next_fold(store, settings, CLOCK, 0) is None


def test_a_replay_from_the_start_names_the_version_of_the_log_that_it_read(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold of another incarnation of the log names a later version, and has skipped records of this one."""
    fold_log(behind, settings, CLOCK)
    read = behind.version(LOG.name)

    def fold_further() -> None:
        progress = progress_of(behind)
        progress.replace(progress.partitions, progress.versions, {FOLDED: read + 1})

    before_swap(monkeypatch, fold_further)
    reload_partitions(behind, None, settings, CLOCK)
    assert progress_of(behind).log_version == read


def test_records_come_into_the_log_also_if_the_state_is_damaged(store: Store, settings: Settings) -> None:
    folding = Folding(store, settings, CLOCK)
    folding.fold(store)
    assert folding.next_fold(store, 0) is not None
    remove_place(place_of(store.location, GROUP_RECORDS.name))
    assert folding.next_fold(opened(place_of(store.location)), 0) is None


def test_an_append_of_another_process_behind_ours_is_folded_by_the_next_call(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folding = Folding(store, settings, CLOCK)
    folding.fold(store)
    log, other = LogPartition(0), LogPartition(1)
    log.commit(("g", "a", 0), 1)
    other.commit(("h", "a", 0), 2)
    append = appended_at_once(store, settings, log)
    appended(store.location, other.rows)
    folding.fold(store, append)
    assert progress_of(store).log_version == append.version
    folding.fold(store)
    assert_as_reference(store.location, log_of(store.location))
    log.rows.clear()
    log.commit(("g", "a", 0), 3)
    folding.fold(store, appended_at_once(store, settings, log))
    monkeypatch.setattr("offsets_pipeline.fold.stream.folding.fold_log", lambda *_: pytest.fail("nothing is behind it"))
    folding.fold(store)
