"""The views of history in a Spark session: log_records, offset_history, group_history and deleted_offsets.

Tasks replay whole log partitions with the functions of `history`. So these views are temporary views of a session: a
catalog cannot keep them. Spark passes no conditions of a query to the tasks, so `Filters` pass them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.questions.history.decoded_log import COPIED, decoded_log
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.questions.history.history_tables import HistoryOptions, PartitionHistory, Shown
from offsets_pipeline.questions.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.questions.query.parse_tree import Filters
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION, LOG_PARTITIONS
from offsets_pipeline.store.log.file_writer import log_partitions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.store.store import Store

_IN_ORDER = ("log_partition", "log_incarnation", "record_offset")
_TAKE_ROWS = 50_000  # rows of the log after which a task gives out what it found


def history_views(store: Store, filters: Mapping[str, Filters] = MappingProxyType({})) -> dict[str, DataFrame]:
    """The views of history by name. Each action reads the newest log.

    ``filters``: by view, the groups and log partitions whose rows suffice.

    Raises DamagedTable, UnsupportedTable.
    """
    history = LogHistory(store.folder())
    options = HistoryOptions.of(history, history.retention)
    views = {}
    for name, view in HISTORY_VIEWS.items():
        schema = from_arrow_schema(view.arrow_schema())
        wanted = filters.get(name, Filters())
        log = _complete(store, _condition(history, wanted))
        if name == LOG_RECORDS.name:
            views[name] = store.spark.sql(_with_outcomes(log)).mapInArrow(partial(_decoded, wanted.group_ids), schema)
            continue
        rows = store.spark.sql(f"SELECT {', '.join([*COLUMNS, 'log_incarnation'])} FROM ({log}) l")
        # one task for each log partition: a replay needs all of its rows in order
        in_order = rows.repartition("log_partition").sortWithinPartitions(*_IN_ORDER)
        views[name] = in_order.mapInArrow(
            partial(_replayed, name, replace(options, group_ids=wanted.group_ids)), schema
        )
    return views


def _replayed(view: str, options: HistoryOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replay log partitions in a task, for one view."""
    at, shown = -1, Shown()
    parts = chain.from_iterable(log_partitions_of(each, _IN_ORDER[:2]) for each in batches if each.num_rows)
    for (log_partition, log_incarnation), batches_of_one in groupby(parts, _partition_and_incarnation):
        at, shown = log_partition, shown if log_partition == at else Shown()
        replayed = PartitionHistory(
            options, log_partition, log_incarnation, shown if options.has_incarnations else None
        )
        waiting_rows = 0
        for rows in batches_of_one:
            replayed.add(pa.Table.from_batches([rows]))
            waiting_rows += rows.num_rows
            if waiting_rows >= _TAKE_ROWS:
                waiting_rows = 0
                yield from replayed.take()[view].to_batches()
        replayed.finish()
        yield from replayed.take()[view].to_batches()


def _partition_and_incarnation(rows: pa.RecordBatch) -> tuple[int, int]:
    return rows["log_partition"][0].as_py(), rows["log_incarnation"][0].as_py()


def _decoded(group_ids: Sequence[str] | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode rows in a task. ``group_ids``: these groups only, and control records."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        yield from decoded_log(rows if group_ids is None else of_groups(rows, group_ids)).to_batches()


def _condition(history: LogHistory, filters: Filters) -> str:
    """SQL that holds for the log partitions which a view needs: Delta skips files by it."""
    found = []
    for each in history.incarnations:
        partitions = history.homes(filters.group_ids, each, filters.log_partitions)
        if partitions is None:
            return "TRUE"
        listed = ", ".join(map(str, sorted(partitions))) or "NULL"
        found.append(f"log_incarnation = {each.number} AND log_partition IN ({listed})")
    return " OR ".join(found)


def _complete(store: Store, condition: str) -> str:
    """SQL of the rows of complete log incarnations that a condition holds for."""
    newest = f"SELECT max(log_incarnation) FROM {store.table_name(LOG_PARTITIONS.name)}"
    log = store.table_name(LOG.name)
    return f"SELECT * FROM {log} WHERE log_incarnation <= coalesce(({newest}), {LOG_INCARNATION}) AND ({condition})"


def _with_outcomes(log: str) -> str:
    """SQL of all rows of the log with what became of a record of a transaction: the producer's next marker (R11)."""
    columns = ", ".join([*COPIED[:-1], "key", "value"])
    return f"""
        SELECT {columns}, CASE WHEN control_type IS NULL THEN
               CASE last_value(CASE WHEN control_type IN ('COMMIT', 'ABORT') THEN control_type END, TRUE) OVER (
                   PARTITION BY log_incarnation, log_partition, producer_id ORDER BY record_offset DESC
                   ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
               ) WHEN 'COMMIT' THEN 'committed' WHEN 'ABORT' THEN 'aborted' ELSE 'open' END END AS outcome
        FROM ({log}) t WHERE producer_id IS NOT NULL
        UNION ALL
        SELECT {columns}, CAST(NULL AS STRING) AS outcome FROM ({log}) p WHERE producer_id IS NULL
    """
