"""A service on an address: access rules, TLS, limits of its connections, start and stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.errors import OptionNeedsAnother, ServiceUnavailable
from offsets_pipeline.service.rest.guard import Guard

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp

_TOKEN = re.compile(r"[\w.~+/=-]{16,4096}", re.ASCII)
_KEEP_ALIVE_SECONDS = 30
_STOP_SECONDS = 30
#: Python handles a signal that another thread got when the main thread wakes up.
_SIGNAL_SECONDS = 0.5


@dataclass(frozen=True)
class Access:
    """Who may send requests: files with a bearer token, the server's certificate and key, and the clients' CA.

    ``is_public``: no address requires authentication, as for metrics.
    """

    token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    is_public: bool = False


@dataclass(frozen=True)
class Limits:
    """Limits of the connections of one server.

    ``connections`` is their number: with the limit of a body it bounds the memory. ``header_seconds`` is the time for
    the headers of a request, and for a TLS handshake; ``read_seconds`` the time in which a client reads an answer.
    """

    connections: int = 500
    header_seconds: float = 10.0
    read_seconds: float = 30.0


class LimitedConnection(H11Protocol):
    """A connection that ends when a limit is reached.

    A connection *waits* while it has no complete request without an answer. A new connection over the limit closes the
    connection that has waited longest. So half-sent requests keep out no client that sends its headers at once.
    """

    def __init__(self, limits: Limits, waiting: dict[LimitedConnection, None], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """``waiting`` are the waiting connections of the server, the longest first."""
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._waiting = waiting
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        # not uvicorn's loggers: a program that embeds a coordinator may have a uvicorn of its own
        self.logger = logging.getLogger(f"{__name__}.silent")
        self.logger.setLevel(logging.CRITICAL)  # it would warn of each malformed request
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the headers. Close another connection if there are too many."""
        super().connection_made(transport)
        self._limit_headers()
        if len(self.connections) > self._limits.connections:
            next(iter(self._waiting)).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self._waiting.pop(self, None)
        for timer in (self._headers_due, self._read_due):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. More parts do not extend the time for its headers."""
        super().data_received(data)
        self._limit_headers()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there."""
        super().on_response_complete()
        self._note_waiting()

    def pause_writing(self) -> None:
        """Start the time in which the client has to read."""
        super().pause_writing()
        self._read_due = self.loop.call_later(self._limits.read_seconds, self.abort)

    def resume_writing(self) -> None:
        """Stop the time in which the client has to read."""
        super().resume_writing()
        if self._read_due is not None:
            self._read_due.cancel()

    def abort(self) -> None:
        """Close the connection at once; drops the unsent rest of an answer."""
        self._waiting.pop(self, None)
        self.connections.discard(self)  # at once: `connection_lost` follows later
        self.transport.abort()

    def _note_waiting(self) -> bool:
        waits = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        if waits and not self.transport.is_closing():
            self._waiting.setdefault(self)
        else:
            self._waiting.pop(self, None)
        return waits

    def _limit_headers(self) -> None:
        if self._note_waiting():
            if self._headers_due is None:
                self._headers_due = self.loop.call_later(self._limits.header_seconds, self.abort)
        elif self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None


class RestServer(Closing):
    """Serves an application in a thread until `close`, or the end of `with`.

    ``app_at`` makes the application, given the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        access: Access,
        app_at: Callable[[str], ASGIApp],
        max_request_bytes: int,
        limits: Limits | None = None,
    ) -> None:
        """Listen at an address; port 0 takes a free one.

        Raises OptionNeedsAnother if the access rules do not fit the address, ServiceUnavailable if a file cannot be
        read or the address cannot be bound.
        """
        addresses = _resolved(host, port)
        is_loopback = all(ipaddress.ip_address(each[0].partition("%")[0]).is_loopback for _, each in addresses)
        token, context = _required(access, f"{host}:{port}", is_loopback=is_loopback)
        self._limits = limits or Limits()
        self._socket = _bound(host, port, *addresses[0], backlog=self._limits.connections)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"{host}:{self.port}"
        self.url = f"{'http' if context is None else 'https'}://{self.address}"
        #: Whether a token crosses a network without TLS.
        self.is_in_clear = context is None and not is_loopback and not access.is_public
        guard = Guard(
            app_at(self.address),
            token,
            only_loopback_names=is_loopback and token is None and access.tls_client_ca is None,
            max_request_bytes=max_request_bytes,
        )
        config = uvicorn.Config(
            guard,
            http=partial(LimitedConnection, self._limits, {}),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, answer those that wait, and end the thread. Idempotent."""
        self._server.should_exit = True
        self.wait()

    def wait(self) -> None:
        """Wait until the service has stopped."""
        while self._thread.is_alive():
            self._thread.join(_SIGNAL_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=partial(_Loop, self._limits.header_seconds)) as runner:
            runner.run(self._server.serve([self._socket]))


class _Loop(asyncio.SelectorEventLoop):
    """Ends TLS handshakes after a time, for which uvicorn has no setting."""

    def __init__(self, handshake_seconds: float) -> None:
        super().__init__()
        self._handshake_seconds = handshake_seconds

    async def create_server(self, *args: Any, **kwargs: Any) -> asyncio.Server:  # noqa: ANN401 - as asyncio has it
        """Listen as asyncio does."""
        if kwargs.get("ssl") is not None:
            kwargs["ssl_handshake_timeout"] = self._handshake_seconds
        return await super().create_server(*args, **kwargs)


def _resolved(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServiceUnavailable(
            f"cannot listen at {host}:{port}: {host} cannot be resolved; name an address"
        ) from error
    return [(family, (str(address[0]), port)) for family, _, _, _, address in found]


def _bound(
    host: str, port: int, family: socket.AddressFamily, address: tuple[str, int], *, backlog: int
) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise ServiceUnavailable(f"cannot listen at {host}:{port}: {error.strerror}; choose another address") from error
    return listening


def _required(access: Access, address: str, *, is_loopback: bool) -> tuple[str | None, ssl.SSLContext | None]:
    """The token and the TLS context. Raises OptionNeedsAnother, ServiceUnavailable."""
    if (access.tls_certificate is None) != (access.tls_key is None):
        raise OptionNeedsAnother("--tls-certificate and --tls-key belong together; name both")
    if access.tls_client_ca is not None and access.tls_certificate is None:
        raise OptionNeedsAnother("--tls-client-ca needs TLS; name --tls-certificate and --tls-key, too")
    if not (is_loopback or access.is_public) and access.token_file is None and access.tls_client_ca is None:
        raise OptionNeedsAnother(
            f"cannot listen at {address} without authentication, because it is not a loopback address; "
            "name --token-file, or --tls-client-ca with --tls-certificate and --tls-key"
        )
    return None if access.token_file is None else _token(access.token_file), _tls(access)


def _token(file: Path) -> str:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ServiceUnavailable(f"cannot read the token in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if _TOKEN.fullmatch(text) is None:
        raise ServiceUnavailable(
            f"cannot use the token in {file}: it must have 16 to 4096 letters, digits and characters of -._~+/="
        )
    return text


def _tls(access: Access) -> ssl.SSLContext | None:
    if access.tls_certificate is None or access.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    reading = access.tls_certificate
    try:
        for reading in (access.tls_certificate, access.tls_key):
            reading.open("rb").close()
        # without this password, OpenSSL asks the terminal for that of an encrypted key
        context.load_cert_chain(access.tls_certificate, access.tls_key, password=b"")
        if access.tls_client_ca is not None:
            reading = access.tls_client_ca
            context.load_verify_locations(reading)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = (
            error.strerror
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            else "it is not a PEM file without password that fits the other"
        )
        raise ServiceUnavailable(f"cannot use {reading} for TLS: {reason}") from None
    return context
