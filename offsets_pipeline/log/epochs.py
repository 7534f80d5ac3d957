"""Epochs of a mirrored log: which of them counts.

A topic that was recreated, or that was not read for too long, is read again from its start, as a new epoch of the log.
Rows of it lie in the table `log` beside those of the epoch before, which counts until all of the new one has come in.
Then, in one commit, the new one gets its rows in `log_partitions`: from there on it counts (docs/adr/0014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG_EPOCH, LOG_PARTITIONS

if TYPE_CHECKING:
    from offsets_pipeline.store import Store


def counting_epoch(store: Store) -> int:
    """The newest epoch of the log that is whole."""
    return _newest(store, LOG_PARTITIONS.name)


def folded_epoch(store: Store) -> int:
    """The epoch that the state tables answer from."""
    return _newest(store, FOLD_PROGRESS.name)


def _newest(store: Store, name: str) -> int:
    """The highest epoch in a small table of the store; the first one where it holds no row."""
    return _one_of(store, name, "max", LOG_EPOCH)


def _one_of(store: Store, name: str, which: str, otherwise: int) -> int:
    """The highest or lowest epoch in a table of the store."""
    query = f"SELECT {which}(log_epoch) AS epoch FROM {name}"
    found = store.table(name).snapshot().query(query).read_all()["epoch"][0].as_py()
    return otherwise if found is None else int(found)
