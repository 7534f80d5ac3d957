"""The job that expires offsets of an owned store, once or every so often, and the forecast of what expires when.

A forecast is of any store: of an owned one by its log, as the job itself goes by it, of a mirrored one by its state
tables, for there the broker expires.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING

from offsets_pipeline.clock import MS_OF_HOUR, parse_time_ms, shown_time
from offsets_pipeline.coordinator.coordinator import Coordinator, ExpiryReport
from offsets_pipeline.coordinator.expiration import MS_PER_MINUTE, forecast
from offsets_pipeline.coordinator.forecast import ForecastRow, forecast_rows
from offsets_pipeline.coordinator.loading import LoadStatus
from offsets_pipeline.coordinator.store import OwnedStore
from offsets_pipeline.delta_reader import UNREADABLE
from offsets_pipeline.errors import NotCoordinator, OffsetsError, OptionNeedsAnother, UndecodableRecord
from offsets_pipeline.output import write_rows
from offsets_pipeline.stopping import Stopping
from offsets_pipeline.store_properties import OWNED, StoreProperties

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.coordinator.expiration import GroupForecast
    from offsets_pipeline.query.state import StateReader

_OF_FORECASTS = ("at", "within", "retention_minutes")


@dataclass(frozen=True)
class ExpiryRun:
    """One run over the log partitions: offsets that expired, groups that went, and log partitions that failed."""

    at: str
    store: str
    offsets: int
    groups: int
    failed: list[int]


def expire_offsets(options: argparse.Namespace, reader: StateReader, settings: Settings, clock: Clock) -> int:
    """The command `expire-offsets`; returns the exit status, which is 1 where a log partition failed in the one run.

    Raises NotCoordinator for a mirrored store, unless a forecast is asked for; OptionNeedsAnother, ConfigError and
    InvalidTime for options that are not allowed.
    """
    is_owned = StoreProperties.from_table_properties(reader.properties, reader.location).kind == OWNED
    if options.dry_run:
        return _write_forecast(options, reader, settings, clock, is_owned=is_owned)
    for name in _OF_FORECASTS:
        if getattr(options, name) is not None:
            raise OptionNeedsAnother(f"--{name.replace('_', '-')} is for a forecast: say --dry-run too")
    if not is_owned:
        raise NotCoordinator(
            f"{reader.location} is a mirrored store: its broker expires offsets, and only it may (R4); "
            "--dry-run says what it will expire"
        )
    last: ExpiryRun | None = None

    def runs() -> Iterator[ExpiryRun]:
        nonlocal last
        for last in _runs(reader.location, settings, clock, every=options.every):
            yield last
            sys.stdout.flush()

    if options.format == "table":
        for run in runs():
            failed = f"; log partitions {', '.join(map(str, run.failed))} failed" if run.failed else ""
            at = f"{run.at}: " if options.every else ""
            sys.stdout.write(f"{at}{run.offsets} offsets and {run.groups} groups expired in {run.store}{failed}\n")
    else:
        names = [each.name for each in fields(ExpiryRun)]
        rows = (astuple(run) for run in runs())
        if options.format == "csv":
            rows = ((*row[:-1], " ".join(map(str, row[-1]))) for row in rows)
        write_rows(names, rows, options.format)
    return 1 if last is not None and last.failed and not options.every else 0


def expire_once(
    coordinator: Coordinator, location: str, clock: Clock, is_stopping: Callable[[], bool] = lambda: False
) -> ExpiryRun:
    """Expire what is due in every log partition; of one that fails a line on stderr tells (R22).

    ``location`` is the store as whoever asked named it.
    """
    at = shown_time(clock.now_ms())
    reports = []
    for log_partition in range(coordinator.store.properties.offsets_partitions):
        if is_stopping():
            break
        error = _load(coordinator, log_partition)
        report = coordinator.try_to_expire(log_partition) if error is None else ExpiryReport(log_partition, [], error)
        if report.error is not None:
            _warn(coordinator, log_partition, report.error, "its offsets stay until the next run, which tries again")
        reports.append(report)
    return ExpiryRun(
        at,
        location,
        sum(len(group.expired) for report in reports for group in report.groups),
        sum(group.is_removed for report in reports for group in report.groups),
        [report.log_partition for report in reports if report.error is not None],
    )


def _runs(location: str, settings: Settings, clock: Clock, *, every: bool) -> Iterator[ExpiryRun]:
    """One run; or one after the other, until SIGTERM or SIGINT."""
    stopping = threading.Event()
    if every:
        Stopping(stopping.set)
    with _opened(location, settings, clock) as coordinator:
        yield expire_once(coordinator, location, clock, stopping.is_set)
        while every and not stopping.wait(settings.coordinator.offsets_retention_check_interval_ms / 1000):
            yield expire_once(coordinator, location, clock, stopping.is_set)


def _write_forecast(
    options: argparse.Namespace, reader: StateReader, settings: Settings, clock: Clock, *, is_owned: bool
) -> int:
    coordinator_settings = settings.coordinator
    if options.retention_minutes is not None:
        coordinator_settings = replace(coordinator_settings, offsets_retention_minutes=options.retention_minutes)
    retention_ms = coordinator_settings.offsets_retention_minutes * MS_PER_MINUTE
    now_ms = clock.now_ms() if options.at is None else parse_time_ms(options.at)
    until_ms = now_ms + (options.within or 0) * MS_OF_HOUR
    failed: list[int] = []
    forecasts = (
        _forecasts_of_log(reader.location, settings, clock, retention_ms, failed)
        if is_owned
        else _forecasts_of_tables(reader, options.store, retention_ms)
    )
    write_rows(ForecastRow._fields, forecast_rows(forecasts, now_ms, until_ms), options.format)
    return 1 if failed else 0


def _forecasts_of_log(
    location: str, settings: Settings, clock: Clock, retention_ms: int, failed: list[int]
) -> Iterator[GroupForecast]:
    """The forecasts of an owned store's groups, by its log; log partitions that do not load go to ``failed``."""
    with _opened(location, settings, clock) as coordinator:
        for log_partition in range(coordinator.store.properties.offsets_partitions):
            error = _load(coordinator, log_partition)
            if error is None:
                yield from coordinator.forecast_partition(log_partition, retention_ms)
            else:
                failed.append(log_partition)
                _warn(coordinator, log_partition, error, "the forecast is without it")


def _forecasts_of_tables(reader: StateReader, store: str, retention_ms: int) -> Iterator[GroupForecast]:
    # these import pyspark, which an owned store does without
    from offsets_pipeline.answers import tell_unfolded  # noqa: PLC0415
    from offsets_pipeline.query.holdings import held_by_groups  # noqa: PLC0415

    tell_unfolded(reader, store)
    return (forecast(held, retention_ms) for held in held_by_groups(reader))


def _opened(location: str, settings: Settings, clock: Clock) -> Coordinator:
    """A coordinator with all log partitions loaded; with none where one does not load: then each is on its own."""
    store = OwnedStore.open(location)
    try:
        return Coordinator.open(store, settings, clock=clock, housekeeping=False)
    except UndecodableRecord:
        return Coordinator.open(store, settings, partitions=(), clock=clock, housekeeping=False)


def _load(coordinator: Coordinator, log_partition: int) -> Exception | None:
    """Load a log partition that is not; why it cannot be loaded."""
    try:
        if coordinator.status(log_partition) is LoadStatus.UNLOADED:
            coordinator.load_partition(log_partition)
    except (OffsetsError, *UNREADABLE) as error:
        return error
    return None


def _warn(coordinator: Coordinator, log_partition: int, error: Exception, then: str) -> None:
    sys.stderr.write(
        f"offsets: warning: log partition {log_partition} of {coordinator.store.location}: {error}; {then}\n"
    )
