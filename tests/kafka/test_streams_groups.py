"""Streams groups of real Kafka Streams applications are described as `kafka-streams-groups` describes them."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import KAFKA_JARS
from offsets_pipeline.cli import against_command, main
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from tests.compare import compare
from tests.kafka.live import LiveBroker, live_broker, wait_until
from tests.kafka.streams_application import SETTINGS, StreamsApplication
from tests.kafka.zookeeper import run_java
from tests.unit.history.dump_tool import assert_same, batches_of
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

# applications of Kafka Streams that join, rebalance and leave; Kafka's dump tool has a JVM of its own
pytestmark = pytest.mark.slow

TOOL = "streams.StreamsGroupCommand.execute"  # its `main` ends the JVM
REPARTITION = "app-by-key-repartition"
FOREVER_MS = 2**60
Row = dict[str, str]


class Answers:
    """What Kafka's tool prints of a broker's streams groups, and what we print of a store with its log."""

    def __init__(
        self, broker: LiveBroker, folder: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.broker = broker
        self._folder, self._settings, self._capsys = folder, settings, capsys
        self._numbers = count()
        self.store = ""

    def fold(self) -> None:
        """Make a new store of the broker's log."""
        to = self._folder / f"store-{next(self._numbers)}"
        self.store = str(folded_segments(self.broker.folder, to, self.broker.offsets_partitions, self._settings))

    def ours(self, *words: str) -> str:
        """What a command prints of the store."""
        self._capsys.readouterr()
        assert main([words[0], "--store", self.store, *words[1:]]) == 0
        return self._capsys.readouterr().out

    def described(self, *words: str) -> list[Row]:
        """The rows of `describe`."""
        live = ["--bootstrap-server", self.broker.address]
        return list(csv.DictReader(io.StringIO(self.ours("describe", "--all-groups", *words, *live, "--format", "csv"))))

    def tool(self, *words: str) -> list[Row]:
        """The rows of Kafka's tool; the last column may have blanks in it."""
        rows: list[Row] = []
        header: list[str] = []
        for line in self.broker.tool(*words, program=TOOL).replace("COORDINATOR (ID)", "COORDINATOR").splitlines():
            if line.startswith("GROUP "):
                header = line.split()
            elif header and line.strip():
                cells = line.replace(" (1)", "_(1)").split(maxsplit=len(header) - 1)
                rows.append(dict(zip(header, map(str.strip, cells), strict=True)))
        return rows

    def compare(self) -> None:
        """Compare all that both print: lists, states, members, offsets."""
        self.fold()
        oracle = self.broker.answers.groups()
        assert compare(json.loads(self.ours("describe", "--all-groups", "--format", "json")), oracle) == []
        assert self.ours("verify", "--against", self.broker.address).startswith("equal: ")
        listed = [line.split() for line in self.ours("describe", "--list", "--state").splitlines()]
        assert sorted(listed[1:]) == sorted([row["GROUP"], row["STATE"]] for row in self.tool("--list", "--state"))
        self._compare_states()
        self._compare_members()
        self._compare_offsets({name: group["offsets"] for name, group in oracle["groups"].items()})

    def _compare_states(self) -> None:
        ours = sorted(
            (
                *(row["group"], row["coordinator (id)"].replace(" ", "_"), row["state"]),
                *(row["group_epoch"], row["target_assignment_epoch"], row["#members"]),
            )
            for row in self.described("--state", "--verbose")
        )
        names = ("GROUP", "COORDINATOR", "STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS")
        rows = self.tool("--describe", "--all-groups", "--state", "--verbose")
        assert ours == sorted(tuple(row[name] for name in names) for row in rows)

    def _compare_members(self) -> None:
        ours = sorted(
            (
                *(row["group"], row["consumer_id"], row["client_id"], row["process"], row["topology_epoch"]),
                *(row["current_epoch"], row["target_epoch"], _assignments(row)),
            )
            for row in self.described("--members", "--verbose")
        )
        names = (
            *("GROUP", "MEMBER", "CLIENT-ID", "PROCESS", "TOPOLOGY-EPOCH"),
            *("MEMBER-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "ASSIGNMENTS"),
        )
        rows = self.tool("--describe", "--all-groups", "--members", "--verbose")
        assert ours == sorted(tuple(row[name] for name in names) for row in rows)

    def _compare_offsets(self, committed: dict[str, list[dict[str, object]]]) -> None:
        """The tool shows the partitions that members consume, without the commits of repartition topics."""
        ours = {
            (row["group"], row["topic"], row["partition"]): row
            for row in self.described("--offsets", "--verbose")
            if row["consumer_id"]
        }
        rows = self.tool("--describe", "--all-groups", "--offsets", "--verbose")
        theirs = {(row["GROUP"], row["TOPIC"], row["PARTITION"]): row for row in rows}
        assert ours.keys() == theirs.keys()
        names = {"CURRENT-OFFSET": "current_offset", "LEADER-EPOCH": "leader_epoch", "LOG-END-OFFSET": "log_end_offset"}
        for at, row in ours.items():
            assert row["lag"] == str(int(row["log_end_offset"]) - int(row["current_offset"]))
            if at[1].endswith("-repartition"):
                assert theirs[at]["CURRENT-OFFSET"] == "-"
                assert theirs[at]["LOG-END-OFFSET"] == row["log_end_offset"]
            else:
                assert [row[our] for our in names.values()] == [theirs[at][name] for name in names]
                assert row["lag"] == theirs[at]["OFFSET-LAG"]
        for name, offsets in committed.items():  # as the broker answers a fetch, in which the tool leaves some out
            shown = {at: row["current_offset"] for at, row in ours.items() if at[0] == name}
            assert shown.items() <= {(name, str(o["topic"]), str(o["partition"])): str(o["offset"]) for o in offsets}.items()


def _assignments(row: Row) -> str:
    """Our columns as the tool prints them, but for the end of the line."""
    kinds = [row["tasks"], "; ".join(f"TARGET-{each}" for each in _kinds(row["target_tasks"]))]
    return "; ".join(filter(None, kinds)) + ";"


def _kinds(tasks: str) -> list[str]:
    """A task list's parts: ACTIVE, STANDBY, WARMUP."""
    return [each for each in tasks.replace("; STANDBY", "\nSTANDBY").splitlines() if each]


def test_streams_groups_are_described_as_kafkas_tool_describes_them(
    kafka: KafkaJvm,
    tmp_path: Path,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(against_command, "_PATIENCE_SECONDS", 0.0)
    with live_broker(kafka, tmp_path / "broker", more=SETTINGS) as broker:
        broker.create_topic("words", 2)
        broker.create_topic("other", 1)
        broker.send("words", [(at % 2, f"key {at}", "") for at in range(10)])
        broker.commit("app", {("other", 0): 3})  # before there is a streams group
        answers = Answers(broker, tmp_path, settings, capsys)
        app = StreamsApplication(kafka, broker, tmp_path, "app", "words")
        try:
            for client_id in ("first", "second"):
                app.start(client_id)
                app.settle()
                wait_until(lambda: _committed(broker) == (10, 10), "records", 60, lambda: str(_committed(broker)))
                answers.compare()
        finally:
            app.close_all()


def _committed(broker: LiveBroker) -> tuple[int, int]:
    """The sum of committed offsets of the application's source topic, and of its repartition topic."""
    found = Counter[str]()
    for each in broker.answers.offsets(["app"])["app"]:
        found[each["topic"]] += each["offset"]
    return found["words"], found[REPARTITION]
