"""Processor time and memory of a process and its descendants, from Linux' /proc."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.background import beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The program `offsets` of this environment.
OFFSETS = Path(sys.executable).with_name("offsets")
_PROC = Path("/proc")
# fields of /proc/PID/stat behind the name of the program, which may have spaces
_PARENT, _TIMES = 1, slice(11, 13)


@dataclass(frozen=True)
class ProcessTree:
    """A process and its descendants."""

    pid: int

    def cpu_seconds(self, wait: Callable[[float], object], samples: int) -> float:
        """Return the processor time of the processes during so many calls of `wait(1.0)`.

        Sums the growth of each process: otherwise the time of a process that ends would be subtracted. Does not count
        the last part of a second of a process that ends.
        """
        taken = ProcessorTime(self)
        for _ in range(samples):
            wait(1.0)
            taken.look()
        return taken.seconds

    @contextmanager
    def watched(self) -> Iterator[ProcessorTime]:
        """Processor time that the processes take in this context; complete when it ends."""
        taken, ended = ProcessorTime(self), threading.Event()

        def look() -> None:
            while not ended.wait(1.0):
                taken.look()

        try:
            with beside(look, ended.set):
                yield taken
        finally:
            taken.look()

    def ticks(self) -> dict[int, int]:
        """Processor time of each process since it began, in clock ticks."""
        stats = _stats()
        return {pid: sum(int(ticks) for ticks in stats[pid][_TIMES]) for pid in self._pids(stats) if pid in stats}

    def memory_mib(self) -> float:
        """Memory in MiB now: the proportional set size, so pages that processes share count once."""
        total = 0
        for pid in self._pids(_stats()):
            for line in _text(_PROC / str(pid) / "smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        return total / 1024

    def _pids(self, stats: dict[int, list[str]]) -> list[int]:
        found = [self.pid]
        for parent in found:  # grows
            found += [pid for pid, stat in stats.items() if int(stat[_PARENT]) == parent]
        return found


class ProcessorTime:
    """Processor time of a tree of processes since this object was created; `look` adds the time since the last look."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._known = tree.ticks()
        self._total = 0

    def look(self) -> None:
        """Add the growth of each process, and all of the time of a new one."""
        now = self._tree.ticks()
        self._total += sum(ticks - self._known.get(pid, 0) for pid, ticks in now.items())
        self._known = now

    @property
    def seconds(self) -> float:
        """Seconds up to the last `look`."""
        return self._total / os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, list[str]]:
    found = {}
    for path in _PROC.glob("[0-9]*/stat"):
        if text := _text(path):
            found[int(path.parent.name)] = text.rpartition(")")[2].split()
    return found


def _text(path: Path) -> str:
    """Return the file's text; empty for a process that has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
