"""A real Kafka broker on loopback, on the segment files that a test gives it, and its own answers about them.

Brokers run in one JVM, whose classes the second finds loaded and compiled: it is up in a fifth of a second, where a JVM
of its own takes five. Questions go through Kafka's Admin client in the same JVM.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    JavaObject,
    launch_gateway,
)
from pyspark import SparkContext
from pyspark.errors.exceptions import captured
from pyspark.errors.exceptions.captured import CapturedException, UnknownException

from benchmarks.broker import (
    CLUSTER_ID,
    KAFKA_JARS,
    LOGGING,
    SETTINGS,
    SPARK_KAFKA_JARS,
    free_ports,
    replace_segments,
)
from tests.kafka.broker_answers import QUICK_CLIENT, Broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FETCH_JARS = Path(__file__).parents[2] / "scripts" / "fetch_jars.py"
_KAFKA_3_9_JARS = Path(sys.prefix) / "kafka-3.9"
_CONNECT_JARS = Path(sys.prefix) / "connect"
#: Class path of a broker of 4.2, of its clients and of a Connect worker.
KAFKA_4_2 = f"{KAFKA_JARS}/*:{_CONNECT_JARS}/*"
# Messages of the classic group coordinator, which brokers up to 3.9 have.
_CLASSIC_LOGGING = """
logger.classic.name = kafka.coordinator.group.GroupMetadataManager
logger.classic.level = info
"""
# The broker changes nothing while a test asks: no offset expires, and no check for expired offsets runs.
_MORE_SETTINGS = {
    "offsets.retention.minutes": 2147483647,
    "offsets.retention.check.interval.ms": 86400000,
    "group.initial.rebalance.delay.ms": 0,
}


def fetch_kafka() -> None:
    """Put the JARs where `make kafka` puts them, unless they are there."""
    for name, place in (
        ("kafka", KAFKA_JARS),
        ("kafka-tools", KAFKA_JARS),
        ("kafka-streams", KAFKA_JARS),
        ("kafka-3.9", _KAFKA_3_9_JARS),
        ("connect", _CONNECT_JARS),
        ("spark-kafka", SPARK_KAFKA_JARS),
    ):
        subprocess.run([sys.executable, str(FETCH_JARS), "--into", str(place), name], check=True)


def kafka_3_9() -> str:
    """Class path of a broker of 3.9: its own modules, and the libraries of 4.2."""
    libraries = sorted(str(each) for each in KAFKA_JARS.glob("*.jar") if not each.name.startswith("kafka"))
    return ":".join([f"{_KAFKA_3_9_JARS}/*", *libraries])


_convert_exception = captured.convert_exception


def _convert_exception_of_spark(e: JavaObject) -> CapturedException:
    """Leave an exception of a broker's JVM as it is.

    pyspark converts all exceptions of py4j, and asks Spark's JVM what the object is. Another object may have its id
    there. So the end of a loop over a Java collection, an exception for py4j, became the error of an earlier query.
    """
    gateway = SparkContext._gateway
    if gateway is not None and e._gateway_client is gateway._gateway_client:
        return _convert_exception(e)
    return UnknownException(desc="an exception of another JVM", stackTrace="")


captured.convert_exception = _convert_exception_of_spark


class KafkaJvm:
    """A JVM with Kafka's JARs, for brokers whose data lie below a folder."""

    def __init__(self, folder: Path, class_path: str = KAFKA_4_2) -> None:
        self._folder = folder
        self._log = folder / "brokers.log"
        self._output = self._log.open("w", encoding="utf-8", buffering=1)
        logging = folder / "log4j2.properties"
        logging.write_text(LOGGING + _CLASSIC_LOGGING, encoding="utf-8")
        pyspark = importlib.util.find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        (py4j,) = (Path(pyspark.origin).parent / "jars").glob("py4j-*.jar")
        port, self._process = launch_gateway(
            classpath=f"{py4j}:{class_path}",
            jarpath=str(py4j),
            javaopts=[
                *("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"),
                f"-Dlog4j2.configurationFile={logging}",
            ],
            die_on_exit=True,
            redirect_stdout=self._output,
            redirect_stderr=self._output,
            return_proc=True,
        )
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._made: dict[int, Path] = {}

    def close(self) -> None:
        """End the JVM."""
        self.gateway.shutdown()
        self._await_end()

    def kill(self) -> None:
        """End the JVM at once (SIGKILL), with the brokers in it."""
        self.gateway.shutdown()  # so that no object of it is released later, over a lost connection
        self._process.kill()
        self._await_end()

    def _await_end(self) -> None:
        self._process.stdin.close()  # also ends a JVM that still runs
        self._process.wait()
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
        folder = Path(tempfile.mkdtemp(prefix="broker-", dir=self._folder))  # other brokers may run beside it
        shutil.copytree(self._with_log(offsets_partitions), folder, dirs_exist_ok=True)
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
            self.format(settings)
            with self._running(folder, offsets_partitions, {}) as running:
                running.offsets(["any"])  # who asks for a group's coordinator has the log made
                running.wait_until_loaded(offsets_partitions)
            self._made[offsets_partitions] = folder
        return self._made[offsets_partitions]

    def format(self, settings: Path) -> None:
        """Make the data folder of a node with these settings."""
        arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(settings)]
        java = self.gateway.new_array(self.gateway.jvm.String, len(arguments))
        for index, argument in enumerate(arguments):
            java[index] = argument
        nowhere = self.gateway.jvm.java.io.PrintStream(self.gateway.jvm.java.io.OutputStream.nullOutputStream())
        assert self.gateway.jvm.kafka.tools.StorageTool.execute(java, nowhere) == 0

    @contextmanager
    def _running(self, data: Path, offsets_partitions: int, settings: Mapping[str, object]) -> Iterator[Broker]:
        port, controller_port = free_ports(2)
        before = len(self.lines())
        server = self.started(data, offsets_partitions, port, controller_port, settings)
        try:
            admin = self.gateway.jvm.org.apache.kafka.clients.admin.Admin.create(
                {"bootstrap.servers": f"127.0.0.1:{port}", **QUICK_CLIENT}
            )
            try:
                yield Broker(self.gateway, admin, offsets_partitions, lambda: self.lines()[before:], port, data, server)
            finally:
                admin.close()
        finally:
            server.shutdown()
            server.awaitShutdown()

    def started(
        self, data: Path, offsets_partitions: int, port: int, controller_port: int, settings: Mapping[str, object]
    ) -> JavaObject:
        """Start a broker on these ports and this data; the caller stops it."""
        return self.started_with(self._settings(data, offsets_partitions, port, controller_port, settings=settings))

    def started_with(self, settings: Path) -> JavaObject:
        """Start a node with these settings, on a formatted data folder; the caller stops it."""
        kafka = self.gateway.jvm.org.apache.kafka
        properties = kafka.common.utils.Utils.loadProps(str(settings))
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
