"""Plans the reading of a topic: resume at the log's end, or read the topic again from its start. Free of Spark.

A broker's cleaner keeps the last record of each key; it keeps a tombstone for `delete.retention.ms`. A reader of a
compacted topic misses no deletion if less than this time passes between two complete reads. After a longer gap the
reader may have missed tombstones, and its log would keep the deleted keys. Then this program reads the topic again from
its start, as a new log incarnation. It does the same if the topic no longer matches the log (docs/adr/0014).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicDescription
    from offsets_pipeline.store.delta.properties import StoreProperties


#: Clocks of two machines that follow one store may differ so much.
_CLOCKS_DIFFER_MS = 600_000


@dataclass(frozen=True)
class CompleteReads:
    """Times of complete reads of the topic, in milliseconds since 1970.

    ``since_ms``: start of the first reading of this log incarnation; the log has missed nothing since. ``last_ms``:
    the last time at which the log held all records; None until the first reading is complete.
    """

    since_ms: int
    last_ms: int | None = None

    @property
    def known_ms(self) -> int:
        """The last complete read, or else the start of the first reading."""
        return self.since_ms if self.last_ms is None else self.last_ms

    def is_gap(self, now_ms: int, longest_ms: int) -> bool:
        """Whether the log may lack tombstones that came and went since the last complete read.

        So it may if that was longer ago than ``longest_ms``, or ahead of this clock, which was set back.
        """
        return not -_CLOCKS_DIFFER_MS <= now_ms - self.known_ms <= longest_ms


@dataclass(frozen=True)
class KnownLog:
    """The ends of a store's log, and the progress that `follow` or `ingest-topic` saved in the store.

    ``log_incarnation``: the current log incarnation. ``partitions``: the number of its log partitions. ``ends``: by log
    incarnation and log partition, the record offset after the last record. ``read_to``: by log partition, the saved
    record offset of the next record to read. ``leader_epochs``: by log partition, the epoch of the leader that had all
    records before it. ``complete``: the saved times of complete reads; None if the store never followed the topic.
    """

    partitions: int
    log_incarnation: int = LOG_INCARNATION
    ends: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    read_to: Mapping[int, int] = field(default_factory=dict)
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    complete: CompleteReads | None = None


@dataclass(frozen=True)
class Reading:
    """A plan: the incarnation of the log, the first record offset of each log partition, and the complete reads so far.

    ``anew`` is the reason for a new log incarnation, which is read from the topic's start; None if the current one
    continues.
    """

    log_incarnation: int
    starts: Mapping[int, int]
    complete: CompleteReads
    anew: str | None = None


@dataclass(frozen=True)
class Unfinished:
    """A topic, and a reading of it from its start that this process began and has not completed.

    The reading appends to a new log incarnation. ``leader_epochs``: by log partition, the epoch of a leader that had
    all records that the reading appended; None if the broker sends none.
    """

    topic: TopicDescription
    reading: Reading
    leader_epochs: Mapping[int, int | None] = field(default_factory=dict)

    def has_lost_records(self, known: KnownLog, epoch_ends: Mapping[int, int]) -> bool:
        """Whether the leaders lack records that the reading appended; ``epoch_ends``: where its leader epochs end."""
        appended_to = known.ends.get(self.reading.log_incarnation, {})
        return any(end < appended_to.get(at, 0) for at, end in epoch_ends.items())


def check_topic(location: str, name: str, known: StoreProperties, topic: TopicDescription) -> None:
    """Raise StoreMismatch if this store mirrors another topic (R4)."""
    if known.topic_name not in (None, name):
        raise StoreMismatch(
            f"{location} mirrors topic {known.topic_name}, not {name}; check --topic, or name another store"
        )
    if None not in (known.cluster_id, topic.cluster_id) and known.cluster_id != topic.cluster_id:
        raise StoreMismatch(
            f"{location} mirrors cluster {known.cluster_id}, not {topic.cluster_id}; "
            "check the address, or name another store"
        )


def plan_reading(
    known: KnownLog,
    known_topic_id: str | None,
    topic: TopicDescription,
    bounds: Mapping[int, LogPartitionBounds],
    epoch_ends: Mapping[int, int],
    delete_retention_ms: int,
    now_ms: int,
    unfinished: Unfinished | None = None,
) -> Reading:
    """Plan where to read from. Resumes ``unfinished`` if the gap since its last complete read misses no tombstone.

    ``bounds`` may lack log partitions, which have no leader. A reading from the topic's start then lacks their starts:
    it cannot begin yet. ``epoch_ends``: by log partition, where the leader epoch of ``known`` ends in the log of the
    leader.
    """
    resumed = _resumed(unfinished, known, topic, bounds, delete_retention_ms, now_ms)
    if resumed is not None:
        return resumed
    there = known.ends.get(known.log_incarnation, {})
    positions = {at: max(there.get(at, 0), known.read_to.get(at, 0)) for at in range(topic.partitions)}
    starts = {at: each.start for at, each in bounds.items()}
    is_new = not any(known.ends.values()) and known.complete is None and known_topic_id in (None, topic.topic_id)
    if is_new and known.partitions == topic.partitions:
        return Reading(known.log_incarnation, starts, CompleteReads(now_ms))
    reasons = _reasons(known, known_topic_id, topic, bounds, positions, epoch_ends, delete_retention_ms, now_ms)
    why = next(reasons, None)
    if why is not None:
        log_incarnation = max([known.log_incarnation, *known.ends]) + 1
        return Reading(log_incarnation, starts, CompleteReads(now_ms), why)
    assert known.complete is not None  # noqa: S101 - else there is a reason
    return Reading(known.log_incarnation, positions, known.complete)


def _resumed(
    unfinished: Unfinished | None,
    known: KnownLog,
    topic: TopicDescription,
    bounds: Mapping[int, LogPartitionBounds],
    delete_retention_ms: int,
    now_ms: int,
) -> Reading | None:
    """Plan to continue the unfinished reading at the end of its log incarnation.

    Returns None if no reading is unfinished, or if the reading cannot continue, for example after a gap longer than
    `delete_retention_ms`.
    """
    if unfinished is None or unfinished.topic != topic:
        return None
    reading = unfinished.reading
    if reading.log_incarnation <= known.log_incarnation or reading.log_incarnation < max(known.ends, default=0):
        return None  # another process began a later log incarnation, which wins
    if reading.complete.is_gap(now_ms, delete_retention_ms):
        return None
    there = known.ends.get(reading.log_incarnation, {})
    starts = {at: max(start, there.get(at, 0)) for at, start in reading.starts.items()}
    if any(not each.start <= starts[at] <= each.end for at, each in bounds.items()):
        return None
    return replace(reading, starts=starts)


def _reasons(
    known: KnownLog,
    known_topic_id: str | None,
    topic: TopicDescription,
    bounds: Mapping[int, LogPartitionBounds],
    positions: Mapping[int, int],
    epoch_ends: Mapping[int, int],
    delete_retention_ms: int,
    now_ms: int,
) -> Iterator[str]:
    """Yield the reasons to read the topic again from its start."""
    if None not in (known_topic_id, topic.topic_id) and known_topic_id != topic.topic_id:
        yield f"the topic was deleted and created again (its id was {known_topic_id}, it is {topic.topic_id})"
    if known.partitions != topic.partitions:  # R1: the log partition of a group depends on their number
        yield f"the topic has {topic.partitions} partitions, the log has {known.partitions}"
    if known.ends and max(known.ends) > known.log_incarnation:
        yield "an earlier reading from its beginning did not reach the end"
    complete = known.complete
    if complete is None:
        yield "`follow` has no progress in this log, which may lack records of the topic"
        return
    for at, each in sorted(bounds.items()):
        if each.start > positions[at]:
            yield f"log partition {at} now starts at {each.start}, but was read up to {positions[at]}"
        if each.end < positions[at]:
            yield f"log partition {at} now ends at {each.end}, but was read up to {positions[at]}"
    for at, end in sorted(epoch_ends.items()):
        if end < positions[at]:  # after an unclean election, also if the log has grown since
            yield (
                f"a new leader of log partition {at} has the records of leader epoch {known.leader_epochs[at]} only up "
                f"to {end}, but it was read up to {positions[at]}"
            )
    if complete.is_gap(now_ms, delete_retention_ms):
        last = (
            f"its first reading began at {shown_time(complete.since_ms)} and did not reach its end"
            if complete.last_ms is None
            else f"it was last read to its end at {shown_time(complete.last_ms)}"
        )
        if complete.known_ms > now_ms:
            yield f"{last}, ahead of this machine's clock, which was set back"
        else:
            yield f"{last}, longer ago than the topic keeps tombstones (delete.retention.ms {delete_retention_ms})"
