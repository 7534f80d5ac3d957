"""A retention forecast: which offsets and groups expire when, by which rule (R18-R21).

Its inputs are groups, committed offsets and open transactions, as of the end of the log or as of the past.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.fold.state.merge_on_read import OFFSETS, RECORDS
from offsets_pipeline.questions.query.describe import GroupState, state_of
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.group_description import GroupRecordRow, live_records
from offsets_pipeline.semantics.partition_state import Group, TopicPartition
from offsets_pipeline.semantics.partitioning import is_misplaced
from offsets_pipeline.semantics.retention import Expiry, GroupForecast, RetentionInputs, Rule, Times
from offsets_pipeline.semantics.retention import forecast as forecast_of
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.questions.query.state_reader import StateReader

_OFFSETS = ("log_partition", "group_id", "topic", "partition", "commit_timestamp", "expire_timestamp")
_ANSWERED = ("committed_offset", "misplaced")
_RECORDS = ("log_partition", "group_id", "record_type", "record_key", "value_offset", "value", "tombstone_offset")
_BEHIND_ALL = (2**31, "")

NOW, LATER, HELD = "now", "later", "held"
_RANKS = {NOW: 0, LATER: 1, HELD: 2}


class ForecastRow(NamedTuple):
    """An offset that expires; without topic and partition, a group that is removed.

    ``when`` is NOW, LATER or HELD. HELD means that an open transaction keeps it. ``expires`` is the time of expiry in
    ISO 8601, None for a group without offsets.
    """

    when: str
    expires: str | None
    group: str
    topic: str | None
    partition: int | None
    rule: str
    reason: str


def forecast_rows(forecasts: Iterable[GroupForecast], now_ms: int, until_ms: int) -> list[ForecastRow]:
    """Return the rows that expire until ``until_ms``: first NOW, then LATER in the order of time, then HELD."""
    found: list[tuple[tuple[object, ...], ForecastRow]] = []
    for forecast in forecasts:
        for expiry in forecast.expiries:
            if expiry.at_ms is not None and expiry.is_over(until_ms):
                row = _offset_row(expiry, expiry.at_ms, now_ms)
                found.append((_sort_key(row, expiry.at_ms), row))
        if forecast.is_emptied(until_ms):
            row = _group_row(forecast, now_ms)
            found.append((_sort_key(row, forecast.emptied_at_ms), row))
    return [row for _, row in sorted(found, key=itemgetter(0))]


def _offset_row(expiry: Expiry, at_ms: int, now_ms: int) -> ForecastRow:
    when = NOW if expiry.is_due(now_ms) else HELD if expiry.rule is Rule.PENDING else LATER
    number, _, reason = expiry.rule.value.partition(": ")
    counted = "" if expiry.basis is None else f"; {expiry.basis.value}"
    return ForecastRow(when, shown_time(at_ms), expiry.group_id, *expiry.where, number, reason + counted)


def _group_row(forecast: GroupForecast, now_ms: int) -> ForecastRow:
    last = max((each.at_ms for each in forecast.expiries if each.at_ms is not None), default=None)
    expires = shown_time(last)
    if forecast.has_open_transaction:
        return ForecastRow(HELD, expires, forecast.group_id, None, None, "R20", "the group has an open transaction")
    when = NOW if forecast.is_removed(now_ms) else LATER
    reason = "the group has no offsets" if expires is None else "the group is removed with its last offset"
    return ForecastRow(when, expires, forecast.group_id, None, None, "R21", reason)


def _sort_key(row: ForecastRow, at_ms: int | None) -> tuple[object, ...]:
    """A group comes after its offsets."""
    at_ms = at_ms if row.when == LATER else None
    return _RANKS[row.when], at_ms or 0, row.group, row.topic is None, row.topic or "", row.partition or 0


def next_expiries(reader: StateReader, retention_ms: int) -> dict[str, Expiry]:
    """Return the first expiry of each group with offsets that expire if the log gets no more records (R18-R20)."""
    found = {}
    for held in retention_inputs(reader):
        expiries = forecast_of(held, retention_ms, reader.current.semantics).expiries
        due = [(each.at_ms, each) for each in expiries if each.at_ms is not None and each.rule.lets_expire]
        if due:
            found[held.group_id] = min(due)[1]
    return found


def retention_inputs(reader: StateReader) -> Iterator[RetentionInputs]:
    """Yield the retention inputs of each group that exists, in the order of log partition and group id.

    Raises StoreMismatch for a store with a topic of Kafka Connect.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    yield from inputs_of(state_of(reader))


def inputs_of(state: GroupState) -> Iterator[RetentionInputs]:
    """Yield the retention inputs of the groups of a state, of now or of the past."""
    newest = state.newest(OFFSETS, (*_OFFSETS, *_ANSWERED))
    is_visible = pc.and_not(newest["committed_offset"].is_valid(), newest["misplaced"])
    offsets = _by_group(newest.filter(is_visible).select(_OFFSETS))
    records = _by_group(state.newest(RECORDS, _RECORDS))
    held_at, held = next(offsets, (_BEHIND_ALL, iter(())))
    for at, rows in records:
        while held_at < at:  # offsets that a group tombstone left behind (R14)
            held_at, held = next(offsets, (_BEHIND_ALL, iter(())))
        log_partition, group_id = at
        live = live_records(GroupRecordRow._make(row[2:]) for row in rows)
        if live is None or is_misplaced(group_id, log_partition, state.offsets_partitions, state.semantics):  # R1
            continue
        yield RetentionInputs(
            group_id,
            Group(*live),
            {TopicPartition(*row[2:4]): Times(*row[4:]) for row in held} if held_at == at else {},
            state.pending.get(at, set()),
        )


def _by_group(rows: pa.Table) -> Iterator[tuple[tuple[int, str], Iterator[tuple[Any, ...]]]]:
    """Rows by log partition and group id, their first two columns, in this order; timestamps become milliseconds."""
    batches = rows.sort_by([("log_partition", "ascending"), ("group_id", "ascending")]).to_reader()
    in_order = chain.from_iterable(
        zip(*(column.to_pylist() for column in in_milliseconds(batch).columns), strict=True) for batch in batches
    )
    return groupby(in_order, key=itemgetter(0, 1))
