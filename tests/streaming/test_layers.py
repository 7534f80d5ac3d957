"""The two layers of the state tables: what folds append, what is settled, and who is refused (R10, R15)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from offsets_pipeline.config import FoldSettings
from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, Table
from offsets_pipeline.errors import NoSuchStore, WriteConflict
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.fold import reload
from offsets_pipeline.fold import settle as settle_module
from offsets_pipeline.fold.batch import fold_batch
from offsets_pipeline.fold.replay_writer import FoundState
from offsets_pipeline.fold.settle import Settler, layers_of, settle
from offsets_pipeline.fold.state import FoldedState, FoldedTo, StateWriter
from offsets_pipeline.fold.summary import summarise
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.layers import LAYERED, OFFSETS
from offsets_pipeline.store import Store
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, assert_as_reference, copied, log_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from offsets_pipeline.fold.summary import Summary
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming


def fold_steps(workbench: Workbench, location: Path, steps: int) -> Store:
    """Commits, deletions and group records, folded in so many steps; the log has what comes next appended."""
    store = workbench.open(location)
    log = LogPartition()
    for step in range(steps):
        log.commit(("g", "t", 0), step)
        log.commit(("g", "t", step + 1), step)
        log.delete(("g", "t", step))
        log.group(2, f"classic{step}")
        appended(location, log.rows)
        assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == len(log.rows)
        log.rows.clear()
    return store


def test_settled_or_not_the_state_is_the_same(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 3)
    assert_as_reference(location, log_of(location))
    for layered in LAYERED:
        assert layers_of(store, layered).files_on_top == 2  # the first lies alone, and needs no settling
        assert settle(store, layered, *([] if either_way.settings.fold.driver_rows else [0]))
        rows = len(rows_of(location, layered.table.name))
        assert layers_of(store, layered) == (rows, 0, 0)
        assert store.read(layered.table.name).count() == rows
    assert_as_reference(location, log_of(location))


def test_stream_settles_when_rows_or_files_on_top_are_many(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    store = fold_steps(workbench, copied(empty(1), tmp_path / "store"), 3)

    def settled(settings: FoldSettings, records: int) -> list[str]:
        before = {each.table.name: store.version(each.table.name) for each in LAYERED}
        settler = Settler(store, settings)
        settler.after_fold(records)
        settler.close()
        return [name for name, version in before.items() if store.version(name) > version]

    few_files = FoldSettings(settle_rows=1_000, settle_files=2)
    assert settled(few_files, 999) == []  # not even looked
    assert settled(FoldSettings(settle_rows=1_000), 1_000) == []  # looked, and found few
    assert settled(few_files, 1_000) == [layered.table.name for layered in LAYERED]
    assert settled(few_files, 1_000) == []  # nothing lies on top any more


def test_settling_that_failed_fails_the_fold_that_comes_after(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise NoSuchStore("the disk is gone")

    monkeypatch.setattr("offsets_pipeline.fold.settle.layers_of", broken)
    settler = Settler(workbench.open(empty(1)), FoldSettings(settle_rows=1))
    settler.after_fold(1)
    settler.close()
    with pytest.raises(NoSuchStore, match="the disk is gone"):
        settler.after_fold(1)


def test_fold_goes_on_while_a_table_is_settled(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 2)
    log = LogPartition(0, start=100)
    log.commit(("g", "t", 0), 7)
    log.commit(("late", "t", 0), 8)
    appended(location, log.rows)
    here = either_way.settings.fold.driver_rows > 0
    assert settled_while(store, tmp_path, lambda: either_way.fold(location), here=here)
    assert layers_of(store, OFFSETS).rows_on_top == 2
    assert_as_reference(location, log_of(location))


def test_settling_is_put_off_where_a_reload_came_in_between(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 2)
    workbench.spark.sql(f"UPDATE delta.`{location}/committed_offsets` SET committed_offset = 999")
    assert not settled_while(store, tmp_path, lambda: workbench.reload(location), here=True)
    assert_as_reference(location, log_of(location))


def test_reload_is_made_again_where_a_table_was_settled_in_between(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 2)
    workbench.spark.sql(f"UPDATE delta.`{location}/committed_offsets` SET committed_offset = 999")

    def settled_since(*arguments: Any) -> object:  # noqa: ANN401
        monkeypatch.undo()
        assert settle(store, OFFSETS)
        return summarise(*arguments)

    monkeypatch.setattr(reload, "summarise", settled_since)
    workbench.reload(location)
    assert_as_reference(location, log_of(location))


def settled_while(store: Store, folder: Path, do: Callable[[], object], *, here: bool) -> bool:
    """Do something while a settling of the offsets, ``here`` or by Spark, has read them; whether that settled them."""
    began, done = folder / "began", folder / "done"

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        seen(done)
        yield from batches

    def read_and_waiting(*of: Any) -> list[pa.Table]:  # noqa: ANN401
        rows = list(newest_rows(*of))
        began.touch()
        seen(done)
        return rows

    newest_rows, latest = settle_module._newest_rows, Store.latest
    with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle_module, "_newest_rows", read_and_waiting)
        patch.setattr(Store, "latest", lambda *of: latest(*of).coalesce(1).mapInArrow(waiting, OFFSETS.schema()))
        settled = threads.submit(settle, store, OFFSETS, *([] if here else [0]))
        try:
            seen(began)
            patch.undo()
            do()
        finally:
            done.touch()
        return settled.result()


def seen(path: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def test_fold_whose_start_is_past_is_refused_before_it_writes(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 1)
    past = FoldedState(store)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 99)
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == 1
    before = store.version("committed_offsets")
    stale = store.read("committed_offsets").where("topic = 't'").limit(1).withColumn("committed_offset", F.lit(-5))
    for write in (past.writers["committed_offsets"].append, past.writers["committed_offsets"].overwrite):
        with pytest.raises(WriteConflict, match="another writer wrote to"):
            write(stale)
    assert store.version("committed_offsets") == before
    assert_as_reference(location, log_of(location))


def test_fold_reads_how_far_the_state_is_when_nobody_can_get_in_between_any_more(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    appended(location, log.rows)
    older = store.read("log").where("record_offset <= 50").persist()
    assert older.count() > 1
    log.rows.clear()
    log.commit(("g", "t", 0), 99)
    appended(location, log.rows)
    whole = FileCommit.begin

    def another_is_quicker(begun_in: Store, table: Table) -> FileCommit | None:
        if table is COMMITTED_OFFSETS:
            monkeypatch.undo()
            assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 2
            assert settle(store, OFFSETS)
        return whole(begun_in, table)

    monkeypatch.setattr(FileCommit, "begin", another_is_quicker)
    assert fold_batch(store, older, either_way.settings, CLOCK) == 0
    assert layers_of(store, OFFSETS).rows_on_top == 0  # nothing older lies on what is settled
    assert_as_reference(location, log_of(location))


@pytest.mark.parametrize("by_files", [True, False])
def test_fold_that_began_between_a_reload_s_offsets_and_its_progress_is_refused(
    workbench: Workbench,
    empty: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_files: bool,
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    log.commit(("g", "t", 0), 99)
    appended(location, log.rows)  # not folded yet: the reload is the first to see them
    if not by_files:
        monkeypatch.setattr(FoundState, "of", lambda _: None)
    began: list[FoldedState] = []

    def stale() -> DataFrame:
        row = store.read("committed_offsets").where("topic = 't' AND partition = 0").limit(1)
        return row.withColumns({"committed_offset": F.lit(-5).cast("bigint"), "settled": F.lit(False)})

    whole = StateWriter._write_progress

    def between(self: StateWriter, summary: Summary, state: FoldedTo) -> None:
        began.append(FoldedState(store))
        if len(began) == 1:  # this one also appends, before the reload ends
            began[0].writers["committed_offsets"].append(stale())
        whole(self, summary, state)

    monkeypatch.setattr(StateWriter, "_write_progress", between)
    workbench.reload(location)
    assert len(began) == 2  # for the first time was of no use
    late = began[-1].writers["committed_offsets"]
    with pytest.raises(WriteConflict):
        late.append(stale())
    assert late.files is not None
    with pytest.raises(WriteConflict):
        late.files.append([])
    assert_as_reference(location, log_of(location))


def test_reload_that_streams_overtake_goes_beside_what_they_append(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 2)
    workbench.spark.sql(f"UPDATE delta.`{location}/committed_offsets` SET committed_offset = 999")

    with pytest.MonkeyPatch.context() as patch:
        whole = GuardedWriter.overwrite

        def offsets_are_overtaken(self: GuardedWriter, rows: object, where: str | None = None) -> None:
            if self._table == "committed_offsets":
                raise WriteConflict(f"{rows} {where}")
            whole(self, rows, where)  # type: ignore[arg-type]

        patch.setattr(GuardedWriter, "overwrite", offsets_are_overtaken)
        patch.setattr(FoundState, "of", lambda _: None)
        bench = replace(workbench, settings=replace(workbench.settings, fold=FoldSettings(retry_backoff_ms=1)))
        assert bench.reload(location) == len(log_of(location))
    assert layers_of(store, OFFSETS).settled_rows == 0
    assert_as_reference(location, log_of(location))
    assert settle(store, OFFSETS)
    assert_as_reference(location, log_of(location))


def test_commit_that_was_overtaken_before_its_marker_came_does_not_come_back(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:  # R10, R11
    location = copied(empty(1), tmp_path / "store")
    store = either_way.open(location)
    log = LogPartition()
    log.commit(("g", "overtaken", 0), 1, producer_id=7)
    log.commit(("g", "deleted", 0), 2, producer_id=7)
    log.commit(("g", "first", 0), 3, producer_id=7)
    log.commit(("g", "overtaken", 0), 4)
    log.delete(("g", "deleted", 0))
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 5
    log.rows.clear()
    log.end_commit(7)
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 1
    live = {row["topic"]: row["committed_offset"] for row in rows_of(location, "committed_offsets")}
    assert live == {"overtaken": 4, "deleted": None, "first": 3}
    assert_as_reference(location, log_of(location))


@pytest.mark.slow
def test_reload_keeps_what_a_stream_folded_since_it_read_the_log(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R11, R16
    location = copied(empty(2), tmp_path / "store")
    store = workbench.open(location)
    log, other = LogPartition(), LogPartition(1)
    for producer_id in range(3):
        log.commit(("g", "of a transaction", producer_id), producer_id, producer_id=producer_id)
    log.commit(("g", "t", 0), 1)
    log.group(2, "classic")
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == len(log.rows)
    rounds = 0

    def overtaken(*arguments: Any) -> object:  # noqa: ANN401
        """A stream goes on when the replay has read the log; in the second round Spark writes what it brings."""
        nonlocal rounds
        summary = summarise(*arguments)
        log.rows.clear()
        other.rows.clear()
        log.end_commit(rounds)
        log.commit(("g", "t", 0), 10 + rounds)
        log.group(2, f"classic{rounds}")
        other.commit(("of another log partition", "t", 0), rounds)
        appended(location, log.rows + other.rows)
        assert fold_batch(store, store.read("log"), workbench.settings, CLOCK) == 4
        rounds += 1
        return summary

    monkeypatch.setattr(reload, "summarise", overtaken)
    workbench.reload(location)
    assert rounds == 2
    monkeypatch.undo()
    assert_as_reference(location, log_of(location))
