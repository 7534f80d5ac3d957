"""Programs that run until SIGTERM, as processes: each is seen at its work, and the signal ends it with status 0."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.places import copied
from tests.programs import assert_said, stopped_process
from tests.spark.stores import appended, log_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

CAPTURE = "4.2.0-kip848"
PATIENCE_SECONDS = 240  # a JVM starts on a slow machine
OLD = 1_000_000  # a record offset

pytestmark = pytest.mark.process


def files_of(store: Path) -> int:
    return len(DeltaTable(store / "log").file_uris())


def has_compacted(store: Path, before: int) -> bool:
    """Whether the files that came behind these many are one."""
    return files_of(store) == before + 1


def lacks_old_record(store: Path, _: int) -> bool:
    return OLD not in {row.record_offset for row in log_of(store)}


def test_serve_answers_requests(folded: Callable[[str], Path], root: Path, tmp_path: Path) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    said: list[str] = []

    def beside(printed: Callable[[], str]) -> None:
        wait_until("it serves", lambda: printed().endswith("\n"), PATIENCE_SECONDS)
        said.append(printed().rstrip())
        with urllib.request.urlopen(said[0].split()[-1], timeout=60) as answer:
            said.append(answer.read().decode())

    done = stopped_process(root, beside, "serve", "--store", store, "--listen", "127.0.0.1:0")
    served, page = said
    url = served.removeprefix(f"report of {store} is served at ")
    assert_said(done, f"{served}\nthe service at {url} has stopped")
    assert "k-stable" in page


@pytest.mark.slow  # each starts a JVM
@pytest.mark.parametrize(
    ("command", "is_done"),
    [(("maintain",), has_compacted), (("clean-log", "--older-than", "0"), lacks_old_record)],
    ids=["maintain", "clean-log"],
)
def test_upkeep_is_repeated(
    command: tuple[str, ...],
    is_done: Callable[[Path, int], bool],
    workbench: Workbench,
    folded: Callable[[str], Path],
    root: Path,
    tmp_path: Path,
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    log = LogPartition(partition_for("late", 5), start=OLD)

    def beside(printed: Callable[[], str]) -> None:
        wait_until("the first run has ended", lambda: printed().endswith("\n"), PATIENCE_SECONDS)
        before = files_of(store)
        for committed in (1, 2, 3):  # a file each; a cleaning leaves the end of the log, and removes the first
            log.commit(("late", "t", 0), committed)
            appended(store, log.rows[-1:])
        workbench.fold(store)
        wait_until("a later run does it", lambda: is_done(store, before), PATIENCE_SECONDS)

    done = stopped_process(root, beside, *command, "--store", store, "--every", "PT0.5S")
    assert (done.returncode, done.stderr) == (0, "")
    _, header, *others = map(str.split, done.stdout.splitlines())  # below the time of the run
    assert header in others  # of a later run
    assert workbench.verify(store).equal
