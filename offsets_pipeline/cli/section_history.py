"""Commands that answer questions about the past from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import QUESTIONS, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import POSITIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.config import Settings

_TIME = "ISO 8601, or milliseconds since 1970"


def _retention_option() -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        "--retention-minutes",
        type=click.IntRange(min=1),
        metavar="N",
        help="The broker's offsets.retention.minutes, to distinguish retention from requests (owned stores: settings).",
    )


@command(
    QUESTIONS,
    "offsets as-of --store store --time 2026-11-20T19:07:40Z",
    "offsets as-of --store store --position 3:120,4:80 --group billing --format json",
    exclusive=[("--time", "--position")],
    required=[("--time", "--position")],
)
@click.option(
    "--time", "time_", metavar="T", help=f"Each log partition before its first record younger than T: {_TIME}."
)
@click.option(
    "--position",
    "positions",
    type=POSITIONS,
    metavar="LOGPARTITION:OFFSET,...",
    help="These log partitions, each before this record offset.",
)
@click.option("--group", "groups", multiple=True, metavar="G", help="This group. May be repeated.")
@click.option("--members", is_flag=True, help="Show members in place of offsets (table and csv).")
@format_option()
def as_of(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - AsOfOptions
    """Show groups as `describe` does, as of a time or a position of the log. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    return history_commands.as_of(store, settings, history_commands.AsOfOptions(**options))


@command(
    QUESTIONS,
    "offsets history --store store --group billing",
    "offsets history --store store --group billing --topic orders --since 2026-11-20T19:00:00Z --format csv",
)
@click.option("--group", required=True, metavar="G", help="The group.")
@click.option("--topic", metavar="T", help="Only offsets of this topic.")
@click.option("--partition", type=int, metavar="P", help="Only offsets of partitions with this number.")
@click.option("--since", metavar="T", help=f"Leave out earlier events: {_TIME}.")
@click.option("--until", metavar="T", help=f"Leave out later events: {_TIME}.")
@_retention_option()
@format_option()
def history(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - HistoryOptions
    """Show every commit, deletion and change of a group, in the order of the log. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    return history_commands.history(store, settings, history_commands.HistoryOptions(**options))


@command(QUESTIONS, "offsets why --store store --group billing --topic orders --partition 0")
@click.option("--group", required=True, metavar="G", help="The group.")
@click.option("--topic", required=True, metavar="T", help="The topic.")
@click.option("--partition", required=True, type=int, metavar="P", help="The topic's partition.")
@_retention_option()
@format_option()
def why(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - WhyOptions
    """Tell why a committed offset has its value, or when and why it was deleted. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    return history_commands.why(store, settings, history_commands.WhyOptions(**options))
