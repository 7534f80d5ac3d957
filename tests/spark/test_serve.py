"""`offsets serve` until SIGTERM, as users run it."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from benchmarks.broker import free_ports
from tests.programs import stopped_in_process
from tests.spark.stores import copied
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 120
CAPTURE = "4.2.0-kip848"


def test_serve_answers_until_it_is_stopped(
    spark: SparkSession, folded: Callable[[str], Path], root: Path, tmp_path: Path
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    pages: list[str] = []

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/", timeout=60) as answer:
                pages.append(answer.read().decode())
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return False
            raise
        return True

    def beside() -> None:
        wait_until("the page is served", answers, PATIENCE_SECONDS)

    done = stopped_in_process(root, beside, "serve", "--store", store, "--listen", url.removeprefix("http://"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "k-stable" in pages[0]
    first, last = done.stdout.splitlines()
    assert first.startswith(f"report of {store} is served at {url}")
    assert last == f"the service at {first.rpartition(' ')[2]} has stopped"
