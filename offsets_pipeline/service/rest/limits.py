"""Limits of a server's connections: how many there are, and how long each may take."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True)
class Limits:
    """Limits of the connections of one server.

    ``connections`` is their number: with the limit of a body it bounds the memory. ``header_seconds`` is the time for
    the headers of a request, and for a TLS handshake; ``read_seconds`` the time in which a client reads an answer.
    """

    connections: int = 500
    header_seconds: float = 10.0
    read_seconds: float = 30.0


class LimitedConnection(H11Protocol):
    """A connection that ends when a limit is reached.

    A connection *waits* while it has no complete request without an answer. A new connection over the limit closes the
    connection that has waited longest. So half-sent requests keep out no client that sends its headers at once.
    """

    def __init__(self, limits: Limits, waiting: dict[LimitedConnection, None], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """``waiting`` are the waiting connections of the server, the longest first."""
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._waiting = waiting
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        # not uvicorn's loggers: a program that embeds a coordinator may have a uvicorn of its own
        self.logger = logging.getLogger(f"{__name__}.silent")
        self.logger.setLevel(logging.CRITICAL)  # it would warn of each malformed request
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the headers. Close another connection if there are too many."""
        super().connection_made(transport)
        self._limit_headers()
        if len(self.connections) > self._limits.connections:
            next(iter(self._waiting)).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self._waiting.pop(self, None)
        for timer in (self._headers_due, self._read_due):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. More parts do not extend the time for its headers."""
        super().data_received(data)
        self._limit_headers()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there."""
        super().on_response_complete()
        self._note_waiting()

    def pause_writing(self) -> None:
        """Start the time in which the client has to read."""
        super().pause_writing()
        self._read_due = self.loop.call_later(self._limits.read_seconds, self.abort)

    def resume_writing(self) -> None:
        """Stop the time in which the client has to read."""
        super().resume_writing()
        if self._read_due is not None:
            self._read_due.cancel()

    def abort(self) -> None:
        """Close the connection at once; drops the unsent rest of an answer."""
        self._waiting.pop(self, None)
        self.connections.discard(self)  # at once: `connection_lost` follows later
        self.transport.abort()

    def _note_waiting(self) -> bool:
        waits = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        if waits and not self.transport.is_closing():
            self._waiting.setdefault(self)
        else:
            self._waiting.pop(self, None)
        return waits

    def _limit_headers(self) -> None:
        if self._note_waiting():
            if self._headers_due is None:
                self._headers_due = self.loop.call_later(self._limits.header_seconds, self.abort)
        elif self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None
