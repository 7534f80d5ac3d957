"""`offsets maintain` and `clean-log`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from offsets_pipeline import maintenance as upkeep
from offsets_pipeline.cli.opened import open_store
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.progress_bar import progress_bar, tasks
from offsets_pipeline.cli.repeating import repeated
from offsets_pipeline.clock import MS_OF_HOUR, SystemClock
from offsets_pipeline.log import clean

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.log.clean import Cleaned
    from offsets_pipeline.maintenance import Upkeep


def maintain(location: str, settings: Settings, every_ms: int | None) -> int:
    """Compact and vacuum the tables, once or again and again; returns the exit status."""
    store, clock = open_store(location, settings), SystemClock()

    def run() -> list[Upkeep]:
        with progress_bar("compacting", tasks):
            return upkeep.maintain_store(store, clock, settings)

    for done in repeated(run, every_ms, clock, spark=lambda: store.spark):
        write_rows(list(upkeep.Upkeep._fields), done, "table")
    return 0


def clean_log(location: str, settings: Settings, older_than_hours: int, every_ms: int | None, *, dry_run: bool) -> int:
    """Clean the log, once or repeatedly; returns the exit status."""
    store, clock, older_than_ms = open_store(location, settings), SystemClock(), older_than_hours * MS_OF_HOUR

    def run() -> Cleaned:
        with progress_bar("cleaning", tasks):
            return clean.clean_log(store, settings, clock, older_than_ms=older_than_ms, dry_run=dry_run)

    for done in repeated(run, every_ms, clock, spark=lambda: store.spark):
        row = [location, *asdict(done).values(), done.removed]
        write_rows(["store", *asdict(done), "removed"], [row], "table")
    return 0
