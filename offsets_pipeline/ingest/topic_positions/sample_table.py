"""Samples of positions: the table `topic_offsets` of a store, and files of users. No Spark.

The table is made with the first sample, appended to, and read for some topics. A file is a Delta table with the columns
of `topic_offsets`, or a CSV file with one of two headers. `topic,partition,log_start_offset,log_end_offset,sampled_at`
has a row for each sample, in the order of its columns or another. The header of `reset-offsets` (positions.py) has a
row for each partition: its earliest and latest offsets are those of the present, and each column of a time is a sample.
No column says when the present is, so these offsets count at the data time of the commits that they are compared with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.clock import parse_time_ms, shown_time
from offsets_pipeline.coordinator.requests import validated_partition
from offsets_pipeline.errors import MalformedFile, NoSuchTable
from offsets_pipeline.ingest.topic_positions.csv_file import CsvRow, read_rows
from offsets_pipeline.ingest.topic_positions.position_samples import SAMPLE_SCHEMA, PositionSamples, Sample, rows_of
from offsets_pipeline.ingest.topic_positions.positions import read_positions
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.reader import names_in_order
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    Place = tuple[str, int]

_TIME = "sampled_at"
_COLUMNS = ("topic", "partition", "log_start_offset", "log_end_offset", _TIME)
_READ_SCHEMA = pa.schema([SAMPLE_SCHEMA.field(name).with_nullable(nullable=True) for name in _COLUMNS])
_TWO = 2
_ANY_TIME = "~"  # above all times: of a file without statistics
#: Every partition gets a row this often, so that the newest sample of all is never far back.
_FULL_EVERY_MS = 3_600_000
#: Old samples are removed if they are at least this part of all: a removal rewrites the table.
_LEAST_PART = 10


def table_of(store: str) -> TableFolder:
    """The table `topic_offsets` of the store in a folder; it may not exist yet."""
    return TableFolder(f"{arrow_folder(store)}/{TOPIC_OFFSETS.name}", TOPIC_OFFSETS)


def read_samples(table: TableFolder, topics: Collection[str] | None = None) -> PositionSamples:
    """Return the samples of these topics, or of all (None); none if the table does not exist.

    Raises MalformedFile if the table lacks a column of `topic_offsets`.
    """
    return PositionSamples(samples_of(table, topics), next(iter(last_sample_times(table)), None))


def last_sample_times(table: TableFolder) -> list[int]:
    """Return the times in ms of the last two samples of all topics, the newest first; fewer without two.

    A partition whose last row is older has not changed since then. Reads only files that may have one of the two.
    """
    try:
        snapshot = table.snapshot()
    except NoSuchTable:
        return []
    times: list[int] = []
    latest = sorted(((each.highest.get(_TIME, _ANY_TIME), each) for each in snapshot.files()), key=itemgetter(0))
    for highest, file in reversed(latest):
        if len(times) == _TWO and highest < shown_time(times[-1]):
            break
        at_us = table.read_file(file, [_TIME])[_TIME].cast(pa.int64()).unique().to_pylist()
        times = sorted({*times, *(each // 1000 for each in at_us)}, reverse=True)[:_TWO]
    return times


def samples_of(table: TableFolder, topics: Collection[str] | None) -> pa.Table:
    """The rows of `read_samples`."""
    try:
        snapshot = table.snapshot()
    except NoSuchTable:
        return pa.Table.from_batches([], _READ_SCHEMA)  # `empty_table` imports pandas
    missing = [name for name in _COLUMNS if name not in snapshot.columns]
    if missing:
        raise MalformedFile(f"cannot read positions from {table.folder}: it has no column {missing[0]}")
    only = {} if topics is None else {"topic": names_in_order(topics)}
    return snapshot.rows(_COLUMNS, only).cast(_READ_SCHEMA)


def remove_old_samples(table: TableFolder, before_ms: int) -> int:
    """Remove samples older than a time, if they are a tenth of all; returns the number of rows removed.

    Keeps the last one of each partition before that time: it is the position then, and later lag is interpolated from
    it. Reads one file at a time. Raises WriteConflict if another writer rewrites the same files.
    """
    snapshot = table.snapshot()
    before = pa.scalar(before_ms * 1000, pa.timestamp("us", tz="UTC"))
    key = ["topic", "partition", "sampled_at"]
    key_schema = pa.schema([_READ_SCHEMA.field(name) for name in key])
    last: pa.Table | None = None
    for file in snapshot.files():
        rows = table.read_file(file, key).cast(key_schema)
        old = rows.filter(pc.less(rows["sampled_at"], before))
        last = (
            (old if last is None else pa.concat_tables([last, old]))
            .group_by(key[:2])
            .aggregate([("sampled_at", "max")])
        )
        last = last.rename_columns(key).cast(key_schema)
    changed, removed = [], 0
    for file in snapshot.files():
        rows = table.read_file(file)
        is_old = pc.less(rows["sampled_at"], before)
        old = rows.filter(is_old)
        if old.num_rows:
            kept = pa.concat_tables(
                [rows.filter(pc.invert(is_old)), old.join(last, key, join_type="left semi").cast(SAMPLE_SCHEMA)]
            )
            if kept.num_rows < rows.num_rows:
                changed.append((file, kept))
                removed += rows.num_rows - kept.num_rows
    if removed * _LEAST_PART < sum(file.rows for file in snapshot.files()) or not removed:
        return 0
    add = [table.write_file(kept) for _, kept in changed if kept.num_rows]
    table.commit(add, [file for file, _ in changed], seen=snapshot, operation="DELETE")
    return removed


class SampleWriter:
    """Appends samples to `topic_offsets`, without rows that repeat the last sample of their partition.

    If a partition changes after repeated samples, the writer appends two rows: the last repeated sample and the change.
    So no sample between two rows of a partition saw a change, and interpolation gives the same result as with all rows.
    A sample in which nothing changed has a row of one partition: all others have not changed up to its time (R37).
    """

    def __init__(self, table: TableFolder, source: str) -> None:
        """``source`` is the broker or file that the samples come from."""
        self._table = table
        self._source = source
        self._table.create()
        self._written: dict[Place, Sample] = {}
        self._seen: dict[Place, Sample] = {}
        self._full_ms: int | None = None

    def write(self, positions: Mapping[Place, tuple[int, int]], sampled_ms: int) -> int:
        """Append one sample; returns the number of rows written.

        Raises as `TableFolder.commit`; then nothing is written, and the next sample makes up for it.
        """
        is_full = self._full_ms is None or sampled_ms - self._full_ms >= _FULL_EVERY_MS
        rows: list[tuple[Place, Sample]] = []
        for place, (start, end) in sorted(positions.items()):
            now, seen = Sample(start, end, sampled_ms), self._seen.get(place)
            if seen is not None and (seen.log_start_offset, seen.log_end_offset) == (start, end) and not is_full:
                continue
            if seen is not None and seen.sampled_ms > self._written[place].sampled_ms:
                rows.append((place, seen))
            rows.append((place, now))
        if not rows:
            rows = [(place, Sample(*positions[place], sampled_ms)) for place in sorted(positions)[:1]]
        if rows:
            self._append(rows)
        self._seen.update({place: Sample(*each, sampled_ms) for place, each in positions.items()})
        if is_full:
            self._full_ms = sampled_ms
        return len(rows)

    def close(self) -> None:
        """Append the last sample of each partition whose samples have repeated its last row."""
        rows = [(place, each) for place, each in sorted(self._seen.items()) if each != self._written[place]]
        if rows:
            self._append(rows)

    def append(self, rows: pa.Table) -> int:
        """Append samples as they are, all or none; returns their number. Raises as `TableFolder.commit`."""
        if rows.num_rows:
            seen = self._table.snapshot()
            source = pa.array([self._source] * rows.num_rows)
            file = self._table.write_file(rows.select(_COLUMNS).append_column("source", source).cast(SAMPLE_SCHEMA))
            self._table.commit([file], seen=seen)
        return int(rows.num_rows)

    def _append(self, rows: list[tuple[Place, Sample]]) -> None:
        self.append(rows_of(rows, self._source))
        self._written.update(rows)


# --- files of users


def read_sample_file(
    path: str, now_ms: int, topics: Collection[str] | None = None, data_ms: int | None = None
) -> pa.Table:
    """Return the samples of a CSV file or a Delta table, as rows of `topic_offsets`, of these topics or all.

    The earliest and latest offsets of a CSV file count from ``data_ms``, an earlier time, up to ``now_ms``.

    Raises NoSuchPath, and MalformedFile with the number of the wrong line.
    """
    if "://" in path or Path(path).is_dir():
        table = TableFolder(arrow_folder(path), TOPIC_OFFSETS)
        if not table.exists():
            raise MalformedFile(f"cannot read positions from {path}: name a CSV file or a Delta table")
        return samples_of(table, topics)
    header = next(read_rows(Path(path)), CsvRow(Path(path), 1, []))
    is_by_sample = "sampled_at" in (name.strip() for name in header.fields)
    samples = _by_sample(Path(path)) if is_by_sample else _by_partition(Path(path), now_ms, data_ms)
    return rows_of((each for each in samples if topics is None or each[0][0] in topics), path)


def _by_sample(path: Path) -> Iterator[tuple[Place, Sample]]:
    rows = read_rows(path)
    header = next(rows)
    names = [name.strip() for name in header.fields]
    if sorted(names) != sorted(_COLUMNS):
        raise header.malformed(f"the header has to be {','.join(_COLUMNS)}")
    for row in rows:
        if len(row.fields) != len(names):
            raise row.malformed(f"{len(row.fields)} fields, the header has {len(names)}")
        fields = dict(zip(names, row.fields, strict=True))
        with row.checked():
            where = validated_partition((fields["topic"], row.number("partition", fields["partition"])))
            sampled_ms = parse_time_ms(fields["sampled_at"].strip())
        start, end = (row.number(name, fields[name]) for name in _COLUMNS[2:4])
        if start > end:
            raise row.malformed(f"log_start_offset {start} is above log_end_offset {end}")
        yield (where.topic, where.partition), Sample(start, end, sampled_ms)


def _by_partition(path: Path, now_ms: int, data_ms: int | None) -> Iterator[tuple[Place, Sample]]:
    since_ms = now_ms if data_ms is None else min(now_ms, data_ms)
    for where, position in read_positions(path).by_partition.items():
        place = where.topic, where.partition
        for timed in position.times:
            if timed.time_ms < since_ms:
                end = position.latest if timed.offset is None else timed.offset
                yield place, Sample(position.earliest, end, timed.time_ms)
        for at_ms in dict.fromkeys((since_ms, now_ms)):
            yield place, Sample(position.earliest, position.latest, at_ms)
