"""Several writers of one state: the highest record offset wins in every order of writes (R10, R15)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.fold.state import fold as fold_module
from offsets_pipeline.fold.state import published_rows, publishing
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, STATE_TABLES
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.fold.stream import folding as publisher_module
from offsets_pipeline.fold.stream.folding import Publisher
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, GROUP_FACTS, GROUP_RECORDS, OFFSET_FACTS
from tests.logs import LogPartition
from tests.places import copied
from tests.spark.stores import CLOCK, alter, appended, assert_as_reference, described_offsets, log_of, rows_of, versions
from tests.unit.state.dying import Died, dying
from tests.unit.state.state_files import acts_before, append, before_swap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.store.store import Store
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]  # each plans the views in Spark several times


#: Log partition of the group "g" in a log of two (R1).
HOME = partition_for("g", 2)


def fold_steps(workbench: Workbench, location: Path, steps: int, log_partitions: int = 1) -> Store:
    """Fold commits, deletions and group records in this number of steps; only the first one is published."""
    store = workbench.open(location)
    logs = [LogPartition(at) for at in range(log_partitions)]
    for step in range(steps):
        for log in logs:
            log.commit(("g", "t", 0), step)
            log.commit(("g", "t", step + 1), step)
            log.delete(("g", "t", step))
            log.group(2, f"classic{step}")
        rows = [row for log in logs for row in log.rows]
        appended(location, rows)
        assert fold_log(store, workbench.settings, CLOCK) == len(rows)
        for log in logs:
            log.rows.clear()
    return store


def views_of(workbench: Workbench, location: Path) -> list[tuple[object, ...]]:
    """The offsets that the view answers with."""
    query = "SELECT group_id, topic, partition, committed_offset FROM current_offsets"
    return sorted(map(tuple, workbench.sql(location, query)))


def published(location: Path) -> list[tuple[object, ...]]:
    """The offsets as another engine reads them, in the order of the files."""
    rows = DeltaTable(location / CURRENT_OFFSETS.name).to_pyarrow_table()
    columns = ("group_id", "topic", "partition", "committed_offset")
    return sorted(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def facts(location: Path, name: str) -> int:
    return int(DeltaTable(location / name).to_pyarrow_table().num_rows)


def test_published_or_not_the_state_is_the_same(
    either_way: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(either_way, location, 3)
    expected = described_offsets(location)
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == expected != published(location)
    assert publish(store, CLOCK)
    # "t" 1 and 2 are deleted, and no group is removed: all others are answered
    assert (facts(location, OFFSET_FACTS.name), facts(location, GROUP_FACTS.name)) == (2, 0)
    assert published(location) == expected
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == expected


def test_publishing_in_tasks_writes_what_the_driver_writes(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_rows, "_FILE_ROWS", 1)  # a file for each log partition at least
    monkeypatch.setattr(publishing, "_SHARE_ROWS", 1)
    location = copied(empty(3), place / "store")
    fold_steps(workbench, location, 3, log_partitions=3)
    in_tasks = workbench.open(copied(location, place / "by tasks"))
    assert publish(workbench.open(location), CLOCK)
    group = "offsets.test.publishing"
    workbench.spark.sparkContext.setJobGroup(group, "publishing")
    monkeypatch.setattr(publishing, "_DRIVER_BYTES", 0)
    assert publish(in_tasks, CLOCK)
    jobs = workbench.spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert len(jobs) == 1
    for table in STATE_TABLES:
        for name in table.names:
            one, other = (DeltaTable(at / name).to_pyarrow_table() for at in (location, place / "by tasks"))
            order = [(column, "ascending") for column in table.key]
            assert one.sort_by(order).equals(other.sort_by(order))
    assert published(location) == described_offsets(location)
    assert_as_reference(place / "by tasks", log_of(location))


def test_views_show_no_late_row_behind_a_reload(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:  # R10, R15
    location = copied(empty(2), place / "store")
    store = workbench.open(location)
    short, long = LogPartition(0), LogPartition(1, start=10)
    short.commit(("h", "a", 0), 0)
    for where, at in ((("g", "a", 0), 10), (("g", "a", 1), 11), (("g", "b", 0), 12)):
        assert long.commit(where, at) == at
    appended(location, [*short.rows, *long.rows])
    workbench.reload(location)  # published to record offset 1 of log partition 0 and 13 of log partition 1
    late = [
        ("g", "a", 0, 9),  # older than the published row
        ("g", "a", 1, 11),  # the published row again
        ("g", "b", 0, 20),  # newer than the published row, and a fact that is older
        ("g", "b", 0, 8),
        ("g", "c", 0, 7),  # keys without a published row: before the published end, and on both sides of it
        ("g", "c", 1, 8),
        ("g", "c", 1, 21),
        ("h", "a", 0, 2),
    ]
    like = rows_of(location, OFFSETS.name)[0]
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
    groups = rows_of(location, DESCRIBED.name)
    dead = [row | {"record_offset": row["record_offset"] - 1, "state": "Dead"} for row in groups]
    append(store, *dead, table=DESCRIBED)
    expected = [("g", "a", 0, 10), ("g", "a", 1, 11), ("g", "b", 0, 20), ("g", "c", 0, 7), ("g", "c", 1, 21)]

    def assert_found(*more: tuple[str, str, int, int]) -> None:
        assert views_of(workbench, location) == sorted([*expected, ("h", "a", 0, 2), *more])
        found = workbench.sql(location, "SELECT group_id, state FROM consumer_groups ORDER BY ALL")
        assert list(map(tuple, found)) == [("g", "Empty"), ("h", "Empty")]

    assert_found()
    before = published(location)
    assert publish(store, CLOCK)
    assert published(location) == before  # no fold has come so far
    for log, group_id in ((short, "h"), (long, "g")):
        log.rows.clear()
        log.next_offset = 30
        log.commit((group_id, "d", 0), 30)
    appended(location, [*short.rows, *long.rows])
    assert fold_log(store, workbench.settings, CLOCK) == 2
    assert_found(("g", "d", 0, 30), ("h", "d", 0, 30))
    assert publish(store, CLOCK)
    assert_found(("g", "d", 0, 30), ("h", "d", 0, 30))
    assert published(location) == views_of(workbench, location)
    assert (facts(location, OFFSET_FACTS.name), facts(location, GROUP_FACTS.name)) == (0, 0)


def test_other_engines_find_each_key_once_after_a_reload_of_a_log_partition(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(2), place / "store")
    store = fold_steps(workbench, location, 3, log_partitions=2)
    workbench.reload(location, HOME)  # another incarnation of one log partition, whose rows it publishes
    assert publish(store, CLOCK)
    assert published(location) == described_offsets(location) == [("g", "t", 0, 2), ("g", "t", 3, 2)]
    assert {row["log_partition"]: row["incarnation"] for row in rows_of(location, "fold_progress")} == {0: 1, HOME: 2}


def test_publisher_compacts_facts_that_are_not_published_when_their_files_are_many(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 3)
    always = {"published_as_of"}  # it says when all was looked at last

    def written(settings: FoldSettings) -> set[str]:
        before = versions(location)
        publisher = Publisher(store, settings, CLOCK, pytest.fail)
        publisher.after_fold(1)
        publisher.finish()
        publisher.close()
        return {name for name, version in versions(location).items() if version > before[name]} - always

    few_files = FoldSettings(compact_files=1)
    assert GROUP_RECORDS.name not in written(FoldSettings(compact_files=2))
    assert written(few_files) == {GROUP_RECORDS.name}
    assert written(few_files) == set()
    assert_as_reference(location, log_of(location))


@pytest.mark.parametrize("by", ["a fold", "a reload"])
def test_views_are_right_after_a_publishing_beside_another_writer(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Each table and writer: tests/unit/state/test_publishing.py, without Spark's views."""
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 2)
    log = LogPartition(0, start=100)
    log.commit(("g", "t", 0), 7)
    log.commit(("late", "t", 0), 8)
    appended(location, log.rows)
    acts: dict[str, Callable[[], object]] = {
        "a fold": lambda: fold_log(store, workbench.settings, CLOCK),
        "a reload": lambda: workbench.reload(location),
    }
    acts_before(monkeypatch, CURRENT_OFFSETS.name, acts[by])
    publish(store, CLOCK)
    expected = [("g", "t", 0, 7), ("g", "t", 2, 1), ("late", "t", 0, 8)]
    assert views_of(workbench, location) == described_offsets(location) == expected
    workbench.fold(location)  # which publishes all
    assert_as_reference(location, log_of(location))
    assert published(location) == views_of(workbench, location) == expected


def test_views_are_right_after_a_publishing_that_died_between_its_tables(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table, and before and after its commit: tests/unit/state/test_publishing.py, without Spark's views."""
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 2)
    with monkeypatch.context() as patch:
        died = dying(CURRENT_OFFSETS.name, "after", patch)
        with pytest.raises(Died):
            publish(store, CLOCK)
    assert died == [CURRENT_OFFSETS.name]
    expected = [("g", "t", 0, 1), ("g", "t", 2, 1)]
    assert views_of(workbench, location) == described_offsets(location) == expected
    assert publish(store, CLOCK)
    assert views_of(workbench, location) == published(location) == expected


def test_fold_that_another_overtook_writes_late_and_changes_nothing(
    either_way: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(either_way, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    log.group(2, "classic0", generation=5)
    appended(location, log.rows)
    append = fold_module._Fold._append

    def after_another(*arguments: Any) -> dict[str, int]:  # noqa: ANN401
        monkeypatch.setattr(fold_module._Fold, "_append", append)
        log.rows.clear()
        log.commit(("g", "t", 0), 99)
        log.delete(("g", "t", 1))
        log.group_tombstone(2, "classic0")
        appended(location, log.rows)
        assert fold_log(store, either_way.settings, CLOCK) == 5
        assert publish(store, CLOCK)
        return append(*arguments)  # facts that are older than the published rows

    monkeypatch.setattr(fold_module._Fold, "_append", after_another)
    before = facts(location, OFFSET_FACTS.name)
    assert fold_log(store, either_way.settings, CLOCK) == 0
    assert facts(location, OFFSET_FACTS.name) > before
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == published(location) == [("g", "t", 0, 99)]
    log.rows.clear()
    log.commit(("g", "u", 0), 100)
    appended(location, log.rows)
    assert fold_log(store, either_way.settings, CLOCK) == 1
    assert publish(store, CLOCK)
    assert_as_reference(location, log_of(location))
    assert views_of(either_way, location) == published(location) == [("g", "t", 0, 99), ("g", "u", 0, 100)]


def test_two_folds_of_the_same_rows_count_them_once(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 1)
    log = LogPartition(0, start=50)
    log.commit(("g", "t", 0), 98)
    log.record(b"\x00\x01\x00", b"")  # corrupt
    appended(location, log.rows)
    before_swap(monkeypatch, lambda: fold_log(store, workbench.settings, CLOCK))
    assert fold_log(store, workbench.settings, CLOCK) == 0
    assert_as_reference(location, log_of(location))


def test_reload_has_what_a_stream_folded_since_it_read_the_log(
    either_way: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R11, R16
    location = copied(empty(2), place / "store")
    store = either_way.open(location)
    log, other = LogPartition(), LogPartition(1)
    for producer_id in range(2):
        log.commit(("g", "of a transaction", producer_id), producer_id, producer_id=producer_id)
    log.commit(("g", "t", 0), 1)
    log.group(2, "classic")
    appended(location, log.rows)
    assert fold_log(store, either_way.settings, CLOCK) == len(log.rows)
    alter(location, CURRENT_OFFSETS.name, {"committed_offset": "999"})
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
        assert fold_log(store, either_way.settings, CLOCK) == 4
        if rounds == 1:
            before_swap(monkeypatch, a_stream_goes_on)

    before_swap(monkeypatch, a_stream_goes_on)
    assert either_way.reload(location) == 4
    assert rounds == 2
    assert_as_reference(location, log_of(location))
    assert len({row["incarnation"] for row in rows_of(location, "fold_progress")}) == 1


def test_readers_see_an_incarnation_only_once_all_of_it_is_there(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(2), place / "store")
    store = fold_steps(workbench, location, 2, log_partitions=2)
    assert publish(store, CLOCK)
    before = described_offsets(location)
    seen: list[object] = []

    def look() -> None:
        offsets = {row["committed_offset"] for row in rows_of(location, OFFSETS.name) if row["log_partition"] == HOME}
        seen.extend([described_offsets(location), offsets])
        assert publish(store, CLOCK)  # rows of the incarnation that counts; the reload publishes its own again
        seen.append(published(location))

    alter(location, CURRENT_OFFSETS.name, {"committed_offset": "999"}, "committed_offset = 1")
    altered = described_offsets(location)
    assert altered != before
    before_swap(monkeypatch, look)
    workbench.reload(location, HOME)
    assert seen == [altered, {999, None}, altered]
    assert views_of(workbench, location) == published(location) == before
    assert_as_reference(location, log_of(location))
    assert {row["log_partition"]: row["incarnation"] for row in rows_of(location, "fold_progress")} == {0: 1, HOME: 2}


def test_dropped_incarnation_is_removed_when_no_reader_needs_it(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 1)

    def incarnations() -> set[int]:
        rows = DeltaTable(location / GROUP_RECORDS.name).to_pyarrow_table()
        return set(pc.unique(rows["incarnation"]).to_pylist())

    publisher = Publisher(store, FoldSettings(), CLOCK, pytest.fail)
    publisher.finish()
    workbench.reload(location)
    for _ in range(2):
        publisher.finish()
    assert incarnations() == {1, 2}
    monkeypatch.setattr(publisher_module, "_REST_SECONDS", 0)
    publisher.finish()
    assert incarnations() == {2}
    assert_as_reference(location, log_of(location))


def test_commit_that_was_overtaken_before_its_marker_came_does_not_come_back(
    either_way: Workbench, empty: Callable[[int], Path], place: Path
) -> None:  # R10, R11
    location = copied(empty(1), place / "store")
    store = fold_steps(either_way, location, 1)
    log = LogPartition(0, start=10)
    log.commit(("g", "overtaken", 0), 1, producer_id=7)
    log.commit(("g", "deleted", 0), 2, producer_id=7)
    log.commit(("g", "first", 0), 3, producer_id=7)
    log.commit(("g", "overtaken", 0), 4)
    log.delete(("g", "deleted", 0))
    appended(location, log.rows)
    assert fold_log(store, either_way.settings, CLOCK) == 5
    assert publish(store, CLOCK)
    log.rows.clear()
    log.end_commit(7)
    appended(location, log.rows)
    assert fold_log(store, either_way.settings, CLOCK) == 1
    live = {row["topic"]: row["committed_offset"] for row in rows_of(location, OFFSETS.name)}
    assert live == {"overtaken": 4, "deleted": None, "first": 3, "t": None} | {"t": live["t"]}
    assert {row[1:] for row in views_of(either_way, location)} == {("overtaken", 0, 4), ("first", 0, 3), ("t", 1, 0)}
    assert_as_reference(location, log_of(location))


def test_late_log_partition_joins_the_incarnation(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(3), place / "store")
    fold_steps(workbench, location, 1)
    log = LogPartition(2)
    log.commit(("g", "t", 0), 3)
    appended(location, log.rows)
    assert workbench.fold(location) == 1
    assert {row["incarnation"] for row in rows_of(location, "fold_progress")} == {1}
    assert_as_reference(location, log_of(location))


@pytest.mark.usefixtures("many_retries")
def test_folds_of_many_threads_lose_nothing(workbench: Workbench, empty: Callable[[int], Path], place: Path) -> None:
    location = copied(empty(1), place / "store")
    store = fold_steps(workbench, location, 1)
    log = LogPartition(0, start=100)
    for step in range(20):
        log.commit(("g", "t", step % 3), step)
    appended(location, log.rows)
    folded: list[int] = []

    def fold() -> None:
        folded.append(fold_log(store, workbench.settings, CLOCK))

    threads = [threading.Thread(target=fold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(folded) == [0, 0, 0, 20]
    assert_as_reference(location, log_of(location))
