"""Samples of positions from files of users: a CSV file, or a Delta table with the columns of `topic_offsets`.

A CSV file has one of two headers. `topic,partition,log_start_offset,log_end_offset,sampled_at` has a row for each
sample, in the order of its columns or another. The header of `reset-offsets` (positions.py) has a row for each
partition: its earliest and latest offsets are those of the present, and each column of a time is a sample. No column
says when the present is, so these offsets count at the data time of the commits that they are compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import parse_time_ms
from offsets_pipeline.coordinator.requests import validated_partition
from offsets_pipeline.errors import MalformedFile
from offsets_pipeline.ingest.topic_positions.csv_file import CsvRow, read_rows
from offsets_pipeline.ingest.topic_positions.position_samples import Sample, rows_of
from offsets_pipeline.ingest.topic_positions.positions import read_positions
from offsets_pipeline.ingest.topic_positions.sample_table import samples_of
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    Place = tuple[str, int]

_HEADER = ("topic", "partition", "log_start_offset", "log_end_offset", "sampled_at")


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
    if sorted(names) != sorted(_HEADER):
        raise header.malformed(f"the header has to be {','.join(_HEADER)}")
    for row in rows:
        if len(row.fields) != len(names):
            raise row.malformed(f"{len(row.fields)} fields, the header has {len(names)}")
        fields = dict(zip(names, row.fields, strict=True))
        with row.checked():
            where = validated_partition((fields["topic"], row.number("partition", fields["partition"])))
            sampled_ms = parse_time_ms(fields["sampled_at"].strip())
        start, end = (row.number(name, fields[name]) for name in _HEADER[2:4])
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
