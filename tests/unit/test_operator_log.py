"""The lines that tell an operator of a followed topic what happens: one for each change of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.errors import BrokerUnreachable, NoSuchTopic, StorageFailed
from offsets_pipeline.fold.maintenance import Upkeep
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.observability.operator_log import FollowedTopic, OperatorLog

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN_MS = 1_795_000_000_000
BEGIN = "2026-11-18T11:06:40.000Z"
MINUTE_MS, DAY_MS = 60_000, 86_400_000
AWAY = BrokerUnreachable("no broker answers at b:9092")


class Followed:
    """A topic of one log partition that grows, and is read as a test says."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *, only_warnings: bool = False) -> None:
        self.clock = FixedClock(BEGIN_MS)
        self.log = OperatorLog(self.clock, only_warnings=only_warnings)
        self.topic = FollowedTopic("t", self.log, self.clock)
        self.progress = self.plan(0)
        self._capsys = capsys

    def plan(self, log_incarnation: int, behind: int = 7) -> TopicProgress:
        reading = Reading(log_incarnation, {0: 3}, CompleteReads(BEGIN_MS - DAY_MS, BEGIN_MS - 1000))
        self.progress = TopicProgress(
            reading, {0: LogPartitionBounds(0, 3 + behind, 3 + behind)}, {}, self.clock.now_ms(), DAY_MS
        )
        return self.progress

    def look(self, end: int, read_to: int, after_ms: int = 5000) -> None:
        self.clock.advance_ms(after_ms)
        self.progress.advance({0: FetchPosition(read_to, 3)})
        assert self.progress.look(self.clock.now_ms(), {0: LogPartitionBounds(0, end, end)})
        self.topic.looked(self.progress)

    def lines(self) -> list[str]:
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def followed(capsys: pytest.CaptureFixture[str]) -> Followed:
    return Followed(capsys)


def test_connection_and_reading_are_told_with_the_time(followed: Followed) -> None:
    followed.topic.connected("b:9092", "a-cluster")
    followed.topic.planned(followed.progress)
    assert followed.lines() == [
        f"{BEGIN} offsets: connected to b:9092, cluster a-cluster",
        f"{BEGIN} offsets: reading topic t: 1 log partition, log incarnation 0, 7 record offsets behind",
    ]
    followed.topic.planned(followed.plan(0, 9))  # the query failed, and reads on
    assert followed.lines() == []
    followed.topic.planned(followed.plan(1, 9))
    assert followed.lines() == [
        f"{BEGIN} offsets: reading topic t: 1 log partition, log incarnation 1, 9 record offsets behind"
    ]
    assert followed.topic.values()["offsets_log_incarnation"] == 1
    followed.topic.connected("b:9092", None)
    assert followed.lines() == [f"{BEGIN} offsets: connected to b:9092"]


def test_caught_up_and_fallen_behind_are_told_once(followed: Followed) -> None:
    followed.look(10, 4)
    followed.look(10, 9)
    assert followed.lines() == []
    followed.look(10, 10)
    assert followed.lines() == ["2026-11-18T11:06:55.000Z offsets: caught up with topic t"]
    for grown in range(20):  # a topic that always grows
        followed.look(20 + 10 * grown, 10 + 10 * grown)
    assert followed.lines() == []
    for _ in range(30):
        followed.look(300, 205)
    assert followed.lines() == [
        (
            "2026-11-18T11:09:35.000Z offsets: the log is 95 record offsets behind topic t; it last had all records at "
            "2026-11-18T11:08:30.000Z"
        )
    ]
    followed.look(300, 300)
    assert followed.lines() == ["2026-11-18T11:11:10.000Z offsets: caught up with topic t"]


def test_a_log_falls_behind_a_minute_after_it_last_had_all_records(followed: Followed) -> None:
    followed.look(10, 10)
    followed.look(300, 205, after_ms=MINUTE_MS)
    assert [line.partition("offsets: ")[2] for line in followed.lines()] == ["caught up with topic t"]
    assert followed.topic.is_caught_up
    followed.look(300, 205, after_ms=1)
    assert [line.partition("offsets: ")[2][:36] for line in followed.lines()] == [
        "the log is 95 record offsets behind "
    ]
    assert not followed.topic.is_caught_up


def test_a_new_incarnation_of_the_log_has_not_caught_up(followed: Followed) -> None:
    followed.look(10, 10)
    followed.topic.planned(followed.plan(1))
    assert not followed.topic.is_caught_up
    followed.lines()
    followed.look(10, 4)
    assert followed.lines() == []  # nor has it fallen behind
    followed.look(10, 10)
    assert [line.partition("offsets: ")[2] for line in followed.lines()] == ["caught up with topic t"]


def test_a_topic_that_no_consumer_has_created_yet_is_not_up(followed: Followed) -> None:
    followed.topic.missing("b:9092")
    waits = "waiting until its first consumer creates it"
    assert followed.lines() == [f"{BEGIN} offsets: the cluster at b:9092 has no topic t yet: {waits}"]
    assert followed.topic.values()["offsets_topic_up"] is False


def test_a_log_does_not_catch_up_while_a_log_partition_has_no_leader(followed: Followed) -> None:
    followed.look(10, 4)
    followed.clock.advance_ms(DAY_MS // 2)
    followed.progress.advance({0: FetchPosition(10, 3)})
    assert followed.progress.look(followed.clock.now_ms(), {})
    followed.topic.looked(followed.progress)
    assert followed.lines() == []
    assert followed.topic.values()["offsets_log_behind_topic_records"] == {0: 0}
    followed.look(10, 10)
    assert [line.partition("offsets: ")[2] for line in followed.lines()] == ["caught up with topic t"]
    followed.clock.advance_ms(DAY_MS // 2)
    assert followed.progress.look(followed.clock.now_ms(), {})
    followed.topic.looked(followed.progress)
    assert followed.topic.is_caught_up  # nor does it fall behind


@pytest.mark.parametrize("back", ["looked", "planned"])
def test_outage_is_told_with_its_beginning_and_its_length(followed: Followed, back: str) -> None:
    for _ in range(3):
        followed.topic.unreachable(AWAY)
        followed.clock.advance_ms(MINUTE_MS)
    followed.topic.unreachable(NoSuchTopic("no topic t at b:9092"))
    followed.topic.unreachable(AWAY)
    assert followed.lines() == [
        f"{BEGIN} offsets: warning: broker away since {BEGIN}: no broker answers at b:9092; trying again",
        (
            f"2026-11-18T11:09:40.000Z offsets: warning: topic t not available since {BEGIN}: no topic t at b:9092; "
            "trying again"
        ),
    ]
    again: Callable[[TopicProgress], None] = getattr(followed.topic, back)
    followed.progress = followed.plan(0, 0)
    again(followed.progress)
    again(followed.progress)
    first, *_ = lines = followed.lines()
    assert first == "2026-11-18T11:09:40.000Z offsets: back after 180 s: topic t can be read again"
    assert len(lines) == 2  # and that it has caught up, or what is read
    followed.topic.unreachable(AWAY)
    since = "2026-11-18T11:09:40.000Z"
    assert followed.lines() == [
        f"{since} offsets: warning: broker away since {since}: no broker answers at b:9092; trying again"
    ]


def test_outage_of_the_store_is_told_beside_that_of_the_broker(followed: Followed) -> None:
    for table in ("log", "leases"):
        followed.topic.unreachable(StorageFailed(f"cannot write to s3://b/{table}: 503"))
        followed.clock.advance_ms(MINUTE_MS)
    followed.topic.planned(followed.plan(0, 0))  # the broker answers
    assert [line.partition("offsets: ")[2] for line in followed.lines()] == [
        f"warning: store not available since {BEGIN}: cannot write to s3://b/log: 503; trying again",
        "reading topic t: 1 log partition, log incarnation 0, 0 record offsets behind",
    ]
    followed.topic.landed(3)
    followed.topic.landed(3)
    assert [line.partition("offsets: ")[2] for line in followed.lines()] == [
        "back after 120 s: the store can be written again"
    ]


def test_warnings_are_counted_and_upkeep_is_summed_up(followed: Followed) -> None:
    followed.log.warning("something")
    followed.log.upkeep([Upkeep("log", 2000, 0, 3, 0, 12, 40), Upkeep("topics", 2, 0, 1, 0, 0, 2)])
    followed.topic.transaction_ended(4)
    assert followed.lines() == [
        f"{BEGIN} offsets: warning: something",
        f"{BEGIN} offsets: upkeep done: 2002 files before, 4 after; 12 old files removed, 42 files on disk",
        f"{BEGIN} offsets: the transaction that was open in log partition 4 has ended",
    ]
    assert followed.log.values() == {"offsets_warnings_total": 1}


def test_a_command_with_an_end_tells_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    followed = Followed(capsys, only_warnings=True)
    followed.topic.connected("b:9092", "a-cluster")
    followed.topic.planned(followed.progress)
    followed.topic.warned("something")
    assert followed.lines() == [f"{BEGIN} offsets: warning: something"]
