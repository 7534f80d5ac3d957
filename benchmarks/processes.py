"""Processor time and memory of a process and its descendants, from Linux' /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# fields of /proc/PID/stat behind the name of the program, which may have spaces
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(frozen=True)
class ProcessTree:
    """A process and its descendants."""

    pid: int

    def cpu_seconds(self) -> float:
        """Processor time so far, with that of descendants that have ended."""
        stats = _stats()
        ticks = sum(int(ticks) for pid in self._pids(stats) for ticks in stats[pid][_TIMES])
        return ticks / os.sysconf("SC_CLK_TCK")

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


def _stats() -> dict[int, list[str]]:
    found = {}
    for path in _PROC.glob("[0-9]*/stat"):
        if text := _text(path):
            found[int(path.parent.name)] = text.rpartition(")")[2].split()
    return found


def _text(path: Path) -> str:
    """The file's text; none of a process that has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
