"""The report of `offsets report` and `serve`, and the file of its page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import mirror_interval_ms, warnings_of
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_reader, retention_of
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.questions.query.group_listing import without_match
from offsets_pipeline.questions.report.collect import ReportOptions, collect_report, reported_state
from offsets_pipeline.semantics.retention import MS_PER_MINUTE

if TYPE_CHECKING:
    from offsets_pipeline.cli.options import ReportCoverage
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.report.model import Report


def collected(
    store: str, settings: Settings, now_ms: int, coverage: ReportCoverage, at_ms: int | None = None
) -> Report:
    """Return the report of a store, read anew, as of now or of a past time (``at_ms``)."""
    reader = open_reader(store, settings)
    state = reported_state(reader, mirror_interval_ms(settings), at_ms)
    warnings = warnings_of(state.time, store)
    covered = ReportOptions(
        *(coverage.rows, coverage.hours, coverage.stale_hours, coverage.within_hours),
        retention_of(reader, settings, coverage.retention_minutes).retention_ms // MS_PER_MINUTE,
        settings.lag.window_commits,
        coverage.groups,
    )
    warnings += [f"no group {each!r} in {store}" for each in without_match(coverage.groups, state.groups)]
    with LiveCluster(coverage.positions_from, settings) as live:
        positions = live.positions(reader, state.groups, state.time, now_ms, at_ms, warn=warnings.append)
        return collect_report(reader, store, covered, state, positions, warnings)


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
