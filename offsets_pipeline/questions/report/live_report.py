"""The report as a web page that keeps itself up to date."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.questions.report.page import fragment, page, policy
from offsets_pipeline.store.delta.reader import UNREADABLE

if TYPE_CHECKING:
    from starlette.requests import Request

    from offsets_pipeline.questions.report.model import Report

_LOG = logging.getLogger(__name__)

_REST = 4  # times as long as a reading of the store

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": policy(is_live=True),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveReport:
    """Serves the page at `/`, its contents at `/fragment`, and the data at `/report.json`. ``app`` is ASGI.

    `/health` answers 200 if the store can be read, else 503, as the other paths do.

    ``collect`` reads the store, at most once in ``every_ms``, however many readers there are, and for at most a fifth
    of the time.
    """

    def __init__(self, collect: Callable[[], Report], every_ms: int) -> None:
        self._collect = collect
        self._every_ms = every_ms
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._next_at = 0.0
        self.app = Starlette(
            routes=[
                self._route("/", "text/html", lambda report: page(report, every_ms)),
                self._route("/fragment", "text/html", fragment),
                self._route("/report.json", "application/json", lambda report: json.dumps(asdict(report))),
                self._route(
                    "/health", "text/plain", lambda report: f"the report is as of {shown_time(report.as_of_ms)}\n"
                ),
            ],
            exception_handlers={HTTPException: _http_error, OffsetsError: _unreadable, Exception: _unreadable}
            | dict.fromkeys(UNREADABLE, _unreadable),
        )

    def _route(self, path: str, media_type: str, shown: Callable[[Report], str]) -> Route:
        async def answer(_: Request) -> Response:
            report = await run_in_threadpool(self._current)
            return Response(shown(report), headers=_HEADERS, media_type=media_type)

        return Route(path, answer)

    def _current(self) -> Report:
        with self._lock:
            begun = time.monotonic()
            if self._report is None or begun >= self._next_at:
                self._report = self._collect()
                ended = time.monotonic()
                self._next_at = ended + max(self._every_ms / 1000, _REST * (ended - begun))
            return self._report


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Response(f"{status}: only /, /fragment, /report.json and /health are here\n", status, _HEADERS, "text/plain")


async def _unreadable(_: Request, error: Exception) -> Response:
    _LOG.warning("cannot answer a request: %s", in_one_line(error))
    return Response(in_one_line(error), 503, _HEADERS, "text/plain")
