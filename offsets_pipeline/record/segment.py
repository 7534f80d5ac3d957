"""Reads a Kafka log segment (`<base offset>.log`) of message formats 0, 1 and 2 into Arrow batches.

A segment that was cut short by a crash ends cleanly at its last whole batch. Damage in the middle is reported with
position, length and reason, and reading goes on behind it.
"""

from collections.abc import Iterator
from mmap import mmap

import pyarrow as pa

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.columns import SEGMENT_SCHEMA, batch_columns, legacy_columns
from offsets_pipeline.record.scan import MAX_DAMAGE_BYTES, Damage, Run, Scanner, TornTail

__all__ = ["SEGMENT_SCHEMA", "Damage", "SegmentReader", "TornTail", "read_segment"]

DEFAULT_MAX_RECORDS = 1_000_000


class SegmentReader:
    """One segment. Iterate over `batches()`; afterwards the other attributes are complete.

    - `base_offset`: base offset of the first batch; None if there is none.
    - `end_offset`: last offset of the last batch + 1, also if compaction emptied that batch; None if there is none.
    - `damage`: what could not be read, by position.
    - `torn_tail`: what an unfinished write left at the end, or None.
    """

    def __init__(self, data: bytes | memoryview | mmap, *, source: str, max_records: int) -> None:
        self.source = source
        self.damage: list[Damage] = []
        self.torn_tail: TornTail | None = None
        self.base_offset: int | None = None
        self.end_offset: int | None = None
        self._data = memoryview(data)
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records in file order, in SEGMENT_SCHEMA, at most `max_records` a batch. Raises NotASegment."""
        scanner = Scanner(self._data, self.source)
        undecodable: list[Damage] = []
        for run in scanner.runs(self._max_records):
            for columns in self._columns(run, undecodable):
                for start in range(0, len(columns), self._max_records):
                    yield columns.slice(start, self._max_records)
        self.damage = sorted([*scanner.damage, *undecodable], key=lambda damage: damage.position)
        self.torn_tail = scanner.torn_tail
        self.base_offset = scanner.first_offset
        self.end_offset = None if scanner.last_offset is None else scanner.last_offset + 1

    def _columns(self, run: Run, undecodable: list[Damage]) -> list[pa.RecordBatch]:
        if run.messages:
            return [legacy_columns([record for records in run.messages for record in records])]
        if not run.positions:
            return []
        batches, bad_batches = batch_columns(self._data, run.positions)
        for bad in bad_batches:
            position = run.positions[bad.index]
            length = b.LOG_OVERHEAD + b.WALK_HEADER.unpack_from(self._data, position)[1]
            raw = bytes(self._data[position : position + min(length, MAX_DAMAGE_BYTES)])
            undecodable.append(Damage(position, length, bad.reason, raw))
        return batches


def read_segment(
    data: bytes | memoryview | mmap, *, source: str, max_records: int = DEFAULT_MAX_RECORDS
) -> SegmentReader:
    """A reader of one segment's bytes; `source` names it in errors. Nothing is read yet."""
    return SegmentReader(data, source=source, max_records=max_records)
