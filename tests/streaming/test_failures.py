"""A fold that dies before or after any of its writes, and is run again, gives what it gives undisturbed (R15)."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import functions as F

from offsets_pipeline.config import FoldSettings
from offsets_pipeline.errors import StreamFailed, WriteConflict
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.fold.batch import fold_batch
from offsets_pipeline.fold.few import FewWriter
from offsets_pipeline.fold.fold_writer import FoldWriter
from offsets_pipeline.fold.reload import reload_partitions
from offsets_pipeline.fold.replay_writer import FoundState, RowsReplayWriter
from offsets_pipeline.fold.state import FoldedState, StateWriter
from offsets_pipeline.layers import LAYERED, LayeredTable
from offsets_pipeline.retry import with_retries
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, assert_as_reference, copied, log_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from offsets_pipeline.delta.data_file import WrittenFile
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming

WRITES = [
    "committed_offsets",
    "group_records",
    "groups",
    "_merge_quarantine",
    "_merge_topics",
    "_write_progress",
]
TOPIC_ID = "AAAAAAAAAAAAAAAAAAA{:02}A"


class Died(Exception):
    """What a test raises in the middle of a fold."""


def dying(write: str, when: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Make this write raise before or after it is done; returns where it is noted that it did.

    It is a method, or what appends to a table of this name.
    """
    died: list[str] = []

    def make_die(owner: type, method: str) -> None:
        whole = getattr(owner, method)

        def half(self: StateWriter, *args: object) -> None:
            is_it = write == (args[0].table.name if args and isinstance(args[0], LayeredTable) else method)
            if not is_it or when == "after":
                whole(self, *args)
            if is_it:
                died.append(write)
                raise Died(f"{when} {write}")

        patch.setattr(owner, method, half)

    if write in {each.table.name for each in LAYERED}:
        make_die(FoldWriter, "_append")
        make_die(FewWriter, "_append_rows")
    else:
        make_die(next(each for each in (StateWriter, RowsReplayWriter) if write in vars(each)), write)
    return died


def busy_log(steps: int) -> list[LogPartition]:
    """In each step something for every table: offsets, groups, topics, quarantine, open and ended transactions."""
    log = LogPartition()
    ends: list[LogPartition] = []
    for step in range(steps):
        log.commit(("g", "t", 0), step, version=4, topic_id=TOPIC_ID.format(step))
        log.commit(("g", f"t{step}", 0), step, producer_id=step)
        log.group(3, "members", epoch=step)
        log.group(5, "members", f"m{step}", client_id="c", client_host="h")
        log.record(b"\x00\x01\x00", b"")  # corrupt
        log.delete(("g", f"t{step - 2}", 0))
        if step % 2:
            log.group_tombstone(5, "members", f"m{step - 1}")
            log.end_commit(step - 1)
        if step == 3:
            log.group_tombstone(2, "simple")
        log.commit(("simple", "t", step), step)
        part = LogPartition(0, start=log.next_offset)
        part.rows = log.rows.copy()
        log.rows.clear()
        ends.append(part)
    return ends


def test_records_that_go_into_quarantine_are_warned_of(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    appended(location, [row for part in busy_log(2) for row in part.rows])
    store, warnings = either_way.open(location), list[str]()
    fold_batch(store, store.read("log"), either_way.settings, CLOCK, warnings.append)
    corrupt = [row.record_offset for row in log_of(location) if row.key == b"\x00\x01\x00"]
    assert sorted(row["record_offset"] for row in rows_of(location, "quarantine")) == corrupt
    (warning,) = warnings
    assert warning.startswith(
        f"{len(corrupt)} of {len(log_of(location))} records went into quarantine (record {corrupt[0]} of log "
        "partition 0 does not decode: "
    )
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK, warnings.append) == 0
    assert len(warnings) == 1


@pytest.mark.slow
def test_fold_that_dies_at_any_write_runs_again(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    steps = busy_log(len(WRITES))
    for part in steps:
        appended(location, part.rows)
    log, store = log_of(location), either_way.open(location)
    for write, part in zip(WRITES, steps, strict=True):
        rows = store.read("log").where(F.col("record_offset") < part.next_offset)  # what was folded comes again
        # the facts are written side by side: to die after one of them is to die before the progress
        for when in ("before", "after") if write == "_write_progress" else ("before",):
            with pytest.MonkeyPatch.context() as patch:
                died = dying(write, when, patch)
                if (write, when) == ("_write_progress", "after"):  # then it did happen, and nobody was told
                    with pytest.raises(Died):
                        fold_batch(store, rows, either_way.settings, CLOCK)
                    assert fold_batch(store, rows, either_way.settings, CLOCK) == 0
                else:
                    with pytest.raises(Died):
                        fold_batch(store, rows, either_way.settings, CLOCK)
            assert died == [write]
        folded = 0 if write == "_write_progress" else len(part.rows)
        assert fold_batch(store, rows, either_way.settings, CLOCK) == folded
        assert_as_reference(location, [row for row in log if row.record_offset < part.next_offset])
    assert len(rows_of(location, "topics")) == len(WRITES)


@pytest.mark.slow
def test_reload_that_dies_at_any_write_runs_again(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    log = busily_folded(workbench, location)
    for write in ("_replace_groups", "_replace_offsets", "_write_progress"):
        alter(workbench, location)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FoundState, "of", lambda _: None)
            dying(write, "before", patch)
            with pytest.raises(Died):
                workbench.reload(location)
    assert workbench.reload(location) == len(log)
    assert_as_reference(location, log)


@pytest.mark.slow
def test_reload_that_dies_between_the_commits_of_its_files_runs_again(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    log = busily_folded(workbench, location)
    for name in ("committed_offsets", "group_records", "groups"):
        alter(workbench, location)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileCommit, "replace", partialmethod(replace_but, name, FileCommit.replace))
            with pytest.raises(Died):
                workbench.reload(location)
    assert workbench.reload(location) == len(log)
    assert_as_reference(location, log)


def busily_folded(workbench: Workbench, location: Path) -> list[LogRow]:
    """Fold a busy log; returns its rows."""
    for part in busy_log(5):
        appended(location, part.rows)
    workbench.fold(location)
    return log_of(location)


def replace_but(
    commit: FileCommit, name: str, whole: Callable[[FileCommit, object], int], files: Sequence[WrittenFile]
) -> int:
    """Replace a table's files, but die where it has this name."""
    if commit._table.name == name:
        raise Died(name)
    return whole(commit, files)


def alter(workbench: Workbench, location: Path) -> None:
    """Write something wrong into the state: that is what a reload is for."""
    workbench.spark.sql(f"UPDATE delta.`{location}/committed_offsets` SET committed_offset = 999")
    workbench.spark.sql(f"UPDATE delta.`{location}/group_records` SET value = NULL WHERE record_type = 3")


def test_stream_that_dies_goes_on_where_it_was(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    first, second = busy_log(2)
    appended(location, first.rows)
    assert workbench.fold(location) == len(first.rows)
    appended(location, second.rows)
    with pytest.MonkeyPatch.context() as patch:
        dying("_write_progress", "before", patch)
        with pytest.raises(StreamFailed) as failed:
            workbench.fold(location)
    assert "\n" not in str(failed.value)
    assert rows_of(location, "fold_progress")[0]["folded_to"] == first.next_offset
    assert workbench.fold(location) == len(second.rows)
    assert_as_reference(location, log_of(location))


def test_fold_that_another_overtook_does_not_count_twice(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    (part,) = busy_log(1)
    appended(location, part.rows)
    store = workbench.open(location)
    overtaken = 0
    with pytest.MonkeyPatch.context() as patch:
        whole = StateWriter._write_progress

        def overtake(self: StateWriter, summary: Summary, state: FoldedState) -> None:
            nonlocal overtaken
            overtaken += 1
            if overtaken == 1:  # another fold of the same rows ends just before this one does
                assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == len(part.rows)
            whole(self, summary, state)

        patch.setattr(StateWriter, "_write_progress", overtake)
        assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == 0
    assert overtaken == 2
    assert_as_reference(location, log_of(location))


def test_write_is_tried_again_as_often_as_the_settings_say_and_waits_longer_each_time() -> None:
    waits: list[float] = []
    tries: list[int] = []

    def overtaken() -> int:
        tries.append(1)
        if len(tries) < 4:
            raise ConcurrentAppendException("overtaken")
        return 7

    settings = FoldSettings(max_retries=3, retry_backoff_ms=100, max_backoff_ms=150)
    assert with_retries(overtaken, "a write", settings, waits.append) == 7
    assert [0.05 <= waits[0] <= 0.1, 0.075 <= waits[1] <= 0.15, 0.075 <= waits[2] <= 0.15] == [True] * 3
    tries.clear()
    with pytest.raises(WriteConflict, match=r"^a write was overtaken by another writer 3 times: "):
        with_retries(overtaken, "a write", FoldSettings(max_retries=2), waits.append)


def test_other_errors_are_not_tried_again() -> None:
    tries: list[int] = []
    waits: list[float] = []

    def broken() -> None:
        tries.append(1)
        raise Died

    with pytest.raises(Died):
        with_retries(broken, "a write", FoldSettings(), waits.append)
    assert (tries, waits) == ([1], [])


def test_reload_of_a_partition_leaves_the_others_alone(
    workbench: Workbench, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    location = copied(folded("4.2.0-txn-open"), tmp_path / "store")
    workbench.spark.sql(f"UPDATE delta.`{location}/committed_offsets` SET metadata = 'altered'")
    reload_partitions(workbench.open(location), [4], workbench.settings, CLOCK)
    altered = {row["log_partition"] for row in rows_of(location, "committed_offsets") if row["metadata"] == "altered"}
    assert altered == {0, 1, 2, 3} & {row["log_partition"] for row in rows_of(location, "committed_offsets")}
    assert 4 in {row["log_partition"] for row in rows_of(location, "committed_offsets")}
