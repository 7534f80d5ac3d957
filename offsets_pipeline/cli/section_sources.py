"""Commands that bring records into the log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import HelpSection, argument, flag, grouped, option, several
from offsets_pipeline.cli.options import (
    GROUP_WITHOUT_MEMBERS,
    IF_HELD,
    PARTITIONS_OF_NEW_STORE,
    SEMANTICS_OF_NEW_STORE,
    Brokers,
    OneStore,
    PositionsFrom,
    every_option,
    format_option,
    partitions_option,
)
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.values import ADDRESS, FILE, INTERVAL, PATH, PATTERN, TOPIC_NAME, ZOOKEEPER
from offsets_pipeline.common.input_text import counted, first_ones
from offsets_pipeline.common.warnings import warn

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes
    from offsets_pipeline.ingest.zookeeper_import import ImportedGroup
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_COUNTS = ("group", "offsets", "imported", "up_to_date", "kept", "skipped")  # of import-zookeeper
_WARNINGS = 20

sources = HelpSection("Sources")


@sources.command(
    "ingest-segments",
    "offsets ingest-segments --store store /var/lib/kafka/data",
    "offsets ingest-segments --store store --offsets-partitions 50 __consumer_offsets-7",
    "offsets ingest-segments --store store --offsets.topic.num.partitions 50 __consumer_offsets-7",
    "offsets ingest-segments --store connect --topic connect-offsets /var/lib/kafka/data",
)
class IngestSegments(OneStore):
    """Append a broker's segment files to the log.

    Skips records that the log already has. Damaged bytes go to the table quarantine.
    """

    paths: tuple[str, ...] = argument(
        "PATH...",
        nargs=-1,
        required=True,
        type=PATH,
        help="Segment files, folders of log partitions, or a broker's data folder.",
    )
    offsets_partitions: int | None = partitions_option(
        "Number of log partitions (default: number of folders, if they are numbered 0 to k-1)."
    )
    topic: str | None = option(
        "--topic", type=TOPIC_NAME, help="Topic of the segments (default: settings, __consumer_offsets)."
    )
    semantics: CoordinatorSemantics | None = SEMANTICS_OF_NEW_STORE

    def run(self, settings: Settings) -> None:
        """Append the files, and warn about bytes that were left out."""
        from offsets_pipeline.cli.opened import spark_when_needed
        from offsets_pipeline.cli.progress_bar import progress_bar, tasks
        from offsets_pipeline.common.clock import SystemClock
        from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments

        spark = spark_when_needed(settings, self.store)
        with progress_bar("reading segments", tasks):
            report = ingest_segments(
                *(spark, self.store, self.paths, settings, SystemClock()),
                *(self.offsets_partitions, self.semantics, self.topic),
            )
        for file in report.files:
            for damage in file.damage:
                warn(
                    f"{file.source}: {damage.length} bytes at position {damage.position} went into quarantine: "
                    f"{damage.reason}"
                )
            if file.torn_tail is not None:
                warn(f"{file.source}: left out the incomplete last batch: {file.torn_tail}")
        if report.left_out:
            warn(f"left out {counted(report.left_out, 'record')} before the offsets to which the log was cleaned")
        if report.unread:
            partitions = "log partition" if len(report.unread) == 1 else "log partitions"
            warn(
                f"nothing was read of {partitions} {first_ones(list(map(str, report.unread)), _WARNINGS)}: "
                "the store does not know their groups; ingest these folders, too"
            )
        sys.stdout.write(
            f"{counted(report.added, 'record')} added to {self.store} from "
            f"{counted(len(report.files), 'segment file')} ({counted(report.offsets_partitions, 'log partition')})\n"
        )


class OfTopic(OneStore):
    """The options of the commands that read a topic.

    Attributes:
        folds: Whether the command folds the log, too.
        sample: Number of groups to compare with the brokers at an interval, if any.
    """

    work = "follow_command.read_topic"
    folds = False

    brokers: Brokers = grouped(Brokers)
    topic: str | None = option("--topic", type=TOPIC_NAME, help="Topic (default: settings, __consumer_offsets).")
    semantics: CoordinatorSemantics | None = SEMANTICS_OF_NEW_STORE
    available_now: bool = flag("--available-now", help="End when all records up to now are read.")
    if_held: str | None = IF_HELD
    metrics_file: Path | None = option("--metrics-file", type=FILE, help="Write metrics for Prometheus to this file.")
    metrics_port: tuple[str, int] | None = option(
        "--metrics-port", type=ADDRESS, help="Serve metrics for Prometheus at this port."
    )
    sample: int | None = None


@sources.command("ingest-topic", "offsets ingest-topic --store store --bootstrap-server localhost:9092")
class IngestTopic(OfTopic):
    """Append a broker's topic to the log, as it grows.

    The topic is __consumer_offsets or one of Kafka Connect: offset.storage.topic, status.storage.topic or
    config.storage.topic. A store holds one topic.

    Runs until SIGTERM or Ctrl-C. With --available-now it ends when all records up to now are read.
    """


@sources.command(
    "follow",
    "offsets follow --store store --bootstrap-server localhost:9092",
    "offsets follow --store store --bootstrap-server localhost:9092 --available-now",
    "offsets follow --store connect --topic connect-offsets --bootstrap-server localhost:9092",
    "offsets follow --store store --bootstrap-server broker:9093 --option security.protocol=SASL_SSL "
    "--option sasl.jaas.config=file:/run/secrets/jaas",
)
class Follow(OfTopic):
    """Append a broker's topic to the log and fold it, as it grows.

    Only reads the topic, and joins no group. After a crash it resumes at the end of the log.
    """

    exclusive = (("--sample", "--available-now"),)
    folds = True

    sample: int | None = option(
        "--sample",
        type=click.IntRange(1),
        help="Compare N groups with the brokers every sample_interval_ms of the settings, in turn; see the metrics "
        "offsets_mirror_*.",
    )


@sources.command(
    "snapshot",
    "offsets snapshot --bootstrap-server localhost:9092 --store groups",
    "offsets snapshot --bootstrap-server broker:9093 --store groups --interval 300 --option security.protocol=SASL_SSL "
    "--option sasl.jaas.config=file:/run/secrets/jaas",
    "offsets snapshot --bootstrap-server localhost:9092 --store groups --once",
)
class SnapshotGroups(OneStore):
    """Append the changes of a cluster's groups to a snapshot store, at intervals.

    Asks the Admin API for all groups, their members and offsets: for clusters whose __consumer_offsets cannot be read.
    Adds positions of topics, too, as sample-topic-offsets. Runs until SIGTERM or Ctrl-C.
    """

    exclusive = (("--interval", "--available-now"),)

    brokers: Brokers = grouped(Brokers)
    interval_ms: int = option(
        "--interval",
        type=INTERVAL,
        default="PT1M",
        help="Time between two snapshots: seconds, or a duration such as PT5M.",
    )
    available_now: bool = flag("--available-now", "--once", help="End after one snapshot.")
    if_held: str | None = IF_HELD
    offsets_partitions: int | None = PARTITIONS_OF_NEW_STORE
    work = "sampling_commands.snapshot"


@sources.command(
    "import-zookeeper",
    "offsets import-zookeeper --store owned --zookeeper zookeeper.example.com:2181/kafka",
    "offsets import-zookeeper --store owned --dump consumers.txt",
)
class ImportZookeeper(OneStore):
    """Copy the offsets of Kafka's first consumers from ZooKeeper into an owned store.

    Creates the store if it does not exist. Running it again adds what is missing or newer in ZooKeeper, and keeps what
    was committed to the store since. Running consumers are shown, not stored as members.
    """

    exclusive = (("--zookeeper", "--dump"),)
    required = (("--zookeeper", "--dump"),)

    zookeeper: str | None = option(
        "--zookeeper",
        type=ZOOKEEPER,
        help="Servers of ZooKeeper, separated by commas. The section [zookeeper] of the settings has digest and TLS.",
    )
    dump: Path | None = option(
        "--dump", type=FILE, help="Text dump in place of ZooKeeper: a line PATH VALUE for each node."
    )
    offsets_partitions: int | None = PARTITIONS_OF_NEW_STORE
    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Import, and show the result of each group."""
        from offsets_pipeline.cli.opened import open_to_import
        from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient
        from offsets_pipeline.coordinator.zookeeper.consumer_nodes import group_ids, read_dump, read_groups
        from offsets_pipeline.ingest.zookeeper_import import import_offsets

        with ExitStack() as opened:
            groups: Iterable[GroupNodes]
            if self.dump is not None:
                groups = read_dump(self.dump)
            else:
                asked = replace(settings.zookeeper, connect=str(self.zookeeper))
                client = opened.enter_context(ZooKeeperClient(asked))
                groups = read_groups(client, group_ids(client, must_exist=True))
            coordinator = opened.enter_context(open_to_import(self.store, settings, self.offsets_partitions))
            results = list(import_offsets(coordinator, groups))
        self._show(results)
        skipped = [node for each in results for node in each.skipped]
        for node in skipped[:_WARNINGS]:
            warn(f"skipped {node.path}: {node.reason}")
        if len(skipped) > _WARNINGS:
            warn(f"skipped {len(skipped) - _WARNINGS} more nodes; --format json names all")
        imported, up_to_date, kept = (sum(getattr(each, name) for each in results) for name in _COUNTS[2:5])
        sys.stderr.write(
            f"offsets: {counted(imported, 'offset')} of {counted(len(results), 'group')} imported into {self.store}; "
            f"{up_to_date} were up to date, {kept} have later commits, {len(skipped)} nodes skipped\n"
        )

    def _show(self, results: Iterable[ImportedGroup]) -> None:
        """Print the groups with their registered consumers, which the import does not store as members."""
        rows: list[list[Any]] = []
        for each in results:
            counts = (len(each.nodes.offsets), each.imported, each.up_to_date, each.kept, len(each.skipped))
            ids, owners = each.nodes.consumer_ids, each.nodes.owners
            if self.format_ == "json":
                nodes = [node._asdict() for node in each.skipped]
                rows.append([each.nodes.group_id, *counts, ids, owners, nodes])
            else:
                owned = " ".join(f"{where}={owner}" for where, owner in owners.items())
                rows.append([each.nodes.group_id, *counts, " ".join(ids), owned])
        more = ("skipped_nodes",) if self.format_ == "json" else ()
        write_rows((*_COUNTS, "consumer_ids", "owners", *more), rows, self.format_)


@sources.command(
    "import-checkpoint",
    "offsets import-checkpoint /data/checkpoints/billing --group billing --store owned",
    "offsets import-checkpoint s3://bucket/checkpoints/joined --source orders --group joined-orders --store owned",
)
class ImportCheckpoint(OneStore):
    """Commit the Kafka offsets in a Spark query's checkpoint to an owned store.

    Commits the end offsets of each completed batch, with the batch's time. Running it again adds only newer batches.
    Creates the store if it does not exist.
    """

    path: str = argument("PATH", type=PATH, help="checkpointLocation of a Structured Streaming query.")
    group: str = GROUP_WITHOUT_MEMBERS
    sources: tuple[str, ...] = several(
        "--source", metavar="NAME", help="Name of a Kafka source, or its number in the query, from 0 (default: all)."
    )
    offsets_partitions: int | None = PARTITIONS_OF_NEW_STORE

    def run(self, settings: Settings) -> None:
        """Commit the completed batches."""
        from offsets_pipeline.cli.opened import open_to_import
        from offsets_pipeline.spark_query.checkpoint_import import import_checkpoint, read_checkpoint

        checkpoint = read_checkpoint(self.path)  # before a store is created for it
        with open_to_import(self.store, settings, self.offsets_partitions, [self.group]) as coordinator:
            ids = import_checkpoint(checkpoint, coordinator, self.group, self.sources)
        which = f" ({ids[0]} to {ids[-1]})" if ids else ""
        known = len(checkpoint.batches) - len(ids)
        were_there = f"; {known} were there" if known else ""
        sys.stdout.write(
            f"{len(ids)} batches{which} of {self.path} committed for group {self.group} in {self.store}{were_there}\n"
        )


@sources.command(
    "sample-topic-offsets",
    "offsets sample-topic-offsets --store store --bootstrap-server localhost:9092",
    "offsets sample-topic-offsets --store store --bootstrap-server localhost:9092 --every 30",
    "offsets sample-topic-offsets --store store --positions positions.csv",
)
class SampleTopicOffsets(OneStore):
    """Sample log start and log end of topics for lag in seconds. Starts no Spark.

    `offsets follow` does this, too, every sample_interval_ms of the settings.
    """

    exclusive = (("--positions", "--every"),)
    required = (("--bootstrap-server", "--positions"),)

    positions_from: PositionsFrom = grouped(PositionsFrom)
    topics: str | None = option(
        "--topics", type=PATTERN, help="Regular expression of topics (default: setting sample_topics)."
    )
    every_ms: int | None = every_option()
    work = "sampling_commands.sample_topic_offsets"
