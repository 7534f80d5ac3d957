"""`offsets sample-topic-offsets`: positions of topics into a store, once or at an interval. Imports no Spark."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from offsets_pipeline.cli.live_cluster import kafka_options
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.stopping import repeated
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.warnings import line_time
from offsets_pipeline.errors import NoSuchTopic
from offsets_pipeline.ingest.topic_positions.sample_files import read_sample_file
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.store_folder import properties_of

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_sources import SampleTopicOffsets
    from offsets_pipeline.common.config import Settings


def sample_topic_offsets(options: SampleTopicOffsets, settings: Settings) -> None:
    """Append positions to the table topic_offsets. Raises NoSuchTopic if no topic matches."""
    reader = open_reader(options.store, settings)
    table = table_of(reader.location)
    clock = SystemClock()
    pattern = settings.lag.sample_topics if options.topics is None else options.topics
    asked = options.positions_from
    if asked.positions is not None:
        rows = read_sample_file(asked.positions, clock.now_ms())
        matches = [re.fullmatch(pattern, topic) is not None for topic in rows["topic"].to_pylist()]
        if matches and not any(matches):
            raise NoSuchTopic(f"{asked.positions} has no topic that matches {pattern!r}; check --topics")
        added = SampleWriter(table, asked.positions).append(rows.filter(matches))
        sys.stdout.write(f"{added} positions added to {options.store}\n")
        return
    # a broker's client takes long to import
    from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler

    kafka = kafka_options(asked, settings)
    with closing(PositionSampler(kafka, table, pattern, clock)) as sampler:

        def sample() -> int:
            properties_of(arrow_folder(reader.location))  # raises NotAStore once the store has another format
            return sampler.sample()

        for sampled in repeated(sample, options.every_ms, clock):
            if not sampled and options.every_ms is None:
                raise NoSuchTopic(
                    f"no positions sampled: no topic at {kafka.bootstrap_server} matches {pattern!r}, or no leader of "
                    "its partitions answers; check --topics"
                )
            sys.stdout.write(f"{line_time()}positions of {sampled} partitions sampled into {options.store}\n")
