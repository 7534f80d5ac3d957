"""Requests to the leaders of many topics: each partition has its answer or its own error."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaFailed,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)
from offsets_pipeline.kafka.broker import cluster as cluster_module
from offsets_pipeline.kafka.broker import connection as connection_module
from offsets_pipeline.kafka.broker.cluster import Cluster, PartitionLeader, Retry
from offsets_pipeline.kafka.broker.cluster import TopicMetadata as Metadata
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.unit.broker.fake_broker import TOPIC, VERSIONS, FakeBroker, fake_broker
from tests.unit.broker.fake_topic import NOT_AUTHORIZED, UNKNOWN_TOPIC, FakePartition, cluster_of, fake_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.kafka.broker.cluster import Place, TopicMetadata
    from offsets_pipeline.kafka.broker.connection import Connection
    from tests.unit.broker.fake_broker import Answer

METADATA = MetadataRequest.API_KEY
HANDSHAKE, AUTHENTICATE = SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY
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
    assert broker.count(METADATA) == 2
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
    with pytest.raises(NoSuchTopic, match=f"has no topic {TOPIC};"):
        raise_first(asked(broker, 0, code=UNKNOWN_TOPIC))


def test_each_broker_is_asked_for_its_partitions_in_portions_and_again_for_those_that_moved() -> None:
    partitions = {at: FakePartition([], leader=leader) for at, leader in enumerate((1, 2, 1, 1, 3))}
    requests: list[tuple[str, list[int]]] = []
    with fake_topic(partitions, (1, 2)) as topic, cluster_of(topic, default_api_timeout_ms="300") as cluster:

        def ask(connection: Connection, _: object, at_leader: list[Place]) -> dict[Place, tuple[int, str]]:
            requests.append((connection.at, [at for _, at in at_leader]))
            code = 6 if (TOPIC, 1) in at_leader else 0  # NOT_LEADER_OR_FOLLOWER
            partitions[1].leader = 1
            return {
                each: (code if each == (TOPIC, 1) and len(requests) < 4 else 0, connection.at) for each in at_leader
            }

        found = cluster.ask_leaders([(TOPIC, at) for at in (3, 0, 4, 1, 2, 0)], ask, "ask", 2)
        one, two = (topic.brokers[node_id].address for node_id in (1, 2))
        bootstrap = cluster.settings.at
    assert requests == [(one, [3, 0]), (one, [2]), (two, [1]), (one, [1])]
    assert [at for _, at in found] == [3, 0, 4, 1, 2]
    assert [found[TOPIC, at] for at in (3, 0, 1, 2)] == [one] * 4
    assert str(found[TOPIC, 4]) == (  # only this one was asked for until the time was over
        f"no broker answers at {bootstrap} (the cluster has no broker 3 now); check the address, the broker, and the "
        "option security.protocol"
    )


def test_metadata_name_the_brokers_and_the_topics_with_their_leaders() -> None:
    partitions = {2: FakePartition([], leader=2, epoch=5), 0: FakePartition([], leader=None)}
    with fake_topic(partitions, (1, 2)) as topic, cluster_of(topic) as cluster:
        assert cluster.connected().at == topic.brokers[1].address
        assert cluster.topics([]) == {}
        assert topic.brokers[1].count(METADATA) == 0
        assert cluster.brokers() == {each: ("127.0.0.1", topic.brokers[each].port) for each in (1, 2)}
        assert (cluster.cluster_id(), topic.brokers[1].count(METADATA)) == ("c", 1)
        known = Metadata(TOPIC, None, {0: PartitionLeader(None, 3), 2: PartitionLeader(2, 5)})
        assert cluster.topic(TOPIC) == known
        assert cluster.topics(None) == cluster.topics(["none", TOPIC]) == {TOPIC: known}
        asked = [topic.brokers[1].request(MetadataRequest, number) for number in (0, 2, 3)]
    names = [None if each.topics is None else [of.name for of in each.topics] for each in asked]
    assert names == [[], None, [TOPIC, "none"]]
    assert not any(each.allow_auto_topic_creation for each in asked)
    assert list(known.partitions) == [0, 2]
    assert known.by_leader([2, 0]) == {2: [2]}
    assert (
        known.current_leader_epoch(2),
        Metadata("t", None, {0: PartitionLeader(1, None)}).current_leader_epoch(0),
    ) == (*(5, -1),)
    assert known.uuid is None
    assert [PartitionLeader(1, epoch).is_before(3) for epoch in (None, 2, 3)] == [False, True, False]


def test_all_brokers_that_are_up_are_asked_in_their_order() -> None:
    with fake_topic({0: FakePartition([])}, (3, 1, 2)) as topic, cluster_of(topic) as cluster:
        addresses = {node_id: broker.address for node_id, broker in topic.brokers.items()}
        assert cluster.ask_all(lambda connection: connection.at) == [addresses[each] for each in (1, 2, 3)]
        topic.down = {2}
        assert cluster.ask_all(lambda connection: connection.at) == [addresses[each] for each in (1, 3)]


def test_configs_are_described_by_the_broker_itself_or_any() -> None:
    with fake_topic({0: FakePartition([])}, (1, 2)) as topic, cluster_of(topic) as cluster:
        topic.configs, topic.broker_configs[2] = {"a": "1", "b": None}, {"c": "2"}
        assert cluster.configs(TOPIC, ["a", "b"]) == {"a": "1", "b": None}
        assert cluster.configs(2, ["c"]) == {"c": "2"}
        asked = [topic.brokers[each].request(DescribeConfigsRequest, 0).resources[0] for each in (1, 2)]
        assert [(each.resource_type, each.resource_name, each.configuration_keys) for each in asked] == [
            *((2, TOPIC, ["a", "b"]), (4, "2", ["c"])),
        ]
        topic.refused[DescribeConfigsRequest.API_KEY] = NOT_AUTHORIZED
        needs = "(TOPIC_AUTHORIZATION_FAILED); grant DESCRIBE_CONFIGS on "
        with pytest.raises(NotAuthorized) as of_topic:
            cluster.configs(TOPIC, ["a"])
        with pytest.raises(NotAuthorized) as of_broker:
            cluster.configs(1, ["c"])
        assert str(of_topic.value).endswith(f" to describe the configs of topic {TOPIC} {needs}it")
        assert str(of_broker.value).endswith(f" to describe the configs of broker 1 {needs}the cluster")
        topic.refused[DescribeConfigsRequest.API_KEY] = UNKNOWN_TOPIC
        with cluster_of(topic, default_api_timeout_ms="1") as hasty, pytest.raises(NoSuchTopic):
            hasty.configs(TOPIC, ["a"])


def test_versions_and_features_are_those_that_a_broker_names(broker: FakeBroker) -> None:
    found = broker.api_versions({ApiVersionsRequest.API_KEY: (0, 4), METADATA: (1, 9)})
    of_feature = ApiVersionsResponse.FinalizedFeatureKey
    found.finalized_features = [of_feature(name="transaction.version", max_version_level=2, min_version_level=1)]
    broker.answers[ApiVersionsRequest.API_KEY] = lambda _: found
    with Cluster(KafkaOptions(broker.address, OPTIONS)) as cluster:
        assert cluster.connected().api_versions == {18: (0, 4), 3: (1, 9)}
        assert cluster.connected().finalized_features == {"transaction.version": 2}


def test_retries_wait_longer_each_time_and_end_before_the_time_is_over(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = 100.0, list[float]()

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append(seconds)

    def refuse() -> None:
        raise Retry(KafkaFailed("not now"))

    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: now, sleep=wait))
    options = OPTIONS | {"default.api.timeout.ms": "3750", "retry.backoff.ms": "250"}
    with Cluster(KafkaOptions(broker.address, options)) as cluster, pytest.raises(KafkaFailed, match="not now"):
        cluster.retried(refuse)
    assert waits == [0.25, 0.5, 1, 1]  # at most a second; another one would end with the time, after 3.75 s


@pytest.fixture
def sasl(broker: FakeBroker) -> dict[str, str]:
    """Options of a client of a broker that takes SASL PLAIN; its sessions last for ten seconds."""
    broker.versions = VERSIONS | {HANDSHAKE: (0, 1), AUTHENTICATE: (0, 1)}
    broker.answers[HANDSHAKE] = lambda _: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
    broker.answers[AUTHENTICATE] = lambda _: SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000
    )
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return OPTIONS | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{login} username="me" password="open-sesame";',
    }


def test_a_session_is_renewed_before_it_ends(
    broker: FakeBroker, sasl: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:  # KIP-368
    now = 100.0
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    logins = []
    with Cluster(KafkaOptions(broker.address, sasl)) as cluster:
        connection = cluster.any_connection()
        for at in (108.25, 108.5, 108.5, 116.75, 117.0):  # after 8.5 s of 10
            now = at
            connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
            logins.append(broker.count(AUTHENTICATE))
    assert logins == [1, 2, 2, 2, 3]
    request = broker.request(SaslAuthenticateRequest, 0)
    assert request.auth_bytes.endswith(b"\0me\0open-sesame")


def test_a_session_without_an_end_is_not_renewed(broker: FakeBroker, sasl: dict[str, str]) -> None:
    broker.answers[AUTHENTICATE] = lambda _: SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0
    )
    with Cluster(KafkaOptions(broker.address, sasl)) as cluster:
        assert (cluster.cluster_id(), cluster.topic(TOPIC).name) == ("c", TOPIC)
    assert broker.count(AUTHENTICATE) == 1


def test_the_next_client_asks_a_broker_that_did_not_help_last() -> None:
    def refuse() -> None:
        raise Retry(KafkaFailed("not now"))

    with fake_topic({0: FakePartition([])}, (1, 2)) as topic:
        for node_id in (1, 2, 1):
            with cluster_of(topic, default_api_timeout_ms="1") as cluster:
                assert cluster.connected().at == topic.brokers[node_id].address
                with pytest.raises(KafkaFailed, match="not now"):
                    cluster.retried(refuse)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI", "SCRAM-SHA-256"]),
            "no SASL mechanism PLAIN, but GSS",
        ),
        (SaslHandshakeResponse(error_code=33, mechanisms=[]), "no SASL mechanism PLAIN, but none"),
        (SaslHandshakeResponse(error_code=34, mechanisms=[]), "ILLEGAL_SASL_STATE"),
        (
            SaslAuthenticateResponse(
                error_code=58, error_message="wrong open-sesame", auth_bytes=b"", session_lifetime_ms=0
            ),
            r"\(wrong \*\*\*\)",
        ),
        (
            SaslAuthenticateResponse(error_code=58, error_message=None, auth_bytes=b"", session_lifetime_ms=0),
            "SASL_AUTHENTICATION_FAILED",
        ),
        (  # RFC 4616: a server of PLAIN answers nothing
            SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"?", session_lifetime_ms=0),
            "the SASL exchange ended without a login",
        ),
    ],
)
def test_a_login_that_is_refused_is_told_without_its_secrets(
    broker: FakeBroker, sasl: dict[str, str], answer: Answer, said: str
) -> None:
    broker.answers[answer.API_KEY] = lambda _: answer
    with (
        Cluster(KafkaOptions(broker.address, sasl)) as cluster,
        pytest.raises(AuthenticationFailed, match=rf"^cannot authenticate with {broker.address} .*{said}"),
    ):
        cluster.any_connection()


def test_a_socket_has_the_options_of_the_client(broker: FakeBroker) -> None:
    sizes = {"receive.buffer.bytes": "49152", "send.buffer.bytes": "32768"}
    with Cluster(KafkaOptions(broker.address, OPTIONS | sizes)) as cluster:
        used = cluster.any_connection()._socket
        options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        assert [used.getsockopt(*each) for each in options] == [1, 1]
        assert used.gettimeout() == 2  # request.timeout.ms
        found = [used.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert found == [2 * 49_152, 2 * 32_768]  # Linux doubles them; its own size is 131,072


def test_a_broker_that_closed_its_connection_is_asked_over_another_one() -> None:
    with fake_topic({0: FakePartition([])}) as topic, cluster_of(topic) as cluster:
        topic.broker_configs[1] = {"offsets.retention.minutes": "9"}
        for _ in range(2):
            assert cluster.configs(1, ["offsets.retention.minutes"]) == {"offsets.retention.minutes": "9"}
            topic.brokers[1].disconnect()


def test_close_closes_the_connections(broker: FakeBroker) -> None:
    cluster = Cluster(KafkaOptions(broker.address, OPTIONS))
    connections = [cluster.any_connection(), cluster.connection_to(1)]
    cluster.close()
    assert [(each.is_closed, each._socket.fileno()) for each in connections] == [(True, -1)] * 2


def test_a_cluster_that_does_not_answer_is_an_error_at_once_but_a_known_one_is_waited_for(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = itertools.count(), list[float]()
    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: next(now) / 100, sleep=waits.append))
    with Cluster(KafkaOptions(broker.address, OPTIONS)) as known:
        assert known.cluster_id() == "c"
        broker.close()
        with pytest.raises(BrokerUnreachable):
            asked(broker, 0)
        assert waits == []
        with pytest.raises(BrokerUnreachable):
            known.topic(TOPIC)
        assert waits[:1] == [0.001]


def raise_first(found: Mapping[int, str | OffsetsError]) -> None:
    for each in found.values():
        if isinstance(each, OffsetsError):
            raise each
