"""A real ZooKeeper, and a broker of 0.10 that keeps offsets in it, each in a JVM of its own."""

from __future__ import annotations

import io
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.broker import free_ports
from tests.kafka.brokers import FETCH_JARS
from tests.kafka.live_clients import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from offsets_pipeline.semantics.partition_state import TopicPartition

_Answer = TypeVar("_Answer")

ZOOKEEPER_JARS = Path(sys.prefix) / "zookeeper"
KAFKA_0_10_JARS = Path(sys.prefix) / "kafka-0.10"
_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.forceSync=no",
)
_PATIENCE_SECONDS = 60
_TOPIC_ALREADY_EXISTS = 36
_OFFSET_COMMIT, _OFFSET_FETCH, _CREATE_TOPICS = 8, 9, 19
_LOGGING = """
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
"""


def fetch_zookeeper() -> None:
    """Put the JARs where `make kafka` puts them, unless they are there."""
    for name, place in (("zookeeper", ZOOKEEPER_JARS), ("kafka-0.10", KAFKA_0_10_JARS)):
        subprocess.run([sys.executable, str(FETCH_JARS), "--into", str(place), name], check=True)


def run_java(jars: Path, *arguments: str) -> str:
    """Run a program of these JARs; returns what it writes to stdout."""
    done = subprocess.run(
        [_java(), *_JVM, "-cp", f"{jars}/*", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@contextmanager
def _running(log: Path, jars: Path, options: Sequence[str], port: int) -> Iterator[None]:
    """A JVM that listens at a port within a minute; ends with the block."""
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(
            [_java(), *_JVM, "-cp", f"{jars}/*", *options], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not _listens(port):
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class ZooKeeperServer:
    """A ZooKeeper on loopback. It may be started and stopped several times, and keeps its nodes."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        self.port, self.secure_port = free_ports(2)
        self._settings = folder / "zoo.cfg"
        self._settings.write_text(
            f"dataDir={folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\ntickTime=500\n"
            "maxClientCnxns=0\n" + more.format(secure_port=self.secure_port),
            encoding="utf-8",
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it in this block."""
        options = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(self._settings)]
        with _running(self.folder / "zookeeper.log", ZOOKEEPER_JARS, options, self.port):
            yield

    def newest_snapshot(self) -> Path:
        """The file with its nodes as of its last start."""
        return max((self.folder / "data" / "version-2").glob("snapshot.*"), key=lambda each: int(each.suffix[1:], 16))


class OldBroker:
    """Requests of old consumers to a broker of 0.10, over one connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.create_connection(("127.0.0.1", port), 30)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, and wait until the broker knows it."""
        body = struct.pack(">i", 1) + _text(topic) + struct.pack(">ihiii", partitions, 1, 0, 0, 10_000)

        def created() -> bool:
            answer = self._ask(_CREATE_TOPICS, body)
            assert _read(answer, ">i") == (1,)
            assert _read_text(answer) == topic
            return _read(answer, ">h")[0] in {0, _TOPIC_ALREADY_EXISTS}

        wait_until(created, "the broker created no topic")  # it listens before it has registered itself

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[tuple[str, int], int]:
        """OffsetCommit v0, which the broker writes to ZooKeeper; returns the error code by partition."""
        body = _text(group_id) + struct.pack(">i", len(offsets))
        for (topic, partition), offset in offsets.items():
            body += _text(topic) + struct.pack(">iiq", 1, partition, offset) + _text("")
        answer = self._ask(_OFFSET_COMMIT, body)
        return dict(_partitions(answer, lambda: _read(answer, ">h")[0]))

    def fetch(self, group_id: str, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """OffsetFetch v0, which the broker answers from ZooKeeper: offset and error code by partition."""
        body = _text(group_id) + struct.pack(">i", len(places))
        body += b"".join(_text(topic) + struct.pack(">ii", 1, partition) for topic, partition in places)
        answer = self._ask(_OFFSET_FETCH, body)

        def offset() -> tuple[int, int]:
            (found,) = _read(answer, ">q")
            _read_text(answer)
            return found, _read(answer, ">h")[0]

        return dict(_partitions(answer, offset))

    def _ask(self, api_key: int, body: bytes) -> io.BytesIO:
        request = struct.pack(">hhi", api_key, 0, 1) + _text("test") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._received(4))
        answer = io.BytesIO(self._received(size))
        assert _read(answer, ">i") == (1,)
        return answer

    def _received(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            assert part, "the broker closed the connection"
            found += part
        return found


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _read(answer: io.BytesIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, answer.read(struct.calcsize(form)))


def _read_text(answer: io.BytesIO) -> str:
    return answer.read(_read(answer, ">h")[0]).decode()


def _partitions(answer: io.BytesIO, read: Callable[[], _Answer]) -> Iterator[tuple[tuple[str, int], _Answer]]:
    for _ in range(_read(answer, ">i")[0]):
        topic = _read_text(answer)
        for _ in range(_read(answer, ">i")[0]):
            (partition,) = _read(answer, ">i")
            yield (topic, partition), read()


@contextmanager
def old_broker(folder: Path, zookeeper: str) -> Iterator[OldBroker]:
    """A broker of 0.10.2.2 that keeps all its metadata in this ZooKeeper."""
    (port,) = free_ports(1)
    settings, logging = folder / "server.properties", folder / "log4j.properties"
    settings.write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={folder}/logs\nzookeeper.connect={zookeeper}\n"
        "offsets.topic.replication.factor=1\nlog.cleaner.enable=false\nnum.network.threads=1\n",
        encoding="utf-8",
    )
    logging.write_text(_LOGGING, encoding="utf-8")
    options = [f"-Dlog4j.configuration=file:{logging}", "kafka.Kafka", str(settings)]
    with _running(folder / "broker.log", KAFKA_0_10_JARS, options, port):
        broker = OldBroker(port)
        try:
            yield broker
        finally:
            broker.close()
