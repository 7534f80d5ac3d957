"""An HTTP service of a command, which serves until a signal stops it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.service.rest.server import Access, RestServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from offsets_pipeline.cli.options import ServiceAccess


def serve_until_stopped(
    what: str,
    listen: tuple[str, int],
    access: ServiceAccess,
    app_at: Callable[[str], ASGIApp],
    max_request_bytes: int,
) -> None:
    """Serve the application, and print that ``what`` is served; ``app_at`` makes it, given the address.

    Raises as `RestServer`.
    """
    rules = Access(access.token_file, access.tls_certificate, access.tls_key, access.tls_client_ca)
    with RestServer(*listen, rules, app_at, max_request_bytes) as server:
        Stopping(server.stop)
        if server.is_in_clear:
            sys.stderr.write(
                "offsets: warning: the token is sent in clear text; name --tls-certificate and --tls-key\n"
            )
        sys.stdout.write(f"{what} at {server.url}\n")
        sys.stdout.flush()
        server.wait()
    sys.stdout.write(f"the service at {server.url} has stopped\n")
