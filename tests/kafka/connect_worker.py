"""A real Connect worker with its file connectors, in the JVM of the brokers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.broker import free_ports
from tests.kafka.live_clients import wait_until
from tests.rest_client import RestClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker


@contextmanager
def connect_worker(kafka: KafkaJvm, broker: LiveBroker) -> Iterator[RestClient]:
    """A distributed worker on loopback that has joined its group."""
    (port,) = free_ports(1)
    converter = "org.apache.kafka.connect.storage.StringConverter"
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "workers",
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": converter,
        "value.converter": converter,
        "offset.flush.interval.ms": "200",
        "offset.storage.partitions": "5",
        "scheduled.rebalance.max.delay.ms": "0",
        "plugin.discovery": "service_load",
        **{f"{each}.storage.topic": f"connect-{each}" for each in ("offset", "status", "config")},
        **{f"{each}.storage.replication.factor": "1" for each in ("offset", "status", "config")},
    }
    arguments = kafka.gateway.new_array(kafka.gateway.jvm.String, 0)
    worker = kafka.gateway.jvm.org.apache.kafka.connect.cli.ConnectDistributed(arguments).startConnect(settings)
    try:
        client = RestClient(f"127.0.0.1:{port}")
        wait_until(lambda: client.send("GET", "/health").status == 200, "the worker has joined its group")
        yield client
    finally:
        worker.stop()
        worker.awaitStop()
