"""`offsets name-cluster`. Imports no Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.delta.store_folder import name_cluster as write_name

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


def name_cluster(store: str, settings: Settings, name: str) -> int:
    """Write the name to the store's properties; returns the exit status."""
    write_name(open_reader(store, settings).location, name, settings.fold)
    sys.stdout.write(f"the cluster of {store} is {name}\n")
    return 0
