"""An S3-compatible server that delays, loses, doubles or refuses requests, or kills their processes, as a test says."""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

from benchmarks.s3 import client_variables, create_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Environ = dict[str, Any]

#: Timeout of obstore's and deltalake's requests; Arrow's is three seconds.
CLIENT_TIMEOUT_MS = 500


class Fault(Enum):
    """What happens to a request."""

    SLOW = "it is done after the client's timeout"
    LOST_REQUEST = "it is not done, and has no answer"
    LOST_ANSWER = "it is done, and has no answer"
    DOUBLED = "it is done twice; the second answer counts"
    ERROR_500 = "it is done, and answered with the status 500"
    ERROR_503 = "it is not done, and answered with the status 503"
    REFUSED = "it is not done, and answered with the status 403"
    KILLED = "the process that sent it is killed with SIGKILL, then it is done"
    EXPIRED = "it is not done, since its session token has expired"
    OTHER_REGION = "it is not done, since it is signed for another region, and the answer names the region"
    REDIRECTED = "it is not done, since the bucket is in another region, and the answer does not name it"
    UNCONDITIONAL = "it is done, whatever its condition"
    BROKEN_OFF = "it is done, and the connection ends in the middle of the answer"
    SKEWED = "it is not done, since the clock of the client is wrong"
    UNKNOWN = "it is not done, since the server does not know such requests"


#: What a request to a network or a server out of order may meet.
FAULTS = (Fault.SLOW, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.DOUBLED, Fault.ERROR_500, Fault.ERROR_503)
#: Programs that send requests, by the end of one of their first three words; all others are "program".
_SENDERS = {b"pyspark.daemon": "Spark task", b"java": "JVM", b"writer.py": "coordinator"}


class Hit(NamedTuple):
    """A fault that happened to a request, for instance (KILLED, "PUT file", "Spark task")."""

    fault: Fault
    operation: str
    sender: str


class _QuietHandler(MotoRequestHandler):
    def log_request(self, *_: object) -> None:
        """Log nothing: a test sends thousands of requests."""


#: Answers to requests that are not done.
_REFUSALS = {
    Fault.ERROR_503: ("503 Slow Down", b""),
    Fault.REFUSED: ("403 Forbidden", b""),
    Fault.EXPIRED: ("400 Bad Request", b"<Error><Code>ExpiredToken</Code><Message>It is late.</Message></Error>"),
    Fault.OTHER_REGION: (
        "400 Bad Request",
        b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>",
    ),
    Fault.SKEWED: ("403 Forbidden", b"<Error><Code>RequestTimeTooSkewed</Code><Message>It is early.</Message></Error>"),
    Fault.UNKNOWN: ("501 Not Implemented", b"<Error><Code>NotImplemented</Code></Error>"),
    Fault.REDIRECTED: ("301 Moved Permanently", b"<Error><Code>PermanentRedirect</Code></Error>"),
}


class FaultyS3:
    """A server with one bucket. ``fault`` chooses what happens to a request, by its method and path.

    ``hits`` counts the faults that happened. The fault KILLED happens only to requests of processes outside ``spared``;
    ``victim_of`` may name another process to kill than the one that sent the request, or none.
    """

    def __init__(self) -> None:
        self.fault: Callable[[str, str], Fault | None] = lambda *_: None
        #: requests with the fault SLOW wait for it
        self.released = threading.Event()
        #: the longest wait of such a request
        self.slow_seconds = 60.0
        self.hits: Counter[Hit] = Counter()  # of FAULTS and KILLED
        self.spared = {os.getpid()}
        self.victim_of: Callable[[int], int | None] = lambda process: process
        self.commits: list[str] = []  # the answers to commits, in order
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._quiet = threading.Condition()
        self._running = 0
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @contextmanager
    def serving(self, bucket: str, timeout_ms: int = CLIENT_TIMEOUT_MS) -> Iterator[str]:
        """Serve, and set the environment of clients; gives the URI of a new bucket."""
        self._thread.start()
        with pytest.MonkeyPatch.context() as patch:
            variables = client_variables(f"http://127.0.0.1:{self._server.port}")
            for name, value in (variables | {"AWS_TIMEOUT": f"{timeout_ms}ms"}).items():
                patch.setenv(name, value)
            yield create_bucket(bucket)
        self.settle()
        self._server.shutdown()
        self._thread.join()

    def settle(self) -> None:
        """End faults, let slow requests go on, and wait until no request is running."""
        self.fault = lambda *_: None
        self.released.set()
        with self._quiet:
            assert self._quiet.wait_for(lambda: not self._running, timeout=60)

    def _answer(self, environ: Environ, start_response: Callable[..., object]) -> Iterable[bytes]:
        with self._quiet:
            self._running += 1
        try:
            status, headers, body = self._answered(environ)
        finally:
            with self._quiet:
                self._running -= 1
                self._quiet.notify_all()
        start_response(status, headers)
        return [body]

    def _answered(self, environ: Environ) -> tuple[str, list[tuple[str, str]], bytes]:
        length = environ.get("CONTENT_LENGTH")
        has_body = length or environ.get("wsgi.input_terminated")
        contents = environ["wsgi.input"].read(*([int(length)] if length else [])) if has_body else b""
        fault = self.fault(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if fault is Fault.UNCONDITIONAL:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault in {*FAULTS, Fault.KILLED} and not self._hits(fault, environ):
            fault = None
        if fault in _REFUSALS:
            status, body = _REFUSALS[fault]
            return status, [("Content-Length", str(len(body)))], b"" if environ["REQUEST_METHOD"] == "HEAD" else body
        if fault is Fault.SLOW:
            self.released.wait(self.slow_seconds)
        answer = "500 Internal Server Error", [("Content-Length", "0")], b""
        if fault is not Fault.LOST_REQUEST:
            answer = self._done(environ, contents)
            if fault is Fault.DOUBLED:
                answer = self._done(environ, contents)
        if fault is Fault.BROKEN_OFF:
            status, headers, body = answer
            return status, headers, body[: len(body) // 2]  # the server closes each connection
        if fault in {Fault.LOST_REQUEST, Fault.LOST_ANSWER}:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return ("500 Internal Server Error", [("Content-Length", "0")], b"") if fault is Fault.ERROR_500 else answer

    def _hits(self, fault: Fault, environ: Environ) -> bool:
        """Count a fault, after a kill; returns False if the process is spared or has ended."""
        process = _process_of(int(environ["REMOTE_PORT"]), self._server.port)
        hit = Hit(fault, operation_of(environ["REQUEST_METHOD"], environ["PATH_INFO"]), program_of(process))
        if fault is Fault.KILLED:
            if process is None or process in self.spared or (victim := self.victim_of(process)) is None:
                return False
            with suppress(ProcessLookupError):  # it has ended
                os.kill(victim, signal.SIGKILL)
        with self._lock:
            self.hits[hit] += 1
        return True

    def _done(self, environ: Environ, contents: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        with self._lock:  # a real store evaluates a condition and writes the object at once
            given = {**environ, "wsgi.input": io.BytesIO(contents), "CONTENT_LENGTH": str(len(contents))}
            body, status, headers = run_wsgi_app(self._app, given, buffered=True)
            if is_commit(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
                self.commits.append(status)
            return status, list(headers), b"".join(body)


def is_commit(method: str, path: str) -> bool:
    """Whether a request creates the commit file of a version."""
    return operation_of(method, path) == "PUT commit"


def operation_of(method: str, path: str) -> str:
    """Return the kind of a request, for instance "PUT commit" or "GET bucket" (a list of files)."""
    if "/" not in path.strip("/"):
        return f"{method} bucket"
    if "/_delta_log/" not in path:
        return f"{method} file"
    return f"{method} {'commit' if path.endswith('.json') else 'Delta log'}"


class BadNetwork:
    """Chooses faults at random for a share of the requests of each operation; ``others`` is that of those not named.

    With the same seed the n-th request of an operation has the same fault.
    """

    def __init__(self, seed: int, faults: Sequence[Fault], shares: Mapping[str, float], others: float) -> None:
        self._seed = seed
        self._faults = faults
        self._shares = shares
        self._others = others
        self._chances: dict[str, random.Random] = {}
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str) -> Fault | None:
        operation = operation_of(method, path)
        with self._lock:
            if operation not in self._chances:
                self._chances[operation] = random.Random(f"{self._seed} {operation}")
            chance = self._chances[operation]
            is_hit = chance.random() < self._shares.get(operation, self._others)
            return chance.choice(self._faults) if is_hit else None


def _process_of(port: int, server_port: int) -> int | None:
    """Return the process whose connection to the server has this local port; None if it has ended."""
    ends = [f"{each:04X}" for each in (port, server_port)]
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, remote, *_, inode = line.split()[:10]
            if [local.rpartition(":")[2], remote.rpartition(":")[2]] == ends:
                sockets.add(f"socket:[{inode}]")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it, or what it has open, ended meanwhile
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in sockets:
                    return int(process.name)
    return None


def program_of(process: int | None) -> str:
    """Return which program a process is: a name of `_SENDERS`, or "program"."""
    command = b""
    with suppress(OSError):  # it was killed
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    words = command.split(b"\0")[:3]  # later ones may be files of tests
    return next((name for end, name in _SENDERS.items() if any(word.endswith(end) for word in words)), "program")
