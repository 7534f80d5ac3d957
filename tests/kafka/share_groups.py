"""Share groups of a live broker: what consumers do to their share partitions, and what Kafka's own tools say of these.

Run as a program, it makes the capture `4.2.0-share-state`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.broker import KAFKA_JARS
from tests.kafka.brokers import KafkaJvm
from tests.kafka.live import LiveBroker, live_broker, wait_until

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

TOPIC = "__share_group_state"
#: A snapshot comes after every third update, in place of every five hundredth.
SETTINGS = """
share.coordinator.state.topic.num.partitions=3
share.coordinator.snapshot.update.records.per.snapshot=3
group.share.delivery.count.limit=3
"""
_COMMAND = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_DUMP = "kafka.tools.DumpLogSegments"
_DUMPED = re.compile(r"^\| offset: (?P<offset>\d+) .* key: (?P<key>\{.*\}) payload: (?P<payload>.*)$")


def run_tool(name: str, *arguments: str) -> str:
    """The output of one of Kafka's programs."""
    command = ["java", "-cp", f"{KAFKA_JARS}/*", name, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def described_offsets(address: str) -> list[dict[str, Any]]:
    """What `kafka-share-groups.sh --describe --offsets --all-groups --verbose` prints."""
    return _described(address, "--offsets")


def described_states(address: str) -> list[tuple[str, str, int, int, int]]:
    """Group, state, epochs and number of members, as `kafka-share-groups.sh --describe --state --verbose` prints."""
    return sorted(
        (row["GROUP"], row["STATE"], int(row["GROUP-EPOCH"]), int(row["ASSIGNMENT-EPOCH"]), int(row["#MEMBERS"]))
        for row in _described(address, "--state")
    )


def _described(address: str, what: str) -> list[dict[str, Any]]:
    """The rows of all groups. The column of the coordinator has a blank in its name, and in its values."""
    arguments = ["--bootstrap-server", address, "--describe", what, "--all-groups", "--verbose"]
    lines = [line.split() for line in run_tool(_COMMAND, *arguments).splitlines() if line.strip()]
    header = next((line for line in lines if line[0] == "GROUP"), [])
    return [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header) and line[0] != "GROUP"]


def log_ends(address: str, *topics: str) -> dict[str, int]:
    """The log end of partition 0 of topics, as `kafka-get-offsets.sh` prints it."""
    arguments = ["--bootstrap-server", address, "--topic-partitions", ",".join(f"{name}:0" for name in topics)]
    lines = (line.split(":") for line in run_tool("org.apache.kafka.tools.GetOffsetShell", *arguments).split())
    return {name: int(end) for name, _, end in lines}


def dumped(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of the log partitions below a folder, as Kafka's dump tool decodes them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(folder.glob(f"{TOPIC}-*")):
        text = run_tool(
            _DUMP, "--share-group-state-decoder", "--files", ",".join(str(file) for file in sorted(each.glob("*.log")))
        )
        records = filter(None, map(_DUMPED.match, text.splitlines()))
        found[each.name] = [
            {
                "offset": int(record["offset"]),
                "key": json.loads(record["key"]),
                "value": None if record["payload"] == "<DELETE>" else json.loads(record["payload"]),
            }
            for record in records
        ]
    return found


class ShareConsumer:
    """A member of a share group that acknowledges each record by itself."""

    def __init__(self, kafka: KafkaJvm, address: str, group_id: str, topic: str) -> None:
        self._clients = kafka.gateway.jvm.org.apache.kafka.clients
        self._seconds = kafka.gateway.jvm.java.time.Duration.ofMillis
        self._consumer: JavaObject = self._clients.consumer.KafkaShareConsumer(
            {
                "bootstrap.servers": address,
                "group.id": group_id,
                "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
                "value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
                "share.acknowledgement.mode": "explicit",
            }
        )
        self._consumer.subscribe([topic])

    def acknowledge(self, how: dict[int, str], *, until: int) -> None:
        """Answer deliveries up to a record offset of each partition: by offset ACCEPT, RELEASE or REJECT.

        Records without an answer here are accepted. A record that was released comes again, and is accepted then.
        """
        types = self._clients.consumer.AcknowledgeType
        answered: set[int] = set()

        def is_done() -> bool:
            records = self._consumer.poll(self._seconds(500)).iterator()
            while records.hasNext():
                record = records.next()
                kind = "ACCEPT" if record.offset() in answered else how.get(record.offset(), "ACCEPT")
                self._consumer.acknowledge(record, getattr(types, kind))
                answered.add(record.offset())
            self._consumer.commitSync()
            return until in answered

        wait_until(is_done, f"no record {until} was delivered: {answered}")

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def share_and_reset(kafka: KafkaJvm, broker: LiveBroker) -> None:
    """Groups that accept, release and reject; one is reset, one deleted, one has a share partition deleted."""
    for name in ("orders", "gone"):
        broker.create_topic(name, 1)
        broker.send(name, [(0, f"key {at}", f"value {at}") for at in range(20)])
    for group_id in ("mixed", "reset", "deleted", "left"):
        broker.set_group(group_id, share_auto_offset_reset="earliest")
    mixed = ShareConsumer(kafka, broker.address, "mixed", "orders")
    mixed.acknowledge(dict.fromkeys((3, 4, 9), "RELEASE") | dict.fromkeys((7, 8), "REJECT"), until=19)
    for start in range(20, 60, 8):  # each answer is an update, or the snapshot after three of them
        broker.send("orders", [(0, f"key {at}", f"value {at}") for at in range(start, start + 8)])
        mixed.acknowledge({start + 1: "RELEASE", start + 2: "REJECT", start + 5: "RELEASE"}, until=start + 7)
    mixed.close()
    for group_id in ("reset", "deleted", "left"):
        member = ShareConsumer(kafka, broker.address, group_id, "gone" if group_id == "left" else "orders")
        member.acknowledge({2: "REJECT"}, until=19)
        member.close()
    wait_until(lambda: _are_empty(broker), "a group has members")
    tool = ["--bootstrap-server", broker.address]
    reset("reset", broker.address)
    run_tool(_COMMAND, *tool, "--delete", "--group", "deleted")
    run_tool(_COMMAND, *tool, "--delete-offsets", "--group", "left", "--topic", "gone")


def reset(group_id: str, address: str) -> None:
    """Reset a group that has no members, or that does not exist: then the broker makes it."""
    tool = ["--bootstrap-server", address, "--reset-offsets", "--group", group_id]
    run_tool(_COMMAND, *tool, "--topic", "orders", "--to-earliest", "--execute")


def leave_open(kafka: KafkaJvm, broker: LiveBroker) -> None:
    """A group whose records have all delivery states that are persisted, and a start offset before them."""
    broker.set_group("open", share_auto_offset_reset="earliest")
    first = ShareConsumer(kafka, broker.address, "open", "gone")
    first.acknowledge({0: "RELEASE", 5: "REJECT", 6: "REJECT", 11: "RELEASE", 12: "RELEASE"}, until=19)
    first.close()


def _are_empty(broker: LiveBroker) -> bool:
    return all(each["list_state"] == "Empty" for each in broker.answers.groups()["groups"].values())


def record(to: Path) -> None:
    """Make the capture in a folder that does not exist."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = KafkaJvm(Path(folder))
        try:
            with live_broker(kafka, Path(folder) / "broker", more=SETTINGS) as broker:
                share_and_reset(kafka, broker)
                leave_open(kafka, broker)
                answers = {
                    "described": described_offsets(broker.address),
                    "topic_ids": {name: broker.topic_id(name) for name in ("orders", "gone")},
                    "log_ends": log_ends(broker.address, "orders", "gone"),
                }
                for each in sorted(broker.folder.glob(f"{TOPIC}-*")):
                    for file in each.glob("*.log"):
                        place = to / "segments" / each.name / file.name
                        place.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, place)
                answers["records"] = dumped(to / "segments")
                (to / "share_groups.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
        finally:
            kafka.close()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
