"""`offsets snapshot` and `sample-topic-offsets`: what a cluster answers, once or at an interval. Import no Spark."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from offsets_pipeline.cli.live_cluster import kafka_options, require_same_cluster
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.stopping import repeated
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.common.warnings import line_time, set_line_times, warn
from offsets_pipeline.errors import NoSuchTopic
from offsets_pipeline.ingest.group_snapshot import SnapshotLog, take_snapshot
from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, read_sample_file, table_of
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.store_folder import properties_of
from offsets_pipeline.store.lease import END, SNAPSHOT, WAIT, Lease

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_sources import SampleTopicOffsets, SnapshotGroups
    from offsets_pipeline.common.config import Settings


def snapshot(options: SnapshotGroups, settings: Settings) -> None:
    """Append the changes of a cluster's groups, and positions of its topics.

    Raises any error of the first connection. After a later retriable error, such as a broker that is away, the next
    snapshot tries again. Raises LeaseHeld, LeaseLost.
    """
    set_line_times(are_on=not options.available_now)
    kafka = kafka_options(options.brokers, settings)
    clock, stopped = SystemClock(), threading.Event()
    interval_ms = None if options.available_now else options.interval_ms
    with Cluster(kafka) as cluster, ExitStack() as opened:
        log = opened.enter_context(
            SnapshotLog(options.store, cluster.cluster_id, options.offsets_partitions, settings, clock)
        )
        lease = Lease(log.store.location, "snapshot", (SNAPSHOT,), settings, clock, warn)
        opened.enter_context(lease.held(options.if_held or (END if options.available_now else WAIT)))
        lease.when_lost(stopped.set)
        sampler = PositionSampler(kafka, table_of(log.store.location), settings.lag.sample_topics, clock)
        positions = opened.enter_context(closing(sampler))

        def run() -> tuple[int, int]:
            groups = take_snapshot(cluster, log.group_ids())
            records = log.append(groups)
            positions.sample()
            return len(groups), records

        for groups, records in repeated(run, interval_ms, clock, stopped):
            if records or options.available_now:
                sys.stdout.write(
                    f"{line_time()}{counted(records, 'record')} appended to {options.store}; "
                    f"{counted(groups, 'group')}\n"
                )


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
    kafka = kafka_options(asked, settings)
    with closing(PositionSampler(kafka, table, pattern, clock)) as sampler:

        def sample() -> int:
            require_same_cluster(reader, sampler.cluster)
            properties_of(arrow_folder(reader.location))  # raises NotAStore once the store has another format
            return sampler.sample()

        for sampled in repeated(sample, options.every_ms, clock):
            if not sampled and options.every_ms is None:
                raise NoSuchTopic(
                    f"no positions sampled: no topic at {kafka.bootstrap_server} matches {pattern!r}, or no leader of "
                    "its partitions answers; check --topics"
                )
            sys.stdout.write(f"{line_time()}positions of {sampled} partitions sampled into {options.store}\n")
