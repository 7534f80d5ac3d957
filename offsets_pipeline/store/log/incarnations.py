"""The incarnations of the log of a store to which this process writes, as of now (see `LogIncarnation`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.store_snapshot import LogIncarnation, log_incarnations

if TYPE_CHECKING:
    from offsets_pipeline.store.store import Store


def current_log(store: Store) -> LogIncarnation:
    """The newest complete incarnation of the log."""
    return _incarnations(store)[-1]


def log_incarnation(store: Store, number: int) -> LogIncarnation:
    """An incarnation of the log. Without rows in `log_partitions` it has the store's number of log partitions."""
    found = (each for each in _incarnations(store) if each.number == number)
    return next(found, LogIncarnation(number, store.properties.offsets_partitions))


def _incarnations(store: Store) -> list[LogIncarnation]:
    return log_incarnations(store.table(LOG_PARTITIONS.name).snapshot().rows(), store.properties)
