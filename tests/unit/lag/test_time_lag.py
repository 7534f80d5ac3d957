"""Lag in seconds by interpolation, against the timestamps of simulated records."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, Series, rows_of
from offsets_pipeline.kafka.broker.fetch import FirstRecord
from offsets_pipeline.questions.lag.broker_source import exact_lag
from offsets_pipeline.questions.lag.position_sources import (
    Method,
    TimeLag,
    incarnations_at,
    interpolated_ends,
    interpolated_lags,
)

if TYPE_CHECKING:
    import random

    from offsets_pipeline.ingest.topic_positions.position_samples import Int64s
    from offsets_pipeline.kafka.broker.fetch import FoundRecord

DAY_MS = 86_400_000
NOW_MS = 1_795_000_000_000
PLACE = ("t", 0)
OLDER = "record {} is older than the first sample, of 1970-01-01T00:00:0{:.3f}Z"


def series(samples: list[tuple[int, int]], start: int = 0) -> Series:
    """Samples of (time in ms, log end)."""
    rows = rows_of([(PLACE, Sample(min(start, end), end, at)) for at, end in samples], "a test")
    return PositionSamples(rows).series(PLACE)


def interpolated_lag(samples: Series, offset: int, at_ms: int) -> TimeLag:
    """The lag of one offset, between the samples of two other partitions."""
    around = Series(*(np.concatenate([column[:1] + 1, column, column[-1:] - 1]) for column in samples))
    first = len(samples.sampled_ms[:1])
    end = first + len(samples.sampled_ms)
    (found,) = interpolated_lags(around, np.array([first]), np.array([end]), np.array([offset]), np.array([at_ms]))
    return found


def sampled(records: list[int], interval_ms: int, since_ms: int) -> Series:
    """Samples of a topic with records of these timestamps, taken at an interval up to NOW_MS."""
    return series([(at, bisect_right(records, at)) for at in range(since_ms, NOW_MS + 1, interval_ms)])


@pytest.mark.parametrize("rate", ["steady", "bursts", "rare"])
def test_consumers_from_a_second_to_thirty_days_behind_are_at_most_one_interval_off(
    rate: str, chance: random.Random
) -> None:
    since_ms = NOW_MS - 31 * DAY_MS
    interval_ms = 60_000
    if rate == "steady":
        records = [since_ms + number * 7_000 + 1 for number in range(31 * DAY_MS // 7_000)]
    elif rate == "rare":
        records = sorted(chance.randrange(since_ms + 1, NOW_MS) for _ in range(50))
    else:
        bursts = [chance.randrange(since_ms + 1, NOW_MS) for _ in range(200)]
        records = sorted(min(NOW_MS, burst + chance.randrange(1000)) for burst in bursts for _ in range(100))
    found = sampled(records, interval_ms, since_ms)
    for seconds in (1, 10, 59, 61, 600, 1_799, 1_801, 3_600, 86_400, 7 * 86_400, 30 * 86_400):
        committed = bisect_right(records, NOW_MS - seconds * 1000 - 1)
        true = (NOW_MS - records[committed]) / 1000 if committed < len(records) else 0
        lag = interpolated_lag(found, committed, NOW_MS)
        if committed < int(found.log_end_offset[-1]):
            assert lag.seconds is not None
            assert abs(lag.seconds - true) <= interval_ms / 1000, (seconds, lag, true)
            assert lag.method == "interpolated"
        else:  # the last sample saw no record that the consumer has not read
            assert lag.seconds == 0
            assert true <= interval_ms / 1000


def test_lag_is_not_capped_at_half_an_hour() -> None:
    found = series([(NOW_MS - 30 * DAY_MS, 0), (NOW_MS - 30 * DAY_MS + 1000, 10), (NOW_MS, 10)])
    assert interpolated_lag(found, 0, NOW_MS).seconds == pytest.approx(30 * 86_400, abs=1)


def test_lag_does_not_jump_by_the_sampling_interval() -> None:
    """A consumer that is always 5 s behind, on a topic with a record each second, sampled each minute."""
    records = [NOW_MS - number * 1000 for number in range(3600, -1, -1)]
    found = sampled(records, 60_000, NOW_MS - 3_600_000)
    lags = [
        interpolated_lag(found, bisect_right(records, at - 65_000), at - 60_000).seconds
        for at in range(NOW_MS - 600_000, NOW_MS + 1, 60_000)
    ]
    assert all(each is not None and abs(each - 5) <= 1 for each in lags), lags


def test_consumer_at_the_end_of_an_idle_topic_has_no_lag_however_long_it_is_idle() -> None:
    found = series([(0, 5), (60_000, 10), (120_000, 10), (NOW_MS, 10)])
    assert interpolated_lag(found, 10, NOW_MS + 30 * DAY_MS) == TimeLag(0, "interpolated")  # type: ignore[arg-type]


def test_first_record_after_a_long_silence_is_young() -> None:
    """The log end was 10 for a day; the record came between the last two samples, not a day ago."""
    found = series([(NOW_MS - DAY_MS, 10), (NOW_MS - 60_000, 10), (NOW_MS, 11)])
    lag = interpolated_lag(found, 10, NOW_MS).seconds
    assert lag is not None
    assert 0 <= lag <= 60


def test_commit_below_the_log_start_counts_from_the_log_start() -> None:
    found = series([(0, 0), (10_000, 10), (20_000, 20)], start=15)
    lag = interpolated_lag(found, 3, 30_000).seconds
    assert lag is not None
    assert 10 <= lag <= 20


def test_expired_topic_has_no_record_left_to_wait_for() -> None:
    assert interpolated_lag(series([(0, 5), (10_000, 20)], start=20), 3, 30_000).seconds == 0


@pytest.mark.parametrize(
    ("samples", "offset", "lag"),
    [
        ([], 5, TimeLag(None, Method.NONE, "the partition was never sampled")),
        # the first sample saw the record, so it is as old at least
        ([(1000, 10), (2000, 20)], 9, TimeLag(4.0, Method.AT_LEAST, OLDER.format(9, 1))),
        ([(4999, 10), (6000, 20)], 9, TimeLag(0.001, Method.AT_LEAST, OLDER.format(9, 4.999))),
        ([(5000, 10)], 9, TimeLag(None, Method.NONE, OLDER.format(9, 5))),
        # created again: samples of the deleted topic say nothing about records of the new one
        ([(1000, 0), (2000, 50), (3000, 10), (4000, 20)], 5, TimeLag(2.0, Method.AT_LEAST, OLDER.format(5, 3))),
    ],
)
def test_lag_is_never_extrapolated(samples: list[tuple[int, int]], offset: int, lag: TimeLag) -> None:
    assert interpolated_lag(series(samples), offset, 5000) == lag


def test_time_between_two_samples_is_interpolated_from_both() -> None:
    found = series([(1000, 10), (2000, 20), (3000, 30)])
    assert interpolated_lag(found, 20, 2500).seconds == pytest.approx(0.45)  # record 20 came at 2050
    assert interpolated_lag(found, 25, 2500).seconds == 0
    assert interpolated_lag(found, 15, 2500).seconds == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("offset", "at_ms", "seconds"),
    [
        (10, 4_000, 2.95),  # record 10 came at 1,050
        (19, 4_000, 2.05),
        (20, 4_000, 1.95),
        (29, 4_000, 1.05),
        (30, 4_000, 0.0),
        (29, 2_950, 0.0),
        (29, 2_951, 0.001),
        (25, 1_000, 0.0),  # it came after that time
        (9, 1_000, OLDER.format(9, 1)),
        (25, 999, "the partition was never sampled"),
    ],
)
def test_lag_counts_from_the_middle_of_the_share_of_each_record(offset: int, at_ms: int, seconds: float | str) -> None:
    expected = (
        TimeLag(None, Method.NONE, seconds) if isinstance(seconds, str) else TimeLag(seconds, Method.INTERPOLATED)
    )
    assert interpolated_lag(series([(1000, 10), (2000, 20), (3000, 30)]), offset, at_ms) == expected


@pytest.mark.parametrize(
    ("found", "lag"),
    [
        (None, TimeLag(0.0, Method.EXACT)),
        (FirstRecord(7, 1_000), TimeLag(1.235, Method.EXACT)),
        (FirstRecord(7, 2_236), TimeLag(0.0, Method.EXACT)),
        (FirstRecord(7, None), TimeLag(None, Method.NONE, "the record at offset 7 has no timestamp")),
        (KafkaFailed("no leader\nat all"), TimeLag(None, Method.NONE, "no leader")),
    ],
)
def test_lag_by_a_record_of_a_broker_is_the_age_of_the_record(found: FoundRecord, lag: TimeLag) -> None:
    assert exact_lag(found, 2_235) == lag


#: A topic that was created again between second 2 and 3, and another one.
TWO = Series(
    np.array([1_000, 2_000, 3_000, 4_000, 1_000, 3_000]), np.zeros(6, dtype=np.int64), np.array([0, 10, 4, 14, 5, 5])
)


def of(count: int, value: int) -> Int64s:
    return np.full(count, value)


def test_samples_are_those_of_the_incarnation_of_the_time() -> None:
    times = np.array([500, 1_000, 2_999, 3_000, 9_999])
    cut = incarnations_at(TWO, of(5, 0), of(5, 4), times)
    assert [each.tolist() for each in cut] == [[0, 0, 0, 2, 2], [0, 1, 2, 3, 4], [2, 2, 2, 4, 4]]
    cut = incarnations_at(TWO, of(5, 4), of(5, 6), times)
    assert [each.tolist() for each in cut] == [[4] * 5, [4, 5, 5, 6, 6], [6] * 5]


@pytest.mark.parametrize(
    ("at_ms", "known_to_ms", "time_ms", "found"),
    [
        (5_000, 6_000, 2_500, (None, -1, 2, False)),
        (5_000, 6_000, 3_000, (4, 2, 3, False)),
        (5_000, 6_000, 3_500, (9, 2, 3, False)),
        (5_000, 6_000, 4_000, (14, 3, -1, False)),
        (5_000, 6_000, 6_000, (14, 3, -1, False)),  # a sample without a row found no change
        (5_000, 6_000, 6_001, (None, 3, -1, False)),
        (5_000, None, 4_000, (None, 3, -1, False)),
        (2_999, 6_000, 1_500, (5, 0, 1, True)),
        (2_999, 6_000, 2_000, (10, 1, -1, True)),
        (2_999, 6_000, 2_001, (None, 1, -1, True)),  # the deleted topic may have ended at any time
    ],
)
def test_log_end_at_a_time_is_that_of_its_incarnation(
    at_ms: int, known_to_ms: int | None, time_ms: int, found: tuple[float | None, int, int, bool]
) -> None:
    first, end, times = np.array([0, 4]), np.array([4, 6]), np.array([time_ms, 2_000])
    rows = interpolated_ends(TWO, first, end, times, at_ms, known_to_ms)
    shown = zip(*(each.tolist() for each in rows), strict=True)
    assert [(None if np.isnan(each) else each, *around) for each, *around in shown] == [found, (5, 4, 5, False)]
