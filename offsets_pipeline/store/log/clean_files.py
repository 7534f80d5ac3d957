"""The tasks of a cleaning of the log: they read candidates for removal from files, and rewrite the files.

The number of a file and a position in it identify a row. Tasks exchange only the positions of the candidates that stay,
and nothing about the millions of rows that go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.semantics import survivors
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, compact_early, gathered
from offsets_pipeline.semantics.log_row import in_log_order, place_of
from offsets_pipeline.semantics.survivors import topic_survivors
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION
from offsets_pipeline.store.log.file_writer import SCHEMA, LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.log_scan import KEY, PLACE, POSITION, TIMES, LogRange, LogScan, written_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from offsets_pipeline.kafka.record.records import Bools
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.table_folder import TableFolder

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
