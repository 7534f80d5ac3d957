"""Loads of log partitions in the background, and the callbacks of a load (R28)."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offsets_pipeline.semantics.group_description import GroupDescription

    #: Called for each group of a loaded log partition, with its id and its description.
    OnGroupLoaded = Callable[[str, GroupDescription], None]
    #: Called for each log partition at the end of its load, with the error if it was not loaded.
    OnPartitionLoaded = Callable[[int, Exception | None], None]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadCallbacks:
    """The callbacks of a load. They run in the thread of the load, without a lock: they may call the coordinator.

    A callback that raises is logged. The load stays valid, and the other callbacks run.
    """

    group: OnGroupLoaded | None = None
    partition: OnPartitionLoaded | None = None

    def loaded(self, log_partition: int, groups: Iterable[tuple[str, GroupDescription]]) -> None:
        """Call the callbacks of a loaded log partition: for each group, then for the log partition."""
        if self.group is not None:
            for group_id, description in groups:
                _call(partial(self.group, group_id, description), f"group {group_id!r}")
        self._ended(log_partition, None)

    def failed(self, log_partition: int, error: Exception) -> None:
        """Call the callback of a log partition that was not loaded."""
        self._ended(log_partition, error)

    def _ended(self, log_partition: int, error: Exception | None) -> None:
        if self.partition is not None:
            _call(partial(self.partition, log_partition, error), f"log partition {log_partition}")


def _call(callback: Callable[[], None], about: str) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - an error of a callback does not undo the load
        _LOG.exception("a callback after the load of %s failed", about)


class LoadThread:
    """Runs loads one after another in a thread, which starts with the first load. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsets-load")
        self._running_in: int | None = None

    def submit(self, load: Callable[[], list[int]]) -> Future[list[int]]:
        """Run a load when the earlier ones have ended. Raises RuntimeError after `close`."""

        def run() -> list[int]:
            self._running_in = threading.get_ident()
            return load()

        return self._pool.submit(run)

    def close(self) -> None:
        """Wait for the loads, unless a callback of a load makes this call."""
        self._pool.shutdown(wait=self._running_in != threading.get_ident())
