"""Options and groups of options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from offsets_pipeline.cli.command import CommandOptions, Options, flag, grouped, option, several
from offsets_pipeline.cli.output import FORMATS
from offsets_pipeline.cli.values import ADDRESS, AS_SET, FILE, HOURS, INTERVAL, OPTION, PATH, SERVERS, TIME
from offsets_pipeline.common.input_text import INT32_MAX
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

if TYPE_CHECKING:
    from pathlib import Path

_STORE = "Folder of the store, or schema:NAME."
CONFIG = option("--config", type=FILE, help="Settings file (default: conf/offsets.toml).")


def _one_store(ctx: click.Context, option: click.Parameter, stores: tuple[str, ...]) -> str:
    """Return the store of a command about one store. Without this check the last --store would replace the others."""
    if len(stores) > 1:
        raise click.BadParameter(f"{ctx.info_name} is about one store: give --store once", ctx, option)
    return stores[0] if stores else ""


class OneStore(CommandOptions):
    """The options of every command that is about one store."""

    store: str = option(
        "--store", required=True, multiple=True, callback=_one_store, metavar="STORE", type=PATH, help=_STORE
    )
    config: Path | None = CONFIG


class SeveralStores(CommandOptions):
    """The options of every command that takes several stores, which are of different clusters."""

    stores: tuple[str, ...] = several("--store", required=True, metavar="STORE", type=PATH, help=_STORE)
    config: Path | None = CONFIG


def format_option(help_: str = "Output format.") -> Any:  # noqa: ANN401 - a str
    """The option `--format`, one of FORMATS."""
    return option("--format", type=click.Choice(FORMATS), default=FORMATS[0], help=help_)


def every_option(default: str | None = None) -> Any:  # noqa: ANN401 - an int or None
    """The option `--every`, in milliseconds.

    With ``default``, the name of the interval's setting, the option needs no duration: the value is then AS_SET.
    """
    help_ = "Repeat at this interval until SIGTERM or Ctrl-C: seconds, or a duration such as PT1H30M"
    if default is None:
        return option("--every", type=INTERVAL, help=f"{help_}.")
    return option(
        "--every",
        type=INTERVAL,
        metavar="[DURATION]",
        is_flag=False,
        flag_value=AS_SET,
        help=f"{help_} (default: setting {default}).",
    )


def semantics_option(help_: str) -> Any:  # noqa: ANN401 - a CoordinatorSemantics or None
    """The option `--coordinator-semantics`."""
    return option(
        "--coordinator-semantics",
        type=click.Choice([each.value for each in CoordinatorSemantics]),
        callback=lambda _context, _option, value: None if value is None else CoordinatorSemantics(value),
        help=help_,
    )


def partitions_option(help_: str) -> Any:  # noqa: ANN401 - an int or None
    """The option `--offsets-partitions`, which has Kafka's name `--offsets.topic.num.partitions`, too."""
    names = ("--offsets-partitions", "--offsets-topic-num-partitions", "--offsets.topic.num.partitions")
    return option(*names, type=click.IntRange(1, INT32_MAX), help=help_)


def retention_option(
    help_: str = "The broker's offsets.retention.minutes (default: as `follow` read it, else settings).",
) -> Any:  # noqa: ANN401 - an int or None
    """The option `--retention-minutes`."""
    return option("--retention-minutes", type=click.IntRange(1, INT32_MAX), help=help_)


def group_option(help_: str = "The group.") -> Any:  # noqa: ANN401 - a str
    """The option `--group` of a command about one group."""
    return option("--group", required=True, metavar="G", help=help_)


def groups_option(help_: str = "This group.", *, required: bool = False) -> Any:  # noqa: ANN401 - a tuple of str
    """The option `--group` of a command about several groups."""
    return several("--group", required=required, metavar="G", help=help_)


def time_option(name: str, help_: str, *, required: bool = False) -> Any:  # noqa: ANN401 - an int or None
    """An option that takes a time, in milliseconds since 1970."""
    return option(name, required=required, type=TIME, help=f"{help_}: ISO 8601, or milliseconds since 1970.")


SEMANTICS_OF_NEW_STORE = semantics_option(
    "Coordinator that a new store reproduces: modern of Kafka 4.x, classic of brokers up to 3.9 (default: settings)."
)
PARTITIONS_OF_NEW_STORE = partitions_option("Number of log partitions of a new store (default: settings).")
IF_HELD = option(
    "--if-held",
    type=click.Choice(["wait", "end"]),
    help="If another process does this work on the store: wait for its end, or end with an error (default: wait; with "
    "--available-now end).",
)
GROUP_WITHOUT_MEMBERS = group_option("Group; it must have no members.")
EXECUTE = flag("--execute", help="Commit the offsets.")
ABSOLUTE = flag("--absolute", help="Show times as they are, not their distance from now (table).")
MEMBERS = flag("--members", help="Show members in place of offsets (table and csv).")


class LiveBrokers(Options):
    """The brokers of a cluster, and how clients log in to them: the same options on every command."""

    needs = (("--command-config", "--bootstrap-server"),)
    of_one_store: ClassVar[Sequence[str]] = ("--bootstrap-server",)

    bootstrap_server: str | None = option(
        "--bootstrap-server", type=SERVERS, help="Live brokers with the topics, separated by commas."
    )
    client_options: tuple[str, ...] = several(
        "--option",
        type=OPTION,
        help="Option of Kafka's clients, such as security.protocol=SASL_SSL. A value env:NAME or file:PATH names a "
        "secret.",
    )
    command_config: Path | None = option(
        "--command-config", type=FILE, help="Properties of the Kafka client (default: setting [kafka])."
    )


class RequestedDeletion(Options):
    """The cluster to delete from, if the store mirrors one: plan first, as a reset."""

    needs = tuple((name, "--bootstrap-server: an owned store deletes at once") for name in ("--execute", "--format"))

    live: LiveBrokers = grouped(LiveBrokers)
    execute: bool = flag("--execute", help="Delete in the cluster; without it, only show the plan.")
    format_: str = format_option("Format of the plan.")


class Brokers(LiveBrokers):
    """The brokers of a command that cannot do without them."""

    bootstrap_server: str = option(
        "--bootstrap-server", type=SERVERS, required=True, help="Brokers, separated by commas."
    )


class PositionsFrom(LiveBrokers):
    """Where positions of topics come from: a cluster, a file, or by default the samples of the store."""

    exclusive = (("--bootstrap-server", "--positions"),)
    of_one_store = ("--bootstrap-server", "--positions")

    positions: str | None = option(
        "--positions",
        type=PATH,
        metavar="FILE",
        help="CSV file or Delta table with positions. Header: topic,partition,log_start_offset,log_end_offset,"
        "sampled_at, or that of reset-offsets.",
    )


def listen_option(default: str) -> Any:  # noqa: ANN401 - a host and a port
    """The option `--listen` of a service."""
    return option(
        "--listen",
        type=ADDRESS,
        default=default,
        help="Address. One that is not a loopback address needs --token-file or --tls-client-ca.",
    )


class ServiceAccess(Options):
    """Who may send requests to a service: the token, and TLS."""

    token_file: Path | None = option("--token-file", type=FILE, help="Require the bearer token in this file.")
    tls_certificate: Path | None = option(
        "--tls-certificate", type=FILE, help="Serve HTTPS with this certificate, in PEM."
    )
    tls_key: Path | None = option("--tls-key", type=FILE, help="The certificate's key, in PEM without a password.")
    tls_client_ca: Path | None = option(
        "--tls-client-ca", type=FILE, help="Require client certificates of this authority, in PEM."
    )


class ReportCoverage(Options):
    """What the page of `report` and `serve` covers."""

    groups: tuple[str, ...] = groups_option("Show this group, or a pattern with * and ?, before the others.")
    positions_from: PositionsFrom = grouped(PositionsFrom)
    rows: int = option("--rows", type=click.IntRange(1), default=50, help="Rows of each table, and groups with a part.")
    hours: int = option("--hours", type=HOURS, default=24, help="Longest span of the charts.")
    stale_hours: int = option(
        "--stale-hours",
        type=HOURS,
        default=24,
        help="A group without a commit for this time is stale.",
    )
    within_hours: int = option("--within", type=HOURS, default=168, help="Show offsets that expire within this time.")
    retention_minutes: int | None = retention_option()
