"""`offsets expire-offsets`: expires offsets of an owned store, once or repeatedly, or forecasts what expires.

A forecast reads the log of an owned store, as the expiration does, and the state tables of a mirrored store.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_reader, retention_of
from offsets_pipeline.cli.output import write_lines, write_rows
from offsets_pipeline.cli.stopping import repeated
from offsets_pipeline.cli.values import AS_SET
from offsets_pipeline.common.clock import MS_OF_HOUR, Clock, SystemClock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.coordinator.expiry_runs import (
    ExpiryRun,
    expire_once,
    load_if_unloaded,
    open_coordinator,
    warn_of_partition,
)
from offsets_pipeline.errors import NotCoordinator
from offsets_pipeline.questions.query.retention_forecast import ForecastRow, forecast_rows, retention_inputs
from offsets_pipeline.semantics.retention import RULES, GroupForecast, forecast
from offsets_pipeline.store.delta.properties import OWNED

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_coordinator import ExpireOffsets
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.state_reader import StateReader


def expire_offsets(options: ExpireOffsets, settings: Settings) -> int:
    """Expire offsets, or forecast; returns the exit status, which is 1 if a log partition failed in a single run.

    Raises NotCoordinator for a mirrored store without a forecast, ConfigError for settings that are not allowed.
    """
    reader, clock = open_reader(options.store, settings), SystemClock()
    is_owned = reader.properties.kind == OWNED
    if options.dry_run:
        return _write_forecast(options, reader, settings, clock, is_owned=is_owned)
    if not is_owned:
        raise NotCoordinator(
            f"cannot expire offsets of {reader.location}: in a mirrored store only the broker expires offsets (R4); "
            "--dry-run shows what it will expire"
        )
    failed: list[int] = []

    def runs() -> Iterator[ExpiryRun]:
        for run in _runs(options, reader.location, settings, clock):
            failed[:] = run.failed
            yield run

    if options.format_ == "table":
        for run in runs():
            failures = f"; log partitions {', '.join(map(str, run.failed))} failed" if run.failed else ""
            at = "" if options.every_ms is None else f"{run.at}: "
            sys.stdout.write(
                f"{at}{counted(run.offsets, 'offset')} and {counted(run.groups, 'group')} expired "
                f"in {run.store}{failures}\n"
            )
    elif options.format_ == "csv":  # one header for all runs
        write_rows(ExpiryRun._fields, ((*run[:-1], " ".join(map(str, run.failed))) for run in runs()), "csv")
    else:
        for run in runs():
            write_rows(ExpiryRun._fields, [run], "json")
    return 1 if failed and options.every_ms is None else 0


def _runs(options: ExpireOffsets, folder: str, settings: Settings, clock: Clock) -> Iterator[ExpiryRun]:
    """Yield one run, or with an interval each run until SIGTERM or SIGINT."""
    every_ms = options.every_ms
    if every_ms == AS_SET:
        every_ms = settings.coordinator.offsets_retention_check_interval_ms
    stopped = threading.Event()
    with ExitStack() as stack:
        opened = cache(lambda: stack.enter_context(open_coordinator(folder, settings, clock)))
        yield from repeated(
            lambda: expire_once(opened(), options.store, clock, stopped.is_set), every_ms, clock, stopped
        )


def _write_forecast(
    options: ExpireOffsets, reader: StateReader, settings: Settings, clock: Clock, *, is_owned: bool
) -> int:
    retention_ms = retention_of(reader, settings, options.retention_minutes).retention_ms
    now_ms = clock.now_ms() if options.at_ms is None else options.at_ms
    until_ms = now_ms + (options.within_hours or 0) * MS_OF_HOUR
    failed: list[int] = []
    if is_owned:
        forecasts = _forecasts_of_log(reader.location, settings, clock, retention_ms, failed)
    else:
        answer_time_of(reader, options.store, settings)
        forecasts = (forecast(held, retention_ms, reader.current.semantics) for held in retention_inputs(reader))
    rows = forecast_rows(forecasts, now_ms, until_ms)
    absolute = options.absolute or options.at_ms is not None  # ages count from now, not from that time
    write_rows(ForecastRow._fields, rows, options.format_, absolute=absolute)
    if rows and options.format_ == "table":
        write_lines([RULES])
    return 1 if failed else 0


def _forecasts_of_log(
    location: str, settings: Settings, clock: Clock, retention_ms: int, failed: list[int]
) -> Iterator[GroupForecast]:
    """Yield the forecasts of an owned store's groups; append log partitions that do not load to ``failed``."""
    with open_coordinator(location, settings, clock) as coordinator:
        for log_partition in range(coordinator.store.properties.offsets_partitions):
            error = load_if_unloaded(coordinator, log_partition)
            if error is None:
                yield from coordinator.forecast_partition(log_partition, retention_ms)
            else:
                failed.append(log_partition)
                warn_of_partition(coordinator, log_partition, error, "the forecast is without it")
