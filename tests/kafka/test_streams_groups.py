"""Streams groups of real Kafka Streams applications are described as `kafka-streams-groups` describes them."""

from __future__ import annotations

import csv
import io
import json
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import KAFKA_JARS
from offsets_pipeline.cli import main, section_state
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
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

# two applications of Kafka Streams that join, rebalance and leave; Kafka's dump tool in a JVM of its own
pytestmark = pytest.mark.slow

TOOL = "streams.StreamsGroupCommand.execute"  # its `main` ends the JVM
RETENTION = "offsets.retention.check.interval.ms=100\n"
FOREVER_MS = 2**60
HOUR_MS = 3_600_000
RECORD_TYPES = {1, 17, 19, 20, 21, 22, 23}
Row = dict[str, str]
Offsets = dict[tuple[str, int], int]


class Answers:
    """What Kafka's tool prints of a broker's streams groups, and what we print of a store with the broker's log."""

    def __init__(
        self, broker: LiveBroker, folder: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._broker, self._folder, self._settings, self._capsys = broker, folder, settings, capsys
        self._numbers = count()
        self._store = ""

    def fold(self) -> None:
        """Make a new store of the broker's log."""
        to = self._folder / f"store-{next(self._numbers)}"
        self._store = str(folded_segments(self._broker.folder, to, self._broker.offsets_partitions, self._settings))

    def ours(self, *words: str) -> str:
        """What a command prints of the store."""
        self._capsys.readouterr()
        assert main([words[0], "--store", self._store, *words[1:]]) == 0
        return self._capsys.readouterr().out

    def difference(self) -> str:
        """The difference from the broker that `verify` finds."""
        self._capsys.readouterr()
        assert main(["verify", "--store", self._store, "--against", self._broker.address]) == 1
        return self._capsys.readouterr().err

    def described(self, *words: str) -> list[Row]:
        """The rows of `describe`, with lag and coordinators."""
        live = ["--bootstrap-server", self._broker.address, "--format", "csv"]
        return list(csv.DictReader(io.StringIO(self.ours("describe", "--all-groups", *words, "--verbose", *live))))

    def due(self) -> set[tuple[str, str | None, int | None, str]]:
        """Group, topic, partition and rule of all that would expire within an hour."""
        at = str(int(time.time() * 1000) + HOUR_MS)
        options = ["--dry-run", "--retention-minutes", "1", "--at", at, "--format", "json"]
        rows = map(json.loads, self.ours("expire-offsets", *options).splitlines())
        return {(row["group"], row["topic"], row["partition"], row["rule"]) for row in rows}

    def printed(self, *words: str) -> list[Row]:
        """The rows of Kafka's tool. The last column may have blanks in it, or be empty."""
        rows: list[Row] = []
        header: list[str] = []
        text = self._broker.tool(*words, program=TOOL)
        for line in text.replace("COORDINATOR (ID)", "COORDINATOR").replace(" (1) ", "_(1) ").splitlines():
            if line.startswith("GROUP "):
                header = line.split()
            elif line.strip() and not line.startswith("Error: Streams group"):  # has no active members
                cells = [each.strip() for each in line.split(maxsplit=len(header) - 1)]
                rows.append(dict(zip(header, [*cells, ""][: len(header)], strict=True)))
        return rows

    def compare(self) -> int:
        """Compare all that both print: lists, states, members, offsets. Returns the number of consumed partitions.

        On a busy machine a member may still get its last task meanwhile: what differs then is compared again.
        """
        while True:
            places = self._broker.log_places()
            try:
                return self._compare()
            except AssertionError:
                if self._broker.log_places() == places:
                    raise

    def _compare(self) -> int:
        self.fold()
        of_broker = self._broker.answers.groups()
        assert compare(json.loads(self.ours("describe", "--all-groups", "--format", "json")), of_broker) == []
        assert self.ours("verify", "--against", self._broker.address).startswith("equal: ")
        listed = [line.split() for line in self.ours("describe", "--list", "--state").splitlines()[1:]]
        assert listed == sorted([row["GROUP"], row["STATE"]] for row in self.printed("--list", "--state"))
        if not listed:
            return 0
        self._compare_states()
        self._compare_members()
        return self._compare_offsets()

    def _compare_states(self) -> None:
        ours = sorted(
            (
                *(row["group"], row["coordinator (id)"].replace(" ", "_"), row["state"]),
                *(row["group_epoch"], row["target_assignment_epoch"], row["#members"]),
            )
            for row in self.described("--state")
        )
        names = ("GROUP", "COORDINATOR", "STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS")
        rows = self.printed("--describe", "--all-groups", "--state", "--verbose")
        assert ours == sorted(tuple(row[name] for name in names) for row in rows)

    def _compare_members(self) -> None:
        ours = sorted(
            (
                *(row["group"], row["consumer_id"], row["client_id"], row["process"], row["topology_epoch"]),
                *(row["current_epoch"], row["target_epoch"], row["tasks"], row["target_tasks"]),
            )
            for row in self.described("--members")
        )
        names = (
            *("GROUP", "MEMBER", "CLIENT-ID", "PROCESS", "TOPOLOGY-EPOCH"),
            *("MEMBER-EPOCH", "TARGET-ASSIGNMENT-EPOCH"),
        )
        rows = self.printed("--describe", "--all-groups", "--members", "--verbose")
        assert ours == sorted((*(row[name] for name in names), *_tasks(row["ASSIGNMENTS"])) for row in rows)

    def _compare_offsets(self) -> int:
        """Compare the partitions that members consume. The tool shows no commits of repartition topics."""
        ours = {(row["group"], row["topic"], row["partition"]): row for row in self.described("--offsets")}
        ours = {at: row for at, row in ours.items() if row["consumer_id"]}
        rows = self.printed("--describe", "--all-groups", "--offsets", "--verbose")
        theirs = {(row["GROUP"], row["TOPIC"], row["PARTITION"]): row for row in rows}
        assert ours.keys() == theirs.keys()
        for at, row in ours.items():
            of_commit = [row["current_offset"], row["leader_epoch"], row["lag"]]
            if at[1].endswith("-repartition"):
                of_commit = ["-", "-", theirs[at]["OFFSET-LAG"]]
                assert row["current_offset"] == row["log_end_offset"]
            assert [*of_commit, row["log_end_offset"]] == [
                theirs[at][name] for name in ("CURRENT-OFFSET", "LEADER-EPOCH", "OFFSET-LAG", "LOG-END-OFFSET")
            ]
        return len(ours)


def _tasks(assignments: str) -> tuple[str, str]:
    """Tasks and target tasks in the tool's last column: ACTIVE: 0:[0]; STANDBY: 1:[1]; TARGET-ACTIVE: 0:[0];"""
    tasks, _, target = assignments.removesuffix(";").partition("TARGET-")
    return tasks.rstrip("; "), target.replace("TARGET-", "")


def _offsets(broker: LiveBroker, group_id: str) -> Offsets:
    return {(each["topic"], each["partition"]): each["offset"] for each in broker.answers.offsets([group_id])[group_id]}


def _send(broker: LiveBroker, topic: str) -> None:
    broker.send(topic, [(at % 2, f"key {at}", "") for at in range(10)])


def _await_all_commits(broker: LiveBroker, app: StreamsApplication, records: int) -> None:
    """Wait until the application has committed so many records of its topic, and as many of the repartition topic."""

    def committed() -> dict[str, int]:
        offsets = _offsets(broker, app.group_id).items()
        return {name: sum(offset for at, offset in offsets if at[0] == name) for name in app.source_topics}

    expected = dict.fromkeys(app.source_topics, records)
    wait_until(lambda: committed() == expected, "it has not committed all", say=lambda: str(committed()))


def test_streams_groups_are_described_as_kafkas_tool_describes_them(
    kafka: KafkaJvm,
    tmp_path: Path,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members join and leave; offsets expire; one group is deleted, and one is removed with its last offset."""
    monkeypatch.setattr(section_state, "_PATIENCE_SECONDS", 0.0)
    with live_broker(kafka, tmp_path / "broker", more=f"{SETTINGS}{RETENTION}") as broker:
        for topic in ("words", "late-words", "other"):
            broker.create_topic(topic, 2)
        broker.commit("app", {("other", 0): 3})  # before there is a streams group
        answers = Answers(broker, tmp_path, settings, capsys)
        app = StreamsApplication(kafka, broker, tmp_path, "app", "words")
        late = StreamsApplication(kafka, broker, tmp_path, "late", "late-words", replication_factor="3")
        try:
            _send(broker, "words")
            late.start("only")
            late.settle("NotReady")  # one broker creates no topics with three replicas
            app.start("first")
            app.settle("Stable")
            _await_all_commits(broker, app, 10)
            assert answers.compare() == 4

            app.start("second")
            app.settle("Stable")
            _send(broker, "words")
            _await_all_commits(broker, app, 20)
            assert "(first: 'app': offsets: the brokers say {" in answers.difference()
            assert answers.compare() == 4
            members = [row for row in answers.described("--members") if row["group"] == "app"]
            assert ["STANDBY: 1:" in row["tasks"] for row in members] == [True, True]
            assert answers.due() == {("app", "other", 0, "R18d")}
            broker.answers.retain_offsets_for(1)
            wait_until(lambda: ("other", 0) not in _offsets(broker, "app"), "an offset does not expire")
            broker.answers.retain_offsets_for(FOREVER_MS)
            assert answers.compare() == 4
            assert len(_offsets(broker, "app")) == 4

            app.close("second")
            for topic in late.internal_topics:
                broker.create_topic(topic, 2)
            _send(broker, "late-words")
            app.settle("Stable")
            late.settle("Stable")
            _await_all_commits(broker, late, 10)
            assert answers.compare() == 8
        finally:
            app.close()
            late.close()
        app.settle("Empty")
        late.settle("Empty")
        assert answers.compare() == 0
        gone = {(name, *at, "R18d") for name in ("app", "late") for at in _offsets(broker, name)}
        assert answers.due() == gone | {(name, None, None, "R21") for name in ("app", "late")}

        broker.tool("--delete", "--group", "app", "--delete-all-internal-topics", program=TOOL)
        wait_until(lambda: not any(name.startswith("app-") for name in broker.topics()), "internal topics stay")
        assert answers.compare() == 0
        broker.answers.retain_offsets_for(1)
        wait_until(lambda: not broker.answers.groups()["groups"], "the group is not removed with its offsets")
        assert answers.compare() == 0
        _compare_records(broker, capsys)


def _compare_records(broker: LiveBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """All records are the same bytes when they are encoded again, and are dumped as Kafka dumps them."""
    record_types = set()
    for record in broker.log_records():
        assert record.key is not None
        key = decode_key(record.key)
        record_types.add(key.record_type)
        assert encode_key(key) == record.key
        if record.value is not None:
            assert encode_value(key.record_type, decode_value(key.record_type, record.value)) == record.value
    assert record_types >= RECORD_TYPES
    paths = sorted(map(str, broker.folder.glob("__consumer_offsets-*/*.log")))
    capsys.readouterr()
    assert main(["dump", *paths, "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    text = run_java(KAFKA_JARS, "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", ",".join(paths))
    dumped = batches_of(text.splitlines())
    assert sum(assert_same([row for row in rows if row["file"] == path], dumped[path]) for path in paths) > len(paths)
