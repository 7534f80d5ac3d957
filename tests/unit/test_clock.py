from __future__ import annotations

from datetime import UTC, datetime

from offsets_pipeline.clock import Clock, FixedClock, SystemClock


def test_the_system_clock_tells_milliseconds_of_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(tz=UTC).timestamp()
    assert before - 1 <= clock.now_ms() / 1000 <= datetime.now(tz=UTC).timestamp() + 1


def test_a_fixed_clock_moves_only_when_told() -> None:
    clock = FixedClock(1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    clock.advance_ms(500)
    assert clock.now_ms() == 1_500
