"""Cleans the table `log` (R23): rewrites its old part with only the records that a replay needs.

1. Each task reads some files, and shuffles the records that may stay: their positions, and the columns that decide.
2. Each task gets all records of some log partitions. It chooses the records that stay (semantics/survivors.py).
3. Each task writes these records to new files; it skips a file that loses no record.
4. A commit to `log_partitions` records before which offset history is incomplete now.
5. One commit to `log` replaces the old files with the new ones.

A crash before step 5 leaves every record of the log in place. Other writers may append during a cleaning
(docs/adr/0010).

The number of a file and a position in it identify a row. Tasks exchange only the positions of the candidates that stay,
and nothing about the millions of rows that go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.errors import CannotClean, UnsupportedTable
from offsets_pipeline.semantics import survivors
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, compact_early, gathered
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import in_log_order, place_of
from offsets_pipeline.semantics.survivors import topic_survivors
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.data_file import CLEANED, COMPRESSION, LATE, DataFile
from offsets_pipeline.store.delta.protocol import UNDO
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, LOG_INCARNATION
from offsets_pipeline.store.log.file_writer import SCHEMA, LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.log_reader import shared_out
from offsets_pipeline.store.log.log_scan import KEY, PLACE, POSITION, TIMES, LogRange, LogScan, written_us
from offsets_pipeline.store.log.metadata import LogMetadata
from offsets_pipeline.store.log.task_results import parallelism, repartitioned, results_in_tasks, task_results

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.kafka.record.records import Bools
    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store

_TASKS_PER_CORE = 2
_END_OF_TIME_US = 2**63 - 1
#: A record that a cleaning may remove, its file and its position there.
CANDIDATES = pa.schema(
    [
        pa.field("log_partition", pa.int32(), nullable=False),
        *survivors.SCHEMA,
        pa.field("file", pa.int32(), nullable=False),
        POSITION,
    ]
)
#: Positions in a file of one log partition's records that stay: int32, little-endian, ascending.
KEPT = pa.schema([pa.field("file", pa.int32(), nullable=False), pa.field("positions", pa.binary(), nullable=False)])

_PLACE = pa.schema([SCHEMA.field(name) for name in PLACE])
_PLACE_AND_TIME = pa.schema([SCHEMA.field(name) for name in (*PLACE, *TIMES)])
_READ = pa.schema([*(each for each in SCHEMA if each.name in {*TIMES, *CANDIDATES.names} - {"key"}), KEY, POSITION])


@dataclass(frozen=True)
class Cleaned:
    """Files, bytes and records of the log before and after a cleaning.

    ``files`` and ``bytes`` are None after a dry run that found records to remove.
    """

    files_before: int
    bytes_before: int
    records_before: int
    files: int | None
    bytes: int | None
    records: int

    @property
    def removed(self) -> int:
        """Number of removed records."""
        return self.records_before - self.records


def clean_log(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    older_than_ms: int = 0,
    dry_run: bool = False,
) -> Cleaned:
    """Remove records that no replay needs, if they are folded and old enough.

    No replay needs a superseded incarnation of the log, so a cleaning removes its records, too. With ``dry_run`` it
    only counts.

    Args:
        store: the store.
        settings: its `log` section has `min_compaction_lag_ms` and `delete_retention_ms`.
        clock: the present time.
        older_than_ms: minimum age of removed records, if that is more than `min_compaction_lag_ms`.
        dry_run: write nothing.

    Raises:
        CannotClean: tasks cannot write the table's files.
        WriteConflict: other writers that rewrite the log or append late records committed first too often.
    """
    lag_ms = max(older_than_ms, settings.log.min_compaction_lag_ms)
    return with_retries(
        lambda: _Cleaning(store, settings, clock, lag_ms).clean(dry_run=dry_run), "a cleaning of the log"
    )


class _Cleaning:
    def __init__(self, store: Store, settings: Settings, clock: Clock, lag_ms: int) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        # Read the progress before the log's snapshot: the snapshot then holds all folded records.
        progress = store.table(FOLD_PROGRESS.name).snapshot().rows().to_pylist()
        folded_to = {row["log_partition"]: row["folded_to"] for row in progress}
        log_incarnation = max((row["log_incarnation"] for row in progress), default=LOG_INCARNATION)
        now_ms = clock.now_ms()
        before_ms = now_ms - lag_ms if lag_ms else None
        self._table = store.table(LOG.name)
        self._seen = self._table.snapshot()
        self._files = self._files_to_clean()
        self._tasks = _TASKS_PER_CORE * parallelism(store.spark)
        self._limits = CleaningLimits(
            self._range(folded_to, before_ms, log_incarnation),
            (now_ms - settings.log.delete_retention_ms) * 1000,
            _END_OF_TIME_US if before_ms is None else before_ms * 1000,
            next((CoordinatorSemantics(row["coordinator_semantics"]) for row in progress), MODERN),
            store.properties.topic_kind,
        )

    def clean(self, *, dry_run: bool) -> Cleaned:
        shares = shared_out(filter(self._may_lose, self._files), self._tasks)
        chosen = [file for share in shares for file in share]
        results = self._rewrite(shares, chosen, dry_run=dry_run) if chosen else []
        names = {file.name for file in chosen}
        others = [file for file in self._files if file.name not in names]
        looked_at = [each for rewritten, _ in results for each in rewritten]
        written = [file for _, files in results for file in files]
        changed = [chosen[each.file] for each in looked_at if each.dropped or each.superseded]
        before = sum(file.rows for file in others)
        before += sum(each.records for each in looked_at)
        removed = sum(sum(each.dropped.values()) + each.superseded for each in looked_at)
        if changed and not dry_run:
            cleaned = {partition for each in looked_at for partition in each.dropped}
            notes = LogMetadata(self._store, self._clock, self._limits.range.log_incarnation)
            # before the commit to `log`: an ingest that misses records must know that a cleaning removed them
            notes.cleaned({partition: self._limits.range.ends[partition] for partition in sorted(cleaned)})
            self._table.commit(
                written,
                changed,
                seen=self._seen,
                advance={CLEANED: self._seen.transaction(CLEANED) + 1},
                unless_advanced=[LATE],
                is_change=False,
            )
        is_known = not dry_run or not changed
        size = sum(file.size for file in self._files)
        left = size - sum(file.size for file in changed) + sum(file.size for file in written)
        return Cleaned(
            files_before=len(self._files),
            bytes_before=size,
            records_before=before,
            files=len(self._files) - len(changed) + len(written) if is_known else None,
            bytes=left if is_known else None,
            records=before - removed,
        )

    def _files_to_clean(self) -> list[DataFile]:
        name = self._store.table_name(LOG.name)
        if self._seen.unmet is not None:
            raise CannotClean(
                f"cannot clean {name}: its table requires {self._seen.unmet}, which this program does not support; "
                f"nothing was done; {UNDO}"
            )
        try:
            files = self._seen.files()
        except UnsupportedTable as error:
            raise CannotClean(f"cannot clean {name}: {error}; nothing was done") from error
        for file in files:
            if file.name.startswith("/") or "://" in file.name:
                raise CannotClean(
                    f"cannot clean {name}: its file {file.name} is outside of the table's folder (a shallow clone); "
                    "nothing was done; copy the table"
                )
        return files

    def _range(self, folded_to: Mapping[int, int], before_ms: int | None, log_incarnation: int) -> LogRange:
        """The records that the cleaning may remove; omits log partitions that keep all records."""
        # The last folded record always stays: a replay then ends at the same record offset as the fold.
        folded = _up_to({partition: end - 1 for partition, end in folded_to.items()}, log_incarnation)
        if before_ms is None:
            return folded
        # R23: the head younger than `min.compaction.lag.ms`
        log, young_from_us = self._table, before_ms * 1000
        files = [file for file in self._files if folded.may_hold(file)]
        shares = shared_out(files, self._tasks)
        ends = dict(folded.ends)
        for found in results_in_tasks(
            self._store.spark, shares, lambda share: heads(log, folded, share, young_from_us)
        ):
            ends |= {partition: min(head, ends[partition]) for partition, head in found.items()}
        return _up_to(ends, log_incarnation)

    def _may_lose(self, file: DataFile) -> bool:
        """Whether the cleaning must read a file: by its statistics, or because it has none."""
        return not file.rows or self._limits.may_have_superseded(file) or self._limits.range.may_hold(file)

    def _rewrite(
        self, shares: list[list[DataFile]], chosen: list[DataFile], *, dry_run: bool
    ) -> list[tuple[list[Rewritten], list[DataFile]]]:
        """Run the tasks that choose and write, each its share of the chosen files; returns results and new files."""
        limits, count = self._limits, self._tasks
        compression = self._settings.log.codec(COMPRESSION)
        place = None if dry_run else LogFilePlace(self._table.folder, self._clock.now_ms(), compression=compression)
        files = CleanedFiles(self._table, chosen, limits, place)
        of_task = (task for task, share in enumerate(shares) for _ in share)
        tasks_of_files = [(task, number) for number, task in enumerate(of_task)]
        rows = self._store.spark.createDataFrame(tasks_of_files, "task int, file int")
        numbers = repartitioned(rows, len(shares), F.col("task"))  # of files, each in the partition of its task

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from files.candidates(file for batch in batches for file in batch["file"].to_pylist())

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[Rewritten], list[DataFile]]]:
            rows = ((row["file"], row["positions"]) for batch in batches for row in batch.to_pylist())
            by_file = groupby(rows, key=itemgetter(0))
            yield files.rewrite((file, b"".join(each for _, each in of_file)) for file, of_file in by_file)

        chosen_rows = numbers.select("file").mapInArrow(read, from_arrow_schema(CANDIDATES))
        of_partitions = repartitioned(chosen_rows, count, F.col("log_partition") % count)
        keep = partial(kept, semantics=limits.semantics, topic_kind=limits.topic_kind)
        stay = of_partitions.mapInArrow(keep, from_arrow_schema(KEPT))
        # an empty row for each file: a file that keeps no candidate must reach the writing task, too
        stay = stay.unionByName(numbers.select("file", F.lit(b"").alias("positions")))
        shared = repartitioned(stay.join(F.broadcast(numbers), "file"), len(shares), F.col("task"))
        return task_results(shared.sortWithinPartitions("file").select("file", "positions"), write)


def _up_to(ends: Mapping[int, int], log_incarnation: int) -> LogRange:
    """The records before these ends, by log partition."""
    wanted = {partition: end for partition, end in ends.items() if end > 0}
    return LogRange(dict.fromkeys(wanted, 0), wanted, log_incarnation)


# --- in tasks


@dataclass(frozen=True)
class CleaningLimits:
    """Limits of a cleaning of one incarnation of the log.

    ``range``: the records that it may remove; each log partition has an end. ``aged_before_us``: tombstones from before
    this time, in microseconds, may go. ``superseded_before_us``: all records of older log incarnations from before this
    time go, as no replay needs them (docs/adr/0014). ``semantics``: those of the replays to come. ``topic_kind``: the
    kind of the log's topic.
    """

    range: LogRange
    aged_before_us: int
    superseded_before_us: int
    semantics: CoordinatorSemantics
    topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS

    def may_have_superseded(self, file: DataFile) -> bool:
        """Whether a file may hold records of older log incarnations, by its statistics."""
        return bool(file.lowest.get("log_incarnation", LOG_INCARNATION) < self.range.log_incarnation)

    def superseded(self, rows: pa.Table) -> Bools:
        """A mask of the records of older log incarnations that go."""
        older: Bools = rows["log_incarnation"].to_numpy() < self.range.log_incarnation
        older &= written_us(rows).to_numpy() < self.superseded_before_us
        return older


@dataclass(frozen=True)
class Rewritten:
    """Result of the rewrite of a file, as numbers of records.

    ``records``: before the rewrite. ``dropped``: removed, by log partition. ``superseded``: removed from older
    incarnations of the log.
    """

    file: int
    records: int
    dropped: Mapping[int, int]
    superseded: int


def heads(log: TableFolder, log_range: LogRange, files: Iterable[DataFile], young_from_us: int) -> dict[int, int]:
    """By log partition, the lowest record offset of a range with a timestamp at or after a time in microseconds."""
    found: dict[int, int] = {}
    for rows in LogScan(log, _PLACE_AND_TIME, log_range).rows(files):
        young = rows.filter(pc.greater_equal(written_us(rows), young_from_us))
        lowest = young.group_by("log_partition", use_threads=False).aggregate([("record_offset", "min")])
        for row in lowest.to_pylist():
            at, offset = row["log_partition"], row["record_offset_min"]
            found[at] = min(offset, found.get(at, offset))
    return found


def kept(
    batches: Iterable[pa.RecordBatch], semantics: CoordinatorSemantics, topic_kind: TopicKind
) -> Iterator[pa.RecordBatch]:
    """Decide which candidates the cleaning keeps; yield their positions by file (schema KEPT).

    A candidate is a record that the cleaning may remove. ``batches`` (schema CANDIDATES) have all candidates of some
    log partitions, in any order.
    """
    rows = in_log_order(pa.Table.from_batches(batches, schema=CANDIDATES))
    for of_partition in log_partitions_of(rows.combine_chunks()):
        table = pa.Table.from_batches([of_partition])
        with working_on(partial(place_of, table)):
            if topic_kind.has_groups:
                stay = survivors.survivors(table, semantics)
            else:
                stay = topic_survivors(table, topic_kind)
            stays = table.select(["file", "position"]).filter(pa.array(stay))
        file, position = stays["file"].to_numpy(), stays["position"].to_numpy()
        numbers = np.unique(file)
        positions = [np.sort(position[file == number]).astype("<i4").tobytes() for number in numbers]
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), pa.array(positions, pa.binary())], schema=KEPT)


@dataclass(frozen=True)
class CleanedFiles:
    """The files that a cleaning reads, and where it writes the new ones; picklable. Numbers are indices of ``files``.

    Only counts if ``place`` is None.
    """

    log: TableFolder
    files: Sequence[DataFile]
    limits: CleaningLimits
    place: LogFilePlace | None

    def candidates(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the CANDIDATES of these files; of a log of groups after an early compaction of offset commits."""
        parts = (rows for number in numbers for rows in self._candidates_of(number))
        if not self.limits.topic_kind.has_groups:  # few records: each task of `kept` can take them all
            for rows in parts:
                yield from rows.select(CANDIDATES.names).cast(CANDIDATES).to_batches()
            return
        compact = partial(compact_early, folded_to={}, semantics=self.limits.semantics, keep_producers=True)
        compacted = [compact(rows) for rows in gathered(parts, COMPACT_ROWS)]
        if compacted:
            yield from compact(pa.concat_tables(compacted)).select(CANDIDATES.names).to_batches()

    def _candidates_of(self, number: int) -> Iterator[pa.Table]:
        for rows in LogScan(self.log, _READ, self.limits.range).rows([self.files[number]]):
            columns = {
                **{name: rows[name] for name in rows.column_names},
                "aged": pc.less(written_us(rows), self.limits.aged_before_us),
                "file": pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
                "records": pa.array(np.ones(rows.num_rows, dtype=np.int64)),  # `compact_early` needs this column
            }
            yield pa.table({name: columns[name] for name in [*CANDIDATES.names, "records"]})

    def rewrite(self, positions: Iterable[tuple[int, bytes]]) -> tuple[list[Rewritten], list[DataFile]]:
        """Rewrite files without the records that go, but no file that loses none; returns the new files, too.

        ``positions`` are those of the candidates that stay, by file, as in KEPT.
        """
        rewritten: list[Rewritten] = []
        tables = (rows for file, stay in positions for rows in self._remaining(file, stay, rewritten))
        if self.place is not None:
            return rewritten, LogFileWriter(self.place).write_all(tables)
        deque(tables, maxlen=0)  # only counts
        return rewritten, []

    def _remaining(self, number: int, positions: bytes, rewritten: list[Rewritten]) -> Iterator[pa.Table]:
        """Yield the rows that stay of a file that loses some; none if nothing is to be written. Notes the numbers."""
        file = self.files[number]
        may_have_superseded = self.limits.may_have_superseded(file)
        schema = _PLACE_AND_TIME if may_have_superseded else _PLACE
        place = pa.concat_tables([schema.empty_table(), *LogScan(self.log, schema).rows([file])])
        keep = ~self.limits.range.mask(place)
        keep[np.frombuffer(positions, dtype="<i4")] = True
        partitions, counts = np.unique(place["log_partition"].to_numpy()[~keep], return_counts=True)
        dropped = dict(zip(partitions.tolist(), counts.tolist(), strict=True))
        superseded = self.limits.superseded(place) if may_have_superseded else np.zeros(len(keep), dtype=np.bool_)
        rewritten.append(Rewritten(number, len(keep), dropped, int(superseded.sum())))
        keep &= ~superseded
        if self.place is not None and not keep.all():
            yield from LogScan(self.log, SCHEMA).rows_at(file, keep)
