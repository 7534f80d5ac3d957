"""Segment files written from rows of the log, as a broker lays them out."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.semantics.log_row import COMMIT
from tests.record_batches import BatchOptions, encode_batch, encode_control_batch

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow

NO_PRODUCER = BatchOptions()


def batches_of(rows: Sequence[LogRow], records_per_batch: int = 3) -> list[bytes]:
    """The rows of one log partition as record batches: a batch has one producer, a marker a batch of its own."""
    batches: list[bytes] = []
    for (producer_id, control_type), run in groupby(rows, key=lambda row: (row.producer_id, row.control_type)):
        of_producer = list(run)
        if control_type is not None:
            assert producer_id is not None
            batches += [
                encode_control_batch(offset=row.record_offset, commit=control_type == COMMIT, producer_id=producer_id)
                for row in of_producer
            ]
            continue
        options = NO_PRODUCER
        if producer_id is not None:
            options = BatchOptions(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        for start in range(0, len(of_producer), records_per_batch):
            batch = of_producer[start : start + records_per_batch]
            batches.append(
                encode_batch(
                    pa.array([row.key for row in batch], pa.binary()),
                    pa.array([row.value for row in batch], pa.binary()),
                    base_offset=batch[0].record_offset,
                    offsets=np.array([row.record_offset for row in batch], dtype=np.int64),
                    timestamps=1_700_000_000_000,
                    options=options,
                )
            )
    return batches


def write_segment(folder: Path, log_partition: int, data: bytes, base_offset: int = 0) -> Path:
    """One segment file below a data folder."""
    path = folder / f"__consumer_offsets-{log_partition}" / f"{base_offset:020}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_log(folder: Path, rows: Iterable[LogRow], *, partitions: int = 1) -> Path:
    """A data folder with one segment for each log partition, an empty one where there is no row."""
    by_partition: dict[int, list[LogRow]] = {partition: [] for partition in range(partitions)}
    for row in rows:
        by_partition[row.log_partition].append(row)
    for partition, of_one in by_partition.items():
        write_segment(folder, partition, b"".join(batches_of(of_one)))
    return folder


def batch_ends(data: bytes) -> list[int]:
    """Where each batch of a segment ends: offset (8 bytes), length (4), then as many bytes."""
    ends, at = [], 0
    while at < len(data):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        ends.append(at)
    return ends


def write_prefix(
    segments: Path, folder: Path, share: float, chosen: random.Random, topic: str = "__consumer_offsets"
) -> Path:
    """Copy a data folder as of an earlier time: each segment has its first batches, some an incomplete one more."""
    for source in sorted(segments.glob(f"{topic}-*/*.log")):
        data = source.read_bytes()
        ends = [0, *batch_ends(data)]
        last = round(share * (len(ends) - 1))
        end = ends[last]
        if last + 1 < len(ends) and chosen.random() < 0.5:
            end += chosen.randrange(1, ends[last + 1] - end)
        copy = folder / source.parent.name / source.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data[:end])
    return folder
