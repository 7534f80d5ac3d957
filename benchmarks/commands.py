"""Measures commands that start no Spark, in seconds of wall and processor time.

    python -m benchmarks.commands STORE...

Each run is a process of its own, from its start to its end, with warm files. It prints the medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.processes import OFFSETS
from benchmarks.table import markdown

_SUM = "SELECT group_id, topic, sum(committed_offset) AS consumed FROM current_offsets GROUP BY ALL ORDER BY ALL"


class Cost(NamedTuple):
    """Seconds of one run: wall time, and processor time of all threads."""

    wall: float
    processor: float


def main(arguments: list[str] | None = None) -> None:
    """Measure the commands on each store, and print the table."""
    parser = argparse.ArgumentParser(description="Measure commands that start no Spark, each as a process of its own.")
    parser.add_argument("stores", nargs="+", metavar="STORE", help="a folded store of groups")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each command (default: 5)")
    options = parser.parse_args(arguments)
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {options.runs} runs each\n"
    )
    rows = [["command", "store", "wall s", "processor s"]]
    for store in options.stores:
        for words in commands(store):
            costs = [cost_of([str(OFFSETS), words[0], "--store", store, *words[1:]]) for _ in range(options.runs)]
            wall, processor = (statistics.median(each) for each in zip(*costs, strict=True))
            rows.append([" ".join(words).replace(_SUM, "SUM"), store, f"{wall:.2f}", f"{processor:.2f}"])
    print(markdown(rows))
    print(f"\nSUM: {_SUM}")


def commands(store: str) -> list[list[str]]:
    """Return the commands that are measured, without `offsets` and the store."""
    listed = subprocess.run(
        [OFFSETS, "describe", "--store", store, "--list"], check=True, stdout=subprocess.PIPE, text=True
    )
    names = sorted(listed.stdout.split())
    group = names[len(names) // 2]
    return [
        ["describe", "--group", group],
        ["describe", "--all-groups"],
        ["groups"],
        ["log-info"],
        ["sql", _SUM],
        ["history", "--group", group],
    ]


def cost_of(command: list[str]) -> Cost:
    """Run a command that must succeed; returns its cost."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench: {' '.join(command)} failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()
