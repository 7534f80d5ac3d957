"""Planning of a topic's readings, looks at the topic while a query reads it, and what the store keeps of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import Clock, ms_of
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, KnownLog, Unfinished, check_topic, plan_reading
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from offsets_pipeline.store.log.log_scan import ends_by_incarnation
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead, note_topics

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.ingest.topic.topic_client import TopicClient, TopicDescription
    from offsets_pipeline.kafka.broker.fetch import FetchPosition
    from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.store import Store

# Tolerance added to `delete.retention.ms` when the times of two complete reads are compared. A query reads new records
# within seconds, but `TopicIngest` sees that only at its next look.
_GRACE_MS, _LATE_LOOKS = 60_000, 4


class TopicWatch:
    """Plans the readings of one topic, and writes to the store what looks at the topic find.

    ``warn`` is called with warnings of one line.

    Every method that writes raises WriteConflict if other writers committed first too often.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        settings: Settings,
        clock: Clock,
        observer: TopicObserver,
        warn: Callable[[str], None],
    ) -> None:
        self.store = store
        self.has_records = False  # in the log, at the last plan
        self._topic = topic
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._warn = warn
        self._unfinished: Unfinished | None = None
        self._warned_of: frozenset[int] = frozenset()
        self._without_leader: frozenset[int] = frozenset()
        self._names: dict[str, str] = {}
        self._noted_at = 0.0
        self._noted_complete = False

    def plan(self, admin: TopicClient, topic: TopicDescription, *, needs_all: bool = False) -> TopicProgress:
        """Plan a reading, and write what is known of the topic; returns the reading's progress at its start.

        Reading can go on while a log partition has no leader. It cannot begin: ``needs_all`` waits for all leaders.
        Raises StoreMismatch if the topic is not that of the store, and the errors of `TopicClient`.
        """
        self.store = self.store.refreshed()  # another process may have adopted a new topic of the same name
        check_topic(self.store.location, self._topic, self.store.properties, topic)
        topic_id = self.store.properties.topic_id
        # Before the requests. If another process appends meanwhile, a later look at the log would find records beyond
        # the topic's ends, as after a truncation.
        known = self.known()
        self.has_records = bool(known.ends)
        now_ms = self._clock.now_ms()  # before the request: the ends are then at least as new
        bounds = admin.bounds(topic.partitions, of_all=needs_all or self._unfinished is not None)
        retention_ms = admin.delete_retention_ms()
        # without a leader, the last one that is known to have had all records
        leader_epochs: dict[int, int | None] = {**known.leader_epochs}
        leader_epochs |= {at: epoch for at, epoch in admin.leader_epochs().items() if at in bounds}
        epoch_ends = admin.epoch_ends(known.leader_epochs)
        unfinished = self._unfinished
        if unfinished is not None:
            known_epochs = {at: epoch for at, epoch in unfinished.leader_epochs.items() if epoch is not None}
            if unfinished.has_lost_records(known, admin.epoch_ends(known_epochs)):
                unfinished = None
        reading = plan_reading(known, topic_id, topic, bounds, epoch_ends, retention_ms, now_ms, unfinished)
        if len(reading.starts) < topic.partitions:  # it begins at the start of each log partition
            return self.plan(admin, topic, needs_all=True)
        grace_ms = max(_GRACE_MS, _LATE_LOOKS * self._settings.topic.watch_interval_ms)
        progress = TopicProgress(reading, bounds, leader_epochs, now_ms, retention_ms + grace_ms)
        begun = None if unfinished is None else unfinished.reading.complete
        if reading.anew is not None and reading.complete != begun:  # else this is the rest of the unfinished reading
            self._warn(
                f"topic {self._topic} is read again from its beginning, as log incarnation {reading.log_incarnation}: "
                f"{reading.anew}"
            )
        self._unfinished = None if reading.anew is None else Unfinished(topic, reading, progress.leader_epochs)
        self._observer.planned(progress)
        if progress.counts:
            self.adopt(topic, admin.offsets_retention())
            self.note(progress)
        self.names(admin.topic_names())
        return progress

    def look(self, progress: TopicProgress, admin: TopicClient, topic: TopicDescription) -> bool:
        """Get the offsets of the topic, and write them to the store; False if the reading needs a new plan."""
        now_ms = self._clock.now_ms()
        if admin.describe() != topic or self.is_superseded(progress.reading.log_incarnation):
            return False
        bounds = admin.bounds(topic.partitions)
        transactions = admin.open_transactions([at for at, each in bounds.items() if each.stable < each.end])
        names = admin.topic_names()
        counted = progress.counts
        if not progress.look(now_ms, bounds, transactions):
            return False
        self.names(names)
        if progress.counts and (not counted or self.is_due(progress)):
            retention = admin.offsets_retention()
            self.note(progress)  # if the first reading is complete, this makes its incarnation count
            self.adopt(topic, retention)
            self._unfinished = None
        self._warn_of_open(progress.open_since_ms, transactions or [])
        self._warn_without_leader(progress.without_leader)
        self._observer.looked(progress)
        return True

    def begin_batch(self, progress: TopicProgress, ends: Mapping[int, FetchPosition]) -> int | None:
        """Note the new leaders of a batch before its records are appended; ``ends`` are the planned ones.

        Else, after a kill, the log would have records that a newer leader wrote, and the noted leader would not have
        them. Returns the time up to which this batch completes the log; None if unknown (R36).
        """
        if progress.take_leaders(ends) and progress.counts:
            self.note(progress)
        return progress.complete_with(ends) if progress.counts else None

    def end(self, progress: TopicProgress) -> None:
        """Write the progress of a query that has ended."""
        if progress.counts:
            self.note(progress)

    # --- what the store keeps of the topic

    def known(self) -> KnownLog:
        """The store's metadata of the topic, and the ends of its log."""
        current = self.store.current_log()
        ends = ends_by_incarnation(self.store.table(LOG.name))
        notes = self.store.table(LOG_PARTITIONS.name).snapshot().rows(only={"log_incarnation": [current.number]})
        followed = notes.filter(notes["complete_since"].is_valid()).to_pylist()
        if not followed:
            return KnownLog(current.offsets_partitions, current.number, ends)
        last = [ms_of(row["read_at"]) for row in followed if row["read_at"] is not None]
        return KnownLog(
            current.offsets_partitions,
            current.number,
            ends,
            {row["log_partition"]: row["end_offset"] for row in followed},
            {row["log_partition"]: row["leader_epoch"] for row in followed if row["leader_epoch"] is not None},
            CompleteReads(
                max(ms_of(row["complete_since"]) for row in followed),
                min(last) if len(last) == len(followed) else None,
            ),
        )

    def is_superseded(self, log_incarnation: int) -> bool:
        """Whether a later log incarnation counts: another process has read the topic again from its start."""
        return self.store.current_log().number > log_incarnation

    def note(self, progress: TopicProgress) -> None:
        """Write the topic's offsets and the reading's progress; the first write makes its log incarnation count."""
        last_ms = progress.complete.last_ms
        reads = {
            at: TopicRead(
                min(each.start, progress.read_to[at]),  # the topic's start may have moved past unread records
                progress.read_to[at],
                each.stable,
                max(each.end, progress.read_to[at]),
                progress.complete.since_ms,
                None if last_ms is None else max(last_ms, progress.read_at_ms.get(at, last_ms)),
                progress.open_since_ms.get(at),
                progress.leader_epochs.get(at),
                *progress.open_ids.get(at, (None, None)),
            )
            for at, each in progress.bounds.items()
        }
        LogMetadata(self.store, self._clock, progress.reading.log_incarnation).read(reads)
        self._noted_at = time.monotonic()
        self._noted_complete = last_ms is not None

    def is_due(self, progress: TopicProgress) -> bool:
        """Whether the last `note` is at least ``note_interval_ms`` old, or the log has all records for the first time.

        A store without that time is one that no process keeps up to date, and so never late.
        """
        is_first = progress.complete.last_ms is not None and not self._noted_complete
        return is_first or time.monotonic() - self._noted_at >= self._settings.topic.note_interval_ms / 1000

    def names(self, names: Mapping[str, str]) -> None:
        """Write new or changed names of topics, by topic id (R35)."""
        new = {topic_id: name for topic_id, name in names.items() if self._names.get(topic_id) != name}
        if new:
            note_topics(self.store, new.items())
            self._names |= new

    def adopt(self, topic: TopicDescription, retention: Retention | None = None) -> None:
        """Write the topic's cluster, id, name and number of partitions to the store's properties.

        ``retention`` is that of the cluster's offsets; None: it is not known now.
        """
        if retention is not None:
            retention = replace(retention, read_at_ms=self._clock.now_ms())
        self.store = self.store.with_topic(topic.cluster_id, topic.topic_id, self._topic, topic.partitions, retention)

    # --- warnings

    def _warn_of_open(self, open_since: Mapping[int, int], transactions: Sequence[OpenTransaction]) -> None:
        """Warn once of each log partition with a transaction that has been open for long; report its end."""
        limit_ms = self._settings.topic.open_transaction_warning_ms
        now_ms = self._clock.now_ms()
        hanging = {at: now_ms - since for at, since in open_since.items() if now_ms - since >= limit_ms}
        known = {each.partition: each for each in transactions}
        for at in sorted(hanging.keys() - self._warned_of):
            self._warn(
                f"a transaction{_named(known.get(at))} is open in log partition {at}, for at least "
                f"{hanging[at] // 1000} s: its commits stay pending until it ends (kafka-transactions.sh finds and "
                "aborts it)"
            )
        for at in sorted(self._warned_of - hanging.keys()):
            self._observer.transaction_ended(at)
        self._warned_of = frozenset(hanging)

    def _warn_without_leader(self, partitions: AbstractSet[int]) -> None:
        """Warn once of each log partition that has no leader."""
        for at in sorted(partitions - self._without_leader):
            self._warn(f"log partition {at} has no leader: its records are read when it has one again")
        self._without_leader = frozenset(partitions)


def _named(transaction: OpenTransaction | None) -> str:
    if transaction is None:
        return ""
    if transaction.transactional_id is None:
        return f" of producer id {transaction.producer_id}"
    return f" of {transaction.transactional_id!r} (producer id {transaction.producer_id})"
