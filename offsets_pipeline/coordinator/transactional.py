"""The coordinator's calls for transactions (R11)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator import commits, transaction_handlers
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED
from offsets_pipeline.coordinator.core import CoordinatorCore
from offsets_pipeline.coordinator.requests import (
    NO_MEMBER,
    MemberOfGroup,
    OffsetCommit,
    Outcome,
    as_offsets,
    validated_group_id,
)
from offsets_pipeline.coordinator.transaction_handlers import BegunTransaction, BegunTransactions
from offsets_pipeline.errors import ConcurrentTransactions, InvalidRequest, OffsetsError
from offsets_pipeline.semantics.log_row import ABORT, COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from concurrent.futures import Future

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.coordinator.appender import Handler
    from offsets_pipeline.coordinator.owned_store import OwnedStore
    from offsets_pipeline.coordinator.requests import OffsetsByPartition

_LOG = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 60_000


class TransactionalCoordinator(CoordinatorCore):
    """A coordinator's calls for transactions. A producer uses one coordinator and one thread at a time."""

    def __init__(self, store: OwnedStore, settings: Settings, clock: Clock) -> None:
        super().__init__(store, settings, clock)
        self._begun = BegunTransactions()

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
        longest = self._settings.transaction_max_timeout_ms
        timeout = min(DEFAULT_TIMEOUT_MS, longest) if transaction_timeout_ms is None else transaction_timeout_ms
        with self._refusals.counted():
            transaction_handlers.validate_timeout(timeout, longest)
        begun = BegunTransaction(producer_epoch, self._clock.now_ms(), timeout)
        self._refuse_while_ending(producer_id)

        def handler(_now_ms: int) -> Outcome[None]:
            return transaction_handlers.begin_transaction(
                producer_id,
                producer_epoch,
                self._log.producers.get(producer_id),
                self._begun.get(producer_id),
                self.store.properties.offsets_partitions,
            )

        self._change_producer(
            "begin a transaction", producer_id, handler, lambda _: self._begun.add(producer_id, begun), timeout_ms
        )

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
        if self._zookeeper is not None:
            raise InvalidRequest(
                "cannot commit offsets in a transaction to ZooKeeper; set offsets_storage to kafka and "
                "dual_commit_enabled to false"
            )
        with self._refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id, may_be_empty=False), as_offsets(offsets), member)
        log_partition = self.partition_for(group_id)
        producer = (producer_id, producer_epoch)
        self._refuse_while_ending(producer_id)

        def handler(now_ms: int) -> Outcome[None]:
            state = self._partitions.state(log_partition)
            transaction_handlers.validate_producer(
                producer_id, producer_epoch, self._log.producers.get(producer_id), self._begun.get(producer_id)
            )
            return commits.commit_offsets(state, commit, now_ms, self._settings, producer)

        def claims() -> Mapping[Hashable, bool]:
            return {**self._commit_claims(group_id), ("producer", producer_id): SHARED}

        request = self._submit(f"commit of producer {producer_id} for group {group_id!r}", handler, claims, timeout_ms)
        request.done.add_done_callback(self._counted(len(commit.offsets), acks=None))
        self._wait_for(request)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, timeout_ms: int | None = None
    ) -> None:
        """Commit or abort a transaction. A commit makes all its offsets visible at once.

        Idempotent: ending a transaction again with the same result succeeds in the same coordinator.

        Raises InvalidProducerEpoch, InvalidTxnState if no transaction is open, ConcurrentTransactions while it is
        ending.
        """
        control_type = COMMIT if commit else ABORT

        def handler(_now_ms: int) -> Outcome[None]:
            producer, begun = self._log.producers.get(producer_id), self._begun.get(producer_id)
            if not producer.open_since_ms and self._begun.has_ended(producer_id, producer_epoch, control_type):
                return Outcome([], None)
            transaction_handlers.validate_producer(producer_id, producer_epoch, producer, begun)
            return transaction_handlers.end_transaction(producer_id, producer_epoch, producer, control_type)

        def ended(_: None) -> None:
            self._begun.end(producer_id, producer_epoch, control_type)

        self._refuse_while_ending(producer_id, is_ending=True)
        try:
            self._change_producer("end a transaction", producer_id, handler, ended, timeout_ms)
        finally:
            with self._lock:
                self._begun.set_ending(producer_id, ending=False)

    def abort_overdue_transactions(self, now_ms: int | None = None) -> list[int]:
        """Abort overdue transactions, and refuse further requests in their epochs. Returns the producer ids.

        A transaction that this process began has its own timeout, any other one `transaction_max_timeout_ms`. The
        producers need a higher epoch for their next transaction.
        """
        with self._lock:
            self._catch_up()
            overdue = self._overdue(self._clock.now_ms() if now_ms is None else now_ms)
        aborted = []
        for producer_id in overdue:
            try:
                if self._abort_overdue(producer_id, now_ms):
                    aborted.append(producer_id)
            except OffsetsError as error:
                _LOG.warning("cannot abort the overdue transaction of producer %s: %s", producer_id, error)
        return aborted

    def _abort_overdue(self, producer_id: int, now_ms: int | None) -> bool:
        def handler(now: int) -> Outcome[bool]:
            if producer_id not in self._overdue(now if now_ms is None else now_ms):
                return Outcome([], response=False)  # it ended meanwhile
            producer, begun = self._log.producers.get(producer_id), self._begun.get(producer_id)
            n = self.store.properties.offsets_partitions
            return Outcome(transaction_handlers.abort_overdue(producer_id, producer, begun, n).records, response=True)

        def aborted(is_aborted: bool) -> None:  # noqa: FBT001 - the handler's answer
            if is_aborted:
                self._begun.drop(producer_id)

        is_aborted: bool = self._change_producer("abort a transaction", producer_id, handler, aborted, None)
        return is_aborted

    def _overdue(self, now_ms: int) -> set[int]:
        open_since_ms = self._log.producers.open_since_ms()
        return set(self._begun.overdue(now_ms, open_since_ms, self._settings.transaction_max_timeout_ms))

    def _tick(self, now_ms: int) -> None:
        del now_ms  # the abort reads the clock when its request runs
        self.abort_overdue_transactions()

    def _change_producer(
        self,
        what: str,
        producer_id: int,
        handler: Handler,
        then: Callable[[Any], None],
        timeout_ms: int | None,
    ) -> Any:  # noqa: ANN401 - what the handler answers
        """Run a request as the producer's only one. Calls ``then`` with the response before the next append."""

        def claims() -> Mapping[Hashable, bool]:
            partitions = self._log.producers.get(producer_id).open_since_ms
            return {("producer", producer_id): EXCLUSIVE, **{("partition", each): SHARED for each in partitions}}

        def on_done(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                with self._lock:
                    then(done.result())

        request = self._submit(f"{what}, producer {producer_id}", handler, claims, timeout_ms)
        request.done.add_done_callback(on_done)
        return self._wait_for(request)

    def _refuse_while_ending(self, producer_id: int, *, is_ending: bool = False) -> None:
        """Raise ConcurrentTransactions if the transaction is ending. Otherwise mark it as ending, if ``is_ending``."""
        with self._answering():
            if self._begun.is_ending(producer_id):
                raise ConcurrentTransactions(f"the transaction of producer {producer_id} is ending; retry")
            if is_ending:
                self._begun.set_ending(producer_id, ending=True)
