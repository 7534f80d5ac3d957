"""The records of ranges of a topic, in the columns of the log.

A task reads them: it fetches raw record batches from the leaders, and decodes them as those of segment files.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.ingest.log_columns import LOG_COLUMNS, log_columns
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.offset_ranges import FetchedBatches, OffsetRange, read_ranges
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.kafka.record.scan import MAX_DAMAGE_BYTES
from offsets_pipeline.kafka.record.segment import Damage, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.store.delta.properties import StoreProperties

#: Columns of records. `damage` is null for a record. Else the row is a stretch that does not decode: its bytes are in
#: `value`, the record offset of its first batch in `record_offset`.
RECORDS_SCHEMA = LOG_COLUMNS.append(pa.field("damage", pa.string()))
#: Columns of ranges: those of a task, pickled.
RANGES_SCHEMA = "ranges binary"

_BATCH_ROWS = 65_536
_OFFSET_BYTES = 8


@dataclass(frozen=True)
class TopicReader:
    """Reads ranges of a topic. ``source``: text for the column `source`."""

    topic: str
    kafka: KafkaOptions
    source: str
    properties: StoreProperties

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The rows of these ranges in RECORDS_SCHEMA. Raises the errors of `read_ranges`."""
        with Cluster(self.kafka) as cluster:
            yield from self.rows(read_ranges(cluster, self.topic, ranges))

    def rows(self, fetched: Iterable[FetchedBatches]) -> Iterator[pa.RecordBatch]:
        """The rows of fetched batches in RECORDS_SCHEMA."""
        for each in fetched:
            yield from _rows(each, self.source, self.properties)

    def read_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges in batches of RANGES_SCHEMA."""
        for batch in batches:
            for task in batch["ranges"].to_pylist():
                yield from self.read(pickle.loads(task))  # noqa: S301 - the program's own


def ranges_row(ranges: Sequence[OffsetRange]) -> pa.RecordBatch:
    """The ranges of a task as a row of RANGES_SCHEMA."""
    return pa.RecordBatch.from_pydict({"ranges": [pickle.dumps(tuple(ranges))]})


def _rows(fetched: FetchedBatches, source: str, properties: StoreProperties) -> Iterator[pa.RecordBatch]:
    """The rows of fetched batches: their records within the range, and the stretches that do not decode."""
    at, partition = fetched.position, fetched.range.partition
    name = f"{source}, partition {partition} at {at}"
    reader = read_segment(fetched.records, source=name, max_records=_BATCH_ROWS, good_at=fetched.good_at)
    damage: list[Damage] = []
    try:
        for batch in reader.batches():
            offsets = batch["record_offset"]
            wanted = batch.filter(pc.and_(pc.greater_equal(offsets, at), pc.less(offsets, fetched.range.end)))
            if wanted.num_rows:
                rows = log_columns(wanted, partition, source, properties)
                yield rows.append_column("damage", pa.nulls(rows.num_rows, pa.string()))
        damage = reader.damage
    except NotASegment:  # not one batch in it decodes
        raw = fetched.records
        damage = [Damage(0, len(raw), "no record batch of it decodes", raw[:MAX_DAMAGE_BYTES])]
    for each in damage:
        row = {
            "log_partition": partition,
            "record_offset": _offset_of(each, at),
            "value": each.raw,
            "source": source,
            "damage": f"{each.reason} ({each.length} bytes)",
        }
        yield pa.RecordBatch.from_pylist([row], schema=RECORDS_SCHEMA)


def _offset_of(damage: Damage, fetched_at: int) -> int:
    """The record offset in the header of the stretch's first batch, or at which it was fetched.

    The header's does not depend on the fetch. So a batch that two tasks fetch, or two processes, is one stretch.
    """
    first = int.from_bytes(damage.raw[:_OFFSET_BYTES], "big", signed=True)
    return first if len(damage.raw) >= _OFFSET_BYTES and first >= 0 else fetched_at
