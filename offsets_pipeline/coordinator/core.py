"""The parts of a coordinator: the log, the states, the appender thread and the housekeeping thread."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from offsets_pipeline.clock import SystemClock
from offsets_pipeline.config import Settings
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED, Appender, Request
from offsets_pipeline.coordinator.coordinator_metrics import coordinator_metrics
from offsets_pipeline.coordinator.gauges import Counts, Gauges, Refusals
from offsets_pipeline.coordinator.housekeeping import Housekeeping
from offsets_pipeline.coordinator.load_thread import LoadCallbacks, LoadThread
from offsets_pipeline.coordinator.loading import LoadStatus, Partitions
from offsets_pipeline.coordinator.owned_log import OwnedLog
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import RENEW_MS, Instance, Registry
from offsets_pipeline.coordinator.zookeeper_offsets import ZooKeeperOffsets
from offsets_pipeline.delta import FAST
from offsets_pipeline.errors import (
    CoordinatorNotAvailable,
    InvalidRequiredAcks,
    LogMovedOn,
    NotCoordinator,
    RequestTimedOut,
    UndecodableRecord,
    ZooKeeperFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.coordinator.appender import Handler
    from offsets_pipeline.coordinator.load_thread import OnGroupLoaded, OnPartitionLoaded
    from offsets_pipeline.coordinator.loading import Loading
    from offsets_pipeline.rest.server import RestServer
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import PartitionState

_LOG = logging.getLogger(__name__)

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


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
        self._log = OwnedLog(store.location, n, f"coordinator {self.instance}", settings.log.codec(FAST))
        self._partitions = Partitions(n, self._settings.offsets_load_buffer_size)
        self._appender = Appender(self._log, self._lock, clock, self._catch_up, self._partitions.replay)
        self._registry = Registry(store.location, self.instance)
        self._counts = Counts()
        self._refusals = Refusals()
        self._metrics_server: RestServer | None = None
        self._zookeeper = ZooKeeperOffsets(settings.zookeeper) if self._settings.uses_zookeeper else None
        self._closed = threading.Event()
        self._loads = LoadThread()
        self._housekeeping = Housekeeping(
            store.location,
            clock,
            self._closed,
            self._tick,
            [
                (RENEW_MS, lambda _: self._tell()),
                (self._settings.offsets_retention_check_interval_ms, self._expire_loaded),
            ],
        )

    @classmethod
    def open(
        cls,
        store: OwnedStore | str | Path,
        settings: Settings | None = None,
        *,
        partitions: Collection[int] | None = None,
        clock: Clock | None = None,
        housekeeping: bool = True,
        metrics_port: int | tuple[str, int] | None = None,
    ) -> Self:
        """Open the coordinator of an owned store, with these log partitions loaded (None: all).

        ``housekeeping`` starts a thread. It aborts overdue transactions, and expires offsets of the loaded log
        partitions every `offsets_retention_check_interval_ms`. Open the coordinator after a fork, never before it.

        ``metrics_port`` serves metrics for Prometheus at this port of 127.0.0.1, or at this host and port, until
        `close` (docs/metrics.md). Port 0 takes a free port; the property `metrics_port` has its number.

        Raises NoSuchStore, NotAStore, NotCoordinator (a mirrored store), UnsafeStorage, UnsupportedTable (only Spark
        can read the log), MetricsUnavailable if the port cannot be bound.
        """
        opened = store if isinstance(store, OwnedStore) else OwnedStore.open(store)
        coordinator = cls(opened, settings or Settings(), clock or SystemClock())
        if metrics_port is not None:
            # imported for a port alone: the HTTP server takes 7 MiB
            from offsets_pipeline.metrics.metrics_server import serve_metrics  # noqa: PLC0415

            host, port = ("127.0.0.1", metrics_port) if isinstance(metrics_port, int) else metrics_port
            coordinator._metrics_server = serve_metrics(coordinator_metrics(coordinator.gauges), host, port)
        try:
            coordinator._begin(partitions, housekeeping=housekeeping)
        except BaseException:
            coordinator._stop_metrics()
            raise
        return coordinator

    def _begin(self, partitions: Collection[int] | None, *, housekeeping: bool) -> None:
        chosen = range(self.store.properties.offsets_partitions) if partitions is None else partitions
        loading = self._partitions.begin_load(chosen)
        self._log.open(loading.tokens, loading.add)
        self._publish(loading)
        self._tell()
        self._appender.start()
        if housekeeping:
            self._housekeeping.start()

    def close(self) -> None:
        """Cancel loads, append the waiting requests, then end. Idempotent."""
        self._closed.set()
        self._loads.close()
        self._appender.close()
        if self._zookeeper is not None:
            self._zookeeper.close()
        self._housekeeping.close()
        self._registry.remove()
        self._stop_metrics()

    def _stop_metrics(self) -> None:
        server, self._metrics_server = self._metrics_server, None
        if server is not None:
            server.stop()

    @property
    def metrics_port(self) -> int | None:
        """The port that serves metrics; None if there is none."""
        return None if self._metrics_server is None else self._metrics_server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load_partition(
        self,
        log_partition: int,
        *,
        wait: bool = True,
        on_group_loaded: OnGroupLoaded | None = None,
        on_partition_loaded: OnPartitionLoaded | None = None,
    ) -> Future[list[int]]:
        """Load a log partition from the log, even if it is loaded already (R28).

        With ``wait=False`` the call returns while the log partition is Loading. Such loads run one after another in a
        thread of the coordinator. The future then has the errors, and as its result the loaded log partitions, without
        those that were unloaded or loaded again since the call. `close` cancels a load; it then fails with
        CoordinatorNotAvailable, and the state before the load stays.

        ``on_group_loaded(group_id, description)`` is called for each group, then ``on_partition_loaded(log_partition,
        error)``, with the error None if the log partition was loaded.

        Raises NotCoordinator if there is no such log partition, CoordinatorNotAvailable; with ``wait`` also
        StoreReplaced, UnsupportedTable, UnexpectedActiveGroup, UndecodableRecord if the setting `corrupt_records` is
        "fail".
        """
        return self.load_partitions(
            [log_partition], wait=wait, on_group_loaded=on_group_loaded, on_partition_loaded=on_partition_loaded
        )

    def load_partitions(
        self,
        log_partitions: Collection[int],
        *,
        wait: bool = True,
        on_group_loaded: OnGroupLoaded | None = None,
        on_partition_loaded: OnPartitionLoaded | None = None,
    ) -> Future[list[int]]:
        """Load several log partitions in one pass over the log. Arguments and errors as of `load_partition`."""
        callbacks = LoadCallbacks(on_group_loaded, on_partition_loaded)
        with self._lock:
            self._refuse_if_closed()
            self._catch_up()
            loading = self._partitions.begin_load(log_partitions)
        if wait:
            done: Future[list[int]] = Future()
            done.set_result(self._run_load(loading, callbacks))
            return done
        future = self._loads.submit(lambda: self._run_load(loading, callbacks))
        future.add_done_callback(lambda ended: self._give_up(loading) if ended.cancelled() else None)
        return future

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
                refused=self._refusals.by_error(),
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

    def _run_load(self, loading: Loading, callbacks: LoadCallbacks) -> list[int]:
        """Load, and call the callbacks. Returns the log partitions that are loaded now. Raises as `load_partition`."""
        try:
            loaded = self._load(loading)
        except BaseException as error:
            self._give_up(loading)
            if isinstance(error, Exception):
                for number in loading.tokens:
                    callbacks.failed(number, error)
            raise
        self._tell()
        for number in loading.tokens:
            if number in loaded:
                callbacks.loaded(number, self._descriptions(number))
            else:
                callbacks.failed(number, NotCoordinator(f"log partition {number} was unloaded, or another load began"))
        return sorted(loaded)

    def _load(self, loading: Loading) -> set[int]:
        for rows in self._log.load(loading.tokens):
            self._refuse_if_closed()
            with self._lock:
                if not self._partitions.wanted(loading):
                    return set()
            loading.add(rows)
        return self._publish(loading)

    def _give_up(self, loading: Loading) -> None:
        with self._lock:
            self._partitions.give_up(loading)

    def _descriptions(self, log_partition: int) -> Iterator[tuple[str, GroupDescription]]:
        """Yield the groups of a log partition, each as it is now; none if the log partition is not loaded."""
        with self._lock:
            state = next((each for each in self._partitions.loaded() if each.log_partition == log_partition), None)
            group_ids = [] if state is None else list(state.groups)
        for group_id in group_ids:
            with self._lock:
                group = None if state is None else state.group(group_id)
                description = None if group is None else group.description
            if description is not None:
                yield group_id, description

    def _publish(self, loading: Loading) -> set[int]:
        """Replay a load and publish its states; returns the published log partitions."""
        loading.replay(self._refuse_if_closed)
        corrupt = next((state for state in loading.states.values() if state.quarantined), None)
        if corrupt is not None and self._stops_at_corrupt:
            offset, reason = next(iter(corrupt.quarantined.items()))
            raise UndecodableRecord(f"log partition {corrupt.log_partition}, record offset {offset}: {reason}")
        with self._lock:
            self._catch_up()
            return self._partitions.publish(loading)

    def _state_for(self, group_id: str) -> PartitionState:
        """Catch up, and return the state of a group's log partition. The caller holds the lock."""
        self._refuse_if_closed()
        self._catch_up()
        return self._partitions.state(self.partition_for(group_id))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Hold the lock for a question. Counts an error as a refused request."""
        with self._refusals.counted(), self._lock:
            yield

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
        request.done.add_done_callback(self._refusals.count_done)
        with self._refusals.counted():
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
        if self._closed.is_set():
            return
        with self._lock:
            loaded = [state.log_partition for state in self._partitions.loaded()]
        try:
            self._registry.note(loaded, self._clock.now_ms())
        except OSError as error:
            _LOG.warning("cannot write to %s which log partitions are loaded: %s", self.store.location, error)

    def _tick(self, now_ms: int) -> None:
        """Work of the housekeeping thread in each of its rounds."""
        raise NotImplementedError

    def _expire_loaded(self, now_ms: int) -> None:
        """Work of the housekeeping thread every `offsets_retention_check_interval_ms`."""
        raise NotImplementedError
