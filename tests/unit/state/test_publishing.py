"""Publishing without Spark: what is answered goes to the published tables, each key once (docs/adr/0037)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state import published_rows, publishing
from offsets_pipeline.fold.state.derived_tables import write_derived
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.fold_progress import REMOVED_BY, FoldProgress, PartitionProgress
from offsets_pipeline.fold.state.merge_on_read import OFFSETS, RECORDS
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.fold.state.stored_rows import log_partitions_in
from offsets_pipeline.fold.state.unfolded import unfolded_records
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.data_file import APPLICATION, DataFile
from offsets_pipeline.store.delta.schemas import CONSUMER_GROUPS, CURRENT_OFFSETS, GROUP_MEMBERS, TABLES
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from tests.folded_stores import new_store, opened
from tests.logs import LogPartition
from tests.parameters import crossed
from tests.places import copied, place_of
from tests.published import KEYS, assert_published, read, read_as_of
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, rows_of
from tests.unit.state.dying import TOPIC_ID, Died, busy_log, dying
from tests.unit.state.state_files import acts_before, append, before_swap, offset, offsets, progress_of, published, swap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.store import Store

HOME = partition_for("h", 2)
#: In the order in which a publishing writes.
WRITTEN = [
    *("consumer_groups", "current_offsets", "group_members", "unstable_offsets"),
    *("fold_progress", "group_facts", "offset_facts", "published_as_of"),
]


def folded(store: Store, *ends: int) -> None:
    """Note that the log partitions are folded to these ends."""
    progress = progress_of(store).partitions
    swap(
        store,
        {
            at: replace(progress.get(at, PartitionProgress(at, incarnation=1)), folded_to=end)
            for at, end in enumerate(ends)
        },
    )


def files_of(store: Store, name: str) -> list[DataFile]:
    """The files of a table, by their first log partition."""
    return sorted(store.table(name).snapshot().files(), key=lambda file: int(file.lowest.get("log_partition", 0)))


def rows_in(store: Store, name: str) -> list[dict[str, Any]]:
    """All rows of a table, as any reader of Delta tables finds them."""
    rows: list[dict[str, Any]] = DeltaTable(f"{store.location}/{name}").to_pyarrow_table().to_pylist()
    return rows


def actions_of(store: Store, name: str, version: int | None = None) -> list[dict[str, Any]]:
    """The files that a commit to a table added and removed, by default the last one."""
    number = store.version(name) if version is None else version
    commit = place_of(store.location, name, "_delta_log", f"{number:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    return [action[kind] for action in actions for kind in ("add", "remove") if kind in action]


def test_late_facts_behind_a_publishing_change_nothing_and_newer_ones_count(store: Store) -> None:  # R10, R15
    folded(store, 50, 50)
    append(store, offset("a0", 10), offset("a1", 20), offset("a2", 30))
    assert publish(store, CLOCK)
    first = [("a0", 10, 10), ("a1", 20, 20), ("a2", 30, 30)]
    assert offsets(store) == published(store.location) == first
    append(store, offset("a0", 9), offset("a1", 20))
    assert offsets(store) == first
    folded(store, 60, 50)
    append(store, offset("a2", 51), offset("b0", 4))
    assert offsets(store) == [("a0", 10, 10), ("a1", 20, 20), ("a2", 51, 51), ("b0", 4, 4)]
    assert published(store.location) == first
    append(store, offset("a2", 29), offset("b0", 52), offset("a0", 53, is_tombstone=True))
    last = [("a0", 53, None), ("a1", 20, 20), ("a2", 51, 51), ("b0", 52, 52)]
    assert offsets(store) == last
    assert publish(store, CLOCK)
    assert published(store.location) == last[1:]
    assert [row["record_offset"] for row in rows_in(store, OFFSETS.name)] == [53]
    assert offsets(store) == last


def test_facts_of_a_fold_that_has_not_ended_are_not_published_and_stay(store: Store) -> None:
    folded(store, 50, 50)
    append(store, offset("a0", 10), offset("a1", 49), folded_to=50)
    append(store, offset("a0", 55), offset("b0", 49), folded_to=60)  # this fold read the log to its end, 60
    assert publish(store, CLOCK)
    assert published(store.location) == [("a0", 10, 10), ("a1", 49, 49)]
    assert sorted(row["folded_to"] for row in rows_in(store, OFFSETS.name)) == [60, 60]
    folded(store, 60, 50)
    assert offsets(store) == [("a0", 55, 55), ("a1", 49, 49), ("b0", 49, 49)]
    assert publish(store, CLOCK)
    assert published(store.location) == [("a0", 55, 55), ("a1", 49, 49), ("b0", 49, 49)]


def test_streams_that_read_facts_skip_a_publishing(store: Store) -> None:
    folded(store, 50, 50)
    append(store, offset("a0", 10), offset("a1", 11, is_tombstone=True))
    assert publish(store, CLOCK)
    version = store.version(OFFSETS.name)
    changes = [*actions_of(store, OFFSETS.name, version - 1), *actions_of(store, OFFSETS.name, version)]
    assert [each["dataChange"] for each in changes] == [False, False]  # what stays is added before what goes
    # so an older progress, which does not name the published rows, does not belong to the facts
    assert store.table(OFFSETS.name).snapshot().transaction(REMOVED_BY) == progress_of(store).number


def test_log_partitions_that_were_not_folded_since_keep_their_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_rows, "_FILE_ROWS", 1)
    folded(store, 50, 50)
    append(store, offset("a0", 10), offset("a0", 3, log_partition=1))
    assert publish(store, CLOCK)
    before = files_of(store, CURRENT_OFFSETS.name)
    assert [file.rows for file in before] == [1, 1]
    folded(store, 50, 60)
    append(store, offset("a1", 55, log_partition=1))
    assert publish(store, CLOCK)
    after = files_of(store, CURRENT_OFFSETS.name)
    assert [file.lowest["log_partition"] for file in after] == [0, 1, 1]
    assert [file.name for file in before if file in after] == [before[0].name]
    assert publish(store, CLOCK)
    assert files_of(store, CURRENT_OFFSETS.name) == after  # nothing was folded


@pytest.mark.parametrize("share_rows", [1, 3, 100])
def test_many_rows_are_published_a_share_of_log_partitions_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, share_rows: int
) -> None:
    monkeypatch.setattr(publishing, "_SHARE_ROWS", share_rows)
    monkeypatch.setattr(published_rows, "_FILE_ROWS", 2)
    held = {0: 2, 1: 5, 2: 1, 3: 1}
    for turn in range(1, 3):
        folded(store, *[50 * turn] * 4)
        rows = (
            offset(f"a{place}", 50 * turn - 10 + place, log_partition=at)
            for at, count in held.items()
            for place in range(count)
        )
        append(store, *rows, folded_to=50 * turn)
        assert publish(store, CLOCK)
        found = [(row["log_partition"], row["partition"]) for row in rows_in(store, CURRENT_OFFSETS.name)]
        assert sorted(found) == [(at, place) for at, count in held.items() for place in range(count)]
        assert {row["record_offset"] // 50 for row in rows_in(store, CURRENT_OFFSETS.name)} == {turn - 1}
        assert rows_in(store, OFFSETS.name) == []


@pytest.mark.parametrize(
    ("behind", "shares"), [(range(6), [[0, 1], [2], [3, 4], [5]]), ([1, 4], [[1], [3, 4]]), ([], [])]
)
def test_a_share_has_log_partitions_that_share_a_file_and_no_more_rows_than_fit(
    monkeypatch: pytest.MonkeyPatch, behind: Collection[int], shares: list[list[int]]
) -> None:
    monkeypatch.setattr(publishing, "_SHARE_ROWS", 4)
    files = [
        DataFile("", 1, rows, {"log_partition": first}, {"log_partition": last})
        for first, last, rows in ((0, 0, 2), (1, 1, 2), (2, 2, 1), (3, 4, 4), (4, 4, 1))
    ]
    assert publishing._shares(files, behind, range(6)) == shares


@pytest.fixture(scope="module")
def busy_store(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Path:
    """A store with something for every table in both log partitions, published, and folded on since."""
    store = new_store(tmp_path_factory.mktemp("busy"))
    for number, part in enumerate(busy_log(7)):
        appended(store.location, [row._replace(log_partition=at) for at in (0, 1) for row in part.rows])
        fold_log(store, settings, CLOCK)
        if number == 3:
            assert publish(store, CLOCK)
    return place_of(store.location)


@pytest.fixture
def busy(busy_store: Path, place: Path) -> Store:
    """A copy of that store."""
    return opened(copied(busy_store, place))


@pytest.mark.parametrize(("table", "when"), crossed(WRITTEN, ["before", "after"]))
def test_publishing_that_dies_at_any_write_hides_nothing_and_runs_again(busy: Store, table: str, when: str) -> None:
    log, expected = log_of(busy.location), offsets(busy)
    assert len(expected) > 5
    with pytest.MonkeyPatch.context() as patch:
        died = dying(table, when, patch)
        with pytest.raises(Died):
            publish(busy, CLOCK)
    assert died == [table]
    assert offsets(busy) == expected
    assert_as_reference(busy.location, log)
    assert publish(busy, CLOCK)
    assert offsets(busy) == expected
    assert_as_reference(busy.location, log)
    assert_published(busy.location, log, 2)
    assert read_as_of(busy.location)["current_offsets"] == progress_of(busy).folded_to


@pytest.mark.parametrize(("table", "when"), crossed(WRITTEN, ["before", "after"]))
def test_publishing_that_dies_at_any_write_loses_no_offset_of_a_group_that_is_gone(
    store: Store, settings: Settings, table: str, when: str
) -> None:
    """Such an offset was published alone, and answers again once the group has a commit (R14)."""
    log = LogPartition(partition_for("g", 2))
    other = next(name for name in "hijkl" if partition_for(name, 2) == log.log_partition)
    log.commit(("g", "t", 0), 7)
    log.group(2, "g")
    fold_rows(store, log, settings)
    assert publish(store, CLOCK)
    assert rows_in(store, OFFSETS.name) == []
    log.group_tombstone(2, "g")
    log.commit((other, "t", 0), 8)
    fold_rows(store, log, settings)
    with pytest.MonkeyPatch.context() as patch:
        dying(table, when, patch)
        with suppress(Died):
            publish(store, CLOCK)
    assert publish(store, CLOCK)
    assert_as_reference(store.location, log_of(store.location))
    assert [row["group_id"] for row in read(store.location, CURRENT_OFFSETS.name)] == [other]
    log.commit(("g", "u", 0), 9)
    fold_rows(store, log, settings)
    assert publish(store, CLOCK)
    assert_as_reference(store.location, log_of(store.location))
    assert [row["committed_offset"] for row in read(store.location, CURRENT_OFFSETS.name)] == [7, 9, 8]


def fold_rows(store: Store, log: LogPartition, settings: Settings) -> None:
    """Append rows and fold them."""
    appended(store.location, log.rows)
    log.rows.clear()
    fold_log(store, settings, CLOCK)


@pytest.mark.on_s3
def test_published_tables_have_what_is_specified(busy: Store) -> None:
    assert publish(busy, CLOCK)
    found = {name: read(busy.location, name) for name in KEYS}
    assert all(found.values())  # the log has something for each
    assert_published(busy.location, log_of(busy.location), 2)


def test_second_publishing_of_the_same_folds_writes_no_rows(busy: Store) -> None:
    assert publish(busy, CLOCK)
    before = {each.name: busy.version(each.name) for each in TABLES}
    assert publish(busy, FixedClock(CLOCK.now_ms() + 1_000))
    after = {each.name: busy.version(each.name) for each in TABLES}
    assert {name for name, version in after.items() if version != before[name]} == {"published_as_of"}


def test_second_of_two_publishings_of_one_version_leaves_the_first(
    busy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts_before(monkeypatch, CURRENT_OFFSETS.name, lambda: publish(busy, CLOCK))
    assert not publish(busy, CLOCK)
    for _ in range(2):
        assert_as_reference(busy.location, log_of(busy.location))
        assert_published(busy.location, log_of(busy.location), 2)
        assert publish(busy, CLOCK)


@pytest.mark.parametrize(
    ("table", "beside"),
    crossed(WRITTEN, ["a fold", "a reload", "a reload of one log partition", "another publishing"]),
)
def test_publishing_beside_another_writer_loses_nothing(
    busy: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, table: str, beside: str
) -> None:
    log = LogPartition(HOME, start=200)
    log.commit(("h", "late", 0), 8)
    log.delete(("simple", "t", 0))
    log.group_tombstone(3, "members")
    appended(busy.location, log.rows)
    acts: dict[str, Callable[[], object]] = {
        "a fold": lambda: fold_log(busy, settings, CLOCK),
        "a reload": lambda: reload_partitions(busy, None, settings, CLOCK),
        "a reload of one log partition": lambda: reload_partitions(busy, [HOME], settings, CLOCK),
        "another publishing": lambda: publish(busy, CLOCK),
    }
    acts_before(monkeypatch, table, acts[beside])
    publish(busy, CLOCK)
    fold_log(busy, settings, CLOCK)
    assert_as_reference(busy.location, log_of(busy.location))
    assert publish(busy, CLOCK)
    assert_as_reference(busy.location, log_of(busy.location))
    assert_published(busy.location, log_of(busy.location), 2)
    assert ("late", 0) in {(row["topic"], row["partition"]) for row in rows_in(busy, "current_offsets")}


def test_reload_beside_a_publishing_loses_nothing(
    busy: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_swap(monkeypatch, lambda: publish(busy, CLOCK))
    reload_partitions(busy, None, settings, CLOCK)
    assert progress_of(busy).incarnations == {0: 2, 1: 2}
    assert_published(busy.location, log_of(busy.location), 2)
    assert_as_reference(busy.location, log_of(busy.location))


def test_reload_that_loses_a_race_between_its_published_tables_keeps_the_rows_of_the_first(
    busy: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publishes() -> None:
        groups = busy.table(CONSUMER_GROUPS.name)
        seen = groups.snapshot()
        groups.commit(seen=seen, advance={APPLICATION: seen.transaction(APPLICATION) + 1})

    acts_before(monkeypatch, CONSUMER_GROUPS.name, publishes)
    reload_partitions(busy, None, settings, CLOCK)
    assert publish(busy, CLOCK)
    assert_published(busy.location, log_of(busy.location), 2)
    assert_as_reference(busy.location, log_of(busy.location))


def test_publishing_leaves_the_facts_if_folds_always_come_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folded(store, 50, 50)
    append(store, offset("a0", 10), offset("a0", 11))

    def overtaken(*_: object) -> None:
        raise WriteConflict("a fold came first")

    before = store.version(OFFSETS.name)
    with monkeypatch.context() as patch:
        patch.setattr(FoldProgress, "replace", overtaken)
        assert not publish(store, CLOCK)
    assert store.version(OFFSETS.name) == before
    assert offsets(store) == published(store.location) == [("a0", 11, 11)]


def test_dropping_leaves_incarnations_that_count_and_those_that_will_be_named(store: Store) -> None:
    swap(store, {at: PartitionProgress(at, incarnation=2, folded_to=50) for at in (0, 1)})
    for incarnation in (1, 2, 3):
        append(store, offset("a0", 10 * incarnation), incarnation=incarnation)
    drop_replaced(store, progress_of(store))
    assert [each["dataChange"] for each in actions_of(store, OFFSETS.name)] == [False]  # a feed of facts skips it
    assert {file.partition["incarnation"] for file in files_of(store, OFFSETS.name)} == {"2", "3"}
    assert offsets(store) == [("a0", 20, 20)]


def test_a_file_without_bounds_may_have_rows_of_every_log_partition() -> None:
    known = DataFile("a", 1, 1, {"log_partition": 2}, {"log_partition": 4})
    assert log_partitions_in(known) == {2, 3, 4}
    for unknown in (replace(known, lowest={}), replace(known, highest={})):
        assert {0, 2, 4, 49_999} <= log_partitions_in(unknown)


@pytest.mark.parametrize(
    ("counts", "files"),
    [
        ([1, 1, 1, 1], [[0, 1], [2, 3]]),
        ([3], [[0, 0, 0]]),
        ([4], [[0, 0], [0, 0]]),
        ([2, 5, 1, 1], [[0, 0], [1, 1], [1, 1], [1], [2, 3]]),
        ([], []),
    ],
)
def test_files_have_whole_log_partitions_and_large_ones_several_files(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], files: list[list[int]]
) -> None:
    monkeypatch.setattr(published_rows, "_FILE_ROWS", 2)
    written: list[list[int]] = []
    folder: Any = SimpleNamespace(write_file=lambda rows: written.append(rows["log_partition"].to_pylist()))
    held = [at for at, count in enumerate(counts) for _ in range(count)]
    published_rows.write_published(folder, pa.table({"log_partition": pa.array(held, pa.int32())}))
    assert written == files


def test_facts_that_are_never_published_are_compacted_if_their_files_are_many(busy: Store) -> None:
    def files() -> int:
        return len(files_of(busy, RECORDS.name))

    before = rows_of(busy.location, RECORDS.name)
    assert files() > 3
    compact_facts(busy, progress_of(busy), most_files=files())
    assert files() > 3
    compact_facts(busy, progress_of(busy), most_files=3)
    assert files() == 1
    assert [each["dataChange"] for each in actions_of(busy, RECORDS.name)].count(True) == 0
    assert len(rows_in(busy, RECORDS.name)) == len(before)
    assert rows_of(busy.location, RECORDS.name) == before
    assert_as_reference(busy.location, log_of(busy.location))


def test_compacted_facts_of_many_rows_are_files_of_some_log_partitions_each(
    busy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(busy.location, RECORDS.name)
    assert len(before) >= 4
    monkeypatch.setattr(publishing, "_SHARE_ROWS", len(before) // 2)
    rows = sum(file.rows for file in files_of(busy, RECORDS.name))
    small = len(files_of(busy, RECORDS.name)) - rows // (len(before) // 2) - 1
    for most, expected in ((small, small + rows // (len(before) // 2) + 1), (small - 1, 2)):
        compact_facts(busy, progress_of(busy), most_files=most)
        assert len(files_of(busy, RECORDS.name)) == expected
    assert [(each.lowest["log_partition"], each.highest["log_partition"]) for each in files_of(busy, RECORDS.name)] == [
        (0, 0),
        (1, 1),
    ]
    assert rows_of(busy.location, RECORDS.name) == before


def test_names_of_topics_that_come_later_are_published(store: Store, settings: Settings) -> None:  # R35
    log = LogPartition(HOME)
    topic_id = TOPIC_ID.format(1)
    log.group(3, "h", epoch=1)
    log.group(5, "h", "m", client_id="c", client_host="x")
    log.group(8, "h", "m", member_epoch=1, assigned_partitions=[{"topic_id": topic_id, "partitions": [4]}])
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    assert publish(store, CLOCK)
    assert [(row["topic"], row["partition"]) for row in rows_in(store, "group_members")] == [(topic_id, 4)]
    log.rows.clear()
    log.commit(("h", "named", 4), 1, version=4, topic_id=topic_id)
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    assert publish(store, CLOCK)
    assert [(row["topic"], row["partition"]) for row in rows_in(store, "group_members")] == [("named", 4)]


def test_published_as_of_says_when_it_was_published(busy: Store) -> None:
    for later_ms in (5_000, 9_000):
        assert publish(busy, FixedClock(CLOCK.now_ms() + later_ms))
        found = {row["published_at"] for row in read(busy.location, "published_as_of")}
        assert found == {(CLOCK.now_ms() + later_ms) * 1_000}


def test_members_are_those_of_the_groups_that_the_publishing_wrote(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload puts its rows into `consumer_groups` right behind it, and dies before they count."""
    log = LogPartition(partition_for("g", 2))

    def put() -> None:
        appended(store.location, log.rows)
        log.rows.clear()

    log.group(3, "g")
    log.group(5, "g", "m1")
    put()
    fold_log(store, settings, CLOCK)
    publish(store, CLOCK)
    log.group(5, "g", "m2")
    put()
    fold_log(store, settings, CLOCK)
    for member in ("m1", "m2"):
        log.group_tombstone(5, "g", member)
    put()  # not folded yet

    def beside_a_reload(*arguments: Any, **options: Any) -> dict[str, int]:  # noqa: ANN401
        monkeypatch.setattr(publishing, "write_derived", write_derived)
        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(FoldProgress, "replace", die)
            reload_partitions(store, None, settings, CLOCK)
        return write_derived(*arguments, **options)

    def die(*_: object, **__: object) -> None:
        raise Died

    monkeypatch.setattr(publishing, "write_derived", beside_a_reload)
    for _ in range(2):
        publish(store, CLOCK)
        assert sorted(row["member_id"] for row in read(store.location, GROUP_MEMBERS.name)) == ["m1", "m2"]


def test_the_data_time_of_a_published_table_is_not_that_of_a_look_after_it(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`follow` appends records and notes its look at the topic between two reads of the publishing (R38)."""
    logs = [LogPartition(0), LogPartition(1)]

    def followed(committed_ms: int, read_ms: int) -> None:
        for log in logs:
            log.commit(("g", "t", 0), 1, commit_timestamp=committed_ms)
        appended(store.location, [row for log in logs for row in log.rows[-1:]])
        known = {name: len(log.rows) for name in ("end_offset", "topic_end_offset", "stable_offset")}
        given: dict[str, Any] = {**dict.fromkeys(TopicRead._fields), **known, "start_offset": 0, "complete_since_ms": 0}
        LogMetadata(store, CLOCK).read(dict.fromkeys(range(2), TopicRead(**given | {"read_at_ms": read_ms})))

    followed(CLOCK.now_ms() - 60_000, CLOCK.now_ms() - 50_000)
    fold_log(store, settings, CLOCK)

    def meanwhile(*arguments: Any) -> Any:  # noqa: ANN401
        found = unfolded_records(*arguments)
        followed(CLOCK.now_ms() - 20_000, CLOCK.now_ms() - 1_000)
        return found

    monkeypatch.setattr("offsets_pipeline.fold.state.derived_tables.unfolded_records", meanwhile)
    assert publish(store, CLOCK)
    assert {row["data_time"] for row in read(store.location, "published_as_of")} == {(CLOCK.now_ms() - 50_000) * 1_000}
