"""Rows of a retention forecast: offsets and groups with the time and the rule of their expiry (R18-R21)."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import shown_time
from offsets_pipeline.semantics.retention import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.retention import Expiry, GroupForecast

NOW, LATER, HELD = "now", "later", "held"
_ORDER = {NOW: 0, LATER: 1, HELD: 2}


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
                found.append((_place(row, expiry.at_ms), row))
        if forecast.is_emptied(until_ms):
            row = _group_row(forecast, now_ms)
            found.append((_place(row, forecast.emptied_at_ms), row))
    return [row for _, row in sorted(found, key=itemgetter(0))]


def _offset_row(expiry: Expiry, at_ms: int, now_ms: int) -> ForecastRow:
    when = NOW if expiry.is_due(now_ms) else HELD if expiry.rule is Rule.PENDING else LATER
    number, _, reason = expiry.rule.value.partition(": ")
    counted = "" if expiry.basis is None else f"; {expiry.basis.value}"
    return ForecastRow(when, shown_time(at_ms), expiry.group_id, *expiry.where, number, reason + counted)


def _group_row(forecast: GroupForecast, now_ms: int) -> ForecastRow:
    last = max((each.at_ms for each in forecast.expiries if each.at_ms is not None), default=None)
    expires = None if last is None else shown_time(last)
    if forecast.has_open_transaction:
        return ForecastRow(HELD, expires, forecast.group_id, None, None, "R20", "the group has an open transaction")
    when = NOW if forecast.is_removed(now_ms) else LATER
    reason = "the group has no offsets" if expires is None else "the group is removed with its last offset"
    return ForecastRow(when, expires, forecast.group_id, None, None, "R21", reason)


def _place(row: ForecastRow, at_ms: int | None) -> tuple[object, ...]:
    """Return the sort key of a row: a group comes after its offsets."""
    at_ms = at_ms if row.when == LATER else None
    return _ORDER[row.when], at_ms or 0, row.group, row.topic is None, row.topic or "", row.partition or 0
