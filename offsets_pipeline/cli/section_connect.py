"""Commands about connectors of Kafka Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import CONNECT, FILE, PATH, Command, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import ADDRESS

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
    "offsets connect list --store prod/connect --store test/offsets",
    name="list",
    several_stores=True,
)
@format_option()
def list_connectors(stores: tuple[str, ...], settings: Settings, format_: str) -> int:
    """Show connectors: type, state, number of offsets. Starts no Spark.

    Reads the stores STORE-status and STORE-configs as well, if they exist.
    """
    from offsets_pipeline.cli import connect_commands

    return connect_commands.list_(stores, settings, format_)


@command(
    CONNECT,
    "offsets connect describe --store connect --connector files",
    "offsets connect describe --store connect --connector files --format json",
    "offsets connect describe --store groups --configs connect-configs --connector sink",
    name="describe",
)
@CONNECTOR
@click.option(
    "--configs",
    metavar="STORE",
    type=PATH,
    help="Store of config.storage.topic, which names the group of a sink connector. Default: STORE-configs.",
)
@format_option("Output format; json is the answer of Connect's REST interface.")
def describe_connector(store: str, settings: Settings, connector: str, configs: str | None, format_: str) -> int:
    """Show a connector's offsets. Starts no Spark.

    A store of __consumer_offsets answers for a sink connector, by the offsets of its group.
    """
    from offsets_pipeline.cli import connect_commands

    return connect_commands.describe(store, settings, connector, configs, format_)


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


@command(
    CONNECT,
    "offsets connect config --store owned --connector files --settings files.json",
    "offsets connect config --store owned --connector files",
    name="config",
)
@CONNECTOR
@click.option(
    "--settings",
    "file",
    metavar="FILE",
    type=FILE,
    help="JSON object of settings, as PUT /connectors/C/config takes it. - is stdin. Without it, show the settings.",
)
def configure(store: str, settings: Settings, connector: str, file: Path | None) -> int:  # noqa: ARG001
    """Configure a connector of an owned store, or show its settings.

    Creates the connector if it does not exist. Secrets must be references such as ${file:/run/secrets/db:password}.
    """
    from offsets_pipeline.cli import connect_changes

    return connect_changes.configure(store, connector, file)


@command(
    CONNECT,
    "offsets connect serve --store owned",
    "offsets connect serve --store owned --cluster-id lab --listen 8083",
    "offsets connect serve --store owned --listen 0.0.0.0:8083 --token-file /run/secrets/connect-token "
    "--tls-certificate server.pem --tls-key server.key",
    name="serve",
)
@click.option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:8083",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Address. One that is not a loopback address needs --token-file or --tls-client-ca.",
)
@click.option("--cluster-id", metavar="ID", help="Create the store if it does not exist, for this cluster.")
@click.option("--token-file", type=FILE, metavar="FILE", help="Require the bearer token in this file.")
@click.option("--tls-certificate", type=FILE, metavar="FILE", help="Serve HTTPS with this certificate, in PEM.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key, in PEM without a password.")
@click.option(
    "--tls-client-ca", type=FILE, metavar="FILE", help="Require client certificates of this authority, in PEM."
)
@click.option(
    "--max-request-bytes",
    type=click.IntRange(1),
    default=1_048_576,
    show_default=True,
    metavar="N",
    help="Limit of a request's body.",
)
def serve(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401, ARG001 - ServeOptions
    """Serve the REST interface of Kafka Connect for an owned store.

    Runs until SIGTERM or Ctrl-C.
    """
    from offsets_pipeline.cli import connect_serve

    return connect_serve.serve(store, connect_serve.ServeOptions(**options))


@command(CONNECT, "offsets connect reset --store owned --connector files", name="reset")
@CONNECTOR
def reset(store: str, settings: Settings, connector: str) -> int:  # noqa: ARG001
    """Delete all offsets of a STOPPED connector of an owned store."""
    from offsets_pipeline.cli import connect_changes

    return connect_changes.reset(store, connector)


stop = _of_state("stop", "Stop a connector of an owned store: its tasks write no offsets.", "STOPPED")
pause = _of_state("pause", "Pause a connector of an owned store.", "PAUSED")
resume = _of_state("resume", "Resume a connector of an owned store.", "RUNNING")

for each in (list_connectors, describe_connector, configure, stop, pause, resume, alter, reset, serve):
    connect.add_command(each)
