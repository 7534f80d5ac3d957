"""A running REST service over an owned store, for tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.connect_service import ConnectService
from offsets_pipeline.service.rest.server import Access, RestServer
from tests.rest_client import RestClient

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

NO_ACCESS_RULES = Access()


@contextmanager
def service(
    location: Path,
    access: Access = NO_ACCESS_RULES,
    max_request_bytes: int = 1_048_576,
    context: ssl.SSLContext | None = None,
) -> Iterator[RestClient]:
    """A service on a free port of the loopback address; yields a client of it."""
    with (
        ConnectLog.open(location) as log,
        RestServer(
            "127.0.0.1", 0, access, lambda at: ConnectService(log, at, max_request_bytes).app, max_request_bytes
        ) as server,
    ):
        yield RestClient(server.address, context)
