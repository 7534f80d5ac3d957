"""`offsets serve`: the report, live."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.cli.report_command import CoverageOptions, collected
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.report.live_report import LiveReport
from offsets_pipeline.rest.server import Access, RestServer

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp

    from offsets_pipeline.config import Settings

_MAX_REQUEST_BYTES = 4_096  # requests have no body


@dataclass(frozen=True)
class LiveOptions:
    """The options of the command besides the coverage; ``listen`` is a host and a port, ``every`` in milliseconds."""

    listen: tuple[str, int]
    every: int
    token_file: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None


def serve(store: str, settings: Settings, options: LiveOptions, coverage: CoverageOptions) -> int:
    """Serve the page until a signal stops the service; returns the exit status.

    Raises as `collect_report` if the store cannot be read at the start, and as `RestServer`.
    """
    access = Access(options.token_file, options.tls_certificate, options.tls_key, options.tls_client_ca)
    clock = SystemClock()
    live = LiveReport(lambda: collected(store, settings, clock.now_ms(), coverage), options.every)
    collected(store, settings, clock.now_ms(), coverage)  # a wrong store is an error now, not on the first request

    def app_at(_: str) -> ASGIApp:
        return live.app

    with RestServer(*options.listen, access, app_at, _MAX_REQUEST_BYTES) as server:
        Stopping(server.stop)
        sys.stdout.write(f"report of {store} is served at {server.url}\n")
        sys.stdout.flush()
        server.wait()
    sys.stdout.write(f"the service at {server.url} has stopped\n")
    return 0
