"""The views of history as whole Arrow tables, for SQL without Spark: read once for all views that a query names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.history.deletion_causes import Retention
from offsets_pipeline.history.history_schemas import LOG_RECORDS
from offsets_pipeline.history.history_tables import history_tables, together
from offsets_pipeline.history.log_history import LogHistory

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from offsets_pipeline.query.filters import Filters
    from offsets_pipeline.query.state_reader import StateReader


def history_rows(reader: StateReader, views: Collection[str], filters: Filters) -> dict[str, pa.Table]:
    """Return the rows of views by name, of the groups and log partitions of the filters.

    Raises as `history_tables`.
    """
    history, (groups, partitions) = LogHistory(reader), filters
    replayed = [name for name in views if name != LOG_RECORDS.name]
    found = together(history, Retention(), replayed, group_ids=groups, partitions=partitions) if replayed else {}
    if LOG_RECORDS.name in views:
        tables = history_tables(history, group_ids=groups, partitions=partitions)
        found[LOG_RECORDS.name] = tables[LOG_RECORDS.name].read()
    return found
