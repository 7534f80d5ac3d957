"""Several writers of one state: the highest record offset wins in every order of writes (R10, R15)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from offsets_pipeline.state.table_compaction import Compactor, compact, sizes_of

from offsets_pipeline.config.sections import FoldSettings
from offsets_pipeline.delta.reader import answer
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.state import fold as fold_module
from offsets_pipeline.state import table_compaction as compact_module
from offsets_pipeline.state.fold import fold_batch
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS, STATE_TABLES, StateTable
from tests.logs import LogPartition
from tests.spark.stores import (
    CLOCK,
    appended,
    assert_as_reference,
    copied,
    described_offsets,
    log_of,
    rows_of,
)
from tests.unit.state.state_files import append, before_swap, with_half_a_hash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.store import Store
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming


def fold_steps(workbench: Workbench, location: Path, steps: int) -> Store:
    """Fold commits, deletions and group records in this number of steps."""
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


def views_of(workbench: Workbench, location: Path) -> list[tuple[object, ...]]:
    """The offsets that the view answers with."""
    query = "SELECT group_id, topic, partition, committed_offset FROM current_offsets"
    return sorted(map(tuple, workbench.sql(location, query)))


def test_compacted_or_not_the_state_is_the_same(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 3)
    expected = described_offsets(location)
    assert_as_reference(location, log_of(location))
    for table in STATE_TABLES:
        assert sizes_of(store, table).delta_files == 2  # the first fold writes base files
        assert compact(store, table, driver_bytes=0 if not either_way.settings.fold.driver_rows else 2**30)
        rows = len(rows_of(location, table.name))
        assert sizes_of(store, table) == (rows, 0, 0, 0)
        assert store.read(table.name).count() == rows
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == expected


def test_views_show_no_late_row_behind_a_reload(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R10, R15
    location = copied(empty(2), tmp_path / "store")
    store = workbench.open(location)
    short, long = LogPartition(0), LogPartition(1, start=10)
    short.commit(("h", "a", 0), 0)
    for where, at in ((("g", "a", 0), 10), (("g", "a", 1), 11), (("g", "b", 0), 12)):
        assert long.commit(where, at) == at
    appended(location, [*short.rows, *long.rows])
    workbench.reload(location)  # base rows lie before record offset 1 of log partition 0 and 13 of log partition 1
    late = [
        ("g", "a", 0, 9),  # older than the base row
        ("g", "a", 1, 11),  # the base row again
        ("g", "b", 0, 20),  # newer than the base row, and a row that is older
        ("g", "b", 0, 8),
        ("g", "c", 0, 7),  # keys without a base row: before the end of the base, and on both sides of it
        ("g", "c", 1, 8),
        ("g", "c", 1, 21),
        ("h", "a", 0, 2),
    ]
    like = rows_of(location, "committed_offsets")[0]
    names = ("group_id", "topic", "partition", "record_offset")
    offsets = [dict(zip(names, row, strict=True)) for row in late]
    append(
        store,
        *(
            like
            | row
            | {"log_partition": int(row["group_id"] == "g")}
            | dict.fromkeys(("committed_offset", "position"), row["record_offset"])
            for row in offsets
        ),
    )
    groups = rows_of(location, "groups")
    dead = [row | {"record_offset": row["record_offset"] - 1, "state": "Dead"} for row in groups]
    append(store, *dead, table=DESCRIBED)
    expected = [("g", "a", 0, 10), ("g", "a", 1, 11), ("g", "b", 0, 20), ("g", "c", 0, 7), ("g", "c", 1, 21)]
    query = StateTable.newest_in_spark
    for newest_in_spark in (query, lambda *arguments: with_half_a_hash(query(*arguments))):
        monkeypatch.setattr(StateTable, "newest_in_spark", newest_in_spark)
        assert views_of(workbench, location) == [*expected, ("h", "a", 0, 2)]
        found = workbench.sql(location, "SELECT group_id, state FROM consumer_groups ORDER BY ALL")
        assert list(map(tuple, found)) == [("g", "Empty"), ("h", "Empty")]


def test_other_engines_find_each_key_once_by_the_filter_of_the_documents(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, root: Path
) -> None:
    location = copied(empty(2), tmp_path / "store")
    store = fold_steps(workbench, location, 3)
    workbench.reload(location, 0)  # another incarnation of one log partition
    for table in STATE_TABLES:
        compact(store, table, drop=False)
    text = (root / "docs" / "questions.md").read_text()
    section = text.partition("## Other engines\n")[2].partition("\n## ")[0]
    query = "\n".join(line for line in section.splitlines() if line.startswith("    "))
    assert query
    names = ("committed_offsets", "fold_progress")
    found = answer(query, {name: DeltaTable(location / name) for name in names}).read_all()
    columns = ("group_id", "topic", "partition", "committed_offset")
    rows = list(zip(*(found[name].to_pylist() for name in columns), strict=True))
    assert sorted(rows) == described_offsets(location)


def test_stream_compacts_when_delta_rows_or_files_are_many(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    store = fold_steps(workbench, copied(empty(1), tmp_path / "store"), 3)

    def compacted(settings: FoldSettings, records: int) -> list[str]:
        before = {each.name: store.version(each.name) for each in STATE_TABLES}
        compactor = Compactor(store, settings, pytest.fail)
        compactor.after_fold(records)
        compactor.close()
        return [name for name, version in before.items() if store.version(name) > version]

    few_files = FoldSettings(compact_rows=1_000, compact_files=2)
    assert compacted(few_files, 999) == []  # does not even look
    assert compacted(FoldSettings(compact_rows=1_000), 1_000) == []  # looks, and finds few
    assert compacted(few_files, 1_000) == [table.name for table in STATE_TABLES]
    assert compacted(few_files, 1_000) == []


@pytest.mark.parametrize("by", ["a fold", "a reload", "another compaction"])
def test_compaction_beside_another_writer_loses_nothing(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 2)
    log = LogPartition(0, start=100)
    log.commit(("g", "t", 0), 7)
    log.commit(("late", "t", 0), 8)
    appended(location, log.rows)
    acts: dict[str, Callable[[], object]] = {
        "a fold": lambda: workbench.fold(location),
        "a reload": lambda: workbench.reload(location),
        "another compaction": lambda: compact(store, OFFSETS),
    }
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        monkeypatch.setattr(TableFolder, "commit", whole)
        acts[by]()
        return whole(self, *arguments, **named)

    monkeypatch.setattr(TableFolder, "commit", commit)
    assert compact(store, OFFSETS) == (by != "another compaction")
    workbench.fold(location)
    assert_as_reference(location, log_of(location))
    assert compact(store, OFFSETS)
    assert_as_reference(location, log_of(location))


def test_fold_that_another_overtook_writes_late_and_changes_nothing(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    log.group(2, "classic0", generation=5)
    appended(location, log.rows)
    older = store.read("log").where("record_offset < 52").persist()
    assert older.count() == 6
    log.rows.clear()
    log.commit(("g", "t", 0), 99)
    log.delete(("g", "t", 1))
    log.group_tombstone(2, "classic0")
    appended(location, log.rows)
    append = fold_module._append

    def after_another(*arguments: Any) -> None:  # noqa: ANN401
        monkeypatch.setattr(fold_module, "_append", append)
        assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 5
        for table in STATE_TABLES:
            assert compact(store, table)
        append(*arguments)  # rows that are older than what base files hold

    monkeypatch.setattr(fold_module, "_append", after_another)
    assert fold_batch(store, older, either_way.settings, CLOCK) == 0
    assert sizes_of(store, OFFSETS).delta_rows > 0
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == [("g", "t", 0, 99)]
    for table in STATE_TABLES:
        assert compact(store, table)
    assert_as_reference(location, log_of(location))


def test_two_folds_of_the_same_rows_count_them_once(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    log.record(b"\x00\x01\x00", b"")  # corrupt
    appended(location, log.rows)
    rows = store.read("log")
    before_swap(monkeypatch, lambda: fold_batch(store, rows, workbench.settings, CLOCK))
    assert fold_batch(store, rows, workbench.settings, CLOCK) == 0
    assert_as_reference(location, log_of(location))


def test_reload_has_what_a_stream_folded_since_it_read_the_log(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R11, R16
    location = copied(empty(2), tmp_path / "store")
    store = either_way.open(location)
    log, other = LogPartition(), LogPartition(1)
    for producer_id in range(2):
        log.commit(("g", "of a transaction", producer_id), producer_id, producer_id=producer_id)
    log.commit(("g", "t", 0), 1)
    log.group(2, "classic")
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == len(log.rows)
    DeltaTable(location / "committed_offsets").update({"committed_offset": "999"})
    rounds = 0

    def a_stream_goes_on() -> None:
        nonlocal rounds
        log.rows.clear()
        other.rows.clear()
        log.end_commit(rounds)
        log.commit(("g", "t", 0), 10 + rounds)
        log.group(2, f"classic{rounds}")
        other.commit(("of another log partition", "t", 0), rounds)
        appended(location, log.rows + other.rows)
        rounds += 1
        if rounds == 1:
            before_swap(monkeypatch, lambda: None)  # the stream's own
        assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 4
        if rounds == 1:
            before_swap(monkeypatch, a_stream_goes_on)

    before_swap(monkeypatch, a_stream_goes_on)
    assert either_way.reload(location) == 4
    assert rounds == 2
    assert_as_reference(location, log_of(location))
    assert len({row["incarnation"] for row in rows_of(location, "fold_progress")}) == 1


def test_readers_see_an_incarnation_only_once_all_of_it_is_there(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(2), tmp_path / "store")
    store = fold_steps(workbench, location, 2)
    before = described_offsets(location)
    seen: list[object] = []

    def look() -> None:
        seen.extend(
            [views_of(workbench, location), {row["committed_offset"] for row in rows_of(location, OFFSETS.name)}]
        )
        for table in STATE_TABLES:  # an incarnation that is about to be named stays
            compact(store, table)

    DeltaTable(location / "committed_offsets").update({"committed_offset": "999"}, predicate="committed_offset = 1")
    altered = described_offsets(location)
    before_swap(monkeypatch, look)
    workbench.reload(location, 0)
    assert seen == [altered, {999, None}]
    assert views_of(workbench, location) == before
    assert_as_reference(location, log_of(location))
    assert {row["log_partition"]: row["incarnation"] for row in rows_of(location, "fold_progress")} == {0: 2, 1: 1}
    for table in STATE_TABLES:
        assert compact(store, table)
        assert set(DeltaTable(location / table.name).to_pyarrow_table()["incarnation"].to_pylist()) == {2}
    assert_as_reference(location, log_of(location))
    assert described_offsets(location) == before


def test_dropped_incarnation_is_removed_when_no_reader_needs_it(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 1)
    compactor = Compactor(store, FoldSettings(), pytest.fail)
    compactor.after_fold(1)
    workbench.reload(location)
    compactor.after_fold(1)
    assert sizes_of(store, OFFSETS).dropped_files == 1
    monkeypatch.setattr(compact_module, "_REST_SECONDS", 0)
    compactor.after_fold(1)
    compactor.close()
    assert sizes_of(store, OFFSETS).dropped_files == 0
    assert_as_reference(location, log_of(location))


def test_commit_that_was_overtaken_before_its_marker_came_does_not_come_back(
    either_way: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:  # R10, R11
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(either_way, location, 1)
    log = LogPartition(0, start=10)
    log.commit(("g", "overtaken", 0), 1, producer_id=7)
    log.commit(("g", "deleted", 0), 2, producer_id=7)
    log.commit(("g", "first", 0), 3, producer_id=7)
    log.commit(("g", "overtaken", 0), 4)
    log.delete(("g", "deleted", 0))
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 5
    for table in STATE_TABLES:
        assert compact(store, table)
    log.rows.clear()
    log.end_commit(7)
    appended(location, log.rows)
    assert fold_batch(store, store.read("log"), either_way.settings, CLOCK) == 1
    live = {row["topic"]: row["committed_offset"] for row in rows_of(location, "committed_offsets")}
    assert live == {"overtaken": 4, "deleted": None, "first": 3, "t": None} | {"t": live["t"]}
    assert {row[1:] for row in views_of(either_way, location)} == {("overtaken", 0, 4), ("first", 0, 3), ("t", 1, 0)}
    assert_as_reference(location, log_of(location))


def test_late_log_partition_joins_the_incarnation(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    location = copied(empty(3), tmp_path / "store")
    fold_steps(workbench, location, 1)
    log = LogPartition(2)
    log.commit(("g", "t", 0), 3)
    appended(location, log.rows)
    assert workbench.fold(location) == 1
    assert {row["incarnation"] for row in rows_of(location, "fold_progress")} == {1}
    assert_as_reference(location, log_of(location))


def test_folds_of_many_threads_lose_nothing(workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path) -> None:
    location = copied(empty(1), tmp_path / "store")
    store = fold_steps(workbench, location, 1)
    log = LogPartition(0, start=100)
    for step in range(20):
        log.commit(("g", "t", step % 3), step)
    appended(location, log.rows)
    rows = store.read("log").persist()
    patient = replace(workbench.settings, fold=FoldSettings(max_retries=50, max_backoff_ms=200))
    folded: list[int] = []

    def fold() -> None:
        folded.append(fold_batch(store, rows, patient, CLOCK))

    threads = [threading.Thread(target=fold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(folded) == [0, 0, 0, 20]
    assert_as_reference(location, log_of(location))
