"""The metadata that a store keeps of the topic that it follows. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.config import Settings
from offsets_pipeline.ingest.topic import topic_watch
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicDescription
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, KnownLog, Reading, plan_reading
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.folded_stores import new_store, opened
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOW_MS, DAY_MS = CLOCK.now_ms(), 86_400_000
AS_IT_STANDS = {at: LogPartitionBounds(10, 20, 20) for at in range(5)}


@pytest.fixture
def store(place: Path) -> Path:
    new_store(place / "store", 5)
    return place / "store"


def notes_of(store: Path, heard: list[str] | None = None) -> TopicWatch:
    warnings = [] if heard is None else heard
    return TopicWatch(opened(store), "the-topic", Settings(), CLOCK, TopicObserver(), warnings.append)


def progress(bounds: Mapping[int, LogPartitionBounds] = AS_IT_STANDS, log_incarnation: int = 0) -> TopicProgress:
    reading = Reading(log_incarnation, {at: each.start for at, each in bounds.items()}, CompleteReads(NOW_MS - 1000))
    return TopicProgress(reading, bounds, dict.fromkeys(bounds, 3), NOW_MS - 1000, DAY_MS)


def read_to(offset: int) -> dict[int, FetchPosition]:
    return {at: FetchPosition(offset, 4) for at in range(5)}


def test_first_reading_resumes_until_it_is_complete(store: Path) -> None:
    notes, reading = notes_of(store), progress()
    assert notes.known() == KnownLog(5, 0, {})
    notes.note(reading)
    begun = notes.known()
    assert begun == KnownLog(
        5, 0, {}, dict.fromkeys(range(5), 10), dict.fromkeys(range(5), 3), CompleteReads(NOW_MS - 1000, None)
    )
    assert {(each.read_at, each.stable) for each in log_info(StateReader(str(store)))} == {(None, 20)}
    topic = TopicDescription("c", "id", 5)
    assert plan_reading(begun, "id", topic, AS_IT_STANDS, {}, DAY_MS, NOW_MS).anew is None
    assert not notes.is_due(reading)
    reading.advance(read_to(20))
    reading.look(NOW_MS, AS_IT_STANDS)
    assert notes.is_due(reading)  # the mirror is complete: from now on it may be late
    notes.note(reading)
    assert not notes.is_due(reading)
    complete = CompleteReads(NOW_MS - 1000, NOW_MS)
    assert notes.known() == KnownLog(5, 0, {}, dict.fromkeys(range(5), 20), dict.fromkeys(range(5), 4), complete)


def test_a_note_is_due_after_the_interval(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(topic_watch, "time", SimpleNamespace(monotonic=lambda: now))
    notes, reading = notes_of(store), progress()
    assert notes.is_due(reading)
    notes.note(reading)
    now += 29.875  # of 30 seconds
    assert not notes.is_due(reading)
    now += 0.125
    assert notes.is_due(reading)


def test_names_of_topics_are_written_when_they_change(store: Path) -> None:
    notes, versions = notes_of(store), []
    for names in ({"A" * 22: "t"}, {"A" * 22: "t"}, {"A" * 22: "s", "B" * 22: "u"}, {"B" * 22: "u"}):
        notes.names(names)
        versions.append(opened(store).version("topics"))
    assert [after - versions[0] for after in versions] == [0, 0, 1, 1]
    assert StateReader(str(store)).topic_names() == {"A" * 22: "s", "B" * 22: "u"}


def test_log_info_names_the_open_transaction_and_no_topic_end_below_the_log_end(store: Path) -> None:
    notes, reading = notes_of(store), progress()
    transaction = OpenTransaction(2, 7, 12, NOW_MS - 60_000, "mine", NOW_MS - 90_000)
    reading.look(NOW_MS, AS_IT_STANDS | {2: LogPartitionBounds(10, 12, 20)}, [transaction])
    notes.note(reading)
    info = log_info(StateReader(str(store)))
    assert info[2].open_since == shown_time(NOW_MS - 90_000)
    assert [(each.open_producer_id, each.open_transactional_id) for each in info] == [
        (None, None),
        (None, None),
        (7, "mine"),
        (None, None),
        (None, None),
    ]
    assert [each.topic_end for each in info] == [20] * 5
    LogMetadata(opened(store), CLOCK).bounds({1: (10, 33)})  # the log has grown since
    assert [(each.end, each.topic_end) for each in log_info(StateReader(str(store)))[1:3]] == [(33, 33), (10, 20)]
    reading.look(NOW_MS + 1, AS_IT_STANDS, [])
    notes.note(reading)
    assert {(each.open_since, each.open_producer_id) for each in log_info(StateReader(str(store)))} == {(None, None)}


def test_log_start_beyond_the_last_read_offset_is_a_gap(store: Path) -> None:
    notes, reading = notes_of(store), progress()
    reading.advance(read_to(15))
    moved = AS_IT_STANDS | {3: LogPartitionBounds(18, 20, 20)}
    reading.look(NOW_MS, moved)
    notes.note(reading)
    assert notes.known().read_to == dict.fromkeys(range(5), 15)
    assert [each.start for each in log_info(StateReader(str(store)))] == [10, 10, 10, 15, 10]
    found = plan_reading(notes.known(), "id", TopicDescription("c", "id", 5), moved, {}, DAY_MS, NOW_MS)
    assert "log partition 3 now starts at 18, but was read up to 15" in str(found.anew)


def test_reader_of_an_older_log_incarnation_notices_the_newer_one(store: Path) -> None:
    one, other = notes_of(store), notes_of(store)
    one.note(progress())
    assert not one.is_superseded(0)
    other.note(progress(log_incarnation=2))
    assert one.is_superseded(0)
    assert one.is_superseded(1)
    assert not one.is_superseded(2)


class GrowingTopic:
    """A topic that grows at each request for its bounds, while another process follows it into the same store."""

    def __init__(self, other: TopicWatch) -> None:
        self._other = other
        self._end = 20

    def bounds(self, *_: int, **__: bool) -> dict[int, LogPartitionBounds]:
        answer = {at: LogPartitionBounds(10, self._end, self._end) for at in range(5)}
        self._end += 5
        reading = progress(answer)
        reading.advance(read_to(self._end))
        self._other.note(reading)
        return answer

    def delete_retention_ms(self) -> int:
        return DAY_MS

    def offsets_retention(self) -> Retention:
        return Retention(540_000, 2_000, is_known=True)

    def leader_epochs(self) -> dict[int, int | None]:
        return dict.fromkeys(range(5), 4)

    def epoch_ends(self, leader_epochs: Mapping[int, int]) -> dict[int, int]:
        return dict.fromkeys(leader_epochs, self._end)

    def topic_names(self) -> dict[str, str]:
        return {}


def test_second_follower_does_not_take_the_records_of_the_first_for_a_new_topic(store: Path) -> None:
    topic, heard = TopicDescription("c", "id", 5), list[str]()
    other = notes_of(store)
    other.adopt(topic)
    other.note(progress())
    growing, watch = GrowingTopic(other), notes_of(store, heard)
    for _ in range(2):
        reading = watch.plan(growing, topic).reading  # type: ignore[arg-type]
        assert (reading.log_incarnation, reading.anew) == (0, None)
    assert heard == []
    for each in (watch.store, opened(store)):
        noted = each.properties.retention
        assert noted == Retention(540_000, 2_000, is_known=True)
        assert noted.read_at_ms == NOW_MS


def test_second_follower_learns_from_the_store_that_the_first_has_read_the_new_topic(store: Path) -> None:
    heard = list[str]()
    other, notes = notes_of(store), notes_of(store, heard)
    for each in (other, notes):
        each.adopt(TopicDescription("c", "id", 5))
    again = TopicDescription("c", "created-again", 5)
    other.note(progress(log_incarnation=1))
    other.adopt(again)
    found = notes.plan(GrowingTopic(other), again).reading  # type: ignore[arg-type]
    assert (found.log_incarnation, found.anew, heard) == (1, None, [])


def test_store_adopts_the_identity_of_its_topic_and_keeps_known_parts(store: Path) -> None:
    before = opened(store).properties
    notes = notes_of(store)
    notes.adopt(TopicDescription("c", "id", 5))
    told = replace(before, cluster_id="c", topic_id="id", topic_name="the-topic")
    assert notes.store.properties == opened(store).properties == told
    notes.adopt(TopicDescription(None, None, 5))  # a broker that knows no ids
    assert opened(store).properties == told
