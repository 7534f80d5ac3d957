"""Errors that end `follow`, and errors that it waits out. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pytest
from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    CommitUnknown,
    InvalidPartitionCount,
    KafkaFailed,
    LogTruncated,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
    StorageFailed,
    StorageRefused,
    StoreMismatch,
    StreamFailed,
    WriteConflict,
)
from offsets_pipeline.ingest.topic import topic_ingest
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest, _QueryFailedError
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

STORE_AWAY = [StorageFailed("503"), CommitUnknown("version 7 may have been committed")]
PASSING = [
    *STORE_AWAY,
    BrokerUnreachable("away"),
    NoSuchTopic("deleted"),
    KafkaFailed("UnknownServerException"),
    WriteConflict("late"),
]
LASTING = [
    StorageRefused("403"),
    NotAuthorized("no"),
    AuthenticationFailed("no"),
    StoreMismatch("other"),
    InvalidPartitionCount("51"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a millisecond after each error."""
    monkeypatch.setattr(topic_ingest, "_MAX_BACKOFF_SECONDS", 0.001)


class Heard(TopicObserver):
    """The warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.away: list[OffsetsError] = []

    def unreachable(self, error: OffsetsError) -> None:
        self.away.append(error)

    def warned(self, text: str) -> None:
        self.warnings.append(text)


class Reads:
    """A query that failed after this number of records, or after a long time without records."""

    def __init__(self, records: int = 0) -> None:
        self.records = records


class Scripted(TopicIngest):
    """Each reading has the given result; after the last one it stops."""

    def __init__(self, outcomes: Sequence[bool | Exception | Reads]) -> None:
        self.heard, self.outcomes = Heard(), list(outcomes)
        spark = cast("SparkSession", MagicMock())
        super().__init__(spark, "store", KafkaOptions("b", {}), Settings(), FixedClock(0), self.heard, "t")

    def _read(self, *, available_now: bool) -> bool:  # noqa: ARG002 - told to `run`
        if not self.outcomes:
            self.stop()
            return False
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Reads):
            self.added += outcome.records
            self._is_steady = not outcome.records
            raise _QueryFailedError("it read something")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_transient_error_is_waited_for_and_reported(error: OffsetsError) -> None:
    ingest = Scripted([error] * 20)
    assert ingest.run() == 0
    assert ingest.outcomes == []
    is_conflict = isinstance(error, WriteConflict)
    assert ingest.heard.warnings == ([f"{error}; trying again"] if is_conflict else [])
    assert ingest.heard.away == ([] if is_conflict else [error] * 20)


def test_waits_grow_up_to_the_longest_one_until_a_reading_works(monkeypatch: pytest.MonkeyPatch) -> None:
    away, waits = BrokerUnreachable("away"), list[float]()
    ingest = Scripted([*[away] * 5, False, away, _QueryFailedError("why"), Reads(3), away])
    monkeypatch.setattr(topic_ingest, "_MAX_BACKOFF_SECONDS", 1.0)
    monkeypatch.setattr(ingest._stopped, "wait", waits.append)
    ingest.run()
    assert waits == [0.2, 0.4, 0.8, 1.0, 1.0, 0.2, 0.4, 0.2, 0.4]


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_permanent_error_is_raised(error: OffsetsError) -> None:
    with pytest.raises(type(error)):
        Scripted([BrokerUnreachable("away"), error, False]).run()


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=repr)
def test_available_now_raises_the_error(error: OffsetsError) -> None:
    with pytest.raises(type(error)):
        Scripted([error, True]).run(available_now=True)


def test_available_now_retries_until_the_end_is_read() -> None:
    ingest = Scripted([False, _QueryFailedError("once"), False, True, NotAuthorized("not asked for")])
    ingest.run(available_now=True)
    assert len(ingest.outcomes) == 1


def test_follow_continues_after_a_query_ends_by_itself() -> None:
    ingest = Scripted([True, True, False])
    ingest.run()
    assert ingest.outcomes == []


def test_a_query_that_fails_again_and_again_ends_it_unless_it_worked_meanwhile() -> None:
    failing: list[bool | Exception | Reads] = [_QueryFailedError("why")] * 5
    for worked in (Reads(3), Reads()):
        ingest = Scripted([*failing, worked, *failing[1:]])
        ingest.run()
        assert ingest.outcomes == []
    with pytest.raises(
        StreamFailed, match=r"^reading topic t failed: why; the query failed too often without reading a record$"
    ):
        Scripted([*failing, False, BrokerUnreachable("away"), *failing[:1]]).run()


def test_a_log_that_was_truncated_while_a_task_read_it_is_planned_again() -> None:
    ingest, query = Scripted([]), MagicMock()
    query.awaitTermination.side_effect = StreamingQueryException("a task failed")
    ingest._failures.append(LogTruncated("another log"))
    assert not ingest._ended_well(query)
    ingest._failures.append(NotAuthorized("no"))
    with pytest.raises(NotAuthorized):
        ingest._ended_well(query)
