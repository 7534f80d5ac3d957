"""Read a Kafka log segment (`<base offset>.log`) of message formats 0, 1 and 2 into Arrow batches.

If a crash truncated the segment, reading ends at its last whole batch without an error. The reader reports damage in
the middle with position, length and reason, and continues after it.
"""

from collections.abc import Iterator
from mmap import mmap

import pyarrow as pa

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import SEGMENT_SCHEMA, batch_columns, legacy_columns
from offsets_pipeline.kafka.record.scan import MAX_DAMAGE_BYTES, Damage, Run, Scanner

__all__ = ["SEGMENT_SCHEMA", "Damage", "SegmentReader", "read_segment"]

DEFAULT_MAX_RECORDS = 1_000_000


class SegmentReader:
    """Reader of one segment. Iterate over `batches()`; the other attributes are complete afterwards.

    - `base_offset`: base offset of the first batch; None if there is none.
    - `end_offset`: last offset of the last batch + 1, also if compaction emptied that batch; None if there is none.
    - `damage`: unreadable stretches, and batches with unreadable records, by position.
    - `torn_tail`: incomplete bytes at the end, left by an unfinished write, or None.

    During iteration `position` is the byte position of the batches being read, or a little before, and `damage` has the
    damage before the batches that follow.
    """

    def __init__(self, data: bytes | memoryview | mmap, *, source: str, max_records: int, good_at: int | None) -> None:
        self.source = source
        self.damage: list[Damage] = []
        self.torn_tail: Damage | None = None
        self.base_offset: int | None = None
        self.end_offset: int | None = None
        self.position = 0
        self._data = memoryview(data)
        self._max_records = max_records
        self._good_at = good_at

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in file order, in SEGMENT_SCHEMA, at most `max_records` a batch. Raises NotASegment."""
        for _, parts in self.runs():
            for columns in parts:
                for start in range(0, len(columns), self._max_records):
                    yield columns.slice(start, self._max_records)

    def runs(self) -> Iterator[tuple[Run, Iterator[pa.RecordBatch]]]:
        """Yield runs of batches, each with its records in SEGMENT_SCHEMA: read them first. Raises NotASegment."""
        scanner = Scanner(self._data, self.source, self._good_at)
        self.damage = scanner.damage
        for run in scanner.runs(self._max_records):
            self.position = run.start
            yield run, self._records(run)
        self.damage.sort(key=lambda damage: damage.position)
        self.torn_tail = scanner.torn_tail
        self.base_offset = scanner.first_offset
        self.end_offset = None if scanner.last_offset is None else scanner.last_offset + 1

    def _records(self, run: Run) -> Iterator[pa.RecordBatch]:
        parts = [legacy_columns(run.messages)] if run.messages else batch_columns(self._data, run.positions)
        for columns, left_out in parts:
            self.damage += [self._damage(run.positions[index], reason) for index, reason in left_out.items()]
            yield columns

    def _damage(self, position: int, reason: str) -> Damage:
        length = b.LOG_OVERHEAD + b.length_of(self._data, position)
        return Damage(position, length, reason, bytes(self._data[position : position + min(length, MAX_DAMAGE_BYTES)]))


def read_segment(
    data: bytes | memoryview | mmap,
    *,
    source: str,
    max_records: int = DEFAULT_MAX_RECORDS,
    good_at: int | None = None,
) -> SegmentReader:
    """Create a reader of one segment's bytes, without reading them. `source` names the segment in errors.

    `good_at` is the position of a batch whose checksum was found good before; it is not computed again.
    """
    return SegmentReader(data, source=source, max_records=max_records, good_at=good_at)
