from __future__ import annotations

from datetime import UTC, datetime

import pytest

from offsets_pipeline.common.clock import (
    Clock,
    FixedClock,
    SystemClock,
    duration_ms,
    ms_of,
    parse_time_ms,
    shown_time,
    time_before_ms,
)
from offsets_pipeline.errors import InvalidTime


def test_the_system_clock_tells_milliseconds_of_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(tz=UTC).timestamp()
    assert before - 1 <= clock.now_ms() / 1000 <= datetime.now(tz=UTC).timestamp() + 1


def test_fixed_clock_moves_only_when_advanced() -> None:
    clock = FixedClock(1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    clock.advance_ms(500)
    assert clock.now_ms() == 1_500


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1772366400123", 1_772_366_400_123),
        ("-5", -5),
        ("999999999", 999_999_999),
        ("10000000000", 10_000_000_000),
        ("2026-03-01T12:00:00.123Z", 1_772_366_400_123),
        ("2026-03-01T12:00:00.123999", 1_772_366_400_123),
        ("2026-03-01 14:00:00.123+02:00", 1_772_366_400_123),
        ("2026-03-01", 1_772_323_200_000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01", -62_135_596_800_000),
        ("-62135596800000", -62_135_596_800_000),
        ("253402300799999", 253_402_300_799_999),
    ],
)
def test_a_time_is_written_in_iso_8601_or_in_milliseconds(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "12:00", "2026-02-30", "2026-03-01T25:00", "²", "--5"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidTime, match="is not a time: write it like 2026-03-01T12:00:00Z, or in milliseconds since"
    ):
        parse_time_ms(text)


@pytest.mark.parametrize("text", ["-62135596800001", "253402300800000", "1" * 5_000])
def test_time_in_milliseconds_outside_of_years_1_to_9999_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime, match="is not a time in milliseconds since 1970: its year is not from 1 to 9999"):
        parse_time_ms(text)


@pytest.mark.parametrize("text", ["1000000000", "1795000000", "9999999999"])
def test_seconds_since_1970_are_not_taken_for_milliseconds(text: str) -> None:
    with pytest.raises(
        InvalidTime, match=f"'{text}' looks like seconds; times are in milliseconds since 1970: {text}000"
    ):
        parse_time_ms(text)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (1_772_366_400_123, "2026-03-01T12:00:00.123Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "-62135596800001 ms"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms"),
    ],
)
def test_a_time_is_shown_in_utc(time_ms: int, text: str) -> None:
    assert shown_time(time_ms) == text


def test_unknown_time_is_none_and_microseconds_are_rounded_down() -> None:
    assert shown_time(None) is None
    times = [datetime(1970, 1, 1, 0, 0, 0, each, tzinfo=UTC) for each in (0, 999, 1_000, 1_999)]
    assert [ms_of(each) for each in times] == [0, 0, 1, 1]
    assert ms_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


@pytest.mark.parametrize(
    ("duration", "time_ms"),
    [
        ("PT0S", 1_000_000_000),
        ("PT1S", 999_999_000),
        ("P1D", 913_600_000),
        ("P1DT1H1M1S", 909_939_000),
        ("pt1h", 996_400_000),
        ("PT1.5S", 999_998_500),
        ("PT1,5S", 999_998_500),
        ("PT0.0001S", 999_999_999),  # no record of that millisecond is missed
        ("PT-1.5S", 1_000_001_500),
        ("PT-0.5S", 1_000_000_500),
        ("-PT1M", 1_000_060_000),
        ("-PT-1M", 999_940_000),
        ("PT1H-30M", 998_200_000),
        ("+P+2D", 827_200_000),
    ],
)
def test_a_duration_is_read_as_kafka_reads_it(duration: str, time_ms: int) -> None:
    assert time_before_ms(1_000_000_000, duration) == time_ms


@pytest.mark.parametrize(
    ("text", "ms"), [("PT1S", 1_000), ("P1DT1H1M1S", 90_061_000), ("PT0.0019S", 1), ("-PT1M", -60_000)]
)
def test_duration_is_in_milliseconds(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1W", "P1M", "P1Y", "P1.5D", "PT1H1H", "PT1S ", "PT٣S"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime, match="is not a duration: write it like P1DT12H30M or PT90S"):
        time_before_ms(0, text)
    with pytest.raises(InvalidTime, match="is not a duration: write it like P1DT12H30M or PT90S"):
        duration_ms(text)
