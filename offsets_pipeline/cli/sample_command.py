"""`offsets sample-topic-offsets`: positions of topics into a store, once or at an interval. Imports no Spark."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.repeating import repeated
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.store_folder import properties_of
from offsets_pipeline.errors import NoSuchTopic
from offsets_pipeline.topic_positions.sample_files import read_sample_file
from offsets_pipeline.topic_positions.sample_table import SampleWriter, table_of

if TYPE_CHECKING:
    from offsets_pipeline.cli.lag_command import PositionOptions
    from offsets_pipeline.config import Settings


def sample_topic_offsets(
    store: str, settings: Settings, of_positions: PositionOptions, topics: str | None, every_ms: int | None
) -> int:
    """Append positions to `topic_offsets` of the store; returns the exit status.

    ``topics`` is a regular expression; by default that of the settings. Raises NoSuchTopic if no topic matches it.
    """
    reader = open_reader(store, settings)
    table = table_of(reader.location)
    clock = SystemClock()
    pattern = settings.lag.sample_topics if topics is None else topics
    if of_positions.positions is not None:
        rows = read_sample_file(of_positions.positions, clock.now_ms())
        matches = [re.fullmatch(pattern, topic) is not None for topic in rows["topic"].to_pylist()]
        if matches and not any(matches):
            raise NoSuchTopic(f"{of_positions.positions} has no topic that matches {pattern!r}; check --topics")
        added = SampleWriter(table, of_positions.positions).append(rows.filter(matches))
        sys.stdout.write(f"{added} positions added to {store}\n")
        return 0
    # a broker's client takes long to import
    from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options
    from offsets_pipeline.topic_positions.position_sampler import PositionSampler

    given = {**settings.kafka.options, **parse_options(of_positions.options)}
    kafka = KafkaOptions(str(of_positions.bootstrap_server), given)
    with closing(PositionSampler(kafka, table, pattern, clock)) as sampler:

        def sample() -> int:
            properties_of(arrow_folder(reader.location))  # raises NotAStore once the store has another format
            return sampler.sample()

        for sampled in repeated(sample, every_ms, clock):
            if not sampled and every_ms is None:
                raise NoSuchTopic(
                    f"no positions sampled: no topic at {kafka.bootstrap_server} matches {pattern!r}, or no leader of "
                    "its partitions answers; check --topics"
                )
            sys.stdout.write(f"positions of {sampled} partitions sampled into {store}\n")
    return 0
