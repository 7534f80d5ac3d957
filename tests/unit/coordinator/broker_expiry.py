"""Compares a real broker's expiration between two captures 4.2.0-expiry-* with a forecast from the earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.questions.query.retention_forecast import HELD, NOW
from tests.logs import Identity, oracle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.questions.query.retention_forecast import ForecastRow

#: Each with the one behind it. The broker looks every five seconds; no time is over so shortly before a capture.
PAIRS = [("4.2.0-expiry-before", "4.2.0-expiry-mid"), ("4.2.0-expiry-mid", "4.2.0-expiry-after")]
RETENTION_MINUTES = 1  # of that broker


def wall_clock_ms(capture: str) -> int:
    """When the broker gave its answers."""
    at_ms: int = oracle(capture)["wall_clock_ms"]
    return at_ms


def assert_as_the_broker_did(rows: Iterable[ForecastRow], earlier: str, later: str) -> None:
    """Assert that the forecast from the earlier capture names exactly the offsets that the later one lacks.

    Leaves out offsets that were committed again: a forecast assumes no further records.
    """
    rows = list(rows)
    before, after = _offsets(earlier), _offsets(later)
    again = {identity for identity in before.keys() & after.keys() if before[identity] != after[identity]}
    due = {
        (row.group, row.topic, row.partition)
        for row in rows
        if row.when == NOW and row.topic is not None and row.partition is not None
    }
    assert due - again == before.keys() - after.keys() != set()
    removed = {row.group for row in rows if row.when == NOW and row.topic is None}
    assert removed - {group_id for group_id, _, _ in again} == _listed(earlier) - _listed(later) != set()
    # an open transaction keeps this group, and not its offset
    held = {row.group for row in rows if row.when == HELD}
    assert held == ({"e-pending"} if ("e-pending", "t1", 0) in due else set())
    assert held <= _listed(later)


def _offsets(capture: str) -> dict[Identity, int]:
    return {
        (group_id, each["topic"], each["partition"]): each["offset"]
        for group_id, answer in oracle(capture)["groups"].items()
        for each in answer.get("offsets") or ()
    }


def _listed(capture: str) -> set[str]:
    return {group_id for group_id, answer in oracle(capture)["groups"].items() if answer["listed"]}
