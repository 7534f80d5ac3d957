"""Kafka's client options as settings of a connection: addresses, timeouts, TLS and SASL.

Options have the names and defaults of Kafka's own clients, except for the timeouts, which are shorter. This client
refuses an option that it does not support, by its name: an ignored option could weaken the security of a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.common.input_text import INT32_MAX, shown, whole_number
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.kafka.broker.sasl_login import SaslLogin
from offsets_pipeline.kafka.broker.tls import tls_context

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions

# protocol://[host]:port: the protocol and the brackets, which an IPv6 address needs, may be absent
_ADDRESS = re.compile(r"(?:[\w.-]+://)?(?:\[(?P<ipv6>[\w:%.]+)\]|(?P<host>[\w.%-]+)):(?P<port>\d{1,5})")
_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_NUMBERS = {
    "request.timeout.ms": 10_000,
    "default.api.timeout.ms": 15_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "retry.backoff.ms": 100,
    "fetch.min.bytes": 1,
    "fetch.max.bytes": 50 * 1024 * 1024,
    "fetch.max.wait.ms": 500,
    "max.partition.fetch.bytes": 1024 * 1024,
    "receive.buffer.bytes": 0,
    "send.buffer.bytes": 0,
}
_GENERAL = {"bootstrap.servers", "security.protocol", "client.id", *_NUMBERS}
_OF_TLS = {
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
}
_OF_SASL = {
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
}
_DEFAULT_CLIENT_ID = "offsets-pipeline"


@dataclass(frozen=True)
class FetchLimits:
    """How long a broker may hold a fetch back, and how much it may return."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int


class ClientSettings:
    """Settings of the connections to one cluster that a user's options ask for; times are in seconds."""

    def __init__(self, options: KafkaOptions) -> None:
        """Check the options.

        Raises ConfigError for an option that is unknown, or has a wrong value, or needs another option; NoSuchPath for
        a missing key store; DependencyMissing if a SASL mechanism needs a package that is not installed.
        """
        given = options.for_clients()
        unknown = sorted(set(given).difference(_GENERAL, _OF_TLS, _OF_SASL))
        if unknown:
            raise ConfigError(f"the Kafka option {shown(unknown[0])[1:-1]} is not supported: remove it")
        has_tls, has_sasl = _protocol(given)
        numbers = {name: _number(given, name) for name in _NUMBERS}
        self.bootstrap = _addresses(given["bootstrap.servers"])
        self.client_id = given.get("client.id", _DEFAULT_CLIENT_ID)
        self.setup_seconds = numbers["socket.connection.setup.timeout.ms"] / 1000
        self.request_seconds = numbers["request.timeout.ms"] / 1000
        self.api_seconds = numbers["default.api.timeout.ms"] / 1000
        self.backoff_seconds = numbers["retry.backoff.ms"] / 1000
        self.receive_buffer_bytes = numbers["receive.buffer.bytes"]
        self.send_buffer_bytes = numbers["send.buffer.bytes"]
        self.fetch = FetchLimits(
            min_bytes=numbers["fetch.min.bytes"],
            max_wait_ms=numbers["fetch.max.wait.ms"],
            max_bytes=numbers["fetch.max.bytes"],
            max_partition_bytes=numbers["max.partition.fetch.bytes"],
        )
        self.tls = tls_context(given) if has_tls else None
        self.sasl = SaslLogin(given) if has_sasl else None
        self.without_secrets = options.without_secrets

    @property
    def at(self) -> str:
        """The bootstrap addresses as users write them, for messages."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)


def _protocol(given: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether the connections use TLS, and whether they use SASL."""
    protocol = given.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in _PROTOCOLS:
        raise ConfigError(f"the Kafka option security.protocol is {shown(protocol)}: it takes {', '.join(_PROTOCOLS)}")
    return _PROTOCOLS[protocol.upper()]


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        address = _ADDRESS.fullmatch(each)
        if address is None or not 0 < int(address["port"]) < 2**16:
            raise ConfigError(f"the address {shown(each)} is not HOST:PORT, as broker-1.example.com:9092")
        found.append((address["ipv6"] or address["host"], int(address["port"])))
    if not found:
        raise ConfigError("there is no address of a broker: give HOST:PORT, as broker-1.example.com:9092")
    return tuple(found)


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, str(_NUMBERS[name])).strip()
    # Kafka's clients accept -1 for the size of a socket's buffer: the operating system decides
    if text == "-1" and name.endswith("buffer.bytes"):
        return 0
    try:
        return whole_number(text, INT32_MAX)
    except ValueError:
        raise ConfigError(
            f"the Kafka option {name} is {shown(text)}: it takes a whole number from 0 to {INT32_MAX}"
        ) from None
