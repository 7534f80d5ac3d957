"""`offsets sql` without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_beside, open_readers
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.query.local_sql import LocalSql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings


def sql(stores: Sequence[str], settings: Settings, query: str | None, format_: str) -> int:
    """Show the result of a query, or without one the views and tables; returns the exit status. Raises QueryFailed."""
    readers = open_readers(stores, settings)
    beside = [open_beside(store, reader, settings) for store, reader in readers.items()]
    with closing(LocalSql(list(readers.values()), beside)) as local:
        if query is None:
            write_rows(("name", "kind", "column", "type"), local.columns(), format_)
            return 0
        columns, rows = local.run(query)
        for store, reader in readers.items():
            answer_time_of(reader, store, settings)
        write_rows(columns, rows, format_)
    return 0
