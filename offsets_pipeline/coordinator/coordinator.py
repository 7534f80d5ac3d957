"""The coordinator of an owned log, with calls named as in Kafka (R24-R28).

`Coordinator` has the calls, and its parts do the work. `LogOffsets`, `TransactionCoordinator` and `expire_partition`
make requests. `CoordinatorCore` loads the log, and passes the requests to the `Appender`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from offsets_pipeline.common.clock import Clock, SystemClock
from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.coordinator import handlers
from offsets_pipeline.coordinator.core import ACKS_NONE, CoordinatorCore
from offsets_pipeline.coordinator.expiration import ExpiryReport, expire_partition
from offsets_pipeline.coordinator.gauges import Gauges
from offsets_pipeline.coordinator.loading import LoadCallbacks
from offsets_pipeline.coordinator.offsets_storage import LogOffsets, ZooKeeperOffsets
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import RENEW_MS, Instance
from offsets_pipeline.coordinator.requests import (
    NO_MEMBER,
    GroupMetadata,
    MemberOfGroup,
    OffsetCommit,
    as_offsets,
    validated_group_id,
    validated_partition,
    validated_place,
)
from offsets_pipeline.coordinator.transaction_coordinator import TransactionCoordinator
from offsets_pipeline.errors import NoSuchGroup, OffsetsError
from offsets_pipeline.semantics.retention import ExpiredGroup, Expiry, GroupForecast, forecast, holdings_of

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from offsets_pipeline.coordinator.appender import Request
    from offsets_pipeline.coordinator.handlers import FetchedOffset
    from offsets_pipeline.coordinator.loading import LoadStatus, OnGroupLoaded, OnPartitionLoaded
    from offsets_pipeline.coordinator.offsets_storage import DualRequest, IsWanted
    from offsets_pipeline.coordinator.requests import OffsetsByPartition
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import TopicPartition
    from offsets_pipeline.service.rest.server import RestServer

_LOG = logging.getLogger(__name__)
_TICK_MS = 1_000


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """A group's log partition, its load status here, and all coordinators with housekeeping that have it loaded."""

    log_partition: int
    status: LoadStatus
    loaded_by: list[Instance]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in the answer of `list_groups`."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str


class Coordinator(Closing):
    """The groups and offsets of an owned store. Open it with `open`. It is thread-safe.

    A call on groups or offsets first catches up with the log's end. Any number of processes may load the same log
    partitions: each reads the appends of the others.

    Such a call may raise NotCoordinator and CoordinatorLoadInProgress (R28), InvalidGroupId, CoordinatorNotAvailable. A
    call that appends may also raise RequestTimedOut.

        >>> from offsets_pipeline import Coordinator, OwnedStore
        >>> with Coordinator.open(OwnedStore.create("owned", 50)) as coordinator:
        ...     coordinator.commit_offsets("billing", {("orders", 0): 42})
        ...     coordinator.fetch_offsets("billing")["orders", 0].offset
        42
    """

    def __init__(self, store: OwnedStore, settings: Settings, clock: Clock) -> None:
        self.store = store
        self._core = core = CoordinatorCore(store, settings, clock)
        self._offsets = ZooKeeperOffsets(core, settings.zookeeper) if core.settings.uses_zookeeper else LogOffsets(core)
        self._transactions = TransactionCoordinator(core)
        self._metrics_server: RestServer | None = None
        self._registered_at_ms = self._expired_at_ms = clock.now_ms()
        self._housekeeping = Periodic(
            self._keep_house,
            _TICK_MS,
            at_once=False,
            rests=True,
            warn=_LOG.warning,
            describe=lambda error: f"housekeeping of {store.location} failed: {error}; trying again",
            stopped=core.closed,
            name="offsets-housekeeping",
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
        partitions every `offsets_retention_check_interval_ms`. `find_coordinator` finds only coordinators with it. Open
        the coordinator after a fork, never before it.

        ``metrics_port`` serves metrics for Prometheus at this port of 127.0.0.1, or at this host and port, until
        `close` (docs/metrics.md). Port 0 takes a free port; the property `metrics_port` has its number. Any port needs
        the extra `serve`.

        Raises NoSuchStore, NotAStore, NotCoordinator (a mirrored store), UnsafeStorage, UnsupportedTable (only Spark
        can read the log), ServiceUnavailable if the port cannot be bound.
        """
        opened = store if isinstance(store, OwnedStore) else OwnedStore.open(store)
        coordinator = cls(opened, settings or Settings(), clock or SystemClock())
        if metrics_port is not None:
            # for a port alone
            from offsets_pipeline.service.metrics.exposition import registry_of, serve_metrics  # noqa: PLC0415

            host, port = ("127.0.0.1", metrics_port) if isinstance(metrics_port, int) else metrics_port
            registry = registry_of(lambda: coordinator.gauges().values())
            coordinator._metrics_server = serve_metrics(registry, host, port)
        try:
            coordinator._core.start(partitions)
        except BaseException:
            coordinator._stop_metrics()
            raise
        if housekeeping:
            coordinator._core.begin_registration()
            coordinator._housekeeping.start()
        return coordinator

    def close(self) -> None:
        """Cancel loads, append the waiting requests, then end. Idempotent.

        In a callback of a request, the waiting requests are appended after the callback.
        """
        housekeeping = self._housekeeping  # it may wait for a request, and so for the thread of this callback
        with ExitStack() as steps:  # the last one first, each whatever another one raises
            steps.callback(self._stop_metrics)
            steps.callback(self._core.unregister)
            steps.callback(housekeeping.stop if self._core.appender.is_in_callback() else housekeeping.close)
            steps.callback(self._offsets.close)
            steps.callback(self._core.close)

    def _keep_house(self) -> None:
        """Abort overdue transactions; at their intervals, register this coordinator and expire offsets.

        A clock before the start of an interval was set back: the interval is over.
        """
        now_ms = self._core.clock.now_ms()
        self._transactions.abort_overdue()
        if not 0 <= now_ms - self._registered_at_ms < RENEW_MS:
            self._registered_at_ms = now_ms
            self._core.register()
        if not 0 <= now_ms - self._expired_at_ms < self._core.settings.offsets_retention_check_interval_ms:
            self._expired_at_ms = now_ms
            self._keep_expired(now_ms)

    def _keep_expired(self, now_ms: int) -> None:
        """Run `expire_loaded`, and log the errors; after `close` the next coordinator expires the rest."""
        for report in self.expire_loaded(now_ms):
            if report.error is not None and not self._core.closed.is_set():
                _LOG.warning("cannot expire all offsets of log partition %s: %s", report.log_partition, report.error)

    def _stop_metrics(self) -> None:
        server, self._metrics_server = self._metrics_server, None
        if server is not None:
            server.close()

    @property
    def metrics_port(self) -> int | None:
        """The port that serves metrics; None if there is none."""
        return None if self._metrics_server is None else self._metrics_server.port

    @property
    def instance(self) -> Instance:
        """The name of this coordinator in the registry."""
        return self._core.instance

    # --- log partitions

    def load_partition(
        self,
        *log_partitions: int,
        wait: bool = True,
        on_group_loaded: OnGroupLoaded | None = None,
        on_partition_loaded: OnPartitionLoaded | None = None,
    ) -> Future[list[int]]:
        """Load log partitions in one pass over the log, even if they are loaded already (R28).

        With ``wait=False`` the call returns while they are Loading. Such loads run one after another in a thread of the
        coordinator. The future then has the errors, and as its result the loaded log partitions, without those that
        were unloaded or loaded again since the call. `close` cancels a load, which then fails with
        CoordinatorNotAvailable; the states before the load stay.

        ``on_group_loaded(group_id, description)`` is called for each group, then for each log partition
        ``on_partition_loaded(log_partition, error)``, with the error None if it was loaded.

        Raises NotCoordinator if there is no such log partition, CoordinatorNotAvailable; with ``wait`` also
        StoreReplaced, UnsupportedTable, UnexpectedActiveGroup, UndecodableRecord if the setting `corrupt_records` is
        "fail".
        """
        return self._core.load(log_partitions, LoadCallbacks(on_group_loaded, on_partition_loaded), wait=wait)

    def unload_partition(self, log_partition: int) -> None:
        """Unload a log partition. A running load of it will not be published."""
        self._core.unload(log_partition)

    def status(self, log_partition: int) -> LoadStatus:
        """Return the load status of a log partition (R28)."""
        with self._core.lock:
            return self._core.partitions.status(log_partition)

    def partition_for(self, group_id: str) -> int:
        """Return the log partition of a group (R1)."""
        return self.store.partition_for(group_id)

    def find_coordinator(self, group_id: str) -> FoundCoordinator:
        """Return the log partition of a group, and the coordinators with housekeeping that have it loaded."""
        with self._core.refusals.counted():
            log_partition = self.partition_for(validated_group_id(group_id))
        loaded_by = self._core.registry.instances_with(log_partition, self._core.clock.now_ms())
        return FoundCoordinator(log_partition, self.status(log_partition), loaded_by)

    def gauges(self) -> Gauges:
        """Return the current figures. Answers while the storage hangs; rows that are replayed meanwhile may count."""
        with self._core.counting:
            counts = asdict(self._core.counts)
        states = list(self._core.partitions.loaded())
        return Gauges(
            groups=sum(len(state.groups) for state in states),
            offsets=sum(len(offsets) for state in states for offsets in list(state.offsets.values())),
            **counts,
            load_ms=self._core.partitions.load_ms(),
            refused=self._core.refusals.by_error(),
        )

    # --- offsets

    def commit_offsets(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NO_MEMBER,
        retention_time_ms: int | None = None,
        acks: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets by (topic, partition).

        ``member`` is the member that commits. The offsets expire ``retention_time_ms`` after the commit (None: by the
        settings). ``acks`` is 0, 1 or -1 for all (R27; None: by the settings). With acks=0 the call returns when the
        request is queued. Later errors are not raised: `gauges` counts these commits as lost.

        Raises NoSuchGroup, UnknownMemberId, FencedInstanceId, IllegalGeneration, StaleMemberEpoch,
        RebalanceInProgress (R25); OffsetMetadataTooLarge, after the other partitions are committed; OffsetOutOfRange,
        UnknownTopicOrPartition, InvalidCommitOffsetSize, InvalidRequest, InvalidRequiredAcks.
        """
        pending = self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms)
        if self._core.acks(acks) != ACKS_NONE:
            pending.result()

    def commit_offsets_async(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NO_MEMBER,
        retention_time_ms: int | None = None,
        acks: int | None = None,
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Run `commit_offsets` without waiting; returns a future. Commits of a group are appended in order.

        In a callback of a future its `result` raises InvalidRequest if it would have to wait.
        """
        return self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms).done

    def commit_offsets_if(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        is_wanted: IsWanted,
        *,
        timeout_ms: int | None = None,
    ) -> Future[set[TopicPartition]]:
        """Commit those offsets for which ``is_wanted`` holds, given the committed offset in the log or None.

        Calls ``is_wanted`` right before the append, so no other process commits in between. Never writes to ZooKeeper.
        Returns a future of the committed partitions; its errors are those of `commit_offsets`.
        """
        with self._core.refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets))
        done: Future[set[TopicPartition]] = self._offsets.commit_if(commit, is_wanted, timeout_ms).done
        self._core.count_commit(done, None, acks=None)
        return done

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member: MemberOfGroup = NO_MEMBER,
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group: of these partitions, or of all with a committed offset (R17).

        The offset in the answer is None for a partition without a committed offset. With ``require_stable``, the answer
        has the error UnstableOffsetCommit while an open transaction holds a commit for the partition.

        Raises UnknownMemberId, StaleMemberEpoch or IllegalGeneration if ``member`` does not match the group.
        """
        with self._core.refusals.counted():
            validated_group_id(group_id)
            chosen = None if partitions is None else [validated_partition(where) for where in partitions]
        return self._offsets.fetch(group_id, chosen, member, require_stable=require_stable)

    def fetch_all_offsets(self, *, require_stable: bool = False) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """Return the committed offsets of every group in the loaded log partitions, by group id."""
        return self._offsets.fetch_all(require_stable=require_stable)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int | None]], *, timeout_ms: int | None = None
    ) -> int:
        """Delete offsets of a group; returns the number of deleted offsets (R26).

        The partition None chooses all partitions of a topic that have an offset. A deletion includes offsets that are
        pending in a transaction (R12).

        Raises NoSuchGroup, NonEmptyGroup; InvalidGroupId for an empty group id too; GroupSubscribedToTopic, after the
        other offsets are deleted.
        """
        with self._core.refusals.counted():
            validated_group_id(group_id, may_be_empty=False)
            chosen = [validated_place(where) for where in partitions]
        return self._offsets.delete(group_id, chosen, timeout_ms)

    def _commit(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        member: MemberOfGroup,
        retention_time_ms: int | None,
        acks: int | None,
        timeout_ms: int | None,
    ) -> Request | DualRequest[None]:
        with self._core.refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets), member, retention_time_ms)
            self._core.acks(acks)
        pending = self._offsets.commit(commit, acks, timeout_ms)
        self._core.count_commit(pending.done, len(commit.offsets), acks)
        return pending

    # --- groups

    def store_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> None:
        """Store the complete metadata of a classic group.

        Raises IllegalGeneration if a later generation is stored, NonEmptyGroup for an active group of another type,
        InvalidCommitOffsetSize.
        """
        self._core.submit_change(
            "store group", group.group_id, lambda state, now_ms: handlers.store_group(state, group, now_ms), timeout_ms
        ).result()

    def add_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> bool:
        """Store a group unless a group of that name exists. Returns whether it was stored."""
        is_new: bool = self._core.submit_change(
            "add group", group.group_id, lambda state, now_ms: handlers.add_group(state, group, now_ms), timeout_ms
        ).result()
        return is_new

    def get_group(self, group_id: str) -> GroupDescription | None:
        """Return the group's description; None if there is no such group."""
        with self._core.answering():
            group = self._core.state_for(validated_group_id(group_id)).group(group_id)
            return None if group is None else group.description

    def remove_group(self, group_id: str, *, timeout_ms: int | None = None) -> int:
        """Delete a group and its offsets; returns the number of offsets (R26). Raises NoSuchGroup, NonEmptyGroup."""
        removed: int = self._offsets.remove_group(group_id, timeout_ms).result()
        return removed

    def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, OffsetsError | None]:
        """Delete groups, each on its own. Returns by group id the error, or None if the group was deleted."""
        answers: dict[str, OffsetsError | None] = dict.fromkeys(group_ids)
        removals: dict[str, Request | DualRequest[int]] = {}
        for group_id in answers:
            try:
                removals[group_id] = self._offsets.remove_group(group_id, timeout_ms)
            except OffsetsError as error:
                answers[group_id] = error
        for group_id, removal in removals.items():
            try:
                removal.result()
            except OffsetsError as error:
                answers[group_id] = error
        return answers

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), protocol_types: Collection[str] = ()
    ) -> list[ListedGroup]:
        """Return the groups in the loaded log partitions with these states, types and protocol types (empty: any).

        As at a broker, upper and lower case of states and types do not matter.
        """
        wanted_states, wanted_types = ({each.casefold() for each in wanted} for wanted in (states, types))
        with self._core.answering():
            listings = [
                ListedGroup(group_id, group.group_type, group.description.state, group.description.protocol_type)
                for state in self._core.loaded_states()
                for group_id, group in state.groups.items()
            ]
        return sorted(
            (
                each
                for each in listings
                if (not states or each.state.casefold() in wanted_states)
                and (not types or each.group_type.casefold() in wanted_types)
                and (not protocol_types or each.protocol_type in protocol_types)
            ),
            key=lambda each: each.group_id,
        )

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | OffsetsError]:
        """Return by group id the group's description, or the error for that group."""
        answers: dict[str, GroupDescription | OffsetsError] = {}
        for group_id in group_ids:
            try:
                answers[group_id] = self.get_group(group_id) or NoSuchGroup(f"no group {group_id!r}")
            except OffsetsError as error:
                answers[group_id] = error
        return answers

    # --- transactions

    def begin_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        transaction_timeout_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Begin a transaction. The coordinator aborts it after ``transaction_timeout_ms`` (None: at most a minute).

        A producer that restarts takes a higher epoch. That aborts the open transaction of the older epoch, and every
        process refuses later requests in the older epoch.

        Raises InvalidProducerEpoch for an epoch older than the newest, ConcurrentTransactions if the producer has a
        transaction open in this epoch, InvalidTransactionTimeout.
        """
        self._transactions.begin(producer_id, producer_epoch, transaction_timeout_ms, timeout_ms)

    def txn_commit_offsets(
        self,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NO_MEMBER,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets in a transaction. They become visible when it commits, and never if it aborts.

        Raises InvalidProducerEpoch, InvalidTxnState if no transaction is open, ConcurrentTransactions while it is
        ending. Also raises the errors of `commit_offsets`, with two differences: InvalidGroupId for an empty group id
        too, and IllegalGeneration instead of StaleMemberEpoch, and instead of NoSuchGroup for an unknown group.
        Raises InvalidRequest while commits go to ZooKeeper, which has no transactions.
        """
        self._offsets.refuse_transactions()
        with self._core.refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id, may_be_empty=False), as_offsets(offsets), member)
        self._transactions.commit_offsets(producer_id, producer_epoch, commit, timeout_ms)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, timeout_ms: int | None = None
    ) -> None:
        """Commit or abort a transaction. A commit makes all its offsets visible at once.

        Idempotent: ending a transaction again with the same result succeeds in the same coordinator.

        Raises InvalidProducerEpoch, InvalidTxnState if no transaction is open, ConcurrentTransactions while it is
        ending.
        """
        self._transactions.end(producer_id, producer_epoch, commit=commit, timeout_ms=timeout_ms)

    def abort_overdue_transactions(self) -> list[int]:
        """Abort overdue transactions, and refuse further requests in their epochs. Returns the producer ids.

        A transaction that this process began has its own timeout, any other one `transaction_max_timeout_ms`. The
        producers need a higher epoch for their next transaction.
        """
        with self._core.refusals.counted():
            self._core.refuse_if_closed()
        return self._transactions.abort_overdue()

    # --- expiration

    def forecast(self, group_id: str, retention_ms: int | None = None) -> list[Expiry]:
        """Return when each offset of a group expires if no record follows, and by which rule (R18-R20)."""
        with self._core.answering():
            held = holdings_of(self._core.state_for(validated_group_id(group_id)), group_id)
            return [] if held is None else forecast(held, self._core.retention_ms(retention_ms)).expiries

    def forecast_partition(self, log_partition: int, retention_ms: int | None = None) -> list[GroupForecast]:
        """Return the forecasts for the groups of a log partition and their offsets, if no record follows (R18-R21)."""
        with self._core.answering():
            self._core.refuse_if_closed()
            self._core.catch_up()
            state = self._core.partitions.state(log_partition)
            holdings = (holdings_of(state, group_id) for group_id in state.groups)
            return [forecast(each, self._core.retention_ms(retention_ms)) for each in holdings if each]

    def expire(
        self, log_partition: int, now_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[ExpiredGroup]:
        """Append tombstones for the expired offsets and groups of a log partition (R18-R22); returns these groups.

        The tombstones of one group are in one append, those of many groups in several. ``timeout_ms`` applies to each
        append.
        """
        report = expire_partition(self._core, log_partition, now_ms, timeout_ms)
        if report.error is not None:
            raise report.error
        return report.groups

    def try_to_expire(self, log_partition: int, now_ms: int | None = None) -> ExpiryReport:
        """Run `expire`, but return an error in the report instead of raising it. The next run tries again (R22)."""
        return expire_partition(self._core, log_partition, now_ms)

    def expire_loaded(self, now_ms: int | None = None) -> list[ExpiryReport]:
        """Run `try_to_expire` for every loaded log partition. A failure of one does not stop the others (R22)."""
        with self._core.lock:
            loaded = [state.log_partition for state in self._core.partitions.loaded()]
        return [self.try_to_expire(log_partition, now_ms) for log_partition in loaded]
