"""A topic on brokers of our own: its logs, leaders and leader epochs change as a test says."""

from __future__ import annotations

import itertools
import struct
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.record_batches import BatchOptions, encode_batch
from tests.unit.broker.fake_broker import TOPIC, VERSIONS, FakeBroker, fake_broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

OPTIONS = {
    "request.timeout.ms": "2000",
    "default.api.timeout.ms": "3000",
    "retry.backoff.ms": "1",
    "fetch.max.wait.ms": "20",
}
NOT_LEADER, FENCED_EPOCH, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_AUTHORIZED = 6, 74, 1, 3, 29
_VERSIONS = VERSIONS | {
    MetadataRequest.API_KEY: (0, 12),
    ListOffsetsRequest.API_KEY: (1, 7),
    OffsetForLeaderEpochRequest.API_KEY: (2, 4),
    DescribeConfigsRequest.API_KEY: (1, 4),
    DescribeProducersRequest.API_KEY: (0, 0),
    ListTransactionsRequest.API_KEY: (0, 1),
    DescribeTransactionsRequest.API_KEY: (0, 0),
}
_EARLIEST, _READ_COMMITTED = -2, 1
_LAST_OFFSET_DELTA = struct.Struct(">i")


@dataclass(frozen=True)
class FakeBatch:
    """A record batch of these record offsets."""

    first: int
    last: int
    data: bytes


def batch(first: int, count: int = 1) -> FakeBatch:
    """A record batch, whose values are their record offsets."""
    offsets = range(first, first + count)
    values = pa.array([str(each).encode() for each in offsets], pa.binary())
    keys = pa.array([b"key"] * count, pa.binary())
    data = encode_batch(keys, values, base_offset=first, timestamps=1000, options=BatchOptions())
    return FakeBatch(first, first + count - 1, bytes(data))


def damaged(whole: FakeBatch) -> FakeBatch:
    """The batch with one byte of its last record changed."""
    data = bytearray(whole.data)
    data[-1] ^= 1
    return FakeBatch(whole.first, whole.last, bytes(data))


def with_last_offset(whole: FakeBatch, last: int) -> FakeBatch:
    """The batch with another last offset in its header, which the broker believes and the checksum contradicts."""
    data = bytearray(whole.data)
    _LAST_OFFSET_DELTA.pack_into(data, 23, last - whole.first)
    return FakeBatch(whole.first, last, bytes(data))


@dataclass
class FakePartition:
    """The log of a partition, and its leader.

    `epoch_ends`: where earlier leader epochs end. `segments`: record offsets at which a segment starts, besides the
    first; a fetch returns batches of one segment.
    """

    batches: list[FakeBatch]
    leader: int | None = 1
    epoch: int = 3
    start: int = 0
    stable: int | None = None
    high_watermark: int | None = None
    epoch_ends: dict[int, int] = field(default_factory=dict)
    segments: tuple[int, ...] = ()
    producers: list[tuple[int, int, int]] = field(default_factory=list)  # id, last write, start of its transaction

    @property
    def end(self) -> int:
        if self.high_watermark is not None:
            return self.high_watermark
        return self.batches[-1].last + 1 if self.batches else self.start


class FakeTopic:
    """The topic; change it within `changing`, so that fetches that wait see the change."""

    def __init__(self, partitions: dict[int, FakePartition]) -> None:
        self.partitions = partitions
        self.brokers: dict[int, FakeBroker] = {}
        self.down: set[int] = set()  # brokers that the metadata leaves out
        self.is_missing = False
        self.topics: dict[str, UUID] = {}  # other topics
        self.topic_id: UUID | None = None
        self.configs: dict[str, str | None] = {}
        self.broker_configs: dict[int, dict[str, str | None]] = {}
        self.transactions: dict[str, tuple[int, int]] = {}  # by transactional id: producer id, start
        self.refused: dict[int, int] = {}  # by API key: an error code
        self._changed = threading.Condition()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change the topic in this block."""
        with self._changed:
            yield
            self._changed.notify_all()

    def serve(self, node_id: int, broker: FakeBroker) -> None:
        """Answer at this broker."""
        self.brokers[node_id] = broker
        broker.versions = _VERSIONS
        for kind, answer in {
            MetadataRequest: self._metadata,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            OffsetForLeaderEpochRequest: self._epoch_ends,
            DescribeConfigsRequest: self._configs,
            DescribeProducersRequest: self._producers,
            ListTransactionsRequest: self._list_transactions,
            DescribeTransactionsRequest: self._describe_transactions,
        }.items():

            def respond(number: int, kind: Any = kind, answer: Any = answer) -> Any:  # noqa: ANN401
                request = broker.request(kind, number)
                with self._changed:
                    return answer(request, node_id)

            broker.answers[kind.API_KEY] = respond

    def _metadata(self, request: Any, _: int) -> Any:  # noqa: ANN401
        of_topic = MetadataResponse.MetadataResponseTopic
        partitions = [
            of_topic.MetadataResponsePartition(
                error_code=0,
                partition_index=each,
                leader_id=-1 if at.leader is None else at.leader,
                leader_epoch=at.epoch,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for each, at in self.partitions.items()
        ]
        topics = {TOPIC: (self.topic_id, partitions), **{name: (at, []) for name, at in self.topics.items()}}
        if self.is_missing:
            del topics[TOPIC]
        names = topics.keys() if request.topics is None else [each.name for each in request.topics]
        found = [(name, topics.get(name)) for name in names]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=each, host="127.0.0.1", port=at.port, rack=None)
                for each, at in self.brokers.items()
                if each not in self.down
            ],
            cluster_id="c",
            controller_id=1,
            topics=[
                of_topic(error_code=UNKNOWN_TOPIC, name=name, topic_id=None, is_internal=False, partitions=[])
                if known is None
                else of_topic(error_code=0, name=name, topic_id=known[0], is_internal=False, partitions=known[1])
                for name, known in found
            ],
        )

    def _fetch(self, request: Any, node_id: int) -> Any:  # noqa: ANN401
        wanted = [each for topic in request.topics for each in topic.partitions]

        def may_answer() -> bool:
            return any(self._error(each, node_id) or self._batches(each) for each in wanted)

        self._changed.wait_for(may_answer, request.max_wait_ms / 1000)
        left, is_first, found = request.max_bytes, True, []
        of_topic = FetchResponse.FetchableTopicResponse
        for each in wanted:
            at, error = self.partitions[each.partition], self._error(each, node_id)
            limit, records = min(left, each.partition_max_bytes), b""
            for data in () if error else self._batches(each):
                if not is_first and len(records) + len(data) > limit:
                    records += data[: max(0, limit - len(records))] if records else b""  # cut off, but not alone
                    break
                records += data
                is_first = False
            left -= len(records)
            found.append(
                of_topic.PartitionData(
                    partition_index=each.partition,
                    error_code=error,
                    high_watermark=-1 if error else at.end,
                    last_stable_offset=-1 if error else at.end if at.stable is None else at.stable,
                    log_start_offset=-1 if error else at.start,
                    aborted_transactions=None,
                    preferred_read_replica=-1,
                    records=records,
                )
            )
        return FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=0, responses=[of_topic(topic=TOPIC, partitions=found)]
        )

    def _error(self, wanted: Any, node_id: int) -> int:  # noqa: ANN401
        at = self.partitions[wanted.partition]
        if at.leader != node_id:
            return NOT_LEADER
        if wanted.current_leader_epoch not in (-1, at.epoch):
            return FENCED_EPOCH
        return 0 if at.start <= wanted.fetch_offset <= at.end else OUT_OF_RANGE

    def _batches(self, wanted: Any) -> list[bytes]:  # noqa: ANN401
        at, offset = self.partitions[wanted.partition], wanted.fetch_offset
        starts = [0, *at.segments, sys.maxsize]
        for start, end in itertools.pairwise(starts):
            of_segment = [each for each in at.batches if start <= each.first < end] if offset < end else []
            found = [each.data for each in itertools.dropwhile(lambda each: each.last < offset, of_segment)]
            if found:
                return found
        return []

    def _list_offsets(self, request: Any, _: int) -> Any:  # noqa: ANN401
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse

        def offset(each: Any) -> int:  # noqa: ANN401
            at = self.partitions[each.partition_index]
            if each.timestamp == _EARLIEST:
                return at.start
            return at.end if at.stable is None or request.isolation_level != _READ_COMMITTED else at.stable

        partitions = [
            of_topic.ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                error_code=self.refused.get(request.API_KEY, 0),
                timestamp=-1,
                offset=offset(each),
                leader_epoch=-1,
            )
            for topic in request.topics
            for each in topic.partitions
        ]
        return ListOffsetsResponse(throttle_time_ms=0, topics=[of_topic(name=TOPIC, partitions=partitions)])

    def _epoch_ends(self, request: Any, _: int) -> Any:  # noqa: ANN401
        of_topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

        def end(each: Any) -> int:  # noqa: ANN401
            at = self.partitions[each.partition]
            return at.end if each.leader_epoch == at.epoch else at.epoch_ends.get(each.leader_epoch, -1)

        partitions = [
            of_topic.EpochEndOffset(
                error_code=0, partition=each.partition, leader_epoch=each.leader_epoch, end_offset=end(each)
            )
            for topic in request.topics
            for each in topic.partitions
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[of_topic(topic=TOPIC, partitions=partitions)])

    def _configs(self, request: Any, node_id: int) -> Any:  # noqa: ANN401
        (asked,) = request.resources
        is_topic = (asked.resource_type, asked.resource_name) == (2, TOPIC)
        assert is_topic or (asked.resource_type, asked.resource_name) == (4, str(node_id)), "of another broker"
        of_resource = DescribeConfigsResponse.DescribeConfigsResult
        configs = [
            of_resource.DescribeConfigsResourceResult(
                name=name, value=value, read_only=False, config_source=1, is_sensitive=False, synonyms=[]
            )
            for name, value in (self.configs if is_topic else self.broker_configs.get(node_id, {})).items()
        ]
        error = self.refused.get(request.API_KEY, 0)
        result = of_resource(
            error_code=error,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=[] if error else configs,
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=[result])

    def _producers(self, request: Any, _: int) -> Any:  # noqa: ANN401
        of_topic = DescribeProducersResponse.TopicResponse
        partitions = [
            of_topic.PartitionResponse(
                partition_index=each,
                error_code=self.refused.get(request.API_KEY, 0),
                error_message=None,
                active_producers=[
                    of_topic.PartitionResponse.ProducerState(
                        producer_id=producer_id,
                        producer_epoch=0,
                        last_sequence=0,
                        last_timestamp=last,
                        coordinator_epoch=0,
                        current_txn_start_offset=start,
                    )
                    for producer_id, last, start in self.partitions[each].producers
                ],
            )
            for topic in request.topics
            for each in topic.partition_indexes
        ]
        return DescribeProducersResponse(throttle_time_ms=0, topics=[of_topic(name=TOPIC, partitions=partitions)])

    def _list_transactions(self, request: Any, _: int) -> Any:  # noqa: ANN401
        return ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=self.refused.get(request.API_KEY, 0),
            unknown_state_filters=[],
            transaction_states=[
                ListTransactionsResponse.TransactionState(
                    transactional_id=name, producer_id=producer_id, transaction_state="Ongoing"
                )
                for name, (producer_id, _) in self.transactions.items()
                if producer_id in request.producer_id_filters
            ],
        )

    def _describe_transactions(self, request: Any, _: int) -> Any:  # noqa: ANN401
        states = [
            DescribeTransactionsResponse.TransactionState(
                error_code=0,
                transactional_id=name,
                transaction_state="Ongoing",
                transaction_timeout_ms=1,
                transaction_start_time_ms=self.transactions[name][1],
                producer_id=self.transactions[name][0],
                producer_epoch=0,
                topics=[],
            )
            for name in request.transactional_ids
        ]
        return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)


@contextmanager
def fake_topic(partitions: dict[int, FakePartition], brokers: Iterable[int] = (1,)) -> Iterator[FakeTopic]:
    """A topic on these brokers while the block runs."""
    topic = FakeTopic(partitions)
    with ExitStack() as running:
        for node_id in brokers:
            topic.serve(node_id, running.enter_context(fake_broker()))
        yield topic


def options_of(topic: FakeTopic, **more: str) -> KafkaOptions:
    """Options with short timeouts, and others with _ for each dot."""
    address = ",".join(each.address for each in topic.brokers.values())
    return KafkaOptions(address, OPTIONS | {name.replace("_", "."): value for name, value in more.items()})


def cluster_of(topic: FakeTopic, **more: str) -> Cluster:
    """A client of the topic's cluster."""
    return Cluster(options_of(topic, **more))
