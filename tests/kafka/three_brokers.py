"""Three brokers of one cluster, whose partition leaders a test moves, stops and kills.

Brokers 1, with the controller, and 2 run in the JVM of the clients. Broker 3 has a JVM of its own, so it can be killed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.broker import free_ports
from tests.kafka.broker_answers import TOPIC, Broker
from tests.kafka.brokers import KafkaJvm
from tests.kafka.live import LogRecord, places_in, records_in
from tests.kafka.live_clients import LiveClients, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

#: The broker that can be killed.
VICTIM = 3
_NODES = (1, 2, VICTIM)
_SETTINGS = """
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.num.partitions={offsets_partitions}
offsets.topic.replication.factor=3
offsets.retention.minutes=2147483647
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.leader.rebalance.enable=false
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=2000
replica.fetch.wait.max.ms=100
log.cleaner.enable=false
"""


class ThreeBrokers(LiveClients):
    """The cluster; each log partition has a replica on each broker."""

    def __init__(self, kafka: KafkaJvm, folder: Path, offsets_partitions: int) -> None:
        super().__init__(kafka, offsets_partitions)
        folder.mkdir()
        self._folder = folder
        self._victim: KafkaJvm | None = KafkaJvm(folder)
        self._ports = dict(zip(_NODES, free_ports(len(_NODES)), strict=True))
        (self._controller_port,) = free_ports(1)
        self._running: dict[int, JavaObject] = {}

    @property
    def address(self) -> str:
        """Value of bootstrap.servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def open(self) -> None:
        """Start the brokers, and wait until the coordinator answers."""
        for node in _NODES:
            self._jvm_of(node).format(self._settings(node))
            self.start(node)
        self.answers = Broker(
            self._kafka.gateway, self.connect(), self.offsets_partitions, list, self._ports[1], self.data(1)
        )
        self.answers.offsets(["any"])  # creates the topic
        wait_until(lambda: len(self.leaders()) == self.offsets_partitions, "no offsets topic")

    def close(self) -> None:
        """Stop everything."""
        self.close_clients()
        self.disconnect()
        for node in sorted(self._running, reverse=True):  # the controller last
            self.stop(node)
        if self._victim is not None:
            self._victim.close()

    def start(self, node: int) -> None:
        """Start a broker."""
        self._running[node] = self._jvm_of(node).started_with(self._settings(node))

    def stop(self, node: int) -> None:
        """Stop a broker in order: it hands its leaders over."""
        server = self._running.pop(node)
        server.shutdown()
        server.awaitShutdown()

    def kill(self) -> None:
        """End broker 3 at once (SIGKILL)."""
        assert self._victim is not None
        del self._running[VICTIM]
        self._victim.kill()
        self._victim = None

    def revive(self) -> None:
        """Start broker 3 in a new JVM on the data that its death left, and wait until its replicas are in sync."""
        self._victim = KafkaJvm(self._folder)
        self.start(VICTIM)
        wait_until(
            lambda: all(self.in_sync(at) == self.replicas(at) for at in range(self.offsets_partitions)),
            "the replicas are not in sync",
        )

    def data(self, node: int) -> Path:
        """The data folder of a broker."""
        return self._folder / f"broker-{node}"

    def leaders(self) -> dict[int, int | None]:
        """The leader of each log partition; None if it has none."""
        found = self._admin.describeTopics([TOPIC]).allTopicNames().get()[TOPIC].partitions()
        return {each.partition(): None if each.leader() is None else each.leader().id() for each in found}

    def in_sync(self, log_partition: int) -> set[int]:
        """The replicas of a log partition that are in sync."""
        found = self._admin.describeTopics([TOPIC]).allTopicNames().get()[TOPIC].partitions()
        return {each.id() for each in found[log_partition].isr()}

    def replicas(self, log_partition: int) -> set[int]:
        """The brokers with a replica of a log partition."""
        found = self._admin.describeTopics([TOPIC]).allTopicNames().get()[TOPIC].partitions()
        return {each.id() for each in found[log_partition].replicas()}

    def place(self, replicas: Mapping[int, Sequence[int]]) -> None:
        """Give log partitions these replicas, and let the first of each lead."""
        kafka = self._jvm.org.apache.kafka
        optional, reassignment = self._jvm.java.util.Optional, kafka.clients.admin.NewPartitionReassignment
        partitions = {at: kafka.common.TopicPartition(TOPIC, at) for at in replicas}
        wanted = {partitions[at]: optional.of(reassignment(list(nodes))) for at, nodes in replicas.items()}
        self._admin.alterPartitionReassignments(wanted).all().get()
        wait_until(
            lambda: (
                not self._admin.listPartitionReassignments().reassignments().get()
                and all(self.in_sync(at) == set(nodes) for at, nodes in replicas.items())
            ),
            "the replicas are not in sync",
        )
        self._admin.electLeaders(kafka.common.ElectionType.PREFERRED, set(partitions.values())).partitions().get()
        first = {at: nodes[0] for at, nodes in replicas.items()}
        wait_until(lambda: first.items() <= self.leaders().items(), "the leaders did not move")

    def log_places(self, node: int | None = None) -> list[tuple[int, int]]:
        """Log partition and record offset of each record in a broker's segment files; by default in each leader's."""
        leaders = self.leaders()
        return sorted(
            place
            for each in self._running
            for place in places_in(self.data(each))
            if each == (leaders[place[0]] if node is None else node)
        )

    def log_records(self) -> list[LogRecord]:
        """Each record of the log, control records too. Waits until all brokers have the same segment files."""
        wait_until(lambda: len({tuple(records_in(self.data(each))) for each in self._running}) == 1, "replicas differ")
        return records_in(self.data(1))

    def _jvm_of(self, node: int) -> KafkaJvm:
        if node != VICTIM:
            return self._kafka
        assert self._victim is not None
        return self._victim

    def _settings(self, node: int) -> Path:
        path = self._folder / f"broker-{node}.properties"
        text = _SETTINGS.format(
            node=node,
            data=self.data(node),
            controller_port=self._controller_port,
            offsets_partitions=self.offsets_partitions,
        )
        listener, controller = f"PLAINTEXT://127.0.0.1:{self._ports[node]}", ""
        if node == 1:
            controller = f",CONTROLLER://127.0.0.1:{self._controller_port}"
        roles = "broker,controller" if controller else "broker"
        path.write_text(f"{text}process.roles={roles}\nlisteners={listener}{controller}\n", encoding="utf-8")
        return path


@contextmanager
def three_brokers(kafka: KafkaJvm, folder: Path, offsets_partitions: int) -> Iterator[ThreeBrokers]:
    """A cluster that is running, with an empty offsets log."""
    cluster = ThreeBrokers(kafka, folder, offsets_partitions)
    cluster.open()
    try:
        yield cluster
    finally:
        cluster.close()
