"""`offsets export-segments`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.progress_bar import Progress, progress_bar
from offsets_pipeline.clock import shown_time
from offsets_pipeline.errors import TargetNotEmpty
from offsets_pipeline.export import segment_export as segments
from offsets_pipeline.record.compression import Codec

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


def export_segments(store: str, settings: Settings, to: str, as_of_ms: int | None, codec: str | None) -> int:
    """Write the log to segment files; returns the exit status. Raises as `segment_export`."""
    if "://" in to:
        raise TargetNotEmpty(f"cannot export to {to}: it is not a local folder; name a new or empty one")
    reader = open_reader(store, settings)
    chosen = Codec[(codec or settings.log.codec("none")).upper()]
    read = 0

    def on_read(records: int) -> None:
        nonlocal read
        read += records

    def progress() -> Progress:
        return Progress(read, sum(file.rows for file in reader.table("log").files()), "records")

    with progress_bar("exporting", progress):
        exported = segments.export_segments(reader, Path(to), as_of_ms=as_of_ms, codec=chosen, on_read=on_read)
    written = exported.log_partitions
    sys.stdout.write(
        f"{sum(each.records for each in written)} records of {len(written)} log partitions written to {to}, "
        f"in {sum(len(each.files) for each in written)} segment files"
        + ("\n" if as_of_ms is None else f", as of {shown_time(as_of_ms)}\n")
    )
    return 0
