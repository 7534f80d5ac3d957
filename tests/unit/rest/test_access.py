"""Who may use the REST service: addresses, tokens, certificates, hosts, sizes; and its stop."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.service.rest.guard import send_response
from offsets_pipeline.service.rest.server import Access, RestServer
from tests.kafka.certificates import Authority
from tests.rest_client import Answer, RestClient
from tests.unit.rest.services import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Receive, Scope, Send

TOKEN = "s3cret-token-~+/"  # as short as it may be
CONFIG = {"connector.class": "FileStreamSource", "file": "/a", "topic": "fa"}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An owned store."""
    folder = tmp_path_factory.mktemp("access") / "owned"
    ConnectLog.create(folder, "lab", 1)
    return folder


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with the token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


class Certificates:
    """Files of a server and of clients, of one authority and of another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = Authority("authority")
        self.authority = self._file("ca.pem", authority.certificate_pem)
        server = authority.issue("server", "127.0.0.1")
        self.certificate = self._file("server.pem", server.certificate_pem)
        self.key = self._file("server.key", server.key_pem())
        self.encrypted_key = self._file("encrypted.key", server.key_pem("password"))
        client = authority.issue("client")
        self.client = self._file("client.pem", client.certificate_pem + client.key_pem())
        stranger = Authority("another").issue("client")
        self.stranger = self._file("stranger.pem", stranger.certificate_pem + stranger.key_pem())

    def _file(self, name: str, text: str) -> Path:
        (self._folder / name).write_text(text)
        return self._folder / name

    def context(self, client: Path | None = None) -> ssl.SSLContext:
        """TLS of a client that trusts the authority."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if client is not None:
            context.load_cert_chain(client)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of one run."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def serve(
    location: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Runs `offsets connect serve` where it must refuse to start; returns its status and its output."""
    monkeypatch.setattr(RestServer, "_run", lambda _: None)  # if it starts, it says so and ends

    def run(*options: object) -> tuple[int, str]:
        status = main(["connect", "serve", "--store", str(location), *map(str, options)])
        said = capsys.readouterr()
        assert said.out == ""
        return status, said.err

    return run


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "203.0.113.7:8083"])
def test_an_address_that_is_not_loopback_needs_authentication(
    serve: Callable[..., tuple[int, str]], certificates: Certificates, address: str
) -> None:
    tls = "--tls-certificate", certificates.certificate, "--tls-key", certificates.key
    for options in ((), tls):  # TLS alone tells nothing about clients
        status, said = serve("--listen", address, *options)
        assert (status, len(said.splitlines())) == (1, 1)
        assert f"cannot listen at {address} without authentication" in said


def test_options_and_files_that_do_not_fit_are_refused_in_one_line(
    serve: Callable[..., tuple[int, str]], certificates: Certificates, tmp_path: Path
) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_text("x" * 15 + "\n")
    long.write_text("x" * 4097)
    key = "--tls-key", certificates.key
    for options, reason in (
        (("--token-file", short), "it must have 16 to 4096 letters"),
        (("--token-file", long), "it must have 16 to 4096 letters"),
        (("--token-file", tmp_path / "none"), "No such file"),
        (("--tls-certificate", certificates.certificate), "belong together"),
        (key, "belong together"),
        (("--tls-client-ca", certificates.authority), "needs TLS"),
        (("--tls-certificate", tmp_path / "none", *key), f"cannot use {tmp_path / 'none'} for TLS: No such file"),
        (("--tls-certificate", certificates.certificate, "--tls-key", certificates.encrypted_key), "without password"),
        (("--tls-certificate", certificates.stranger, *key), "fits the other"),
        (("--tls-certificate", certificates.certificate, *key, "--tls-client-ca", short), f"cannot use {short}"),
        (("--listen", "no.such.host.invalid:1"), "cannot be resolved"),
    ):
        status, said = serve(*options)
        assert (status, len(said.splitlines()), reason in said) == (1, 1, True), said


def test_an_address_in_use_is_refused_in_one_line(serve: Callable[..., tuple[int, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, said = serve("--listen", address)
        reason = "Address already in use; choose another address"
        assert (status, said) == (1, f"offsets: error: cannot listen at {address}: {reason}\n")


def test_requests_need_the_token(location: Path, token_file: Path) -> None:
    with service(location, Access(token_file)) as client:
        for header in (
            None,
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer \xff",
        ):
            headers = {} if header is None else {"Authorization": header}
            for path in ("/connectors", "/no/such/path", "/connectors/../x"):
                refused = client.send("GET", path, headers=headers)
                assert refused == Answer(401, {"error_code": 401, "message": "Unauthorized"})
            assert client.send("PUT", "/connectors/never/config", CONFIG, headers).status == 401
        for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            assert client.send("GET", "/connectors", headers={"Authorization": header}) == (200, [])


def test_clients_need_a_certificate_of_the_authority(location: Path, certificates: Certificates) -> None:
    access = Access(None, certificates.certificate, certificates.key, certificates.authority)
    with service(location, access) as client:
        for context in (certificates.context(), certificates.context(certificates.stranger)):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                RestClient(client.address, context).send("GET", "/connectors")
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client.send("GET", "/connectors")
        known = RestClient(client.address, certificates.context(certificates.client))
        for host in ({}, {"Host": "proxy.example"}):
            assert known.send("GET", "/connectors", headers=host) == (200, [])


@pytest.mark.parametrize(
    ("host", "rules", "scheme", "is_in_clear"),
    [
        ("127.0.0.1", "", "http", False),
        ("[::1]", "token", "http", False),
        ("0.0.0.0", "token", "http", True),
        ("0.0.0.0", "public", "http", False),
        ("0.0.0.0", "token tls", "https", False),
        ("0.0.0.0", "tls ca", "https", False),
    ],
)
def test_only_a_token_that_crosses_a_network_without_tls_is_in_clear(
    token_file: Path, certificates: Certificates, host: str, rules: str, scheme: str, *, is_in_clear: bool
) -> None:
    access = Access(
        token_file if "token" in rules else None,
        certificates.certificate if "tls" in rules else None,
        certificates.key if "tls" in rules else None,
        certificates.authority if "ca" in rules else None,
        is_public=rules == "public",
    )
    server = RestServer(host, 0, access, lambda _: answered, 100)
    server.close()
    assert (server.url, server.is_in_clear) == (f"{scheme}://{host}:{server.port}", is_in_clear)


async def answered(scope: Scope, _: Receive, send: Send) -> None:
    seen = json.dumps([scope["scheme"], scope["client"][0], scope["path"]]).encode()
    await send_response(send, 200, seen, {"X-Ours": "1"})


def test_an_answer_tells_nothing_of_the_server_and_headers_of_proxies_change_nothing() -> None:
    with RestServer("127.0.0.1", 0, Access(), lambda _: answered, 100) as server:
        for path, seen in (("/a/", "/a"), ("/", "/"), ("/a%20b", "/a%20b")):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            forwarded = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
            connection.request("GET", path, headers=forwarded)
            answer = connection.getresponse()
            assert json.loads(answer.read()) == ["http", "127.0.0.1", seen]
            connection.close()
            names = sorted(name.lower() for name, _ in answer.getheaders())
            assert names == ["content-length", "date", "x-ours"]
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_a_web_page_cannot_reach_the_service_by_a_name_of_its_own(location: Path, token_file: Path) -> None:
    with service(location) as client:
        for host in ("evil.example", "evil.example:8083", "127.0.0.1.evil.example", "", "[::2]"):
            assert client.send("GET", "/connectors", headers={"Host": host}).status == 400
        for host in ("localhost", "LOCALHOST:1", "[::1]:8083", "127.0.0.1"):
            assert client.send("GET", "/connectors", headers={"Host": host}) == (200, [])
    with service(location, Access(token_file)) as client:  # a proxy may have any name
        headers = {"Host": "proxy.example", "Authorization": f"Bearer {TOKEN}"}
        assert client.send("GET", "/connectors", headers=headers) == (200, [])


# --- sizes


@pytest.mark.parametrize("chunked", [False, True])
def test_an_oversized_body_is_refused_and_changes_nothing(location: Path, *, chunked: bool) -> None:
    def body(value_bytes: int) -> bytes:
        return json.dumps({**CONFIG, "name": "large", "x": "y" * value_bytes}).encode()

    limit = len(body(1_000))
    with service(location, max_request_bytes=limit) as client:

        def put(text: bytes) -> int:
            host, _, port = client.address.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            parts: Iterator[bytes] = iter([text[at : at + 500] for at in range(0, len(text), 500)])
            headers = {"Content-Type": "application/json"}
            try:
                connection.request(
                    "PUT", "/connectors/large/config", parts if chunked else text, headers, encode_chunked=chunked
                )
                return connection.getresponse().status
            finally:
                connection.close()

        assert put(body(1_001)) == 413
        assert client.send("GET", "/connectors").body.count("large") == 0 or chunked
        assert put(body(1_000)) in (200, 201)
        assert client.send("PUT", "/connectors/large/stop", body(1_001)).status == 413  # nothing reads this body
        assert client.send("GET", "/connectors/large/status").body["connector"]["state"] == "RUNNING"


def test_an_endless_body_is_cut_off(location: Path) -> None:
    with service(location, max_request_bytes=100_000) as client:
        host, _, port = client.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        sent = 0

        def endless() -> Iterator[bytes]:
            nonlocal sent
            while sent < 1 << 30:
                sent += 65_536
                yield b" " * 65_536

        with contextlib.suppress(OSError):  # the service closes the connection
            connection.request(
                "PATCH", "/connectors/x/offsets", endless(), {"Content-Type": "application/json"}, encode_chunked=True
            )
        connection.close()
        assert sent < 1 << 28


# --- stop


def test_a_stop_answers_requests_that_wait(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, goes_on = threading.Event(), threading.Event()
    reset = OffsetManagement.reset

    def slow(self: OffsetManagement, connector: str) -> str:
        waits.set()
        assert goes_on.wait(30)
        return reset(self, connector)

    monkeypatch.setattr(OffsetManagement, "reset", slow)
    answers: list[Answer] = []
    with service(location) as client:
        client.send("PUT", "/connectors/slow/config", CONFIG)
        client.send("PUT", "/connectors/slow/stop")
        request = threading.Thread(target=lambda: answers.append(client.send("DELETE", "/connectors/slow/offsets")))
        request.start()
        assert waits.wait(30)
        threading.Timer(0.3, goes_on.set).start()
    request.join(30)
    assert [answer.status for answer in answers] == [200]


def test_a_token_on_a_network_without_tls_is_warned_of(
    tmp_path: Path, token_file: Path, capsys: pytest.CaptureFixture[str], signal_handlers: None
) -> None:
    store = str(tmp_path / "new")
    threading.Timer(0.5, signal.raise_signal, [signal.SIGTERM]).start()
    command = ["connect", "serve", "--store", store, "--cluster-id", "lab", "--listen", "0.0.0.0:0"]
    status = main([*command, "--token-file", str(token_file)])
    assert StateReader(store).properties.cluster_id == "lab"
    said = capsys.readouterr()
    assert (status, said.out.count("are served at http://0.0.0.0:")) == (0, 1)
    assert said.err == "offsets: warning: the token is sent in clear text; name --tls-certificate and --tls-key\n"


@pytest.mark.process
def test_sigterm_stops_the_service_in_order(tmp_path: Path) -> None:
    store = tmp_path / "owned"
    offsets = str(Path(sys.executable).with_name("offsets"))
    command = [offsets, "connect", "serve", "--store", str(store), "--cluster-id", "lab"]
    process = subprocess.Popen([*command, "--listen", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    address = first.rpartition("http://")[2].strip()
    assert first == f"connectors of {store} are served at http://{address}\n"
    client = RestClient(address)
    assert client.send("PUT", "/connectors/files/config", CONFIG).status == 201
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"the service at http://{address} has stopped\n", "")
    with ConnectLog.open(store) as log:
        assert list(OffsetManagement(log).target_states()) == ["files"]
