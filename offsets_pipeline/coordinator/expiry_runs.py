"""Expiration in an owned store (R18-R22): one run over its log partitions, and repeated runs beside a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import Clock, shown_time
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.expiration import ExpiryReport
from offsets_pipeline.coordinator.loading import LoadStatus
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import OffsetsError, UndecodableRecord, UnsafeStorage
from offsets_pipeline.store.delta.reader import UNREADABLE

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings


class ExpiryRun(NamedTuple):
    """One run over the log partitions: numbers of expired offsets and removed groups, and the failed partitions."""

    at: str
    store: str
    offsets: int
    groups: int
    failed: list[int]


class StreamExpiry(Periodic[None]):
    """Expires the offsets of an owned store beside a stream that folds it, every `offsets_retention_check_interval_ms`.

    Each run appends tombstones; only the stream's batches change the state tables (R22). If a run fails, it prints a
    warning, once until a run succeeds, and the next run tries again.
    """

    def __init__(
        self, location: str, settings: Settings, clock: Clock, on_expiry: Callable[[int, int], None] | None = None
    ) -> None:
        """``on_expiry`` is called with the numbers of offsets and groups after each run that expired some."""
        self._location = location
        self._settings = settings
        self._clock = clock
        self._on_expiry = on_expiry
        self._coordinator: Coordinator | None = None
        super().__init__(
            self._expire,
            settings.coordinator.offsets_retention_check_interval_ms,
            clock.now_ms,
            warn=warn,
            describe=lambda error: (
                f"cannot expire offsets of {location}: {in_one_line(error)}; the next run tries again"
            ),
            at_end=self._close_coordinator,
            name="expiry",
        )

    def _expire(self) -> None:
        """Run once. Ends the runs if none on this storage can succeed."""
        try:
            if self._coordinator is None:
                self._coordinator = open_coordinator(self._location, self._settings, self._clock)
            run = expire_once(self._coordinator, self._location, self._clock, self.is_stopped)
        except UnsafeStorage as unsafe:
            warn(f"this stream does not expire offsets: {unsafe}")
            self.stop()
            return
        except Exception:
            self._close_coordinator()  # the next run opens the log again
            raise
        if self._on_expiry is not None and (run.offsets or run.groups):
            self._on_expiry(run.offsets, run.groups)

    def _close_coordinator(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            return
        try:
            coordinator.close()
        except Exception as error:  # noqa: BLE001 - all that it appended is in the log
            warn(f"cannot close the coordinator of {self._location}: {in_one_line(error)}")


def expire_once(
    coordinator: Coordinator, location: str, clock: Clock, is_stopping: Callable[[], bool] = lambda: False
) -> ExpiryRun:
    """Abort overdue transactions, and expire offsets in every log partition (R22). Prints a warning of each failure.

    ``location`` is the store's path as the caller wrote it. Stops before the next partition if ``is_stopping``.
    """
    at = shown_time(clock.now_ms())
    reports = []
    try:
        coordinator.abort_overdue_transactions()
    except (OffsetsError, *UNREADABLE) as failed:
        warn(f"cannot abort overdue transactions of {coordinator.store.location}: {failed}; the next run tries again")
    for log_partition in range(coordinator.store.properties.offsets_partitions):
        if is_stopping():
            break
        error = load_if_unloaded(coordinator, log_partition)
        report = coordinator.try_to_expire(log_partition) if error is None else ExpiryReport(log_partition, [], error)
        if report.error is not None:
            warn_of_partition(
                coordinator, log_partition, report.error, "its offsets stay until the next run, which tries again"
            )
        reports.append(report)
    return ExpiryRun(
        at,
        location,
        sum(len(group.expired) for report in reports for group in report.groups),
        sum(group.is_removed for report in reports for group in report.groups),
        [report.log_partition for report in reports if report.error is not None],
    )


def open_coordinator(location: str, settings: Settings, clock: Clock) -> Coordinator:
    """Open a coordinator with all log partitions loaded, or with none if a log partition has a corrupt record.

    In the second case `load_if_unloaded` loads each log partition alone.
    """
    opened = partial(Coordinator.open, OwnedStore.open(location), settings, clock=clock, housekeeping=False)
    try:
        return opened()
    except UndecodableRecord:
        return opened(partitions=())


def load_if_unloaded(coordinator: Coordinator, log_partition: int) -> Exception | None:
    """Load a log partition unless it is loaded. Returns the error if that fails."""
    try:
        if coordinator.status(log_partition) is LoadStatus.UNLOADED:
            coordinator.load_partition(log_partition)
    except (OffsetsError, *UNREADABLE) as error:
        return error
    return None


def warn_of_partition(coordinator: Coordinator, log_partition: int, error: Exception, then: str) -> None:
    """Print a warning about one log partition; ``then`` is the consequence of the error."""
    warn(f"log partition {log_partition} of {coordinator.store.location}: {error}; {then}")
