"""Epochs of a mirrored log: which of them counts.

A topic that was recreated, or that was not read for too long, is read again from its start, as a new epoch of the log.
Rows of it lie in the table `log` beside those of the epoch before, which counts until all of the new one has come in.
Then, in one commit, the new one gets its rows in `log_partitions`: from there on it counts (docs/adr/0014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.delta_reader import UNREADABLE, answer, newest_table
from offsets_pipeline.tables import FOLD_PROGRESS, LOG_EPOCH, LOG_PARTITIONS

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
    try:
        query = f"SELECT max(log_epoch) AS newest FROM {name}"  # noqa: S608 - a table of the program's own
        table = newest_table(store.arrow_folder(name))
        found = answer(query, **{name: table}).read_all().to_pylist()[0]["newest"]
    except UNREADABLE:
        row = store.read(name).agg(F.max("log_epoch")).first()
        found = None if row is None else row[0]
    return LOG_EPOCH if found is None else int(found)
