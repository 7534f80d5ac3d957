"""Positions as a cluster's brokers know them, with samples where a broker does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.clock import MS_OF_SECOND, Clock
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.ingest.topic_positions.position_samples import Float64s, Int64s, PositionSamples, sample_rows
from offsets_pipeline.kafka.broker.fetch import FoundRecord, first_records
from offsets_pipeline.kafka.broker.log_offsets import LogBounds, bounds_of_topics, list_offsets, rounds_of
from offsets_pipeline.questions.lag.position_sources import (
    UNKNOWN_END,
    BoundsAtTimes,
    Method,
    SampledPositions,
    TimeLag,
)

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.questions.lag.position_sources import Place, Places

    #: A partition, and an offset or a time in ms.
    Point = tuple[Place, int]


class BrokerPositions(SampledPositions):
    """Positions as a cluster's brokers know them; samples where a broker does not.

    At a time before now the log end is the offset of the first record after that time, by the records' timestamps. A
    record with a timestamp ahead of now hides those behind it; then samples tell the log end, or the one of now does.
    Samples also tell it if the log has lost the records before that record, or if the topic was deleted since.
    The answers of now are one more sample.
    """

    method_at_end = Method.EXACT

    def __init__(
        self, cluster: Cluster, topics: Collection[str], samples: pa.Table, clock: Clock, at_ms: int | None = None
    ) -> None:
        """Ask for the bounds of these topics. Raises the errors of `Cluster`.

        ``samples`` are rows of `topic_offsets`. ``at_ms`` is the time of a question about the past.
        """
        self._cluster = cluster
        self._is_past = at_ms is not None
        self._ahead: dict[Place, int] = {}  # the first record with a timestamp ahead of now, or the log end
        self._bounds: Mapping[Place, LogBounds | OffsetsError] = bounds_of_topics(cluster, topics)
        self._now_ms = now_ms = clock.now_ms()  # after the answer: no record in it came later than now
        known = {place: (each.start, each.end) for place, each in self._bounds.items() if isinstance(each, LogBounds)}
        self._ends = {place: end for place, (_, end) in known.items()}
        fresh = sample_rows(known, now_ms, "").select(samples.column_names).cast(samples.schema)
        # a sample that a clock ahead dated later than now has a lower log end, as if the topic was created again
        older = samples.filter(pc.less(samples["sampled_at"].cast(pa.int64()), now_ms * 1000))
        super().__init__(PositionSamples(pa.concat_tables([older, fresh])), now_ms if at_ms is None else at_ms)
        self.until_ms = self.at_ms  # a broker knows all times up to now

    def bounds(self, places: Places) -> BoundsAtTimes:
        """Log start and log end. The log start of a past time is that of the last sample, if there was one."""
        sampled, is_over = super().bounds(places), self.between(places).is_over
        start, end, highest = (np.full(len(places.at), UNKNOWN_END) for _ in range(3))
        reasons: dict[int, str] = {}
        rows = list(zip(places.named(), places.times_ms.tolist(), strict=True))
        ends = self._ends_of(point for point in rows if point[1] < self._now_ms)
        for row, (place, at_ms) in enumerate(rows):
            known, broker_end = self._bounds.get(place), None if is_over[row] else ends.get((place, at_ms))
            is_lost = broker_end is not None and self._is_lost(place, broker_end)
            sampled_start, sampled_end = sampled.log_start_offset[row], sampled.log_end_offset[row]
            is_sampled = sampled_end != UNKNOWN_END
            if not isinstance(known, LogBounds) and self._is_past and is_sampled:  # deleted since, or not answered now
                start[row], end[row], highest[row] = sampled_start, sampled_end, sampled.highest[row]
            elif not isinstance(known, LogBounds):
                missing = f"{self._cluster.settings.at} has no such partition"
                reasons[row] = missing if known is None else first_line(known)
            elif at_ms >= self._now_ms:
                start[row], end[row], highest[row] = known.start, known.end, known.end
            elif broker_end is not None and not (is_lost and (is_sampled or self._is_past)):
                end[row], highest[row] = broker_end, known.end
                if is_sampled or not self._is_past:
                    start[row] = min(sampled_start if is_sampled else known.start, end[row])
            elif is_sampled:
                end[row] = sampled_end if broker_end is None else min(sampled_end, broker_end)
                start[row], highest[row] = min(sampled_start, end[row]), sampled.highest[row]
            elif self._ahead.get(place, known.end) < known.end and not self._is_past:
                start[row], end[row], highest[row] = known.start, known.end, known.end
            else:
                reasons[row] = "the broker does not tell the log end of that time"
                highest[row] = UNKNOWN_END if broker_end is None else broker_end
        return BoundsAtTimes(start, end, highest, reasons)

    def time_lags(self, places: Places, offsets: Int64s) -> list[TimeLag]:
        """Lag in seconds by the record's own timestamp; by samples if the log no longer has the record."""
        points: list[Point] = list(zip(places.named(), offsets.tolist(), strict=True))
        records: dict[Point, FoundRecord] = {}
        is_gone = [
            is_over or self._is_gone(point)
            for point, is_over in zip(points, self.between(places).is_over.tolist(), strict=True)
        ]
        for some in rounds_of(point for point, gone in zip(points, is_gone, strict=True) if not gone):
            for place, record in first_records(self._cluster, dict(some)).items():
                records[place, some[place]] = record
        gone_rows = np.flatnonzero(is_gone)
        by_samples = dict(
            zip(gone_rows.tolist(), super().time_lags(places.take(gone_rows), offsets[gone_rows]), strict=True)
        )
        # a record after the time of its row is not older than that, so the lag is 0
        return [
            by_samples[row] if row in by_samples else exact_lag(records[point], at_ms)
            for row, (point, at_ms) in enumerate(zip(points, places.times_ms.tolist(), strict=True))
        ]

    def _is_gone(self, point: Point) -> bool:
        """Whether the log no longer has a record that it had at the past time."""
        place, offset = point
        known = self._bounds.get(place)
        return self._is_past and (not isinstance(known, LogBounds) or offset < known.start)

    def _is_lost(self, place: Place, end: int) -> bool:
        """Whether the log no longer has the records before this end: at a time before them it was lower."""
        known = self._bounds[place]
        return isinstance(known, LogBounds) and 0 < end <= known.start

    def lags_at(self, places: Places, offsets: Int64s) -> Float64s:
        """Lag by samples; where no sample is old enough, by the records' timestamps."""
        between = self.between(places)
        ends = between.end
        unknown = np.flatnonzero(np.isnan(ends) & ~between.is_over)
        points = list(zip(places.take(unknown).named(), places.times_ms[unknown].tolist(), strict=True))
        asked = self._ends_of(points)
        for row, point in zip(unknown.tolist(), points, strict=True):
            end = asked.get(point)
            # the log ended no later than that, so the lag of such an offset is 0
            if end is not None and (offsets[row] >= end or not self._is_lost(point[0], end)):
                ends[row] = end
        return np.maximum(ends - offsets, 0)

    def _ends_of(self, points: Iterable[Point]) -> dict[Point, int]:
        """Log end at each time: the offset of the first record after it, or else the log end.

        Times are missing whose first record after them is ahead of now.
        """
        found: dict[Point, int] = {}
        for some in rounds_of(points):
            ends = self._ends_after(some)
            within = {place for place, end in ends.items() if end < self._ends[place]}
            self._ahead |= self._ends_after({each: self._now_ms for each in within if each not in self._ahead})
            found |= {
                (place, some[place]): end
                for place, end in ends.items()
                if place not in within or end != self._ahead.get(place)
            }
        return found

    def _ends_after(self, times_ms: Mapping[Place, int]) -> dict[Place, int]:
        after = {place: at_ms + 1 for place, at_ms in times_ms.items()}
        return {
            # a record may have come since the bounds
            place: self._ends[place] if offset is None else min(offset, self._ends[place])
            for place, offset in (list_offsets(self._cluster, after) if after else {}).items()
            if place in self._ends and not isinstance(offset, OffsetsError)
        }


def exact_lag(found: FoundRecord, at_ms: int) -> TimeLag:
    """Lag by the first record at or after the committed offset, as a broker returned it."""
    if found is None:
        return TimeLag(0.0, Method.EXACT)
    if isinstance(found, OffsetsError):
        return TimeLag(None, Method.NONE, first_line(found))
    if found.timestamp_ms is None:
        return TimeLag(None, Method.NONE, f"the record at offset {found.offset} has no timestamp")
    return TimeLag(round(max(0.0, at_ms - found.timestamp_ms) / MS_OF_SECOND, 3), Method.EXACT)
