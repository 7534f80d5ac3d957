"""What a server does with clients that send slowly, wait or do not read."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from offsets_pipeline.service.metrics.exposition import registry_of, serve_metrics
from offsets_pipeline.service.rest.server import Access, Limits, RestServer
from tests.kafka.certificates import Authority
from tests.rest_client import RestClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from offsets_pipeline.service.metrics.exposition import Values

#: The first half of a request's headers.
HALF = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HALF + b"\r\n"
PATIENT = 60.0


def connected(server: RestServer, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENT)
    connection.sendall(sent)
    return connection


def ended(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection; the wait for its end is limited by PATIENT."""
    received = bytearray()
    try:
        while part := connection.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return bytes(received)


@contextmanager
def metrics_served(limits: Limits) -> Iterator[RestServer]:
    server = serve_metrics(registry_of(lambda: {"offsets_groups": 5}), "127.0.0.1", 0, limits)
    try:
        yield server
    finally:
        server.close()


def test_more_half_sent_requests_than_connections_keep_out_no_client() -> None:
    with metrics_served(Limits(20, header_seconds=PATIENT)) as server, ExitStack() as open_until_the_end:
        half_sent = [open_until_the_end.enter_context(connected(server, HALF)) for _ in range(50)]
        answer = RestClient(server.address).send("GET", "/metrics")
        assert (answer.status, "offsets_groups 5" in str(answer.body)) == (200, True)
        for connection in half_sent[:31]:  # with the client's there were 51 connections; the first have waited longest
            assert ended(connection) == b""
        half_sent[-1].sendall(b"\r\n")
        assert half_sent[-1].recv(1_000).startswith(b"HTTP/1.1 200")


def test_a_request_without_the_end_of_its_headers_is_closed() -> None:
    with metrics_served(Limits(header_seconds=1.0)) as server:
        with connected(server) as silent, connected(server, HALF) as half_sent:
            assert ended(silent) == ended(half_sent) == b""
        with connected(server, WHOLE + HALF[:5]) as reused:
            received = b""
            while not received.endswith(b"offsets_groups 5.0\n"):
                more = reused.recv(1_000)
                assert more, received
                received += more
            reused.sendall(HALF[5:])  # the next request has the same limit
            assert ended(reused) == b""


def test_a_tls_handshake_that_does_not_begin_is_closed(tmp_path: Path) -> None:
    server = Authority("authority").issue("server", "127.0.0.1")
    (certificate := tmp_path / "server.pem").write_text(server.certificate_pem)
    (key := tmp_path / "server.key").write_text(server.key_pem())
    access = Access(None, certificate, key)
    limits = Limits(header_seconds=0.2)
    with (
        RestServer("127.0.0.1", 0, access, lambda _: nothing, 100, limits) as serving,
        connected(serving) as silent,
    ):
        assert ended(silent) == b""


async def nothing(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})


def test_a_client_that_sends_byte_by_byte_gets_no_more_time() -> None:
    with metrics_served(Limits(header_seconds=0.3)) as server, connected(server, HALF) as slow:
        is_over = threading.Event()

        def send() -> None:
            try:
                while not is_over.wait(0.02):
                    slow.sendall(b"a")
            except OSError:
                is_over.set()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            assert ended(slow) == b""
        finally:
            is_over.set()
            sender.join()


def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    given_up = threading.Event()

    async def large(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _part in range(100):  # far more than the buffers of a connection hold; without a client it goes nowhere
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        given_up.set()

    def app_at(_: str) -> ASGIApp:
        return large

    limits = Limits(read_seconds=0.2)
    with RestServer("127.0.0.1", 0, Access(), app_at, 100, limits) as server, connected(server, WHOLE):
        assert given_up.wait(PATIENT)


def test_a_request_that_is_answered_slowly_keeps_its_connection() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def values() -> Values:
        asked.set()
        assert goes_on.wait(PATIENT)
        return {}

    server = serve_metrics(registry_of(values), "127.0.0.1", 0, Limits(1, header_seconds=1.0))
    try:
        with connected(server, WHOLE) as asking:
            assert asked.wait(PATIENT)
            with connected(server) as other:  # the only one that waits
                assert ended(other) == b""
            with connected(server) as another:
                assert ended(another) == b""  # at once, or after the time for headers
            goes_on.set()
            assert asking.recv(1_000).startswith(b"HTTP/1.1 200")
    finally:
        goes_on.set()
        server.close()
