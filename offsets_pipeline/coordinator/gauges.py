"""The figures of a coordinator."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.errors import OffsetsError, RequestTimedOut

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsets_pipeline.service.metrics.exposition import Values

_UNKNOWN_ERROR = "UNKNOWN_SERVER_ERROR"


@dataclass
class Counts:
    """Counters of a coordinator since it was opened. Its appender counts appends, `counting` guards the other counters.

    ``lost`` counts commits with acks=0 that were refused or not written; their callers get no error. ``conflicts``
    counts appends that another writer preceded.
    """

    commits: int = 0
    committed_offsets: int = 0
    expired_offsets: int = 0
    expired_groups: int = 0
    lost: int = 0
    appends: int = 0
    appended_records: int = 0
    conflicts: int = 0


@dataclass
class Gauges(Counts):
    """The counters, and the numbers of groups and offsets that the coordinator has loaded.

    ``load_ms`` is the load time by log partition. ``refused`` counts requests that were answered with an error, by
    Kafka's name of the error.
    """

    groups: int = 0
    offsets: int = 0
    load_ms: Mapping[int, float] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    def values(self) -> Values:
        """Return the metrics for Prometheus."""
        return {
            "offsets_coordinator_groups": self.groups,
            "offsets_coordinator_offsets": self.offsets,
            "offsets_coordinator_commits_total": self.commits,
            "offsets_coordinator_committed_offsets_total": self.committed_offsets,
            "offsets_coordinator_lost_commits_total": self.lost,
            "offsets_coordinator_expired_offsets_total": self.expired_offsets,
            "offsets_coordinator_expired_groups_total": self.expired_groups,
            "offsets_coordinator_appends_total": self.appends,
            "offsets_coordinator_appended_records_total": self.appended_records,
            "offsets_coordinator_append_conflicts_total": self.conflicts,
            "offsets_coordinator_load_duration_seconds": {at: each / 1000 for at, each in self.load_ms.items()},
            "offsets_coordinator_refused_requests_total": self.refused,
        }


class Refusals:
    """Counts refused requests by the name of the error. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_error: Counter[str] = Counter()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an error that leaves the `with` block."""
        try:
            yield
        except OffsetsError as error:
            self._count(error)
            raise

    def count_done(self, done: Future[Any]) -> None:
        """Count the error of a request that is done, if it has one. A cancelled request counts as timed out."""
        error = RequestTimedOut("cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self._count(error)

    def by_error(self) -> dict[str, int]:
        """Return the counters by Kafka's name of the error, or by the name of its class."""
        with self._lock:
            return dict(self._by_error)

    def _count(self, error: BaseException) -> None:
        name = (error.kafka_name or type(error).__name__) if isinstance(error, OffsetsError) else _UNKNOWN_ERROR
        with self._lock:
            self._by_error[name] += 1
