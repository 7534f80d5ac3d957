"""Commands that bring records into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import FILE, PATH, SOURCES, command
from offsets_pipeline.cli.values import ADDRESS, SEMANTICS_OF_NEW_STORE

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
@click.option(
    "--offsets-partitions",
    "--offsets-topic-num-partitions",
    "--offsets.topic.num.partitions",
    "offsets_partitions",
    type=int,
    metavar="N",
    help="Number of log partitions (default: number of folders, if they are numbered 0 to k-1).",
)
@click.option("--topic", metavar="T", help="Topic of the segments (default: settings, __consumer_offsets).")
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


def _topic_options(run: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(
        (
            click.option(
                "--bootstrap-server", required=True, metavar="HOST:PORT", help="Brokers, separated by commas."
            ),
            click.option("--topic", metavar="T", help="Topic (default: settings, __consumer_offsets)."),
            SEMANTICS_OF_NEW_STORE,
            click.option(
                "--option",
                "options",
                multiple=True,
                metavar="NAME=VALUE",
                help="Option of Kafka's clients, such as security.protocol=SASL_SSL. A value env:NAME or file:PATH "
                "names a secret. May be repeated.",
            ),
            click.option("--available-now", is_flag=True, help="End when all records up to now are read."),
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
