"""Checks of a request before it is routed: the path, the client, the size."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Header of an answer to a request whose body may not have been read: the server then reads no more of it.
CLOSE = {"Connection": "close"}

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[^:]*)(?::\d+)?", re.IGNORECASE)


class Guard:
    """Passes requests to ``app`` with their path still encoded, so that a name may hold any character.

    Refuses a path that another program may read differently, a request without the token, one that names another host
    (a web page that resolves its own name to the loopback address), and one whose length is over the limit.

    Args:
        app: the application behind.
        token: the bearer token; None: none is required.
        only_loopback_names: refuse hosts other than localhost.
        max_request_bytes: limit of a body.
    """

    def __init__(self, app: ASGIApp, token: str | None, *, only_loopback_names: bool, max_request_bytes: int) -> None:
        self._app = app
        self._token = None if token is None else _digest(token.encode())
        self._only_loopback_names = only_loopback_names
        self._max_request_bytes = max_request_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        assert scope["type"] == "http"  # noqa: S101 - the server has no other protocol
        headers: dict[bytes, bytes] = dict(scope["headers"])
        raw_path = scope["raw_path"]
        refused: tuple[int, str, Mapping[str, str]] | None = None
        if self._token is not None and not self._is_authorized(headers.get(b"authorization", b"")):
            refused = 401, "Unauthorized", {"WWW-Authenticate": "Bearer"}
        elif self._only_loopback_names and not _names_loopback(headers.get(b"host", b"")):
            refused = 400, "the request names another host; use localhost", {}
        elif (reason := wrong_path(raw_path)) is not None:
            refused = 400, reason, {}
        elif int(headers.get(b"content-length", b"0")) > self._max_request_bytes:
            refused = 413, f"the request is longer than {self._max_request_bytes} bytes", {}
        if refused is not None:
            status, message, more = refused
            body = json.dumps({"error_code": status, "message": message}, separators=(",", ":")).encode()
            await send_response(send, status, body, {"Content-Type": "application/json", **more, **CLOSE})
        else:
            path = raw_path.decode("ascii")
            await self._app({**scope, "path": path if path == "/" else path.removesuffix("/")}, receive, send)

    def _is_authorized(self, authorization: bytes) -> bool:
        assert self._token is not None  # noqa: S101 - the caller checked it
        scheme, _, token = authorization.partition(b" ")
        return hmac.compare_digest(self._token, _digest(token.strip())) and scheme.lower() == b"bearer"


async def send_response(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a response. It needs only ASGI: a process with a metrics port does not import Starlette."""
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*raw, length]})
    await send({"type": "http.response.body", "body": body})


def _digest(token: bytes) -> bytes:
    """Return a digest, so that the time of the comparison does not reveal the token's length."""
    return hashlib.sha256(token).digest()


def _names_loopback(host: bytes) -> bool:
    found = _HOST.fullmatch(host.decode("latin-1"))
    return found is not None and found[1].lower() in _LOOPBACK_NAMES


def wrong_path(raw_path: bytes) -> str | None:
    """Why a path is refused: None for one that all programs read alike."""
    segments = raw_path.split(b"/")
    if not raw_path.startswith(b"/") or not raw_path.isascii():
        return "the path is not an absolute path in ASCII"
    for segment in segments[1:-1] if segments[-1] == b"" else segments[1:]:
        if re.search(rb"%(?![0-9A-Fa-f]{2})|[;\\]", segment):
            return "the path has a wrong escape, a semicolon or a backslash"
        name = unquote_to_bytes(segment)
        if name in (b"", b".", b"..") or re.search(rb"[/\\%]", name):
            return "the path has an empty segment, dots, an encoded slash or an encoded percent sign"
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return "the path is not UTF-8"
        if any(ord(each) < 32 or ord(each) == 127 for each in text):
            return "the path has a control character"
    return None
