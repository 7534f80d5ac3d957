"""`offsets sql` and `create-views`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answers import warn_of_unfolded
from offsets_pipeline.cli.opened import open_reader, start_spark
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.delta.reader import UNREADABLE
from offsets_pipeline.query.sql import create_lasting_views, run_query

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


def sql(store: str, settings: Settings, query: str, format_: str) -> int:
    """Show the result of a query; returns the exit status. Raises QueryFailed."""
    columns, rows = run_query(start_spark(settings), store, query)
    with suppress(*UNREADABLE):  # Spark may read tables that this process cannot
        warn_of_unfolded(open_reader(store, settings), store)
    write_rows(columns, rows, format_)
    return 0


def create_views(store: str, settings: Settings, schema: str) -> int:
    """Create the views in a schema of the catalog; returns the exit status. Raises CatalogMissing."""
    created = create_lasting_views(start_spark(settings), store, schema)
    sys.stdout.write(f"views of {store} created: {', '.join(f'{schema}.{name}' for name in created)}\n")
    return 0
