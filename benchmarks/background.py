"""Work in a thread beside a measurement."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def beside(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Context manager: call ``run`` in a thread, and ``stop`` at the end."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()
