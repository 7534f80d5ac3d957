"""The core of a coordinator: its log, the states of the log partitions, and the appender.

The parts of a coordinator share it: `LogOffsets`, `TransactionCoordinator` and `expire_partition`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator.appender import GROUP, PARTITION, SHARED, Appender, Request
from offsets_pipeline.coordinator.gauges import Counts, Refusals
from offsets_pipeline.coordinator.loading import LoadCallbacks, Loading, Partitions
from offsets_pipeline.coordinator.owned_log import OwnedLog
from offsets_pipeline.coordinator.registry import Instance, Registry
from offsets_pipeline.coordinator.requests import Outcome, validated_group_id
from offsets_pipeline.errors import (
    CoordinatorNotAvailable,
    InvalidRequiredAcks,
    LogMovedOn,
    NotCoordinator,
    UndecodableRecord,
)
from offsets_pipeline.semantics.retention import MS_PER_MINUTE
from offsets_pipeline.store.delta.data_file import FAST

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.appender import Claims, Handler
    from offsets_pipeline.coordinator.owned_store import OwnedStore
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import PartitionState

_LOG = logging.getLogger(__name__)

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class CoordinatorCore:
    """The open log of a store and the loaded states. ``lock`` guards both, and is held while the storage answers.

    ``counting`` guards the counters ``counts`` except those of the appender. No thread waits while it holds it.
    """

    def __init__(self, store: OwnedStore, settings: Settings, clock: Clock) -> None:
        self.store = store
        self.instance = Instance.here()
        self.settings = settings.coordinator
        self.clock = clock
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self.counts = Counts()
        self.counting = threading.Lock()
        self.refusals = Refusals()
        n = store.properties.offsets_partitions
        self.log = OwnedLog(store.location, n, f"coordinator {self.instance}", settings.log.codec(FAST))
        self.partitions = Partitions(n)
        self.appender = Appender(self.log, self.lock, clock, self.catch_up, self.partitions.replay, self.counts)
        self.registry = Registry(store.location, self.instance)
        self._registering = threading.Lock()  # keeps the notes in order
        self._is_registered = False
        self._stops_at_corrupt = settings.log.corrupt_records == "fail"
        self._loads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsets-load")
        self._loading_thread: int | None = None

    def start(self, partitions: Collection[int] | None) -> None:
        """Read the log, load these log partitions (None: all), and start the appender. Raises as `Coordinator.open`."""
        chosen = range(self.store.properties.offsets_partitions) if partitions is None else partitions
        loading = self.partitions.begin_load(chosen)
        self.log.open(loading.tokens, loading.add)
        self._publish(loading)
        self.appender.start()

    def close(self) -> None:
        """Cancel loads, and append the waiting requests. Idempotent. A callback of a load or a request may call it."""
        self.closed.set()
        self._loads.shutdown(wait=self._loading_thread != threading.get_ident())
        self.appender.close()

    def begin_registration(self) -> None:
        """Enter this coordinator into the registry, and delete outdated files there. Its file must be renewed."""
        self._is_registered = True
        self.register()
        with suppress(OSError):  # the next coordinator deletes them
            self.registry.remove_outdated(self.clock.now_ms())

    def register(self) -> None:
        """Write to the registry which log partitions are loaded here, after `begin_registration`."""
        with self._registering:
            if self.closed.is_set() or not self._is_registered:
                return
            with self.lock:
                loaded = [state.log_partition for state in self.partitions.loaded()]
            try:
                self.registry.note(loaded, self.clock.now_ms())
            except OSError as error:
                _LOG.warning("cannot write to %s which log partitions are loaded: %s", self.store.location, error)

    def unregister(self) -> None:
        """Remove this coordinator from the registry, after `close`."""
        with self._registering:
            if self._is_registered:
                self.registry.remove()

    # --- requests

    def acks(self, acks: int | None) -> int:
        """Return the acks of a request; None: those of the settings. Raises InvalidRequiredAcks."""
        if acks not in {None, ACKS_NONE, ACKS_LEADER, ACKS_ALL}:
            raise InvalidRequiredAcks(f"acks={acks} is not allowed: it takes 0, 1, or -1 for all")
        return self.settings.offsets_commit_required_acks if acks is None else acks

    def retention_ms(self, retention_ms: int | None) -> int:
        """Return the retention time of a request; None: that of the settings."""
        return self.settings.offsets_retention_minutes * MS_PER_MINUTE if retention_ms is None else retention_ms

    def submit(
        self,
        what: str,
        handler: Handler,
        claims: Callable[[], Claims],
        timeout_ms: int | None,
        acks: int | None = None,
    ) -> Request:
        """Queue a request, as `Appender.submit`. Counts its error as a refused request."""
        if timeout_ms is None:
            timeout_ms = self.settings.offsets_commit_timeout_ms
        # R27: acks=1 waits for the commit, acks=all also for its fsync (docs/adr/0013)
        durable = self.acks(acks) == ACKS_ALL
        with self.refusals.counted():
            request = self.appender.submit(what, handler, claims, timeout_ms, durable=durable)
        request.done.add_done_callback(self.refusals.count_done)
        return request

    def submit_change(
        self,
        what: str,
        group_id: str,
        change: Callable[[PartitionState, int], Outcome[Any]],
        timeout_ms: int | None,
        acks: int | None = None,
        *,
        shared: bool = False,
        also: Claims | None = None,
    ) -> Request:
        """Queue a request about a group, for an append without other requests about it. Raises InvalidGroupId.

        A ``shared`` one may join others of an existing group, but the first commit creates the group (R14). ``also``
        are claims on other resources.
        """
        with self.refusals.counted():
            log_partition = self.store.partition_for(validated_group_id(group_id))

        def handler(now_ms: int) -> Outcome[Any]:
            return change(self.partitions.state(log_partition), now_ms)

        def claims() -> Claims:
            exclusive = not shared or self.partitions.state(log_partition).group(group_id) is None
            return {(PARTITION, log_partition): SHARED, (GROUP, group_id): exclusive, **(also or {})}

        return self.submit(f"{what} {group_id!r}", handler, claims, timeout_ms, acks)

    def count_commit(self, done: Future[Any], offsets: int | None, acks: int | None) -> None:
        """Count a commit when it is done. Logs a failed one with acks=0, whose caller gets no error (R27).

        ``offsets``: how many it commits; None if its result is the committed partitions.
        """

        def count(done: Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            is_lost = (error is not None or done.cancelled()) and self.acks(acks) == ACKS_NONE
            with self.counting:  # the caller may run this at its deadline, while `lock` is held
                if error is None and not done.cancelled():
                    self.counts.commits += 1
                    self.counts.committed_offsets += len(done.result()) if offsets is None else offsets
                self.counts.lost += is_lost
            if is_lost:
                _LOG.warning("lost a commit with acks=0: %s", error)

        done.add_done_callback(count)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Hold the lock for a question. Counts an error as a refused request."""
        with self.refusals.counted(), self.lock:
            yield

    def state_for(self, group_id: str) -> PartitionState:
        """Catch up, and return the state of a group's log partition. The caller holds the lock."""
        self.refuse_if_closed()
        self.catch_up()
        return self.partitions.state(self.store.partition_for(group_id))

    def loaded_states(self) -> list[PartitionState]:
        """Catch up, and return the loaded states. Raises CoordinatorLoadInProgress if a log partition is loading."""
        self.refuse_if_closed()
        self.catch_up()
        return [self.partitions.state(number) for number in self.partitions.not_unloaded()]

    def refuse_if_closed(self) -> None:
        """Raise CoordinatorNotAvailable after `close`."""
        if self.closed.is_set():
            raise CoordinatorNotAvailable("the coordinator is closed; open another one")

    # --- the log and its states

    def catch_up(self) -> None:
        """Apply the log's new rows to the states. The caller holds the lock."""
        try:
            for rows in self.log.catch_up():
                self.partitions.replay(rows)
        except LogMovedOn as moved:
            self._reopen()
            _LOG.warning("%s: read the log again from its beginning", moved)

    def load(self, log_partitions: Collection[int], callbacks: LoadCallbacks, *, wait: bool) -> Future[list[int]]:
        """Load log partitions in one pass over the log. Arguments and errors as of `Coordinator.load_partition`."""
        with self.lock:
            self.refuse_if_closed()
            self.catch_up()
            loading = self.partitions.begin_load(log_partitions)
        if wait:
            done: Future[list[int]] = Future()
            done.set_result(self._run_load(loading, callbacks))
            return done

        def run() -> list[int]:
            self._loading_thread = threading.get_ident()
            return self._run_load(loading, callbacks)

        future = self._loads.submit(run)
        future.add_done_callback(lambda ended: self._give_up(loading) if ended.cancelled() else None)
        return future

    def unload(self, log_partition: int) -> None:
        """Unload a log partition. A running load of it will not be published."""
        with self.lock:
            self.partitions.unload(log_partition)
        self.register()

    def _reopen(self) -> None:
        """Read the log again, and replace the loaded states when that is done. The caller holds the lock."""
        loading = self.partitions.begin_load(self.partitions.not_unloaded())
        try:
            self.log.open(loading.tokens, loading.add)
            self.partitions.forget(loading)
            self._publish(loading)
        except BaseException:
            self.partitions.give_up(loading)
            raise

    def _run_load(self, loading: Loading, callbacks: LoadCallbacks) -> list[int]:
        """Load, and call the callbacks. Returns the log partitions that are loaded now. Raises as `load`."""
        try:
            loaded = self._load(loading)
        except BaseException as error:
            self._give_up(loading)
            if isinstance(error, Exception):
                for number in loading.tokens:
                    callbacks.ended(number, error=error)
            raise
        self.register()
        for number in loading.tokens:
            if number in loaded:
                callbacks.ended(number, self._descriptions(number))
            else:
                outdated = NotCoordinator(f"log partition {number} was unloaded or loaded again meanwhile; load it")
                callbacks.ended(number, error=outdated)
        return sorted(loaded)

    def _load(self, loading: Loading) -> set[int]:
        for rows in self.log.load(loading.tokens):
            self.refuse_if_closed()
            with self.lock:
                if not self.partitions.wanted(loading):
                    return set()
            loading.add(rows)
        return self._publish(loading)

    def _give_up(self, loading: Loading) -> None:
        with self.lock:
            self.partitions.give_up(loading)

    def _descriptions(self, log_partition: int) -> Iterator[tuple[str, GroupDescription]]:
        """Yield the groups of a log partition, each as it is now; none if the log partition is not loaded."""
        with self.lock:
            state = next((each for each in self.partitions.loaded() if each.log_partition == log_partition), None)
            group_ids = [] if state is None else list(state.groups)
        for group_id in group_ids:
            with self.lock:
                group = None if state is None else state.group(group_id)
                description = None if group is None else group.description
            if description is not None:
                yield group_id, description

    def _publish(self, loading: Loading) -> set[int]:
        """Replay a load and publish its states; returns the published log partitions."""
        loading.replay(self.refuse_if_closed)
        corrupt = next((state for state in loading.states.values() if state.quarantined), None)
        if corrupt is not None and self._stops_at_corrupt:
            offset, reason = next(iter(corrupt.quarantined.items()))
            raise UndecodableRecord(
                f"log partition {corrupt.log_partition}, record offset {offset}: {reason}; "
                'set corrupt_records = "quarantine" to leave such records out'
            )
        with self.lock:
            self.catch_up()
            return self.partitions.publish(loading)
