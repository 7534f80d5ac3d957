"""The coordinator's calls for expired offsets (R18-R22)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator import expiration
from offsets_pipeline.coordinator.appender import EXCLUSIVE
from offsets_pipeline.coordinator.requests import validated_group_id
from offsets_pipeline.coordinator.transactional import TransactionalCoordinator
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.semantics import retention

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from offsets_pipeline.coordinator.expiration import Expired
    from offsets_pipeline.coordinator.requests import Outcome
    from offsets_pipeline.semantics.retention import ExpiredGroup, Expiry, GroupForecast

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The groups with expired offsets in one log partition. After an ``error`` the next run expires the rest (R22)."""

    log_partition: int
    groups: list[ExpiredGroup]
    error: Exception | None = None


class ExpiringCoordinator(TransactionalCoordinator):
    """A coordinator's calls for expired offsets."""

    def forecast(self, group_id: str, retention_ms: int | None = None) -> list[Expiry]:
        """Return when each offset of a group expires if no record follows, and by which rule (R18-R20)."""
        with self._answering():
            validated_group_id(group_id)
            held = retention.holdings_of(self._state_for(group_id), group_id)
            return [] if held is None else retention.forecast(held, self._retention_ms(retention_ms)).expiries

    def forecast_partition(self, log_partition: int, retention_ms: int | None = None) -> list[GroupForecast]:
        """Return the forecasts for the groups of a log partition and their offsets, if no record follows (R18-R21)."""
        with self._answering():
            self._refuse_if_closed()
            self._catch_up()
            state = self._partitions.state(log_partition)
            holdings = (retention.holdings_of(state, group_id) for group_id in state.groups)
            return [retention.forecast(each, self._retention_ms(retention_ms)) for each in holdings if each]

    def expire(
        self, log_partition: int, now_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[ExpiredGroup]:
        """Append tombstones for the expired offsets and groups of a log partition (R18-R22); returns these groups.

        The tombstones of one group are in one append, those of many groups in several. ``timeout_ms`` applies to each
        append.
        """
        return [each for part in self._expire(log_partition, now_ms, timeout_ms) for each in part]

    def try_to_expire(self, log_partition: int, now_ms: int | None = None) -> ExpiryReport:
        """Run `expire`, but return an error in the report instead of raising it. The next run tries again (R22)."""
        found: list[ExpiredGroup] = []
        try:
            for part in self._expire(log_partition, now_ms, None):
                found += part
        except OffsetsError as error:
            return ExpiryReport(log_partition, found, error)
        return ExpiryReport(log_partition, found)

    def expire_loaded(self, now_ms: int | None = None) -> list[ExpiryReport]:
        """Run `try_to_expire` for every loaded log partition. A failure of one does not stop the others (R22)."""
        with self._lock:
            loaded = [state.log_partition for state in self._partitions.loaded()]
        return [self.try_to_expire(log_partition, now_ms) for log_partition in loaded]

    def _expire(self, log_partition: int, now_ms: int | None, timeout_ms: int | None) -> Iterator[list[ExpiredGroup]]:
        """Yield the groups with expired offsets, append by append, each after its append."""
        group_ids: list[str] = []
        done = 0

        def handler(now: int) -> Outcome[Expired]:
            state = self._partitions.state(log_partition)
            if not done:  # the groups as of the first append
                group_ids[:] = state.groups
            at_ms = now if now_ms is None else now_ms
            return expiration.expire(state, islice(group_ids, done, None), at_ms, self._retention_ms(None))

        claims: dict[Hashable, bool] = {("partition", log_partition): EXCLUSIVE}
        while True:
            request = self._submit(f"expire log partition {log_partition}", handler, lambda: claims, timeout_ms)
            expired: Expired = self._wait_for(request)
            with self._lock:
                self._counts.expired_offsets += sum(len(each.expired) for each in expired.groups)
                self._counts.expired_groups += sum(each.is_removed for each in expired.groups)
            yield expired.groups
            done += expired.looked_at
            if done >= len(group_ids):
                return

    def _expire_loaded(self, now_ms: int) -> None:
        for report in self.expire_loaded(now_ms):
            if report.error is not None:
                _LOG.warning("cannot expire all offsets of log partition %s: %s", report.log_partition, report.error)

    def _retention_ms(self, retention_ms: int | None) -> int:
        if retention_ms is not None:
            return retention_ms
        return self._settings.offsets_retention_minutes * retention.MS_PER_MINUTE
