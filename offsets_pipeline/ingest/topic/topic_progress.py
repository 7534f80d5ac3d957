"""Progress of a reading, from the offsets of the query and of the topic, and its reports. Free of Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds
    from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading
    from offsets_pipeline.kafka.broker.fetch import FetchPosition
    from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction

_Value = TypeVar("_Value")


class TopicProgress:
    """Offsets read so far, and the time of the last complete read; decides whether the log incarnation counts.

    All are by log partition. ``read_to``: the first unread record offset. ``leader_epochs``: the epoch of a leader that
    had all records before it, and all that the log holds. ``bounds``: the topic's offsets at the last look at which
    the log partition had a leader.
    ``open_since_ms``: since when a transaction is open. ``open_ids``: its producer id and transactional id, as far as
    the cluster tells them. ``began_ms``: when the reading was planned. ``read_at_ms``: the last time at which the log
    had all records of a log partition; those that are behind may be missing.
    """

    def __init__(
        self,
        reading: Reading,
        bounds: Mapping[int, LogPartitionBounds],
        leader_epochs: Mapping[int, int | None],
        now_ms: int,
        longest_gap_ms: int,
    ) -> None:
        self.reading = reading
        self.bounds = bounds
        self.read_to = dict(reading.starts)
        self.leader_epochs = dict(leader_epochs)
        self.complete: CompleteReads = reading.complete
        self.open_since_ms: Mapping[int, int] = {}
        self.open_ids: Mapping[int, tuple[int, str | None]] = {}
        self.began_ms = now_ms
        self._longest_gap_ms = longest_gap_ms
        # The ends at an earlier look, and the time of that look; later looks check that the query has read up to them.
        self._asked_ms, self._asked = self._looked_ms, self._looked = now_ms, _ends(bounds)
        self.read_at_ms = {at: now_ms for at, each in bounds.items() if self.read_to[at] >= each.end}
        self._still: dict[int, tuple[int, int]] = {}

    @property
    def counts(self) -> bool:
        """Whether this reading's log incarnation counts: a new one counts once its first reading is complete."""
        return self.reading.anew is None or self.complete.last_ms is not None

    @property
    def without_leader(self) -> set[int]:
        """The log partitions that had no leader at the last look."""
        return self.read_to.keys() - self._looked.keys()

    def behind(self) -> dict[int, int]:
        """Record offsets up to the high watermark of the last look that were not read yet, by log partition."""
        return {at: max(0, each.end - self.read_to[at]) for at, each in self.bounds.items()}

    def advance(self, ends: Mapping[int, FetchPosition]) -> None:
        """Take the ends of a batch that the log has. The query does so in its own thread."""
        read = {at: end for at, end in ends.items() if end.offset >= self.read_to.get(at, 0)}
        self.take_leaders(read)
        self.read_to = self.read_to | {at: end.offset for at, end in read.items()}  # a look may read it meanwhile

    def take_leaders(self, ends: Mapping[int, FetchPosition]) -> bool:
        """Take the leader epochs of these ends; returns whether one is newer than those known.

        A leader with all records of a batch has those before the batch too, so its epoch is valid for ``read_to``
        already when the batch is planned.
        """
        newer: dict[int, int] = {}
        for at, end in ends.items():
            known = self.leader_epochs.get(at)
            if end.leader_epoch is not None and (known is None or end.leader_epoch > known):
                newer[at] = end.leader_epoch
        self.leader_epochs |= newer
        return bool(newer)

    def look(
        self,
        now_ms: int,
        bounds: Mapping[int, LogPartitionBounds],
        transactions: Collection[OpenTransaction] | None = None,
    ) -> bool:
        """Take the topic's offsets as of ``now_ms`` or later; False if tombstones may have come and gone unread.

        ``bounds`` lacks log partitions without a leader: the log is not complete then. ``transactions``: the oldest
        open one of each log partition. None if the cluster refuses this request: then the time since when the stable
        offset has not moved is a lower bound of the age.
        """
        if self.complete.is_gap(now_ms, self._longest_gap_ms):
            return False  # even if the query has caught up since: the process may have slept for longer than the gap
        ends = _ends(bounds)
        self.bounds = {**self.bounds, **bounds}
        self._looked_ms, self._looked = now_ms, ends
        self._still = {
            at: self._still[at] if self._still.get(at, (None,))[0] == each.stable else (each.stable, now_ms)
            for at, each in self.bounds.items()
            if each.stable < each.end
        }
        open_since_ms = (
            {at: since for at, (_, since) in self._still.items()}
            if transactions is None
            else {each.partition: each.started_ms or each.last_write_ms for each in transactions}
        )
        open_ids = {each.partition: (each.producer_id, each.transactional_id) for each in transactions or ()}
        self.open_since_ms = self._of_leaderless(self.open_since_ms) | open_since_ms
        self.open_ids = self._of_leaderless(self.open_ids) | open_ids
        for looked_ms, looked in ((self._asked_ms, self._asked), (now_ms, ends)):
            for at, end in looked.items():
                if self.read_to[at] >= end:
                    self.read_at_ms[at] = max(looked_ms, self.read_at_ms.get(at, looked_ms))
        has_read_asked = self._is_complete(self.read_to, self._asked)
        if has_read_asked:
            self.complete = replace(self.complete, last_ms=self._asked_ms)
        if has_read_asked or len(self._asked) < len(self.read_to):
            self._asked_ms, self._asked = now_ms, ends
        if self._is_complete(self.read_to, ends):
            self.complete = replace(self.complete, last_ms=now_ms)
        return True

    def complete_with(self, planned: Mapping[int, FetchPosition]) -> int | None:
        """Time up to which the log is complete when it has the records up to these ends; None: unknown (R36)."""
        read_to = {at: each.offset for at, each in planned.items()}
        for looked_ms, ends in ((self._looked_ms, self._looked), (self._asked_ms, self._asked)):
            if self._is_complete(read_to, ends):
                return looked_ms
        return None

    def _of_leaderless(self, known: Mapping[int, _Value]) -> dict[int, _Value]:
        """What was known of log partitions that have no leader now."""
        return {at: each for at, each in known.items() if at in self.without_leader}

    def _is_complete(self, read_to: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Whether these are the ends of all log partitions, and all of them are read up to their end."""
        return len(ends) == len(self.read_to) and all(read_to.get(at, -1) >= end for at, end in ends.items())


def _ends(bounds: Mapping[int, LogPartitionBounds]) -> dict[int, int]:
    return {at: each.end for at, each in bounds.items()}


class TopicObserver:
    """Reports of an ingest of a topic: callbacks of `TopicIngest`. The methods of this base class do nothing."""

    def connected(self, address: str, cluster_id: str | None) -> None:
        """A broker answered at this address; the id is None if the cluster has none."""

    def missing(self, address: str) -> None:
        """The cluster at this address does not have the topic yet: the ingest waits for it."""

    def planned(self, progress: TopicProgress) -> None:
        """A reading starts or restarts."""

    def landed(self, records: int) -> None:
        """A batch appended this number of records to the log."""

    def looked(self, progress: TopicProgress) -> None:
        """A look at the topic succeeded."""

    def unreachable(self, error: OffsetsError) -> None:
        """A request about the topic failed, or the store's storage (StorageFailed); it is retried."""

    def transaction_ended(self, log_partition: int) -> None:
        """A transaction that a warning reported as open has ended."""

    def warned(self, text: str) -> None:
        """A warning of one line."""
