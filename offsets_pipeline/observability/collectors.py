"""Metrics of a followed topic: of its streaming queries, of its log, and of the state tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS
from offsets_pipeline.fold.state.view_queries import VIEWS
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, QUARANTINE
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.log_scan import PLACE, LogScan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

    from offsets_pipeline.questions.query.relations import Relations
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.service.metrics.exposition import Values
    from offsets_pipeline.store.delta.snapshot import Snapshot

_PLACE = pa.schema([LOG.arrow_schema().field(name) for name in PLACE])
_EVENTS_SECONDS = 10.0  # to wait for the last events of queries that ended


class QueryMetrics(StreamingQueryListener):
    """Metrics of every batch of every streaming query of the session."""

    def __init__(self) -> None:
        self._durations: dict[str, tuple[int, float]] = {}  # batches and their seconds by query
        self._running: set[str] = set()
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Expect events of this query. Spark calls this before `start` returns."""
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count a batch."""
        query = str(event.progress.name)
        with self._changed:
            batches, seconds = self._durations.get(query, (0, 0.0))
            self._durations[query] = batches + 1, seconds + event.progress.batchDuration / 1000

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Expect no more events of this query: they come in order."""
        with self._changed:
            self._running.discard(str(event.runId))
            self._changed.notify_all()

    @contextmanager
    def counting(self, spark: SparkSession) -> Iterator[None]:
        """Count the batches of all queries that run in the `with` block, including the last ones."""
        spark.streams.addListener(self)
        try:
            yield
        finally:
            with self._changed:
                self._changed.wait_for(lambda: not self._running, _EVENTS_SECONDS)
            spark.streams.removeListener(self)

    def values(self) -> Values:
        """Return batches and their durations by query."""
        with self._changed:
            durations = dict(self._durations)
        return {
            "offsets_batch_duration_seconds": durations,
            "offsets_batches_total": {query: batches for query, (batches, _) in durations.items()},
        }


class LogExtent:
    """The lowest and the highest record offset of each log partition; `look` reads only files that are new to it."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def look(self, log: Snapshot, log_incarnation: int) -> dict[int, tuple[int, int]]:
        """Return the extents by log partition, for one log incarnation in a version of `log`.

        Raises as `TableFolder.open_file`.
        """
        files = {file.name: file for file in log.files()}
        scan = LogScan(TableFolder(log.folder, LOG), _PLACE)
        place = ["log_incarnation", "log_partition"]
        columns = [*place, "record_offset_min", "record_offset_max"]
        for name in files.keys() - self._read:
            for rows in scan.rows([files[name]]):
                of_place = rows.group_by(place, use_threads=False)
                extents = of_place.aggregate([("record_offset", "min"), ("record_offset", "max")])
                for of, at, first, last in zip(*(extents[each].to_pylist() for each in columns), strict=True):
                    lowest, highest = self._found.get((of, at), (first, last))
                    self._found[of, at] = min(first, lowest), max(last, highest)
            self._read.add(name)
        self._read &= files.keys()
        return {at: extent for (of, at), extent in self._found.items() if of == log_incarnation}


class StateMetrics:
    """Metrics of the state tables, and of their distance from the log."""

    def __init__(self, reader: Callable[[], StateReader]) -> None:
        self._reader = reader
        self._extent = LogExtent()

    def count(self) -> Values:
        """Count the tables. Raises as `StateReader`, or one of `UNREADABLE`."""
        tables = self._reader()
        counts = _groups_and_offsets(tables.relations) if tables.properties.topic_kind.has_groups else {}
        log_incarnation = tables.current_log.number
        of_log = {"log_incarnation": [log_incarnation]}
        corrupt = tables.table(QUARANTINE.name).rows(["log_partition"], of_log)
        folded = tables.table(FOLD_PROGRESS.name).rows(["log_partition", "folded_to"], of_log)
        folded_to = dict(zip(*(each.to_pylist() for each in folded.columns), strict=True))
        behind = dict.fromkeys(range(tables.offsets_partitions), 0)
        for at, (first, last) in self._extent.look(tables.table("log"), log_incarnation).items():
            behind[at] = max(0, last + 1 - max(folded_to.get(at, 0), first))
        return {
            **counts,
            "offsets_quarantined_records": corrupt.num_rows,
            "offsets_fold_behind_log_records": behind,
        }


def _groups_and_offsets(relations: Relations) -> dict[str, int]:
    """The numbers of groups that exist and of offsets that are answered (R1, R14)."""
    groups, offsets = relations.newest(DESCRIBED), relations.newest(OFFSETS)
    answered = VIEWS["current_offsets"].format(
        offsets=f"(FROM {offsets} WHERE {OFFSETS.answered})", hiding_groups=f"(FROM {groups} WHERE {HIDES_OFFSETS})"
    )
    (counts,) = relations.select(
        f"SELECT (SELECT count(*) FROM {groups} WHERE {ANSWERS}) AS offsets_groups, "
        f"(SELECT count(*) FROM ({answered})) AS offsets_committed_offsets"
    ).to_pylist()
    return dict(counts)
