"""`offsets sql --spark` and `create-views`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_reader, spark_when_needed
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.delta.reader import UNREADABLE
from offsets_pipeline.query.views import create_lasting_views, run_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings


def sql(stores: Sequence[str], settings: Settings, query: str, format_: str) -> int:
    """Show the result of a query in Spark; returns the exit status. Raises QueryFailed."""
    columns, rows = run_query(spark_when_needed(settings, *stores), stores, query)
    for store in stores:
        with suppress(*UNREADABLE):  # Spark may read tables that this process cannot
            answer_time_of(open_reader(store, settings, at_most=0), store, settings)
    write_rows(columns, rows, format_)
    return 0


def create_views(stores: Sequence[str], settings: Settings, schema: str) -> int:
    """Create the views in a schema of the catalog; returns the exit status. Raises CatalogMissing."""
    created = create_lasting_views(spark_when_needed(settings, *stores), stores, schema)
    names = ", ".join(f"{schema}.{name}" for name in created)
    sys.stdout.write(f"views of {', '.join(stores)} created: {names}\n")
    return 0
