"""Commands that bring records into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import FILE, PATH, SOURCES, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import (
    ADDRESS,
    IF_HELD,
    INTERVAL,
    OPTION,
    PATTERN,
    SEMANTICS_OF_NEW_STORE,
    SERVERS,
    TOPIC_NAME,
    ZOOKEEPER,
    every_option,
    partitions_option,
    position_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


@command(
    SOURCES,
    "offsets ingest-segments --store store /var/lib/kafka/data",
    "offsets ingest-segments --store store --offsets-partitions 50 __consumer_offsets-7",
    "offsets ingest-segments --store store --offsets.topic.num.partitions 50 __consumer_offsets-7",
    "offsets ingest-segments --store connect --topic connect-offsets /var/lib/kafka/data",
)
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=PATH,
    help="Segment files, folders of log partitions, or a broker's data folder.",
)
@partitions_option("Number of log partitions (default: number of folders, if they are numbered 0 to k-1).")
@click.option(
    "--topic", type=TOPIC_NAME, metavar="T", help="Topic of the segments (default: settings, __consumer_offsets)."
)
@SEMANTICS_OF_NEW_STORE
def ingest_segments(
    store: str,
    settings: Settings,
    paths: tuple[str, ...],
    offsets_partitions: int | None,
    topic: str | None,
    semantics: CoordinatorSemantics | None,
) -> int:
    """Append a broker's segment files to the log.

    Skips records that the log already has. Damaged bytes go to the table quarantine.
    """
    from offsets_pipeline.cli import ingest_command

    return ingest_command.ingest_segments(store, settings, paths, offsets_partitions, semantics, topic)


PARTITIONS_OF_NEW_STORE = partitions_option("Number of log partitions of a new store (default: settings).")
KAFKA_OPTION = click.option(
    "--option",
    "options",
    type=OPTION,
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of Kafka's clients, such as security.protocol=SASL_SSL. A value env:NAME or file:PATH names a secret. "
    "May be repeated.",
)


def _topic_options(run: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(
        (
            click.option(
                "--bootstrap-server",
                required=True,
                type=SERVERS,
                metavar="HOST:PORT",
                help="Brokers, separated by commas.",
            ),
            click.option(
                "--topic", type=TOPIC_NAME, metavar="T", help="Topic (default: settings, __consumer_offsets)."
            ),
            SEMANTICS_OF_NEW_STORE,
            KAFKA_OPTION,
            click.option("--available-now", is_flag=True, help="End when all records up to now are read."),
            IF_HELD,
            click.option(
                "--metrics-file",
                type=FILE,
                metavar="FILE",
                help="Write metrics for Prometheus to this file.",
            ),
            click.option(
                "--metrics-port", type=ADDRESS, metavar="[HOST:]PORT", help="Serve metrics for Prometheus at this port."
            ),
        )
    ):
        run = option(run)
    return run


@command(SOURCES, "offsets ingest-topic --store store --bootstrap-server localhost:9092")
@_topic_options
def ingest_topic(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - TopicOptions
    """Append a broker's topic to the log, as it grows.

    The topic is __consumer_offsets or one of Kafka Connect: offset.storage.topic, status.storage.topic or
    config.storage.topic. A store holds one topic.

    Runs until SIGTERM or Ctrl-C. With --available-now it ends when all records up to now are read.
    """
    from offsets_pipeline.cli import follow_command

    return follow_command.read_topic(store, settings, follow_command.TopicOptions(**options), fold=False)


@command(
    SOURCES,
    "offsets follow --store store --bootstrap-server localhost:9092",
    "offsets follow --store store --bootstrap-server localhost:9092 --available-now",
    "offsets follow --store connect --topic connect-offsets --bootstrap-server localhost:9092",
    "offsets follow --store store --bootstrap-server broker:9093 --option security.protocol=SASL_SSL "
    "--option sasl.jaas.config=file:/run/secrets/jaas",
)
@_topic_options
def follow(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - TopicOptions
    """Append a broker's topic to the log and fold it, as it grows.

    Only reads the topic, and joins no group. After a crash it resumes at the end of the log.
    """
    from offsets_pipeline.cli import follow_command

    return follow_command.read_topic(store, settings, follow_command.TopicOptions(**options), fold=True)


@command(
    SOURCES,
    "offsets import-zookeeper --store owned --zookeeper zookeeper.example.com:2181/kafka",
    "offsets import-zookeeper --store owned --dump consumers.txt",
    exclusive=[("--zookeeper", "--dump")],
    required=[("--zookeeper", "--dump")],
)
@click.option(
    "--zookeeper",
    type=ZOOKEEPER,
    metavar="HOST:PORT[/CHROOT]",
    help="Servers of ZooKeeper, separated by commas. The section [zookeeper] of the settings has digest and TLS.",
)
@click.option(
    "--dump", type=PATH, metavar="FILE", help="Text dump in place of ZooKeeper: a line PATH VALUE for each node."
)
@PARTITIONS_OF_NEW_STORE
@format_option()
def import_zookeeper(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - ImportOptions
    """Copy the offsets of Kafka's first consumers from ZooKeeper into an owned store.

    Creates the store if it does not exist. Running it again adds what is missing or newer in ZooKeeper, and keeps what
    was committed to the store since. Running consumers are shown, not stored as members.
    """
    from offsets_pipeline.cli import zookeeper_command

    return zookeeper_command.import_zookeeper(store, settings, zookeeper_command.ImportOptions(**options))


@command(
    SOURCES,
    "offsets sample-topic-offsets --store store --bootstrap-server localhost:9092",
    "offsets sample-topic-offsets --store store --bootstrap-server localhost:9092 --every 30",
    "offsets sample-topic-offsets --store store --positions positions.csv",
    exclusive=[("--bootstrap-server", "--positions"), ("--positions", "--every")],
    required=[("--bootstrap-server", "--positions")],
)
@position_options
@click.option(
    "--topics",
    type=PATTERN,
    metavar="PATTERN",
    help="Regular expression of topics (default: setting sample_topics).",
)
@every_option()
def sample_topic_offsets(
    store: str,
    settings: Settings,
    topics: str | None,
    every: int | None,
    **of_positions: Any,  # noqa: ANN401 - PositionOptions
) -> int:
    """Sample log start and log end of topics for lag in seconds. Starts no Spark.

    `offsets follow` does this, too, every sample_interval_ms of the settings.
    """
    from offsets_pipeline.cli import lag_command, sample_command

    where = lag_command.PositionOptions(**of_positions)
    return sample_command.sample_topic_offsets(store, settings, where, topics, every)


@command(
    SOURCES,
    "offsets import-checkpoint /data/checkpoints/billing --group billing --store owned",
    "offsets import-checkpoint s3://bucket/checkpoints/joined --source orders --group joined-orders --store owned",
)
@click.argument("path", metavar="PATH", type=PATH, help="checkpointLocation of a Structured Streaming query.")
@click.option("--group", required=True, metavar="G", help="Group; it must have no members.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="NAME",
    help="Name of a Kafka source, or its number in the query, from 0. May be repeated (default: all).",
)
@PARTITIONS_OF_NEW_STORE
def import_checkpoint(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - ImportOptions
    """Commit the Kafka offsets in a Spark query's checkpoint to an owned store.

    Commits the end offsets of each completed batch, with the batch's time. Running it again adds only newer batches.
    Creates the store if it does not exist.
    """
    from offsets_pipeline.cli import import_command

    return import_command.import_checkpoint(store, settings, import_command.ImportOptions(**options))


@command(
    SOURCES,
    "offsets snapshot --bootstrap-server localhost:9092 --store groups",
    "offsets snapshot --bootstrap-server broker:9093 --store groups --interval 300 --option security.protocol=SASL_SSL "
    "--option sasl.jaas.config=file:/run/secrets/jaas",
    "offsets snapshot --bootstrap-server localhost:9092 --store groups --once",
    exclusive=[("--interval", "--available-now")],
)
@click.option(
    "--bootstrap-server", required=True, type=SERVERS, metavar="HOST:PORT", help="Brokers, separated by commas."
)
@click.option(
    "--interval",
    "interval_ms",
    type=INTERVAL,
    default="PT1M",
    show_default=True,
    metavar="DURATION",
    help="Time between two snapshots: seconds, or a duration such as PT5M.",
)
@click.option("--available-now", "--once", "available_now", is_flag=True, help="End after one snapshot.")
@IF_HELD
@PARTITIONS_OF_NEW_STORE
@KAFKA_OPTION
def snapshot(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - SnapshotOptions
    """Append the changes of a cluster's groups to a snapshot store, at intervals.

    Asks the Admin API for all groups, their members and offsets: for clusters whose __consumer_offsets cannot be read.
    Adds positions of topics, too, as sample-topic-offsets. Runs until SIGTERM or Ctrl-C.
    """
    from offsets_pipeline.cli import snapshot_command

    return snapshot_command.snapshot(store, settings, snapshot_command.SnapshotOptions(**options))
