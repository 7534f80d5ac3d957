"""Settling: putting what folds appended on top of a state table into its settled layer.

It rewrites the table, so it is done when enough lies on top: then a row is written a bounded number of times on
average, and whoever reads looks at a bounded number of rows and files more.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from offsets_pipeline.delta.reader import UNREADABLE, answer, newest_table, stored_files, table_as_of
from offsets_pipeline.delta.schemas import LOG_EPOCH
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.fold.state_files import layer_files, layer_schema
from offsets_pipeline.guarded import rearrange
from offsets_pipeline.layers import LAYERED, LayeredTable
from offsets_pipeline.log.epochs import folded_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.store import Store

_LOOK_EVERY = 10  # folds
_ON_TOP = "false"  # of the partition column `settled`
_HERE_BYTES = 256 * 1024 * 1024
_ROWS_AT_ONCE = 1_000_000
_REST_SECONDS = 30.0  # from another epoch's taking over until the rows of the older one go: some began to read these


class Settler:
    """Settles the tables of a store whenever that is due, beside the folds of a stream.

    It is told of each fold how many records that folded, and told when there are no more.
    """

    def __init__(self, store: Store, settings: FoldSettings) -> None:
        self._store = store
        self._settings = settings
        self._folds = self._records = 0
        self._epoch = LOG_EPOCH  # whose rows alone the tables hold, as far as this knows
        self._newer_since: float | None = None  # since when another one is seen to have taken over
        self._thread = ThreadPoolExecutor(1)
        self._looking: Future[list[str]] | None = None

    def after_fold(self, records: int) -> None:
        """Look whether anything is due, if enough was folded and the last look is over. Raises what that one raised."""
        self._folds += records > 0
        self._records += records
        is_new_epoch = folded_epoch(self._store) != self._epoch
        if is_new_epoch and not self._has_rested():
            return
        if self._folds < _LOOK_EVERY and self._records < self._settings.settle_rows and not is_new_epoch:
            return
        if self._looking is not None:
            if not self._looking.done():
                return
            self._looking.result()
        self._folds = self._records = 0
        self._looking = self._thread.submit(self.settle_what_is_due)

    def settle_what_is_due(self) -> list[str]:
        """Settle what is due; returns the names of the tables that were settled.

        All are once another epoch of the log counts: then the rows of the one before go.
        """
        epoch = folded_epoch(self._store)
        due = [each for each in LAYERED if epoch != self._epoch or self._is_due(each)]
        settled = [each.table.name for each in due if settle(self._store, each)]
        if len(settled) == len(due):
            self._epoch, self._newer_since = epoch, None
        return settled

    def _has_rested(self) -> bool:
        if self._newer_since is None:
            self._newer_since = time.monotonic()
        return time.monotonic() - self._newer_since >= _REST_SECONDS

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
    try:
        files = stored_files(newest_table(store.arrow_folder(layered.table.name)))
    except UNREADABLE:
        return _layers_by_spark(store, layered)
    on_top = [file.rows for file in files if file.partition["settled"] == _ON_TOP]
    return Layers(sum(file.rows for file in files) - sum(on_top), sum(on_top), len(on_top))


def _layers_by_spark(store: Store, layered: LayeredTable) -> Layers:
    on_top = F.col("settled") == _ON_TOP
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
    found = (
        store.files(layered.table.name)
        .agg(F.sum(F.when(~on_top, rows)), F.sum(F.when(on_top, rows)), F.count(F.when(on_top, 1)))
        .first()
    )
    assert found is not None  # noqa: S101 - an aggregate has a row
    return Layers(*(each or 0 for each in found))


def settle(store: Store, layered: LayeredTable, here_bytes: int = _HERE_BYTES) -> bool:
    """Put the newest row of each key into the settled layer; False where somebody replaced what it was made from.

    Then nothing was changed, and the next time will do. What folds append meanwhile stays on top. A table with no more
    than ``here_bytes`` of files is settled in the driver: Spark's tasks take five times as long, and the folds that go
    on meanwhile wait for a free one.
    """
    try:
        if not _settle_here(store, layered, here_bytes):
            rows = store.latest(layered, _counts(store)).withColumn("settled", F.lit(True))
            rearrange(store, layered.table, rows.select(layered.table.names()))
    except WriteConflict:
        return False
    return True


def _settle_here(store: Store, layered: LayeredTable, here_bytes: int) -> bool:
    """Settle a table in the driver; False where it is too large for that, or out of reach."""
    commit = FileCommit.begin(store, layered.table, guarded=False)
    if commit is None:
        return False
    try:
        table = table_as_of(commit.folder, commit.version)
        there = stored_files(table)
        if sum(file.size for file in there) > here_bytes:
            return False
        files = [
            file
            for rows in _newest_rows(layered, table, _counts(store))
            for file in layer_files(layered, rows, commit.folder, settled=True)
        ]
    except UNREADABLE:
        return False
    commit.rearrange(files, there)
    return True


def _counts(store: Store) -> str:
    """SQL: whether a row is of the epoch that the state answers from, or of one that is about to take its place."""
    return f"log_epoch >= {folded_epoch(store)}"


def _newest_rows(layered: LayeredTable, table: DeltaTable, counts: str) -> Iterator[pa.Table]:
    """The newest row of each key, in order, log partitions of up to a million rows at a time."""
    name = layered.table.name
    query = f"SELECT log_partition, count(*) AS held FROM {name} GROUP BY log_partition ORDER BY log_partition"
    some: list[int] = []
    held = 0
    for row in answer(query, **{name: table}).read_all().to_pylist():
        if some and held + row["held"] > _ROWS_AT_ONCE:
            yield _newest_of(layered, table, some, counts)
            some, held = [], 0
        some.append(row["log_partition"])
        held += row["held"]
    if some:
        yield _newest_of(layered, table, some, counts)


def _newest_of(layered: LayeredTable, table: DeltaTable, log_partitions: list[int], counts: str) -> pa.Table:
    name = layered.table.name
    latest = layered.latest(name, f"{counts} AND log_partition IN ({', '.join(map(str, log_partitions))})")
    schema = layer_schema(layered)
    # DataFusion makes strings of its views in many threads; Arrow's `cast` takes as long as all the rest
    columns = ", ".join(
        f"arrow_cast({each.name}, 'Utf8') AS {each.name}" if pa.types.is_string(each.type) else each.name
        for each in schema
    )
    query = f"SELECT {columns} FROM ({latest}) AS newest ORDER BY {', '.join(layered.key)}"
    return answer(query, **{name: table}).read_all().cast(schema)
