"""A real broker that lives through a test: started, stopped, started again on its port, and consumed from."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.broker import free_ports
from offsets_pipeline.kafka.record.segment import read_segment
from tests.kafka.broker_answers import TOPIC, Broker
from tests.kafka.live_clients import Consumer, LiveClients, Transaction, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    from tests.kafka.brokers import KafkaJvm

#: Settings of a broker that also listens for who says a password: user me, password open-sesame, who may do nothing.
SASL = """
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_me="open-sesame";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class LiveBroker(LiveClients):
    """A broker of one node with its own data folder; `start` and `stop` may follow each other.

    ``server`` is the JVM in which it runs, if not that of its clients.
    """

    def __init__(
        self,
        kafka: KafkaJvm,
        folder: Path,
        offsets_partitions: int,
        more: str = "",
        server: KafkaJvm | None = None,
    ) -> None:
        super().__init__(kafka, offsets_partitions)
        self._runs_in = server or kafka
        self.folder = folder
        self.port, self._controller_port, self.sasl_port = free_ports(3)
        more = more.format(port=self.port, controller_port=self._controller_port, sasl_port=self.sasl_port)
        self._settings = dict(line.split("=", 1) for line in more.splitlines() if line)
        self._server: JavaObject = None
        self._runs_in.copy_with_log(folder, offsets_partitions)

    @property
    def address(self) -> str:
        """Value of bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        before = len(self._runs_in.lines())
        self._server = self._runs_in.started(
            self.folder, self.offsets_partitions, self.port, self._controller_port, self._settings
        )
        self.answers = Broker(
            self._kafka.gateway,
            self.connect(),
            self.offsets_partitions,
            lambda: self._runs_in.lines()[before:],
            self.port,
            self.folder,
            self._server,
        )
        self.answers.wait_until_loaded(self.offsets_partitions)

    def stop(self) -> None:
        """Stop it in order; clients that are open see it go."""
        if self._server is not None:
            self.disconnect()
            self._server.shutdown()
            self._server.awaitShutdown()
            self._server = None

    def upgrade(self, server: KafkaJvm) -> None:
        """Start it in another JVM, with its data; it is stopped."""
        assert self._server is None
        self._runs_in = server
        self.start()

    def close(self) -> None:
        """Stop its clients and it."""
        self.close_clients()
        self.stop()

    def log_places(self, topic: str = TOPIC) -> list[tuple[int, int]]:
        """Log partition and record offset of each record in the broker's segment files, control records too."""
        return [(each.log_partition, each.record_offset) for each in self.log_records(topic)]

    def log_records(self, topic: str = TOPIC) -> list[LogRecord]:
        """Each record in the broker's segment files, control records too."""
        self.wait_for_markers()
        return records_in(self.folder, topic)


def places_in(folder: Path, topic: str = TOPIC) -> list[tuple[int, int]]:
    """Log partition and record offset of each record in the segment files of a broker's data folder."""
    return [(each.log_partition, each.record_offset) for each in records_in(folder, topic)]


@dataclass(frozen=True)
class LogRecord:
    """A record of the log with all that a broker stores of it; producer ids of transactions only."""

    log_partition: int
    record_offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    producer_id: int | None
    producer_epoch: int | None
    control_type: str | None


def records_in(folder: Path, topic: str = TOPIC) -> list[LogRecord]:
    """Each record in the segment files of a broker's data folder, control records too."""
    found = []
    for of_partition in folder.glob(f"{topic}-*"):
        number = of_partition.name.rpartition("-")[2]
        if not number.isdigit():  # a deleted topic's folders are renamed
            continue
        for file in of_partition.glob("*.log"):
            for batch in read_segment(file.read_bytes(), source=str(file)).batches():
                times = batch["record_timestamp"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
                for row, timestamp_us in zip(batch.to_pylist(), times, strict=True):
                    found.append(
                        LogRecord(
                            int(number),
                            row["record_offset"],
                            timestamp_us,
                            row["key"],
                            row["value"],
                            row["producer_id"],
                            row["producer_epoch"],
                            row["control_type"],
                        )
                    )
    return sorted(found, key=lambda each: (each.log_partition, each.record_offset))


@contextmanager
def live_broker(
    kafka: KafkaJvm,
    folder: Path,
    offsets_partitions: int = 5,
    more: str = "",
    server: KafkaJvm | None = None,
) -> Iterator[LiveBroker]:
    """A broker that is running, with an empty offsets log; ``more`` are settings, with ports to be put in."""
    broker = LiveBroker(kafka, folder, offsets_partitions, more, server)
    broker.start()
    try:
        yield broker
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["TOPIC", "Consumer", "LiveBroker", "Transaction", "live_broker", "wait_until"]
