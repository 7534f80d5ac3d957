"""Reads and writes a store's metadata about the topic that it mirrors."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import ms_of
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, KnownLog
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.log_scan import ends_by_incarnation
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead, note_topics, partition_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.ingest.topic.topic_client import TopicDescription
    from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.store import Store


class MirroredTopic:
    """Metadata of one topic in one store.

    Every method that writes raises WriteConflict if other writers committed first too often.
    """

    def __init__(self, store: Store, topic_name: str, settings: Settings, clock: Clock) -> None:
        self.store = store
        self._topic_name = topic_name
        self._settings = settings
        self._clock = clock
        self._names: dict[str, str] = {}
        self._noted_at = 0.0
        self._noted_complete = False

    def refresh(self) -> None:
        """Read the store's properties again: another process may have adopted a new topic of the same name."""
        self.store = self.store.refreshed()

    def known(self) -> KnownLog:
        """The store's metadata of the topic, and the ends of its log."""
        current = self.store.current_log()
        ends = ends_by_incarnation(self.store.table(LOG.name))
        rows = partition_rows(self.store, current.number)
        followed = [row for row in rows if row["complete_since"] is not None]
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
        of_topic = topic.cluster_id, topic.topic_id, self._topic_name, topic.partitions
        if retention is not None:
            retention = replace(retention, read_at_ms=self._clock.now_ms())
        self.store = self.store.with_topic(*of_topic, retention)
