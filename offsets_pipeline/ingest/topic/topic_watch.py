"""Planning of a topic's readings, and looks at the topic while a query reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.ingest.topic.topic_plan import Unfinished, check_topic, plan_reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.ingest.topic.mirrored_topic import MirroredTopic
    from offsets_pipeline.ingest.topic.topic_client import TopicClient, TopicDescription
    from offsets_pipeline.ingest.topic.topic_observer import TopicObserver
    from offsets_pipeline.kafka.broker.fetch import FetchPosition
    from offsets_pipeline.kafka.broker.open_transactions import OpenTransaction
    from offsets_pipeline.store.store import Store

# Tolerance added to `delete.retention.ms` when the times of two complete reads are compared. A query reads new records
# within seconds, but `TopicIngest` sees that only at its next look.
_GRACE_MS, _LATE_LOOKS = 60_000, 4


class TopicWatch:
    """Plans the readings of one topic, and writes to the store what looks at the topic find.

    ``warn`` is called with warnings of one line.
    """

    def __init__(
        self,
        notes: MirroredTopic,
        topic: str,
        settings: Settings,
        clock: Clock,
        observer: TopicObserver,
        warn: Callable[[str], None],
    ) -> None:
        self._notes = notes
        self._topic = topic
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._warn = warn
        self._unfinished: Unfinished | None = None
        self._warned_of: frozenset[int] = frozenset()

    @property
    def store(self) -> Store:
        """The store, with its present properties."""
        return self._notes.store

    def plan(self, admin: TopicClient, topic: TopicDescription) -> TopicProgress:
        """Plan a reading, and write what is known of the topic; returns the reading's progress at its start.

        Raises StoreMismatch if the topic is not that of the store, and the errors of `TopicClient`.
        """
        self._notes.refresh()
        check_topic(self.store.location, self._topic, self.store.properties, topic)
        topic_id = self.store.properties.topic_id
        # Before the requests. If another process appends meanwhile, a later look at the log would find records beyond
        # the topic's ends, as after a truncation.
        known = self._notes.known()
        now_ms = self._clock.now_ms()  # before the request: the ends are then at least as new
        bounds = admin.bounds(topic.partitions)
        retention_ms = admin.delete_retention_ms()
        leader_epochs = admin.leader_epochs()
        epoch_ends = admin.epoch_ends(known.leader_epochs)
        unfinished = self._unfinished
        if unfinished is not None:
            known_epochs = {at: epoch for at, epoch in unfinished.leader_epochs.items() if epoch is not None}
            if unfinished.has_lost_records(known, admin.epoch_ends(known_epochs)):
                unfinished = None
        reading = plan_reading(known, topic_id, topic, bounds, epoch_ends, retention_ms, now_ms, unfinished)
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
            self._notes.adopt(topic, admin.offsets_retention())
            self._notes.note(progress)
        self._notes.names(admin.topic_names())
        return progress

    def look(self, progress: TopicProgress, admin: TopicClient, topic: TopicDescription) -> bool:
        """Get the offsets of the topic, and write them to the store; False if the reading needs a new plan."""
        now_ms = self._clock.now_ms()
        if admin.describe() != topic or self._notes.is_superseded(progress.reading.log_incarnation):
            return False
        bounds = admin.bounds(topic.partitions)
        transactions = admin.open_transactions([at for at, each in bounds.items() if each.stable < each.end])
        names = admin.topic_names()
        counted = progress.counts
        if not progress.look(now_ms, bounds, transactions):
            return False
        self._notes.names(names)
        if progress.counts and (not counted or self._notes.is_due(progress)):
            retention = admin.offsets_retention()
            self._notes.note(progress)  # if the first reading is complete, this makes its incarnation count
            self._notes.adopt(topic, retention)
            self._unfinished = None
        self._warn_of_open(progress.open_since_ms, transactions or [])
        self._observer.looked(progress)
        return True

    def begin_batch(self, progress: TopicProgress, ends: Mapping[int, FetchPosition]) -> int | None:
        """Note the new leaders of a batch before its records are appended; ``ends`` are the planned ones.

        Else, after a kill, the log would have records that a newer leader wrote, and the noted leader would not have
        them. Returns the time up to which this batch completes the log; None if unknown (R36).
        """
        if progress.take_leaders(ends) and progress.counts:
            self._notes.note(progress)
        return progress.complete_with(ends) if progress.counts else None

    def end(self, progress: TopicProgress) -> None:
        """Write the progress of a query that has ended."""
        if progress.counts:
            self._notes.note(progress)

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


def _named(transaction: OpenTransaction | None) -> str:
    if transaction is None:
        return ""
    if transaction.transactional_id is None:
        return f" of producer id {transaction.producer_id}"
    return f" of {transaction.transactional_id!r} (producer id {transaction.producer_id})"
