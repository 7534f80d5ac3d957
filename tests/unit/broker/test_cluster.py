"""Requests to the leaders of many topics: each partition has its answer or its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, NoSuchTopic, NotAuthorized, OffsetsError
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.unit.broker.fake_broker import TOPIC, FakeBroker, fake_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.kafka.broker.cluster_metadata import Place, TopicMetadata
    from offsets_pipeline.kafka.broker.connection import Connection

METADATA = MetadataRequest.API_KEY
LEADER_NOT_AVAILABLE, UNKNOWN_MEMBER = 5, 25
OPTIONS = {"request.timeout.ms": "2000", "default.api.timeout.ms": "300", "retry.backoff.ms": "1"}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        yield broker


def asked(broker: FakeBroker, *partitions: int, code: int = 0) -> dict[int, str | OffsetsError]:
    """Ask about these partitions of a topic with partition 0 alone; its leader answers with this error code."""

    def ask(_: Connection, __: Mapping[str, TopicMetadata], at_leader: list[Place]) -> dict[Place, tuple[int, str]]:
        return dict.fromkeys(at_leader, (code, "an answer"))

    with Cluster(KafkaOptions(broker.address, OPTIONS)) as cluster:
        found = cluster.ask_leaders([(TOPIC, each) for each in partitions], ask, "ask")
    return {partition: answer for (_, partition), answer in found.items()}


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (3, NoSuchTopic, f"has no topic {TOPIC}"),
        (17, NoSuchTopic, f"has no topic {TOPIC}"),
        (29, NotAuthorized, rf"does not allow us to read topic {TOPIC} \(TOPIC_AUTHORIZATION_FAILED\); grant DESCRIBE"),
    ],
)
def test_a_topic_that_the_metadata_refuse_has_that_error_at_once(
    broker: FakeBroker, code: int, kind: type[OffsetsError], said: str
) -> None:
    broker.answers[METADATA] = lambda _: broker.metadata(error_code=code)
    found = asked(broker, 0, 1)
    assert [type(each) for each in found.values()] == [kind, kind]
    with pytest.raises(kind, match=said):
        raise_first(found)
    assert broker.count(METADATA) == 1


def test_a_topic_whose_leaders_are_not_known_yet_is_asked_for_again(broker: FakeBroker) -> None:
    broker.answers[METADATA] = lambda number: broker.metadata(error_code=0 if number else LEADER_NOT_AVAILABLE)
    assert asked(broker, 0) == {0: "an answer"}
    broker.answers[METADATA] = lambda _: broker.metadata(error_code=LEADER_NOT_AVAILABLE)
    with pytest.raises(KafkaFailed, match=f"cannot read topic {TOPIC}: LEADER_NOT_AVAILABLE"):
        raise_first(asked(broker, 0))


def test_errors_of_partitions_leave_the_others_their_answers(broker: FakeBroker) -> None:
    found = asked(broker, 0, 1)
    assert found[0] == "an answer"
    with pytest.raises(NoSuchTopic, match=f"has no partition 1 of topic {TOPIC}"):
        raise_first({1: found[1]})
    broker.answers[METADATA] = lambda _: broker.metadata(leader=-1)
    with pytest.raises(BrokerUnreachable, match=f"partition 0 of topic {TOPIC} has no leader"):
        raise_first(asked(broker, 0))
    broker.answers[METADATA] = lambda _: broker.metadata()
    with pytest.raises(KafkaFailed, match=f"cannot ask of topic {TOPIC}: UNKNOWN_MEMBER_ID"):
        raise_first(asked(broker, 0, code=UNKNOWN_MEMBER))


def test_close_closes_the_connections(broker: FakeBroker) -> None:
    cluster = Cluster(KafkaOptions(broker.address, OPTIONS))
    connections = [cluster.any_connection(), cluster.connection_to(1)]
    cluster.close()
    assert [each.is_closed for each in connections] == [True, True]


def test_a_cluster_that_does_not_answer_is_an_error(broker: FakeBroker) -> None:
    broker.close()
    with pytest.raises(BrokerUnreachable):
        asked(broker, 0)


def raise_first(found: Mapping[int, str | OffsetsError]) -> None:
    for each in found.values():
        if isinstance(each, OffsetsError):
            raise each
