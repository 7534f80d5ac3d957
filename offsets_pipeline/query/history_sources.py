"""The views of history as whole Arrow tables, one function of a `StateReader` for each view, for SQL without Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.history.history_schemas import DELETED_OFFSETS, GROUP_HISTORY, LOG_RECORDS, OFFSET_HISTORY
from offsets_pipeline.history.history_tables import history_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.query.state_reader import StateReader


def _rows(view: str, reader: StateReader) -> pa.Table:
    """Return the rows of a view. Raises as `history_tables`."""
    return history_tables(reader.location)[view].read()


log_records = partial(_rows, LOG_RECORDS.name)
offset_history = partial(_rows, OFFSET_HISTORY.name)
group_history = partial(_rows, GROUP_HISTORY.name)
deleted_offsets = partial(_rows, DELETED_OFFSETS.name)
