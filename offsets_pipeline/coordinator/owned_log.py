"""The owned log: the ends of its partitions, its new rows, and appends by compare-and-swap (R2, R4)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.coordinator.producers import Producers
from offsets_pipeline.delta.data_file import APPLICATION, FAST, DataFile
from offsets_pipeline.delta.properties import require_format
from offsets_pipeline.delta.protocol import UNDO, changes_rules, parsed, takes_rows
from offsets_pipeline.delta.schemas import LOG, LOG_INCARNATION, LOG_PARTITIONS, RECORD_COLUMNS
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import LogMovedOn, NoSuchStore, NoSuchTable, StoreReplaced, UnsupportedTable, WriteConflict
from offsets_pipeline.log.log_scan import LogScan
from offsets_pipeline.semantics.log_row import of_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from offsets_pipeline.delta.protocol import Action
    from offsets_pipeline.delta.snapshot import Snapshot

_TABLE_SCHEMA = LOG.arrow_schema()
ROW_SCHEMA = pa.schema([_TABLE_SCHEMA.field(name).with_nullable(nullable=True) for name in RECORD_COLUMNS])
_POSITION_SCHEMA = pa.schema([each for each in ROW_SCHEMA if each.name not in {"key", "value"}])

_IN_ORDER = [("log_partition", "ascending"), ("record_offset", "ascending")]
_BLOCK_ROWS = 65_536

#: After so long without a look at the log, Delta may have removed commits. By default it keeps them for days.
_LOST_TOUCH_SECONDS = 3_600.0
#: Commits from one checkpoint to the next. Loading reads the commits after the last checkpoint one by one.
CHECKPOINT_COMMITS = 100


class Record(NamedTuple):
    """A record to append. It has no record offset yet.

    ``request`` is why a tombstone is written (semantics/log_row.py). The column `source` of the log keeps it, so that
    history knows the cause of a deletion.
    """

    log_partition: int
    key: bytes
    value: bytes | None
    producer_id: int | None = None
    producer_epoch: int | None = None
    control_type: str | None = None
    request: str | None = None


@dataclass(frozen=True)
class PreparedAppend:
    """Records to append as commit ``version``, with their record offsets.

    ``number`` is the version of the application's Delta transaction. ``ends`` are the new ends of the log partitions,
    ``previous`` is the text of the commit before (None: no longer kept).
    """

    version: int
    number: int
    rows: pa.Table
    ends: dict[int, int]
    previous: bytes | None


def _drop(_: pa.Table) -> None:
    """Discard the rows."""


class OwnedLog:
    """The table `log` of an owned store, as of ``version``. Not thread-safe, except where a method says so.

    ``ends`` has the log end offset of every log partition. `catch_up` advances to the newest version. Each look at the
    log checks that the commit of ``version`` is unchanged. If the store was restored or created again, that commit
    differs or is missing (docs/adr/0013).
    """

    def __init__(self, folder: str, offsets_partitions: int, source: str, compression: str = FAST) -> None:
        self._compression = compression
        self._store_folder = folder
        self._table = TableFolder(f"{folder}/{LOG.name}", LOG)
        self._folder = self._table.folder
        self._source = source
        self._looked_at = time.monotonic()
        self.version = -1
        self.number = -1
        self.ends = [0] * offsets_partitions
        self.producers = Producers()
        self._last: bytes | None = None  # the text of the commit of `version`; None: it is no longer kept
        self._table_id: str | None = None
        self._unwritable: str | None = None  # the feature that the table requires and this program lacks

    def open(self, partitions: Collection[int] = (), take: Callable[[pa.Table], None] = _drop) -> None:
        """Read the ends and the producers of the log. ``take`` gets the rows of these log partitions, as from `load`.

        Raises NoSuchStore if there is no store, StoreReplaced if it is not the store that was open before,
        UnsupportedTable if only Spark can read the log, NotAStore if the store has another format.
        """
        found = self._snapshot()
        for partition, end in self._noted_ends():
            self.ends[partition] = max(self.ends[partition], end)
        transactional: list[pa.Table] = []
        for rows in self._scan(ROW_SCHEMA if partitions else _POSITION_SCHEMA, found.files()):
            self._note_ends(rows)
            if rows["producer_id"].null_count < rows.num_rows:
                transactional.append(rows.filter(rows["producer_id"].is_valid()).select(_POSITION_SCHEMA.names))
            if partitions:
                take(of_partitions(rows, partitions))
        self.producers = Producers()
        if transactional:
            self.producers.replay(pa.concat_tables(transactional).sort_by(_IN_ORDER))
        self._table_id, self._unwritable = found.table_id, found.unmet
        self.version, self._last = found.version, found.text
        self.number = found.transaction(APPLICATION)
        self._looked_at = time.monotonic()

    def catch_up(self) -> Iterator[pa.Table]:
        """Yield the rows of each new commit, with ROW_SCHEMA, sorted by log partition and record offset.

        Raises LogMovedOn if the log has to be read again with `open`, StoreReplaced if the store was replaced,
        UnsupportedTable if only Spark can read the table from now on, NotAStore if the store got another format.
        """
        now = time.monotonic()
        while (text := self._next_commit()) is not None:
            actions = parsed(text)
            if takes_rows(actions):
                raise LogMovedOn(f"version {self.version + 1} of {self._folder} deletes or changes records")
            if changes_rules(actions):
                self._unwritable = self._snapshot().unmet
            rows = self._new_rows(actions)
            self.version += 1
            self._last = text
            self.number = max([self.number, *_transactions(actions)])
            if rows.num_rows:
                self._note_ends(rows)
                self.producers.replay(rows)
                yield rows
        if now - self._looked_at > _LOST_TOUCH_SECONDS and self._snapshot().version > self.version:
            raise self._moved_on()
        self._looked_at = now

    def _next_commit(self) -> bytes | None:
        """Return the text of the commit after `version`; None if there is none yet. Raises as `catch_up`."""
        text = self._table.commit_file(self.version + 1)
        # check after the read, so that the text read surely follows the known commit
        if self._table.is_unchanged(self.version, self._last):
            return text
        if self._table.commit_file(self.version) is None and self._snapshot().version > self.version:
            raise self._moved_on()
        raise self._replaced()

    def _moved_on(self) -> LogMovedOn:
        return LogMovedOn(f"{self._folder} no longer has the commits since version {self.version}")

    def _replaced(self) -> StoreReplaced:
        return StoreReplaced(
            f"{self._store_folder} was deleted, restored or created again while it was open: its log differs from "
            f"version {self.version}, which was read; open it again"
        )

    def load(self, partitions: Collection[int]) -> Iterator[pa.Table]:
        """Yield all rows of these log partitions in any order, with ROW_SCHEMA, a part of a file at a time.

        Includes at least the rows up to `version`. May run while another thread uses the log.

        Raises StoreReplaced and UnsupportedTable as `open`.
        """
        for rows in self._scan(ROW_SCHEMA, self._snapshot().files()):
            yield of_partitions(rows, partitions)

    def turn(self, meanwhile: Callable[[], None]) -> AbstractContextManager[None]:
        """Wait briefly for this process's turn to append. It saves lost races; correctness does not need it.

        ``meanwhile`` is called repeatedly during the wait.
        """
        return self._table.storage.turn(meanwhile)

    def prepare(self, records: Sequence[Record], now_ms: int) -> PreparedAppend:
        """Assign record offsets to records: without gaps, from the end of each log partition (R2).

        Raises UnsupportedTable if the table requires a feature that this program lacks.
        """
        if self._unwritable is not None:
            raise UnsupportedTable(
                f"cannot append to {self._folder}: its table requires {self._unwritable}, which this program does not "
                f"support; {UNDO}"
            )
        ends = {partition: self.ends[partition] for partition in {record.log_partition for record in records}}
        offsets = []
        for record in records:
            offsets.append(ends[record.log_partition])
            ends[record.log_partition] += 1
        count = len(records)
        timestamp = pa.scalar(now_ms * 1000).cast(pa.timestamp("us", tz="UTC"))
        columns = {
            **dict(zip(Record._fields, map(list, zip(*records, strict=True)), strict=True)),
            "record_offset": offsets,
            "record_timestamp": pa.repeat(timestamp, count),
            "appended_at": pa.repeat(timestamp, count),
            "source": [self._source if each.request is None else f"{self._source} {each.request}" for each in records],
            "log_incarnation": pa.repeat(pa.scalar(LOG_INCARNATION, pa.int32()), count),
            "backfill": pa.repeat(pa.scalar(False), count),
        }
        arrays = [
            values if isinstance(values := columns[each.name], pa.Array) else pa.array(values, each.type)
            for each in _TABLE_SCHEMA
        ]
        rows = pa.Table.from_arrays(arrays, schema=_TABLE_SCHEMA)
        if len(ends) > 1:  # every file of the log is sorted
            rows = rows.sort_by(_IN_ORDER)
        return PreparedAppend(self.version + 1, self.number + 1, rows, ends, self._last)

    def write(self, append: PreparedAppend, *, durable: bool) -> bytes:
        """Append all records or none. Returns the text of the commit for `accept`.

        May run while another thread uses the log.

        Raises WriteConflict if another writer committed first, StorageFailed if the storage failed and nothing was
        committed, CommitUnknown if the storage failed and the commit may be there.
        """
        if time.monotonic() - self._looked_at > _LOST_TOUCH_SECONDS:
            raise WriteConflict(f"another writer may have written to {self._folder} since version {append.version - 1}")
        file = self._table.write_file(append.rows, compression=self._compression, few_rows=True)
        advance = {APPLICATION: append.number}
        return self._table.append_next(file, append.version, append.previous, advance, durable=durable)

    def accept(self, append: PreparedAppend, text: bytes) -> pa.Table | None:
        """Advance to the commit that `write` made.

        Returns its rows as `catch_up` does; None if `catch_up` already returned them.
        """
        if self.version >= append.version:
            return None
        self.version, self.number, self._last = append.version, append.number, text
        for partition, end in append.ends.items():
            self.ends[partition] = end
        rows = append.rows.select(list(RECORD_COLUMNS))
        self.producers.replay(rows)
        return rows

    def checkpoint(self) -> None:
        """Write a checkpoint of the Delta log, so that loading reads fewer commits. A failure does no harm."""
        self._table.checkpoint(self.version)

    def _snapshot(self) -> Snapshot:
        """Return the newest snapshot of the table. Raises as `open`."""
        version = self.version  # another thread may append meanwhile
        try:
            found = TableFolder(self._folder, LOG).snapshot()
        except NoSuchTable:
            if self._table_id is None:
                raise NoSuchStore(f"no log at {self._folder}; create the store first, or check the path") from None
            raise self._replaced() from None
        if self._table_id not in {None, found.table_id} or found.version < version:
            raise self._replaced()
        require_format(found.properties, self._store_folder)
        found.files()  # raises UnsupportedTable
        return found

    def _noted_ends(self) -> Iterator[tuple[int, int]]:
        """Return the ends in `log_partitions`. They stay when a cleaning removes the last records (R2, R23)."""
        try:
            table = TableFolder(f"{self._store_folder}/{LOG_PARTITIONS.name}", LOG_PARTITIONS).snapshot()
        except NoSuchTable:
            return iter(())
        noted = table.rows(["log_partition", "end_offset"])
        return zip(noted["log_partition"].to_pylist(), noted["end_offset"].to_pylist(), strict=True)

    def _new_rows(self, actions: Sequence[Action]) -> pa.Table:
        """Return the rows that a commit appended; none if it only rearranged rows, as OPTIMIZE does."""
        adds = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
        added = list(self._scan(ROW_SCHEMA, map(DataFile.of_action, adds)))
        if not added:
            return ROW_SCHEMA.empty_table()
        rows = pa.concat_tables(added)
        ends = pa.array(self.ends, pa.int64()).take(rows["log_partition"])
        rows = rows.filter(pc.greater_equal(rows["record_offset"], ends))  # R15: a cleaning adds earlier rows again
        if len(added) > 1 or not _ascends(rows):
            rows = rows.sort_by(_IN_ORDER)
        return rows

    def _scan(self, schema: pa.Schema, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        return LogScan(self._table, schema, block_rows=_BLOCK_ROWS).rows(files)

    def _note_ends(self, rows: pa.Table) -> None:
        partitions = rows["log_partition"].to_numpy()
        highest = np.array(self.ends, dtype=np.int64)
        np.maximum.at(highest, partitions, rows["record_offset"].to_numpy() + 1)
        self.ends = highest.tolist()


def _transactions(actions: Sequence[Action]) -> Iterator[int]:
    return (action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == APPLICATION)


def _ascends(rows: pa.Table) -> bool:
    partitions, offsets = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
    step = np.diff(partitions)
    return bool(np.all((step > 0) | ((step == 0) & (np.diff(offsets) > 0))))
