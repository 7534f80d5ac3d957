"""Serves metrics to Prometheus over HTTP. Imported for a port alone: the HTTP server takes 7 MiB."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from offsets_pipeline.service.rest.guard import send_response
from offsets_pipeline.service.rest.server import Access, Limits, RestServer

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry
    from starlette.types import ASGIApp, Receive, Scope, Send

_TEXT = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
_MAX_REQUEST_BYTES = 4_096  # requests have no body
#: Fewer connections than of a service: the process has other work.
_LIMITS = Limits(connections=100)


def serve_metrics(registry: CollectorRegistry, host: str, port: int, limits: Limits = _LIMITS) -> RestServer:
    """Serve metrics at /metrics until `RestServer.stop`. Port 0 takes a free port.

    Requests need no authentication. On a loopback address their header Host must name it, as for all services.

    Raises ServiceUnavailable if the address cannot be bound.
    """
    server = RestServer(host, port, Access(is_public=True), lambda _: _app(registry), _MAX_REQUEST_BYTES, limits)
    server.start()
    return server


def _app(registry: CollectorRegistry) -> ASGIApp:
    async def answer(scope: Scope, _: Receive, send: Send) -> None:
        if scope["path"] not in ("/", "/metrics"):
            await send_response(send, 404, b"404: only /metrics is here\n", _TEXT)
        elif scope["method"] not in ("GET", "HEAD"):
            await send_response(send, 405, b"405: only GET is allowed\n", _TEXT | {"Allow": "GET, HEAD"})
        else:
            # in a thread: a coordinator counts under its lock
            await send_response(send, 200, await asyncio.to_thread(generate_latest, registry), _TEXT)

    return answer
