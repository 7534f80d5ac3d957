"""Requests to the cluster about one topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.errors import KafkaFailed, NotAuthorized
from offsets_pipeline.ingest.record_kind import LOOK_RECORDS, RecordKey
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.log_offsets import (
    LATEST,
    OpenTransaction,
    epoch_ends,
    list_offsets,
    log_bounds,
    open_transactions,
)
from offsets_pipeline.kafka.broker.offset_ranges import FetchedBatches, OffsetRange, read_ranges
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Retention

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions

#: Kafka's default, used if the user may not read the topic's configuration.
DELETE_RETENTION_MS = 86_400_000

_DELETE_RETENTION = "delete.retention.ms"
_OFFSETS_RETENTION = ("offsets.retention.minutes", "offsets.retention.check.interval.ms")
_OFFSET_COMMIT, _OFFSET_COMMIT_OF_4_0 = 8, 2


@dataclass(frozen=True)
class TopicDescription:
    """Identity and partition count of a topic. An id is None if the broker has none."""

    cluster_id: str | None
    topic_id: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class LogPartitionBounds:
    """Log start offset, last stable offset and high watermark of a log partition."""

    start: int
    stable: int
    end: int


class TopicClient(Closing):
    """Client for one topic; close it with `close`, or use it in `with`.

    Every request may raise BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed.
    """

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self._cluster = Cluster(options)
        self._topic = topic

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def fetch(self, ranges: Iterable[OffsetRange]) -> Iterator[FetchedBatches]:
        """Fetch these ranges. Raises as `read_ranges`."""
        return read_ranges(self._cluster, self._topic, ranges)

    def address(self) -> str:
        """Host and port of the broker that answers requests about the cluster."""
        return self._cluster.connected().at

    def describe(self) -> TopicDescription:
        """The topic's id, its cluster's id, and its partition count."""
        topic = self._cluster.topic(self._topic)
        return TopicDescription(self._cluster.cluster_id(), topic.topic_id, len(topic.partitions))

    def leader_epochs(self) -> dict[int, int | None]:
        """The epoch of each log partition's leader; None if the broker sends none."""
        return {each: leader.epoch for each, leader in self._cluster.topic(self._topic).partitions.items()}

    def coordinator_semantics(self) -> CoordinatorSemantics:
        """The group coordinator of the cluster, which loads the log: by the requests that its brokers still answer.

        Kafka 4.0 has only the modern one, and dropped versions 0 and 1 of OffsetCommit (KIP-896). Brokers 3.7 to 3.9
        have it if the cluster has the feature group.version.
        """
        broker = self._cluster.connected()
        lowest, _ = broker.api_versions.get(_OFFSET_COMMIT, (0, 0))
        is_modern = lowest >= _OFFSET_COMMIT_OF_4_0 or broker.finalized_features.get("group.version", 0) > 0
        return CoordinatorSemantics.MODERN if is_modern else CoordinatorSemantics.CLASSIC

    def bounds(self, partitions: int, *, of_all: bool = False) -> dict[int, LogPartitionBounds]:
        """Log start offset, last stable offset and high watermark of each log partition but those without a leader.

        With ``of_all``, or if none has one, it waits for the leaders of all. Raises BrokerUnreachable if one does not
        come, NoSuchTopic if the topic has fewer partitions now.
        """
        topic = self._cluster.topic(self._topic)
        every = range(partitions)
        others = topic.partitions.keys() - topic.led(topic.partitions)
        led = [at for at in every if at not in others]
        places = [(self._topic, at) for at in (every if of_all or not led else led)]
        # before the high watermark, which is then not below it
        stable = answered(list_offsets(self._cluster, dict.fromkeys(places, LATEST), read_committed=True))
        found = answered(log_bounds(self._cluster, places))
        return {
            place[1]: LogPartitionBounds(each.start, max(stable[place] or 0, each.start), each.end)
            for place, each in found.items()
        }

    def epoch_ends(self, leader_epochs: Mapping[int, int]) -> dict[int, int]:
        """The record offset at which these leader epochs end in the log of the leader.

        It is 0 if the leader has only earlier epochs: the topic was created again. Omits other unknown epochs, and log
        partitions that the topic does not have, or that have no leader.
        """
        topic = self._cluster.topic(self._topic)
        partitions = topic.partitions
        places = {(self._topic, at): leader_epochs[at] for at in topic.led(leader_epochs.keys() & partitions.keys())}
        found = answered(epoch_ends(self._cluster, places))
        return {
            at: end or 0
            for (_, at), end in found.items()
            if end is not None or partitions[at].is_before(leader_epochs[at])
        }

    def first_records(self, bounds: Mapping[int, LogPartitionBounds | OffsetRange]) -> list[RecordKey]:
        """A few of the first records of each log partition, or of a range of it.

        Includes records of open and aborted transactions: their keys show the kind of records just as well.
        """
        found: dict[int, list[RecordKey]] = {}
        ranges = [OffsetRange(at, each.start, min(each.end, each.start + LOOK_RECORDS)) for at, each in bounds.items()]
        for fetched in read_ranges(self._cluster, self._topic, ranges):
            at = fetched.range.partition
            first = found.setdefault(at, [])
            segment = read_segment(
                fetched.records, source=self._topic, max_records=LOOK_RECORDS, good_at=fetched.good_at
            )
            for batch in segment.batches():
                rows = batch.select(["record_offset", "key", "control_type"]).to_pylist()
                first += [
                    RecordKey(at, row["record_offset"], row["key"]) for row in rows if row["control_type"] is None
                ]
                if len(first) >= LOOK_RECORDS:
                    break
        return [record for first in found.values() for record in first[:LOOK_RECORDS]]

    def open_transactions(self, partitions: Iterable[int]) -> list[OpenTransaction] | None:
        """The oldest open transaction of each log partition, which holds back the last stable offset.

        Returns None if the broker refuses the request.
        """
        try:
            found = open_transactions(self._cluster, self._topic, partitions)
        except (NotAuthorized, KafkaFailed):
            return None
        oldest: dict[int, OpenTransaction] = {}
        for each in found:
            oldest.setdefault(each.partition, each)  # in the order of their first offsets
        return list(oldest.values())

    def topic_names(self) -> dict[str, str]:
        """Names of all visible topics by topic id (R35); empty if the broker refuses the request."""
        try:
            topics = self._cluster.topics(None)
        except (NotAuthorized, KafkaFailed):
            return {}
        return {topic.topic_id: name for name, topic in topics.items() if topic.topic_id is not None}

    def delete_retention_ms(self) -> int:
        """The topic's delete.retention.ms; Kafka's default if the broker refuses the request."""
        try:
            value = self._cluster.configs(self._topic, [_DELETE_RETENTION]).get(_DELETE_RETENTION)
        except (NotAuthorized, KafkaFailed):
            return DELETE_RETENTION_MS
        return DELETE_RETENTION_MS if value is None else int(value)

    def offsets_retention(self) -> Retention | None:
        """The retention of committed offsets; None if a broker refuses the request, or if two brokers differ."""
        leaders = self._cluster.topic(self._topic).partitions.values()
        found = set()
        try:
            for node_id in {each.node_id for each in leaders if each.node_id is not None}:
                configs = self._cluster.configs(node_id, _OFFSETS_RETENTION)
                found.add(tuple(configs.get(name) for name in _OFFSETS_RETENTION))
        except (NotAuthorized, KafkaFailed):
            return None
        minutes, interval_ms = found.pop() if len(found) == 1 else (None, None)
        if minutes is None or interval_ms is None:
            return None
        return Retention(int(minutes) * MS_PER_MINUTE, int(interval_ms), is_known=True)
