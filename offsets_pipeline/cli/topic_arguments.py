"""What the command line says of a topic: light, for it is read with every command."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_topic_options(command: argparse.ArgumentParser) -> None:
    """The options of the commands that read a topic."""
    command.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers, with commas between")
    command.add_argument("--topic", metavar="T", help="the topic (default: settings, __consumer_offsets)")
    command.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Kafka's clients, as security.protocol=SASL_SSL; a value env:NAME or file:PATH is looked up "
        "there; may be repeated",
    )
    command.add_argument("--available-now", action="store_true", help="read what is there, then end")
    command.add_argument("--metrics-file", type=Path, metavar="FILE", help="keep figures for Prometheus in this file")
    command.add_argument("--metrics-port", type=_address, metavar="[HOST:]PORT", help="tell them at this port")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; it takes 0 to 65535, with HOST: before it or not")
    return host or "127.0.0.1", int(port)
