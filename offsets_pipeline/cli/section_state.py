"""Commands that write or check the state tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.command import HelpSection, flag, grouped, option, several
from offsets_pipeline.cli.options import IF_HELD, LiveBrokers, OneStore, semantics_option
from offsets_pipeline.cli.values import PARTITION, SERVERS
from offsets_pipeline.errors import StateDiffers

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_PATIENCE_SECONDS = 60.0  # of a comparison with brokers

state = HelpSection("State")


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
    never = f"; {len(found.changing)} groups changed all the time and were not compared" if found.changing else ""
    sys.stdout.write(
        f"equal: {sum(found.offsets.values())} offsets and {len(found.offsets)} groups match what {at} answers{never}\n"
    )
