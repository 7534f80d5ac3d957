"""An S3-compatible server that delays, loses, doubles or refuses requests, as a test says."""

from __future__ import annotations

import io
import socket
import threading
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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


class FaultyS3:
    """A server with one bucket. ``fault`` chooses what happens to a request, by its method and path."""

    def __init__(self) -> None:
        self.fault: Callable[[str, str], Fault | None] = lambda *_: None
        #: requests with the fault SLOW wait for it
        self.released = threading.Event()
        #: the longest wait of such a request
        self.slow_seconds = 60.0
        self.faults = 0
        self.commits: list[str] = []  # the answers to commits, in order
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._quiet = threading.Condition()
        self._running = 0
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @contextmanager
    def serving(self, bucket: str) -> Iterator[str]:
        """Serve, and set the environment of clients; gives the URI of a new bucket."""
        self._thread.start()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_TIMEOUT": f"{CLIENT_TIMEOUT_MS}ms",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }.items():
                patch.setenv(name, value)
            fs.FileSystem.from_uri(f"s3://{bucket}?allow_bucket_creation=true")[0].create_dir(bucket)
            yield f"s3://{bucket}"
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
        if fault is not None:
            self.faults += 1
        if fault in {Fault.ERROR_503, Fault.REFUSED}:
            return "503 Slow Down" if fault is Fault.ERROR_503 else "403 Forbidden", [("Content-Length", "0")], b""
        if fault is Fault.SLOW:
            self.released.wait(self.slow_seconds)
        answer = "500 Internal Server Error", [("Content-Length", "0")], b""
        if fault is not Fault.LOST_REQUEST:
            answer = self._done(environ, contents)
            if fault is Fault.DOUBLED:
                answer = self._done(environ, contents)
        if fault in {Fault.LOST_REQUEST, Fault.LOST_ANSWER}:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return ("500 Internal Server Error", [("Content-Length", "0")], b"") if fault is Fault.ERROR_500 else answer

    def _done(self, environ: Environ, contents: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        with self._lock:  # a real store evaluates a condition and writes the object at once
            given = {**environ, "wsgi.input": io.BytesIO(contents), "CONTENT_LENGTH": str(len(contents))}
            body, status, headers = run_wsgi_app(self._app, given, buffered=True)
            if is_commit(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
                self.commits.append(status)
            return status, list(headers), b"".join(body)


def is_commit(method: str, path: str) -> bool:
    """Whether a request creates the commit file of a version."""
    return method == "PUT" and "/_delta_log/" in path and path.endswith(".json")
