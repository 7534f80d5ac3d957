"""The cost of processes that the benchmarks print."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.processes import ProcessTree

BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"


def test_cost_of_a_process_includes_its_children() -> None:
    tree = ProcessTree(os.getpid())
    before, memory = tree.cpu_seconds(), tree.memory_mib()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"done\n"
        assert 0.25 <= tree.cpu_seconds() - before <= 10
        assert ProcessTree(child.pid).cpu_seconds() >= 0.25
        assert tree.memory_mib() > memory + 1
        child.stdin.close()
    assert tree.cpu_seconds() - before >= 0.25  # it has ended


def test_process_that_has_ended_and_is_not_waited_for_takes_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ProcessTree(child.pid).memory_mib() == 0
