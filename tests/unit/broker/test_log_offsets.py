"""Requests for offsets of partitions, as Kafka's protocol has them, and what becomes of the answers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from offsets_pipeline.errors import NoSuchTopic, NotAuthorized
from offsets_pipeline.kafka.broker.log_offsets import (
    EARLIEST,
    LATEST,
    LogBounds,
    bounds_of_topics,
    by_topic,
    epoch_ends,
    list_offsets,
    rounds_of,
)
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import NOT_AUTHORIZED, FakePartition, FakeTopic, batch, cluster_of, fake_topic

A, B, C = (TOPIC, 0), (TOPIC, 1), (TOPIC, 2)


def partitions() -> dict[int, FakePartition]:
    """Partitions 0 and 2 of broker 1, and 1 of broker 2."""
    return {
        0: FakePartition([batch(3, 6)], start=3, stable=5, epoch_ends={1: 4}),
        1: FakePartition([], leader=2, epoch=7),
        2: FakePartition([batch(0, 2)], epoch=4, epoch_ends={2: 1}),
    }


def asked(topic: FakeTopic, node_id: int, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - kafka-python has no types
    """The first request of this kind to a broker."""
    found: dict[str, Any] = topic.brokers[node_id].request(kind, 0).to_dict()
    return found


def test_a_leader_is_asked_once_for_the_offsets_of_its_partitions_in_their_epochs() -> None:
    with fake_topic(partitions(), (1, 2)) as topic, cluster_of(topic, request_timeout_ms="1500") as cluster:
        for broker in topic.brokers.values():
            broker.versions = broker.versions | {ListOffsetsRequest.API_KEY: (1, 10)}  # 10 has a timeout
        times = {A: EARLIEST, B: 77, C: LATEST}
        assert list_offsets(cluster, times, read_committed=True) == {A: 3, B: 0, C: 2}
        requests = [asked(topic, node_id, ListOffsetsRequest) for node_id in (1, 2)]
        assert [each.count(ListOffsetsRequest.API_KEY) for each in topic.brokers.values()] == [1, 1]
        assert list_offsets(cluster, {A: LATEST}, read_committed=True) == {A: 5}
        assert list_offsets(cluster, {A: LATEST}) == {A: 9}
    common = {"replica_id": -1, "isolation_level": 1, "timeout_ms": 1500}
    assert requests == [
        common | {"topics": [{"name": TOPIC, "partitions": [_listed(0, 3, -2), _listed(2, 4, -1)]}]},
        common | {"topics": [{"name": TOPIC, "partitions": [_listed(1, 7, 77)]}]},
    ]


def _listed(partition: int, epoch: int, timestamp: int) -> dict[str, int]:
    return {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}


def test_ends_of_leader_epochs_are_asked_of_the_leaders_of_now() -> None:
    with fake_topic(partitions(), (1, 2)) as topic, cluster_of(topic) as cluster:
        found = epoch_ends(cluster, {A: 1, B: 6, C: 2})
        requests = [asked(topic, node_id, OffsetForLeaderEpochRequest) for node_id in (1, 2)]
    assert found == {A: 4, B: None, C: 1}
    assert requests == [
        {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [_wanted(0, 3, 1), _wanted(2, 4, 2)]}]},
        {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [_wanted(1, 7, 6)]}]},
    ]


def _wanted(partition: int, current: int, epoch: int) -> dict[str, int]:
    return {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}


def test_bounds_of_topics_leave_out_those_that_do_not_exist() -> None:
    with fake_topic(partitions(), (1, 2)) as topic, cluster_of(topic) as cluster:
        bounds = {A: LogBounds(3, 9), B: LogBounds(0, 0), C: LogBounds(0, 2)}
        assert bounds_of_topics(cluster, [TOPIC, "none"]) == bounds_of_topics(cluster, None) == bounds
        asked_before = len(topic.brokers[1].requests)
        assert bounds_of_topics(cluster, []) == {}
        assert len(topic.brokers[1].requests) == asked_before
        topic.refused[ListOffsetsRequest.API_KEY] = NOT_AUTHORIZED
        refused = bounds_of_topics(cluster, [TOPIC])[A]
        assert isinstance(refused, NotAuthorized)
        assert str(refused) == (
            f"{topic.brokers[1].address} does not allow us to list the offsets of topic {TOPIC} "
            "(TOPIC_AUTHORIZATION_FAILED); grant DESCRIBE and READ on it"
        )
        assert isinstance(epoch_ends(cluster, {("none", 0): 1})["none", 0], NoSuchTopic)


@pytest.mark.parametrize(
    ("points", "rounds"),
    [
        ([], []),
        ([(A, 5), (B, 5)], [{A: 5, B: 5}]),
        ([(A, 5), (B, 1), (A, 3), (A, 5), (B, 2), (A, 4)], [{A: 5, B: 1}, {A: 3, B: 2}, {A: 4}]),
    ],
)
def test_points_of_a_partition_are_in_different_rounds(
    points: list[tuple[tuple[str, int], int]], rounds: list[dict[tuple[str, int], int]]
) -> None:
    assert rounds_of(points) == rounds


def test_partitions_of_a_topic_keep_their_order() -> None:
    assert by_topic([("b", 2), ("a", 0), ("b", 1)]) == {"b": [2, 1], "a": [0]}
