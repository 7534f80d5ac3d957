"""Expiration of offsets: the retention rules find expired offsets, and tombstones delete them (R18-R22)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.coordinator.appender import EXCLUSIVE, PARTITION
from offsets_pipeline.coordinator.record_encoding import group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import Outcome, validated_group_id
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.semantics.log_row import EXPIRY
from offsets_pipeline.semantics.retention import (
    MS_PER_MINUTE,
    ExpiredGroup,
    Expiry,
    GroupForecast,
    forecast,
    holdings_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.coordinator.appender import Claims
    from offsets_pipeline.coordinator.core import CoordinatorCore
    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.semantics.partition_state import PartitionState

_LOG = logging.getLogger(__name__)

#: Offsets that one request examines before it stops. Commits wait while it runs.
_MAX_OFFSETS = 20_000


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The groups with expired offsets in one log partition. After an ``error`` the next run expires the rest (R22)."""

    log_partition: int
    groups: list[ExpiredGroup]
    error: Exception | None = None


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


class Expiration:
    """The expiration of a coordinator's offsets."""

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core

    def forecast(self, group_id: str, retention_ms: int | None) -> list[Expiry]:
        """See `Coordinator.forecast`."""
        with self._core.answering():
            held = holdings_of(self._core.state_for(validated_group_id(group_id)), group_id)
            return [] if held is None else forecast(held, self._retention_ms(retention_ms)).expiries

    def forecast_partition(self, log_partition: int, retention_ms: int | None) -> list[GroupForecast]:
        """See `Coordinator.forecast_partition`."""
        with self._core.answering():
            self._core.refuse_if_closed()
            self._core.catch_up()
            state = self._core.partitions.state(log_partition)
            holdings = (holdings_of(state, group_id) for group_id in state.groups)
            return [forecast(each, self._retention_ms(retention_ms)) for each in holdings if each]

    def expire_loaded(self, now_ms: int | None = None) -> list[ExpiryReport]:
        """See `Coordinator.expire_loaded`."""
        with self._core.lock:
            loaded = [state.log_partition for state in self._core.partitions.loaded()]
        return [self.expire(log_partition, now_ms) for log_partition in loaded]

    def expire(self, log_partition: int, now_ms: int | None, timeout_ms: int | None = None) -> ExpiryReport:
        """See `Coordinator.try_to_expire`."""
        report = ExpiryReport(log_partition, [])
        group_ids: list[str] = []
        done = 0

        def handler(now: int) -> Outcome[Expired]:
            state = self._core.partitions.state(log_partition)
            if not done:  # the groups as of the first append
                group_ids[:] = state.groups
            at_ms = now if now_ms is None else now_ms
            return expire(state, islice(group_ids, done, None), at_ms, self._retention_ms(None))

        claims: Claims = {(PARTITION, log_partition): EXCLUSIVE}
        try:
            while True:
                what = f"expire log partition {log_partition}"
                expired: Expired = self._core.submit(what, handler, lambda: claims, timeout_ms).result()
                report.groups.extend(expired.groups)
                done += expired.looked_at
                with self._core.lock:
                    self._core.counts.expired_offsets += sum(len(each.expired) for each in expired.groups)
                    self._core.counts.expired_groups += sum(each.is_removed for each in expired.groups)
                if done >= len(group_ids):
                    return report
        except OffsetsError as error:
            return replace(report, error=error)

    def keep_expired(self, now_ms: int) -> None:
        """Run `expire_loaded`, and log the errors; after `close` the next coordinator expires the rest."""
        for report in self.expire_loaded(now_ms):
            if report.error is not None and not self._core.closed.is_set():
                _LOG.warning("cannot expire all offsets of log partition %s: %s", report.log_partition, report.error)

    def _retention_ms(self, retention_ms: int | None) -> int:
        return self._core.settings.offsets_retention_minutes * MS_PER_MINUTE if retention_ms is None else retention_ms
