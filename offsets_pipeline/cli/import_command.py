"""`offsets import-checkpoint`, which writes to an owned store. It does not import Spark."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_or_create_owned
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.spark_query import checkpoint_import
from offsets_pipeline.spark_query.query_checkpoint import read_checkpoint

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


@dataclass(frozen=True)
class ImportOptions:
    """The options of the command; ``path`` is the checkpoint."""

    path: str
    group: str
    sources: tuple[str, ...]
    offsets_partitions: int | None


def import_checkpoint(location: str, settings: Settings, options: ImportOptions) -> int:
    """Commit the completed batches of a checkpoint; returns the exit status."""
    checkpoint = read_checkpoint(options.path)  # before a store is created for it
    store = open_or_create_owned(location, settings, options.offsets_partitions)
    partitions = {store.partition_for(options.group)}
    # imported offsets go to the log, wherever commits go
    to_log = replace(settings.coordinator, offsets_storage="kafka", dual_commit_enabled=False)
    settings = replace(settings, coordinator=to_log)
    with Coordinator.open(store, settings, partitions=partitions, housekeeping=False) as coordinator:
        imported = checkpoint_import.import_checkpoint(checkpoint, coordinator, options.group, options.sources)
    ids = imported.batch_ids
    which = f" ({ids[0]} to {ids[-1]})" if ids else ""
    known = f"; {imported.known} were there" if imported.known else ""
    sys.stdout.write(
        f"{len(ids)} batches{which} of {options.path} committed for group {options.group} in {location}{known}\n"
    )
    return 0
