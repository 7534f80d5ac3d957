"""The views of history in a Spark session: log_records, offset_history, group_history and deleted_offsets.

Tasks replay whole log partitions with the functions of `history`. So these views are temporary views of a session: a
catalog cannot keep them. A filter on a group does not spare a task any rows; `offsets history` reads one group alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.delta.schemas import LOG, LOG_INCARNATION, LOG_PARTITIONS
from offsets_pipeline.history.decoded_log import COPIED, decoded_log
from offsets_pipeline.history.deletion_causes import Causes, Retention
from offsets_pipeline.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.history.partition_history import PartitionHistory, Shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store import Store

_PLACE = ("log_partition", "log_incarnation", "record_offset")
_TAKE_ROWS = 50_000  # rows of the log after which a task gives out what it found


def history_views(store: Store, retention: Retention | None = None) -> dict[str, DataFrame]:
    """The views of history by name. Each action reads the newest log.

    ``retention``: the coordinator's settings of retention, if they differ from Kafka's or are known for sure.

    Raises DamagedTable, UnsupportedTable.
    """
    history = LogHistory(store.folder())
    watch = _Watch(
        {each.number: each.offsets_partitions for each in history.incarnations},
        history.semantics,
        Causes(history.semantics, retention or Retention(), kind=history.properties.kind),
        history.topic_names(),
    )
    rows = store.spark.sql(f"SELECT {', '.join([*COLUMNS, 'log_incarnation'])} FROM ({_complete(store)}) l")
    # one task for each log partition: a replay needs all of its rows in order
    in_order = rows.repartition("log_partition").sortWithinPartitions(*_PLACE)
    views = {}
    for name, view in HISTORY_VIEWS.items():
        schema = from_arrow_schema(view.arrow_schema())
        if name == LOG_RECORDS.name:
            views[name] = store.spark.sql(_with_outcomes(store)).mapInArrow(_decoded, schema)
        else:
            views[name] = in_order.mapInArrow(watch.of(name), schema)
    return views


@dataclass(frozen=True)
class _Watch:
    """What tasks need to replay log partitions; picklable. ``partitions`` has R1's n by log incarnation."""

    partitions: Mapping[int, int]
    semantics: CoordinatorSemantics
    causes: Causes
    names: Mapping[str, str]
    view: str = ""

    def of(self, view: str) -> _Watch:
        """The same for one view."""
        return _Watch(self.partitions, self.semantics, self.causes, self.names, view)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at, watched, shown = (-1, -1), None, Shown()
        waiting = 0
        for batch in batches:
            for rows in _parts(pa.Table.from_batches([batch])):
                place = rows["log_partition"][0].as_py(), rows["log_incarnation"][0].as_py()
                if watched is None or place != at:
                    if watched is not None:
                        watched.finish()
                        yield from watched.take()[self.view].to_batches()
                    shown = shown if place[0] == at[0] else Shown()
                    at, watched = place, self._history(*place, shown)
                watched.add(rows)
                waiting += rows.num_rows
                if waiting >= _TAKE_ROWS:
                    waiting = 0
                    yield from watched.take()[self.view].to_batches()
        if watched is not None:
            watched.finish()
            yield from watched.take()[self.view].to_batches()

    def _history(self, log_partition: int, log_incarnation: int, shown: Shown) -> PartitionHistory:
        known = self.partitions.get(log_incarnation, self.partitions[max(self.partitions)])
        return PartitionHistory(
            log_partition,
            log_incarnation,
            known,
            self.semantics,
            self.causes,
            topic_names=self.names,
            shown=shown if len(self.partitions) > 1 else None,
        )


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows of each log partition and log incarnation."""
    changes = np.diff(rows["log_partition"].to_numpy()) != 0
    changes |= np.diff(rows["log_incarnation"].to_numpy()) != 0
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.num_rows]
    yield from (rows.slice(start, end - start) for start, end in pairwise(bounds) if end > start)


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from decoded_log(pa.Table.from_batches([batch])).to_batches()


def _complete(store: Store) -> str:
    """SQL of the rows of complete log incarnations."""
    newest = f"SELECT max(log_incarnation) FROM {store.table_name(LOG_PARTITIONS.name)}"
    log = store.table_name(LOG.name)
    return f"SELECT * FROM {log} WHERE log_incarnation <= coalesce(({newest}), {LOG_INCARNATION})"


def _with_outcomes(store: Store) -> str:
    """SQL of all rows with what became of a record of a transaction: its producer's next marker tells (R11)."""
    columns = ", ".join([*COPIED[:-1], "key", "value"])
    return f"""
        SELECT {columns}, CASE WHEN control_type IS NULL THEN
               CASE last_value(CASE WHEN control_type IN ('COMMIT', 'ABORT') THEN control_type END, TRUE) OVER (
                   PARTITION BY log_incarnation, log_partition, producer_id ORDER BY record_offset DESC
                   ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
               ) WHEN 'COMMIT' THEN 'committed' WHEN 'ABORT' THEN 'aborted' ELSE 'open' END END AS outcome
        FROM ({_complete(store)}) t WHERE producer_id IS NOT NULL
        UNION ALL
        SELECT {columns}, CAST(NULL AS STRING) AS outcome FROM ({_complete(store)}) p WHERE producer_id IS NULL
    """
