"""Compaction of the state tables: the rows that count go into base files, each key once.

It rewrites a table, so it waits until enough delta rows are there: then each row is written a bounded number of times
on average, and a reader merges a bounded number of rows and files. It also drops state incarnations that
`fold_progress` no longer names.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.foreign_errors import in_one_line, may_pass
from offsets_pipeline.state.changes import write_files
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import StateTable, by_incarnation, named_rows, state_tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from offsets_pipeline.config.sections import FoldSettings
    from offsets_pipeline.delta.data_file import AddFile
    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.store import Store

_LOOK_EVERY = 10  # folds
_DRIVER_BYTES = 256 * 1024 * 1024
_ROWS_AT_ONCE = 1_000_000
_REST_SECONDS = 30.0  # for queries that began to read an incarnation before another one took over


class Compactor:
    """Compacts the tables of a store if that is due, in a thread beside the folds of a stream.

    Call `after_fold` after each fold, and `close` at the end. Calls ``warn`` with one line for a failure that may pass.
    """

    def __init__(self, store: Store, settings: FoldSettings, warn: Callable[[str], object]) -> None:
        self._store = store
        self._settings = settings
        self._warn = warn
        self._folds = self._records = 0
        self._incarnations: dict[int, int] | None = None  # that the tables hold, as far as this knows
        self._replaced_at: float | None = None  # when another one was first seen
        self._thread = ThreadPoolExecutor(1)
        self._looking: Future[list[str]] | None = None

    def after_fold(self, records: int) -> None:
        """Look in the thread if a table is due, once enough was folded.

        Raises the error of the last look, unless a later look may succeed.
        """
        self._folds += records > 0
        self._records += records
        if self._looking is not None:
            if not self._looking.done():
                return
            self._check(self._looking)
        few = self._folds < _LOOK_EVERY and self._records < self._settings.compact_rows
        if few and not self._has_rested(_progress(self._store)):
            return
        self._folds = self._records = 0
        self._looking = self._thread.submit(self.compact_if_due)

    def _check(self, look: Future[list[str]]) -> None:
        self._looking = None
        try:
            look.result()
        except Exception as error:
            if not may_pass(error):
                raise
            self._warn(
                f"cannot compact the state tables of {self._store.location}: {in_one_line(error)}; the next look tries "
                "again"
            )

    def compact_if_due(self) -> list[str]:
        """Compact the tables if one is due; returns the names of those that were compacted."""
        progress = _progress(self._store)
        rested = self._has_rested(progress)
        tables = state_tables_of(self._store.properties.topic_kind)
        due = [each for each in tables if rested or self._is_due(each, progress)]
        compacted = [each.name for each in due if compact(self._store, each, drop=rested)]
        if rested and len(compacted) == len(due):
            self._incarnations, self._replaced_at = progress.incarnations, None
        return compacted

    def close(self) -> None:
        """Wait for a compaction that is running."""
        self._thread.shutdown()

    def _has_rested(self, progress: FoldProgress) -> bool:
        """Whether another incarnation took over long enough ago."""
        if self._incarnations is None:
            self._incarnations = progress.incarnations
        if progress.incarnations == self._incarnations:
            return False
        if self._replaced_at is None:
            self._replaced_at = time.monotonic()
        return time.monotonic() - self._replaced_at >= _REST_SECONDS

    def _is_due(self, table: StateTable, progress: FoldProgress) -> bool:
        sizes = sizes_of(self._store, table, progress)
        share = sizes.base_rows * self._settings.compact_percent // 100
        return (
            sizes.delta_rows >= max(self._settings.compact_rows, share)
            or sizes.delta_files >= self._settings.compact_files
        )


class Sizes(NamedTuple):
    """Rows of base and delta of a table, and the number of its delta files."""

    base_rows: int
    delta_rows: int
    delta_files: int
    dropped_files: int


def sizes_of(store: Store, table: StateTable, progress: FoldProgress | None = None) -> Sizes:
    """The sizes of base and delta, and the number of files of state incarnations that are no longer named.

    ``progress`` names the incarnations; None: reads it.
    """
    live, dead = _divided(store.table(table.name).snapshot().files(), progress or _progress(store))
    delta = [file.rows for file in live if not _is_base(file)]
    return Sizes(sum(file.rows for file in live) - sum(delta), sum(delta), len(delta), len(dead))


def compact(store: Store, table: StateTable, *, drop: bool = True, driver_bytes: int = _DRIVER_BYTES) -> bool:
    """Put the rows that count into base files; returns False if other writers were in the way.

    Then no row was changed. Rows that folds append meanwhile stay delta rows. A table with files of no more than
    ``driver_bytes`` is compacted in the driver, a larger one in Spark tasks. ``drop``: drop what
    `fold_progress` does not name as well.
    """
    progress = _progress(store)  # before the table: the files of what it names are there
    folder = store.table(table.name)
    snapshot = folder.snapshot()
    live, dead = _divided(snapshot.files(), progress)
    removed = [*live, *(dead if drop else ())]
    sizes = _partition_sizes(snapshot, table, progress) if live else []
    shares = _shares(sizes)
    run = partial(_compacted, folder, snapshot.version, table, dict(progress.incarnations))
    if sum(file.size for file in live) <= driver_bytes or len(shares) < 2:
        files = [file for share in shares for file in run(share)]
    else:
        context = store.spark.sparkContext
        files = context.parallelize(shares, len(shares)).flatMap(run).collect()
    try:
        progress.compact_to(table.name, {each.log_partition: each.end for each in sizes})
        folder.commit(add=files, remove=removed, seen=snapshot, is_change=False)
    except WriteConflict:
        return False
    return True


def _progress(store: Store) -> FoldProgress:
    return FoldProgress.read(store.table(FOLD_PROGRESS.name))


def _is_base(file: StoredFile) -> bool:
    return file.partition["base"] == "true"


def _divided(files: Sequence[StoredFile], progress: FoldProgress) -> tuple[list[StoredFile], list[StoredFile]]:
    """Files of named state incarnations, and of older ones. Leaves out newer ones, which will be named."""
    named = set(progress.incarnations.values())
    of = [(file, int(file.partition["incarnation"])) for file in files]
    return (
        [file for file, incarnation in of if incarnation in named],
        [file for file, incarnation in of if incarnation not in named and incarnation < progress.incarnation],
    )


class _PartitionSize(NamedTuple):
    """Rows of a log partition in a state table; ``end`` is behind the record offsets of all of them."""

    log_partition: int
    rows: int
    end: int


def _partition_sizes(snapshot: Snapshot, table: StateTable, progress: FoldProgress) -> list[_PartitionSize]:
    """The rows that `fold_progress` names, by log partition in order."""
    found = snapshot.query(
        f"SELECT log_partition, count(*) AS held, max({table.version}) + 1 AS end FROM {table.name} "
        f"WHERE {named_rows(progress.incarnations)} GROUP BY log_partition"
    )
    return sorted(_PartitionSize(row["log_partition"], row["held"], row["end"]) for row in found.read_all().to_pylist())


def _shares(sizes: Iterable[_PartitionSize]) -> list[list[int]]:
    """The log partitions in shares of about a million rows."""
    shares: list[list[int]] = []
    rows = _ROWS_AT_ONCE
    for each in sizes:
        if rows + each.rows > _ROWS_AT_ONCE:
            shares.append([])
            rows = 0
        shares[-1].append(each.log_partition)
        rows += each.rows
    return shares


def _compacted(
    folder: TableFolder, version: int, table: StateTable, incarnations: dict[int, int], share: Collection[int]
) -> Iterator[AddFile]:
    """Write the base files of some log partitions."""
    snapshot = folder.snapshot(version)
    for incarnation, partitions in by_incarnation({at: incarnations[at] for at in share}).items():
        named = f"incarnation = {incarnation} AND log_partition IN ({', '.join(map(str, partitions))})"
        schema = table.file_schema()
        # DataFusion casts its string views in many threads; Arrow's `cast` takes as long as all the rest
        columns = ", ".join(
            f"arrow_cast({each.name}, 'Utf8') AS {each.name}" if pa.types.is_string(each.type) else each.name
            for each in schema
        )
        newest = table.newest(table.name, named)
        query = f"SELECT {columns} FROM ({newest}) AS newest ORDER BY {', '.join(table.key)}"
        rows = snapshot.query(query).read_all().cast(schema)
        yield from write_files(folder, table, rows, is_base=True, incarnation=incarnation)
