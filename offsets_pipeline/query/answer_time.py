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
    from collections.abc import Iterable, Iterator, Mapping

    from offsets_pipeline.history.log_history import LogHistory
    from offsets_pipeline.query.state_reader import StateReader

    _Notes = Mapping[int, Mapping[str, int | None]]

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

    def of_partition(self, log_partition: int) -> tuple[Stale, ...]:
        """Return what a log partition's answers lack."""
        return tuple(each for each in self.stale if each.log_partition == log_partition)


def answer_time(reader: StateReader, mirror_interval_ms: int) -> AnswerTime:
    """Return the time that the answers of a reader are as of.

    ``mirror_interval_ms``: longest time since the last reading of a followed topic after which its mirror is behind.
    """
    current = reader.current
    notes = _notes(reader.table(LOG_PARTITIONS.name).rows(), current.log_incarnation)
    ends = {at: each.folded_to for at, each in current.progress.items()}
    stale = list(_missing(notes, ends, reader.opened_ms - mirror_interval_ms))
    at_ms = _noted_ms(notes, reader.opened_ms, reader.properties.kind)
    for at, records in current.unfolded.items():
        stored = current.stored.get(at)
        stale.append(
            Stale(at, NOT_FOLDED, records, None if stored is None else shown_time(stored.folded_at_us // 1000))
        )
        if stored is not None and at_ms is not None:
            at_ms = min(at_ms, stored.folded_at_us // 1000)
    return AnswerTime(None if at_ms is None else shown_time(at_ms), _in_order(stale))


def log_answer_time(history: LogHistory, mirror_interval_ms: int, until_ms: int | None = None) -> AnswerTime:
    """Return the time that answers from the log are as of: the end of the log, or an earlier time (``until_ms``).

    Nothing is stale at a time up to which the log has all records. ``mirror_interval_ms`` as of `answer_time`.
    """
    notes = _notes(history.notes, history.current.number)
    at_ms = _noted_ms(notes, history.opened_ms, history.properties.kind)
    stale = _missing(notes, {}, history.opened_ms - mirror_interval_ms, until_ms)
    if until_ms is not None:
        at_ms = until_ms if at_ms is None else min(at_ms, until_ms)
    return AnswerTime(None if at_ms is None else shown_time(at_ms), _in_order(stale))


def log_answer_at(history: LogHistory, positions: Mapping[int, int]) -> AnswerTime:
    """Return what answers as of positions of the log lack: a log partition that ends before its position is stale."""
    notes = _notes(history.notes, history.current.number)
    found = _missing(
        {at: note for at, note in notes.items() if positions.get(at, 0) > (note["end_offset"] or 0)}, {}, 0
    )
    return AnswerTime(None, _in_order(found))


def _in_order(stale: Iterable[Stale]) -> list[Stale]:
    return sorted(stale, key=lambda each: each.log_partition)


def _noted_ms(notes: _Notes, opened_ms: int, kind: str) -> int | None:
    """The time up to which the log has all records."""
    times = [_of_mirror(each) for each in notes.values()] if kind != OWNED else [opened_ms]
    known = [each for each in times if each is not None]
    chosen = min if any(each["read_at"] is not None for each in notes.values()) else max
    return chosen(known, default=None)


def _of_mirror(note: Mapping[str, int | None]) -> int | None:
    return note["updated_at"] if note["read_at"] is None else note["read_at"]


def _missing(
    notes: _Notes, ends: Mapping[int, int], fresh_from_ms: int, until_ms: int | None = None
) -> Iterator[Stale]:
    """What the log lacks of records before a time.

    ``ends``: the end of each log partition, where it is known to be higher than its note.
    """

    def counts(since_ms: int) -> bool:
        return until_ms is None or since_ms < until_ms

    for at, note in notes.items():
        stable, topic_end, read_at = note["stable_offset"], note["topic_end_offset"], note["read_at"]
        end = max(note["end_offset"] or 0, ends.get(at, 0))
        open_since = note["open_since"]
        is_held = topic_end is not None and stable is not None and stable < topic_end
        if is_held and open_since is not None and counts(open_since):
            yield Stale(at, HELD_BACK, (topic_end or 0) - max(stable or 0, end), shown_time(open_since))
        missing = max(0, min(each for each in (stable, topic_end) if each is not None) - end) if topic_end else 0
        if read_at is not None and (missing or read_at < fresh_from_ms) and counts(read_at):
            yield Stale(at, MIRROR_BEHIND, missing or None, shown_time(read_at))


def _notes(rows: pa.Table | None, log_incarnation: int) -> dict[int, Mapping[str, int | None]]:
    """The rows of `log_partitions` of one log incarnation, by log partition; times in milliseconds."""
    if rows is None:
        return {}
    columns = {name: rows[name].to_pylist() for name in _OFFSETS}
    for name in _TIMES:  # as numbers: Arrow imports pandas to convert a time
        columns[name] = [None if each is None else each // 1000 for each in rows[name].cast(pa.int64()).to_pylist()]
    notes = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return {each["log_partition"]: each for each in notes if each["log_incarnation"] == log_incarnation}
