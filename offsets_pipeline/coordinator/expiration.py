"""Expiration of offsets: the retention rules find expired offsets, and tombstones delete them (R18-R22)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.appender import EXCLUSIVE, PARTITION
from offsets_pipeline.coordinator.record_encoding import group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.semantics.log_row import EXPIRY
from offsets_pipeline.semantics.retention import ExpiredGroup, forecast, holdings_of

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.appender import Claims
    from offsets_pipeline.coordinator.core import CoordinatorCore
    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.semantics.partition_state import PartitionState

#: Offsets that one request examines before it stops. Commits wait while it runs.
_MAX_OFFSETS = 20_000


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The groups with expired offsets in one log partition. After an ``error`` the next run expires the rest (R22)."""

    log_partition: int
    groups: list[ExpiredGroup]
    error: Exception | None = None


def expire(
    state: PartitionState, group_ids: Iterable[str], now_ms: int, retention_ms: int
) -> Outcome[tuple[list[ExpiredGroup], int]]:
    """Return tombstones for the expired offsets and groups among ``group_ids`` (R22).

    Examines the groups in order, each of them whole. Stops early if the groups so far hold many offsets. The response
    has the groups in which offsets expired, and the number of group ids that were examined.
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
    return Outcome(records, (found, looked_at))


def expire_partition(
    core: CoordinatorCore, log_partition: int, now_ms: int | None, timeout_ms: int | None = None
) -> ExpiryReport:
    """See `Coordinator.try_to_expire`."""
    report = ExpiryReport(log_partition, [])
    group_ids: list[str] = []
    done = 0

    def handler(now: int) -> Outcome[tuple[list[ExpiredGroup], int]]:
        state = core.partitions.state(log_partition)
        if not done:  # the groups as of the first append
            group_ids[:] = state.groups
        at_ms = now if now_ms is None else now_ms
        return expire(state, islice(group_ids, done, None), at_ms, core.retention_ms(None))

    claims: Claims = {(PARTITION, log_partition): EXCLUSIVE}
    try:
        while True:
            what = f"expire log partition {log_partition}"
            expired, looked_at = core.submit(what, handler, lambda: claims, timeout_ms).result()
            report.groups.extend(expired)
            done += looked_at
            with core.counting:
                core.counts.expired_offsets += sum(len(each.expired) for each in expired)
                core.counts.expired_groups += sum(each.is_removed for each in expired)
            if done >= len(group_ids):
                return report
    except OffsetsError as error:
        return replace(report, error=error)
