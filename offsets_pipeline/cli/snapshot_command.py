"""`offsets snapshot`: looks at a cluster's groups until a signal stops it. It does not import Spark."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.broker.cluster import Cluster
from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options
from offsets_pipeline.cli.repeating import repeated
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.group_snapshots.group_snapshot import take_snapshot
from offsets_pipeline.group_snapshots.snapshot_log import SnapshotLog
from offsets_pipeline.topic_positions.position_sampler import PositionSampler
from offsets_pipeline.topic_positions.sample_table import table_of

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


@dataclass(frozen=True)
class SnapshotOptions:
    """The options of the command."""

    bootstrap_server: str
    interval_ms: int
    available_now: bool
    offsets_partitions: int | None
    options: tuple[str, ...]


def snapshot(store: str, settings: Settings, options: SnapshotOptions) -> int:
    """Append the changes of a cluster's groups, and positions of its topics; returns the exit status.

    After a retriable error, such as a broker that is away, the next snapshot tries again.
    """
    kafka = KafkaOptions(options.bootstrap_server, {**settings.kafka.options, **parse_options(options.options)})
    clock = SystemClock()
    with Cluster(kafka) as cluster, ExitStack() as opened:
        log: SnapshotLog | None = None
        positions: PositionSampler

        def run() -> tuple[int, int]:
            nonlocal log, positions
            if log is None:
                found = SnapshotLog.open_snapshots(
                    store, cluster.cluster_id(), options.offsets_partitions, settings, clock
                )
                log = opened.enter_context(found)
                sampler = PositionSampler(kafka, table_of(log.store.location), settings.lag.sample_topics, clock)
                positions = opened.enter_context(closing(sampler))
            groups = take_snapshot(cluster, log.group_ids())
            records = log.append(groups)
            positions.sample()
            return len(groups), records

        for groups, records in repeated(run, None if options.available_now else options.interval_ms, clock):
            if records or options.available_now:
                sys.stdout.write(f"{records} records appended to {store}; {groups} groups\n")
    return 0
