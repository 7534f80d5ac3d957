"""A real Kafka broker on loopback, on the segment files that a test gives it, and its own answers about them.

Brokers run one after the other in one JVM, whose classes the second finds loaded and compiled: it is up in a fifth of a
second, where a JVM of its own takes five. Questions go through Kafka's Admin client in the same JVM.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    JavaObject,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from benchmarks.broker import CLUSTER_ID, KAFKA_JARS, LOGGING, SETTINGS, free_ports, read_loading, replace_segments
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOPIC = "__consumer_offsets"
_FETCH_JARS = Path(__file__).parents[2] / "scripts" / "fetch_jars.py"
# Nothing is to happen while a test asks: no offset expires, and nobody looks for such.
_MORE_SETTINGS = {
    "offsets.retention.minutes": 2147483647,
    "offsets.retention.check.interval.ms": 86400000,
    "group.initial.rebalance.delay.ms": 0,
}
_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.01

Answer = dict[str, Any]


def fetch_kafka() -> None:
    """Put the JARs where `make kafka` puts them, unless they are there."""
    subprocess.run([sys.executable, str(_FETCH_JARS), "--into", str(KAFKA_JARS), "kafka"], check=True)


class KafkaJvm:
    """A JVM with Kafka's JARs, for brokers that run one after the other below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "brokers.log"
        self._output = self._log.open("w", encoding="utf-8", buffering=1)
        logging = folder / "log4j2.properties"
        logging.write_text(LOGGING, encoding="utf-8")
        pyspark = importlib.util.find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        (py4j,) = (Path(pyspark.origin).parent / "jars").glob("py4j-*.jar")
        port = launch_gateway(
            classpath=f"{py4j}:{KAFKA_JARS}/*",
            jarpath=str(py4j),
            javaopts=[
                *("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"),
                f"-Dlog4j2.configurationFile={logging}",
            ],
            die_on_exit=True,
            redirect_stdout=self._output,
            redirect_stderr=self._output,
        )
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._made: dict[int, Path] = {}

    def close(self) -> None:
        """End the JVM."""
        self.gateway.shutdown()
        self._output.close()

    def csv(self, columns: list[str], rows: list[dict[str, str | int]]) -> str:
        """Rows as Jackson writes them, which Kafka's programs write and read CSV with."""
        jackson = self.gateway.jvm.com.fasterxml.jackson.dataformat.csv
        schema = jackson.CsvSchema.builder()
        for name in columns:
            schema = schema.addColumn(name)
        writer = jackson.CsvMapper().writer(schema.build())
        return "".join(writer.writeValueAsString(row) for row in rows)

    @contextmanager
    def broker(
        self, segments: Path | None, offsets_partitions: int, settings: Mapping[str, object] | None = None
    ) -> Iterator[Broker]:
        """A broker whose `__consumer_offsets` are these: folders of log partitions with segment files; None: empty.

        It has loaded them all, and has no other topic. ``settings`` override the defaults, with which the broker
        changes nothing by itself. Raises BrokerError if it cannot load one.
        """
        folder = self._folder / "broker"
        shutil.copytree(self._with_log(offsets_partitions), folder)
        try:
            if segments is not None:
                replace_segments(segments, folder, offsets_partitions)
            with self._running(folder, offsets_partitions, settings or {}) as running:
                running.wait_until_loaded(offsets_partitions)
                yield running
        finally:
            shutil.rmtree(folder)

    def _with_log(self, offsets_partitions: int) -> Path:
        """The data folder of a stopped broker that has made its offsets log."""
        if offsets_partitions not in self._made:
            folder = self._folder / f"with-{offsets_partitions}"
            settings = self._settings(folder, offsets_partitions, *free_ports(2), settings={})
            arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(settings)]
            java = self.gateway.new_array(self.gateway.jvm.String, len(arguments))
            for index, argument in enumerate(arguments):
                java[index] = argument
            nowhere = self.gateway.jvm.java.io.PrintStream(self.gateway.jvm.java.io.OutputStream.nullOutputStream())
            assert self.gateway.jvm.kafka.tools.StorageTool.execute(java, nowhere) == 0
            with self._running(folder, offsets_partitions, {}) as running:
                running.offsets(["any"])  # who asks for a group's coordinator has the log made
                running.wait_until_loaded(offsets_partitions)
            self._made[offsets_partitions] = folder
        return self._made[offsets_partitions]

    @contextmanager
    def _running(self, data: Path, offsets_partitions: int, settings: Mapping[str, object]) -> Iterator[Broker]:
        port, controller_port = free_ports(2)
        before = len(self.lines())
        server = self.started(data, offsets_partitions, port, controller_port, settings)
        try:
            admin = self.gateway.jvm.org.apache.kafka.clients.admin.Admin.create(
                {"bootstrap.servers": f"127.0.0.1:{port}"}
            )
            try:
                yield Broker(self.gateway, admin, offsets_partitions, lambda: self.lines()[before:], port, data)
            finally:
                admin.close()
        finally:
            server.shutdown()
            server.awaitShutdown()

    def started(
        self, data: Path, offsets_partitions: int, port: int, controller_port: int, settings: Mapping[str, object]
    ) -> JavaObject:
        """Start a broker on these ports and this data; the caller stops it."""
        path = self._settings(data, offsets_partitions, port, controller_port, settings=settings)
        kafka = self.gateway.jvm.org.apache.kafka
        properties = kafka.common.utils.Utils.loadProps(str(path))
        server = self.gateway.jvm.kafka.server.KafkaRaftServer(
            self.gateway.jvm.kafka.server.KafkaConfig.fromProps(properties), kafka.common.utils.Time.SYSTEM
        )
        server.startup()
        return server

    def copy_with_log(self, folder: Path, offsets_partitions: int) -> None:
        """Make a data folder of a stopped broker that has an offsets log, an empty one."""
        shutil.copytree(self._with_log(offsets_partitions), folder)

    def _settings(
        self, data: Path, offsets_partitions: int, port: int, controller_port: int, *, settings: Mapping[str, object]
    ) -> Path:
        path = self._folder / "server.properties"
        text = SETTINGS.format(
            port=port, controller_port=controller_port, data=data, offsets_partitions=offsets_partitions
        )
        more = "".join(f"{name}={value}\n" for name, value in {**_MORE_SETTINGS, **settings}.items())
        path.write_text(text + more, encoding="utf-8")
        return path

    def lines(self) -> list[str]:
        """The brokers' log lines so far."""
        return self._log.read_text(encoding="utf-8").splitlines()


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
        while len(read_loading(self._lines()).records) < offsets_partitions:
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


def _answered(answer: JavaObject, shape: Callable[[JavaObject], Answer]) -> Answer:
    try:
        return shape(answer.get())
    except Py4JJavaError as error:
        # R1: one that is misplaced is listed; so is one of the empty name, which nobody may ask for in newer ways
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
