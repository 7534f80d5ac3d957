"""Read the table `log` in record-offset order, without holding all of it in memory.

Rows within a file are mostly in order, but the files are not. Each append adds files, `backfill` adds older records in
later files, and maintenance compacts small files in any order. So the reader first reads two columns of all rows. They
give the log partitions in each block, and the lowest record offset of each. Then it reads each block once, in an order
in which few rows have to wait. It yields a log partition's rows as soon as no unread block has earlier ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.store.delta.schemas import LOG, RECORD_COLUMNS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.log_scan import TIMES, LogRange, LogScan, written_us

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.snapshot import Snapshot

_BLOCK_ROWS = 65_536
_PLACE = ["log_partition", "record_offset"]
_NEVER = 2**63 - 1
_NO_ENDS: Mapping[int, int] = MappingProxyType({})
_SCHEMA = LOG.arrow_schema()

#: Lowest record offset in a block, by log partition.
_Lowest = dict[int, int]


class OrderedLog:
    """The rows of one log incarnation in a snapshot of the table `log`, optionally up to a time or a position.

    ``ends``: for each log partition that is cut off, the first record offset that is left out.
    """

    def __init__(
        self,
        log: Snapshot,
        log_incarnation: int,
        as_of_ms: int | None,
        log_partitions: Collection[int] | None = None,
        *,
        ends: Mapping[int, int] = _NO_ENDS,
        columns: Sequence[str] = RECORD_COLUMNS,
    ) -> None:
        """Read the log partition and record offset of all rows.

        Args:
            log: the snapshot.
            log_incarnation: the incarnation to read.
            as_of_ms: in each log partition, leave out the first record that was written later and all records after it.
            log_partitions: read these log partitions only; skips files and row groups by their statistics.
            ends: by log partition, a record offset from which on to leave out records.
            columns: the columns of a run.

        Raises UnsupportedTable if the table cannot be read without Spark.
        """
        starts = None if log_partitions is None else dict.fromkeys(log_partitions, 0)
        self._folder = TableFolder(log.folder, LOG)
        self._range = LogRange(starts, log_incarnation=log_incarnation)
        self._files = [file for file in log.files() if self._range.may_hold(file)]
        self._columns = [*_PLACE, *(name for name in columns if name not in _PLACE)]
        self.ends: dict[int, int] = dict(ends)
        looked_at = _PLACE if as_of_ms is None else [*_PLACE, *TIMES]
        self._lowest: list[list[_Lowest]] = []
        for file in self._files:
            self._lowest.append([self._look_at(block, as_of_ms) for block in self._blocks(file, looked_at)])

    @property
    def files(self) -> int:
        """Number of files that may hold rows of the log partitions."""
        return len(self._files)

    def runs(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield runs: a log partition, and rows of it.

        The record offsets of a log partition ascend within a run and from run to run (R2).
        """
        waiting = _Waiting(self._lowest, self.ends)
        held: dict[int, list[pa.Table]] = defaultdict(list)
        blocks = [self._blocks(file, self._columns) for file in self._files]
        while (file := waiting.next_file()) is not None:
            block = next(blocks[file])
            for partition, rows in _by_partition(block["log_partition"].to_numpy()):
                # copy the rows: a waiting slice would keep the whole block in memory
                held[partition].append(block if rows is None else block.take(pa.array(rows)))
            for partition in waiting.take(file):
                end = min(waiting.goes_on_at(partition), self.ends.get(partition, _NEVER))
                ripe, rest = _split(held.pop(partition), end)
                if rest.num_rows and end != self.ends.get(partition):
                    held[partition] = [rest]
                if ripe.num_rows:
                    yield partition, ripe

    def _blocks(self, file: DataFile, columns: list[str]) -> Iterator[pa.Table]:
        """Yield columns of a file in blocks of _BLOCK_ROWS rows; the last one may have fewer."""
        schema = pa.schema([_SCHEMA.field(name).with_nullable(nullable=True) for name in columns])
        rest = [schema.empty_table()]
        scan = LogScan(self._folder, schema, self._range, _BLOCK_ROWS, use_threads=True)
        for rows in scan.rows([file]):
            rest.append(rows)
            while sum(each.num_rows for each in rest) > _BLOCK_ROWS:
                together = pa.concat_tables(rest)
                yield together.slice(0, _BLOCK_ROWS)
                rest = [together.slice(_BLOCK_ROWS)]
        last = pa.concat_tables(rest)
        if last.num_rows:  # yield after closing the file: a log may have many files, mostly of one block
            yield last

    def _look_at(self, block: pa.Table, as_of_ms: int | None) -> _Lowest:
        partition, offset = block["log_partition"].to_numpy(), block["record_offset"].to_numpy()
        if as_of_ms is not None:
            is_later = pc.greater(written_us(block), as_of_ms * 1000)
            # a record without a timestamp is never too late
            young = pc.and_(is_later, block["record_timestamp"].is_valid()).to_numpy()
            for at, first in _lowest(partition[young], offset[young]).items():
                self.ends[at] = min(first, self.ends.get(at, first))
        return _lowest(partition, offset)


class _Waiting:
    """The unread blocks, and for each log partition the unread block with its next rows."""

    def __init__(self, lowest: list[list[_Lowest]], ends: dict[int, int]) -> None:
        self._lowest = lowest
        self._read = [0] * len(lowest)  # number of blocks read of each file
        self._order: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for file, blocks in enumerate(lowest):
            for block, of_block in enumerate(blocks):
                for partition, first in of_block.items():
                    if first < ends.get(partition, _NEVER):
                        self._order[partition].append((first, file, block))
        for of_partition in self._order.values():
            of_partition.sort(reverse=True)  # the next one is last
        self._file: int | None = None

    def next_file(self) -> int | None:
        """Choose the file whose next block to read. Returns None if no block is left.

        Stays with the last file while the rows of its next block need not wait. Otherwise takes the file with the rows
        that they wait for, and so on. If files wait for each other, takes one of them.
        """
        file, seen = self._file, set[int]()
        if file is None or self._read[file] == len(self._lowest[file]):
            left = min((partition for partition, order in self._order.items() if order), default=None)
            file = None if left is None else self._order[left][-1][1]
        while file is not None and file not in seen:
            seen.add(file)
            before = self._waits_for(file)
            if before is None:
                break
            file = before
        self._file = file
        return file

    def take(self, file: int) -> list[int]:
        """Mark the file's next block as read. Returns the log partitions in it."""
        partitions = list(self._lowest[file][self._read[file]])
        self._read[file] += 1
        for partition in partitions:
            order = self._order[partition]
            while order and order[-1][2] < self._read[order[-1][1]]:
                order.pop()
        return partitions

    def goes_on_at(self, partition: int) -> int:
        """Lowest record offset of a log partition in the unread blocks."""
        order = self._order[partition]
        return order[-1][0] if order else _NEVER

    def _waits_for(self, file: int) -> int | None:
        """Another file with rows that precede those of this file's next block; None if there is none."""
        block = self._lowest[file][self._read[file]]
        others = (order[-1][1] for partition in block if (order := self._order[partition]))
        return next((other for other in others if other != file), None)


def _lowest(partition: npt.NDArray[np.int32], offset: Int64s) -> _Lowest:
    return {at: int((offset if rows is None else offset[rows]).min()) for at, rows in _by_partition(partition)}


def _by_partition(partition: npt.NDArray[np.int32]) -> Iterator[tuple[int, Int64s | None]]:
    """Yield each log partition, in order, and the positions of its rows; None: all rows, as in most large files."""
    if len(partition) and (partition == partition[0]).all():
        yield int(partition[0]), None
    elif len(partition):
        order = np.argsort(partition, kind="stable")
        first = np.flatnonzero(np.diff(partition[order], prepend=-1))
        yield from zip(partition[order][first].tolist(), np.split(order, first[1:]), strict=True)


def _split(parts: list[pa.Table], end: int) -> tuple[pa.Table, pa.Table]:
    """Sort rows, drop duplicates (R15), and split them at a record offset. Returns the rows before it, and the rest."""
    rows = pa.concat_tables(parts)
    offset = rows["record_offset"].to_numpy()
    if not _ascends(offset).all():
        rows = rows.take(pa.array(np.argsort(offset, kind="stable")))
        offset = rows["record_offset"].to_numpy()
        if not (once := _ascends(offset)).all():
            rows = rows.filter(pa.array(once))
            offset = offset[once]
    ripe = int(np.searchsorted(offset, end, side="left"))
    return rows.slice(0, ripe), rows.slice(ripe)


def _ascends(offset: Int64s) -> Bools:
    ascends = np.ones(len(offset), dtype=np.bool_)
    ascends[1:] = offset[1:] > offset[:-1]
    return ascends
