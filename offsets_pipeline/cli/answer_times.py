"""How commands say as of when they answer: fields of JSON, a status line on a terminal, warnings on stderr."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import show_status
from offsets_pipeline.observability.warnings import warn
from offsets_pipeline.query.answer_time import HELD_BACK, MIRROR_BEHIND, NOT_FOLDED, AnswerTime, Stale, answer_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.state_reader import StateReader

_SHOWN = 5  # log partitions of a warning


def answer_time_of(reader: StateReader, store: str, settings: Settings) -> AnswerTime:
    """Return the time that the reader's answers are as of; warn of what they lack."""
    found = answer_time(reader, 2 * settings.topic.note_interval_ms)
    if found.as_of is not None:
        show_status(f"{store} as of {found.as_of}")
    for reason, say in ((NOT_FOLDED, _not_folded), (HELD_BACK, _held_back), (MIRROR_BEHIND, _mirror_behind)):
        of_reason = [each for each in found.stale if each.reason == reason]
        if of_reason:
            warn(say(store, of_reason))
    return found


def _not_folded(store: str, stale: Sequence[Stale]) -> str:
    return (
        f"the answers lack {_records(stale)} records of {store} that are not folded yet; "
        f"run `offsets fold --store {shlex.quote(store)} --available-now`"
    )


def _held_back(store: str, stale: Sequence[Stale]) -> str:
    return (
        f"the answers lack {_records(stale)} records of {store} that an open transaction holds back in "
        f"{_partitions(stale)} since {_first(stale)}; `offsets log-info` shows the transaction"
    )


def _mirror_behind(store: str, stale: Sequence[Stale]) -> str:
    missing = _records(stale)
    lacking = f"lack {missing} records of its topic" if missing else "may lack newer records of its topic"
    return (
        f"the answers of {store} {lacking}: {_partitions(stale)} were last read up to the end at {_first(stale)}; "
        "run `offsets follow`"
    )


def _records(stale: Sequence[Stale]) -> int:
    return sum(each.records or 0 for each in stale)


def _first(stale: Sequence[Stale]) -> str:
    return min(each.since for each in stale if each.since is not None)


def _partitions(stale: Sequence[Stale]) -> str:
    shown = ", ".join(str(each.log_partition) for each in stale[:_SHOWN])
    more = f" and {len(stale) - _SHOWN} more" if len(stale) > _SHOWN else ""
    return f"log partition{'s' if len(stale) > 1 else ''} {shown}{more}"
