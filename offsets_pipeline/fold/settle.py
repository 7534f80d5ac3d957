"""Settling: putting what folds appended on top of a state table into its settled layer.

It rewrites the table, so it is done when enough lies on top: then a row is written a bounded number of times on
average, and whoever reads looks at a bounded number of rows and files more.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.guarded import rearrange
from offsets_pipeline.layers import LAYERED, LayeredTable

if TYPE_CHECKING:
    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.store import Store

_LOOK_EVERY = 10  # folds


class Settler:
    """Settles the tables of a store whenever that is due, beside the folds of a stream.

    It is told of each fold how many records that folded, and told when there are no more.
    """

    def __init__(self, store: Store, settings: FoldSettings) -> None:
        self._store = store
        self._settings = settings
        self._folds = self._records = 0
        self._thread = ThreadPoolExecutor(1)
        self._looking: Future[list[str]] | None = None

    def after_fold(self, records: int) -> None:
        """Look whether anything is due, if enough was folded and the last look is over. Raises what that one raised."""
        self._folds += records > 0
        self._records += records
        if self._folds < _LOOK_EVERY and self._records < self._settings.settle_rows:
            return
        if self._looking is not None:
            if not self._looking.done():
                return
            self._looking.result()
        self._folds = self._records = 0
        self._looking = self._thread.submit(self.settle_what_is_due)

    def settle_what_is_due(self) -> list[str]:
        """Settle what is due; returns the names of the tables that were settled."""
        return [each.table.name for each in LAYERED if self._is_due(each) and settle(self._store, each)]

    def close(self) -> None:
        """Wait for what goes on."""
        self._thread.shutdown()

    def _is_due(self, layered: LayeredTable) -> bool:
        layers = layers_of(self._store, layered)
        share = layers.settled_rows * self._settings.settle_percent // 100
        return (
            layers.rows_on_top >= max(self._settings.settle_rows, share)
            or layers.files_on_top >= self._settings.settle_files
        )


class Layers(NamedTuple):
    """How much of a table lies where."""

    settled_rows: int
    rows_on_top: int
    files_on_top: int


def layers_of(store: Store, layered: LayeredTable) -> Layers:
    """How much of the table lies where, by what the table's own log says of its files."""
    on_top = F.col("settled") == "false"
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
    found = (
        store.files(layered.table.name)
        .agg(F.sum(F.when(~on_top, rows)), F.sum(F.when(on_top, rows)), F.count(F.when(on_top, 1)))
        .first()
    )
    assert found is not None  # noqa: S101 - an aggregate has a row
    return Layers(*(each or 0 for each in found))


def settle(store: Store, layered: LayeredTable) -> bool:
    """Put the newest row of each key into the settled layer; False where somebody replaced what it was made from.

    Then nothing was changed, and the next time will do. What folds append meanwhile stays on top.
    """
    rows = store.latest(layered).withColumn("settled", F.lit(True))
    try:
        rearrange(store, layered.table, rows.select(layered.table.names()))
    except WriteConflict:
        return False
    return True
