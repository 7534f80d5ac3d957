"""Waits for events, with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RETRY_SECONDS = 0.02
_PATIENCE_SECONDS = 30


def wait_until(what: str, holds: Callable[[], object], seconds: float = _PATIENCE_SECONDS) -> None:
    """Ask again and again; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(_RETRY_SECONDS)
