"""`offsets connect serve`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.connect_service import ConnectService
from offsets_pipeline.rest.server import Access, RestServer

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp


@dataclass(frozen=True)
class ServeOptions:
    """The options of the command; ``listen`` is a host and a port."""

    listen: tuple[str, int]
    cluster_id: str | None
    token_file: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    max_request_bytes: int


def serve(store: str, options: ServeOptions) -> int:
    """Serve until a signal stops the service; returns the exit status.

    Raises as `ConnectLog.open` and `RestServer`, and as `ConnectLog.create` with a cluster id.
    """
    access = Access(options.token_file, options.tls_certificate, options.tls_key, options.tls_client_ca)
    if options.cluster_id is not None:
        ConnectLog.create(store, options.cluster_id)
    with ConnectLog.open(store) as log:

        def app_at(address: str) -> ASGIApp:
            return ConnectService(log, address, options.max_request_bytes).app

        with RestServer(*options.listen, access, app_at, options.max_request_bytes) as server:
            Stopping(server.stop)
            if server.is_in_clear:
                sys.stderr.write(
                    "offsets: warning: the token is sent in clear text; name --tls-certificate and --tls-key\n"
                )
            sys.stdout.write(f"connectors of {store} are served at {server.url}\n")
            sys.stdout.flush()
            server.wait()
    sys.stdout.write(f"the service at {server.url} has stopped\n")
    return 0
