"""`offsets report`: writes the report's page to a file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import mirror_interval_ms, warnings_of
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.live_positions import position_source
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.lag.lag_rows import topics_of
from offsets_pipeline.report.collect import ReportOptions, collect_report, state_at, state_now
from offsets_pipeline.report.page import page

if TYPE_CHECKING:
    from offsets_pipeline.cli.lag_command import PositionOptions
    from offsets_pipeline.config import Settings
    from offsets_pipeline.report.model import Report


@dataclass(frozen=True)
class CoverageOptions:
    """The options that `report` and `serve` share."""

    rows: int
    hours: int
    stale_hours: int
    within: int
    retention_minutes: int | None
    positions: PositionOptions

    def of(self, settings: Settings) -> ReportOptions:
        """Return what the report covers; the retention is by default that of the settings."""
        minutes = self.retention_minutes
        if minutes is None:
            minutes = settings.coordinator.offsets_retention_minutes
        window = settings.lag.window_commits
        return ReportOptions(self.rows, self.hours, self.stale_hours, self.within, minutes, window)


def report(store: str, settings: Settings, html: Path, at_ms: int | None, coverage: CoverageOptions) -> int:
    """Write the page; returns the exit status. Raises TargetNotWritable, and as `collect_report`."""
    write_page(html, page(collected(store, settings, SystemClock().now_ms(), coverage, at_ms)))
    sys.stdout.write(f"report of {store} written to {html}\n")
    return 0


def collected(
    store: str, settings: Settings, now_ms: int, coverage: CoverageOptions, at_ms: int | None = None
) -> Report:
    """Return the report of a store, read anew, as of now or of a past time (``at_ms``)."""
    reader = open_reader(store, settings)
    interval_ms = mirror_interval_ms(settings)
    state = state_now(reader, interval_ms) if at_ms is None else state_at(reader, at_ms, interval_ms)
    warnings = warnings_of(state.time, store)
    where = coverage.positions
    with LiveCluster(where.bootstrap_server, where.options, settings) as live:
        positions = position_source(
            *(reader, live, where.positions, settings, topics_of(state.groups), state.time, now_ms, at_ms),
            tell=warnings.append,
        )
        return collect_report(reader, store, coverage.of(settings), state, positions, warnings)


def write_page(path: Path, text: str) -> None:
    """Replace a file atomically; - is stdout. Raises TargetNotWritable."""
    if path == Path("-"):
        sys.stdout.write(text)
        return
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise TargetNotWritable(f"cannot write the report to {path}: {error.strerror}; name another file") from error
