"""The cluster's answers about a topic, and answers that it refuses, from a broker of our own."""

from __future__ import annotations

import uuid

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetCommitRequest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.errors import BrokerUnreachable, NoSuchTopic, NotAuthorized
from offsets_pipeline.ingest.record_kind import LOOK_RECORDS, RecordKey
from offsets_pipeline.ingest.topic.topic_client import (
    DELETE_RETENTION_MS,
    LogPartitionBounds,
    TopicClient,
    TopicDescription,
)
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.log_offsets import OpenTransaction
from offsets_pipeline.semantics.retention import Retention
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import (
    NOT_AUTHORIZED,
    FakePartition,
    FakeTopic,
    batch,
    damaged,
    fake_topic,
    options_of,
)

UNSUPPORTED_VERSION = 35
TOPIC_ID = uuid.UUID(int=255)
IN_KAFKAS_NOTATION = "AAAAAAAAAAAAAAAAAAAA_w"


def client_of(topic: FakeTopic) -> TopicClient:
    return TopicClient(options_of(topic, default_api_timeout_ms="100"), TOPIC)


def test_a_topic_has_an_id_and_partitions_and_its_cluster_an_id() -> None:
    with fake_topic({0: FakePartition([]), 1: FakePartition([], epoch=7)}) as topic, client_of(topic) as client:
        topic.topic_id = TOPIC_ID
        assert client.describe() == TopicDescription("c", IN_KAFKAS_NOTATION, 2)
        assert client.leader_epochs() == {0: 3, 1: 7}


def test_ids_that_the_cluster_does_not_have_are_none() -> None:
    with fake_topic({0: FakePartition([])}) as topic:
        topic.brokers[1].versions = topic.brokers[1].versions | {MetadataRequest.API_KEY: (0, 9)}  # before topic ids
        with client_of(topic) as client:
            assert client.describe() == TopicDescription("c", None, 1)
            assert client.topic_names() == {}


@pytest.mark.parametrize(
    ("versions", "features", "expected"),
    [
        ((0, 9), {}, "classic"),
        ((1, 9), {"group.version": 0}, "classic"),
        ((0, 9), {"group.version": 1}, "modern"),
        ((2, 10), {}, "modern"),
        (None, {}, "classic"),
    ],
)
def test_coordinator_is_modern_from_4_0_on_or_by_the_clusters_feature(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[int, int] | None, features: dict[str, int], expected: str
) -> None:
    connected = Cluster.connected

    def with_features(cluster: Cluster) -> object:
        connection = connected(cluster)
        connection.finalized_features = features
        return connection

    monkeypatch.setattr(Cluster, "connected", with_features)
    with fake_topic({0: FakePartition([])}) as topic:
        if versions is not None:
            topic.brokers[1].versions = topic.brokers[1].versions | {OffsetCommitRequest.API_KEY: versions}
        with client_of(topic) as client:
            assert client.coordinator_semantics() == expected


def test_bounds_and_ends_of_leader_epochs_are_those_of_the_leaders() -> None:
    partitions = {
        0: FakePartition([batch(4, 6)], start=4, stable=7, epoch_ends={1: 5}),
        1: FakePartition([], epoch_ends={}),
    }
    with fake_topic(partitions) as topic, client_of(topic) as client:
        assert client.bounds(2) == {0: LogPartitionBounds(4, 7, 10), 1: LogPartitionBounds(0, 0, 0)}
        assert client.epoch_ends({0: 1, 1: 1}) == {0: 5}  # partition 1 does not know the epoch


def test_log_partitions_of_an_earlier_topic_with_more_partitions_have_no_epochs() -> None:
    with fake_topic({0: FakePartition([batch(0)], epoch_ends={1: 1})}) as topic, client_of(topic) as client:
        assert client.epoch_ends({0: 1, 1: 1}) == {0: 1}
        topic.is_missing = True
        with pytest.raises(NoSuchTopic):
            client.epoch_ends({0: 1})


def test_first_records_are_a_few_of_each_partition() -> None:
    partitions = {0: FakePartition([batch(3, 2), batch(9, 100)], start=3), 1: FakePartition([batch(0)])}
    with fake_topic(partitions) as topic, client_of(topic) as client:
        found = client.first_records(client.bounds(2))
        assert client.first_records({0: LogPartitionBounds(5, 5, 5)}) == []  # a log without records
    first = [3, 4, *range(9, 9 + LOOK_RECORDS - 2)]
    assert found == [*(RecordKey(0, each, b"key") for each in first), RecordKey(1, 0, b"key")]


def test_first_records_leave_out_a_damaged_batch() -> None:
    with fake_topic({0: FakePartition([damaged(batch(0, 3)), batch(3)])}) as topic, client_of(topic) as client:
        assert client.first_records({0: LogPartitionBounds(0, 4, 4)}) == [RecordKey(0, 3, b"key")]


def test_the_oldest_open_transaction_of_each_partition_holds_back_the_stable_offset() -> None:
    partitions = {
        0: FakePartition([batch(0, 9)], producers=[(7, 1_000, 6), (8, 2_000, 4), (9, 3_000, -1)]),
        1: FakePartition([batch(0, 9)], producers=[(7, 5_000, 2)]),
        2: FakePartition([batch(0, 9)]),
    }
    with fake_topic(partitions) as topic, client_of(topic) as client:
        topic.transactions = {"mine": (7, 900), "other": (99, 1)}
        assert client.open_transactions([0, 1, 2]) == [
            OpenTransaction(0, 8, 4, 2_000),  # of a transactional id that we may not DESCRIBE
            OpenTransaction(1, 7, 2, 5_000, "mine", 900),
        ]
        asked = len(topic.brokers[1].requests)
        assert client.open_transactions([]) == []
        assert len(topic.brokers[1].requests) == asked
        topic.refused[ListTransactionsRequest.API_KEY] = NOT_AUTHORIZED
        assert client.open_transactions([1]) == [OpenTransaction(1, 7, 2, 5_000)]


def test_tombstone_retention_is_kafkas_default_if_the_broker_does_not_give_it() -> None:
    with fake_topic({0: FakePartition([])}) as topic, client_of(topic) as client:
        topic.configs = {"delete.retention.ms": "1234"}
        assert client.delete_retention_ms() == 1234
        topic.configs = {"delete.retention.ms": None}
        assert client.delete_retention_ms() == DELETE_RETENTION_MS == 86_400_000
        topic.configs = {}
        assert client.delete_retention_ms() == DELETE_RETENTION_MS
        topic.configs = {"delete.retention.ms": "1234"}
        for code in (NOT_AUTHORIZED, UNSUPPORTED_VERSION):
            topic.refused[DescribeConfigsRequest.API_KEY] = code
            assert client.delete_retention_ms() == DELETE_RETENTION_MS


def of_offsets(minutes: str | None, check_ms: str | None) -> dict[str, str | None]:
    return {"offsets.retention.minutes": minutes, "offsets.retention.check.interval.ms": check_ms}


def test_retention_of_offsets_is_that_of_all_leaders_of_log_partitions() -> None:
    partitions = {0: FakePartition([], leader=1), 1: FakePartition([], leader=2)}
    with fake_topic(partitions, (1, 2, 3)) as topic, client_of(topic) as client:
        topic.broker_configs = {1: of_offsets("9", "2000"), 2: of_offsets("9", "2000"), 3: of_offsets("1", "2000")}
        assert client.offsets_retention() == Retention(540_000, 2_000, is_known=True)
        for other in (of_offsets("10", "2000"), of_offsets("9", None), {}):
            topic.broker_configs[2] = other
            assert client.offsets_retention() is None
        for both in (of_offsets("9", None), of_offsets(None, "2000"), {}):
            topic.broker_configs[1] = topic.broker_configs[2] = both
            assert client.offsets_retention() is None
        topic.broker_configs[1] = topic.broker_configs[2] = of_offsets("9", "2000")
        for code in (NOT_AUTHORIZED, UNSUPPORTED_VERSION):
            topic.refused[DescribeConfigsRequest.API_KEY] = code
            assert client.offsets_retention() is None


def test_names_of_topics_by_their_ids() -> None:
    with fake_topic({0: FakePartition([])}) as topic, client_of(topic) as client:
        topic.topic_id, topic.topics = TOPIC_ID, {"other": uuid.UUID(int=0x1000)}
        assert client.topic_names() == {IN_KAFKAS_NOTATION: TOPIC, "AAAAAAAAAAAAAAAAAAAQAA": "other"}


@pytest.mark.parametrize("code", [NOT_AUTHORIZED, UNSUPPORTED_VERSION])
def test_a_refused_description_of_producers_is_no_error(code: int) -> None:
    with fake_topic({0: FakePartition([])}) as topic, client_of(topic) as client:
        topic.refused[DescribeProducersRequest.API_KEY] = code
        assert client.open_transactions([0]) is None


def test_other_requests_must_not_be_refused_and_a_broker_must_answer() -> None:
    with fake_topic({0: FakePartition([])}) as topic, client_of(topic) as client:
        topic.refused[ListOffsetsRequest.API_KEY] = NOT_AUTHORIZED
        with pytest.raises(NotAuthorized, match=f"topic {TOPIC}"):
            client.bounds(1)
        topic.brokers[1].close()
        for ask in (client.describe, client.delete_retention_ms, client.topic_names):
            with pytest.raises(BrokerUnreachable):
                ask()


def test_log_partitions_without_a_leader_have_no_bounds_and_no_ends_of_epochs() -> None:
    partitions = {0: FakePartition([batch(0, 3)], epoch_ends={2: 1}), 1: FakePartition([batch(0)], leader=None)}
    with fake_topic(partitions) as topic, client_of(topic) as client:
        assert client.bounds(2) == {0: LogPartitionBounds(0, 3, 3)}
        assert client.epoch_ends({0: 2, 1: 2}) == {0: 1}
        assert client.describe().partitions == 2
        with pytest.raises(BrokerUnreachable, match=r"partition 1 of topic .* has no leader"):
            client.bounds(2, of_all=True)
