"""Measures the time in which a real Kafka broker loads a log of `generate.py`: the baseline of a reload.

    python benchmarks/broker.py --commits 1000000 --records-per-batch 10

The broker is one KRaft node on loopback, with a heap of 768 MB, the JVM options of Kafka's own start script, and
default settings except for one replica of each topic. It creates `__consumer_offsets` and stops; the generated segments
replace the empty ones. The first start is not measured: it rebuilds the indexes and warms the page cache. Each start
after that is measured, in a new JVM.

The time comes from the broker's log: from the first partition that is scheduled to the last that is loaded.
`make kafka` fetches the JARs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from benchmarks.generate import add_shape_options, generate, shape_of
from benchmarks.log_content import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KAFKA_JARS = Path(sys.prefix) / "kafka"
#: JARs of Spark's own Kafka source.
SPARK_KAFKA_JARS = Path(sys.prefix) / "spark-kafka"

#: Of servers on loopback; Linux gives 32768 and those above to outgoing connections.
_PORTS = range(20_000, 32_768)
_HANDED_OUT: set[int] = set()

_JVM = (
    # The heap, then what kafka-run-class.sh says by default.
    *("-Xms768m", "-Xmx768m"),
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
#: server.properties of a broker on loopback; to be formatted.
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.num.partitions={offsets_partitions}
offsets.topic.replication.factor=1
offsets.retention.minutes=52560000
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
#: Log4j's configuration; milliseconds since 1970, then the message: no zone, no clock change in between.
LOGGING = """
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{UNIX_MILLIS} %p %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.loading.name = org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime
logger.loading.level = info
"""
_SCHEDULED = re.compile(
    r"(\d+) INFO \[GroupCoordinator id=\d+\] Scheduling loading of metadata from __consumer_offsets-"
)
_FINISHED = re.compile(
    r"(\d+) INFO \[GroupCoordinator id=\d+\] Finished loading of metadata from __consumer_offsets-(\d+) with epoch \d+ "
    r"in .* Loaded (\d+) records which total to \d+ bytes\."
)
_FAILED = re.compile(r"\d+ ERROR \[GroupCoordinator id=\d+\] (Failed to load metadata from __consumer_offsets-.*)")

#: Of a new broker.
CLUSTER_ID = "b2Zmc2V0cy1waXBlbGluZQ"  # any 16 bytes in base64
_PATIENCE_SECONDS = 600  # for any one step
_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10
_FIND_COORDINATOR = 10  # the API's key


class BrokerError(Exception):
    """The broker cannot be measured; the message is one line with the reason."""


@dataclass(frozen=True)
class Loading:
    """A load, from a broker's log: the number of records by loaded log partition.

    ``started_ms`` is the time at which the first one was scheduled, ``ended_ms`` that at which the last one finished;
    None if there was none.
    """

    records: dict[int, int]
    started_ms: int | None
    ended_ms: int | None

    @property
    def seconds(self) -> float:
        """Seconds from the first line to the last."""
        if self.started_ms is None or self.ended_ms is None:
            raise BrokerError("the broker loaded no partition of __consumer_offsets")
        return (self.ended_ms - self.started_ms) / 1000


def read_loading(lines: Iterable[str]) -> Loading:
    """Read the lines of a load in a broker's log; skips all other lines.

    Raises:
        BrokerError: a partition could not be loaded.
    """
    records: dict[int, int] = {}
    started_ms = ended_ms = None
    for line in lines:
        if failed := _FAILED.match(line):
            raise BrokerError(f"the broker says: {failed[1]}")
        if (scheduled := _SCHEDULED.match(line)) and started_ms is None:
            started_ms = int(scheduled[1])
        if finished := _FINISHED.match(line):
            ended_ms = int(finished[1])
            records[int(finished[2])] = int(finished[3])
    return Loading(records, started_ms, ended_ms)


def broker_load_seconds(segments: Path, offsets_partitions: int, records: int, repeats: int = 3) -> list[float]:
    """Return the seconds in which a broker loads a log, for each start.

    Args:
        segments: has a folder ``__consumer_offsets-N`` with segment files for each log partition. They are copied to a
            temporary folder beside it, which is removed at the end.
        offsets_partitions: number of log partitions.
        records: number of records that the broker must report as loaded, with markers.
        repeats: number of measured starts.

    Raises:
        BrokerError: the broker's JARs are missing, it does not start or load, or it loaded another number of records.
    """
    if not KAFKA_JARS.is_dir():
        raise BrokerError(f"no broker in {KAFKA_JARS}: run `make kafka`")
    with (
        ended_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="offsets-broker-", dir=segments.parent) as temporary,
    ):
        broker = Broker(Path(temporary), offsets_partitions)
        broker.format()
        broker.load(make_log=True)
        replace_segments(segments, broker.data, offsets_partitions)
        loadings = [broker.load() for _ in range(1 + repeats)]
    for loading in loadings:
        loaded = sum(loading.records.values())
        if loaded != records:
            raise BrokerError(f"the broker loaded {loaded} records of {records}: its time tells nothing")
    return [loading.seconds for loading in loadings[1:]]


@contextmanager
def running_broker(folder: Path, offsets_partitions: int) -> Iterator[str]:
    """Context manager: the address of a new broker with its data below a folder, and with its offsets log loaded.

    Raises:
        BrokerError: the broker's JARs are missing, or it does not start.
    """
    if not KAFKA_JARS.is_dir():
        raise BrokerError(f"no broker in {KAFKA_JARS}: run `make kafka`")
    broker = Broker(folder, offsets_partitions)
    broker.format()
    with broker.serving() as address:
        yield address


def replace_segments(segments: Path, data: Path, offsets_partitions: int) -> None:
    """Replace the segments of a stopped broker, without indexes; the topic keeps its id."""
    for log_partition in range(offsets_partitions):
        name = f"__consumer_offsets-{log_partition}"
        for path in (data / name).iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (segments / name).glob("*.log"):
            shutil.copyfile(path, data / name / path.name)


class Broker:
    """A broker and its data, below one folder; it runs only within `load` or `serving`.

    ``settings`` are lines of server.properties beside `SETTINGS`; they have precedence.
    """

    def __init__(self, folder: Path, offsets_partitions: int, settings: str = "") -> None:
        self._offsets_partitions = offsets_partitions
        self.data = folder / "data"
        self._log = folder / "broker.log"
        self._settings = folder / "server.properties"
        self._logging = folder / "log4j2.properties"
        self._port, controller_port = free_ports(2)
        self._settings.write_text(
            SETTINGS.format(
                port=self._port,
                controller_port=controller_port,
                data=self.data,
                offsets_partitions=offsets_partitions,
            )
            + settings,
            encoding="utf-8",
        )
        self._logging.write_text(LOGGING, encoding="utf-8")

    def format(self) -> None:
        """Make the data folder."""
        arguments = ("format", "--cluster-id", CLUSTER_ID, "--config", str(self._settings))
        with self._running("kafka.tools.StorageTool", *arguments) as process:
            if process.wait(_PATIENCE_SECONDS) != 0:
                raise self._error("the broker's storage cannot be formatted")

    @property
    def address(self) -> str:
        """The value of bootstrap.servers."""
        return f"127.0.0.1:{self._port}"

    def load(self, *, make_log: bool = False) -> Loading:
        """Start the broker, create its offsets log if asked to, wait until the log is loaded, and stop the broker."""
        with self.serving(make_log=make_log):
            pass
        return self._read_loading()

    @contextmanager
    def serving(self, *, make_log: bool = True) -> Iterator[str]:
        """Context manager: the broker's address, with its offsets log loaded; creates the log if asked to."""
        with self._running("kafka.Kafka", str(self._settings)) as process:
            if make_log:
                self._wait(process, "is not there", self._finds_coordinator)
            self._wait(process, "did not load its offsets", self._has_loaded)
            yield self.address

    @contextmanager
    def _running(self, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Context manager: a program of Kafka's JARs, which is terminated at the end."""
        options = (*_JVM, f"-Dlog4j2.configurationFile={self._logging}", "-classpath", f"{KAFKA_JARS}/*")
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [java(), *options, program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_SECONDS)
            except BaseException:  # the caller has timed out, too
                process.kill()
                process.wait()
                raise

    def _wait(self, process: subprocess.Popen[bytes], otherwise: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not done():
            if process.poll() is not None:
                raise self._error("the broker ended by itself")
            if time.monotonic() > deadline:
                raise self._error(f"the broker {otherwise} after {_PATIENCE_SECONDS} s")
            time.sleep(_POLL_SECONDS)

    def _finds_coordinator(self) -> bool:
        """Ask for the coordinator of a group: a broker without an offsets log then creates one."""
        group_id = b"any"
        # version 0, correlation id 0, no client id
        request = struct.pack(">hhihh", _FIND_COORDINATOR, 0, 0, -1, len(group_id)) + group_id
        try:
            with closing(socket.create_connection(("127.0.0.1", self._port), _ANSWER_SECONDS)) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                answer = connection.makefile("rb").read(10)
        except OSError:  # it does not listen yet
            return False
        return answer[8:] == b"\x00\x00"  # behind size and correlation id: no error

    def _has_loaded(self) -> bool:
        return len(self._read_loading().records) == self._offsets_partitions

    def _read_loading(self) -> Loading:
        return read_loading(self._read_log())

    def _read_log(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _error(self, what: str) -> BrokerError:
        """Return the error with the end of the broker's log, without stacks: the log itself is removed."""
        said = [line for line in self._read_log() if not line.startswith("\t")][-3:]
        return BrokerError(f"{what}; it said last: {' / '.join(said)}")


def java() -> str:
    """Return the program `java` of JAVA_HOME, or the first in PATH."""
    java_home = os.environ.get("JAVA_HOME")
    return str(Path(java_home, "bin", "java")) if java_home else "java"


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Context manager: SIGTERM raises SystemExit, so that no broker outlives this program."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback. No process gets a port twice, and no two workers of pytest-xdist get the same one.

    Linux gives higher ports to outgoing connections. So none of these takes a port before its server listens, or while
    the server starts again.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    left = [port for port in own if port not in _HANDED_OUT]
    random.Random().shuffle(left)
    found: list[int] = []
    while len(found) < count:
        port = left.pop()
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    _HANDED_OUT.update(found)
    return found


def main() -> None:
    """Measure one log, as the command line describes it."""
    parser = argparse.ArgumentParser(
        description="Measure how long a Kafka broker takes to load a log of consumers' commits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="starts that are measured")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    add_shape_options(parser, Shape(tombstones=0.01))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offsets-bench-", dir=options.folder) as temporary:
        log = generate(shape_of(options), Path(temporary) / "segments")
        try:
            seconds = broker_load_seconds(
                log.folder, log.shape.offsets_partitions, log.records, repeats=options.repeats
            )
        except BrokerError as error:
            sys.exit(f"broker: error: {error}")
    each = ", ".join(f"{second:.2f}" for second in seconds)
    print(
        f"{log.records:,} records, {log.shape.records_per_batch} a batch, {log.bytes_per_record:.0f} bytes each: "
        f"{each} s, at best {log.records / min(seconds):,.0f} records/s"
    )


if __name__ == "__main__":
    main()
