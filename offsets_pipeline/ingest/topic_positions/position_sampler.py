"""Samples positions of a cluster's topics into a store, once or at an interval."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.log_offsets import bounds_of_topics

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.store.delta.table_folder import TableFolder

_CLOSE_SECONDS = 10.0


class PositionSampler:
    """Samples log start and log end of the partitions of all topics whose names match a regular expression."""

    def __init__(self, options: KafkaOptions, table: TableFolder, topics: str, clock: Clock) -> None:
        """``table`` is `topic_offsets` of a store. Raises the errors of `Cluster` and of `TableFolder.create`."""
        self.cluster = Cluster(options)
        self._writer = SampleWriter(table, options.bootstrap_server)
        self._topics = re.compile(topics)
        self._clock = clock

    def sample(self) -> int:
        """Append one sample; returns the number of partitions sampled.

        Leaves out partitions that do not answer. Raises the errors of `Cluster` and of `TableFolder.commit`.
        """
        names = [name for name in self.cluster.topics(None) if self._topics.fullmatch(name)]
        sampled_ms = self._clock.now_ms()
        positions = {
            place: (each.start, each.end)
            for place, each in bounds_of_topics(self.cluster, names).items()
            if not isinstance(each, OffsetsError)
        }
        self._writer.write(positions, sampled_ms)
        return len(positions)

    def close(self) -> None:
        """Append the samples that were held back, and close the connections."""
        try:
            self._writer.close()
        finally:
            self.cluster.close()


class Sampler(Protocol):
    """Asks brokers at each `sample`."""

    def sample(self) -> object:
        """Ask once. Raises the errors of `Cluster`."""

    def close(self) -> None:
        """End."""


class SamplerThread(Periodic[None]):
    """Runs a sampler at an interval in a thread; an error is a warning, and the next sample tries again.

    ``make`` makes the sampler with the first sample: the brokers may be away. ``failing`` begins the warning. `close`
    waits ten seconds at most.
    """

    def __init__(
        self,
        make: Callable[[], Sampler],
        interval_ms: int,
        clock: Clock,
        warn: Callable[[str], object],
        *,
        name: str = "topic-offsets",
        failing: str = "cannot sample positions of topics",
    ) -> None:
        self._make = make
        self._sampler: Sampler | None = None
        super().__init__(
            self._sample,
            interval_ms,
            clock.now_ms,
            warn=warn,
            describe=lambda error: f"{failing}: {in_one_line(error)}; the next sample tries again",
            at_end=self._close_sampler,
            name=name,
            close_seconds=_CLOSE_SECONDS,
        )

    def _sample(self) -> None:
        if self._sampler is None:
            self._sampler = self._make()
        self._sampler.sample()

    def _close_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
