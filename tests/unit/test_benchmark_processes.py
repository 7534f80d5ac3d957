"""The cost of processes that the benchmarks print."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.processes import ProcessTree

BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"
HOLDS = "import os, sys\nheld = b'x' * 2**26\nprint(os.getpid(), flush=True)\nsys.stdin.read()"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {HOLDS!r}])"


def test_time_of_a_child_counts_once_also_after_its_end() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def burns_and_ends(_: float) -> None:
        if not children:
            child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert child.stdout is not None
            assert child.stdout.readline() == b"done\n"
            children.append(child)
        else:
            children[0].communicate()

    tree = ProcessTree(os.getpid())
    assert 0.25 <= tree.cpu_seconds(burns_and_ends, 2) <= 10
    assert tree.cpu_seconds(lambda _: None, 1) < 0.25


def test_time_of_a_child_counts_in_a_watched_block_and_later_time_does_not() -> None:
    with (
        ProcessTree(os.getpid()).watched() as taken,
        subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        taken.look()
        child.communicate()
    seconds = taken.seconds
    assert 0.25 <= seconds <= 10
    sum(range(10**6))
    assert taken.seconds == seconds


def test_memory_of_a_process_includes_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        of_child = ProcessTree(int(parent.stdout.readline())).memory_mib()
        assert 64 < of_child < ProcessTree(parent.pid).memory_mib() < of_child + 64
        parent.stdin.close()


def test_process_that_has_ended_and_is_not_waited_for_takes_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ProcessTree(child.pid).memory_mib() == 0
