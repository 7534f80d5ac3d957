"""Epochs of a mirrored log, and which of them counts.

`follow` reads a topic again from its start, as a new epoch of the log, if the topic was recreated or was not read for
too long. The table `log` then holds rows of both epochs. The old epoch counts until the new one is complete. Then one
commit writes rows of the new epoch to `log_partitions`, and the new epoch counts (docs/adr/0014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG_EPOCH, LOG_PARTITIONS

if TYPE_CHECKING:
    from offsets_pipeline.store import Store


def counting_epoch(store: Store) -> int:
    """The newest complete epoch of the log."""
    return _newest(store, LOG_PARTITIONS.name)


def folded_epoch(store: Store) -> int:
    """The epoch that the state tables were folded from."""
    return _newest(store, FOLD_PROGRESS.name)


def _newest(store: Store, name: str) -> int:
    """The highest epoch in a small table of the store; the first epoch if the table is empty."""
    return _one_of(store, name, "max", LOG_EPOCH)


def _one_of(store: Store, name: str, which: str, otherwise: int) -> int:
    """The highest or lowest epoch in a table of the store; ``otherwise`` if the table is empty."""
    query = f"SELECT {which}(log_epoch) AS epoch FROM {name}"
    found = store.table(name).snapshot().query(query).read_all()["epoch"][0].as_py()
    return otherwise if found is None else int(found)
