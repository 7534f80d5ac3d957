"""Reading of segments and decoding of commits, by one process without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks import recipe
from benchmarks.generate import generate
from benchmarks.table import timed
from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.segment import read_segment

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.log_content import Shape
    from benchmarks.table import Table

_DECODE_REPEATS = 3
_ZSTD_SHARE = 0.2  # of the records, where each batch is compressed by itself: that takes long to make
_PARSE_ROWS = 250_000  # rows per call of the parser, as in the fold


def _read(segments: list[bytes]) -> int:
    """Read all segments, and release them batch by batch, as an ingest does."""
    return sum(batch.num_rows for data in segments for batch in read_segment(data, source="segment").batches())


def measure_decoding(table: Table, shape: Shape, folder: Path) -> None:
    """Measure the speed of reading segments and of decoding commits, in one process."""
    records = pa.table({})
    for codec in (Codec.NONE, Codec.ZSTD):
        for records_per_batch in (1, 3, 10):
            of_codec = replace(
                shape,
                commits=shape.commits if codec is Codec.NONE else int(shape.commits * _ZSTD_SHARE),
                codec=codec,
                records_per_batch=min(records_per_batch, shape.identities_per_group),
                offsets_partitions=1,
            )
            table.doing(f"reading segments: {of_codec.records_per_batch} records a batch, codec {codec.name.lower()}")
            log = generate(of_codec, folder / "segments")
            segments = [path.read_bytes() for path in sorted(log.folder.glob("*/*.log"))]
            shutil.rmtree(log.folder)
            seconds = timed(_DECODE_REPEATS, partial(_read, segments))
            table.add_speed(f"read segments, codec {codec.name.lower()}", log.description, log.records, seconds)
            if codec is Codec.NONE:
                records = pa.Table.from_batches(
                    [batch for data in segments for batch in read_segment(data, source="segment").batches()]
                ).select(["key", "value"])
    table.doing("decoding commits")
    blocks = [records.slice(start, _PARSE_ROWS).combine_chunks() for start in range(0, records.num_rows, _PARSE_ROWS)]
    data = f"{records.num_rows:,} commits"

    def by_columns() -> None:
        for block in blocks:
            CommitColumns(block["key"].combine_chunks(), block["value"].combine_chunks())

    table.add_speed(
        "find the fields of commits, by columns", data, records.num_rows, timed(_DECODE_REPEATS, by_columns)
    )

    def by_columns_to_arrow() -> None:
        for block in blocks:
            commits = CommitColumns(block["key"].combine_chunks(), block["value"].combine_chunks())
            commits.group_ids(), commits.topics(), commits.topic_ids(), commits.metadata()

    table.add_speed(
        "the same, and all strings as Arrow", data, records.num_rows, timed(_DECODE_REPEATS, by_columns_to_arrow)
    )
    keys, values = records["key"].to_pylist(), records["value"].to_pylist()
    table.add_speed(
        "decode commits row by row, struct.unpack",
        data,
        records.num_rows,
        timed(_DECODE_REPEATS, lambda: list(map(recipe.decode_commit, keys, values))),
    )
