"""`offsets upgrade`. Imports no Spark."""

from __future__ import annotations

import sys

from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import SCHEMA_PREFIX
from offsets_pipeline.errors import NotAStore
from offsets_pipeline.log.upgrade import upgrade as copied


def upgrade(store: str, to: str) -> int:
    """Copy the store to the folder ``to``; returns the exit status. Raises NotAStore for a schema of a catalog."""
    for location in (store, to):
        if location.startswith(SCHEMA_PREFIX):
            raise NotAStore(f"cannot upgrade {store} to {to}: name folders; a schema's tables are in a folder, too")
    records = copied(arrow_folder(store), arrow_folder(to))
    sys.stdout.write(f"{to} has the {records} records of {store}; offsets reload --store {to} makes its state\n")
    return 0
