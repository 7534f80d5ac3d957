"""As of when a store answers, and what its answers lack.

An owned log is read to its end, so its answers are as of the moment at which the reader opened it. A followed topic is
as of the last time at which the log held all of its records; segment files are as of the time at which they were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.clock import shown_time
from offsets_pipeline.delta.properties import OWNED
from offsets_pipeline.delta.schemas import LOG_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.query.state_reader import StateReader

#: Reasons for which a log partition's answers are not current.
NOT_FOLDED, HELD_BACK, MIRROR_BEHIND = "not folded", "held back", "mirror behind"

_TIMES = ("updated_at", "complete_since", "read_at", "open_since")
_OFFSETS = ("log_partition", "log_incarnation", "end_offset", "stable_offset", "topic_end_offset")


@dataclass(frozen=True)
class Stale:
    """A log partition whose answers lack records.

    ``reason`` is NOT_FOLDED: the records are in the log, and too many for a question to fold. HELD_BACK: an open
    transaction holds them back. MIRROR_BEHIND: the topic has them, or nothing has read the topic for some time.
    ``records`` is their number, None if unknown; ``since`` the time of the last record that counts, in ISO 8601.
    """

    log_partition: int
    reason: str
    records: int | None
    since: str | None


@dataclass(frozen=True)
class AnswerTime:
    """The time that answers are as of, in ISO 8601; None before the first record. ``stale``: where they are older."""

    as_of: str | None
    stale: list[Stale]


def answer_time(reader: StateReader, mirror_interval_ms: int) -> AnswerTime:
    """Return the time that the answers of a reader are as of.

    ``mirror_interval_ms``: longest time since the last reading of a followed topic after which its mirror is behind.
    """
    notes = _notes(reader)
    opened_ms = reader.opened_ms
    stale = sorted(_stale(reader, notes, opened_ms - mirror_interval_ms), key=lambda each: each.log_partition)
    times = [_of_mirror(each) for each in notes.values()] if reader.properties.kind != OWNED else [opened_ms]
    if any(each["read_at"] is not None for each in notes.values()):
        at_ms = min((each for each in times if each is not None), default=None)
    else:
        at_ms = max((each for each in times if each is not None), default=None)
    for at in reader.current.unfolded:
        stored = reader.current.stored.get(at)
        if stored is not None and at_ms is not None:
            at_ms = min(at_ms, stored.folded_at_us // 1000)
    return AnswerTime(None if at_ms is None else shown_time(at_ms), stale)


def _of_mirror(note: Mapping[str, int | None]) -> int | None:
    return note["updated_at"] if note["read_at"] is None else note["read_at"]


def _stale(reader: StateReader, notes: Mapping[int, Mapping[str, int | None]], fresh_from_ms: int) -> Iterator[Stale]:
    current = reader.current
    for at, records in current.unfolded.items():
        stored = current.stored.get(at)
        yield Stale(at, NOT_FOLDED, records, None if stored is None else shown_time(stored.folded_at_us // 1000))
    for at, note in notes.items():
        stable, topic_end, read_at = note["stable_offset"], note["topic_end_offset"], note["read_at"]
        end = max(note["end_offset"] or 0, current.progress[at].folded_to if at in current.progress else 0)
        if topic_end is not None and stable is not None and note["open_since"] is not None and stable < topic_end:
            yield Stale(at, HELD_BACK, topic_end - max(stable, end), shown_time(note["open_since"]))
        missing = max(0, min(each for each in (stable, topic_end) if each is not None) - end) if topic_end else 0
        if read_at is not None and (missing or read_at < fresh_from_ms):
            yield Stale(at, MIRROR_BEHIND, missing or None, shown_time(read_at))


def _notes(reader: StateReader) -> dict[int, dict[str, int | None]]:
    """The rows of `log_partitions` of the log incarnation that counts, by log partition; times in milliseconds."""
    rows = reader.table(LOG_PARTITIONS.name).rows()
    columns = {name: rows[name].to_pylist() for name in _OFFSETS}
    for name in _TIMES:  # as numbers: Arrow imports pandas to convert a time
        columns[name] = [None if each is None else each // 1000 for each in rows[name].cast(pa.int64()).to_pylist()]
    notes = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    counting = reader.current.log_incarnation
    return {each["log_partition"]: each for each in notes if each["log_incarnation"] == counting}
