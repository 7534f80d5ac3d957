"""Commands that keep a store small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import PATH, UPKEEP, command
from offsets_pipeline.cli.values import CLUSTER, HOURS, every_option

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


@command(UPKEEP, "offsets maintain --store store", "offsets maintain --store store --every PT1H")
@every_option()
def maintain(store: str, settings: Settings, every: int | None) -> int:
    """Compact the tables, and remove files that no reader needs any more. Streams may run at the same time."""
    from offsets_pipeline.cli import upkeep_commands

    return upkeep_commands.maintain(store, settings, every)


@command(UPKEEP, "offsets name-cluster --store store prod", name="name-cluster")
@click.argument("name", metavar="NAME", type=CLUSTER, help="1 to 100 letters, digits, dots, _ and -.")
def name_cluster(store: str, settings: Settings, name: str) -> int:
    """Set the name of the store's cluster, as the column `cluster` shows it. Starts no Spark."""
    from offsets_pipeline.cli import cluster_command

    return cluster_command.name_cluster(store, settings, name)


@command(UPKEEP, "offsets upgrade --store store --to new-store")
@click.option("--to", required=True, metavar="FOLDER", type=PATH, help="Folder of the new store.")
def upgrade(store: str, settings: Settings, to: str) -> int:  # noqa: ARG001
    """Copy a store of the previous format to a new store. Starts no Spark.

    The store has format 5, of version 0.1.0; the new store has format 6. The last version 0.1.0 copies stores of
    formats 1 to 4 to format 5.

    Stop the programs that write to the store first. The old store is only read. A fold or a reload of the new store
    makes its state from the log.
    """
    from offsets_pipeline.cli import upgrade_command

    return upgrade_command.upgrade(store, to)


@command(
    UPKEEP,
    "offsets clean-log --store store --dry-run",
    "offsets clean-log --store store --older-than 168 --every PT24H",
    exclusive=[("--dry-run", "--every")],
)
@click.option(
    "--older-than",
    type=HOURS,
    default=0,
    metavar="HOURS",
    help="Keep all records younger than this (default: setting history_hours).",
)
@click.option("--dry-run", is_flag=True, help="Show how many records would go; remove nothing.")
@every_option()
def clean_log(store: str, settings: Settings, older_than: int, dry_run: bool, every: int | None) -> int:  # noqa: FBT001
    """Remove records that no replay needs from the old part of the log.

    State and answers stay the same. Removed records do not come back with the next ingest.
    """
    from offsets_pipeline.cli import upkeep_commands

    return upkeep_commands.clean_log(store, settings, older_than, every, dry_run=dry_run)
