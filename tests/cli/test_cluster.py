"""Jobs on a cluster: executors are processes of their own, with working folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from tests.logs import capture_rows
from tests.programs import SPARK_SUBMIT
from tests.spark.stores import assert_as_reference, log_of, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURE = "4.2.0-kip848"
# The jobs one after the other in one session: a cluster takes ten seconds to start.
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


@pytest.fixture
def _no_work_is_left() -> Iterator[None]:
    """Workers of a local cluster keep their executors' folders in the installation of Spark."""
    import pyspark  # noqa: PLC0415 (only these tests need it)

    work = Path(pyspark.__path__[0], "work")
    before = set(work.glob("*"))
    yield
    for folder in set(work.glob("*")) - before:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_work_is_left")
def test_jobs_on_a_cluster_resolve_relative_paths(root: Path, tmp_path: Path) -> None:
    """Only executors outside of the driver's process show which paths tasks get."""
    program, folder = tmp_path / "program.py", tmp_path / "started here"
    program.write_text(PROGRAM, encoding="utf-8")
    folder.mkdir()
    shutil.copytree(segments_of(CAPTURE), folder / "segments")
    _create_owned(folder / "owned")
    jobs = [
        "ingest_segments --store store --offsets-partitions 5 segments/__consumer_offsets-0",
        "ingest_segments --store store segments",
        "fold_stream --store store --available-now",
        "reload --store store",
        "verify --store store",
        "expire_offsets --store owned",
        "expire_offsets --store store --dry-run --at 2100-01-01 --format csv",
    ]
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    done = subprocess.run(
        [
            SPARK_SUBMIT,
            "--properties-file",
            root / "conf" / "spark-defaults.conf",
            "--master",
            "local-cluster[2,1,1024]",
            "--driver-java-options",
            quick,
            "--conf",
            f"spark.executor.extraJavaOptions={quick}",
            # no task runs before both executors are there
            *("--conf", "spark.cores.max=2", "--conf", "spark.scheduler.minRegisteredResourcesRatio=1"),
            *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=240s"),
            program,
            root / "jobs",
            *jobs,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    by_partition = {at: len(rows) for at, rows in capture_rows(CAPTURE).items()}
    records, first = sum(by_partition.values()), by_partition[0]
    said = done.stdout.splitlines()
    assert said[:4] == [
        f"{first} records added to store from 1 segment files (5 log partitions)",
        f"{records - first} records added to store from 5 segment files (5 log partitions)",
        f"{records} records folded in store",
        f"{records} records replayed in store",
    ]
    assert said[4].startswith("equal: ")
    assert said[5].startswith("1 offsets and 1 groups expired in owned")
    assert said[6] == "when,expires,group,topic,partition,rule,reason"
    assert {each.name for each in folder.iterdir()} == {"segments", "store", "owned"}
    assert_as_reference(folder / "store", log_of(folder / "store"))


def _create_owned(store: Path) -> None:
    """An owned store in which one group's one offset is to expire."""
    from offsets_pipeline.coordinator.owned_store import OwnedStore  # noqa: PLC0415 (with what it needs)

    OwnedStore.create(store, 2)
    assert main(["commit", "--store", str(store), "--group", "g", "--retention-ms", "1", "t:0=5"]) == 0
