"""Plans of a topic's readings, and looks at the topic: what is noted in the store, and what is warned of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import TopicSettings
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicDescription
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, KnownLog
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction
from offsets_pipeline.semantics.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Mapping


NOW_MS = 1_795_000_000_000
DAY_MS, LIMIT_MS = 86_400_000, 900_000
TOPIC = TopicDescription("c", None, 2)
RETENTION = Retention(60_000, is_known=True)
UNNAMED = SimpleNamespace(topic_id=None, topic_name="t", cluster_id=None)


class Topic:
    """A topic with two log partitions, as a client describes it."""

    def __init__(self) -> None:
        self.described = TOPIC
        self.found = {0: LogPartitionBounds(0, 10, 10), 1: LogPartitionBounds(0, 5, 5)}
        self.returning: dict[int, LogPartitionBounds] = {}  # log partitions whose leader comes if one waits for it
        self.epochs: dict[int, int | None] = {0: 3, 1: None}
        self.ends_of_epochs: dict[int, int] = {}
        self.transactions: list[OpenTransaction] | None = []
        self.asked: list[list[int]] = []

    def describe(self) -> TopicDescription:
        return self.described

    def bounds(self, _: int, *, of_all: bool = False) -> dict[int, LogPartitionBounds]:
        return self.found | (self.returning if of_all else {})

    def delete_retention_ms(self) -> int:
        return DAY_MS

    def leader_epochs(self) -> dict[int, int | None]:
        return self.epochs

    def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int]:
        return {at: end for at, end in self.ends_of_epochs.items() if at in epochs}

    def open_transactions(self, partitions: list[int]) -> list[OpenTransaction] | None:
        self.asked.append(partitions)
        return self.transactions

    def topic_names(self) -> dict[str, str]:
        return {"id": "name"}

    def offsets_retention(self) -> Retention:
        return RETENTION


class Notes:
    """Keeps what was noted, in order."""

    def __init__(self, known: KnownLog) -> None:
        self._known = known
        self.store: Any = SimpleNamespace(location="store", properties=UNNAMED, refreshed=lambda: self.store)
        self.calls: list[object] = []
        self.due = self.superseded = False

    def known(self) -> KnownLog:
        return self._known

    def is_superseded(self, _: int) -> bool:
        return self.superseded

    def is_due(self, _: object) -> bool:
        return self.due

    def note(self, progress: TopicProgress) -> None:
        # R1: the number of rows of an incarnation is its n
        assert progress.reading.anew is None or progress.bounds.keys() == progress.read_to.keys()
        self.calls.append(("note", progress.complete.last_ms))

    def adopt(self, topic: TopicDescription, retention: Retention) -> None:
        self.calls.append(("adopt", topic, retention))

    def names(self, names: Mapping[str, str]) -> None:
        self.calls.append(names)


class Watched(TopicObserver):
    """A watch of the topic, and what it reported."""

    def __init__(self, known: KnownLog, watch_interval_ms: int = 5_000) -> None:
        self.topic, self.notes, self.clock = Topic(), Notes(known), FixedClock(NOW_MS)
        settings = Settings(topic=TopicSettings(watch_interval_ms=watch_interval_ms))
        self.warnings: list[str] = []
        self.looks = 0
        self.ended: list[int] = []
        self.watch = TopicWatch(self.notes.store, "t", settings, self.clock, self, self.warnings.append)
        for name in ("known", "is_superseded", "is_due", "note", "adopt", "names"):
            setattr(self.watch, name, getattr(self.notes, name))

    def plan(self) -> TopicProgress:
        admin: Any = self.topic
        return self.watch.plan(admin, TOPIC)

    def look(self, progress: TopicProgress) -> bool:
        admin: Any = self.topic
        return self.watch.look(progress, admin, TOPIC)

    def looked(self, _: TopicProgress) -> None:
        self.looks += 1

    def transaction_ended(self, log_partition: int) -> None:
        self.ended.append(log_partition)


FOLLOWED = KnownLog(2, 0, {0: {0: 8}}, {0: 8, 1: 5}, {0: 3}, CompleteReads(1, NOW_MS - 1))
BEHIND = KnownLog(2, 0, {0: {0: 11}}, {0: 11, 1: 5}, {0: 3}, CompleteReads(1, NOW_MS - 1))  # the topic lacks a record
NAMES = {"id": "name"}


def read_to(progress: TopicProgress, **at: int) -> None:
    progress.advance({int(name.removeprefix("_")): FetchPosition(offset, 3) for name, offset in at.items()})


NOTED = ("note", NOW_MS), ("adopt", TOPIC, RETENTION)


def test_a_reading_from_the_beginning_is_noted_when_it_is_complete_and_then_when_due() -> None:
    watched = Watched(BEHIND)
    progress = watched.plan()
    assert watched.warnings == [
        (
            "topic t is read again from its beginning, as log incarnation 1: log partition 0 now ends at 10, but was "
            "read up to 11"
        )
    ]
    assert watched.look(progress)
    watched.watch.end(progress)
    assert watched.notes.calls == [NAMES, NAMES]  # it does not count yet
    read_to(progress, _0=10, _1=5)
    found = []
    for due in (False, False, True):
        watched.notes.due = due
        watched.notes.calls.clear()
        assert watched.look(progress)
        found.append(watched.notes.calls.copy())
    assert found == [[NAMES, *NOTED], [NAMES], [NAMES, *NOTED]]
    assert watched.looks == 4
    watched.watch.end(progress)
    assert watched.notes.calls[-1] == NOTED[0]


def test_a_reading_that_goes_on_counts_at_once_and_notes_new_leaders_of_its_batches() -> None:
    watched = Watched(FOLLOWED)
    progress = watched.plan()
    assert watched.warnings == []
    assert watched.notes.calls == [("adopt", TOPIC, RETENTION), ("note", NOW_MS - 1), NAMES]
    ends = {0: FetchPosition(10, 3), 1: FetchPosition(5, None)}
    assert watched.watch.begin_batch(progress, ends) == NOW_MS  # R36
    assert len(watched.notes.calls) == 3
    assert watched.watch.begin_batch(progress, {0: FetchPosition(9, 4)}) is None
    assert watched.notes.calls[3:] == [("note", NOW_MS - 1)]


def test_the_rest_of_an_unfinished_reading_is_not_warned_of_again_unless_its_records_are_lost() -> None:
    watched = Watched(BEHIND)
    begun = watched.plan().reading
    watched.clock.advance_ms(1)
    watched.notes._known = KnownLog(2, 0, {0: {0: 11}, 1: {0: 6}}, {0: 11, 1: 5}, {0: 3}, BEHIND.complete)
    watched.topic.ends_of_epochs = {0: 6}
    rest = watched.plan().reading
    assert (rest.log_incarnation, rest.starts, rest.complete) == (1, {0: 6, 1: 0}, begun.complete)
    assert len(watched.warnings) == 1
    watched.topic.ends_of_epochs = {0: 5}  # of the six records that were appended
    anew = watched.plan().reading
    assert (anew.log_incarnation, anew.starts, anew.complete.since_ms) == (2, {0: 0, 1: 0}, NOW_MS + 1)
    assert len(watched.warnings) == 2


@pytest.mark.parametrize("change", ["the topic", "a later incarnation", "a minute", "four looks"])
def test_a_look_that_finds_a_change_asks_for_a_new_plan_and_notes_nothing(change: str) -> None:
    watched = Watched(FOLLOWED, 20_000 if change == "four looks" else 5_000)
    progress = watched.plan()
    watched.notes.calls.clear()
    if change == "the topic":
        watched.topic.described = TopicDescription("c", None, 3)
    elif change == "a later incarnation":
        watched.notes.superseded = True
    else:  # the gap may be longer than tombstones are kept by four looks, or a minute
        watched.clock.advance_ms(DAY_MS + (80_000 if change == "four looks" else 60_000) - 1)
        assert watched.look(progress)
        watched.notes.calls.clear()
        watched.clock.advance_ms(1)
    assert not watched.look(progress)
    assert watched.notes.calls == []
    assert watched.looks == (change in ("a minute", "four looks"))


def test_a_transaction_that_is_open_for_long_is_warned_of_once_and_its_end_is_reported() -> None:
    watched = Watched(FOLLOWED)
    progress = watched.plan()
    watched.topic.found[0] = LogPartitionBounds(0, 8, 10)
    began_ms = NOW_MS - LIMIT_MS + 1
    watched.topic.transactions = [OpenTransaction(0, 7, 8, NOW_MS, "mine", began_ms)]
    assert watched.look(progress)
    assert watched.warnings == []
    watched.clock.advance_ms(1)
    assert [watched.look(progress), watched.look(progress)] == [True, True]
    assert watched.warnings == [
        (
            "a transaction of 'mine' (producer id 7) is open in log partition 0, for at least 900 s: its commits stay "
            "pending until it ends (kafka-transactions.sh finds and aborts it)"
        )
    ]
    assert watched.topic.asked == [[0]] * 3
    watched.topic.transactions = [OpenTransaction(1, 9, 8, began_ms - 5_000, None, None)]
    assert watched.look(progress)
    assert watched.ended == [0]
    assert watched.warnings[1].startswith("a transaction of producer id 9 is open in log partition 1, for at least 905")
    watched.topic.transactions = None  # the cluster does not tell: the time of the stable offset counts
    assert watched.look(progress)
    watched.clock.advance_ms(LIMIT_MS)
    assert watched.look(progress)
    assert watched.warnings[2].startswith("a transaction is open in log partition 0, for at least 900 s")
    assert watched.ended == [0, 1]


def test_a_log_partition_without_a_leader_stays_where_it_is_and_is_warned_of_once() -> None:
    """Leader epoch 3 is the last one that is known to have had its records: 9 never led, or not with all of them."""
    watched = Watched(KnownLog(2, 0, {0: {0: 8}}, {0: 8, 1: 5}, {0: 3, 1: 3}, CompleteReads(1, NOW_MS - 1)))
    whole, watched.topic.epochs = watched.topic.found, {0: 9, 1: 9}
    watched.topic.found = {0: whole[0]}
    progress = watched.plan()
    assert (progress.reading.log_incarnation, progress.reading.starts) == (0, {0: 8, 1: 5})
    assert progress.leader_epochs == {0: 9, 1: 3}
    assert [watched.look(progress), watched.look(progress)] == [True, True]
    warning = "log partition 1 has no leader: its records are read when it has one again"
    assert watched.warnings == [warning]
    watched.topic.found = whole
    assert watched.look(progress)
    watched.topic.found = {0: whole[0]}
    assert watched.look(progress)
    assert watched.warnings == [warning] * 2


def test_a_log_partition_that_loses_its_leader_keeps_its_offsets_and_its_open_transaction() -> None:
    """R1, R36: also at the look with which a new incarnation of the log begins to count."""
    watched = Watched(BEHIND)
    watched.topic.found[1] = LogPartitionBounds(0, 4, 5)
    watched.topic.transactions = [OpenTransaction(1, 7, 4, NOW_MS, "mine", NOW_MS - LIMIT_MS)]
    progress = watched.plan()
    assert watched.look(progress)
    read_to(progress, _0=10, _1=5)
    bounds, watched.topic.transactions = dict(watched.topic.found), []
    del watched.topic.found[1]
    assert watched.look(progress)
    assert (progress.bounds, progress.without_leader) == (bounds, {1})
    assert progress.open_since_ms == {1: NOW_MS - LIMIT_MS}
    assert progress.open_ids == {1: (7, "mine")}
    assert watched.ended == []
    assert watched.notes.calls[-2:] == list(NOTED)


@pytest.mark.parametrize("known", [KnownLog(2), BEHIND], ids=["the first", "anew"])
def test_a_reading_from_the_beginning_waits_for_all_leaders(known: KnownLog) -> None:
    watched = Watched(known)
    watched.topic.returning = {1: watched.topic.found.pop(1)}
    progress = watched.plan()
    assert progress.reading.starts == {0: 0, 1: 0}
    assert set(progress.bounds) == {0, 1}
    assert len(watched.warnings) == (known is BEHIND)
