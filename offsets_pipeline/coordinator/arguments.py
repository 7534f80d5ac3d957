"""What the command line says of offsets: light, for it is read with every command."""

from __future__ import annotations

import argparse
import re

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
