"""The tasks of a cleaning of the log: they read candidates for removal from files, and rewrite the files.

The number of a file and a position in it identify a row. Tasks exchange only the positions of the candidates that stay,
and nothing about the millions of rows that go.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offsets_pipeline.connect.topic_survivors import topic_survivors
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.foreign_errors import working_on
from offsets_pipeline.log.file_compaction import SORT_BYTES, write_in_order
from offsets_pipeline.log.file_writer import SCHEMA, LogFileWriter, log_partitions_of
from offsets_pipeline.semantics import survivors
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, compact_early, gathered
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from offsets_pipeline.delta import DataFile
    from offsets_pipeline.log.file_writer import LogFilePlace
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

Bools = npt.NDArray[np.bool_]

#: A record that a cleaning may remove, its file and its position there.
CANDIDATES = pa.schema(
    [
        pa.field("log_partition", pa.int32(), nullable=False),
        *survivors.SCHEMA,
        pa.field("file", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
    ]
)
#: Positions in a file of one log partition's records that stay: int32, little-endian, ascending.
KEPT = pa.schema([pa.field("file", pa.int32(), nullable=False), pa.field("positions", pa.binary(), nullable=False)])

_PLACE = ["log_partition", "record_offset", "log_incarnation"]
_WHEN = ["record_timestamp", "appended_at"]
_MICROSECONDS = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Bounds:
    """Limits of a cleaning of one incarnation of the log.

    ``cleaned_to``: by log partition, the first record offset that the cleaning keeps; it skips other log partitions.
    ``aged_before_us``: tombstones from before this time, in microseconds, may go. ``superseded_before_us``: all records
    of older log incarnations from before this time go, as no replay needs them (docs/adr/0014). ``semantics``: those of
    the replays to come. ``topic_kind``: the kind of the log's topic.
    """

    cleaned_to: Mapping[int, int]
    aged_before_us: int
    superseded_before_us: int
    log_incarnation: int
    semantics: CoordinatorSemantics
    topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS

    def candidates(self, rows: pa.Table) -> Bools:
        """A mask of the rows that the cleaning may remove; ``rows`` has the columns `_PLACE`."""
        partition = rows["log_partition"].to_numpy()
        ends = np.zeros(max(int(partition.max(initial=0)), *self.cleaned_to, 0) + 1, dtype=np.int64)
        ends[list(self.cleaned_to)] = list(self.cleaned_to.values())
        found: Bools = rows["record_offset"].to_numpy() < ends[partition]
        found &= rows["log_incarnation"].to_numpy() == self.log_incarnation
        return found


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


@dataclass(frozen=True)
class FilesOfTable:
    """The files of a table that a cleaning reads: ``names`` lie in ``folder``, a path or URI that Arrow understands."""

    folder: str
    names: Sequence[str]

    def path(self, file: int) -> str:
        """The file's path, for a message."""
        return f"the file {self.folder}/{self.names[file]}"

    def open(self, file: int) -> pq.ParquetFile:
        """Open a file by its number."""
        system, path = open_path(self.folder)
        source = system.open_input_file(f"{path}/{self.names[file]}")
        return pq.ParquetFile(source, read_dictionary=["key", "source"])


def candidates(files: FilesOfTable, numbers: Iterable[int], bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Yield the CANDIDATES of these files; of a log of groups after an early compaction of offset commits."""
    parts = (rows for file in numbers for rows in _located(files, file, bounds))
    if bounds.topic_kind.is_connect:  # few records: each task of `kept` can take them all
        for rows in parts:
            yield from rows.select(CANDIDATES.names).cast(CANDIDATES).to_batches()
        return
    compact = partial(compact_early, folded_to={}, semantics=bounds.semantics, keep_producers=True)
    compacted = [compact(rows) for rows in gathered(parts, COMPACT_ROWS)]
    if compacted:
        yield from compact(pa.concat_tables(compacted)).select(CANDIDATES.names).to_batches()


def _located(files: FilesOfTable, file: int, bounds: Bounds) -> Iterator[pa.Table]:
    with working_on(partial(files.path, file)):
        yield from _candidates_of(files, file, bounds)


def _candidates_of(files: FilesOfTable, file: int, bounds: Bounds) -> Iterator[pa.Table]:
    with files.open(file) as parquet:
        position = 0
        for group in range(parquet.num_row_groups):
            place = parquet.read_row_group(group, columns=_PLACE, use_threads=False)
            wanted = np.flatnonzero(bounds.candidates(place))
            if len(wanted):
                rows = parquet.read_row_group(group, columns=_READ, use_threads=False)
                if len(wanted) < rows.num_rows:
                    rows = rows.take(pa.array(wanted))
                yield _as_candidates(rows, file, wanted + position, bounds)
            position += place.num_rows


_READ = [name for name in SCHEMA.names if name not in ("producer_epoch", "source", "log_incarnation")]


def _as_candidates(rows: pa.Table, file: int, position: npt.NDArray[np.int64], bounds: Bounds) -> pa.Table:
    columns = {
        **{name: rows[name] for name in rows.column_names},
        "key": rows["key"].cast(pa.dictionary(pa.int32(), pa.binary())),
        "value": rows["value"].cast(pa.binary()),
        "aged": pc.less(_when(rows), bounds.aged_before_us),
        "file": pa.repeat(pa.scalar(file, pa.int32()), rows.num_rows),
        "position": pa.array(position, pa.int32()),
        "records": pa.array(np.ones(rows.num_rows, dtype=np.int64)),  # `compact_early` needs this column
    }
    return pa.table({name: columns[name] for name in [*CANDIDATES.names, "records"]})


def _when(rows: pa.Table) -> pa.ChunkedArray:
    """Time of each record in microseconds since 1970: its own timestamp, else the time of its append."""
    when = pc.coalesce(*(rows[name].cast(_MICROSECONDS, safe=False) for name in _WHEN))
    return when.cast(pa.int64())


def _superseded(parquet: pq.ParquetFile, place: pa.Table, bounds: Bounds) -> Bools:
    """Mask of the records of superseded log incarnations; ``place`` has the columns `_PLACE`."""
    older: Bools = place["log_incarnation"].to_numpy() < bounds.log_incarnation
    if older.any():
        older &= _when(parquet.read(columns=_WHEN, use_threads=False)).to_numpy() < bounds.superseded_before_us
    return older


def kept(
    batches: Iterable[pa.RecordBatch], semantics: CoordinatorSemantics, topic_kind: TopicKind
) -> Iterator[pa.RecordBatch]:
    """Decide which candidates the cleaning keeps; yield their positions by file (schema KEPT).

    A candidate is a record that the cleaning may remove. ``batches`` (schema CANDIDATES) have all candidates of some
    log partitions, in any order.
    """
    rows = pa.Table.from_batches(batches, schema=CANDIDATES)
    rows = rows.sort_by([("log_partition", "ascending"), ("record_offset", "ascending")])
    for of_partition in log_partitions_of(rows.combine_chunks()):
        table = pa.Table.from_batches([of_partition])
        with working_on(partial(place_of, table)):
            stay = (
                topic_survivors(table, topic_kind) if topic_kind.is_connect else survivors.survivors(table, semantics)
            )
            stays = table.select(["file", "position"]).filter(pa.array(stay))
        file, position = stays["file"].to_numpy(), stays["position"].to_numpy()
        numbers = np.unique(file)
        positions = [np.sort(position[file == number]).astype("<i4").tobytes() for number in numbers]
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), pa.array(positions, pa.binary())], schema=KEPT)


class Rewriter:
    """Rewrites files without the records that go; skips a file that loses no record.

    Only counts if ``place`` is None.
    """

    def __init__(self, files: FilesOfTable, bounds: Bounds, place: LogFilePlace | None) -> None:
        self._files = files
        self._bounds = bounds
        self._place = place
        self.rewritten: list[Rewritten] = []

    def rewrite(self, positions: Iterable[tuple[int, Iterable[bytes]]]) -> list[DataFile]:
        """Rewrite files; returns the new ones. ``positions`` are those of the candidates that stay, by file."""
        tables = (rows for file, stay in positions for rows in self._remaining(file, stay))
        writer = None if self._place is None else LogFileWriter(self._place)
        for rows in gathered(tables, size_bytes=SORT_BYTES):
            if writer is not None:
                write_in_order(writer, rows)
        return [] if writer is None else writer.close()

    def _remaining(self, file: int, positions: Iterable[bytes]) -> Iterator[pa.Table]:
        """Yield the rows that stay of a file that loses some; none if nothing is to be written."""
        with working_on(partial(self._files.path, file)), self._files.open(file) as parquet:
            place = parquet.read(columns=_PLACE, use_threads=False)
            keep = ~self._bounds.candidates(place)
            keep[np.frombuffer(b"".join(positions), dtype="<i4")] = True
            partitions, counts = np.unique(place["log_partition"].to_numpy()[~keep], return_counts=True)
            dropped = dict(zip(partitions.tolist(), counts.tolist(), strict=True))
            superseded = _superseded(parquet, place, self._bounds)
            self.rewritten.append(Rewritten(file, len(keep), dropped, int(superseded.sum())))
            keep &= ~superseded
            if self._place is not None and not keep.all():
                yield from _filtered(parquet, keep)


def _filtered(parquet: pq.ParquetFile, keep: Bools) -> Iterator[pa.Table]:
    start = 0
    for group in range(parquet.num_row_groups):
        stays = keep[start : start + parquet.metadata.row_group(group).num_rows]
        start += len(stays)
        if stays.any():
            rows = parquet.read_row_group(group, use_threads=False).select(SCHEMA.names)
            yield rows.filter(pa.array(stays)).cast(SCHEMA)
