"""One connection: how it begins, what ends it, and that it is closed then."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

from offsets_pipeline.errors import AuthenticationFailed, BrokerUnreachable, KafkaFailed, OffsetsError
from offsets_pipeline.kafka.broker.client_settings import ClientSettings
from offsets_pipeline.kafka.broker.connection import Connection
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.kafka.certificates import Authority
from tests.unit.broker.fake_broker import FakeBroker, fake_broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSIONS, METADATA = ApiVersionsRequest.API_KEY, MetadataRequest.API_KEY
ADVICE = "; check the address, the broker, and the option security.protocol"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        yield broker


def connect(broker: FakeBroker, **options: str) -> Connection:
    given = {"request.timeout.ms": "2000"} | {name.replace("_", "."): value for name, value in options.items()}
    return Connection(ClientSettings(KafkaOptions(broker.address, given)), "127.0.0.1", broker.port)


def unsupported(*versions: tuple[int, int, int], code: int = 35) -> ApiVersionsResponse:
    """The answer of a broker that does not know the version of the request: API keys with their versions."""
    known = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in versions
    ]
    return ApiVersionsResponse(error_code=code, api_keys=known)


@pytest.mark.parametrize(
    ("refusals", "tried"),
    [
        ([], [4]),
        ([unsupported((VERSIONS, 0, 2))], [4, 2]),
        ([unsupported((VERSIONS, 0, 9))], [4, 3]),  # at least one version less each time
        ([unsupported((METADATA, 0, 2))], [4, 0]),
        ([unsupported()], [4, 0]),  # KIP-511: brokers before 2.4 do not send versions with this error
    ],
)
def test_versions_are_asked_for_in_a_version_that_the_broker_knows(
    broker: FakeBroker, refusals: list[ApiVersionsResponse], tried: list[int]
) -> None:
    broker.answers[VERSIONS] = lambda number: (
        refusals[number] if number < len(refusals) else broker.api_versions({METADATA: (0, 7)})
    )
    with connect(broker) as connection:
        assert connection.api_versions == {METADATA: (0, 7)}
        assert connection.finalized_features == {}
    assert [version for _, version, _ in broker.requests] == tried


@pytest.mark.parametrize(("code", "tries"), [(35, 2), (42, 1)])
def test_a_broker_that_does_not_tell_its_versions_is_an_error(broker: FakeBroker, code: int, tries: int) -> None:
    broker.answers[VERSIONS] = lambda _: unsupported(code=code)
    with pytest.raises(KafkaFailed, match=f"^{broker.address} cannot list the versions that it supports: [A-Z_]+$"):
        connect(broker)
    assert broker.count(VERSIONS) == tries


@pytest.mark.parametrize(
    ("highest", "most", "used"), [(9, None, 9), (99, None, MetadataRequest.max_version), (9, 4, 4), (0, None, 0)]
)
def test_a_request_has_the_highest_version_that_both_sides_know(
    broker: FakeBroker, highest: int, most: int | None, used: int
) -> None:
    broker.answers[VERSIONS] = lambda _: broker.api_versions({METADATA: (0, highest)})
    with connect(broker) as connection:
        assert connection.version_of(MetadataRequest(), most) == used


def test_a_request_that_the_broker_does_not_know_is_refused(broker: FakeBroker) -> None:
    with connect(broker) as connection:
        with pytest.raises(
            KafkaFailed, match="does not support DeleteGroupsRequest in versions 0 to 2: it is older or newer"
        ):
            connection.send(DeleteGroupsRequest(groups_names=["g"]))
        assert not connection.is_closed


def sized(size: int, more: bytes = b"") -> bytes:
    return struct.pack(">i", size) + more


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (sized(3, bytes(3)), BrokerUnreachable, "(it answers, but not as a Kafka broker does)"),
        (sized(4, struct.pack(">i", 1)), KafkaFailed, "sent an answer to ApiVersionsRequest that cannot be decoded"),
        (sized(2**20, bytes(2**20)), KafkaFailed, "cannot be decoded"),  # no answer to versions is larger
        (sized(2**20 + 1), BrokerUnreachable, "(it answers, but not as a Kafka broker does)"),
        (sized(-1), BrokerUnreachable, "(it answers, but not as a Kafka broker does)"),
    ],
)
def test_the_first_answer_shows_whether_a_broker_listens_there(
    broker: FakeBroker, answer: bytes, kind: type[Exception], said: str
) -> None:
    broker.answers[VERSIONS] = lambda _: answer
    with pytest.raises(OffsetsError) as refused:
        connect(broker)
    assert refused.type is kind
    assert said in str(refused.value)
    assert str(refused.value).endswith(ADVICE) == (kind is BrokerUnreachable)


def test_a_later_answer_may_be_large_and_one_that_breaks_off_closes_the_connection(broker: FakeBroker) -> None:
    with connect(broker) as connection:
        broker.answers[METADATA] = lambda _: sized(2**20 + 1, bytes(2**20 + 1))
        with pytest.raises(KafkaFailed, match="MetadataRequest that cannot be decoded"):
            connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        assert connection.is_closed

    def break_off(_: int) -> bytes:
        broker.disconnect()
        return b""

    with connect(broker) as connection:
        broker.answers[METADATA] = break_off
        with pytest.raises(BrokerUnreachable) as broken:
            connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        assert connection.is_closed
    assert str(broken.value) == f"no broker answers at {broker.address} (it closed the connection){ADVICE}"


def test_requests_are_numbered_and_name_the_client(broker: FakeBroker) -> None:
    with connect(broker, client_id="me") as connection:
        for _ in range(2):
            connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
    headers = [broker.request(MetadataRequest, number).header for number in range(2)]
    assert [(each.correlation_id, each.client_id) for each in headers] == [(2, "me"), (3, "me")]


def test_addresses_that_cannot_be_reached_are_named_as_users_write_them(broker: FakeBroker) -> None:
    settings = ClientSettings(KafkaOptions(broker.address, {}))
    broker.close()
    for host, at, reason in (
        ("127.0.0.1", broker.address, "Connection refused"),
        ("::1", f"[::1]:{broker.port}", "[A-Z][A-Za-z ]+"),
        ("a" * 64, f"{'a' * 64}:{broker.port}", ".*label.*"),  # DNS has no names of 64 characters
    ):
        with pytest.raises(BrokerUnreachable) as away:
            Connection(settings, host, broker.port)
        said = rf"no broker answers at {re.escape(at)} \({reason}\){re.escape(ADVICE)}"
        assert re.fullmatch(said, str(away.value))


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Authority, ssl.SSLContext]:
    """An authority, and the context of a broker that has a certificate of it and wants one of its clients."""
    authority = Authority("ca")
    own = authority.issue("broker", "127.0.0.1")
    for name, text in (("broker.pem", own.key_pem() + own.certificate_pem), ("ca.pem", authority.certificate_pem)):
        (tmp_path / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "broker.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # its handshake ends with the check of the client
    return authority, context


@pytest.mark.parametrize("password", [None, "open-sesame"])
def test_both_sides_of_tls_show_their_certificates(tls: tuple[Authority, ssl.SSLContext], password: str | None) -> None:
    authority, context = tls
    own = authority.issue("client")
    options = {"security_protocol": "SSL", "ssl_truststore_certificates": authority.certificate_pem}
    shown = {"ssl_keystore_key": own.key_pem(password), "ssl_keystore_certificate_chain": own.certificate_pem}
    if password is not None:
        shown["ssl_key_password"] = password
    with fake_broker(context) as broker:
        with connect(broker, **options, **shown) as connection:
            assert connection.api_versions
        with pytest.raises(
            AuthenticationFailed, match=rf"^cannot authenticate with {broker.address} \(TLS: .*ALERT.*\);"
        ):
            connect(broker, **options)
        with pytest.raises(AuthenticationFailed, match=r" \(its certificate is not trusted: self-signed certificate"):
            connect(broker, **options | {"ssl_truststore_certificates": Authority("other").certificate_pem})


def test_what_does_not_speak_tls_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        settings = ClientSettings(KafkaOptions(f"127.0.0.1:{port}", {"security.protocol": "SSL"}))
        with pytest.raises(BrokerUnreachable, match=rf"^no broker answers at 127.0.0.1:{port} \(TLS: WRONG_VERSION"):
            Connection(settings, "127.0.0.1", port)
        thread.join()
