"""Commands about connectors of Kafka Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import CONNECT, FILE, Command, command
from offsets_pipeline.cli.output import format_option

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.config import Settings

CONNECTOR = click.option("--connector", required=True, metavar="C", help="The connector.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def connect() -> None:
    """Show and change offsets and states of connectors of Kafka Connect."""


@command(
    CONNECT,
    "offsets connect list --store connect",
    "offsets connect list --store connect --format json",
    name="list",
)
@format_option()
def list_connectors(store: str, settings: Settings, format_: str) -> int:
    """Show connectors: type, state, number of offsets. Starts no Spark.

    Reads the stores STORE-status and STORE-configs as well, if they exist.
    """
    from offsets_pipeline.cli import connect_commands

    return connect_commands.list_(store, settings, format_)


@command(
    CONNECT,
    "offsets connect describe --store connect --connector files",
    "offsets connect describe --store connect --connector files --format json",
    name="describe",
)
@CONNECTOR
@format_option("Output format; json is the answer of Connect's REST interface.")
def describe_connector(store: str, settings: Settings, connector: str, format_: str) -> int:
    """Show a connector's offsets. Starts no Spark.

    A store of __consumer_offsets answers for a sink connector, by the offsets of its group.
    """
    from offsets_pipeline.cli import connect_commands

    return connect_commands.describe(store, settings, connector, format_)


def _of_state(name: str, help_: str, state: str) -> Command:
    def change(store: str, settings: Settings, connector: str) -> int:  # noqa: ARG001 - each command has settings
        from offsets_pipeline.cli import connect_changes

        return connect_changes.set_state(store, connector, state)

    change.__doc__ = help_
    return command(CONNECT, f"offsets connect {name} --store owned --connector files", name=name)(CONNECTOR(change))


@command(
    CONNECT,
    "offsets connect alter --store owned --connector files --offsets offsets.json",
    name="alter",
)
@CONNECTOR
@click.option(
    "--offsets",
    required=True,
    metavar="FILE",
    type=FILE,
    help="JSON as Connect's REST interface takes it: offsets, pairs of partition and offset. - is stdin.",
)
def alter(store: str, settings: Settings, connector: str, offsets: Path) -> int:  # noqa: ARG001
    """Add and replace offsets of a STOPPED connector of an owned store.

    An offset of null deletes one. Offsets that the file does not name stay.
    """
    from offsets_pipeline.cli import connect_changes

    return connect_changes.alter(store, connector, offsets)


@command(CONNECT, "offsets connect reset --store owned --connector files", name="reset")
@CONNECTOR
def reset(store: str, settings: Settings, connector: str) -> int:  # noqa: ARG001
    """Delete all offsets of a STOPPED connector of an owned store."""
    from offsets_pipeline.cli import connect_changes

    return connect_changes.reset(store, connector)


stop = _of_state("stop", "Give a connector of an owned store the state STOPPED: its tasks write no offsets.", "STOPPED")
pause = _of_state("pause", "Give a connector of an owned store the state PAUSED.", "PAUSED")
resume = _of_state("resume", "Give a connector of an owned store the state RUNNING.", "RUNNING")

for each in (list_connectors, describe_connector, stop, pause, resume, alter, reset):
    connect.add_command(each)
