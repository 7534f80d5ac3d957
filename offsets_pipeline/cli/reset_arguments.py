"""The options of `offsets reset-offsets`, named as those of kafka-consumer-groups: light, read with every command."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.config import Settings

_TOPIC = re.compile(r"(?P<topic>[^:]+)(:(?P<partitions>\d+(,\d+)*))?")


def add_reset_offsets(command: Callable[[str, object, str], argparse.ArgumentParser]) -> None:
    """Add the command."""
    reset = command("reset-offsets", _reset_offsets, "plan, and with --execute carry out, a reset of groups' offsets")
    groups = reset.add_mutually_exclusive_group()
    groups.add_argument("--group", action="append", metavar="G", help="may be repeated")
    groups.add_argument("--all-groups", action="store_true", help="every consumer group")
    topics = reset.add_mutually_exclusive_group()
    topics.add_argument(
        "--topic", action="append", type=topic_of, metavar="T[:P,P...]", help="all partitions or some; may be repeated"
    )
    topics.add_argument("--all-topics", action="store_true", help="whatever the group has committed")
    scenario = reset.add_mutually_exclusive_group(required=True)
    scenario.add_argument("--to-earliest", action="store_true", help="where each partition begins")
    scenario.add_argument("--to-latest", action="store_true", help="where each partition ends")
    scenario.add_argument("--to-current", action="store_true", help="what is committed, else where the partition ends")
    scenario.add_argument("--to-offset", type=int, metavar="N", help="an offset, as far as the partition has it")
    scenario.add_argument("--shift-by", type=int, metavar="N", help="so many on, or back where negative, likewise")
    scenario.add_argument("--to-datetime", metavar="T", help="the first record at or after a time: ISO 8601")
    scenario.add_argument("--by-duration", metavar="D", help="the same, so long ago: ISO 8601, as PT1H30M")
    scenario.add_argument("--from-file", metavar="FILE", help="a plan that --export wrote, here or in Kafka")
    positions = reset.add_mutually_exclusive_group()
    positions.add_argument("--bootstrap-server", metavar="HOST:PORT", help="broker that has the topics")
    positions.add_argument(
        "--positions",
        metavar="FILE",
        help="in place of a broker, CSV with the header topic,partition,earliest,latest and a column for each time, "
        "with the offsets of the first records at or after it",
    )
    reset.add_argument("--command-config", metavar="FILE", help="properties of the broker's client, as librdkafka's")
    what = reset.add_mutually_exclusive_group()
    what.add_argument("--execute", action="store_true", help="commit the offsets")
    what.add_argument("--dry-run", action="store_true", help="only show them (default)")
    shown = reset.add_mutually_exclusive_group()
    shown.add_argument("--format", choices=FORMATS, default="table", help="csv is that of --export")
    shown.add_argument(
        "--export", action="store_const", const="csv", dest="format", help="CSV without header, as Kafka's --from-file"
    )


def topic_of(text: str) -> tuple[str, tuple[int, ...] | None]:
    """TOPIC:PARTITION,PARTITION..., or TOPIC for all of its partitions."""
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC or TOPIC:PARTITION,PARTITION...")
    partitions = found["partitions"]
    return found["topic"], None if partitions is None else tuple(int(each) for each in partitions.split(","))


def _reset_offsets(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.reset_command import reset_offsets

    return reset_offsets(options, settings)
