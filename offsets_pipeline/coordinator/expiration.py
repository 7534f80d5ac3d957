"""The handler that expires offsets: it applies the retention rules and returns tombstones (R22)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.coordinator.record_encoding import group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.semantics.log_row import EXPIRY
from offsets_pipeline.semantics.retention import ExpiredGroup, forecast, holdings_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.semantics.partition_state import PartitionState

#: Offsets that one request examines before it stops. Commits wait while it runs.
_MAX_OFFSETS = 20_000


class Expired(NamedTuple):
    """The groups in which a request expired offsets, and the number of group ids that it examined."""

    groups: list[ExpiredGroup]
    looked_at: int


def expire(state: PartitionState, group_ids: Iterable[str], now_ms: int, retention_ms: int) -> Outcome[Expired]:
    """Return tombstones for the expired offsets and groups among ``group_ids`` (R22).

    Examines the groups in order, each of them whole. Stops early if the groups so far hold many offsets.
    """
    found: list[ExpiredGroup] = []
    records: list[Record] = []
    looked_at = offsets = 0
    for group_id in group_ids:
        if offsets >= _MAX_OFFSETS:
            break
        looked_at += 1
        held = holdings_of(state, group_id)
        if held is None:
            continue
        offsets += 1 + len(held.offsets)
        expired = forecast(held, retention_ms).expired(now_ms)
        if expired is not None:
            found.append(expired)
            records += [offset_tombstone(state.log_partition, group_id, each.where, EXPIRY) for each in expired.expired]
            if expired.is_removed:
                records += group_tombstones(state.log_partition, group_id, held.group, EXPIRY)
    return Outcome(records, Expired(found, looked_at))
