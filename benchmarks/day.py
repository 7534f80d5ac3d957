"""Counts the files on disk of a store that `offsets follow` serves, over simulated hours.

    .venv/bin/python -m benchmarks.day [--hours 24] [--groups 9] [--commits 4.5]

Without a broker, threads and Spark: every two seconds of a clock of its own it appends what groups have committed and
folds it; publishing, upkeep, samples, notes and leases come at the intervals of `follow`. Prints a line an hour.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import NoReturn

import pyarrow as pa

from benchmarks.follow import files_in
from offsets_pipeline.common.clock import FixedClock, SystemClock
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import compact_facts, publish
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LEASES, LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.append import Append, LogAppender
from offsets_pipeline.store.log.file_writer import LogFileWriter
from offsets_pipeline.store.log.metadata import LogMetadata
from offsets_pipeline.store.store import Store

_LOG_PARTITIONS = 50
_BATCH_SECONDS = 2
_PUBLISH_SECONDS = 8  # half of `publish_within_ms`
_NOTE_SECONDS = _SAMPLE_SECONDS = 30
_OF_APPEND = ("appended_at", "log_incarnation", "backfill")  # an append sets them
_COLUMNS = pa.schema([field for field in LOG.arrow_schema() if field.name not in _OF_APPEND])
_LEASE_SECONDS = 20  # a third of `lease_duration_ms`


def no_spark() -> NoReturn:
    """Stand for the session of a store: nothing here needs one."""
    raise AssertionError("nothing here needs Spark")


class Day:
    """A store, and the work of `follow` on it at the time of its clock."""

    def __init__(self, folder: str, groups: int, commits: float) -> None:
        self.clock = FixedClock(SystemClock().now_ms())
        OwnedStore.create(folder, _LOG_PARTITIONS)  # the same tables, and no session
        self.store = Store.open(no_spark, folder)
        self._settings = load_settings()
        self._groups = groups
        self._commits = commits
        self._made = 0
        self._ends = [0] * _LOG_PARTITIONS
        self._dropped_since_ms: dict[str, dict[str, int]] = {}
        self._samples = SampleWriter(table_of(folder), "benchmark")
        self._leases = TableFolder(f"{folder}/{LEASES.name}", LEASES)
        self._leases.create()

    def step(self, second: int) -> None:
        """Do what is due at a second."""
        self.clock.advance_ms(_BATCH_SECONDS * 1000)
        added = self.append(int(self._commits * second) - self._made)
        fold_log(self.store, self._settings, self.clock, append=added)
        if second % _PUBLISH_SECONDS == 0:
            publish(self.store, self.clock)
            progress = FoldProgress.read(self.store.table(FOLD_PROGRESS.name))
            compact_facts(self.store, progress, self._settings.fold.compact_files)
        if second % _SAMPLE_SECONDS == 0:
            self._samples.write({("t", 0): (0, second)}, self.clock.now_ms())
        if second % _NOTE_SECONDS == 0:
            LogMetadata(self.store, self.clock).bounds({at: (0, end) for at, end in enumerate(self._ends)})
        if second % _LEASE_SECONDS == 0:
            self._leases.replace(LEASES.arrow_schema().empty_table(), seen=self._leases.snapshot())
        if second * 1000 % self._settings.fold.upkeep_interval_ms == 0:
            maintain_store(
                *(self.store, self.clock, self._settings), publishes=False, dropped_since_ms=self._dropped_since_ms
            )

    def append(self, commits: int) -> Append:
        """Append so many commits to the log."""
        appender = LogAppender(self.store)
        writer = LogFileWriter(appender.place(self.clock))
        now_ms = self.clock.now_ms()
        for number in range(self._made, self._made + commits):
            group_id = f"group-{number % self._groups}"
            at = partition_for(group_id, _LOG_PARTITIONS)
            key = DecodedKey(1, {"group": group_id, "topic": "t", "partition": 0})
            value = DecodedValue(3, {"offset": number, "metadata": "", "commit_timestamp": now_ms})
            row = {
                "log_partition": at,
                "record_offset": self._ends[at],
                "record_timestamp": now_ms * 1000,
                "key": encode_key(key),
                "value": encode_value(1, value),
                "source": "benchmark",
            }
            self._ends[at] += 1
            writer.write(pa.RecordBatch.from_pylist([row], schema=_COLUMNS))
        self._made += commits
        return appender.append_files(writer.close())


def main() -> None:
    """Simulate, and print the files of each hour."""
    parser = argparse.ArgumentParser(
        description="Count the files of a store, over simulated hours of follow.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--hours", type=float, default=24, metavar="N", help="time to simulate")
    parser.add_argument("--groups", type=int, default=9, metavar="N", help="groups that commit")
    parser.add_argument("--commits", type=float, default=4.5, metavar="N", help="commits a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offsets-day-") as folder:
        day = Day(f"{folder}/store", options.groups, options.commits)
        most, began = 0, time.monotonic()
        for second in range(_BATCH_SECONDS, int(options.hours * 3600) + 1, _BATCH_SECONDS):
            day.step(second)
            if second % 20 == 0:
                most = max(most, files_in(day.store.location))
            if second % 3600 == 0:
                hour, took = second // 3600, time.monotonic() - began
                print(f"hour {hour}: at most {most:,} files so far, simulated in {took:,.0f} s", flush=True)
        print(f"{options.commits} commits a second for {options.hours:g} hours: at most {most:,} files on disk")


if __name__ == "__main__":
    main()
