"""What a verification says of rows that differ, by both replays, in the driver; tests/spark has more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.fold.state.verify import Verification, verify_store
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.folded_stores import new_store, opened
from tests.logs import LogPartition
from tests.places import copied, place_of
from tests.spark.stores import CLOCK, add, alter, appended, remove
from tests.unit.state.dying import Died, dying

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings


def rows(*offsets: tuple[int, int]) -> pa.Table:
    return pa.table({"partition": [at for at, _ in offsets], "committed_offset": [offset for _, offset in offsets]})


def test_all_differences_are_counted_and_the_first_five_are_shown() -> None:
    found = Verification()
    same, other = [(9, 1)], [(at, 8) for at in (5, 4, 3, 2)]
    found.compare(
        "offsets",
        ("partition",),
        rows(*same, (0, 7), (1, 7), *((at, 7) for at, _ in other)),
        rows(*same, (1, 7), (1, 7), *other, (6, 8)),
    )
    assert dict(found.differences) == {"offsets": 7}  # 0 to 6
    places = [f"offsets: partition {at}: the log gives" for at in range(5)]
    assert [each.partition(" {")[0] for each in found.examples] == places
    assert found.examples[0].endswith("the state has nothing")
    assert found.examples[1].endswith(" 2 times")


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Path:
    """A folded store of three log partitions, the last one without records. The group `h` is misplaced (R1)."""
    store = new_store(tmp_path_factory.mktemp("verified"), 3)
    log, other = LogPartition(0), LogPartition(1)
    other.group(3, "g", epoch=1)  # "g" is of log partition 1, "h" of 2
    other.group(5, "g", "m")
    other.group_tombstone(5, "g", "m")
    other.group(2, "removed")
    other.group_tombstone(2, "removed")
    other.commit(("g", "t", 0), 1)
    other.commit(("g", "t", 1), 2)
    other.delete(("g", "t", 1))
    log.commit(("h", "t", 0), 3)
    log.commit(("h", "t", 1), 4, producer_id=7)
    log.commit(("h", "t", 2), -1)
    appended(store.location, [*log.rows, *other.rows])
    assert fold_log(store, settings, CLOCK) == 11
    assert publish(store, CLOCK)
    return place_of(store.location)


@pytest.fixture
def stored(verified: Path, place: Path) -> Path:
    return copied(verified, place / "store")


def by_both(location: Path, settings: Settings) -> list[Verification]:
    """What the replay over columns and the specification find."""
    return [verify_store(opened(location), settings.fold, independent=each) for each in (False, True)]


def test_both_replays_count_the_same_and_have_the_same_digests(stored: Path, settings: Settings) -> None:
    one, other = by_both(stored, settings)
    assert one == other
    assert (one.equal, one.examples) == (True, [])
    assert (one.log_partitions, one.records, one.offsets, one.groups) == (2, 11, 3, 2)
    assert [each[:2] for each in one.digests] == [
        (at, name) for at in (0, 1) for name in ("group_facts", "offset_facts")
    ]


def test_each_fault_is_found_once_by_the_replays_that_can_see_it(stored: Path, settings: Settings) -> None:
    """The specification has no tombstones, no positions and no records of groups."""
    alter(stored, "current_offsets", {"committed_offset": "9"})  # of `g`
    add(stored, "current_offsets", {"log_partition": "2"}, "TRUE")  # the log has no records there
    remove(stored, "offset_facts", "partition = 0")
    alter(stored, "offset_facts", {"position": "1 + position"}, "partition = 2")
    remove(stored, "offset_facts", "committed_offset IS NULL")
    remove(stored, "group_records", "record_type IN (1, 5)")  # of commits the state needs no rows
    remove(stored, "group_facts", "state = 'Dead'")  # nor these
    alter(stored, "consumer_groups", {"group_epoch": "2"}, "group_id = 'g'")
    alter(stored, "fold_progress", {"folded_to": "4"}, "log_partition = 0")
    one, other = by_both(stored, settings)
    answers = {"group_facts": 1, "fold_progress": 1}
    assert dict(one.differences) == answers | {"offset_facts": 5, "group_records": 1}
    assert dict(other.differences) == answers | {"offset_facts": 3}


def test_a_log_partition_without_progress_is_a_difference(stored: Path, settings: Settings) -> None:
    remove(stored, "fold_progress", "log_partition = 2")
    for found in by_both(stored, settings):
        assert found.examples == ["fold_progress: log_partition 2: the log gives a row, the state has none"]
        assert dict(found.differences) == {"fold_progress": 1}


def test_a_cleaning_takes_tombstones_and_what_they_hide(stored: Path, settings: Settings) -> None:  # R23
    remove(stored, "offset_facts", "committed_offset IS NULL OR partition = 2")
    remove(stored, "group_records", "group_id = 'removed' OR record_type IN (3, 5)")  # that of type 3 is not hidden
    for cleaned_to, count in ((7, 2), (8, 1)):  # the tombstone has the record offset 7
        LogMetadata(opened(stored), CLOCK).cleaned({1: cleaned_to})
        found = verify_store(opened(stored), settings.fold)
        assert dict(found.differences) == {"offset_facts": count, "group_records": 1}


@pytest.mark.parametrize("upkeep", ["publishing", "reload"])
def test_facts_of_a_fold_that_died_before_it_counted_are_no_difference(
    place: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, upkeep: str
) -> None:
    store, logs = new_store(place / "store"), [LogPartition(0), LogPartition(1)]

    def append(offset: int) -> None:
        for log in logs:
            log.rows.clear()
            log.commit((next(each for each in "abcdef" if partition_for(each, 2) == log.log_partition), "t", 0), offset)
            appended(store.location, log.rows)

    append(1)
    fold_log(store, settings, CLOCK)
    append(2)
    with monkeypatch.context() as patch:
        dying("fold_progress", "before", patch)
        with pytest.raises(Died):
            fold_log(store, settings, CLOCK)
    if upkeep == "publishing":
        assert publish(store, CLOCK)
    else:
        reload_partitions(store, [0], settings, CLOCK)
    found = verify_store(opened(place / "store"), settings.fold)
    assert (found.equal, found.examples) == (True, [])
