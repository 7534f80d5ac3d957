"""Transactions: producers with an epoch, and the markers that end what they began (R11).

The log knows which transactions have records, and each producer's highest epoch. That a transaction began and has no
record yet only the process knows that began it; what makes an older epoch's producer stop at once, wherever it runs,
is a marker of the new epoch in the log.
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
    """A transaction that this process began: its epoch, when, and how long it may take (ms)."""

    producer_epoch: int
    begun_at_ms: int
    timeout_ms: int

    def is_overdue(self, now_ms: int) -> bool:
        """Whether its time is over."""
        return now_ms - self.begun_at_ms >= self.timeout_ms


class BegunTransactions:
    """The transactions that this process began and did not end, by producer id; and which of them are ending."""

    def __init__(self) -> None:
        self._begun: dict[int, BegunTransaction] = {}
        self._ending: set[int] = set()
        self._ended: dict[int, tuple[int, str]] = {}

    def get(self, producer_id: int) -> BegunTransaction | None:
        """The producer's open transaction, if it was begun here."""
        return self._begun.get(producer_id)

    def add(self, producer_id: int, begun: BegunTransaction) -> None:
        """Note one that begins."""
        self._begun[producer_id] = begun
        self._ended.pop(producer_id, None)

    def end(self, producer_id: int, producer_epoch: int, control_type: str) -> None:
        """Note how one ended: to ask for the same end again is to be told that it is so."""
        self._begun.pop(producer_id, None)
        self._ended[producer_id] = (producer_epoch, control_type)

    def drop(self, producer_id: int) -> None:
        """Forget one that was aborted since it took too long."""
        self._begun.pop(producer_id, None)
        self._ended.pop(producer_id, None)

    def has_ended(self, producer_id: int, producer_epoch: int, control_type: str) -> bool:
        """Whether the producer's last transaction of this process ended just so."""
        return producer_id not in self._begun and self._ended.get(producer_id) == (producer_epoch, control_type)

    def is_ending(self, producer_id: int) -> bool:
        """Whether its markers are being written."""
        return producer_id in self._ending

    def set_ending(self, producer_id: int, *, ending: bool) -> None:
        """Note that its markers are being written, or no longer."""
        (self._ending.add if ending else self._ending.discard)(producer_id)

    def overdue(self, now_ms: int, open_since_ms: Mapping[int, int], max_timeout_ms: int) -> Iterator[int]:
        """The producers whose transactions take too long.

        Those begun here by their own timeout; what another process began, by the longest that there may be.
        """
        for producer_id, begun in self._begun.items():
            if begun.is_overdue(now_ms):
                yield producer_id
        for producer_id, since_ms in open_since_ms.items():
            if producer_id not in self._begun and now_ms - since_ms >= max_timeout_ms:
                yield producer_id


def validate_timeout(timeout_ms: int, max_timeout_ms: int) -> None:
    """Raises InvalidTransactionTimeout for one that is not allowed."""
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeout(
            f"a transaction may take from 1 to {max_timeout_ms} ms, not {timeout_ms} (transaction_max_timeout_ms)"
        )


def begin_transaction(
    producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None, offsets_partitions: int
) -> Outcome[None]:
    """Markers that abort the transaction of an older epoch, or merely tell of the new one; nothing for a known epoch.

    Raises InvalidProducerEpoch for an epoch that was overtaken or is none, ConcurrentTransactions where this epoch
    has a transaction open.
    """
    if not (0 <= producer_epoch <= MAX_EPOCH and producer_id >= 0):
        raise InvalidProducerEpoch(
            f"producer {producer_id}, epoch {producer_epoch}: an epoch is from 0 to {MAX_EPOCH}, an id not negative"
        )
    _validate_epoch(producer_id, producer_epoch, producer, begun)
    if producer_epoch == producer.epoch and producer.open_since_ms:
        raise _is_open(producer_id, producer_epoch)
    if begun is not None and begun.producer_epoch == producer_epoch:
        raise _is_open(producer_id, producer_epoch)
    if producer_epoch == producer.epoch:
        return Outcome([], None)
    # a producer without an open transaction is told of in a log partition of its own
    told = producer.open_since_ms or [producer_id % offsets_partitions]
    return Outcome([marker(partition, producer_id, producer_epoch, ABORT) for partition in sorted(told)], None)


def _is_open(producer_id: int, producer_epoch: int) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"producer {producer_id} has a transaction open in epoch {producer_epoch}: end it, or begin in a newer epoch"
    )


def validate_producer(
    producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None
) -> None:
    """Whether the producer may write to its transaction, or end it.

    Raises InvalidProducerEpoch, or InvalidTxnState where it has none open.
    """
    _validate_epoch(producer_id, producer_epoch, producer, begun)
    begun_here = begun is not None and begun.producer_epoch == producer_epoch
    if not begun_here and not (producer.open_since_ms and producer.epoch == producer_epoch):
        raise InvalidTxnState(f"producer {producer_id} has no open transaction in epoch {producer_epoch}: begin one")


def _validate_epoch(producer_id: int, producer_epoch: int, producer: Producer, begun: BegunTransaction | None) -> None:
    newest = max(producer.epoch, -1 if begun is None else begun.producer_epoch)
    if producer_epoch < newest:
        raise InvalidProducerEpoch(
            f"producer {producer_id} is in epoch {newest}: a newer one replaced {producer_epoch}"
        )


def end_transaction(producer_id: int, producer_epoch: int, producer: Producer, control_type: str) -> Outcome[None]:
    """Markers in the log partitions where the transaction has records; none if it has none at all."""
    return Outcome(
        [marker(partition, producer_id, producer_epoch, control_type) for partition in sorted(producer.open_since_ms)],
        None,
    )


def abort_overdue(
    producer_id: int, producer: Producer, begun: BegunTransaction | None, offsets_partitions: int
) -> Outcome[None]:
    """Markers that abort what takes too long, in an epoch more than the producer's: what it still sends is refused."""
    epoch = min(max(producer.epoch, -1 if begun is None else begun.producer_epoch) + 1, MAX_EPOCH)
    told: Iterable[int] = producer.open_since_ms or [producer_id % offsets_partitions]
    return Outcome([marker(partition, producer_id, epoch, ABORT) for partition in sorted(told)], None)
