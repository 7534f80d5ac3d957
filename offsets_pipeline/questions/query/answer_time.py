"""Data time: the time up to which a store holds all records of its log, and what its answers lack (R36).

An owned log is read to its end, so its data time is the time at which the reader opened it. A log partition of a
followed topic has all records up to the last look at which the log had them, or up to its newest record if that is
later: records are appended in order. Segment files have the records up to the time at which they were read. Log
partitions with too many records to fold answer as of their last folded record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.fold.state.data_time import Notes, data_ms_of, newest_records, notes_of
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.schemas import LOG

if TYPE_CHECKING:
    from offsets_pipeline.questions.history.log_history import LogHistory
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

#: Reasons for which a log partition's answers are not current.
NOT_FOLDED, HELD_BACK, MIRROR_BEHIND = "not folded", "held back", "mirror behind"


@dataclass(frozen=True)
class Stale:
    """A log partition whose answers lack records.

    ``reason`` is NOT_FOLDED: the records are in the log, and too many for a question to fold. HELD_BACK: an open
    transaction holds them back. MIRROR_BEHIND: the topic has them, or nothing has read the topic for some time.
    ``records`` is their number, None if unknown; ``since`` the time up to which none is missing, in ISO 8601.
    """

    log_partition: int
    reason: str
    records: int | None
    since: str | None


@dataclass(frozen=True)
class AnswerTime:
    """The data time of answers, in ISO 8601; None before the first record. ``stale``: where records are missing.

    ``data_ms`` has the data time of each log partition in ms since 1970. Others are as of the end of the log.
    """

    as_of: str | None
    stale: list[Stale]
    data_ms: Mapping[int, int] = field(default_factory=dict, compare=False)

    def of_partition(self, log_partition: int) -> tuple[Stale, ...]:
        """Return the reasons why answers of a log partition lack records."""
        return tuple(each for each in self.stale if each.log_partition == log_partition)

    def as_of_partition(self, log_partition: int) -> str | None:
        """Return the data time of a log partition, in ISO 8601."""
        return shown_time(self.data_ms.get(log_partition)) or self.as_of


def answer_time(reader: StateReader, mirror_interval_ms: int) -> AnswerTime:
    """Return the data time of a reader's answers.

    ``mirror_interval_ms``: the mirror of a followed topic is behind if its data time is longer ago.
    """
    current = reader.current
    notes = notes_of(reader.notes, current.log_incarnation)
    data_ms = _data_ms(notes, reader, current.log_incarnation)
    ends = {at: each.folded_to for at, each in current.progress.items()}
    stale = list(_missing(notes, ends, data_ms, reader.opened_ms - mirror_interval_ms))
    folded = {at: current.stored[at] for at in current.unfolded if at in current.stored}
    of_records: dict[int, int] = {}
    for incarnation in {each.log_incarnation for each in folded.values()}:
        folded_to = {at: each.folded_to for at, each in folded.items() if each.log_incarnation == incarnation}
        of_records |= newest_records(reader.table(LOG.name), incarnation, ends=folded_to)
    for at, each in folded.items():
        data_ms[at] = of_records.get(at, each.folded_at_us // 1000)
    for at, records in current.unfolded.items():
        stale.append(Stale(at, NOT_FOLDED, records, shown_time(data_ms[at]) if at in folded else None))
    return _answered(data_ms, stale, reader.opened_ms, reader.properties.kind)


def data_times(reader: StateReader) -> pa.Table:
    """Return the data time of each log partition of a reader, with the columns log_partition and data_time."""
    data_ms = answer_time(reader, 0).data_ms
    times = pa.array([each * 1000 for each in data_ms.values()], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table({"log_partition": pa.array(list(data_ms), pa.int32()), "data_time": times})


def log_answer_time(history: LogHistory, mirror_interval_ms: int, until_ms: int | None = None) -> AnswerTime:
    """Return the data time of answers from the log: as of its end, or of an earlier time (``until_ms``).

    Nothing is stale at a time up to which the log has all records. ``mirror_interval_ms`` as of `answer_time`.
    """
    notes = notes_of(history.notes, history.current_log.number)
    data_ms = _data_ms(notes, history, history.current_log.number)
    stale = list(_missing(notes, {}, data_ms, history.opened_ms - mirror_interval_ms, until_ms))
    if until_ms is not None:
        data_ms = {at: min(each, until_ms) for at, each in data_ms.items()}
    asked_ms = history.opened_ms if until_ms is None else min(until_ms, history.opened_ms)
    return _answered(data_ms, stale, asked_ms, history.properties.kind)


def log_answer_at(history: LogHistory, positions: Mapping[int, int]) -> AnswerTime:
    """Return the stale log partitions of answers at positions: those that end before their position."""
    notes = notes_of(history.notes, history.current_log.number)
    beyond = {at: note for at, note in notes.items() if positions.get(at, 0) > note["end_offset"]}
    found = _missing(beyond, {}, {at: note["read_at"] for at, note in beyond.items()}, 0)
    return AnswerTime(None, _in_order(found))


def _in_order(stale: Iterable[Stale]) -> list[Stale]:
    return sorted(stale, key=lambda each: each.log_partition)


def _answered(data_ms: dict[int, int], stale: list[Stale], at_most_ms: int, kind: str) -> AnswerTime:
    """The answer, as of the earliest log partition; that of an owned log is as of the end of the log."""
    known = [*data_ms.values(), *([at_most_ms] if kind == OWNED else [])]
    return AnswerTime(shown_time(min(known)) if known else None, _in_order(stale), data_ms)


def _data_ms(notes: Notes, of: StoreSnapshot, log_incarnation: int) -> dict[int, int]:
    return data_ms_of(of.properties.kind, of.location, of.table(LOG.name), notes, log_incarnation, of.opened_ms)


def _missing(
    notes: Notes, ends: Mapping[int, int], data_ms: Mapping[int, int], fresh_from_ms: int, until_ms: int | None = None
) -> Iterator[Stale]:
    """What the log lacks of records before a time.

    ``ends``: the end of each log partition, where it is known to be higher than its note. ``data_ms``: its data time.
    """

    def counts(since_ms: int) -> bool:
        return until_ms is None or since_ms < until_ms

    for at, note in notes.items():
        stable, topic_end, complete_ms = note["stable_offset"], note["topic_end_offset"], data_ms.get(at, 0)
        end = max(note["end_offset"], ends.get(at, 0))
        open_since = note["open_since"]
        held = 0 if topic_end is None or stable is None else topic_end - max(stable, end)
        if held > 0 and open_since is not None and counts(open_since):
            yield Stale(at, HELD_BACK, held, shown_time(open_since))
        missing = max(0, min(each for each in (stable, topic_end) if each is not None) - end) if topic_end else 0
        is_followed = note["read_at"] is not None
        if is_followed and (missing or complete_ms < fresh_from_ms) and counts(complete_ms):
            yield Stale(at, MIRROR_BEHIND, missing or None, shown_time(complete_ms))
