"""A followed topic for its operator: lines with timestamps on stderr, one for each change of state, and metrics."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import Clock, shown_time
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.errors import BrokerUnreachable, OffsetsError, StorageFailed
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress

if TYPE_CHECKING:
    from offsets_pipeline.fold.maintenance import Upkeep
    from offsets_pipeline.service.metrics.exposition import Values

_LATE_MS = 60_000  # since the log last held all records: then it has fallen behind


class OperatorLog:
    """Writes lines to stderr, each with the time of its event, and counts warnings.

    Thread-safe: each line is one write.
    """

    def __init__(self, clock: Clock, *, only_warnings: bool = False) -> None:
        self._clock = clock
        self._only_warnings = only_warnings
        self._lock = threading.Lock()
        self._warnings = 0

    def say(self, text: str) -> None:
        """Write a change of state."""
        if not self._only_warnings:
            self._write(text)

    def warning(self, text: str) -> None:
        """Write a warning and count it."""
        with self._lock:
            self._warnings += 1
        self._write(f"warning: {text}")

    def values(self) -> Values:
        """Return the number of warnings."""
        return {"offsets_warnings_total": self._warnings}

    def upkeep(self, done: Iterable[Upkeep]) -> None:
        """Write how many files an upkeep found, left and removed."""
        done = list(done)
        self.say(
            f"upkeep done: {sum(each.files_before for each in done)} files before, {sum(each.files for each in done)} "
            f"after; {sum(each.removed for each in done)} old files removed, "
            f"{sum(each.on_disk for each in done)} files on disk"
        )

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{shown_time(self._clock.now_ms())} offsets: {text}\n")


class FollowedTopic(TopicObserver):
    """Writes the changes of state of a followed topic to an `OperatorLog`, and has its metrics."""

    def __init__(self, topic: str, log: OperatorLog, clock: Clock) -> None:
        self._topic = topic
        self._log = log
        self._clock = clock
        self._plan: tuple[int, int] | None = None
        self._is_caught_up = False
        self._topic_outage = _Outage(log, clock)
        self._store_outage = _Outage(log, clock)
        self._records_read = 0
        self._is_up: bool | None = None
        self._succeeded_ms: int | None = None
        self._progress: TopicProgress | None = None  # of the last look, if it succeeded

    @property
    def is_caught_up(self) -> bool:
        """Whether the log has caught up with the topic, by the last look."""
        return self._is_caught_up

    def connected(self, address: str, cluster_id: str | None) -> None:
        """Write which broker answered."""
        self._log.say(f"connected to {address}" + (f", cluster {cluster_id}" if cluster_id is not None else ""))

    def missing(self, address: str) -> None:
        """Write that the topic does not exist yet."""
        self._is_up = False
        self._log.say(
            f"the cluster at {address} has no topic {self._topic} yet: waiting until its first consumer creates it"
        )

    def planned(self, progress: TopicProgress) -> None:
        """Write what is read, unless the last plan was the same."""
        self._succeeded()
        plan = progress.reading.log_incarnation, len(progress.reading.starts)
        if plan == self._plan:
            return
        self._plan, self._is_caught_up = plan, False
        self._log.say(
            f"reading topic {self._topic}: {counted(len(progress.reading.starts), 'log partition')}, log incarnation "
            f"{progress.reading.log_incarnation}, {counted(sum(progress.behind().values()), 'record offset')} behind"
        )

    def landed(self, records: int) -> None:
        """Count records that were appended to the log."""
        self._records_read += records
        self._store_outage.end("the store can be written again")

    def looked(self, progress: TopicProgress) -> None:
        """Write when the log has caught up with the topic, and when it has fallen behind."""
        self._progress = progress  # batches that follow bring the log nearer to the topic
        self._succeeded()
        behind, last_ms = sum(progress.behind().values()), progress.complete.last_ms
        is_recent = last_ms is not None and last_ms >= max(progress.began_ms, self._clock.now_ms() - _LATE_MS)
        may_be = self._is_caught_up or not progress.without_leader  # which may have unread records
        is_caught_up = (not behind and may_be) or is_recent
        if not behind:  # else reads alone may succeed
            self._store_outage.end("the store can be written again")
        if is_caught_up and not self._is_caught_up:
            self._log.say(f"caught up with topic {self._topic}")
        elif self._is_caught_up and not is_caught_up:
            since = "" if last_ms is None else f"; it last had all records at {shown_time(last_ms)}"
            self._log.say(f"the log is {behind} record offsets behind topic {self._topic}{since}")
        self._is_caught_up = is_caught_up

    def unreachable(self, error: OffsetsError) -> None:
        """Write that no broker answers, why the cluster refuses, or that the storage fails.

        Each kind of error once until it is back. Drops the gauges of the topic's offsets: their last values say nothing
        about the topic now.
        """
        self._progress = None
        if isinstance(error, StorageFailed):
            self._store_outage.note("store not available", error)
            return
        self._is_up = False
        away = "broker away" if isinstance(error, BrokerUnreachable) else f"topic {self._topic} not available"
        self._topic_outage.note(away, error)

    def transaction_ended(self, log_partition: int) -> None:
        """Write that the transaction ended."""
        self._log.say(f"the transaction that was open in log partition {log_partition} has ended")

    def warned(self, text: str) -> None:
        """Write a warning."""
        self._log.warning(text)

    def values(self) -> Values:
        """Return the metrics of the topic, and of the log's distance from it."""
        progress = self._progress
        return {
            "offsets_records_read_total": self._records_read,
            "offsets_log_incarnation": self._plan and self._plan[0],
            "offsets_store_up": not self._store_outage.lasts,
            "offsets_topic_up": self._is_up,
            "offsets_topic_last_success_timestamp_seconds": self._succeeded_ms and self._succeeded_ms / 1000,
            **({} if progress is None else self._of_offsets(progress)),
        }

    def _of_offsets(self, progress: TopicProgress) -> Values:
        now_ms = self._clock.now_ms()
        return {
            "offsets_log_behind_topic_records": progress.behind(),
            "offsets_topic_unstable_records": {at: each.end - each.stable for at, each in progress.bounds.items()},
            "offsets_topic_open_transaction_seconds": {
                at: max(0.0, (now_ms - since_ms) / 1000) for at, since_ms in progress.open_since_ms.items()
            },
        }

    def _succeeded(self) -> None:
        self._is_up, self._succeeded_ms = True, self._clock.now_ms()
        self._topic_outage.end(f"topic {self._topic} can be read again")


class _Outage:
    """What is away, from its first error on: writes each kind of error once, and how long it lasted."""

    def __init__(self, log: OperatorLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._since_ms: int | None = None
        self._reasons: set[type[OffsetsError]] = set()

    @property
    def lasts(self) -> bool:
        """Whether it is away."""
        return self._since_ms is not None

    def note(self, away: str, error: OffsetsError) -> None:
        """Write the error, unless this kind was written since the outage began."""
        if self._since_ms is None:
            self._since_ms = self._clock.now_ms()
        if type(error) not in self._reasons:
            self._reasons.add(type(error))
            self._log.warning(f"{away} since {shown_time(self._since_ms)}: {error}; trying again")

    def end(self, back: str) -> None:
        """Write that it is back, if it was away."""
        if self._since_ms is not None:
            self._log.say(f"back after {(self._clock.now_ms() - self._since_ms) / 1000:.0f} s: {back}")
        self._since_ms = None
        self._reasons.clear()
