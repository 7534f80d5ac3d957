"""A running broker's answers, by Kafka's Admin client."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from benchmarks.broker import read_loading
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from py4j.java_gateway import JavaGateway, JavaObject  # type: ignore[import-untyped]

TOPIC = "__consumer_offsets"
#: Settings of Kafka's clients in tests. By default they wait 100 ms before they ask again, and a description of groups
#: of two protocols takes two rounds.
QUICK_CLIENT = {"retry.backoff.ms": "5"}
_CLASSIC_LOADED = re.compile(
    r"\d+ INFO \[GroupMetadataManager brokerId=\d+\] Finished loading offsets and group metadata from "
    r"__consumer_offsets-(\d+) in "
)
_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.01

Answer = dict[str, Any]


def call_static(gateway: JavaGateway, name: str, method: str, parameter: JavaObject, argument: object) -> JavaObject:
    """Call a static method of a class that shares its name with another method: py4j may find only the other one.

    ``parameter`` is the class of its one parameter.
    """
    lang = gateway.jvm.java.lang
    types, values = gateway.new_array(lang.Class, 1), gateway.new_array(lang.Object, 1)
    types[0], values[0] = parameter, argument
    return lang.Class.forName(name).getMethod(method, types).invoke(None, values)


class Broker:
    """A running broker: its requests and answers."""

    def __init__(
        self,
        gateway: JavaGateway,
        admin: JavaObject,
        offsets_partitions: int,
        lines: Callable[[], list[str]],
        port: int,
        data: Path,
    ) -> None:
        self.gateway = gateway
        self.port = port
        self.data = data
        self._jvm = gateway.jvm
        self._admin = admin
        self._offsets_partitions = offsets_partitions
        self._lines = lines

    def wait_until_loaded(self, offsets_partitions: int) -> None:
        """Wait for its group coordinator. Raises BrokerError where that fails to load a log partition."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(_loaded(self._lines())) < offsets_partitions:
            assert time.monotonic() < deadline, self._lines()[-3:]
            time.sleep(_POLL_SECONDS)

    def groups(self) -> Answer:
        """All groups with their offsets, in the shape of a capture's oracle file, without assignments by topic id."""
        listed = {each.groupId(): each for each in self._admin.listGroups().all().get()}
        kinds = {group_id: str(each.type().get()) for group_id, each in listed.items()}
        described = self._descriptions(kinds, {group_id: each.protocol() for group_id, each in listed.items()})
        # a share group's offsets are no commits
        offsets = self.offsets([group_id for group_id, kind in kinds.items() if kind != "Share"])
        return {
            "groups": {
                group_id: {
                    "listed": True,
                    "list_type": kinds[group_id],
                    "list_state": str(each.groupState().get()),
                    "list_protocol_type": each.protocol(),
                    "partition_for_group": partition_for(group_id, self._offsets_partitions),
                    "describe": described[group_id],
                    "offsets": offsets.get(group_id, []),
                }
                for group_id, each in listed.items()
            }
        }

    def offsets(self, group_ids: list[str]) -> dict[str, list[Answer]]:
        """The committed offsets of groups."""
        if not group_ids:
            return {}
        everything = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec()
        found = self._admin.listConsumerGroupOffsets(dict.fromkeys(group_ids, everything)).all().get()
        return {group_id: _offsets(found[group_id]) for group_id in group_ids}

    def stable_offsets(self, group_id: str) -> list[tuple[str, int]]:
        """Topic and partition of each offset that a stable read returns; it leaves out unstable ones (R17)."""
        options = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(True)
        found = self._admin.listConsumerGroupOffsets(group_id, options).partitionsToOffsetAndMetadata().get()
        return [(each["topic"], each["partition"]) for each in _offsets(found)]

    def alter_offsets(self, group_id: str, offsets: dict[JavaObject, JavaObject]) -> None:
        """Commit offsets as the Admin client does. Raises Py4JJavaError."""
        self._admin.alterConsumerGroupOffsets(group_id, offsets).all().get()

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Log start and log end offset of each log partition."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        earliest, latest = (
            self._admin.listOffsets({self._partition(at): which for at in range(self._offsets_partitions)}).all().get()
            for which in (spec.earliest(), spec.latest())
        )
        return {
            at: (earliest[self._partition(at)].offset(), latest[self._partition(at)].offset())
            for at in range(self._offsets_partitions)
        }

    def offsets_since(self, time_ms: int) -> dict[int, int | None]:
        """Offset of the first record at or after a time in each log partition; None where no record is that young."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(time_ms)
        partitions = range(self._offsets_partitions)
        found = self._admin.listOffsets({self._partition(at): spec for at in partitions}).all().get()
        offsets = {at: found[self._partition(at)].offset() for at in partitions}
        return {at: None if offset == -1 else offset for at, offset in offsets.items()}

    def topics(self) -> set[str]:
        """The names of its topics."""
        return set(self._admin.listTopics().names().get())

    def address(self) -> str:
        """Host and port at which it listens."""
        node = self._admin.describeCluster().nodes().get().iterator().next()
        return f"{node.host()}:{node.port()}"

    def producers(self) -> dict[tuple[int, int], tuple[int, int | None, int | None]]:
        """By log partition and producer id: epoch, start of the open transaction, last marker's coordinator epoch."""
        partitions = [self._partition(at) for at in range(self._offsets_partitions)]
        described = self._admin.describeProducers(partitions).all().get()
        return {
            (at, each.producerId()): (
                each.producerEpoch(),
                each.currentTransactionStartOffset().getAsLong()
                if each.currentTransactionStartOffset().isPresent()
                else None,
                each.coordinatorEpoch().getAsInt() if each.coordinatorEpoch().isPresent() else None,
            )
            for at, partition in enumerate(partitions)
            for each in described[partition].activeProducers()
        }

    def _partition(self, log_partition: int) -> JavaObject:
        return self._jvm.org.apache.kafka.common.TopicPartition(TOPIC, log_partition)

    def _descriptions(self, kinds: dict[str, str], protocol_types: dict[str, str]) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        ask: dict[str, tuple[Callable[[list[str]], JavaObject], Callable[[JavaObject], Answer]]] = {
            "Share": (self._admin.describeShareGroups, _share_group),
            "Streams": (self._admin.describeStreamsGroups, _streams_group),
            "Classic": (self._admin.describeClassicGroups, _classic_group),
            "Consumer": (self._admin.describeConsumerGroups, _consumer_group),
        }
        for kind, (question, shape) in ask.items():
            group_ids = [
                group_id
                for group_id, of_kind in kinds.items()
                if kind == ("Consumer" if protocol_types[group_id] in {"", "consumer"} else of_kind)
            ]
            if group_ids:
                answers = question(group_ids).describedGroups()
                found |= {group_id: _answered(answers[group_id], shape) for group_id in group_ids}
        return found


def _loaded(lines: list[str]) -> set[int]:
    """The log partitions that the broker's group coordinator has loaded."""
    classic = {int(found[1]) for found in map(_CLASSIC_LOADED.match, lines) if found}
    return classic | read_loading(lines).records.keys()


def _answered(answer: JavaObject, shape: Callable[[JavaObject], Answer]) -> Answer:
    try:
        return shape(answer.get())
    except Py4JJavaError as error:
        # R1: lists show a misplaced group and the empty group id; newer requests refuse both
        for name in ("GroupIdNotFoundException", "InvalidGroupIdException"):
            if name in str(error):
                return {"error": name}
        raise


def _offsets(found: JavaObject) -> list[Answer]:
    return [
        {
            "topic": each.getKey().topic(),
            "partition": each.getKey().partition(),
            "offset": each.getValue().offset(),
            "leader_epoch": each.getValue().leaderEpoch().orElse(None),
            "metadata": each.getValue().metadata(),
        }
        for each in found.entrySet()
        if each.getValue() is not None
    ]


def _share_group(found: JavaObject) -> Answer:
    return {
        "state": str(found.groupState()),
        "group_epoch": found.groupEpoch(),
        "members": [_member(each.consumerId(), None, each.clientId(), each.host()) for each in found.members()],
    }


def _streams_group(found: JavaObject) -> Answer:
    return {
        "state": str(found.groupState()),
        "group_epoch": found.groupEpoch(),
        "members": [
            _member(each.memberId(), each.instanceId().orElse(None), each.clientId(), each.clientHost())
            for each in found.members()
        ],
    }


def _classic_group(found: JavaObject) -> Answer:
    return {
        "state": str(found.state()),
        "assignor": found.protocolData(),
        "members": [_consumer(each) for each in found.members()],
    }


def _consumer_group(found: JavaObject) -> Answer:
    return {
        "state": str(found.groupState()),
        "assignor": found.partitionAssignor(),
        "group_epoch": found.groupEpoch().orElse(None),
        "members": [_consumer(each) for each in found.members()],
    }


def _consumer(member: JavaObject) -> Answer:
    instance_id = member.groupInstanceId().orElse(None)
    assigned = [f"{held.topic()}-{held.partition()}" for held in member.assignment().topicPartitions()]
    return _member(member.consumerId(), instance_id, member.clientId(), member.host()) | {"assignment": assigned}


def _member(member_id: str, instance_id: str | None, client_id: str, host: str) -> Answer:
    return {"member_id": member_id, "instance_id": instance_id, "client_id": client_id, "host": host, "assignment": []}
