"""What our client of the broker gets from a real broker is what Kafka's own client and the broker's files say.

One broker serves all tests of this module; it listens with and without TLS and SASL.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kafka.protocol.metadata import MetadataRequest
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from benchmarks.broker import free_ports
from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NoSuchOffset,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicClient
from offsets_pipeline.kafka.broker.client_settings import FetchLimits
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.connection import Connection
from offsets_pipeline.kafka.broker.fetch import Fetcher, FetchPosition, FetchProblem
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.log_offsets import epoch_ends, list_offsets, log_bounds, open_transactions
from offsets_pipeline.kafka.record.columns import SEGMENT_SCHEMA
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.spark_query.offsets_listener import OffsetsListener
from offsets_pipeline.spark_query.starting_offsets import starting_offsets
from tests.http_server import Quiet, served
from tests.kafka.certificates import Authority, Identity, write_java_store
from tests.kafka.live import TOPIC, live_broker
from tests.unit.spark_query.checkpoints import kafka
from tests.unit.spark_query.progress_events import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker

PARTITIONS = 3
ZSTD = 4
ONE_BATCH = FetchLimits(min_bytes=1, max_wait_ms=0, max_bytes=1, max_partition_bytes=1)
A_FEW_BATCHES = FetchLimits(min_bytes=1, max_wait_ms=0, max_bytes=2000, max_partition_bytes=700)


#: Listeners with TLS (that requires a client's certificate) and with SASL, beside those of every live broker.
SECURED = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},\
SASL_PLAINTEXT://127.0.0.1:{{sasl_port}},SSL://127.0.0.1:{tls_port},SASL_SSL://127.0.0.1:{sasl_tls_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,\
SASL_SSL:SASL_SSL
listener.name.ssl.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:ada;User:CN=client
offsets.topic.compression.codec={codec}
"""
#: The broker accepts OAuth tokens without a signature. It ends a login by SCRAM-SHA-256 after 1.3 s.
OF_SASL_LISTENER = """
listener.name.{name}.plain.sasl.jaas.config={plain} required user_me="open-sesame" user_ada="open-sesame";
listener.name.{name}.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.{name}.scram-sha-256.connections.max.reauth.ms=1300
listener.name.{name}.scram-sha-512.sasl.jaas.config={scram} required;
listener.name.{name}.oauthbearer.sasl.jaas.config={oauth} required unsecuredLoginStringClaim_sub="broker";
"""
SECURITY = "org.apache.kafka.common.security"
MODULES = {
    "plain": f"{SECURITY}.plain.PlainLoginModule",
    "scram": f"{SECURITY}.scram.ScramLoginModule",
    "oauth": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule",
}


@dataclass(frozen=True)
class Secured:
    """Where the broker listens for TLS, and what a client needs for it."""

    folder: Path
    server: Identity
    client: Identity
    authority: Authority
    tls_port: int
    sasl_tls_port: int


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    folder, authority = tmp_path_factory.mktemp("secured"), Authority("ca")
    server = authority.issue("broker", "127.0.0.1")
    (folder / "ca.pem").write_text(authority.certificate_pem)
    (folder / "broker.pem").write_text(server.key_pem() + server.certificate_pem)
    return Secured(folder, server, authority.issue("client"), authority, *free_ports(2))


@pytest.fixture(scope="module")
def broker(kafka: KafkaJvm, secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """A broker with commits, deleted groups, and committed, aborted and open transactions."""
    folder = tmp_path_factory.mktemp("client") / "broker"
    settings = SECURED.format(
        folder=secured.folder, tls_port=secured.tls_port, sasl_tls_port=secured.sasl_tls_port, codec=ZSTD
    )
    settings += "".join(OF_SASL_LISTENER.format(name=name, **MODULES) for name in ("sasl_plaintext", "sasl_ssl"))
    with live_broker(kafka, folder, PARTITIONS, settings.replace("\\\n", "")) as live:
        live.create_topic("t", 3, {"delete.retention.ms": "4711"})
        for number in range(30):
            live.commit(f"g{number % 10}", {("t", partition): number for partition in range(3)}, "m" * 10 * number)
        live.delete_group("g7")
        for number in range(3):
            transaction = live.transaction(f"x{number}")
            transaction.begin(f"g{number}", {("t", 0): 100})
            transaction.abort()
            transaction.begin(f"g{number}", {("t", 0): 101})
            transaction.commit()
        live.transaction("open").begin("g1", {("t", 1): 102})
        live.commit("g1", {("t", 2): 103})
        live.add_scram_user("ada", "open-sesame")
        yield live


@pytest.fixture
def cluster(broker: LiveBroker) -> Iterator[Cluster]:
    with Cluster(KafkaOptions(broker.address, {})) as cluster:
        yield cluster


def segment_bytes(broker: LiveBroker, partition: int) -> bytes:
    folder = broker.folder / f"{TOPIC}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def rows(data: bytes, least_offset: int = 0) -> list[dict[str, object]]:
    reader = read_segment(data, source="test")
    found = pa.Table.from_batches(reader.batches(), SEGMENT_SCHEMA).to_pylist()
    assert (reader.damage, reader.torn_tail) == ([], None)
    return [row for row in found if row["record_offset"] >= least_offset]


def fetched_rows(cluster: Cluster, limits: FetchLimits) -> dict[int, list[dict[str, object]]]:
    """Rows of each partition, from as many fetches as it takes."""
    topic = cluster.topic(TOPIC)
    found: dict[int, list[dict[str, object]]] = {partition: [] for partition in topic.partitions}
    positions = {partition: FetchPosition(0, leader.epoch) for partition, leader in topic.partitions.items()}
    with Fetcher(cluster, topic, 1) as fetcher:
        while positions:
            for partition, each in fetcher.fetch(positions, limits).items():
                assert each.problem is None
                found[partition] += rows(each.records, positions[partition].offset)
                del positions[partition]  # and to the end: each gets its turn to be the first
                if each.next_offset != each.high_watermark:
                    positions[partition] = FetchPosition(each.next_offset, topic.partitions[partition].epoch)
    return found


@pytest.mark.parametrize(
    "limits", [None, A_FEW_BATCHES, ONE_BATCH], ids=["all at once", "few batches", "single batches"]
)
def test_a_fetch_returns_the_rows_of_the_brokers_segment_files(
    broker: LiveBroker, cluster: Cluster, limits: FetchLimits | None
) -> None:
    of_files = {partition: rows(segment_bytes(broker, partition)) for partition in range(PARTITIONS)}
    everything = [row for of_partition in of_files.values() for row in of_partition]
    assert {row["control_type"] for row in everything} == {None, "COMMIT", "ABORT"}
    assert fetched_rows(cluster, limits or cluster.settings.fetch) == of_files


def test_bounds_tell_last_stable_offset_and_a_fetch_the_high_watermark_while_a_transaction_is_open(
    broker: LiveBroker, cluster: Cluster
) -> None:
    began = {at: start for (at, _), (_, start, _) in broker.answers.producers().items() if start is not None}
    expected = {
        at: LogPartitionBounds(start, began.get(at, end), end) for at, (start, end) in broker.answers.bounds().items()
    }
    assert len(began) == 1
    with TopicClient(KafkaOptions(broker.address, {}), TOPIC) as client:
        assert client.bounds(PARTITIONS) == expected
    topic = cluster.topic(TOPIC)
    with Fetcher(cluster, topic, 1) as fetcher:
        fetched = fetcher.fetch({at: FetchPosition(each.end, None) for at, each in expected.items()}, ONE_BATCH)
    assert {at: each.high_watermark for at, each in fetched.items()} == {at: each.end for at, each in expected.items()}
    assert {(each.records, each.next_offset - expected[at].end) for at, each in fetched.items()} == {(b"", 0)}


def test_a_position_outside_the_log_and_a_wrong_leader_epoch_are_told_apart(cluster: Cluster) -> None:
    topic = cluster.topic(TOPIC)
    epoch = topic.partitions[0].epoch
    assert epoch is not None
    positions = {0: FetchPosition(0, epoch - 1), 1: FetchPosition(0, epoch + 1), 2: FetchPosition(10_000, epoch)}
    with Fetcher(cluster, topic, 1) as fetcher:
        assert {at: each.problem for at, each in fetcher.fetch(positions, ONE_BATCH).items()} == {
            0: FetchProblem.STALE_METADATA,
            1: FetchProblem.STALE_METADATA,
            2: FetchProblem.OUT_OF_RANGE,
        }


def test_a_topic_that_was_created_anew_is_not_read_as_the_old_one(broker: LiveBroker, cluster: Cluster) -> None:
    broker.create_topic("anew", 1)
    broker.produce("anew", 0, 3)
    old = cluster.topic("anew")
    with Fetcher(cluster, old, 1) as fetcher:
        assert fetcher.fetch({0: FetchPosition(0, None)})[0].next_offset == 3
        broker.delete_topic("anew")
        broker.create_topic("anew", 1)
        broker.produce("anew", 0, 5)
        assert fetcher.fetch({0: FetchPosition(0, None)})[0].problem is FetchProblem.STALE_METADATA
    new = cluster.topic("anew")
    assert new.topic_id != old.topic_id
    with Fetcher(cluster, new, 1) as fetcher:
        assert fetcher.fetch({0: FetchPosition(0, None)})[0].next_offset == 5
    broker.delete_topic("anew")


def test_the_cluster_describes_itself_and_its_topics(broker: LiveBroker, cluster: Cluster) -> None:
    assert cluster.cluster_id() == broker.cluster_id()
    assert list(cluster.brokers().values()) == [("127.0.0.1", broker.port)]
    topic_ids = {name: each.topic_id for name, each in cluster.topics(None).items()}
    assert topic_ids == {name: broker.topic_id(name) for name in broker.topics()}
    assert list(cluster.topic("t").partitions) == [0, 1, 2]
    assert cluster.configs("t", ["delete.retention.ms", "cleanup.policy", "no.such"]) == {
        "delete.retention.ms": "4711",
        "cleanup.policy": "delete",
    }
    assert cluster.connected().finalized_features["transaction.version"] == 2
    assert cluster.connected().api_versions[1][1] >= 17  # Fetch


def test_offsets_by_time_and_ends_of_leader_epochs(broker: LiveBroker, cluster: Cluster) -> None:
    times = [row["record_timestamp"] for row in rows(segment_bytes(broker, 1))]
    middle_ms = int(times[len(times) // 2].timestamp() * 1000)  # type: ignore[attr-defined]
    places = [(TOPIC, at) for at in range(PARTITIONS)]
    since = {(TOPIC, at): offset for at, offset in broker.answers.offsets_since(middle_ms).items()}
    assert list_offsets(cluster, dict.fromkeys(places, middle_ms)) == since
    assert set(list_offsets(cluster, dict.fromkeys(places, 2**60)).values()) == {None}
    epoch = cluster.topic(TOPIC).partitions[0].epoch
    assert epoch is not None
    ends = broker.answers.bounds()
    assert epoch_ends(cluster, dict.fromkeys(places, epoch)) == {(TOPIC, at): end for at, (_, end) in ends.items()}


def test_a_topic_that_is_not_there_is_told_in_one_line_and_not_made(broker: LiveBroker, cluster: Cluster) -> None:
    with pytest.raises(NoSuchTopic, match=f"^{broker.address} has no topic nope; name another"):
        cluster.topic("nope")
    broker.create_topic("after", 1)  # a topic that the request made would be there before
    assert "nope" not in broker.topics()


# --- open transactions


def test_an_open_transaction_is_told_with_its_producer_its_id_and_its_start(
    broker: LiveBroker, cluster: Cluster
) -> None:
    now_ms = time.time_ns() // 1_000_000
    expected = {
        (at, producer_id, start)
        for (at, producer_id), (_, start, _) in broker.answers.producers().items()
        if start is not None
    }
    (found,) = open_transactions(cluster, TOPIC, range(PARTITIONS))
    assert {(found.partition, found.producer_id, found.first_offset)} == expected
    assert found.transactional_id == "open"
    assert found.started_ms is not None
    assert now_ms - 600_000 < found.started_ms <= found.last_write_ms <= now_ms


# --- TLS and SASL


def cluster_id(port: int, options: Mapping[str, str], host: str = "127.0.0.1") -> str | None:
    """What a broker answers to a client with these options."""
    with Cluster(KafkaOptions(f"{host}:{port}", options)) as cluster:
        return cluster.cluster_id()


def refused(kind: type[OffsetsError], port: int, options: Mapping[str, str], host: str = "127.0.0.1") -> str:
    """The message of the error for a client with these options."""
    with pytest.raises(kind) as raised:
        cluster_id(port, options, host)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def trusting(secured: Secured, broker: LiveBroker) -> dict[str, str]:
    """Options of a client that trusts the broker's certificate."""
    return {"ssl.truststore.location": str(secured.folder / "ca.pem"), "ssl.truststore.type": "PEM"}


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_tls_with_key_stores_as_java_writes_them(
    broker: LiveBroker, secured: Secured, tmp_path: Path, kind: str
) -> None:
    gateway = broker.answers.gateway
    trust, keys = tmp_path / "trust.jks", tmp_path / "keys.jks"
    key_password = "of-the-key" if kind == "JKS" else "of-keys"  # a PKCS12 store has one password
    write_java_store(gateway, trust, kind, "of-trust", trusted=secured.authority.certificate)
    write_java_store(gateway, keys, kind, "of-keys", own=secured.client, key_password=key_password)
    options = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": "of-trust",
        "ssl.keystore.location": str(keys),
        "ssl.keystore.password": "of-keys",
        "ssl.key.password": key_password,
    }
    assert cluster_id(secured.tls_port, options) == broker.cluster_id()
    for name in ("ssl.truststore.password", "ssl.keystore.password"):
        with pytest.raises(OffsetsError, match=f"cannot be read as a PEM, PKCS12 or JKS store: .*{name}") as raised:
            cluster_id(secured.tls_port, options | {name: "wrong-word"})
        assert "wrong-word" not in str(raised.value)


def test_tls_with_pem_files_and_with_pem_texts(
    broker: LiveBroker, secured: Secured, trusting: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.pem").write_text(secured.client.key_pem("of-the-key") + secured.client.certificate_pem)
    of_file = {"ssl.keystore.location": str(tmp_path / "own.pem"), "ssl.keystore.type": "PEM"}
    tls = {"security.protocol": "SSL", "ssl.key.password": "of-the-key"}
    assert cluster_id(secured.tls_port, trusting | tls | of_file) == broker.cluster_id()
    of_text = {
        "ssl.truststore.certificates": secured.authority.certificate_pem,
        "ssl.keystore.key": secured.client.key_pem("of-the-key"),
        "ssl.keystore.certificate.chain": secured.client.certificate_pem,
    }
    assert cluster_id(secured.tls_port, tls | of_text) == broker.cluster_id()
    with pytest.raises(OffsetsError, match=r"private key .* cannot be read .* check ssl\.key\.password"):
        cluster_id(secured.tls_port, tls | of_text | {"ssl.key.password": "wrong-word"})


def test_tls_without_trust_or_identity_or_on_the_wrong_port_is_told_in_one_line(
    broker: LiveBroker, secured: Secured, trusting: dict[str, str]
) -> None:
    tls = {"security.protocol": "SSL"}
    sasl = {"security.protocol": "SASL_SSL", **login("PLAIN", "plain", "ada")}
    port = secured.sasl_tls_port
    assert "its certificate is not trusted" in refused(AuthenticationFailed, port, sasl)
    assert "certificate is not valid for 'localhost'" in refused(
        AuthenticationFailed, port, sasl | trusting, "localhost"
    )
    leaf = {"ssl.truststore.certificates": secured.server.certificate_pem}  # trusted itself, without its authority
    assert cluster_id(port, sasl | leaf) == broker.cluster_id()
    anyone = {"ssl.endpoint.identification.algorithm": ""}
    assert cluster_id(port, sasl | trusting | anyone, "localhost") == broker.cluster_id()
    assert "CERTIFICATE" in refused(AuthenticationFailed, secured.tls_port, tls | trusting)  # has none of its own
    for at, options in ((broker.port, tls | trusting), (secured.tls_port, {}), (broker.sasl_port, {})):
        assert "the broker, and the option security.protocol" in refused(BrokerUnreachable, at, options)


def login(mechanism: str, module: str, user: str, password: str = "open-sesame") -> dict[str, str]:
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{MODULES[module]} required username="{user}" password="{password}";',
    }


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
def test_listener_and_starting_offsets_use_tls_and_sasl(
    broker: LiveBroker, secured: Secured, trusting: dict[str, str], protocol: str, tmp_path: Path
) -> None:
    (tmp_path / "own.pem").write_text(secured.client.key_pem() + secured.client.certificate_pem)
    own = {"ssl.keystore.location": str(tmp_path / "own.pem"), "ssl.keystore.type": "PEM"}
    password, wrong = (login("PLAIN", "plain", "ada", each) for each in ("open-sesame", "wrong-word"))
    port, options = {
        "SASL_PLAINTEXT": (broker.sasl_port, password),
        "SASL_SSL": (secured.sasl_tls_port, trusting | password),
        "SSL": (secured.tls_port, trusting | own),
    }[protocol]
    options = options | {"security.protocol": protocol}
    address, group = f"127.0.0.1:{port}", f"query-{protocol}"
    listener = OffsetsListener(address, group, options=options)
    run_id = uuid.uuid4()
    listener.onQueryProgress(progress(0, kafka(t=[5, 7]), runId=str(run_id)))
    listener.onQueryTerminated(QueryTerminatedEvent(uuid.uuid4(), run_id, None, None))
    assert listener.close()
    assert {each["partition"]: each["offset"] for each in broker.answers.offsets([group])[group]} == {0: 5, 1: 7}
    assert json.loads(starting_offsets(address, group, ["t"], options=options)) == {"t": {"0": 5, "1": 7, "2": -2}}
    with pytest.raises(NoSuchOffset, match=r"has no committed offset for t-2 in 127\."):
        starting_offsets(address, group, ["t"], "none", options=options)
    if "sasl.mechanism" in options:
        with pytest.raises(AuthenticationFailed):
            starting_offsets(address, group, ["t"], options=options | wrong)


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", "plain"), ("SCRAM-SHA-256", "scram"), ("SCRAM-SHA-512", "scram")]
)
def test_sasl_with_a_password(
    broker: LiveBroker, secured: Secured, trusting: dict[str, str], mechanism: str, module: str
) -> None:
    right = {"security.protocol": "SASL_SSL", **trusting, **login(mechanism, module, "ada")}
    assert cluster_id(secured.sasl_tls_port, right) == broker.cluster_id()
    wrong = {"security.protocol": "SASL_PLAINTEXT", **login(mechanism, module, "ada", "wrong-word")}
    said = refused(AuthenticationFailed, broker.sasl_port, wrong)
    assert said.startswith(f"cannot authenticate with 127.0.0.1:{broker.sasl_port} (")
    assert "wrong-word" not in said


def test_a_mechanism_that_the_broker_has_not_is_told_with_those_it_has(broker: LiveBroker) -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"}
    said = refused(AuthenticationFailed, broker.sasl_port, options)
    assert "it has no SASL mechanism AWS_MSK_IAM, but " in said
    assert "SCRAM-SHA-512" in said


def test_a_login_that_ends_is_renewed_on_the_same_connection(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins: list[Connection] = []
    login_again = Connection._authenticate_again

    def noted(connection: Connection) -> None:
        login_again(connection)
        logins.append(connection)

    monkeypatch.setattr(Connection, "_authenticate_again", noted)
    options = {"security.protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-256", "scram", "ada")}
    with Cluster(KafkaOptions(f"127.0.0.1:{broker.sasl_port}", options)) as cluster:
        connection = cluster.connect(1) if cluster.brokers() else None
        assert connection is not None
        begun, socket = time.monotonic(), connection._socket
        while time.monotonic() < begun + 1.6:  # the broker ends a connection of 1.3 s whose login is not renewed
            connection.send(MetadataRequest(topics=[]))
        assert logins
        assert set(logins) == {connection}
        assert connection._socket is socket
        connection.close()


@contextmanager
def token_endpoint(token: str) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Address of a server that grants the token, and the logins and forms that it was sent."""
    asked: list[tuple[str, bytes]] = []

    class Handler(Quiet):
        def do_POST(self) -> None:  # noqa: N802 - the name that the server calls
            form = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((base64.b64decode(self.headers["Authorization"].split()[1]).decode(), form))
            granted = asked[-1][0] == "ada:s3cret"
            answer = json.dumps({"access_token": token, "expires_in": 300} if granted else {"error": "invalid_client"})
            self.send_response(200 if granted else 401)
            self.end_headers()
            self.wfile.write(answer.encode())

    with served(Handler) as url:
        yield f"{url}/token", asked


def unsigned_token(subject: str) -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + 300})
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts), ""]
    )


def test_sasl_with_a_token_of_oauth(broker: LiveBroker) -> None:
    with token_endpoint(unsigned_token("ada")) as (address, asked):
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": address,
            "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f'{MODULES["oauth"]} required clientId="ada" clientSecret="s3cret" scope="kafka";',
        }
        with Cluster(KafkaOptions(f"127.0.0.1:{broker.sasl_port}", options)) as cluster:
            assert cluster.topic(TOPIC).topic_id == broker.topic_id(TOPIC)
            cluster.connect(1).close()
        assert asked == [("ada:s3cret", b"grant_type=client_credentials&scope=kafka")]  # one token for both connections
        wrong = options | {"sasl.jaas.config": options["sasl.jaas.config"].replace("s3cret", "wrong-word")}
        said = refused(AuthenticationFailed, broker.sasl_port, wrong)
        assert "refused the client's credentials (401)" in said
        assert "wrong-word" not in said
    assert "did not grant a token" in refused(BrokerUnreachable, broker.sasl_port, options)
    with token_endpoint("no.token.") as (address, _):
        said = refused(
            AuthenticationFailed, broker.sasl_port, options | {"sasl.oauthbearer.token.endpoint.url": address}
        )
        assert "cannot authenticate with" in said


def test_a_user_without_rights_is_told_which_it_needs(broker: LiveBroker) -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", **login("PLAIN", "plain", "me")}
    said = rf"^127.0.0.1:{broker.sasl_port} does not allow us to read topic {TOPIC} \(.*\); grant DESCRIBE and READ on"
    with Cluster(KafkaOptions(f"127.0.0.1:{broker.sasl_port}", options)) as cluster:
        with pytest.raises(NotAuthorized, match=said):
            cluster.topic(TOPIC)
        assert cluster.topics(None) == {}
        broker.allow("me", "TOPIC", TOPIC, "DESCRIBE")
        topic = cluster.topic(TOPIC)
        answered(log_bounds(cluster, [(TOPIC, each) for each in topic.partitions]))
        with pytest.raises(NotAuthorized, match=r"read partition 0 of topic .* grant READ on it"):
            Fetcher(cluster, topic, 1).fetch({0: FetchPosition(0, None)})
        with pytest.raises(NotAuthorized, match="DESCRIBE_CONFIGS on it"):
            cluster.configs(TOPIC, ["cleanup.policy"])
