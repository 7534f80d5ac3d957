"""Settling: putting the facts that folds appended into the settled layer of `committed_offsets`.

It rewrites the table, so it is done when enough lies on top: then a commit is written a bounded number of times on
average, and whoever reads looks at a bounded number of rows more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.latest import latest_offsets
from offsets_pipeline.tables import COMMITTED_OFFSETS

if TYPE_CHECKING:
    from pyspark.sql import Row

    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.store import Store


class Settler:
    """Settles a store's offsets whenever that is due; told of each fold how much it brought."""

    def __init__(self, settings: FoldSettings) -> None:
        self._settings = settings
        self._on_top: int | None = None  # no more than so many rows; None: not counted yet

    def after_fold(self, store: Store, records: int) -> bool:
        """Settle if what lies on top now is due; returns whether it did."""
        if self._on_top is not None:
            self._on_top += records
            if self._on_top < self._settings.settle_rows:
                return False
        rows = {row["settled"]: row["count"] for row in _layers(store)}
        self._on_top = rows.get(False, 0)
        if self._on_top < max(self._settings.settle_rows, rows.get(True, 0) * self._settings.settle_percent // 100):
            return False
        settled = settle(store)
        self._on_top = 0 if settled else None
        return settled


def settle(store: Store) -> bool:
    """Put the latest row of each identity into the settled layer; False where somebody wrote meanwhile.

    Then nothing was changed, and the next time will do.
    """
    table = GuardedWriter(store, COMMITTED_OFFSETS.name)
    rows = store.spark.sql(latest_offsets(store.table_name(COMMITTED_OFFSETS.name)))
    try:
        table.overwrite(rows.withColumn("settled", F.lit(True)).select(COMMITTED_OFFSETS.names()))
    except WriteConflict:
        return False
    return True


def _layers(store: Store) -> list[Row]:
    return store.read(COMMITTED_OFFSETS.name).groupBy("settled").count().collect()
