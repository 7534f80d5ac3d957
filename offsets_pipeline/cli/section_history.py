"""Commands that answer questions about the past from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import QUESTIONS, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import PARTITION, POSITIONS, TIME
from offsets_pipeline.input_text import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.config import Settings

_TIME = "ISO 8601, or milliseconds since 1970"


def _retention_option() -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        "--retention-minutes",
        type=click.IntRange(1, INT32_MAX),
        metavar="N",
        help="The broker's offsets.retention.minutes, to distinguish retention from requests (owned stores: settings).",
    )


@command(
    QUESTIONS,
    "offsets as-of --store store --time 2026-11-20T19:07:40Z",
    "offsets as-of --store store --position 3:120,4:80 --group billing --format json",
    exclusive=[("--time", "--position")],
    required=[("--time", "--position")],
    several_stores=True,
)
@click.option(
    "--time",
    "time_",
    type=TIME,
    metavar="T",
    help=f"Each log partition before its first record younger than T: {_TIME}.",
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
def as_of(stores: tuple[str, ...], settings: Settings, **options: Any) -> int:  # noqa: ANN401 - AsOfOptions
    """Show groups as `describe` does, as of a time or a position of the log. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    if len(set(stores)) > 1 and options["positions"] is not None:
        raise click.UsageError("--position is of one log: give one --store with it")
    return history_commands.as_of(stores, settings, history_commands.AsOfOptions(**options))


@command(
    QUESTIONS,
    "offsets history --store store --group billing",
    "offsets history --store store --group billing --topic orders --since 2026-11-20T19:00:00Z --format csv",
    "offsets history --store prod --store test --group billing",
    several_stores=True,
)
@click.option("--group", required=True, metavar="G", help="The group.")
@click.option("--topic", metavar="T", help="Only offsets of this topic.")
@click.option("--partition", type=PARTITION, metavar="P", help="Only offsets of partitions with this number.")
@click.option("--since", type=TIME, metavar="T", help=f"Leave out earlier events: {_TIME}.")
@click.option("--until", type=TIME, metavar="T", help=f"Leave out later events: {_TIME}.")
@_retention_option()
@format_option()
def history(stores: tuple[str, ...], settings: Settings, **options: Any) -> int:  # noqa: ANN401 - HistoryOptions
    """Show every commit, deletion and change of a group, in the order of the log. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    return history_commands.history(stores, settings, history_commands.HistoryOptions(**options))


@command(QUESTIONS, "offsets why --store store --group billing --topic orders --partition 0", several_stores=True)
@click.option("--group", required=True, metavar="G", help="The group.")
@click.option("--topic", required=True, metavar="T", help="The topic.")
@click.option("--partition", required=True, type=PARTITION, metavar="P", help="The topic's partition.")
@_retention_option()
@format_option()
def why(stores: tuple[str, ...], settings: Settings, **options: Any) -> int:  # noqa: ANN401 - WhyOptions
    """Tell why a committed offset has its value, or when and why it was deleted. Starts no Spark."""
    from offsets_pipeline.cli import history_commands

    return history_commands.why(stores, settings, history_commands.WhyOptions(**options))
