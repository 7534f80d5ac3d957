"""The parts of a coordinator: the log, the states, the appender thread and the housekeeping thread."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from offsets_pipeline.clock import SystemClock
from offsets_pipeline.config import Settings
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED, Appender, Request
from offsets_pipeline.coordinator.loading import LoadStatus, Partitions
from offsets_pipeline.coordinator.owned_log import OwnedLog
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import RENEW_MS, Instance, Registry
from offsets_pipeline.coordinator.zookeeper_offsets import ZooKeeperOffsets
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import (
    CoordinatorNotAvailable,
    InvalidRequiredAcks,
    LogMovedOn,
    RequestTimedOut,
    UndecodableRecord,
    ZooKeeperFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.coordinator.appender import Handler
    from offsets_pipeline.coordinator.loading import Loading
    from offsets_pipeline.semantics.partition_state import PartitionState

_LOG = logging.getLogger(__name__)

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Gauges:
    """Counters of a coordinator since it was opened, and the numbers of groups and offsets that it has loaded.

    ``lost`` counts commits with acks=0 that were refused or not written; their callers get no error. ``conflicts``
    counts appends that another writer preceded. ``load_ms`` is the load time by log partition.
    """

    groups: int
    offsets: int
    commits: int
    committed_offsets: int
    expired_offsets: int
    expired_groups: int
    appends: int
    appended_records: int
    conflicts: int
    lost: int
    load_ms: Mapping[int, float] = field(default_factory=dict)


@dataclass
class _Counts:
    commits: int = 0
    committed_offsets: int = 0
    expired_offsets: int = 0
    expired_groups: int = 0
    lost: int = 0


class CoordinatorCore:
    """The base of `coordinator.Coordinator`: it opens, loads and catches up, and submits requests."""

    def __init__(self, store: OwnedStore, settings: Settings, clock: Clock) -> None:
        self.store = store
        self.instance = Instance.here()
        self._settings = settings.coordinator
        self._stops_at_corrupt = settings.log.corrupt_records == "fail"
        self._clock = clock
        self._lock = threading.RLock()
        n = store.properties.offsets_partitions
        self._log = OwnedLog(store.location, n, f"coordinator {self.instance}")
        self._partitions = Partitions(n, self._settings.offsets_load_buffer_size)
        self._appender = Appender(self._log, self._lock, clock, self._catch_up, self._partitions.replay)
        self._registry = Registry(store.location, self.instance)
        self._zookeeper = ZooKeeperOffsets(settings.zookeeper) if self._settings.uses_zookeeper else None
        self._counts = _Counts()
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep_house, name="offsets-housekeeping", daemon=True)

    @classmethod
    def open(
        cls,
        store: OwnedStore | str | Path,
        settings: Settings | None = None,
        *,
        partitions: Collection[int] | None = None,
        clock: Clock | None = None,
        housekeeping: bool = True,
    ) -> Self:
        """Open the coordinator of an owned store, with these log partitions loaded (None: all).

        ``housekeeping`` starts a thread. It aborts overdue transactions, and expires offsets of the loaded log
        partitions every `offsets_retention_check_interval_ms`. Open the coordinator after a fork, never before it.

        Raises NoSuchStore, NotAStore, NotCoordinator (a mirrored store), UnsafeStorage, UnsupportedTable (only Spark
        can read the log).
        """
        opened = store if isinstance(store, OwnedStore) else OwnedStore.open(store)
        coordinator = cls(opened, settings or Settings(), clock or SystemClock())
        chosen = range(opened.properties.offsets_partitions) if partitions is None else partitions
        loading = coordinator._partitions.begin_load(chosen)
        coordinator._log.open(loading.tokens, loading.add)
        coordinator._publish(loading)
        coordinator._tell()
        coordinator._appender.start()
        if housekeeping:
            coordinator._keeper.start()
        return coordinator

    def close(self) -> None:
        """Append the waiting requests, then end. Idempotent."""
        self._closed.set()
        self._appender.close()
        if self._zookeeper is not None:
            self._zookeeper.close()
        if self._keeper.is_alive():
            self._keeper.join()
        self._registry.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load_partition(self, log_partition: int) -> None:
        """Load a log partition from the log, even if it is loaded already (R28).

        Raises NotCoordinator if there is no such log partition, StoreReplaced, UnsupportedTable, UnexpectedActiveGroup,
        UndecodableRecord if the setting `corrupt_records` is "fail".
        """
        self.load_partitions([log_partition])

    def load_partitions(self, log_partitions: Collection[int]) -> None:
        """Load several log partitions in one pass over the log. Raises as `load_partition`."""
        with self._lock:
            self._catch_up()
            loading = self._partitions.begin_load(log_partitions)
        try:
            self._load(loading)
        except BaseException:
            with self._lock:
                self._partitions.give_up(loading)
            raise
        self._tell()

    def unload_partition(self, log_partition: int) -> None:
        """Unload a log partition. A running load of it will not be published."""
        with self._lock:
            self._partitions.unload(log_partition)
        self._tell()

    def status(self, log_partition: int) -> LoadStatus:
        """Return the load status of a log partition (R28)."""
        with self._lock:
            return self._partitions.status(log_partition)

    def partition_for(self, group_id: str) -> int:
        """Return the log partition of a group (R1)."""
        return self.store.partition_for(group_id)

    def gauges(self) -> Gauges:
        """Return the current figures."""
        with self._lock:
            states = list(self._partitions.loaded())
            figures, counts = self._appender.figures, self._counts
            return Gauges(
                groups=sum(len(state.groups) for state in states),
                offsets=sum(len(offsets) for state in states for offsets in state.offsets.values()),
                commits=counts.commits,
                committed_offsets=counts.committed_offsets,
                expired_offsets=counts.expired_offsets,
                expired_groups=counts.expired_groups,
                appends=figures.appends,
                appended_records=figures.records,
                conflicts=figures.conflicts,
                lost=counts.lost,
                load_ms=self._partitions.load_ms(),
            )

    def _catch_up(self) -> None:
        """Apply the log's new rows to the states. The caller holds the lock."""
        try:
            for rows in self._log.catch_up():
                self._partitions.replay(rows)
        except LogMovedOn as moved:
            self._reopen()
            _LOG.warning("%s: read the log again from its beginning", moved)

    def _reopen(self) -> None:
        """Read the log again, and replace the loaded states when that is done. The caller holds the lock."""
        loading = self._partitions.begin_load(self._partitions.not_unloaded())
        try:
            self._log.open(loading.tokens, loading.add)
            self._partitions.forget(loading)
            self._publish(loading)
        except BaseException:
            self._partitions.give_up(loading)
            raise

    def _load(self, loading: Loading) -> None:
        for rows in self._log.load(loading.tokens):
            with self._lock:
                if not self._partitions.wanted(loading):
                    return
            loading.add(rows)
        self._publish(loading)

    def _publish(self, loading: Loading) -> None:
        loading.replay()
        corrupt = next((state for state in loading.states.values() if state.quarantined), None)
        if corrupt is not None and self._stops_at_corrupt:
            offset, reason = next(iter(corrupt.quarantined.items()))
            raise UndecodableRecord(f"log partition {corrupt.log_partition}, record offset {offset}: {reason}")
        with self._lock:
            self._catch_up()
            self._partitions.publish(loading)

    def _state_for(self, group_id: str) -> PartitionState:
        """Catch up, and return the state of a group's log partition. The caller holds the lock."""
        self._refuse_if_closed()
        self._catch_up()
        return self._partitions.state(self.partition_for(group_id))

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise CoordinatorNotAvailable("the coordinator is closed; open another one")

    def _commit_claims(self, group_id: str) -> Mapping[Hashable, bool]:
        """Return the claims of a commit. It shares an existing group, but the first commit creates the group (R14)."""
        log_partition = self.partition_for(group_id)
        is_new = self._partitions.state(log_partition).group(group_id) is None
        return {("partition", log_partition): SHARED, ("group", group_id): EXCLUSIVE if is_new else SHARED}

    def _acks(self, acks: int | None) -> int:
        if acks not in {None, ACKS_NONE, ACKS_LEADER, ACKS_ALL}:
            raise InvalidRequiredAcks(f"acks={acks} is not allowed: it takes 0, 1, or -1 for all")
        return self._settings.offsets_commit_required_acks if acks is None else acks

    def _counted(self, offsets: int, acks: int | None) -> Callable[[Future[Any]], None]:
        """Return a callback that counts a finished commit. It also logs a failed commit with acks=0 (R27)."""

        def count(done: Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            with self._lock:
                if error is None and not done.cancelled():
                    self._counts.commits += 1
                    self._counts.committed_offsets += offsets
                elif self._acks(acks) == ACKS_NONE:
                    self._counts.lost += 1
                    _LOG.warning("lost a commit with acks=0: %s", error)

        return count

    def _submit(
        self,
        what: str,
        handler: Handler,
        claims: Callable[[], Mapping[Hashable, bool]],
        timeout_ms: int | None,
        acks: int | None = None,
    ) -> Request:
        if timeout_ms is None:
            timeout_ms = self._settings.offsets_commit_timeout_ms
        deadline_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        # R27: acks=1 waits for the commit, acks=all also for its fsync (docs/adr/0013)
        request = Request(what, handler, claims, deadline_ns, durable=self._acks(acks) == ACKS_ALL)
        self._appender.submit(request)
        return request

    def _wait_for(self, request: Request, answer: Future[Any] | None = None) -> Any:  # noqa: ANN401 - any response
        """Return the response to a request, or ``answer``, which follows it. Raises its error, or RequestTimedOut."""
        done: Future[Any] = answer or request.done
        left_ns = request.deadline_ns - time.monotonic_ns()
        try:
            return done.result(max(0, left_ns) / 1e9)
        except FutureTimeoutError:
            if request.done.cancel():
                raise RequestTimedOut(f"{request.what}: timed out; it was not written") from None
            if done.done():
                return done.result()
            if request.done.done():
                raise ZooKeeperFailed(f"{request.what}: ZooKeeper has not answered in time; commit again") from None
            raise RequestTimedOut(f"{request.what}: timed out; it may still be written") from None

    def _tell(self) -> None:
        """Write to the registry which log partitions are loaded here."""
        with self._lock:
            loaded = [state.log_partition for state in self._partitions.loaded()]
        try:
            self._registry.note(loaded, self._clock.now_ms())
        except OSError as error:
            _LOG.warning("cannot write to %s which log partitions are loaded: %s", self.store.location, error)

    def _keep_house(self) -> None:
        """Renew the registry file, abort overdue transactions and expire offsets, until the coordinator closes."""
        noted_ms = expired_ms = self._clock.now_ms()
        failed = ""
        while not self._closed.wait(_TICK_SECONDS):
            now_ms = self._clock.now_ms()
            try:
                self._tick(now_ms)
                if now_ms - noted_ms >= RENEW_MS:
                    noted_ms = now_ms
                    self._tell()
                if now_ms - expired_ms >= self._settings.offsets_retention_check_interval_ms:
                    expired_ms = now_ms
                    self._expire_loaded(now_ms)
                failed = ""
            except Exception as error:  # noqa: BLE001 - the next time may go well
                if str(error) != failed:  # a repeated error is logged once
                    _LOG.warning("cannot clean up old versions of %s/%s: %s", self.store.location, LOG.name, error)
                failed = str(error)

    def _tick(self, now_ms: int) -> None:
        """Work of the housekeeping thread every second."""
        raise NotImplementedError

    def _expire_loaded(self, now_ms: int) -> None:
        """Work of the housekeeping thread every `offsets_retention_check_interval_ms`."""
        raise NotImplementedError
