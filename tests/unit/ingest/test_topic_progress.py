"""How a reading of a topic goes on: when it is complete, when it counts, and when it comes too late."""

from __future__ import annotations

from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction

BEGAN_MS, LONGEST_MS = 1_000_000, 60_000


def progress(anew: str | None = None, end: int = 10) -> TopicProgress:
    reading = Reading(1, {0: 0, 1: 5}, CompleteReads(BEGAN_MS), anew)
    return TopicProgress(reading, bounds(end), {0: 3, 1: None}, BEGAN_MS, LONGEST_MS)


def bounds(end: int, stable: int | None = None) -> dict[int, LogPartitionBounds]:
    return {0: LogPartitionBounds(0, end if stable is None else stable, end), 1: LogPartitionBounds(5, 5, 5)}


def read_to(**at: int) -> dict[int, FetchPosition]:
    """Ends of the query's batch: read_to(_0=5)."""
    return {int(name.removeprefix("_")): FetchPosition(offset, 3) for name, offset in at.items()}


def test_nothing_is_complete_before_all_up_to_the_high_watermark_is_read() -> None:
    reading = progress()
    reading.advance(read_to(_0=9))
    assert reading.look(BEGAN_MS + 10, bounds(10))
    assert reading.complete == CompleteReads(BEGAN_MS, None)
    assert reading.behind() == {0: 1, 1: 0}
    reading.advance(read_to(_0=10))
    assert reading.look(BEGAN_MS + 20, bounds(12))  # there is more by now
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS)
    reading.advance(read_to(_0=12))
    assert reading.look(BEGAN_MS + 30, bounds(12))
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS + 30)
    reading.advance(read_to(_0=15))  # beyond the last look
    assert reading.behind() == {0: 0, 1: 0}


def test_a_topic_that_always_grows_is_complete_as_of_an_earlier_look() -> None:
    reading = progress()
    for look in range(1, 6):  # the end of one look is read by the next
        reading.advance(read_to(_0=10 * look))
        assert reading.look(BEGAN_MS + 100 * look, bounds(10 * look + 10))
    assert reading.complete.last_ms == BEGAN_MS + 400


def test_log_partitions_that_are_read_are_complete_while_others_catch_up() -> None:
    """R36: log partition 1 has no records that the log lacks, 0 has more at each look."""
    reading = progress()
    assert reading.read_at_ms == {1: BEGAN_MS}
    reading.advance(read_to(_0=4))
    assert reading.look(BEGAN_MS + 10, bounds(12))
    assert reading.read_at_ms == {1: BEGAN_MS + 10}
    reading.advance(read_to(_0=10))
    assert reading.look(BEGAN_MS + 20, bounds(14))
    assert reading.read_at_ms == {0: BEGAN_MS, 1: BEGAN_MS + 20}


def test_the_time_of_a_log_partition_stays_while_another_catches_up_and_it_has_an_unread_record() -> None:
    reading = progress()
    assert reading.look(BEGAN_MS + 10, bounds(12))
    assert reading.look(BEGAN_MS + 20, bounds(14) | {1: LogPartitionBounds(5, 6, 6)})
    assert reading.read_at_ms == {1: BEGAN_MS + 10}


def test_batch_completes_the_log_as_of_the_look_whose_ends_it_reaches() -> None:
    """R36: so answers are as of the last append, not of the last note."""
    reading = progress()
    assert reading.complete_with(read_to(_0=9, _1=5)) is None
    assert reading.complete_with(read_to(_0=10)) is None  # log partition 1 is not in the batch
    assert reading.complete_with(read_to(_0=10, _1=5)) == BEGAN_MS
    assert reading.look(BEGAN_MS + 10, bounds(12))
    assert reading.complete_with(read_to(_0=11, _1=5)) == BEGAN_MS
    assert reading.complete_with(read_to(_0=12, _1=5)) == BEGAN_MS + 10


def test_records_of_an_open_transaction_are_to_be_read_too() -> None:
    reading = progress()
    reading.advance(read_to(_0=8))
    assert reading.look(BEGAN_MS + 10, bounds(10, stable=8))
    assert reading.complete.last_ms is None
    reading.advance(read_to(_0=10))
    assert reading.look(BEGAN_MS + 20, bounds(10, stable=8))
    assert reading.complete.last_ms == BEGAN_MS + 20


def test_leader_epoch_is_that_of_the_leader_that_had_the_records() -> None:
    reading = progress()
    assert reading.leader_epochs == {0: 3, 1: None}
    reading.advance({0: FetchPosition(8, 4)})
    reading.advance({0: FetchPosition(3, 9), 1: FetchPosition(5, 6)})
    assert reading.leader_epochs == {0: 4, 1: 6}


def test_read_position_never_moves_back() -> None:
    reading = progress()
    reading.advance(read_to(_0=8))
    reading.advance(read_to(_0=3, _1=6))
    assert reading.read_to == {0: 8, 1: 6}


def test_new_log_incarnation_counts_when_it_was_read_to_the_end() -> None:
    reading = progress("a reason")
    counted = [reading.counts]
    for now_ms, at, end in ((BEGAN_MS + 10, 9, 10), (BEGAN_MS + 20, 10, 30)):
        reading.advance(read_to(_0=at))
        reading.look(now_ms, bounds(end))
        counted.append(reading.counts)
    assert counted == [False, False, True]
    assert progress().counts  # what goes on, or is the first, counts from the beginning


def test_long_suspension_may_miss_tombstones_although_all_was_read_since() -> None:
    reading = progress()
    reading.advance(read_to(_0=10))
    assert reading.look(BEGAN_MS + LONGEST_MS, bounds(10))
    asleep_ms = BEGAN_MS + 2 * LONGEST_MS + 1  # after the look before
    reading.advance(read_to(_0=20))
    assert not reading.look(asleep_ms, bounds(20))
    assert reading.complete.last_ms == BEGAN_MS + LONGEST_MS  # so the store is not told otherwise
    assert not reading.look(asleep_ms + 1, bounds(20))


def test_a_first_reading_that_takes_too_long_has_missed_tombstones() -> None:
    assert not progress().look(BEGAN_MS + LONGEST_MS + 1, bounds(10))


def opened(started_ms: int | None, last_write_ms: int) -> OpenTransaction:
    return OpenTransaction(0, 7, 10, last_write_ms, "id", started_ms)


def test_age_of_a_transaction_comes_from_the_broker_or_the_unmoved_stable_offset() -> None:
    reading = progress()
    reading.look(BEGAN_MS + 1, bounds(12, 10), [opened(BEGAN_MS - 500, BEGAN_MS)])
    assert reading.open_since_ms == {0: BEGAN_MS - 500}
    assert reading.open_ids == {0: (7, "id")}
    reading.look(BEGAN_MS + 1, bounds(12, 10), [opened(None, BEGAN_MS - 20)])  # the broker does not tell its start
    assert reading.open_since_ms == {0: BEGAN_MS - 20}
    reading.look(BEGAN_MS + 2, bounds(13, 10), None)
    assert reading.open_since_ms == {0: BEGAN_MS + 1}
    assert reading.open_ids == {}
    reading.look(BEGAN_MS + 3, bounds(13, 11), None)  # another transaction
    assert reading.open_since_ms == {0: BEGAN_MS + 3}
    reading.look(BEGAN_MS + 4, bounds(13, 13), None)
    assert reading.open_since_ms == {}
    reading.look(BEGAN_MS + 5, bounds(14, 13), [])  # ended between two requests
    assert reading.open_since_ms == {}


def test_the_log_is_not_complete_while_a_log_partition_has_no_leader() -> None:
    """R36: log partition 0 goes on, 1 may have records that no broker can tell."""
    reading = progress()
    reading.advance(read_to(_0=10, _1=5))
    assert reading.look(BEGAN_MS + 10, bounds(10))
    led = {0: LogPartitionBounds(0, 12, 12)}
    assert reading.look(BEGAN_MS + 20, led)
    assert (reading.bounds, reading.behind()) == (led | {1: bounds(12)[1]}, {0: 2, 1: 0})
    assert reading.without_leader == {1}
    assert reading.complete_with(read_to(_0=12, _1=5)) is None
    reading.advance(read_to(_0=12))
    assert reading.look(BEGAN_MS + 30, led)
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS + 10)
    assert reading.read_at_ms == {0: BEGAN_MS + 30, 1: BEGAN_MS + 10}
    assert reading.look(BEGAN_MS + 40, bounds(14))
    reading.advance(read_to(_0=14))
    assert reading.look(BEGAN_MS + 50, bounds(16))  # it has a leader again, and the other one grows at each look
    assert reading.complete == CompleteReads(BEGAN_MS, BEGAN_MS + 40)
