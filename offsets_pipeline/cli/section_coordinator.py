"""Commands of the group coordinator: they write to an owned store. Only a store in a catalog needs Spark."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import HelpSection, argument, flag, grouped, option, several
from offsets_pipeline.cli.options import (
    ABSOLUTE,
    EXECUTE,
    GROUP_WITHOUT_MEMBERS,
    Brokers,
    LiveBrokers,
    OneStore,
    RequestedDeletion,
    every_option,
    format_option,
    group_option,
    groups_option,
    partitions_option,
    retention_option,
    time_option,
)
from offsets_pipeline.cli.values import COMMIT, DURATION, FILE, HOURS, OPTION, PLACE, SERVERS, TIME, TOPIC
from offsets_pipeline.common.input_text import INT32_MAX, counted, printable

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.coordinator import Coordinator

_RETENTION_MAX_MS = 2**62  # the commit's time and this fit into 64 bits

coordinator = HelpSection("Coordinator")


@coordinator.command(
    "create",
    "offsets create --store owned",
    "offsets create --store owned --offsets-partitions 10",
    "offsets create --store owned-connect --connect-cluster-id lab",
)
class Create(OneStore):
    """Create an owned store, for groups or for connectors.

    The number of log partitions cannot change later.
    """

    offsets_partitions: int | None = partitions_option(
        "Number of log partitions (default: setting offsets_partitions; 25 for Kafka Connect, its default)."
    )
    connect_cluster_id: str | None = option(
        "--connect-cluster-id",
        metavar="ID",
        help="Create the store for the connectors of this cluster of Kafka Connect, in place of groups.",
    )

    def run(self, settings: Settings) -> None:
        """Create the store. Raises as `create_owned` if something is in the folder."""
        from offsets_pipeline.cli.opened import create_owned
        from offsets_pipeline.connect.connect_log import PARTITIONS
        from offsets_pipeline.semantics.topic_kind import TopicKind

        if self.connect_cluster_id is None:
            kind, holds = TopicKind.CONSUMER_OFFSETS, "groups"
            count = self.offsets_partitions or settings.log.offsets_partitions
        else:
            kind, holds = TopicKind.CONNECT, f"connectors of cluster {self.connect_cluster_id}"
            count = self.offsets_partitions or PARTITIONS
        create_owned(self.store, settings, count, kind, self.connect_cluster_id, must_be_new=True)
        sys.stdout.write(f"owned store {self.store} created for {holds}, with {count} log partitions\n")


@coordinator.command(
    "commit",
    "offsets commit --store owned --group billing orders:0=42 orders:1=17",
    'offsets commit --store owned --group billing orders:0=40 --metadata "replay from 40"',
)
class CommitOffsets(OneStore):
    """Commit offsets of a group to an owned store."""

    offsets: tuple[tuple[tuple[str, int], int], ...] = argument(
        "TOPIC:PARTITION=OFFSET...", nargs=-1, required=True, type=COMMIT, help="Offsets to commit."
    )
    group: str = GROUP_WITHOUT_MEMBERS
    metadata: str = option("--metadata", default="", metavar="TEXT", help="Metadata of each commit.")
    leader_epoch: int | None = option(
        "--leader-epoch", type=click.IntRange(0, INT32_MAX), help="Leader epoch of the last consumed record."
    )
    retention_ms: int | None = option(
        "--retention-ms",
        type=click.IntRange(-1, _RETENTION_MAX_MS),
        metavar="MS",
        help="Time until the offsets expire (default: -1, the store's retention).",
    )

    def check(self) -> None:
        """Raise click.UsageError for a partition with two offsets: only one could be committed."""
        (at, times), *_ = Counter(at for at, _ in self.offsets).most_common(1)
        if times > 1:
            raise click.UsageError(f"{printable(at[0])}:{at[1]} is given {times} times; give one offset for it")

    def run(self, settings: Settings) -> None:
        """Commit the offsets of a group without members."""
        from offsets_pipeline.coordinator.requests import OffsetAndMetadata

        commits = {at: OffsetAndMetadata(offset, self.leader_epoch, self.metadata) for at, offset in self.offsets}
        with _opened(self.store, settings, [self.group]) as opened:
            opened.commit_offsets(self.group, commits, retention_time_ms=self.retention_ms)
        sys.stdout.write(
            f"{counted(len(commits), 'offset')} of group {printable(self.group)} committed in {self.store}\n"
        )


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


@coordinator.command(
    "reset-offsets",
    "offsets reset-offsets --store owned --group billing --topic orders --to-offset 40",
    "offsets reset-offsets --store owned --group billing --all-topics --shift-by -10 --execute",
    "offsets reset-offsets --store store --group billing --topic orders:0,1 --to-datetime 2026-11-20T12:00:00 "
    "--bootstrap-server localhost:9092 --export",
)
class ResetOffsets(OneStore):
    """Plan a reset of groups' offsets, and commit it with --execute.

    Has the options of kafka-consumer-groups --reset-offsets. Commits to an owned store. With --bootstrap-server it
    commits to the cluster that a store mirrors; brokers give an owned store only the positions of topics.
    """

    exclusive = (
        ("--group", "--all-groups"),
        ("--topic", "--all-topics", "--from-file"),
        _SCENARIOS,
        ("--bootstrap-server", "--positions"),
        ("--execute", "--dry-run"),
        ("--format", "--export"),
    )
    required = (
        _SCENARIOS,
        ("--group", "--all-groups", "--from-file"),
        ("--topic", "--all-topics", "--from-file"),
    )

    groups: tuple[str, ...] = groups_option()
    all_groups: bool = flag("--all-groups", help="Every consumer group.")
    topics: tuple[tuple[str, tuple[int, ...] | None], ...] = several(
        "--topic", type=TOPIC, help="All partitions of a topic, or some."
    )
    all_topics: bool = flag("--all-topics", help="All partitions that the group has committed.")
    to_earliest: bool = flag("--to-earliest", help="To the start of each partition.")
    to_latest: bool = flag("--to-latest", help="To the end of each partition.")
    to_current: bool = flag("--to-current", help="To the committed offset, or else to the end of the partition.")
    to_offset: int | None = option(
        "--to-offset", type=int, metavar="N", help="To an offset, limited to the partition's start and end."
    )
    shift_by: int | None = option(
        "--shift-by", type=int, metavar="N", help="By N, backwards if negative; limited in the same way."
    )
    to_datetime_ms: int | None = option(
        "--to-datetime", type=TIME, help="To the first record at or after a time: ISO 8601."
    )
    by_duration: str | None = option(
        "--by-duration", type=DURATION, help="To the first record of the last D: ISO 8601, such as PT1H30M."
    )
    from_file: Path | None = option(
        "--from-file", type=FILE, help="To the offsets that --export wrote, here or in Kafka."
    )
    live: LiveBrokers = grouped(LiveBrokers)
    positions: Path | None = option(
        "--positions",
        type=FILE,
        help="CSV in place of a broker. Header: topic,partition,earliest,latest, then times; a time's column has the "
        "offset of the first record at or after it.",
    )
    execute: bool = EXECUTE
    dry_run: bool = flag("--dry-run", help="Only show the plan (default).")
    format_: str = format_option("Format of the plan; csv is the format of --export.")
    export: bool = flag("--export", help="CSV without a header, for Kafka's --from-file.")
    work = "repair_commands.reset_offsets"


@coordinator.command(
    "restore",
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server localhost:9092 --group billing",
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server localhost:9092 --execute",
    "offsets restore --store store --as-of 2026-11-20T12:00:00Z --bootstrap-server other:9092 "
    "--source-bootstrap-server localhost:9092",
)
class Restore(OneStore):
    """Plan to commit offsets of the past to a live cluster, and commit them with --execute.

    Restores groups without members only. Topics are matched by name, and offsets limited to the logs' starts and ends.
    """

    exclusive = (("--source-bootstrap-server", "--same-offsets"),)

    as_of_ms: int = time_option("--as-of", "Time", required=True)
    live: Brokers = grouped(Brokers)
    groups: tuple[str, ...] = groups_option("This group (default: every consumer group).")
    source_bootstrap_server: str | None = option(
        "--source-bootstrap-server",
        type=SERVERS,
        help="Brokers of the store's cluster, if the topics are mirrored to another one: offsets are translated by the "
        "timestamps of their records.",
    )
    source_options: tuple[str, ...] = several(
        "--source-option", type=OPTION, help="The same option for the store's cluster."
    )
    same_offsets: bool = flag(
        "--same-offsets", help="Another cluster has the same records at the same offsets: do not translate."
    )
    execute: bool = EXECUTE
    format_: str = format_option("Format of the plan.")
    work = "restore_command.restore"


@coordinator.command(
    "delete-offsets",
    "offsets delete-offsets --store owned --group billing orders:1",
    "offsets delete-offsets --store owned --group billing orders",
    "offsets delete-offsets --store store --bootstrap-server localhost:9092 --group billing orders --execute",
)
class DeleteOffsets(OneStore):
    """Delete offsets of a group from an owned store, or from the cluster that a store mirrors."""

    places: tuple[tuple[str, int | None], ...] = argument(
        "TOPIC[:PARTITION]...",
        nargs=-1,
        required=True,
        type=PLACE,
        help="Partitions, or topics with all of their partitions.",
    )
    group: str = group_option("Group that committed the offsets.")
    deletion: RequestedDeletion = grouped(RequestedDeletion)

    def run(self, settings: Settings) -> None:
        """Delete the offsets. As with Kafka's tool, a partition without an offset is no error."""
        if self.deletion.live.bootstrap_server is not None:
            from offsets_pipeline.cli.repair_commands import delete_in_cluster

            delete_in_cluster(self, settings, [self.group], self.places)
            return
        with _opened(self.store, settings, [self.group]) as opened:
            deleted = opened.delete_offsets(self.group, self.places)
        named = printable(", ".join(topic if at is None else f"{topic}:{at}" for topic, at in self.places))
        nothing = "" if deleted else f": it has no committed offset of {named}"
        sys.stdout.write(
            f"{counted(deleted, 'offset')} of group {printable(self.group)} deleted from {self.store}{nothing}\n"
        )


@coordinator.command(
    "delete-group",
    "offsets delete-group --store owned --group billing --group old",
    "offsets delete-group --store store --bootstrap-server localhost:9092 --group billing --execute",
)
class DeleteGroup(OneStore):
    """Delete groups with their offsets from an owned store, or from the cluster that a store mirrors."""

    groups: tuple[str, ...] = groups_option(required=True)
    deletion: RequestedDeletion = grouped(RequestedDeletion)

    def run(self, settings: Settings) -> None:
        """Delete the groups. Raises the error of the first that cannot be deleted, after the others are deleted.

        Warns of the other errors.
        """
        from offsets_pipeline.cli.repair_commands import delete_in_cluster, raise_errors

        if self.deletion.live.bootstrap_server is not None:
            delete_in_cluster(self, settings, self.groups)
            return
        with _opened(self.store, settings, self.groups) as opened:
            answers = opened.delete_groups(list(self.groups))
        for group_id, error in answers.items():
            if error is None:
                sys.stdout.write(f"group {printable(group_id)} deleted from {self.store}\n")
        raise_errors({}, [error for error in answers.values() if error is not None], "delete")


@coordinator.command(
    "expire-offsets",
    "offsets expire-offsets --store owned",
    "offsets expire-offsets --store owned --every PT10M",
    "offsets expire-offsets --store store --dry-run --within 168",
)
class ExpireOffsets(OneStore):
    """Expire offsets of an owned store, or forecast what expires in any store."""

    exclusive = (("--dry-run", "--every"),)
    needs = tuple((name, "--dry-run: only a forecast takes it") for name in ("--at", "--within", "--retention-minutes"))

    dry_run: bool = flag("--dry-run", help="Only forecast what expires, when, and by which rule; for any store.")
    every_ms: int | None = every_option(default="offsets_retention_check_interval_ms")
    format_: str = format_option()
    absolute: bool = ABSOLUTE
    within_hours: int | None = option(
        "--within", type=HOURS, help="Forecast: include offsets that expire within this time."
    )
    at_ms: int | None = time_option("--at", "Forecast: as if now were this time")
    retention_minutes: int | None = retention_option(
        "Forecast: the broker's offsets.retention.minutes (default: as `follow` read it, else settings)."
    )
    work = "expire_command.expire_offsets"


def _opened(location: str, settings: Settings, group_ids: Iterable[str]) -> Coordinator:
    """A coordinator that loads only the log partitions of these groups."""
    from offsets_pipeline.cli.opened import open_coordinator, open_folder
    from offsets_pipeline.coordinator.owned_store import OwnedStore

    return open_coordinator(OwnedStore.open(open_folder(location, settings)), settings, group_ids)
