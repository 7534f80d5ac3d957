"""Commands of the group coordinator: they write to an owned store. None of them starts Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import COORDINATOR, PATH, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import (
    COMMIT,
    DURATION,
    HOURS,
    OPTION,
    PLACE,
    SERVERS,
    TIME,
    TOPIC,
    every_option,
    partitions_option,
)
from offsets_pipeline.input_text import INT32_MAX

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings

_RETENTION_MAX_MS = 2**62  # the commit's time and this fit into 64 bits


@command(
    COORDINATOR,
    "offsets create --store owned",
    "offsets create --store owned --offsets-partitions 10",
    "offsets create --store owned-connect --connect-cluster-id lab",
)
@partitions_option("Number of log partitions (default: setting offsets_partitions; 25 for Kafka Connect, its default).")
@click.option(
    "--connect-cluster-id",
    metavar="ID",
    help="Create the store for the connectors of this cluster of Kafka Connect, in place of groups.",
)
def create(store: str, settings: Settings, offsets_partitions: int | None, connect_cluster_id: str | None) -> int:
    """Create an owned store, for groups or for connectors.

    The number of log partitions cannot change later.
    """
    from offsets_pipeline.cli import commit_commands

    return commit_commands.create(store, settings, offsets_partitions, connect_cluster_id)


@command(
    COORDINATOR,
    "offsets commit --store owned --group billing orders:0=42 orders:1=17",
    'offsets commit --store owned --group billing orders:0=40 --metadata "replay from 40"',
)
@click.argument(
    "offsets", nargs=-1, required=True, type=COMMIT, metavar="TOPIC:PARTITION=OFFSET...", help="Offsets to commit."
)
@click.option("--group", required=True, metavar="G", help="Group; it must have no members.")
@click.option("--metadata", default="", metavar="TEXT", help="Metadata of each commit.")
@click.option(
    "--leader-epoch", type=click.IntRange(0, INT32_MAX), metavar="N", help="Leader epoch of the last consumed record."
)
@click.option(
    "--retention-ms",
    type=click.IntRange(-1, _RETENTION_MAX_MS),
    metavar="MS",
    help="Time until the offsets expire (default: -1, the store's retention).",
)
def commit(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - CommitOptions
    """Commit offsets of a group to an owned store."""
    from offsets_pipeline.cli import commit_commands

    return commit_commands.commit(store, settings, **options)


#: The options of `reset-offsets` that choose the new offsets.
_SCENARIOS = (
    "--to-earliest",
    "--to-latest",
    "--to-current",
    "--to-offset",
    "--shift-by",
    "--to-datetime",
    "--by-duration",
    "--from-file",
)


@command(
    COORDINATOR,
    "offsets reset-offsets --store owned --group billing --topic orders --to-offset 40",
    "offsets reset-offsets --store owned --group billing --all-topics --shift-by -10 --execute",
    "offsets reset-offsets --store store --group billing --topic orders:0,1 --to-datetime 2026-11-20T12:00:00 "
    "--bootstrap-server localhost:9092 --export",
    exclusive=[
        ("--group", "--all-groups"),
        ("--topic", "--all-topics"),
        _SCENARIOS,
        ("--bootstrap-server", "--positions"),
        ("--execute", "--dry-run"),
        ("--format", "--export"),
    ],
    required=[_SCENARIOS],
    needs={"--command-config": "--bootstrap-server"},
)
@click.option("--group", "groups", multiple=True, metavar="G", help="This group. May be repeated.")
@click.option("--all-groups", is_flag=True, help="Every consumer group.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    type=TOPIC,
    metavar="T[:P,P...]",
    help="All partitions of a topic, or some. May be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the start of each partition.")
@click.option("--to-latest", is_flag=True, help="To the end of each partition.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or else to the end of the partition.")
@click.option("--to-offset", type=int, metavar="N", help="To an offset, limited to the partition's start and end.")
@click.option("--shift-by", type=int, metavar="N", help="By N, backwards if negative; limited in the same way.")
@click.option("--to-datetime", type=TIME, metavar="T", help="To the first record at or after a time: ISO 8601.")
@click.option(
    "--by-duration", type=DURATION, metavar="D", help="To the first record of the last D: ISO 8601, such as PT1H30M."
)
@click.option("--from-file", type=PATH, metavar="FILE", help="To the offsets that --export wrote, here or in Kafka.")
@click.option("--bootstrap-server", type=SERVERS, metavar="HOST:PORT", help="Broker that has the topics.")
@click.option(
    "--positions",
    type=PATH,
    metavar="FILE",
    help="CSV in place of a broker. Header: topic,partition,earliest,latest, then times; a time's column has the "
    "offset of the first record at or after it.",
)
@click.option(
    "--command-config", type=PATH, metavar="FILE", help="Properties of the Kafka client (default: setting [kafka])."
)
@click.option("--execute", is_flag=True, help="Commit the offsets.")
@click.option("--dry-run", is_flag=True, help="Only show the plan (default).")
@format_option(help_="Format of the plan; csv is the format of --export.")
@click.option("--export", is_flag=True, help="CSV without a header, for Kafka's --from-file.")
def reset_offsets(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - ResetOptions
    """Plan a reset of groups' offsets, and commit it with --execute.

    Has the options of kafka-consumer-groups --reset-offsets. For a mirrored store it only plans.
    """
    from offsets_pipeline.cli import reset_command

    _require_scope(options)
    return reset_command.reset_offsets(reset_command.ResetOptions(store, **options), settings)


def _require_scope(options: dict[str, Any]) -> None:
    """Raise click.UsageError if the command line names no groups or no partitions, or partitions twice."""
    names_partitions = options["topics"] or options["all_topics"]
    if options["from_file"] is not None:
        if names_partitions:
            raise click.UsageError("--from-file is not allowed with --topic or --all-topics: it names the partitions")
    elif not (options["groups"] or options["all_groups"]):
        raise click.UsageError("no group is named: add --group G (may be repeated) or --all-groups")
    elif not names_partitions:
        raise click.UsageError("no partition is named: add --topic T[:P,P...] (may be repeated) or --all-topics")


@command(
    COORDINATOR,
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server localhost:9092 --group billing",
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server localhost:9092 --execute",
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server other:9092 "
    "--source-bootstrap-server localhost:9092",
    exclusive=[("--source-bootstrap-server", "--same-offsets")],
)
@click.option("--as-of", required=True, type=TIME, metavar="T", help="Time: ISO 8601, or milliseconds since 1970.")
@click.option(
    "--bootstrap-server", required=True, type=SERVERS, metavar="HOST:PORT", help="Brokers of the cluster to commit to."
)
@click.option(
    "--group", "groups", multiple=True, metavar="G", help="This group (default: every consumer group). May be repeated."
)
@click.option(
    "--source-bootstrap-server",
    type=SERVERS,
    metavar="HOST:PORT",
    help="Brokers of the store's cluster, if the topics are mirrored to another one: offsets are translated by the "
    "timestamps of their records.",
)
@click.option(
    "--option",
    "options",
    type=OPTION,
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of Kafka's clients, as in `offsets follow`. May be repeated.",
)
@click.option(
    "--source-option",
    "source_options",
    type=OPTION,
    multiple=True,
    metavar="NAME=VALUE",
    help="The same for the store's cluster.",
)
@click.option(
    "--same-offsets", is_flag=True, help="Another cluster has the same records at the same offsets: do not translate."
)
@click.option("--command-config", type=PATH, metavar="FILE", help="Properties of the Kafka client.")
@click.option("--execute", is_flag=True, help="Commit the offsets.")
@format_option(help_="Format of the plan.")
def restore(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - RestoreOptions
    """Plan to commit offsets of the past to a live cluster, and commit them with --execute.

    Restores groups without members only. Topics are matched by name, and offsets limited to the logs' starts and ends.
    """
    from offsets_pipeline.cli import restore_command

    return restore_command.restore(restore_command.RestoreOptions(store, **options), settings)


@command(
    COORDINATOR,
    "offsets delete-offsets --store owned --group billing orders:1",
    "offsets delete-offsets --store owned --group billing orders",
)
@click.argument(
    "places",
    nargs=-1,
    required=True,
    type=PLACE,
    metavar="TOPIC[:PARTITION]...",
    help="Partitions, or topics with all of their partitions.",
)
@click.option("--group", required=True, metavar="G", help="Group that committed the offsets.")
def delete_offsets(store: str, settings: Settings, places: tuple[tuple[str, int | None], ...], group: str) -> int:
    """Delete offsets of a group from an owned store."""
    from offsets_pipeline.cli import commit_commands

    return commit_commands.delete_offsets(store, settings, group, places)


@command(COORDINATOR, "offsets delete-group --store owned --group billing --group old")
@click.option("--group", "groups", required=True, multiple=True, metavar="G", help="This group. May be repeated.")
def delete_group(store: str, settings: Settings, groups: tuple[str, ...]) -> int:
    """Delete groups with their offsets from an owned store."""
    from offsets_pipeline.cli import commit_commands

    return commit_commands.delete_groups(store, settings, groups)


@command(
    COORDINATOR,
    "offsets expire-offsets --store owned",
    "offsets expire-offsets --store owned --every PT10M",
    "offsets expire-offsets --store store --dry-run --within 168",
    exclusive=[("--dry-run", "--every")],
    needs=dict.fromkeys(("--at", "--within", "--retention-minutes"), "--dry-run: only a forecast takes it"),
)
@click.option("--dry-run", is_flag=True, help="Only forecast what expires, when, and by which rule; for any store.")
@every_option(default="offsets_retention_check_interval_ms")
@format_option()
@click.option("--within", type=HOURS, metavar="HOURS", help="Forecast: include offsets that expire within this time.")
@click.option(
    "--at", type=TIME, metavar="T", help="Forecast: as if now were this time, ISO 8601 or milliseconds since 1970."
)
@click.option(
    "--retention-minutes",
    type=click.IntRange(1, INT32_MAX),
    metavar="N",
    help="Forecast: the broker's offsets.retention.minutes (default: settings).",
)
def expire_offsets(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - ExpireOptions
    """Expire offsets of an owned store, or forecast what expires in any store."""
    from offsets_pipeline.cli import expire_command

    return expire_command.expire_offsets(expire_command.ExpireOptions(store, **options), settings)
