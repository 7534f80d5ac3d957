"""Where a consumer would start (R29)."""

from __future__ import annotations

import pytest

from offsets_pipeline.errors import InvalidReset
from offsets_pipeline.ingest.topic_positions.positions import Position, TimedOffset
from offsets_pipeline.questions.lag.starting_offset import parse_reset, starting_offset
from offsets_pipeline.questions.query.describe import OffsetAnswer

NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000
SINCE = "2026-11-18T10:06:40.000Z"


def committed(offset: int) -> OffsetAnswer:
    return OffsetAnswer("t", 0, offset, 4, "")


def truncated(end: int) -> Position:
    """Leader epoch 4 ends at this offset."""
    return Position(3, 20, epoch_end=end)


@pytest.mark.parametrize(
    ("held", "reset", "position", "offset", "strategy", "said"),
    [
        (committed(5), "earliest", Position(0, 10), 5, "committed", "the group committed this offset"),
        (committed(5), "none", None, 5, "committed", "the group committed this offset"),
        (committed(10), "earliest", Position(0, 10), 10, "committed", "the group committed this offset"),
        (committed(3), "latest", Position(3, 10), 3, "committed", "the group committed this offset"),
        (None, "earliest", Position(3, 10), 3, "earliest", "no committed offset, and earliest is the log start"),
        (None, "latest", Position(3, 10), 10, "latest", "no committed offset, and latest is the log end"),
        (None, "none", Position(3, 10), None, "none", "no committed offset, and none makes the consumer fail"),
        (None, "latest", None, None, "latest", "the position that latest stands for is not known"),
        (
            committed(2),
            "latest",
            Position(3, 10),
            10,
            "latest",
            "the committed offset 2 is below the log start, and latest is the log end",
        ),
        (committed(11), "earliest", Position(3, 10), 3, "earliest", "the committed offset 11 is above the log end"),
        (committed(11), "none", Position(3, 10), None, "none", "and none makes the consumer fail"),
        (committed(9), "latest", truncated(9), 9, "committed", "the group committed this offset"),
        (
            committed(10),
            "latest",
            truncated(9),
            9,
            "truncated",
            "offset 10 is above the end of its leader epoch 4, 9: the log was truncated, and a consumer goes on",
        ),
        (committed(50), "earliest", truncated(3), 3, "truncated", "leader epoch 4, 3: the log was truncated"),
        (committed(50), "latest", truncated(2), 20, "latest", "the log was truncated, and latest is the log end"),
        (committed(10), "none", truncated(9), None, "none", "was truncated, and none makes the consumer fail"),
        (
            committed(5),
            "earliest",
            Position(3, 20, is_epoch_ahead=True),
            None,
            "committed",
            "the leader epoch 4 of the committed offset is later than the leader's: a consumer waits",
        ),
        (
            None,
            "by_duration:PT1H",
            Position(3, 10, (TimedOffset(NOW_MS - HOUR_MS, 7),)),
            7,
            "by_duration",
            f"by_duration is the first record of {SINCE} or later",
        ),
        (
            None,
            "by_duration:PT1H",
            Position(8, 10, (TimedOffset(NOW_MS - HOUR_MS, 7),)),  # which the log has no longer
            8,
            "by_duration",
            f"by_duration is the first record of {SINCE} or later",
        ),
        (
            None,
            "by_duration:PT1H",
            Position(3, 10, (TimedOffset(NOW_MS - HOUR_MS, None),)),
            10,
            "by_duration",
            f"no record is of {SINCE} or later: a consumer waits for one, from the log end",
        ),
        (None, "by_duration:PT1H", Position(3, 10), None, "by_duration", f"no sample is as old as {SINCE}"),
        (
            committed(5),
            "latest",
            Position(0, 10),
            5,
            "committed",
            "an open transaction has a newer commit (UNSTABLE_OFFSET_COMMIT)",
        ),
        (
            None,
            "latest",
            Position(0, 10),
            10,
            "latest",
            "; a consumer waits first: an open transaction has a newer commit (UNSTABLE_OFFSET_COMMIT)",
        ),
    ],
)
def test_consumer_starts_where_kafka_lets_it_start(
    held: OffsetAnswer | None, reset: str, position: Position | None, offset: int | None, strategy: str, said: str
) -> None:  # R29
    is_pending = "UNSTABLE_OFFSET_COMMIT" in said
    found = starting_offset("g", ("t", 0), held, parse_reset(reset), position, NOW_MS, is_pending=is_pending)
    assert found.reason.endswith("UNSTABLE_OFFSET_COMMIT)") is is_pending
    assert (found.offset, found.strategy) == (offset, strategy)
    assert said in found.reason
    assert found.committed_offset == (None if held is None else held.offset)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soonest", "'soonest' is not earliest, latest, none or by_duration:PT1H"),
        ("by_duration", "'by_duration' is not"),
        ("by_duration:1h", "'by_duration:1h' is not allowed: '1h' is not a duration"),
        ("by_duration:-PT1H", "'by_duration:-PT1H' is not allowed: its duration is negative"),
    ],
)
def test_wrong_policy_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidReset) as raised:
        parse_reset(text)
    assert str(raised.value).startswith(said)
