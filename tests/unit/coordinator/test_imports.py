"""The coordinator works where there is no Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

CODE = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "delta", "py4j"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoSpark())
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore

with Coordinator.open(OwnedStore.create(sys.argv[1], 2)) as coordinator:
    coordinator.commit_offsets("g", {("t", 0): 7})
    print(coordinator.fetch_offsets("g")["t", 0].offset)

from offsets_pipeline.cli import main

for line in ("commit --group g t:0=8", "reset-offsets --group g --all-topics --to-current --execute --export"):
    name, *arguments = line.split()
    main([name, "--store", sys.argv[1], *arguments])
"""


def test_coordinator_needs_no_spark(tmp_path: pytest.TempPathFactory) -> None:
    store = f"{tmp_path}/store"
    done = subprocess.run([sys.executable, "-c", CODE, store], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"7\n1 offset of group g committed in {store}\nt,0,8\n",
        f"offsets: 1 offset of group g committed in {store}\n",
    )
