"""Reads the files of the table `log` with Arrow: in Spark tasks, or in the driver for a short log.

A Spark scan makes a row of every record and passes the rows to Python, which is most of the work of a reload. A task
that opens a file itself gets the stored columns, with each distinct key once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, gathered
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store.log.log_scan import KEY, LogRange, LogScan

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.table_folder import TableFolder


@dataclass(frozen=True)
class LogReader:
    """Reads files of one snapshot of the log; picklable.

    ``schema`` is that of the replay, INPUT_SCHEMA or more. With ``compact`` it omits rows that later rows replace.
    """

    log: TableFolder
    range: LogRange
    schema: pa.Schema = INPUT_SCHEMA
    compact: Callable[[pa.Table], pa.Table] | None = None

    def read(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Yield the rows of the files, in ``schema``."""
        schema = self.schema.set(self.schema.get_field_index("key"), KEY)
        scanned = schema.remove(schema.get_field_index("records"))
        rows = LogScan(self.log, scanned, self.range).rows(files)
        if self.compact is None:
            yield from (as_input(each, schema).cast(self.schema) for each in rows)
        else:
            yield from compacted_input(rows, schema, self.compact)


def compacted_input(
    rows: Iterable[pa.Table], schema: pa.Schema, compact: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """Records in columns of the log as rows of a replay's ``schema``; omits those that it does not need (R16)."""
    inputs = (as_input(each, schema) for each in rows)
    parts = [compacted(compact, table) for table in gathered(inputs, COMPACT_ROWS)]
    if parts:
        yield compacted(compact, pa.concat_tables(parts))


def as_input(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Records in columns of the log as rows of a replay's ``schema``."""
    return conformed(rows.select([name for name in schema.names if name != "records"]), schema, {"records": 1})


def compacted(compact: Callable[[pa.Table], pa.Table], table: pa.Table) -> pa.Table:
    """The rows that ``compact`` leaves. Raises TaskFailed with their place if it fails."""
    with working_on(lambda: place_of(table)):
        return compact(table)


def shared_out(files: Iterable[DataFile], tasks: int) -> list[list[DataFile]]:
    """Divide files into lists of nearly equal size, about one for each task, by log partition."""
    in_order = sorted(files, key=lambda file: (file.lowest.get("log_partition", 0), file.name))
    share = max(1, sum(file.size for file in in_order) / tasks)
    lists: dict[int, list[DataFile]] = {}
    for file, end in zip(in_order, accumulate(file.size for file in in_order), strict=True):
        lists.setdefault(int((end - file.size / 2) / share), []).append(file)
    return list(lists.values())
