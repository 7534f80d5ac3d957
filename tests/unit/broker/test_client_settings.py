"""Kafka's client options become settings of a connection, or are refused by name without their secrets."""

from __future__ import annotations

import importlib
import io
import pickle
import re
import ssl
import urllib.error
import urllib.request
from email.message import Message
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, NoEncryption, pkcs12

from offsets_pipeline.errors import AuthenticationFailed, BrokerUnreachable, ConfigError, DependencyMissing, NoSuchPath
from offsets_pipeline.kafka.broker import sasl_login
from offsets_pipeline.kafka.broker.client_settings import _GENERAL, _OF_SASL, _OF_TLS, ClientSettings, FetchLimits
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.sasl_login import ClientCredentials
from offsets_pipeline.kafka.broker.tls import KeyMaterial, read_key_store
from tests.kafka.certificates import Authority, jks_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


SASL = {"security.protocol": "SASL_PLAINTEXT"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
URL = "sasl.oauthbearer.token.endpoint.url"


def settings(options: Mapping[str, str], address: str = "b:9092") -> ClientSettings:
    return ClientSettings(KafkaOptions(address, options))


def sasl(options: Mapping[str, str]) -> dict[str, object]:
    login = settings({**SASL, **options}).sasl
    assert login is not None
    return login.settings


def test_without_options_the_defaults_are_kafkas_and_the_timeouts_shorter() -> None:
    found = settings({})
    assert (found.tls, found.sasl, found.client_id, found.at) == (None, None, "offsets-pipeline", "b:9092")
    assert (found.setup_seconds, found.request_seconds, found.api_seconds) == (10, 10, 15)
    assert (found.receive_buffer_bytes, found.send_buffer_bytes) == (0, 0)  # as the operating system decides
    assert found.fetch == FetchLimits(min_bytes=1, max_wait_ms=500, max_bytes=52428800, max_partition_bytes=1048576)


def test_options_have_kafkas_names() -> None:
    found = settings({
        "kafka.client.id": "me",
        "request.timeout.ms": "1500",
        "socket.connection.setup.timeout.ms": "2500",
        "default.api.timeout.ms": "3500",
        "retry.backoff.ms": "250",
        "fetch.min.bytes": "2",
        "fetch.max.wait.ms": "3",
        "fetch.max.bytes": "4",
        "max.partition.fetch.bytes": "5",
        "receive.buffer.bytes": "-1",
        "send.buffer.bytes": "6",
    })  # fmt: skip
    assert (found.client_id, found.request_seconds, found.setup_seconds) == ("me", 1.5, 2.5)
    assert (found.api_seconds, found.backoff_seconds) == (3.5, 0.25)
    assert (found.fetch, found.receive_buffer_bytes, found.send_buffer_bytes) == (FetchLimits(2, 3, 4, 5), 0, 6)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("a:1,b.example.com:65535", [("a", 1), ("b.example.com", 65535)]),
        (" PLAINTEXT://a:1 , [::1]:2", [("a", 1), ("::1", 2)]),
        ("SASL_SSL://[fe80::1%eth0]:3", [("fe80::1%eth0", 3)]),
    ],
)
def test_addresses_are_written_as_for_kafkas_clients(address: str, expected: list[tuple[str, int]]) -> None:
    assert list(settings({}, address).bootstrap) == expected


@pytest.mark.parametrize(
    ("address", "said"),
    [("b", "'b' is not HOST:PORT"), ("b:0", "'b:0' is not"), ("b:65536", "is not"), (",", "no address")],
)
def test_an_address_that_is_none_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings({}, address)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max.poll.records": "1"}, r"the Kafka option max\.poll\.records is not supported: remove it"),
        ({"security.protocol": "TLS"}, "takes PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"request.timeout.ms": "soon"}, r"request\.timeout\.ms is 'soon': it takes a whole number"),
        ({"request.timeout.ms": "-1"}, "takes a whole number"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "takes https, or nothing"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "takes TLSv1.2, TLSv1.3"),
        (
            {"security.protocol": "SSL", "ssl.truststore.certificates": "none"},
            r"certificates of the Kafka options ssl\.truststore\.\* cannot be read",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.key": "wrong-word"}, "needs a private key and its certificate"),
        (
            SASL | {"sasl.mechanism": "DIGEST-MD5"},
            "takes PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI, AWS",
        ),
        (SASL | {"sasl.mechanism": "PLAIN"}, "needs the option username in the Kafka option sasl.jaas.config"),
        (SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "wrong-word"}, "is no JAAS entry"),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN} required wrong-word;"},
            "option that is not NAME",
        ),
        (SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SCRAM} required;"}, "name PlainLoginModule"),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.client.callback.handler.class": "my.Handler"},
            "Java class that this",
        ),
        (SASL | {"sasl.mechanism": "OAUTHBEARER"}, r"token\.endpoint\.url, an address that starts with https://"),
        (SASL | {"sasl.mechanism": "OAUTHBEARER", URL: "ftp://t"}, "starts with https"),
        (SASL | {"sasl.mechanism": "OAUTHBEARER", URL: "https://t"}, "needs clientId and clientSecret"),
    ],
)
def test_a_wrong_option_is_named_in_one_line_without_its_secrets(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        settings(options)
    assert "\n" not in str(raised.value)
    assert "wrong-word" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"security.protocol": "SSL " * 10_000},
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "https " * 10_000},
        {"security.protocol": "SSL", "ssl.keystore.location": "a", "ssl.keystore.type": "JKS " * 10_000},
        SASL | {"sasl.mechanism": "PLAIN " * 10_000},
    ],
)
def test_a_wrong_value_is_shown_in_a_line_that_can_be_read(options: Mapping[str, str]) -> None:
    """As when the line end before a certificate is lost."""
    with pytest.raises(ConfigError, match="it takes") as raised:
        settings(options)
    assert len(str(raised.value)) < 500


def test_a_jaas_entry_is_read_as_java_reads_it() -> None:
    entry = f'\n  {PLAIN}  required\n username=\'m e\' password="a\\"b;\\\\c" other=plain\n;\n'
    found = sasl({"sasl.mechanism": "plain", "sasl.jaas.config": entry})
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("m e", 'a"b;\\c')
    of_oauth = f'{OAUTH} required clientId="i" clientSecret="s" scope="x" extension_logicalCluster="c";'
    provider = sasl({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": of_oauth, URL: "https://t"})
    assert provider["sasl_oauth_token_provider"].extensions() == {"logicalCluster": "c"}  # type: ignore[attr-defined]
    assert "open" not in repr(settings(SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config":
                                               f'{PLAIN} required username="me" password="open";'}).sasl)  # fmt: skip


def test_mechanisms_that_need_a_package_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def without(name: str) -> object:
        if name in ("gssapi", "botocore"):
            raise ImportError(name)
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(DependencyMissing, match="SASL GSSAPI needs the package gssapi, which is not installed"):
        sasl({"sasl.kerberos.service.name": "kafka"})
    with pytest.raises(DependencyMissing, match="SASL AWS_MSK_IAM needs the package botocore"):
        sasl({"sasl.mechanism": "AWS_MSK_IAM"})
    monkeypatch.setattr(importlib, "import_module", lambda _: None)
    kerberos = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true serviceName=broker;"
    assert sasl({"sasl.jaas.config": kerberos})["sasl_kerberos_service_name"] == "broker"
    both = {"sasl.jaas.config": kerberos, "sasl.kerberos.service.name": "kafka"}
    assert sasl(both)["sasl_kerberos_service_name"] == "kafka"
    with pytest.raises(ConfigError, match=r"needs the Kafka option sasl\.kerberos\.service\.name"):
        sasl({"sasl.mechanism": "GSSAPI"})


def test_tls_checks_the_broker_unless_an_option_says_otherwise() -> None:
    found = settings({"security.protocol": "ssl", "ssl.enabled.protocols": "TLSv1.3"}).tls
    assert found is not None
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (found.minimum_version, found.maximum_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    found = settings({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}).tls
    assert found is not None
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, False)


@pytest.mark.parametrize(
    ("protocol", "has_tls", "has_sasl"),
    [("PLAINTEXT", False, False), ("ssl", True, False), ("SASL_PLAINTEXT", False, True), ("SASL_SSL", True, True)],
)
def test_the_protocol_says_whether_connections_use_tls_and_sasl(
    protocol: str, *, has_tls: bool, has_sasl: bool
) -> None:
    entry = f'{PLAIN} required username="me" password="open-sesame";'
    found = settings({"security.protocol": protocol, "sasl.mechanism": "PLAIN", "sasl.jaas.config": entry})
    assert (found.tls is not None, found.sasl is not None) == (has_tls, has_sasl)


def test_a_key_store_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    tls = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "t.jks")}
    with pytest.raises(NoSuchPath, match=r"the Kafka option ssl\.truststore\.location names .*t\.jks: no such file"):
        settings(tls)
    for content in (b"", b"no store", b"\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x01", b"-----BEGIN \xff"):
        (tmp_path / "t.jks").write_bytes(content)
        with pytest.raises(
            ConfigError, match=r"cannot be read as a PEM, PKCS12 or JKS store: check the file and ssl\.trust"
        ):
            settings(tls)
    with pytest.raises(ConfigError, match="'BKS': it takes PEM, PKCS12, JKS"):
        settings(tls | {"ssl.truststore.type": "BKS"})


def test_a_key_store_in_java_s_own_format_has_its_key_and_certificates(tmp_path: Path) -> None:
    authority = Authority("ca")
    own = authority.issue("client")
    (tmp_path / "k.jks").write_bytes(jks_file(own, "changeit", authority.certificate))
    given = {"ssl.keystore.location": str(tmp_path / "k.jks"), "ssl.keystore.password": "changeit"}
    found = read_key_store("ssl.keystore", given, with_key=True)
    assert found.key == own.key_pem()
    assert found.certificates == own.certificate_pem + authority.certificate_pem
    assert read_key_store("ssl.keystore", given, with_key=False).key is None
    with pytest.raises(ConfigError, match="the password is wrong"):
        read_key_store("ssl.keystore", given | {"ssl.keystore.password": "change"}, with_key=True)


@pytest.mark.parametrize(
    ("option", "entry", "form"),
    [
        ({"sasl.oauthbearer.scope": "of the option"}, {"scope": "of the entry"}, b"&scope=of+the+option"),
        ({}, {"scope": "kafka"}, b"&scope=kafka"),
        ({}, {}, b""),
    ],
)
def test_the_scope_of_a_token_is_that_of_the_option_else_of_the_jaas_entry(
    option: dict[str, str], entry: dict[str, str], form: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.data, timeout > 0))
        return io.BytesIO(b'{"access_token": "granted"}')

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    client = {"clientId": "me", "clientSecret": "open-sesame"}
    assert ClientCredentials({URL: "https://token"} | option, client | entry).token() == "granted"
    assert asked == [(b"grant_type=client_credentials" + form, True)]


def test_a_token_is_granted_for_the_credentials_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 6749: a POST with the id and the secret as the user and the password of Basic."""
    asked: list[urllib.request.Request] = []
    answers = [
        b'{"access_token": "first", "expires_in": 100}',
        b'{"access_token": "second"}',
        b'{"access_token": "third"}',
    ]

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert timeout == 10
        asked.append(request)
        return io.BytesIO(answers[len(asked) - 1])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    jaas = {"clientId": "entry", "clientSecret": "s", "extension_logicalCluster": "c", "other": "x"}
    client = "sasl.oauthbearer.client.credentials.client."
    given = {URL: "http://token", f"{client}id": "me", f"{client}secret": "open"}
    provider = ClientCredentials(given, jaas)
    assert provider.extensions() == {"logicalCluster": "c"}
    found = []
    for now in (0.0, 79.9, 80.0, 80.0):  # four fifths of 100 s; a token without a lifetime is for one use
        monkeypatch.setattr(sasl_login, "time", SimpleNamespace(monotonic=partial(float, now)))
        found.append(provider.token())
    assert found == ["first", "first", "second", "third"]
    assert {(each.full_url, each.get_method(), each.get_header("Accept")) for each in asked} == {
        ("http://token", "POST", "application/json")
    }
    assert {each.get_header("Authorization") for each in asked} == {"Basic bWU6b3Blbg=="}  # me:open
    with pytest.raises(ConfigError, match="needs clientId and clientSecret"):
        ClientCredentials({URL: "https://t"}, {"clientId": "me"})


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            urllib.error.HTTPError("https://t", 401, "no", Message(), io.BytesIO()),
            AuthenticationFailed,
            "refused the client's credentials (401): check clientId, clientSecret and scope",
        ),
        (urllib.error.URLError("no route"), BrokerUnreachable, "did not grant a token (no route)"),
        (b"<html>", BrokerUnreachable, "did not grant a token (its answer has no access_token)"),
        (b"[]", BrokerUnreachable, "did not grant a token (its answer has no access_token)"),
        (b'{"token": 1}', BrokerUnreachable, "did not grant a token (its answer has no access_token)"),
    ],
)
def test_an_endpoint_that_grants_no_token_is_named(
    answer: bytes | Exception, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def urlopen(*_: object, **__: object) -> io.BytesIO:
        if isinstance(answer, bytes):
            return io.BytesIO(answer)
        raise answer

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(kind, match=f"^{re.escape(f'the token endpoint https://t {said}')}$"):
        ClientCredentials({URL: "https://t"}, {"clientId": "me", "clientSecret": "open-sesame"}).token()


def test_a_pkcs12_file_has_its_key_and_certificates(tmp_path: Path) -> None:
    authority = Authority("ca")
    own = authority.issue("client")
    store, given = tmp_path / "k.p12", {"ssl.keystore.location": str(tmp_path / "k.p12")}
    for password in ("changeit", None):
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        store.write_bytes(
            pkcs12.serialize_key_and_certificates(b"own", own.key, own.certificate, [authority.certificate], encryption)
        )
        both = own.certificate_pem + authority.certificate_pem
        known = given if password is None else given | {"ssl.keystore.password": password}
        assert read_key_store("ssl.keystore", known, with_key=True) == KeyMaterial(both, own.key_pem())
        assert read_key_store("ssl.keystore", known, with_key=False) == KeyMaterial(both, None)
        with pytest.raises(ConfigError, match=r"check the file and ssl\.keystore\.password \("):
            read_key_store("ssl.keystore", given | {"ssl.keystore.password": "other"}, with_key=True)
    store.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [authority.certificate], NoEncryption()))
    trusted = KeyMaterial(authority.certificate_pem, None)
    assert read_key_store("ssl.keystore", given, with_key=True) == trusted
    tls = settings({"security.protocol": "SSL", "ssl.truststore.location": str(store)}).tls
    assert tls is not None
    assert [each["subject"] for each in tls.get_ca_certs()] == [((("commonName", "ca"),),)]
    assert tls.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN  # Java trusts each certificate of a trust store
    assert (tls.minimum_version, tls.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def test_key_stores_that_do_not_serve_are_refused(tmp_path: Path) -> None:
    own = Authority("ca").issue("client")
    key, chain = "ssl.keystore.key", "ssl.keystore.certificate.chain"
    (tmp_path / "key.pem").write_text(own.key_pem())
    (tmp_path / "jks").write_bytes(jks_file(own, "changeit", Authority("ca").certificate))
    jks = {"ssl.keystore.location": str(tmp_path / "jks")}
    for options, said in (
        ({"ssl.truststore.certificates": ""}, r"the trust store of the Kafka options ssl\.truststore\.\* has no cert"),
        ({"ssl.truststore.location": str(tmp_path / "key.pem")}, "has no certificates"),
        ({"ssl.truststore.location": str(tmp_path)}, f"names {tmp_path}: Is a directory"),
        ({key: own.key_pem()}, "needs a private key and its certificate"),
        ({chain: own.certificate_pem}, "needs a private key and its certificate"),
        ({key: own.key_pem("a"), chain: own.certificate_pem}, r"cannot be read \(.*\): check ssl\.key\.password"),
        ({key: own.key_pem("a"), chain: own.certificate_pem, "ssl.key.password": "b"}, r"check ssl\.key\.password"),
        ({key: own.key_pem("a"), chain: own.certificate_pem, "ssl.key.password": "a" * 1025}, r"\(not PEM\): check"),
        (jks | {"ssl.keystore.password": "changeit", "ssl.key.password": "b"}, "password of the private key is wrong"),
    ):
        with pytest.raises(ConfigError, match=said):
            settings({"security.protocol": "SSL", **options})
    found = read_key_store("ssl.keystore", jks | {"ssl.key.password": "changeit"}, with_key=True)
    assert found.key == own.key_pem()  # without the password of the store its digest is not checked


def test_a_pem_file_has_certificates_and_a_key_in_any_order(tmp_path: Path) -> None:
    first, key, second, other_key = (
        f"-----BEGIN {kind}-----\n{text}\n-----END {kind}-----"
        for kind, text in (
            ("CERTIFICATE", "Zmlyc3Q="),
            ("ENCRYPTED PRIVATE KEY", "a2V5"),
            ("CERTIFICATE", "c2Vjb25k"),
            ("PRIVATE KEY", "b3RoZXI="),
        )
    )
    store = tmp_path / "keys.pem"
    given = {"ssl.keystore.location": str(store), "ssl.keystore.type": "PEM"}
    store.write_text(f"of our broker\n{first}\n{key}\n{second}\n{other_key}", encoding="ascii")
    assert read_key_store("ssl.keystore", given, with_key=True) == KeyMaterial(f"{first}\n{second}", key)
    store.write_text(second, encoding="ascii")
    assert read_key_store("ssl.keystore", given, with_key=True) == KeyMaterial(second, None)


def test_options_reach_a_task_of_spark_with_their_secrets() -> None:
    options = KafkaOptions("b:9092", {"sasl.jaas.config": f'{PLAIN} required username="me" password="open-sesame";',
                                      "sasl.mechanism": "PLAIN", **SASL})  # fmt: skip
    found = ClientSettings(pickle.loads(pickle.dumps(options)))
    assert found.sasl is not None
    assert found.sasl.settings["sasl_plain_password"] == "open-sesame"
    assert found.without_secrets("a open-sesame") == "a ***"


def test_the_documented_options_are_the_supported_ones(root: Path) -> None:
    section = (root / "docs" / "sources.md").read_text(encoding="utf-8").partition("### Options")[2]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("| `"))
    documented = set(re.findall(r"`([a-z.]+)`", rows))
    assert documented == (_GENERAL | _OF_TLS | _OF_SASL) - {"bootstrap.servers"}
