"""Commands that write or check the state tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import STATE, command
from offsets_pipeline.cli.values import IF_HELD, PARTITION, semantics_option

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


@command(STATE, "offsets fold --store store", "offsets fold --store store --available-now")
@click.option("--available-now", is_flag=True, help="End when all records up to now are folded.")
@IF_HELD
def fold(store: str, settings: Settings, available_now: bool, if_held: str | None) -> int:  # noqa: FBT001
    """Fold the log into the state tables, as a stream.

    Runs until SIGTERM or Ctrl-C, or with --available-now until all records up to now are folded. A crash loses and
    repeats nothing. One process folds a store: a second one waits for its end.
    """
    from offsets_pipeline.cli import state_commands

    return state_commands.fold(store, settings, if_held, available_now=available_now)


@command(
    STATE,
    "offsets reload --store store",
    "offsets reload --store store --partition 0 --partition 3",
    "offsets reload --store store --coordinator-semantics classic",
    exclusive=[("--partition", "--coordinator-semantics")],
)
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    metavar="N",
    help="Only this log partition. May be repeated.",
)
@semantics_option(
    "Coordinator to reproduce from now on: modern of Kafka 4.x, classic of brokers up to 3.9 (default: unchanged)."
)
def reload(store: str, settings: Settings, partitions: tuple[int, ...], semantics: CoordinatorSemantics | None) -> int:
    """Rebuild the state tables from the log. A stream may run at the same time."""
    from offsets_pipeline.cli import state_commands

    return state_commands.reload(store, settings, partitions, semantics)


@command(STATE, "offsets verify --store store", "offsets verify --store store --independent")
@click.option("--independent", is_flag=True, help="Replay by the specification, record by record: slower.")
def verify(store: str, settings: Settings, independent: bool) -> int:  # noqa: FBT001
    """Replay the log from its start and compare the result with the state tables.

    The exit status is 1 if they differ. With --independent another implementation replays than the one that wrote
    the state, so that a fault of either one shows.
    """
    from offsets_pipeline.cli import state_commands

    return state_commands.verify(store, settings, independent=independent)
