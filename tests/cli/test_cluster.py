"""Jobs on a standalone cluster, as docs/clusters.md submits them: the machines of the cluster lack the package.

Only executors outside of the driver's process show what tasks get: paths, variables, modules. They need processes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from benchmarks.generate import generate
from benchmarks.log_content import Shape
from offsets_pipeline.cli import main
from tests.kafka.following import log_places
from tests.kafka.live import places_in
from tests.logs import capture_rows, oracle
from tests.programs import SPARK_SUBMIT
from tests.spark.stores import assert_as_reference, differences, log_of, segments_of
from tests.spark_cluster import executor_killed, spark_cluster
from tests.unit.delta.faulty_s3 import FaultyS3

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.kafka.brokers import KafkaJvm
    from tests.spark_cluster import SparkCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

CAPTURE = "4.2.0-kip848"
#: The command `ingest-segments` in the guide, without its options.
INGEST = "jobs/ingest_segments.py"
# The jobs one after the other in one session: a session on a cluster takes ten seconds to start.
PROGRAM = """
import runpy
import sys

jobs, *lines = sys.argv[1:]
for line in lines:
    name, *arguments = line.split()
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(f"{jobs}/{name}.py", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""
IN_TASKS = "[fold]\ndriver_rows = 0\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster whose machines have no package `offsets_pipeline`, and no access to S3 of their own."""
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder) as running:
        found = subprocess.run(
            [running.python, "-c", "import pyspark, offsets_pipeline"],
            cwd=folder,
            env=running.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.stderr.endswith("ModuleNotFoundError: No module named 'offsets_pipeline'\n")
        yield running


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FaultyS3, str]]:
    """An S3 server that can kill who sends a request, and the URI of the guide's bucket."""
    server = FaultyS3()
    with server.serving("bucket", timeout_ms=30_000) as uri:
        yield server, uri


@pytest.fixture(scope="module")
def guide(root: Path, cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | Path]]:
    """The words of the guide's commands of spark-submit, by job, on this cluster; the others have run."""
    clone = tmp_path_factory.mktemp("clone")
    for name in (".venv", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "offsets_pipeline"):
        (clone / name).symlink_to(root / name)
    submits: dict[str, list[str | Path]] = {}
    for block in re.findall(r"^```sh\n(.*?)^```$", (root / "docs/clusters.md").read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            words = shlex.split(line)
            if words[0] != ".venv/bin/spark-submit":
                subprocess.run(["bash", "-euc", line], cwd=clone, check=True)
                continue
            (job,) = (word for word in words if word.startswith("jobs/"))
            here: dict[str, str | Path] = {
                ".venv/bin/spark-submit": SPARK_SUBMIT,
                "spark://MASTER:7077": cluster.master,
                "spark.pyspark.python=/opt/python/bin/python": f"spark.pyspark.python={cluster.python}",
                "dist/offsets_pipeline.zip": clone / "dist" / "offsets_pipeline.zip",
                job: root / job,
            }
            assert here.keys() <= set(words)
            submits[job] = [here.get(word, word) for word in words]
    return submits


def assert_as_capture(store: Path | str) -> None:
    """Assert that a store holds each record of the capture once, and answers as the replay and as the broker."""
    assert log_of(store) == rows_of_capture()
    assert_as_reference(store, rows_of_capture())
    assert differences(store, oracle(CAPTURE)) == []


def rows_of_capture() -> list[LogRow]:
    return [row for _, rows in sorted(capture_rows(CAPTURE).items()) for row in rows]


def test_jobs_on_a_cluster_resolve_relative_paths_reach_s3_and_outlive_an_executor(
    root: Path, tmp_path: Path, cluster: SparkCluster, guide: dict[str, list[str | Path]], served: tuple[FaultyS3, str]
) -> None:
    server, s3 = served
    program, folder, store = tmp_path / "program.py", tmp_path / "started here", f"{s3}/of-a-program"
    program.write_text(PROGRAM, encoding="utf-8")
    folder.mkdir()
    shutil.copytree(segments_of(CAPTURE), folder / "segments")
    (tmp_path / "offsets.toml").write_text(IN_TASKS)
    _create_owned(folder / "owned")
    words = guide[INGEST]
    jobs = [
        "ingest_segments --store store --offsets-partitions 5 segments/__consumer_offsets-0",
        "ingest_segments --store store segments",
        "fold_stream --store store --available-now",
        "reload --store store",
        "verify --store store",
        "expire_offsets --store owned",
        f"ingest_segments --store {store} segments",
        f"fold_stream --store {store} --available-now --config ../offsets.toml",
        "expire_offsets --store store --dry-run --at 2100-01-01 --format csv",
    ]
    with executor_killed(server, "offset_facts") as killed:
        done = cluster.submit(folder, [*words[: words.index(root / INGEST)], program, root / "jobs", *jobs])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    by_partition = {at: len(rows) for at, rows in capture_rows(CAPTURE).items()}
    records, first = sum(by_partition.values()), by_partition[0]
    said = [line for line in done.stdout.splitlines() if not re.match(r"LOG-PARTITION| *\d+  ", line)]
    said.remove(
        "offsets: warning: nothing was read of log partitions 1, 2, 3, 4: the store does not know their groups; "
        "ingest these folders, too"
    )
    assert said[:4] == [
        f"{first} records added to store from 1 segment file (5 log partitions)",
        f"{records - first} records added to store from 5 segment files (5 log partitions)",
        f"{records} records folded in store",
        f"{records} records replayed in store",
    ]
    assert said[4].startswith("equal: ")
    assert said[5].startswith("1 offset and 1 group expired in owned")
    assert said[6:8] == [
        f"{records} records added to {store} from 5 segment files (5 log partitions)",
        f"{records} records folded in {store}",
    ]
    assert said[8] == "when,expires,group,topic,partition,rule,reason"
    assert {each.name for each in folder.iterdir()} == {"segments", "store", "owned"}
    assert_as_capture(folder / "store")
    assert_as_capture(store)
    (executor,) = killed
    assert not [variable for variable in executor.environment if variable.startswith("AWS_")]
    cluster.assert_lost(executor)


def outlived(
    server: FaultyS3, cluster: SparkCluster, folder: Path, words: Sequence[str | Path], table: str
) -> subprocess.CompletedProcess[str]:
    """A job that has ended well, though an executor was killed while its task wrote to a table; all folds in tasks."""
    (folder / "offsets.toml").write_text(IN_TASKS)
    with executor_killed(server, table) as killed:
        done = cluster.submit(folder, [*words, "--config", "offsets.toml"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (executor,) = killed
    assert not [variable for variable in executor.environment if variable.startswith("AWS_")]
    cluster.assert_lost(executor)
    return done


@pytest.mark.long  # a session for each job
def test_ingest_fold_and_reload_outlive_an_executor(
    tmp_path: Path, cluster: SparkCluster, guide: dict[str, list[str | Path]], served: tuple[FaultyS3, str]
) -> None:
    server, s3 = served
    fs.copy_files(str(segments_of(CAPTURE)), f"{s3}/segments")
    store, records = f"{s3}/store", len(rows_of_capture())
    done = outlived(server, cluster, tmp_path, guide[INGEST], "log")
    assert done.stdout == f"{records} records added to {store} from 5 segment files (5 log partitions)\n"
    for job, result in (("jobs/fold_stream.py", "folded"), ("jobs/reload.py", "replayed")):
        done = outlived(server, cluster, tmp_path, guide[job], "offset_facts")
        assert done.stdout == f"{records} records {result} in {store}\n"
        assert_as_capture(store)


@pytest.mark.long  # a session and a broker for each table
@pytest.mark.streaming
@pytest.mark.parametrize("table", ["log", "offset_facts"])
def test_follow_outlives_an_executor(
    tmp_path: Path,
    cluster: SparkCluster,
    guide: dict[str, list[str | Path]],
    served: tuple[FaultyS3, str],
    kafka: KafkaJvm,
    table: str,
) -> None:
    server, s3 = served
    log = generate(Shape(commits=25_000, groups=100, offsets_partitions=5), tmp_path / "log")  # too many for the driver
    here = {"s3://bucket/live": f"{s3}/{table}"}
    with kafka.broker(log.folder, log.shape.offsets_partitions) as broker:
        here["BROKER:9092"] = f"127.0.0.1:{broker.port}"
        words = [here.get(str(word), word) for word in guide["jobs/follow.py"]]
        assert here.keys() <= set(guide["jobs/follow.py"])
        store = here["s3://bucket/live"]
        done = outlived(server, cluster, tmp_path, words, table)
        assert done.stdout == f"{log.records} records added to {store}, {log.records} folded\n"
        assert log_places(store) == places_in(broker.data)  # neither missing nor twice
        assert differences(store, broker.groups()) == []


def _create_owned(store: Path) -> None:
    """An owned store in which one group's one offset is to expire."""
    from offsets_pipeline.coordinator.owned_store import OwnedStore  # noqa: PLC0415 (with what it needs)

    OwnedStore.create(store, 2)
    assert main(["commit", "--store", str(store), "--group", "g", "--retention-ms", "1", "t:0=5"]) == 0
