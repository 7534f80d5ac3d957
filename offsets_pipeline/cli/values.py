"""Values of options and arguments: how they are written, and what a command gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from offsets_pipeline.common.clock import duration_ms, parse_time_ms
from offsets_pipeline.common.input_text import INT32_MAX, shown, validated_topic, whole_number
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.errors import InvalidTime, OffsetsError
from offsets_pipeline.kafka.broker.kafka_options import are_bootstrap_servers, literal_secret, parse_options
from offsets_pipeline.questions.lag.starting_offset import parse_reset

#: The value of `--every` without a duration: the interval is a setting.
AS_SET = 0

_COMMIT = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+)=(?P<offset>\d+)")
_PLACE = re.compile(r"(?P<topic>[^:]+)(:(?P<partition>\d+))?")
_TOPIC = re.compile(r"(?P<topic>[^:]+)(:(?P<partitions>\d+(,\d+)*))?")
_CLUSTER = re.compile(r"[\w.-]{1,100}", re.ASCII)
_POSITION = re.compile(r"(?P<partition>\d{1,9}):(?P<offset>\d{1,18})", re.ASCII)
_SCHEMA = re.compile(r"\w+(\.\w+)*")
_PORT_MAX = 65_535


class TextType(click.ParamType[Any]):
    """The type of a value that a function reads from text.

    ``metavar`` stands for the value in the help. ``read`` raises ValueError or OffsetsError with the reason for a wrong
    text.
    """

    def __init__(self, metavar: str, read: Callable[[str], object]) -> None:
        self.name = metavar  # click's help shows the name in capitals
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read the text. Raises click.BadParameter."""
        if not isinstance(value, str):  # a default, or AS_SET
            return value
        try:
            return self._read(value)
        except (ValueError, OffsetsError) as error:
            self.fail(str(error), param, ctx)


def _matched(pattern: re.Pattern[str], text: str, reason: str) -> re.Match[str]:
    """Return the match of the whole text. Raises ValueError with the reason if there is none."""
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} {reason}")
    return found


def read_commit(text: str) -> tuple[tuple[str, int], int]:
    """TOPIC:PARTITION=OFFSET. Raises ValueError."""
    found = _matched(_COMMIT, text, "is not of the form TOPIC:PARTITION=OFFSET")
    return (found["topic"], _partition(found["partition"])), whole_number(found["offset"])


def read_place(text: str) -> tuple[str, int | None]:
    """TOPIC:PARTITION, or TOPIC for all of its partitions. Raises ValueError."""
    found = _matched(_PLACE, text, "is not of the form TOPIC or TOPIC:PARTITION")
    return found["topic"], None if found["partition"] is None else _partition(found["partition"])


def read_topic(text: str) -> tuple[str, tuple[int, ...] | None]:
    """TOPIC:PARTITION,PARTITION..., or TOPIC for all of its partitions. Raises ValueError."""
    found = _matched(_TOPIC, text, "is not of the form TOPIC or TOPIC:PARTITION,PARTITION...")
    partitions = found["partitions"]
    return found["topic"], None if partitions is None else tuple(map(_partition, partitions.split(",")))


def _partition(text: str) -> int:
    return whole_number(text, INT32_MAX)


def read_hours(text: str) -> int:
    """A whole number of hours. Raises ValueError."""
    from offsets_pipeline.common.config.sections import HOURS_MAX  # help starts a fifth sooner without the settings

    try:
        return whole_number(text, HOURS_MAX)
    except ValueError:
        raise ValueError(f"{shown(text)} is not allowed; it takes a whole number from 0 to {HOURS_MAX}") from None


def read_interval(text: str) -> int:
    """The milliseconds of an interval: a number of seconds, or a duration in ISO 8601. Raises ValueError."""
    try:
        every_ms = whole_number(text, INT32_MAX) * 1000 if text.isascii() and text.isdigit() else duration_ms(text)
    except (ValueError, InvalidTime):
        every_ms = 0
    if every_ms <= 0:
        raise ValueError(f"{shown(text)} is not a duration: write seconds, or ISO 8601 such as PT1H30M")
    return every_ms


def read_duration(text: str) -> str:
    """A duration in ISO 8601, unchanged: a command counts it back from its own time. Raises InvalidTime, ValueError."""
    if duration_ms(text) < 0:
        raise ValueError(f"{shown(text)} is negative: it would be a time to come")
    return text


def read_option(text: str) -> str:
    """NAME=VALUE, unchanged: the value may be a secret. Raises ConfigError."""
    parse_options([text])
    return text


def read_servers(text: str) -> str:
    """HOST:PORT, or several separated by commas. Raises ValueError."""
    if not are_bootstrap_servers(text):
        raise ValueError(f"{shown(text)} is not of the form HOST:PORT, or HOST:PORT,HOST:PORT for several brokers")
    return text


def read_pattern(text: str) -> str:
    """A regular expression. Raises ValueError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{shown(text)} is not a regular expression: {error}; write it like orders.*") from None
    return text


def read_zookeeper(text: str) -> str:
    """HOST:PORT, or several separated by commas, and maybe a chroot. Raises ConfigError."""
    from offsets_pipeline.common.config.sections import ZooKeeperSettings

    return ZooKeeperSettings(connect=text).connect


def read_schema(text: str) -> str:
    """The name of a schema. Raises ValueError."""
    return _matched(_SCHEMA, text, "is not a valid name of a schema: use letters, digits, _ and dots")[0]


def read_address(text: str) -> tuple[str, int]:
    """PORT or HOST:PORT; the host is 127.0.0.1 by default. Raises ValueError."""
    host, _, port = text.rpartition(":")
    try:
        return host or "127.0.0.1", whole_number(port, _PORT_MAX)
    except ValueError:
        raise ValueError(
            f"{shown(text)} is not an address: write PORT or HOST:PORT, with a port from 0 to {_PORT_MAX}"
        ) from None


def read_cluster(text: str) -> str:
    """The name of a cluster. Raises ValueError."""
    return _matched(_CLUSTER, text, "is not a cluster name: use 1 to 100 letters, digits, dots, _ and -")[0]


def read_positions(text: str) -> dict[int, int]:
    """LOGPARTITION:OFFSET,...: a record offset for each log partition. Raises ValueError."""
    positions: dict[int, int] = {}
    for part in text.split(","):
        found = _POSITION.fullmatch(part)
        if found is None or int(found["partition"]) in positions:
            raise ValueError(f"{shown(text)} is not of the form LOGPARTITION:OFFSET,... with each log partition once")
        positions[int(found["partition"])] = int(found["offset"])
    return positions


CLUSTER = TextType("NAME", read_cluster)
COMMIT = TextType("TOPIC:PARTITION=OFFSET", read_commit)
POSITIONS = TextType("LOGPARTITION:OFFSET,...", read_positions)
PLACE = TextType("TOPIC[:PARTITION]", read_place)
TOPIC = TextType("T[:P,P...]", read_topic)
TOPIC_NAME = TextType("T", validated_topic)
HOURS = TextType("HOURS", read_hours)
ADDRESS = TextType("[HOST:]PORT", read_address)
TIME = TextType("T", parse_time_ms)
DURATION = TextType("D", read_duration)
RESET = TextType("POLICY", parse_reset)
INTERVAL = TextType("DURATION", read_interval)
SERVERS = TextType("HOST:PORT", read_servers)
PATTERN = TextType("PATTERN", read_pattern)
SCHEMA = TextType("NAME", read_schema)
ZOOKEEPER = TextType("HOST:PORT[/CHROOT]", read_zookeeper)


class _Option(TextType):
    """`--option`: warns of a secret, which each user of the machine can see in the list of processes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read the text. Raises click.BadParameter."""
        read: str = super().convert(value, param, ctx)
        name = literal_secret(read)
        if name is not None and param is not None and not (ctx and ctx.resilient_parsing):
            warn(
                f"the list of processes shows the secret {name}; write it to a file, and give "
                f"{param.opts[0]} {name}=file:PATH"
            )
        return read


class _Path(click.Path):
    """A path, which is not empty: an empty one would be the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Check the path. Raises click.BadParameter."""
        if value == "":
            self.fail("the path is empty; a variable of the shell may be unset", param, ctx)
        return super().convert(value, param, ctx)


OPTION = _Option("NAME=VALUE", read_option)
#: Number of a partition.
PARTITION = click.IntRange(0, INT32_MAX)
#: A path or URI. The command checks it, for its errors say what to do; shells complete it.
PATH = _Path(readable=False)
#: A file of this machine.
FILE = _Path(readable=False, path_type=Path)
FILE.name = "file"  # click's help shows the name in capitals
