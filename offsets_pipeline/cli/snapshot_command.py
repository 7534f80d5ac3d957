"""`offsets snapshot`: looks at a cluster's groups until a signal stops it. It does not import Spark."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.broker.cluster import Cluster
from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options
from offsets_pipeline.cli.repeating import repeated
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.group_snapshots.group_snapshot import take_snapshot
from offsets_pipeline.group_snapshots.snapshot_log import SnapshotLog

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


@dataclass(frozen=True)
class SnapshotOptions:
    """The options of the command."""

    bootstrap_server: str
    interval_ms: int
    available_now: bool
    offsets_partitions: int
    options: tuple[str, ...]


def snapshot(store: str, settings: Settings, options: SnapshotOptions) -> int:
    """Append the changes of a cluster's groups; returns the exit status.

    After a retriable error, such as a broker that is away, the next snapshot tries again.
    """
    kafka = KafkaOptions(options.bootstrap_server, {**settings.kafka.options, **parse_options(options.options)})
    clock = SystemClock()
    with Cluster(kafka) as cluster, ExitStack() as opened:
        log: SnapshotLog | None = None

        def run() -> tuple[int, int]:
            nonlocal log
            if log is None:
                found = SnapshotLog.open_snapshots(
                    store, cluster.cluster_id(), options.offsets_partitions, settings, clock
                )
                log = opened.enter_context(found)
            groups = take_snapshot(cluster, log.group_ids())
            return len(groups), log.append(groups)

        for groups, records in repeated(run, None if options.available_now else options.interval_ms, clock):
            if records or options.available_now:
                sys.stdout.write(f"{records} records appended to {store}; {groups} groups\n")
    return 0
