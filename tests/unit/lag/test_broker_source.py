"""Positions that a cluster tells, with samples behind it. The cluster is a table of offsets and timestamps."""

from __future__ import annotations

from bisect import bisect_left
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offsets_pipeline.broker.first_records import FirstRecord
from offsets_pipeline.broker.topics_offsets import LogBounds
from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.lag import broker_source
from offsets_pipeline.lag.broker_source import BrokerPositions
from offsets_pipeline.lag.position_sources import UNKNOWN_END, Bounds, SampledPositions
from offsets_pipeline.lag.time_lag import Method, TimeLag
from offsets_pipeline.topic_positions.position_samples import PositionSamples, Sample, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    Place = tuple[str, int]

T, BROKEN = ("t", 0), ("broken", 0)
#: A record each second from 0 to 99. The log has lost the first ten.
START, END = 10, 100
NOW_MS = 100_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The requests so far, with the number of partitions of each."""
    requests: list[tuple[str, int]] = []

    def bounds(_cluster: object, topics: list[str]) -> dict[Place, object]:
        return {("t", 0): LogBounds(START, END), BROKEN: KafkaFailed("no leader")} if "t" in topics else {}

    def offsets(_cluster: object, times_ms: Mapping[Place, int]) -> dict[Place, object]:
        requests.append(("offsets", len(times_ms)))
        found: dict[Place, object] = {}
        for place, time_ms in times_ms.items():
            offset = max(START, bisect_left(range(END), time_ms / 1000))
            found[place] = KafkaFailed("no leader") if place == BROKEN else offset if offset < END else None
        return found

    def records(_cluster: object, positions: Mapping[Place, int]) -> dict[Place, object]:
        requests.append(("records", len(positions)))
        return {
            place: FirstRecord(max(START, offset), max(START, offset) * 1000) if offset < END else None
            for place, offset in positions.items()
        }

    for name, fake in (("bounds_of_topics", bounds), ("offsets_of_topics", offsets), ("first_records", records)):
        monkeypatch.setattr(broker_source, name, fake)
    return requests


def source(at_ms: int, *samples: tuple[int, int], is_past: bool = False) -> BrokerPositions:
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(at="a broker"))
    rows = rows_of([(T, Sample(0, end, time_ms)) for time_ms, end in samples], "a test")
    return BrokerPositions(cluster, ["t"], SampledPositions(PositionSamples(rows), at_ms), is_past=is_past)


def test_present_is_what_the_brokers_say(asked: list[tuple[str, int]]) -> None:
    positions = source(NOW_MS)
    assert positions.bounds(T) == Bounds(START, END)
    assert positions.bounds(BROKEN) == Bounds(None, None, "no leader")
    assert positions.bounds(("none", 0)) == Bounds(None, None, "a broker has no such partition")
    found = positions.time_lags({(T, 50), (T, 60), (T, 3), (T, 100)})
    assert found == {
        (T, 50): TimeLag(50, Method.EXACT),
        (T, 60): TimeLag(40, Method.EXACT),
        (T, 3): TimeLag(90, Method.EXACT),  # the first record that the log still has
        (T, 100): TimeLag(0, Method.EXACT),
    }
    assert asked == [("records", 1)] * 4  # a request names a partition once


def test_log_ends_of_commits_come_from_samples_or_else_from_timestamps(asked: list[tuple[str, int]]) -> None:
    positions = source(NOW_MS, (50_000, 51), (80_000, 81))
    ends = positions.ends_at([T, BROKEN], np.array([0, 0, 0, 1]), np.array([20_000, 60_000, 200_000, 5]))
    assert ends.tolist() == [20, 51, 81, UNKNOWN_END]
    assert asked == [("offsets", 2)]


def test_past_is_the_log_up_to_that_time(asked: list[tuple[str, int]]) -> None:
    positions = source(70_000, (5_000, 6), (9_000, 10), (30_000, 31), is_past=True)
    # the record of second 70 was there, that of second 71 was not
    assert positions.bounds(T) == Bounds(0, 71)
    assert positions.bounds(BROKEN) == Bounds(None, None, "no leader")
    found = positions.time_lags({(T, 50), (T, 71), (T, 6)})
    assert found[T, 50] == TimeLag(20, Method.EXACT)
    assert found[T, 71] == TimeLag(0, Method.EXACT)  # record 71 is younger
    # the log has lost record 6: the samples tell that it came between second 5 and second 9
    assert found[T, 6].method is Method.INTERPOLATED
    assert found[T, 6].seconds == pytest.approx(64.5)
    assert ("records", 1) in asked


def test_past_without_samples_has_no_log_start(asked: list[tuple[str, int]]) -> None:
    positions = source(70_000, is_past=True)
    assert positions.bounds(T) == Bounds(None, 71)
    assert positions.time_lags({(T, 6)}) == {
        (T, 6): TimeLag(None, Method.NONE, "the partition was never sampled"),
    }
    assert asked == [("offsets", 2)]
