from __future__ import annotations

from datetime import UTC, datetime

import pytest

from offsets_pipeline.clock import Clock, FixedClock, SystemClock, parse_time_ms, shown_time
from offsets_pipeline.errors import InvalidTime


def test_the_system_clock_tells_milliseconds_of_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(tz=UTC).timestamp()
    assert before - 1 <= clock.now_ms() / 1000 <= datetime.now(tz=UTC).timestamp() + 1


def test_a_fixed_clock_moves_only_when_told() -> None:
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
        ("2026-03-01T12:00:00.123Z", 1_772_366_400_123),
        ("2026-03-01T12:00:00.123999", 1_772_366_400_123),
        ("2026-03-01 14:00:00.123+02:00", 1_772_366_400_123),
        ("2026-03-01", 1_772_323_200_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_a_time_is_written_in_iso_8601_or_in_milliseconds(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "12:00", "2026-02-30", "2026-03-01T25:00", "²", "--5"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(InvalidTime, match="is no time: write it as 2026-03-01T12:00:00Z, or in milliseconds since"):
        parse_time_ms(text)


def test_a_time_is_shown_in_utc() -> None:
    assert shown_time(1_772_366_400_123) == "2026-03-01T12:00:00.123Z"
    assert shown_time(10**18) == f"{10**18} ms"
