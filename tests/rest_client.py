"""Requests to REST interfaces of Kafka Connect."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

JSON = "application/json"


class Answer(NamedTuple):
    """The answer to a request; ``body`` is parsed, or a text that is not JSON."""

    status: int
    body: Any


class RestClient:
    """Sends requests to an address. The path goes out as it is written."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._context = context

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; a body of bytes goes out as it is, another one as JSON."""
        host, _, port = self.address.rpartition(":")
        connection = (
            http.client.HTTPConnection(host, int(port), timeout=60)
            if self._context is None
            else http.client.HTTPSConnection(host, int(port), timeout=60, context=self._context)
        )
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(
                method, path, raw, {**({"Content-Type": JSON} if raw is not None else {}), **(headers or {})}
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            return Answer(answer.status, json.loads(text))
        except ValueError:
            return Answer(answer.status, text)
