"""Measures questions about the past of one group, each in a process of its own, as a user asks them.

    python -m benchmarks.past STORE

prints the figures of an existing store.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.processes import OFFSETS
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.log.ordered_log import OrderedLog

if TYPE_CHECKING:
    from benchmarks.table import Table

_TIMES = 3


def measure_past(table: Table, location: str) -> None:
    """Add lines for `history`, `why` and `as-of` of one group, and for the number of log files that they read."""
    history = LogHistory(location)
    group_id, topic, partition, time_us = _a_commit(history)
    files = history.log.files()
    rows = sum(file.rows for file in files)
    home = partition_for(group_id, history.current_log.offsets_partitions)
    read = OrderedLog(history.log, history.current_log.number, None, [home]).files
    table.add_size(
        "files of the log that one group's history reads", f"{rows:,} records", f"{read} of {len(history.log.files())}"
    )
    questions = {
        "history --group, cold": ["history", "--group", group_id],
        "why, cold": ["why", "--group", group_id, "--topic", topic, "--partition", str(partition)],
        "as-of --time --group, cold": ["as-of", "--time", str(time_us // 1000), "--group", group_id],
    }
    for what, words in questions.items():
        table.doing(what)
        seconds = []
        for _ in range(_TIMES):
            start = time.perf_counter()
            subprocess.run([OFFSETS, *words, "--store", location, "--format", "json"], check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        table.add_times(what, f"a log of {rows:,} records", seconds)


def _a_commit(history: LogHistory) -> tuple[str, str, int, int]:
    """Return group, topic, partition and time (us) of a commit in the middle of the log partitions."""
    middle = history.current_log.offsets_partitions // 2
    for _, rows in OrderedLog(history.log, history.current_log.number, None, [middle]).runs():
        row = rows.slice(rows.num_rows // 2, 1)
        fields = decode_key(row["key"][0].as_py()).fields
        at_us = row["record_timestamp"].cast("int64")[0].as_py()
        return fields["group"], fields["topic"], fields["partition"], at_us
    raise ValueError(f"log partition {middle} of {history.location} has no records")


if __name__ == "__main__":
    from benchmarks.table import Table as Lines

    lines = Lines()
    measure_past(lines, sys.argv[1])
    print(lines.render())
