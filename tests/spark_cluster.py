"""A standalone cluster of Spark, whose master, workers and executors are processes of their own and lack the project.

`executor_killed` kills an executor in the middle of a task: before the S3 server answers the task's write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import venv
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyspark

from benchmarks.broker import free_ports
from tests.unit.delta.faulty_s3 import Fault
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.unit.delta.faulty_s3 import FaultyS3

SPARK = Path(pyspark.__path__[0])
_WORKERS = 2
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_HERE = {"SPARK_LOCAL_IP": "127.0.0.1"}  # also where the machine's name does not resolve
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster with two executors of one core for one application at a time."""

    master: str
    #: The Python of the tasks: it has what the project needs, and not the project.
    python: Path
    #: The environment of the workers, and so of the executors.
    environment: Mapping[str, str]
    events: Path

    def submit(self, folder: Path, words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run spark-submit, ``words[0]``; no task runs before both executors are there."""
        options = {
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        given = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
        return subprocess.run(
            [words[0], *given, *words[1:]],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _HERE,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    def assert_lost(self, killed: KilledExecutor) -> None:
        """Assert by Spark's own log that it lost a task with this executor, and that the task's stage was completed."""
        lines = (self.events / killed.application).read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        lost = {each["Stage ID"] for each in events if _is_lost(each) and _executor_of(each) == killed.executor}
        stages = [each["Stage Info"] for each in events if each["Event"] == "SparkListenerStageCompleted"]
        completed = {each["Stage ID"] for each in stages if "Failure Reason" not in each}
        assert lost
        assert lost <= completed
        removed = [each["Executor ID"] for each in events if each["Event"] == "SparkListenerExecutorRemoved"]
        assert killed.executor in removed  # and perhaps the others, at the end


def _is_lost(event: Mapping[str, Any]) -> bool:
    return bool(
        event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "ExecutorLostFailure"
    )


def _executor_of(event: Mapping[str, Any]) -> str:
    return str(event["Task Info"]["Executor ID"])


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A master and two workers, which know neither the project nor a storage."""
    python, events = folder / "python", folder / "events"
    events.mkdir()
    venv.EnvBuilder(symlinks=True).create(python)
    (site,) = python.glob("lib/*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")  # without their own .pth files
    environment = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME", "LANG") if name in os.environ} | {
        **_HERE,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
    }
    port, page = free_ports(2)
    master = f"spark://127.0.0.1:{port}"

    def started(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [f"{SPARK}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def are_there() -> bool:
        with suppress(OSError, ValueError), urlopen(f"http://127.0.0.1:{page}/json", timeout=10) as answer:
            return bool(json.load(answer)["aliveworkers"] == _WORKERS)
        return False

    with ExitStack() as ends:
        processes = [started("master.Master", "--port", str(port), "--webui-port", str(page))]
        for number in range(_WORKERS):
            places = ("--work-dir", str(folder / f"work-{number}"), "--webui-port", "0")
            processes.append(started("worker.Worker", "--cores", "1", "--memory", "1g", *places, master))
        for process in processes:
            ends.callback(_end, process)
        wait_until("two workers", are_there, 120)
        yield SparkCluster(master, python / "bin" / "python", environment, events)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # a worker ends its executors
    process.wait(60)


@dataclass(frozen=True)
class KilledExecutor:
    """An executor that `executor_killed` has killed, and the variables of its environment."""

    application: str
    executor: str
    environment: Iterable[str]


@contextmanager
def executor_killed(server: FaultyS3, table: str) -> Iterator[list[KilledExecutor]]:
    """Kill the executor whose task is the first to write a file of a table on S3. Yields what is killed.

    The task has not ended: the server answers after the kill.
    """
    killed: list[KilledExecutor] = []
    lock = threading.Lock()

    def victim_of(process: int) -> int | None:
        with lock:
            executor = None if killed else _executor_above(process)
            if executor is not None:
                killed.append(_described(Path("/proc", str(executor))))
            return executor

    def fault(method: str, path: str) -> Fault | None:
        is_file = f"/{table}/" in path and path.endswith(".parquet")
        return Fault.KILLED if method == "PUT" and is_file and not killed else None

    server.victim_of, server.fault = victim_of, fault
    try:
        yield killed
    finally:
        server.settle()


def _described(executor: Path) -> KilledExecutor:
    words = (executor / "cmdline").read_text().split("\0")
    application, name = (words[words.index(option) + 1] for option in ("--app-id", "--executor-id"))
    return KilledExecutor(application, name, (executor / "environ").read_text().split("\0"))


def _executor_above(process: int) -> int | None:
    """The executor whose Python this process is; None if it is another program's."""
    while process:
        folder = Path("/proc", str(process))
        if _EXECUTOR in (folder / "cmdline").read_bytes():
            return process
        process = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
    return None
