"""Measures questions from a cold shell, beside Kafka's own tool on a broker that has loaded the same log.

Each question starts a new process, of either program. Each answer of the tool is compared with ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kafka.admin import KafkaAdminClient, NewTopic

from benchmarks.broker import KAFKA_JARS, Broker, java, replace_segments
from benchmarks.processes import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.generate import GeneratedLog
    from benchmarks.table import Table

    Committed = dict[tuple[str, str, int], int]

Answer = TypeVar("Answer")

_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_GROUPS = 3  # that are asked for, one by one


def measure_questions(table: Table, location: str, log: GeneratedLog) -> None:
    """Add lines for one group and for the list of all groups, of a store and of a broker with the same log.

    Args:
        table: Table for the lines.
        location: A store with the log, folded.
        log: Its segments are copied to a temporary folder of the broker.

    Raises:
        BrokerError: the broker does not start or load.
    """
    table.doing("questions, and a broker that loads the same log")
    listed, listing = _asked([""] * _GROUPS, lambda _: _run(OFFSETS, "describe", "--store", location, "--list"))
    names = sorted(set(listed[0].split()))
    groups = [names[at * len(names) // _GROUPS] for at in range(_GROUPS)]
    data = f"{log.shape.identities:,} identities"
    with tempfile.TemporaryDirectory(prefix="offsets-questions-", dir=log.folder.parent) as temporary:
        broker = Broker(Path(temporary), log.shape.offsets_partitions)
        broker.format()
        broker.load(make_log=True)
        replace_segments(log.folder, broker.data, log.shape.offsets_partitions)
        broker.load()  # makes the indexes
        with broker.serving(make_log=False) as address:
            found, seconds = _asked(groups, lambda group: _describe(location, group))
            _create_topics(address, found)
            at_broker = ("--bootstrap-server", address)
            table.add_times("describe --group, cold", data, seconds)
            live, seconds = _asked(groups, lambda group: _describe(location, group, *at_broker))
            table.add_times("describe --group --bootstrap-server, cold", data, seconds)
            told, seconds = _asked(groups, lambda group: _described_by_tool(address, group))
            table.add_times("  kafka-consumer-groups --describe --group", data, seconds)
            if not found == live == told:
                sys.exit("bench: kafka-consumer-groups shows other offsets: the figures would compare different things")
            table.add_times("describe --list, cold", f"{len(names):,} groups", listing)
            tool_lists, seconds = _asked([""] * _GROUPS, lambda _: _tool(address, "--list"))
            table.add_times("  kafka-consumer-groups --list", f"{len(names):,} groups", seconds)
            if names != sorted(tool_lists[0].split()):
                sys.exit("bench: kafka-consumer-groups lists other groups: the figures would compare different things")


def _asked(groups: Sequence[str], ask: Callable[[str], Answer]) -> tuple[list[Answer], list[float]]:
    """The answers about groups, and the seconds of each."""
    answers, seconds = [], []
    for group in groups:
        start = time.perf_counter()
        answers.append(ask(group))
        seconds.append(time.perf_counter() - start)
    return answers, seconds


def _describe(location: str, group: str, *options: str) -> Committed:
    text = _run(OFFSETS, "describe", "--store", location, "--group", group, "--format", "json", *options)
    return {
        (group, each["topic"], each["partition"]): each["offset"]
        for each in json.loads(text)["groups"][group]["offsets"]
    }


def _described_by_tool(address: str, group: str) -> Committed:
    text = _tool(address, "--describe", "--group", group)
    header, *lines = [line.split() for line in text.splitlines() if line] or [[]]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    return {(each["GROUP"], each["TOPIC"], int(each["PARTITION"])): int(each["CURRENT-OFFSET"]) for each in rows}


def _tool(address: str, *arguments: str) -> str:
    options = ("--bootstrap-server", address, "--timeout", "60000")
    return _run(java(), "-cp", f"{KAFKA_JARS}/*", _TOOL, *arguments, *options)


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _create_topics(address: str, found: Sequence[Committed]) -> None:
    """Create the topics of these offsets: the tool asks for the ends of their partitions."""
    partitions: dict[str, int] = {}
    for _, topic, partition in (each for offsets in found for each in offsets):
        partitions[topic] = max(partitions.get(topic, 0), partition + 1)
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic(topic, count, 1) for topic, count in partitions.items()])
    finally:
        admin.close()
