"""What the command line says of owned stores: light, for it is read with every command."""

from __future__ import annotations

import argparse
import re

from offsets_pipeline.cli.output import FORMATS
from offsets_pipeline.cli.repeating import add_every
from offsets_pipeline.config import HOURS_MAX

_COMMIT = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+)=(?P<offset>\d+)")
_PLACE = re.compile(r"(?P<topic>[^:]+)(:(?P<partition>\d+))?")


def commit_of(text: str) -> tuple[tuple[str, int], int]:
    """TOPIC:PARTITION=OFFSET of the command line."""
    found = _COMMIT.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=OFFSET")
    return (found["topic"], int(found["partition"])), int(found["offset"])


def place_of(text: str) -> tuple[str, int | None]:
    """TOPIC:PARTITION, or TOPIC for all of its partitions."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC or TOPIC:PARTITION")
    return found["topic"], None if found["partition"] is None else int(found["partition"])


def hours_of(text: str) -> int:
    """A number of hours of the command line."""
    if not text.isdecimal() or int(text) > HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes a whole number from 0 to {HOURS_MAX}")
    return int(text)


def add_expiry_options(command: argparse.ArgumentParser) -> None:
    """The options of `expire-offsets`."""
    how = command.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only say what expires, and by which rule; of any store")
    add_every(how, default="offsets_retention_check_interval_ms")
    command.add_argument("--format", choices=FORMATS, default="table")
    forecast = command.add_argument_group("with --dry-run")
    forecast.add_argument("--within", type=hours_of, metavar="HOURS", help="what expires later, but before so long")
    forecast.add_argument("--at", metavar="T", help="now is this time: ISO 8601, or milliseconds since 1970")
    forecast.add_argument(
        "--retention-minutes", type=int, metavar="N", help="the broker's offsets.retention.minutes (default: settings)"
    )
