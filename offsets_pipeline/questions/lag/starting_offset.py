"""Where a consumer of a group would start, and why (R29)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import duration_ms, shown_time
from offsets_pipeline.errors import InvalidReset, InvalidTime

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic_positions.positions import Position
    from offsets_pipeline.questions.query.describe import OffsetAnswer

_BY_DURATION = "by_duration:"


class Strategy(StrEnum):
    """A strategy of auto.offset.reset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


class ResetPolicy(NamedTuple):
    """`auto.offset.reset`: a strategy, and for `by_duration` the duration in ms."""

    strategy: Strategy
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class StartingOffset:
    """Where a consumer would start.

    ``offset`` is None if it would fail, or wait without an end, or if that depends on unknown positions.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    committed_offset: int | None
    strategy: str
    reason: str


def parse_reset(text: str) -> ResetPolicy:
    """Return the policy of a value of auto.offset.reset, by_duration with ISO 8601 as PT1H30M. Raises InvalidReset."""
    if text.startswith(_BY_DURATION):
        try:
            back_ms = duration_ms(text.removeprefix(_BY_DURATION))
        except InvalidTime as error:
            raise InvalidReset(f"{text!r} is not allowed: {error}") from None
        if back_ms < 0:
            raise InvalidReset(f"{text!r} is not allowed: its duration is negative; write it like by_duration:PT1H")
        return ResetPolicy(Strategy.BY_DURATION, back_ms)
    if text not in (Strategy.EARLIEST, Strategy.LATEST, Strategy.NONE):
        raise InvalidReset(f"{text!r} is not earliest, latest, none or by_duration:PT1H")
    return ResetPolicy(Strategy(text))


def starting_offset(
    group: str,
    place: tuple[str, int],
    committed: OffsetAnswer | None,
    policy: ResetPolicy,
    position: Position | None,
    now_ms: int,
    *,
    is_pending: bool = False,
) -> StartingOffset:
    """Return where a consumer of a group would start in a partition (R29); it waits first if a commit ``is_pending``.

    ``position`` has the partition's start and end, and for `by_duration` one time; None if it is not known. With the
    end of the commit's leader epoch a consumer notices a log that was truncated since, as Java's does since Kafka 2.1.
    """

    def answer(offset: int | None, strategy: str, reason: str) -> StartingOffset:
        held = None if committed is None else committed.offset
        return StartingOffset(group, *place, offset, held, strategy, reason)

    unstable = ""
    if is_pending:  # R17: with or without a committed offset
        unstable = "; a consumer waits first: an open transaction has a newer commit (UNSTABLE_OFFSET_COMMIT)"
    if committed is not None:
        if position is not None and position.is_epoch_ahead:
            ahead = f"the leader epoch {committed.leader_epoch} of the committed offset is later than the leader's"
            mend = "a consumer waits until the leader has it; reset the offset to commit it without an epoch"
            return answer(None, "committed", f"{ahead}: {mend}{unstable}")
        end = None if position is None else position.epoch_end
        cut_at = end if end is not None and end < committed.offset else None
        if position is None or (cut_at is None and position.earliest <= committed.offset <= position.latest):
            return answer(committed.offset, "committed", "the group committed this offset" + unstable)
        if cut_at is not None:
            side = f"above the end of its leader epoch {committed.leader_epoch}, {cut_at}: the log was truncated"
        else:
            side = "below the log start" if committed.offset < position.earliest else "above the log end"
        why = f"the committed offset {committed.offset} is {side}"
        if cut_at is not None and cut_at >= position.earliest and policy.strategy is not Strategy.NONE:
            return answer(cut_at, "truncated", f"{why}, and a consumer goes on at that end{unstable}")
    else:
        why = "the group has no committed offset"
    offset, reason = _by_policy(policy, position, now_ms)
    return answer(offset, policy.strategy, f"{why}, and {reason}{unstable}")


def _by_policy(policy: ResetPolicy, position: Position | None, now_ms: int) -> tuple[int | None, str]:
    if policy.strategy is Strategy.NONE:
        return None, "none makes the consumer fail"
    if position is None:
        return None, f"the position that {policy.strategy} stands for is not known"
    if policy.strategy is Strategy.EARLIEST:
        return position.earliest, "earliest is the log start"
    if policy.strategy is Strategy.LATEST:
        return position.latest, "latest is the log end"
    since = shown_time(now_ms - policy.duration_ms)
    if not position.times:
        return None, f"no sample is as old as {since}, which by_duration stands for"
    offset = position.times[0].offset
    if offset is None:
        return position.latest, f"no record is of {since} or later: a consumer waits for one, from the log end"
    return max(offset, position.earliest), f"by_duration is the first record of {since} or later"
