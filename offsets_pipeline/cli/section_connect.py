"""Commands about connectors of Kafka Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import CONNECT, command
from offsets_pipeline.cli.output import format_option

if TYPE_CHECKING:
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


for each in (list_connectors, describe_connector):
    connect.add_command(each)
