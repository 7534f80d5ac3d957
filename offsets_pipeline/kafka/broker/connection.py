"""One connection to one broker: it frames requests, negotiates versions, authenticates and honours throttling.

The library kafka-python encodes requests, decodes answers and computes SASL tokens. This module replaces the library's
connection, which reads in pieces of a few KiB, and which retries and logs a failed attempt to connect (ADR 18).
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.input_text import INT32_MAX
from offsets_pipeline.errors import KafkaFailed, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import (
    NO_ERROR,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
    broker_error,
    error_name,
    not_authenticated,
    unreachable,
)

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.client_settings import ClientSettings

_SIZE = struct.Struct(">i")
_CORRELATION_ID_BYTES = 4
_HEADER_BYTES = 1024  # more than the header of any answer has
_FIRST_ANSWER_BYTES = 1024 * 1024  # an answer to ApiVersions has some KiB: more means that no broker listens there
_REAUTHENTICATE_AFTER = 0.85  # share of a session's lifetime, as in Kafka's clients
_SOFTWARE = {"client_software_name": "offsets-pipeline", "client_software_version": "0"}

Message = Any  # kafka-python has no types
#: An absent node id, leader epoch, record offset or time in Kafka's protocol.
NONE = -1


def or_none(number: int | None) -> int | None:
    """Return a number of a response; None if it is NONE, or if this version of the response lacks the field."""
    return None if number == NONE else number


class Connection(Closing):
    """A connection to a broker, authenticated and ready. Close it with `close`, or use it in `with`.

    Threads may share it: it sends one request at a time. After an error of the network it is closed, and
    `is_closed` is true.

    Raises BrokerUnreachable, AuthenticationFailed or KafkaFailed, also in `send`.
    """

    def __init__(self, settings: ClientSettings, host: str, port: int) -> None:
        self.at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.is_closed = False
        #: lowest and highest version that the broker supports of each request, by API key
        self.api_versions: dict[int, tuple[int, int]] = {}
        #: levels of the cluster's features, such as transaction.version; empty before Kafka 2.7
        self.finalized_features: dict[str, int] = {}
        self._settings = settings
        self._lock = threading.Lock()
        self._correlation_id = 0
        self._not_before = 0.0  # the broker throttles us until then
        self._reauthenticate_at: float | None = None
        self._socket = self._connect(host, port)
        with self._closed_on_error():
            self._negotiate()
            self._authenticate()

    def send(self, request: Message, *, max_version: int | None = None, wait_seconds: float = 0) -> Message:
        """Send a request, and return the answer.

        Args:
            request: a request of kafka.protocol, without a version: the highest that both sides know is used.
            max_version: use no higher version than this.
            wait_seconds: time that the broker may take on purpose, on top of request.timeout.ms.
        """
        version = self.version_of(request, max_version)
        with self._lock:
            if self._reauthenticate_at is not None and time.monotonic() >= self._reauthenticate_at:
                self._authenticate_again()
            time.sleep(max(0.0, self._not_before - time.monotonic()))
            return self._exchange(request, version, wait_seconds=wait_seconds)

    def version_of(self, request: Message, max_version: int | None = None) -> int:
        """The highest version of a request that both sides know. Raises KafkaFailed if there is none."""
        lowest, highest = request.valid_versions
        broker_lowest, broker_highest = self.api_versions.get(request.API_KEY, (0, -1))
        version = min(highest if max_version is None else max_version, broker_highest)
        if version < max(lowest, broker_lowest):
            raise KafkaFailed(
                f"{self.at} does not support {request.name} in versions {lowest} to {highest}: "
                "it is older or newer than this client can talk to"
            )
        return int(version)

    def close(self) -> None:
        """Close the connection. A request that waits in another thread raises BrokerUnreachable."""
        self.is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    # --- set-up

    def _connect(self, host: str, port: int) -> socket.socket:
        settings = self._settings
        self._host = host
        raw: socket.socket | None = None
        try:
            raw = socket.create_connection((host, port), settings.setup_seconds)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if settings.receive_buffer_bytes:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
            if settings.send_buffer_bytes:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
            return raw if settings.tls is None else settings.tls.wrap_socket(raw, server_hostname=host)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that DNS cannot have
            if raw is not None:
                raw.close()
            raise self._network_error(error) from None

    def _negotiate(self) -> None:
        """Ask which versions of each request the broker knows."""
        version = ApiVersionsRequest.max_version
        while True:
            request = ApiVersionsRequest(version=version, **_SOFTWARE)
            answer = self._exchange(request, version, max_bytes=_FIRST_ANSWER_BYTES)
            known = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
            if answer.error_code != UNSUPPORTED_VERSION or version == 0:
                break
            # the broker is older: it answers with the versions that it knows
            version = min(version - 1, known.get(ApiVersionsRequest.API_KEY, (0, 0))[1])
        if answer.error_code != NO_ERROR:
            raise broker_error(answer.error_code, self.at, "list the versions that it supports")
        self.api_versions = known
        self.finalized_features = {each.name: each.max_version_level for each in answer.finalized_features or ()}

    def _authenticate_again(self) -> None:
        """Log in again, because the session of the last login is about to end (KIP-368)."""
        with self._closed_on_error():
            self._authenticate()

    def _authenticate(self) -> None:
        """Log in by SASL, if the settings say so."""
        login = self._settings.sasl
        if login is None:
            return
        handshake = SaslHandshakeRequest(mechanism=login.mechanism)
        answer = self._exchange(handshake, self.version_of(handshake))
        if answer.error_code == UNSUPPORTED_SASL_MECHANISM:
            enabled = ", ".join(answer.mechanisms) or "none"
            raise not_authenticated(self.at, f"it has no SASL mechanism {login.mechanism}, but {enabled}")
        if answer.error_code != NO_ERROR:
            raise not_authenticated(self.at, error_name(answer.error_code))
        try:
            lifetime_ms = self._exchange_tokens(login.start(self._host))
        except OffsetsError:
            raise
        except Exception as error:  # noqa: BLE001 - of kafka-python or of a library that it calls
            said = self._settings.without_secrets(first_line(error))
            raise not_authenticated(self.at, f"{login.mechanism}: {said}") from None
        again_at = time.monotonic() + lifetime_ms / 1000 * _REAUTHENTICATE_AFTER
        self._reauthenticate_at = again_at if lifetime_ms > 0 else None

    def _exchange_tokens(self, mechanism: Message) -> int:
        """Send tokens until the mechanism is done. Returns the lifetime of the session in ms, 0 if it has no end."""
        lifetime_ms = 0
        while not mechanism.is_done():
            request = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes())
            answer = self._exchange(request, self.version_of(request))
            if answer.error_code != NO_ERROR:
                said = answer.error_message or error_name(answer.error_code)
                raise not_authenticated(self.at, self._settings.without_secrets(said))
            mechanism.receive(answer.auth_bytes)
            lifetime_ms = int(answer.session_lifetime_ms or 0)
        if not mechanism.is_authenticated():
            raise not_authenticated(self.at, "the SASL exchange ended without a login")
        return lifetime_ms

    # --- one request

    def _exchange(
        self, request: Message, version: int, *, wait_seconds: float = 0, max_bytes: int = INT32_MAX
    ) -> Message:
        """Send a request and read the answer. Closes the connection if that fails: the answer may still come."""
        with self._closed_on_error():
            try:
                self._socket.settimeout(self._settings.request_seconds + wait_seconds)
                frame = self._send_frame(request, version, max_bytes)
            except OSError as error:
                raise self._network_error(error) from None
            try:
                answer = self._decode(request, frame)
            except (struct.error, ValueError, LookupError, AssertionError):
                raise KafkaFailed(f"{self.at} sent an answer to {request.name} that cannot be decoded") from None
        # a broker since 2.0 answers at once, and expects the client to wait before its next request
        self._not_before = time.monotonic() + (getattr(answer, "throttle_time_ms", None) or 0) / 1000
        return answer

    def _send_frame(self, request: Message, version: int, max_bytes: int) -> bytearray:
        """Send a request, and return the answer's header and body. Raises OSError."""
        self._correlation_id = (self._correlation_id + 1) % 2**31
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self._settings.client_id)
        self._socket.sendall(request.encode(header=True, framed=True))
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        if not _CORRELATION_ID_BYTES <= size <= max_bytes:
            raise ConnectionError("it answers, but not as a Kafka broker does")
        return self._receive(size)

    def _decode(self, request: Message, frame: bytearray) -> Message:
        """Raises ValueError and others if the bytes are no answer to the request."""
        kind = request.header.get_response_class()
        header = io.BytesIO(frame[:_HEADER_BYTES])
        if kind.parse_header(header).correlation_id != self._correlation_id:
            raise ValueError("an answer to another request")
        return kind.decode(memoryview(frame)[header.tell() :])

    def _receive(self, size: int) -> bytearray:
        received = bytearray(size)
        view, start = memoryview(received), 0
        while start < size:
            count = self._socket.recv_into(view[start:])
            if not count:
                raise ConnectionError("it closed the connection")
            start += count
        return received

    def _network_error(self, error: OSError | UnicodeError) -> OffsetsError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return not_authenticated(self.at, f"its certificate is not trusted: {error.verify_message}")
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return not_authenticated(self.at, f"TLS: {error.reason}")
        if isinstance(error, ssl.SSLError):
            return unreachable(self.at, f"TLS: {error.reason or first_line(error)}")
        if isinstance(error, TimeoutError):
            return unreachable(self.at, "it did not answer in time")
        reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        return unreachable(self.at, self._settings.without_secrets(reason))
