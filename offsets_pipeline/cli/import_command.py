"""`offsets import-checkpoint`, which writes to an owned store. It does not import Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.spark_query import checkpoint_import

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings


def import_checkpoint(location: str, settings: Settings, path: str, group: str, sources: Sequence[str]) -> int:
    """Commit the completed batches of a checkpoint; returns the exit status."""
    store = OwnedStore.open(location)
    partitions = {store.partition_for(group)}
    with Coordinator.open(store, settings, partitions=partitions, housekeeping=False) as coordinator:
        imported = checkpoint_import.import_checkpoint(path, coordinator, group, sources)
    ids = imported.batch_ids
    which = f" ({ids[0]} to {ids[-1]})" if ids else ""
    known = f"; {imported.known} were there" if imported.known else ""
    sys.stdout.write(f"{len(ids)} batches{which} of {path} committed for group {group} in {location}{known}\n")
    return 0
