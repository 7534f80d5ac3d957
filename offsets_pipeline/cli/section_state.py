"""Commands that write, check and keep the tables of a store."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.cli.command import HelpSection, argument, flag, grouped, option, several
from offsets_pipeline.cli.options import IF_HELD, LiveBrokers, OneStore, every_option, semantics_option
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.progress_bar import progress_bar, tasks
from offsets_pipeline.cli.stopping import repeated
from offsets_pipeline.cli.values import CLUSTER, HOURS, PARTITION, PATH, SERVERS
from offsets_pipeline.common.clock import MS_OF_HOUR, SystemClock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.common.warnings import line_time
from offsets_pipeline.errors import StateDiffers

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_PATIENCE_SECONDS = 60.0  # of a comparison with brokers

state, upkeep = HelpSection("State"), HelpSection("Upkeep")


@state.command("fold", "offsets fold --store store", "offsets fold --store store --available-now")
class Fold(OneStore):
    """Fold the log into the state tables, as a stream.

    Runs until SIGTERM or Ctrl-C, or with --available-now until all records up to now are folded. A crash loses and
    repeats nothing. One process folds a store: a second one waits for its end.
    """

    available_now: bool = flag("--available-now", help="End when all records up to now are folded.")
    if_held: str | None = IF_HELD
    work = "state_commands.fold"


@state.command(
    "reload",
    "offsets reload --store store",
    "offsets reload --store store --partition 0 --partition 3",
    "offsets reload --store store --coordinator-semantics classic",
)
class Reload(OneStore):
    """Rebuild the state tables from the log. A stream may run at the same time."""

    exclusive = (("--partition", "--coordinator-semantics"),)

    partitions: tuple[int, ...] = several("--partition", type=PARTITION, metavar="N", help="Only this log partition.")
    semantics: CoordinatorSemantics | None = semantics_option(
        "Coordinator to reproduce from now on: modern of Kafka 4.x, classic of brokers up to 3.9 (default: unchanged)."
    )
    work = "state_commands.reload"


class Against(LiveBrokers):
    """The brokers with which `verify` compares."""

    needs = (("--command-config", "--against"),)

    bootstrap_server: str | None = option(
        "--against", "--bootstrap-server", type=SERVERS, help="Compare with what these brokers answer."
    )


@state.command(
    "verify",
    "offsets verify --store store",
    "offsets verify --store store --independent",
    "offsets verify --store store --against broker:9092",
)
class Verify(OneStore):
    """Replay the log from its start and compare the result with the state tables.

    The exit status is 1 if they differ. With --independent another implementation replays than the one that wrote
    the state, so that a fault of either one shows. With --against the brokers of a mirrored store are asked for every
    group in place of a replay. A group may change meanwhile: it counts as soon as it is equal once, within a minute.
    """

    exclusive = (("--independent", "--against"),)

    independent: bool = flag("--independent", help="Replay by the specification, record by record: slower.")
    against: Against = grouped(Against)

    def run(self, settings: Settings) -> None:
        """Compare the state with a replay, or with brokers."""
        if self.against.bootstrap_server is not None:
            verify_against(self, settings)
            return
        from offsets_pipeline.cli.state_commands import verify

        verify(self, settings)


def verify_against(options: Verify, settings: Settings) -> None:
    """Compare the answers about all groups with those of the brokers. Raises StateDiffers."""
    from offsets_pipeline.cli.live_cluster import mirrored_cluster
    from offsets_pipeline.cli.opened import open_reader
    from offsets_pipeline.questions.broker_comparison import compare_with_brokers
    from offsets_pipeline.questions.query.describe import describe_groups

    with mirrored_cluster(options.store, options.against, settings) as cluster:
        found = compare_with_brokers(
            lambda: describe_groups(open_reader(options.store, settings)), cluster, patience_seconds=_PATIENCE_SECONDS
        )
        at = cluster.settings.at
    if found.differences:
        first = min(found.differences)
        raise StateDiffers(
            f"{options.store} differs from what {at} answers, in {len(found.differences)} of "
            f"{len(found.differences) + len(found.offsets)} groups (first: {first!r}: {found.differences[first]}); "
            "`offsets status` shows whether the store is behind, `offsets verify` whether its state is that of its log"
        )
    never = f"; {counted(len(found.changing), 'group')} changed all the time, not compared" if found.changing else ""
    sys.stdout.write(
        f"equal: {counted(sum(found.offsets.values()), 'offset')} and {counted(len(found.offsets), 'group')} "
        f"match what {at} answers{never}\n"
    )


@upkeep.command("maintain", "offsets maintain --store store", "offsets maintain --store store --every PT1H")
class Maintain(OneStore):
    """Compact the tables, and remove files that no reader needs any more. Streams may run at the same time."""

    every_ms: int | None = every_option()

    def run(self, settings: Settings) -> None:
        """Compact and vacuum the tables, once or again and again."""
        from offsets_pipeline.cli.opened import open_store
        from offsets_pipeline.fold import maintenance

        store, clock = open_store(self.store, settings), SystemClock()
        maintain = partial(maintenance.maintain_store, store, clock, settings)
        run = progress_bar("compacting", tasks)(maintain)
        for done in repeated(run, self.every_ms, clock, spark=lambda: store.spark):
            sys.stdout.write(f"{line_time()}tables of {self.store} compacted\n" if self.every_ms else "")
            write_rows(list(maintenance.Upkeep._fields), done, "table")


@upkeep.command(
    "clean-log",
    "offsets clean-log --store store --dry-run",
    "offsets clean-log --store store --older-than 168 --every PT24H",
)
class CleanLog(OneStore):
    """Remove records that no replay needs from the old part of the log.

    State and answers stay the same. Removed records do not come back with the next ingest.
    """

    exclusive = (("--dry-run", "--every"),)

    older_than_hours: int = option(
        "--older-than",
        type=HOURS,
        default=0,
        help="Keep all records younger than this (default: setting history_hours).",
    )
    dry_run: bool = flag("--dry-run", help="Show how many records would go; remove nothing.")
    every_ms: int | None = every_option()

    def run(self, settings: Settings) -> None:
        """Clean the log, once or again and again."""
        from offsets_pipeline.cli.opened import open_store
        from offsets_pipeline.store.log.clean import clean_log

        store, clock = open_store(self.store, settings), SystemClock()
        older_than_ms = self.older_than_hours * MS_OF_HOUR
        clean = partial(clean_log, store, settings, clock, older_than_ms=older_than_ms, dry_run=self.dry_run)
        run = progress_bar("cleaning", tasks)(clean)
        for done in repeated(run, self.every_ms, clock, spark=lambda: store.spark):
            sys.stdout.write(f"{line_time()}log of {self.store} cleaned\n" if self.every_ms else "")
            row = [self.store, *asdict(done).values(), done.removed]
            write_rows(["store", *asdict(done), "removed"], [row], "table")


@upkeep.command("name-cluster", "offsets name-cluster --store store prod")
class NameCluster(OneStore):
    """Set the name of the store's cluster, as the column `cluster` shows it. Starts no Spark."""

    name: str = argument("NAME", type=CLUSTER, help="1 to 100 letters, digits, dots, _ and -.")

    def run(self, settings: Settings) -> None:
        """Write the name to the store's properties."""
        from offsets_pipeline.cli.opened import open_reader
        from offsets_pipeline.store.delta.store_folder import name_cluster

        name_cluster(open_reader(self.store, settings).location, self.name)
        sys.stdout.write(f"the cluster of {self.store} is {self.name}\n")


@upkeep.command("upgrade", "offsets upgrade --store store --to new-store")
class Upgrade(OneStore):
    """Copy a store of the previous format to a new store. Starts no Spark.

    The store has format 5, of version 0.1.0; the new store has format 6. The last version 0.1.0 copies stores of
    formats 1 to 4 to format 5.

    Stop the programs that write to the store first. The old store is only read. A fold or a reload of the new store
    makes its state from the log.
    """

    to: str = option("--to", required=True, metavar="FOLDER", type=PATH, help="Folder of the new store.")

    def run(self, _: Settings) -> None:
        """Copy the store. Raises NotAStore for a schema of a catalog."""
        from offsets_pipeline.errors import NotAStore
        from offsets_pipeline.store.delta.filesystems import arrow_folder
        from offsets_pipeline.store.delta.properties import SCHEMA_PREFIX
        from offsets_pipeline.store.log.upgrade import upgrade

        store, to = self.store, self.to
        for location in (store, to):
            if location.startswith(SCHEMA_PREFIX):
                raise NotAStore(f"cannot upgrade {store} to {to}: name folders; a schema's tables are in a folder, too")
        records = upgrade(arrow_folder(store), arrow_folder(to))
        sys.stdout.write(
            f"{to} has the {counted(records, 'record')} of {store}; offsets reload --store {to} makes its state\n"
        )
