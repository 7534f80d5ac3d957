"""`offsets ingest-segments`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import spark_when_needed
from offsets_pipeline.cli.progress_bar import progress_bar, tasks
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.ingest.segments import segment_ingest as segments
from offsets_pipeline.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


def ingest_segments(
    store: str,
    settings: Settings,
    paths: Sequence[str],
    offsets_partitions: int | None,
    semantics: CoordinatorSemantics | None,
    topic: str | None,
) -> int:
    """Append segment files to the log, and warn about bytes that were left out; returns the exit status."""
    spark = spark_when_needed(settings, store)
    with progress_bar("reading segments", tasks):
        report = segments.ingest_segments(
            spark, store, paths, settings, SystemClock(), offsets_partitions, semantics, topic
        )
    for file in report.files:
        for damage in file.damage:
            warn(
                f"{file.source}: {damage.length} bytes at position {damage.position} went into quarantine: "
                f"{damage.reason}",
            )
        if file.torn_tail is not None:
            warn(f"{file.source}: left out the incomplete last batch: {file.torn_tail}")
    if report.left_out:
        warn(f"left out {report.left_out} records before the offsets to which the log was cleaned")
    sys.stdout.write(
        f"{report.added} records added to {store} from {len(report.files)} segment files "
        f"({report.offsets_partitions} log partitions)\n"
    )
    return 0
