"""Folded stores for tests of lag, made without Spark, with the timestamps of records."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.metadata import LogMetadata, note_topics
from offsets_pipeline.store.store import Store
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings


class TimedRow(NamedTuple):
    """A row of the log, its record timestamp in ms, and when it was appended; None: at that time."""

    row: LogRow
    timestamp_ms: int | None
    appended_ms: int | None = None


def folded_store(
    rows: Iterable[TimedRow],
    to: Path,
    offsets_partitions: int,
    settings: Settings,
    semantics: CoordinatorSemantics = MODERN,
    topic_names: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A mirrored store with these rows in its log, read now from files, and folded.

    ``topic_names`` by topic id, as an ingest notes them.
    """
    properties = StoreProperties(MIRRORED, offsets_partitions, coordinator_semantics=semantics)
    create_tables(str(to), properties)
    store = Store(cast("SparkSession", None), str(to), properties)
    note_topics(store, topic_names.items())
    append_and_fold(store, list(rows), settings)
    return to


def append_and_fold(store: Store, rows: Collection[TimedRow], settings: Settings) -> None:
    """Append rows to a store's log, as read now from files, and fold them."""
    log = TableFolder(f"{store.folder()}/{LOG.name}", LOG)
    found = [
        {
            **each.row._asdict(),
            "record_timestamp": None if each.timestamp_ms is None else each.timestamp_ms * 1000,
            "producer_epoch": None,
            "source": "a test",
            "appended_at": (each.timestamp_ms or 0 if each.appended_ms is None else each.appended_ms) * 1000,
            "log_incarnation": 0,
            "backfill": False,
        }
        for each in rows
    ]
    log.commit([log.write_file(pa.Table.from_pylist(found, schema=LOG.arrow_schema()))], seen=log.snapshot())
    note_files_read_now(store, (each.row for each in rows))
    fold_log(store, settings, CLOCK)


def note_files_read_now(store: Store, rows: Iterable[LogRow]) -> None:
    """Note that these rows are all that the log's files had now, as `ingest-segments` does."""
    ends: dict[int, int] = {}
    for row in rows:
        ends[row.log_partition] = max(row.record_offset + 1, ends.get(row.log_partition, 0))
    LogMetadata(store, SystemClock()).bounds({at: (0, end) for at, end in ends.items()})


def timed_segment_rows(folder: Path) -> Iterator[TimedRow]:
    """The rows of a broker's log with their timestamps."""
    for path in sorted(folder.glob("__consumer_offsets-*/*.log")):
        at = int(path.parent.name.rpartition("-")[2])
        for batch in read_segment(path.read_bytes(), source=str(path)).batches():
            times = batch["record_timestamp"].cast(pa.int64()).to_pylist()
            for row, time_ms in zip(batch.drop_columns(["record_timestamp"]).to_pylist(), times, strict=True):
                # R11: the id of a producer without a transaction means nothing
                producer_id = row["producer_id"] if row["is_transactional"] or row["control_type"] else None
                of_log = LogRow(at, row["record_offset"], row["key"], row["value"], producer_id, row["control_type"])
                yield TimedRow(of_log, time_ms)


def folded_segments(
    segments: Path,
    to: Path,
    offsets_partitions: int,
    settings: Settings,
    semantics: CoordinatorSemantics = MODERN,
    topic_names: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A store with the log of these segment files, folded."""
    return folded_store(timed_segment_rows(segments), to, offsets_partitions, settings, semantics, topic_names)
