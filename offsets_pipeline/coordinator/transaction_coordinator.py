"""Transactions: producers with an epoch, and the markers that end their transactions (R11).

The log holds the transactions that have records, and each producer's highest epoch. Until a transaction has a record,
only the process that began it knows it. A marker of a new epoch in the log fences the older epochs in every process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator import handlers
from offsets_pipeline.coordinator.appender import EXCLUSIVE, PARTITION, SHARED
from offsets_pipeline.coordinator.owned_log import NO_EPOCH
from offsets_pipeline.coordinator.record_encoding import marker
from offsets_pipeline.coordinator.requests import OffsetCommit, Outcome
from offsets_pipeline.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    InvalidTxnState,
    OffsetsError,
)
from offsets_pipeline.semantics.log_row import ABORT, COMMIT

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsets_pipeline.coordinator.appender import Claims, Handler
    from offsets_pipeline.coordinator.core import CoordinatorCore
    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.semantics.partition_state import PartitionState

_LOG = logging.getLogger(__name__)

_DEFAULT_TIMEOUT_MS = 60_000
_MAX_EPOCH = 32_767
_MAX_PRODUCER_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _BegunTransaction:
    """A transaction that this process began: its epoch, its start and its timeout in ms, and the markers before it."""

    producer_epoch: int
    begun_at_ms: int
    timeout_ms: int
    markers: Mapping[int, int]


class TransactionCoordinator:
    """The transactions of a coordinator. A producer uses one coordinator and one thread at a time."""

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core
        self._begun: dict[int, _BegunTransaction] = {}  # by producer id, as the next two
        self._ended: dict[int, tuple[int, str]] = {}  # epoch and result, so that a repeated request to end succeeds
        self._ending: set[int] = set()  # the markers are being written
        self._ending_lock = threading.Lock()

    def begin(
        self, producer_id: int, producer_epoch: int, transaction_timeout_ms: int | None, timeout_ms: int | None
    ) -> None:
        """See `Coordinator.begin_transaction`."""
        longest = self._core.settings.transaction_max_timeout_ms
        timeout = min(_DEFAULT_TIMEOUT_MS, longest) if transaction_timeout_ms is None else transaction_timeout_ms
        with self._core.refusals.counted():
            if not 0 < timeout <= longest:
                raise InvalidTransactionTimeout(
                    f"transaction timeout {timeout} ms is not allowed: it takes 1 to {longest} "
                    "(transaction_max_timeout_ms)"
                )
        begun_at_ms = self._core.clock.now_ms()
        self._refuse_while_ending(producer_id)

        def begin(_: None) -> None:
            markers = dict(self._core.log.producers.get(producer_id).markers)
            self._begun[producer_id] = _BegunTransaction(producer_epoch, begun_at_ms, timeout, markers)

        self._change_producer(
            "begin a transaction",
            producer_id,
            lambda _: Outcome(self._begin_markers(producer_id, producer_epoch), None),
            begin,
            timeout_ms,
        )

    def commit_offsets(
        self, producer_id: int, producer_epoch: int, commit: OffsetCommit, timeout_ms: int | None
    ) -> None:
        """See `Coordinator.txn_commit_offsets`."""
        self._refuse_while_ending(producer_id)

        def change(state: PartitionState, now_ms: int) -> Outcome[None]:
            self._validate(producer_id, producer_epoch)
            producer = (producer_id, producer_epoch)
            return handlers.commit_offsets(state, commit, now_ms, self._core.settings, producer)

        what = f"commit of producer {producer_id} for group"
        also: Claims = {("producer", producer_id): SHARED}
        request = self._core.submit_change(what, commit.group_id, change, timeout_ms, shared=True, also=also)
        self._core.count_commit(request.done, len(commit.offsets), acks=None)
        request.result()

    def end(self, producer_id: int, producer_epoch: int, *, commit: bool, timeout_ms: int | None) -> None:
        """See `Coordinator.end_transaction`."""
        control_type = COMMIT if commit else ABORT

        def handler(_now_ms: int) -> Outcome[None]:
            producer = self._core.log.producers.get(producer_id)
            if not producer.open_since_ms and self._begun_and_open(producer_id) is None:
                last_end = producer.last_end if producer_id in self._begun else self._ended.get(producer_id)
                if last_end == (producer_epoch, control_type):
                    return Outcome([], None)
            self._validate(producer_id, producer_epoch)
            return Outcome(_markers(producer.open_since_ms, producer_id, producer_epoch, control_type), None)

        def end(_: None) -> None:
            self._begun.pop(producer_id, None)
            self._ended[producer_id] = (producer_epoch, control_type)

        self._refuse_while_ending(producer_id, is_ending=True)
        try:
            self._change_producer("end a transaction", producer_id, handler, end, timeout_ms)
        finally:
            with self._ending_lock:
                self._ending.discard(producer_id)

    def abort_overdue(self) -> list[int]:
        """See `Coordinator.abort_overdue_transactions`."""
        with self._core.lock:
            self._core.catch_up()
            overdue = self._overdue(self._core.clock.now_ms())
        aborted = []
        for producer_id in overdue:
            try:
                if self._abort_overdue(producer_id):
                    aborted.append(producer_id)
            except OffsetsError as error:
                _LOG.warning("cannot abort the overdue transaction of producer %s: %s", producer_id, error)
        return aborted

    def _abort_overdue(self, producer_id: int) -> bool:
        def handler(now_ms: int) -> Outcome[bool]:
            if producer_id not in self._overdue(now_ms):
                return Outcome([], response=False)  # it ended meanwhile
            epoch = min(self._newest_epoch(producer_id) + 1, _MAX_EPOCH)  # later requests of the producer are refused
            return Outcome(self._abort_markers(producer_id, epoch), response=True)

        def abort(is_aborted: bool) -> None:  # noqa: FBT001 - the handler's answer
            if is_aborted:
                self._begun.pop(producer_id, None)
                self._ended.pop(producer_id, None)

        is_aborted: bool = self._change_producer("abort a transaction", producer_id, handler, abort, None)
        return is_aborted

    def _overdue(self, now_ms: int) -> set[int]:
        """Return the producers whose transactions are open for longer than their timeouts.

        A transaction that this process began has its own timeout, any other one `transaction_max_timeout_ms`.
        """
        longest = self._core.settings.transaction_max_timeout_ms
        starts = {
            producer_id: (since_ms, longest)
            for producer_id, since_ms in self._core.log.producers.open_since_ms().items()
        }
        starts |= {
            producer_id: (begun.begun_at_ms, begun.timeout_ms)
            for producer_id in self._begun
            if (begun := self._begun_and_open(producer_id)) is not None
        }
        return {producer_id for producer_id, (since_ms, timeout) in starts.items() if now_ms - since_ms >= timeout}

    # --- validation and markers, in handlers

    def _begin_markers(self, producer_id: int, producer_epoch: int) -> list[Record]:
        """Return the ABORT markers that put a new epoch into the log; none if the log has the epoch.

        They also abort the open transaction of an older epoch. Raises as `Coordinator.begin_transaction`.
        """
        allowed = ((producer_id, _MAX_PRODUCER_ID), (producer_epoch, _MAX_EPOCH - 1))  # the last epoch is to fence
        if not all(type(number) is int and 0 <= number <= most for number, most in allowed):
            raise InvalidProducerEpoch(
                f"producer {producer_id} with epoch {producer_epoch} is not allowed: ids are 0 to {_MAX_PRODUCER_ID}, "
                f"epochs 0 to {_MAX_EPOCH - 1}"
            )
        self._refuse_fenced(producer_id, producer_epoch)
        if self._is_open(producer_id, producer_epoch):
            raise ConcurrentTransactions(
                f"producer {producer_id} has a transaction open in epoch {producer_epoch}; end it, or begin in a newer "
                "epoch"
            )
        if producer_epoch == self._core.log.producers.get(producer_id).epoch:
            return []
        return self._abort_markers(producer_id, producer_epoch)

    def _abort_markers(self, producer_id: int, producer_epoch: int) -> list[Record]:
        # without an open transaction, the producer id chooses the log partition of the marker
        chosen = producer_id % self._core.store.properties.offsets_partitions
        open_in = self._core.log.producers.get(producer_id).open_since_ms or [chosen]
        return _markers(open_in, producer_id, producer_epoch, ABORT)

    def _validate(self, producer_id: int, producer_epoch: int) -> None:
        """Raise InvalidProducerEpoch for an old epoch, InvalidTxnState if this epoch has no open transaction."""
        self._refuse_fenced(producer_id, producer_epoch)
        if not self._is_open(producer_id, producer_epoch):
            raise InvalidTxnState(
                f"producer {producer_id} has no open transaction in epoch {producer_epoch}; begin one"
            )

    def _refuse_fenced(self, producer_id: int, producer_epoch: int) -> None:
        newest = self._newest_epoch(producer_id)
        if producer_epoch < newest:
            raise InvalidProducerEpoch(
                f"epoch {producer_epoch} of producer {producer_id} is fenced: the newest is {newest}; "
                "begin in a newer epoch"
            )

    def _newest_epoch(self, producer_id: int) -> int:
        begun = self._begun.get(producer_id)
        return max(self._core.log.producers.get(producer_id).epoch, NO_EPOCH if begun is None else begun.producer_epoch)

    def _is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction in this epoch, here or in the log."""
        begun, producer = self._begun_and_open(producer_id), self._core.log.producers.get(producer_id)
        is_begun_here = begun is not None and begun.producer_epoch == producer_epoch
        return is_begun_here or (bool(producer.open_since_ms) and producer.epoch == producer_epoch)

    def _begun_and_open(self, producer_id: int) -> _BegunTransaction | None:
        """Return the transaction that this process began; None if the log has its end, whose answer may be lost."""
        begun = self._begun.get(producer_id)
        if begun is None or self._core.log.producers.get(producer_id).has_ended_since(begun.markers):
            return None
        return begun

    # --- requests

    def _change_producer(
        self, what: str, producer_id: int, handler: Handler, then: Callable[[Any], None], timeout_ms: int | None
    ) -> Any:  # noqa: ANN401 - what the handler answers
        """Run a request as the producer's only one. Calls ``then`` with the response before the next append."""

        def claims() -> Claims:
            partitions = self._core.log.producers.get(producer_id).open_since_ms
            return {("producer", producer_id): EXCLUSIVE, **{(PARTITION, each): SHARED for each in partitions}}

        def on_done(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                with self._core.lock:
                    then(done.result())

        request = self._core.submit(f"{what}, producer {producer_id}", handler, claims, timeout_ms)
        request.done.add_done_callback(on_done)
        return request.result()

    def _refuse_while_ending(self, producer_id: int, *, is_ending: bool = False) -> None:
        """Raise ConcurrentTransactions if the transaction is ending. Otherwise mark it as ending, if ``is_ending``."""
        with self._core.refusals.counted(), self._ending_lock:
            if producer_id in self._ending:
                raise ConcurrentTransactions(f"the transaction of producer {producer_id} is ending; retry")
            if is_ending:
                self._ending.add(producer_id)


def _markers(log_partitions: Collection[int], producer_id: int, epoch: int, control_type: str) -> list[Record]:
    return [marker(log_partition, producer_id, epoch, control_type) for log_partition in sorted(log_partitions)]
