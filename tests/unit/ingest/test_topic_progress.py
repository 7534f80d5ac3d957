"""How a reading of a topic goes on: when it is complete, when it counts, and when it comes too late."""

from __future__ import annotations

from offsets_pipeline.broker.log_offsets import Bounds
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress

BEGAN_MS, LONGEST_MS = 1_000_000, 60_000


def progress(anew: str | None = None, stable: int = 10) -> TopicProgress:
    reading = Reading(1, {0: 0, 1: 5}, CompleteReads(BEGAN_MS), anew)
    return TopicProgress(reading, bounds(stable), BEGAN_MS, LONGEST_MS)


def bounds(stable: int, end: int | None = None) -> dict[int, Bounds]:
    return {0: Bounds(0, stable, end or stable), 1: Bounds(5, 5, 5)}


def test_nothing_is_complete_before_all_that_was_stable_is_read() -> None:
    reading = progress()
    reading.advance({0: 9})
    assert reading.look(BEGAN_MS + 10, bounds(10))
    assert reading.complete == CompleteReads(BEGAN_MS, None)
    reading.advance({0: 10})
    assert reading.look(BEGAN_MS + 20, bounds(12))  # there is more by now
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS)
    reading.advance({0: 12})
    assert reading.look(BEGAN_MS + 30, bounds(12))
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS + 30)


def test_a_topic_that_always_grows_is_complete_as_of_an_earlier_look() -> None:
    reading = progress()
    for look in range(1, 6):  # what was stable at one look is read by the next
        reading.advance({0: 10 * look})
        assert reading.look(BEGAN_MS + 100 * look, bounds(10 * look + 10))
    assert reading.complete.last_ms == BEGAN_MS + 400


def test_read_position_never_moves_back() -> None:
    reading = progress()
    reading.advance({0: 8})
    reading.advance({0: 3, 1: 6})
    assert reading.read_to == {0: 8, 1: 6}


def test_new_log_incarnation_counts_when_it_was_read_to_the_end() -> None:
    reading = progress("a reason")
    counted = [reading.counts]
    for now_ms, read_to, stable in ((BEGAN_MS + 10, 9, 10), (BEGAN_MS + 20, 10, 30)):
        reading.advance({0: read_to})
        reading.look(now_ms, bounds(stable))
        counted.append(reading.counts)
    assert counted == [False, False, True]
    assert progress().counts  # what goes on, or is the first, counts from the beginning


def test_long_suspension_may_miss_tombstones_although_all_was_read_since() -> None:
    reading = progress()
    reading.advance({0: 10})
    assert reading.look(BEGAN_MS + LONGEST_MS, bounds(10))
    asleep_ms = BEGAN_MS + 2 * LONGEST_MS + 1  # after the look before
    reading.advance({0: 20})
    assert not reading.look(asleep_ms, bounds(20))
    assert reading.complete.last_ms == BEGAN_MS + LONGEST_MS  # so the store is not told otherwise
    assert not reading.look(asleep_ms + 1, bounds(20))


def test_a_first_reading_that_takes_too_long_has_missed_tombstones() -> None:
    assert not progress().look(BEGAN_MS + LONGEST_MS + 1, bounds(10))


def test_age_of_a_transaction_comes_from_the_broker_or_the_unmoved_stable_offset() -> None:
    reading = progress()
    reading.look(BEGAN_MS + 1, bounds(10, 12), {0: BEGAN_MS - 500})
    assert reading.open_since_ms == {0: BEGAN_MS - 500}
    reading.look(BEGAN_MS + 2, bounds(10, 13), None)
    assert reading.open_since_ms == {0: BEGAN_MS + 1}
    reading.look(BEGAN_MS + 3, bounds(11, 13), None)  # another transaction
    assert reading.open_since_ms == {0: BEGAN_MS + 3}
    reading.look(BEGAN_MS + 4, bounds(13, 13), None)
    assert reading.open_since_ms == {}
    reading.look(BEGAN_MS + 5, bounds(13, 14), {})  # ended between two questions
    assert reading.open_since_ms == {}
