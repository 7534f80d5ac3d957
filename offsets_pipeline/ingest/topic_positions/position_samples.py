"""Samples: log start and log end of topics' partitions at several times, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS

if TYPE_CHECKING:
    Place = tuple[str, int]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

SAMPLE_SCHEMA = TOPIC_OFFSETS.arrow_schema()
_US_OF_MS = 1_000
_NONE = slice(0, 0)


class Sample(NamedTuple):
    """Log start and log end of a partition at a time, in ms since 1970."""

    log_start_offset: int
    log_end_offset: int
    sampled_ms: int


class Series(NamedTuple):
    """The samples of one partition, by time."""

    sampled_ms: Int64s
    log_start_offset: Int64s
    log_end_offset: Int64s


def first_above(values: Int64s, first: Int64s, end: Int64s, wanted: Int64s) -> Int64s:
    """For each slice of ascending values the index of the first one above ``wanted``; its end if there is none."""
    low, high = first.copy(), end.copy()
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_above = values[np.minimum(middle, len(values) - 1)] > wanted
        low = np.where(is_open & ~is_above, middle + 1, low)
        high = np.where(is_open & is_above, middle, high)
    return low


class PositionSamples:
    """Samples of many partitions."""

    def __init__(self, rows: pa.Table, newest_ms: int | None = None) -> None:
        """``rows``: columns of the table `topic_offsets`, in any order; `source` may be missing.

        ``newest_ms``: time of the newest sample if that is of a topic which ``rows`` leave out.
        """
        order = pc.sort_indices(rows, [(name, "ascending") for name in ("topic", "partition", "sampled_at")])
        rows = rows.take(order)
        partition = rows["partition"].to_numpy()
        topic = rows["topic"].combine_chunks().dictionary_encode()
        codes = topic.indices.to_numpy(zero_copy_only=False) if rows.num_rows else np.zeros(0, dtype=np.int32)
        sampled_us = rows["sampled_at"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
        #: the samples of all partitions, by partition and time
        self.columns = Series(
            sampled_us // _US_OF_MS, rows["log_start_offset"].to_numpy(), rows["log_end_offset"].to_numpy()
        )
        of_rows = int(self.columns.sampled_ms.max()) if rows.num_rows else None
        #: time of the newest sample of all topics; None without samples
        self.newest_ms = max((each for each in (newest_ms, of_rows) if each is not None), default=None)
        first = np.flatnonzero(np.append([True], (np.diff(codes) != 0) | (np.diff(partition) != 0)))
        first = first[: len(codes)]
        names = topic.dictionary.to_pylist()
        ends = np.append(first[1:], len(codes))
        self._slices: dict[Place, slice] = {
            (names[codes[start]], int(partition[start])): slice(start, end)
            for start, end in zip(first.tolist(), ends.tolist(), strict=False)
        }

    def series(self, place: Place) -> Series:
        """The samples of a partition, by time; empty if it was never sampled."""
        found = self._slices.get(place, _NONE)
        return Series(*(column[found] for column in self.columns))

    def slices(self, places: Iterable[Place]) -> tuple[Int64s, Int64s]:
        """Where the samples of each partition begin and end in `columns`; both are 0 if it was never sampled."""
        found = [self._slices.get(place, _NONE) for place in places]
        return (
            np.fromiter((each.start for each in found), np.int64, len(found)),
            np.fromiter((each.stop for each in found), np.int64, len(found)),
        )

    def latest(self, until_ms: int | None = None) -> dict[Place, Sample]:
        """The last sample of each partition, or its last one up to a time; none of partitions without samples."""
        found = {}
        for place, (sampled_ms, starts, ends) in ((place, self.series(place)) for place in self._slices):
            count = len(sampled_ms) if until_ms is None else int(np.searchsorted(sampled_ms, until_ms, side="right"))
            if count:
                found[place] = Sample(int(starts[count - 1]), int(ends[count - 1]), int(sampled_ms[count - 1]))
        return found


def sample_rows(positions: Mapping[Place, tuple[int, int]], sampled_ms: int, source: str) -> pa.Table:
    """Log start and log end of partitions at one time, as rows of `topic_offsets`."""
    samples = [(place, Sample(start, end, sampled_ms)) for place, (start, end) in sorted(positions.items())]
    return rows_of(samples, source)


def rows_of(samples: Iterable[tuple[Place, Sample]], source: str) -> pa.Table:
    """Samples as rows of `topic_offsets`."""
    samples = list(samples)
    columns = [
        pa.array([topic for (topic, _), _ in samples], pa.string()),
        pa.array([partition for (_, partition), _ in samples], pa.int32()),
        pa.array([each.log_start_offset for _, each in samples], pa.int64()),
        pa.array([each.log_end_offset for _, each in samples], pa.int64()),
        pa.array([each.sampled_ms * _US_OF_MS for _, each in samples], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([source] * len(samples), pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SAMPLE_SCHEMA)
