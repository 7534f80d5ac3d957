"""Positions of topics for a command: from a live cluster, from a file, or from the samples of the store."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from offsets_pipeline.clock import shown_time
from offsets_pipeline.lag.position_sources import SampledPositions
from offsets_pipeline.topic_positions.position_samples import PositionSamples
from offsets_pipeline.topic_positions.sample_table import read_samples, samples_of, table_of
from offsets_pipeline.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from offsets_pipeline.cli.live_cluster import LiveCluster
    from offsets_pipeline.config import Settings
    from offsets_pipeline.lag.position_sources import PositionSource
    from offsets_pipeline.query.answer_time import AnswerTime
    from offsets_pipeline.query.state_reader import StateReader

_STALE_INTERVALS = 3


def position_source(
    reader: StateReader,
    live: LiveCluster,
    file: str | None,
    settings: Settings,
    topics: Collection[str],
    time: AnswerTime,
    now_ms: int,
    at_ms: int | None = None,
    *,
    tell: Callable[[str], object] = warn,
) -> PositionSource:
    """The positions of these topics, now or at a past time, from a live cluster, a file or the samples of the store.

    ``time`` is the data time of the groups. ``tell`` is called with a warning if the samples of the store are old or
    missing.
    """
    asked_ms = now_ms if at_ms is None else at_ms
    if file is not None:
        from offsets_pipeline.topic_positions.sample_files import read_sample_file

        data_ms = min(time.data_ms.values(), default=asked_ms)
        return SampledPositions(PositionSamples(read_sample_file(file, now_ms, topics, data_ms)), asked_ms)
    table = table_of(reader.location)
    if live.is_given:
        # a broker's client takes long to import
        from offsets_pipeline.lag.broker_source import BrokerPositions

        return BrokerPositions(live.cluster, topics, samples_of(table, topics), now_ms, at_ms)
    sampled = SampledPositions(read_samples(table, topics), asked_ms)
    until_ms = sampled.until_ms
    if until_ms is None and topics:
        tell(
            f"{reader.location} has no positions of these topics; add --bootstrap-server or --positions, or run "
            f"`offsets sample-topic-offsets --store {shlex.quote(reader.location)}`"
        )
    elif until_ms is not None and asked_ms - until_ms > _STALE_INTERVALS * max(settings.lag.sample_interval_ms, 1_000):
        tell(f"the newest positions in {reader.location} are of {shown_time(until_ms)}; lag is as of then")
    return sampled
