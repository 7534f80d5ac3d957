"""Handlers for transactions: producers with an epoch, and the markers that end their transactions (R11).

The log holds the transactions that have records, and each producer's highest epoch. Until a transaction has a record,
only the process that began it knows it. A marker of a new epoch in the log fences the older epochs in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.record_encoding import marker
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    InvalidTxnState,
)
from offsets_pipeline.semantics.log_row import ABORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsets_pipeline.coordinator.producers import Producer

MAX_EPOCH = 32_767


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A transaction that this process began: its epoch, its start and its timeout in ms."""

    producer_epoch: int
    begun_at_ms: int
    timeout_ms: int

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether the transaction is open for longer than its timeout."""
        return now_ms - self.begun_at_ms >= self.timeout_ms


class BegunTransactions:
    """The open transactions that this process began, by producer id, and which of them are ending."""

    def __init__(self) -> None:
        self._begun: dict[int, BegunTransaction] = {}
        self._ending: set[int] = set()
        self._ended: dict[int, tuple[int, str]] = {}

    def get(self, producer_id: int) -> BegunTransaction | None:
        """Return the producer's open transaction; None if this process began none."""
        return self._begun.get(producer_id)

    def add(self, producer_id: int, begun: BegunTransaction) -> None:
        """Add a transaction that begins."""
        self._begun[producer_id] = begun
        self._ended.pop(producer_id, None)

    def end(self, producer_id: int, producer_epoch: int, control_type: str) -> None:
        """Remove a transaction, and keep its result, so that a repeated request to end it succeeds."""
        self._begun.pop(producer_id, None)
        self._ended[producer_id] = (producer_epoch, control_type)

    def drop(self, producer_id: int) -> None:
        """Remove an aborted overdue transaction, and keep no result."""
        self._begun.pop(producer_id, None)
        self._ended.pop(producer_id, None)

    def has_ended(self, producer_id: int, producer_epoch: int, control_type: str) -> bool:
        """Return whether the producer's last transaction in this process ended with this epoch and result."""
        return producer_id not in self._begun and self._ended.get(producer_id) == (producer_epoch, control_type)

    def is_ending(self, producer_id: int) -> bool:
        """Return whether the producer's transaction is ending: its markers are being written."""
        return producer_id in self._ending

    def set_ending(self, producer_id: int, *, ending: bool) -> None:
        """Set or clear that the producer's transaction is ending."""
        (self._ending.add if ending else self._ending.discard)(producer_id)

    def overdue(self, now_ms: int, open_since_ms: Mapping[int, int], max_timeout_ms: int) -> Iterator[int]:
        """Yield the ids of producers whose transactions are overdue.

        A transaction that this process began has its own timeout, any other one ``max_timeout_ms``.
        """
        for producer_id, begun in self._begun.items():
            if begun.is_overdue(now_ms):
                yield producer_id
        for producer_id, since_ms in open_since_ms.items():
            if producer_id not in self._begun and now_ms - since_ms >= max_timeout_ms:
                yield producer_id


def validate_timeout(timeout_ms: int, max_timeout_ms: int) -> None:
    """Raise InvalidTransactionTimeout if the timeout is not from 1 to ``max_timeout_ms``."""
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeout(
            f"transaction timeout {timeout_ms} ms is not allowed: it takes 1 to {max_timeout_ms} "
            "(transaction_max_timeout_ms)"
        )


def begin_transaction(
    producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None, offsets_partitions: int
) -> Outcome[None]:
    """Return the ABORT markers that put a new epoch into the log; no records if the log has the epoch.

    The markers also abort the open transaction of an older epoch.

    Raises InvalidProducerEpoch for an invalid epoch or one older than the newest, ConcurrentTransactions if the
    producer has a transaction open in this epoch.
    """
    if not (0 <= producer_epoch <= MAX_EPOCH and producer_id >= 0):
        raise InvalidProducerEpoch(
            f"producer {producer_id} with epoch {producer_epoch} is not allowed: ids start at 0, epochs are 0 to "
            f"{MAX_EPOCH}"
        )
    _validate_epoch(producer_id, producer_epoch, producer, begun)
    if producer_epoch == producer.epoch and producer.open_since_ms:
        raise _is_open(producer_id, producer_epoch)
    if begun is not None and begun.producer_epoch == producer_epoch:
        raise _is_open(producer_id, producer_epoch)
    if producer_epoch == producer.epoch:
        return Outcome([], None)
    # without an open transaction, the producer id chooses the log partition of the marker
    log_partitions = producer.open_since_ms or [producer_id % offsets_partitions]
    return Outcome(
        [marker(partition, producer_id, producer_epoch, ABORT) for partition in sorted(log_partitions)], None
    )


def _is_open(producer_id: int, producer_epoch: int) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"producer {producer_id} has a transaction open in epoch {producer_epoch}; end it, or begin in a newer epoch"
    )


def validate_producer(
    producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None
) -> None:
    """Check that the producer may write to its transaction, or end it.

    Raises InvalidProducerEpoch for an old epoch, InvalidTxnState if this epoch has no open transaction.
    """
    _validate_epoch(producer_id, producer_epoch, producer, begun)
    begun_here = begun is not None and begun.producer_epoch == producer_epoch
    if not begun_here and not (producer.open_since_ms and producer.epoch == producer_epoch):
        raise InvalidTxnState(f"producer {producer_id} has no open transaction in epoch {producer_epoch}; begin one")


def _validate_epoch(producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None) -> None:
    newest = max(producer.epoch, -1 if begun is None else begun.producer_epoch)
    if producer_epoch < newest:
        raise InvalidProducerEpoch(
            f"epoch {producer_epoch} of producer {producer_id} is fenced: the newest is {newest}"
        )


def end_transaction(producer_id: int, producer_epoch: int, producer: Producer, control_type: str) -> Outcome[None]:
    """Return a marker for each log partition where the transaction has records."""
    return Outcome(
        [marker(partition, producer_id, producer_epoch, control_type) for partition in sorted(producer.open_since_ms)],
        None,
    )


def abort_overdue(
    producer_id: int, producer: Producer, begun: BegunTransaction | None, offsets_partitions: int
) -> Outcome[None]:
    """Return markers that abort an overdue transaction.

    They have the next epoch, so that later requests of the producer are refused.
    """
    epoch = min(max(producer.epoch, -1 if begun is None else begun.producer_epoch) + 1, MAX_EPOCH)
    log_partitions: Iterable[int] = producer.open_since_ms or [producer_id % offsets_partitions]
    return Outcome([marker(partition, producer_id, epoch, ABORT) for partition in sorted(log_partitions)], None)
