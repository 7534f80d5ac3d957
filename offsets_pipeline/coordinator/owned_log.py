"""The owned log: the ends of its partitions, its producers, its new rows, appends by compare-and-swap (R2, R4, R11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import CLOCK_BOOTTIME, clock_gettime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import LogMovedOn, NoSuchStore, NoSuchTable, UnsupportedTable, WriteConflict
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, in_log_order, of_partitions
from offsets_pipeline.store.delta.data_file import APPLICATION, FAST, DataFile
from offsets_pipeline.store.delta.properties import require_format
from offsets_pipeline.store.delta.protocol import (
    NOT_DURABLE,
    UNDO,
    Action,
    changes_rules,
    files_of,
    info_of,
    is_durable,
    takes_rows,
)
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION, LOG_PARTITIONS, RECORD_COLUMNS
from offsets_pipeline.store.delta.snapshot import Commit, KnownVersion, Snapshot
from offsets_pipeline.store.delta.storage import Winners, beside
from offsets_pipeline.store.delta.table_folder import READERS_SECONDS, TableFolder
from offsets_pipeline.store.log.log_scan import LogScan

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

_TABLE_SCHEMA = LOG.arrow_schema()
ROW_SCHEMA = pa.schema([_TABLE_SCHEMA.field(name).with_nullable(nullable=True) for name in RECORD_COLUMNS])
_POSITION_SCHEMA = pa.schema([each for each in ROW_SCHEMA if each.name not in {"key", "value"}])

_BLOCK_ROWS = 65_536
_READ_AHEAD = 8  # commits whose rows are read at once

#: Commits from one checkpoint to the next. Loading reads the commits after the last checkpoint one by one.
CHECKPOINT_COMMITS = 100
#: A machine has written older files by itself.
_MOST_NOT_DURABLE = 4_096
NO_EPOCH = -1


@dataclass
class Producer:
    """A producer id: its highest epoch, and the start of its open transaction in ms, by log partition.

    ``markers`` has the record offset of its last marker, by log partition, and ``last_end`` epoch and type of the last
    one that was read.
    """

    epoch: int = NO_EPOCH
    open_since_ms: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    last_end: tuple[int, str] | None = None

    def has_ended_since(self, markers: Mapping[int, int]) -> bool:
        """Return whether the log has a later marker of the producer than these."""
        return any(offset > markers.get(log_partition, -1) for log_partition, offset in self.markers.items())


class Producers:
    """All producers of the log. Covers unloaded log partitions too, because a transaction may span them."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def get(self, producer_id: int) -> Producer:
        """Return a producer; for an unknown id one without an epoch or a transaction."""
        return self._producers.get(producer_id, Producer())

    def open_since_ms(self) -> dict[int, int]:
        """Return the start of each open transaction in ms, by producer id."""
        return {
            producer_id: min(producer.open_since_ms.values())
            for producer_id, producer in self._producers.items()
            if producer.open_since_ms
        }

    def replay(self, rows: pa.Table) -> None:
        """Apply rows of a record's columns. Those of a log partition come in the order of their record offsets."""
        if rows["producer_id"].null_count == rows.num_rows:
            return
        rows = rows.filter(rows["producer_id"].is_valid())
        timestamps = rows["record_timestamp"].cast("int64").to_pylist()
        columns = (rows[name].to_pylist() for name in _POSITION_SCHEMA.names if name != "record_timestamp")
        for timestamp, log_partition, offset, producer_id, epoch, control_type in zip(
            timestamps, *columns, strict=True
        ):
            producer = self._producers.setdefault(producer_id, Producer())
            producer.epoch = max(producer.epoch, NO_EPOCH if epoch is None else epoch)
            if control_type is None:
                producer.open_since_ms.setdefault(log_partition, 0 if timestamp is None else timestamp // 1000)
            elif control_type in (COMMIT, ABORT):
                producer.open_since_ms.pop(log_partition, None)  # R11: a marker of any epoch
                producer.markers[log_partition] = offset
                producer.last_end = NO_EPOCH if epoch is None else epoch, control_type


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
    """Records to append as the version after ``known``, with their record offsets.

    ``number`` is the version of the application's Delta transaction. ``ends`` are the new ends of the log partitions.
    ``is_of_its_partitions``: the records depend on rows of these log partitions alone.
    """

    known: KnownVersion
    number: int
    rows: pa.Table
    ends: dict[int, int]
    is_of_its_partitions: bool


_NOT_READ = KnownVersion("", -1, None)


class OwnedLog:
    """The table `log` of an owned store, as of ``version``. Not thread-safe, except where a method says so.

    ``ends`` has the log end offset of every log partition. `catch_up` advances to the newest version. Each look at the
    log finds out whether the store was restored or created again (docs/adr/0013).
    """

    def __init__(self, folder: str, offsets_partitions: int, source: str, compression: str = FAST) -> None:
        self._compression = compression
        self._store_folder = folder
        self._table = TableFolder(f"{folder}/{LOG.name}", LOG)
        self._folder = self._table.folder
        self._source = source
        self._winners = Winners(source)
        self._known = _NOT_READ
        self._looked_at = 0.0  # the last time at which no later commit was there, on a clock that runs while asleep
        self.number = -1
        self.ends = [0] * offsets_partitions
        self.producers = Producers()
        self._not_durable: deque[str] = deque(maxlen=_MOST_NOT_DURABLE)
        self._unwritable: str | None = None  # the feature that the table requires and this program lacks

    @property
    def version(self) -> int:
        """The version of the table that was read; -1 before `open`."""
        return self._known.number

    def open(self, partitions: Collection[int], take: Callable[[pa.Table], object]) -> None:
        """Read the ends and the producers of the log. ``take`` gets the rows of these log partitions, as from `load`.

        Raises NoSuchStore if there is no store, StoreReplaced if it is not the store that was open before,
        UnsupportedTable if only Spark can read the log, NotAStore if the store has another format.
        """
        found, self._looked_at = self._snapshot(), clock_gettime(CLOCK_BOOTTIME)
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
            self.producers.replay(in_log_order(pa.concat_tables(transactional)))
        self._known, self._unwritable = found.known, found.unmet
        self.number = found.transaction(APPLICATION)

    def catch_up(self) -> Iterator[pa.Table]:
        """Yield the rows of each new commit, with ROW_SCHEMA, sorted by log partition and record offset.

        Raises LogMovedOn if the log has to be read again with `open`, StoreReplaced if the store was replaced,
        UnsupportedTable if only Spark can read the table from now on, NotAStore if the store got another format.
        Raises DamagedTable, StorageFailed.
        """
        # Commits are removed after an hour in any order: the next one may be gone, and this one and later ones there.
        is_old = clock_gettime(CLOCK_BOOTTIME) - self._looked_at > READERS_SECONDS / 2
        newest = self._table.snapshot_after(self._known).version if is_old else -1
        try:
            for (text, actions), rows in self._with_rows(self._table.commits_after(self._known)):
                if takes_rows(actions):
                    raise LogMovedOn(f"version {self.version + 1} of {self._folder} deletes or changes records")
                if changes_rules(actions):
                    self._unwritable = self._snapshot().unmet
                new = self._unknown(rows.result())
                self._advance(text, actions, new)
                if new.num_rows:
                    yield new
        except WriteConflict as gone:
            raise LogMovedOn(str(gone)) from gone
        if self.version < newest:
            raise LogMovedOn(f"the table {self._folder} no longer has the commits since version {self.version}")
        self._looked_at = clock_gettime(CLOCK_BOOTTIME)

    def load(self, partitions: Collection[int]) -> Iterator[pa.Table]:
        """Yield all rows of these log partitions in any order, with ROW_SCHEMA, a part of a file at a time.

        Includes at least the rows up to `version`. May run while another thread uses the log.

        Raises StoreReplaced and UnsupportedTable as `open`.
        """
        for rows in self._scan(ROW_SCHEMA, self._snapshot().files()):
            yield of_partitions(rows, partitions)

    def turn(self, meanwhile: Callable[[], None]) -> AbstractContextManager[None]:
        """Wait briefly for this process's turn to append. It saves lost races; correctness does not need it.

        ``meanwhile`` is called repeatedly during the wait, and catches up.
        """
        return self._table.storage.turn(meanwhile, self._winners)

    def prepare(self, records: Sequence[Record], now_ms: int, *, is_of_its_partitions: bool = False) -> PreparedAppend:
        """Assign record offsets to records: without gaps, from the end of each log partition (R2).

        ``is_of_its_partitions``: see `PreparedAppend`. Raises UnsupportedTable if the table requires a feature that
        this program lacks.
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
            rows = in_log_order(rows)
        return PreparedAppend(self._known, self.number + 1, rows, ends, is_of_its_partitions)

    def write(self, append: PreparedAppend, *, durable: bool) -> list[Commit]:
        """Append all records or none. Returns the commits since the append was prepared, the last one its own.

        Others precede it only if they have no rows of its log partitions, and it depends on no other ones. May run
        while another thread uses the log.

        Raises WriteConflict if another writer committed first or the store was replaced, StorageFailed if nothing was
        committed, CommitUnknown if the storage failed and the commit may be there.
        """
        number, version = append.number, append.known.number

        def behind(commit: Commit) -> dict[str, int] | None:
            nonlocal number, version
            version += 1
            if not (append.is_of_its_partitions and _leaves(append.ends, commit.actions)):
                return None
            number = max([number, *(1 + each for each in _transactions(commit.actions))])
            if durable and not is_durable(commit.actions):
                self._table.storage.sync(files_of(version, commit.actions), may_be_gone=True)
            return {APPLICATION: number}

        before = tuple(self._not_durable)  # R27: what a durable append stands on survives, too
        commits = self._table.append_next(
            append.rows,
            append.known,
            {APPLICATION: number},
            behind,
            writer=self._source if durable else f"{self._source}{NOT_DURABLE}",
            compression=self._compression,
            durable=durable,
            after=before,
        )
        for name in before if durable else ():
            with suppress(ValueError):
                self._not_durable.remove(name)
        return commits

    def accept(self, append: PreparedAppend, commits: Sequence[Commit]) -> Iterator[pa.Table]:
        """Advance to the commits that `write` returned. Yields their rows as `catch_up` does, unless that has."""
        *others, (own, own_actions) = commits
        missing = others[max(0, self.version - append.known.number) :]
        for (text, actions), added in self._with_rows(missing):
            rows = self._unknown(added.result())
            self._advance(text, actions, rows)
            yield rows
        if self.version < append.known.number + len(commits):
            rows = append.rows.select(list(RECORD_COLUMNS))
            self._advance(own, own_actions, rows)
            yield rows

    def checkpoint(self) -> None:
        """Write a checkpoint of the Delta log, so that loading reads fewer commits. A failure does no harm."""
        self._table.checkpoint(self.version)

    def _advance(self, text: bytes, actions: Sequence[Action], rows: pa.Table) -> None:
        """Go on to the next version, whose commit appended these rows."""
        self._known = KnownVersion(self._known.table_id, self.version + 1, text)
        if not is_durable(actions):
            self._not_durable += files_of(self.version, actions)
        self.number = max([self.number, *_transactions(actions)])
        self._winners.note(_writer(actions).removesuffix(NOT_DURABLE))
        if rows.num_rows:
            self._note_ends(rows)
            self.producers.replay(rows)

    def _snapshot(self) -> Snapshot:
        """Return the newest snapshot of the table. Raises as `open`."""
        try:
            table = TableFolder(self._folder, LOG)  # this object's table keeps no snapshot in memory
            found = table.snapshot() if self.version < 0 else table.snapshot_after(self._known)
        except NoSuchTable:
            raise NoSuchStore(f"no log at {self._folder}; create the store first, or check the path") from None
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

    def _with_rows(self, commits: Iterable[Commit]) -> Iterator[tuple[Commit, Future[pa.Table]]]:
        """Yield commits with the rows that they added, which are read while the next commits are."""
        reading: deque[tuple[Commit, Future[pa.Table]]] = deque()
        for commit in commits:
            reading.append((commit, beside(self._added, commit.actions)))
            if len(reading) > _READ_AHEAD:
                yield reading.popleft()
        yield from reading

    def _added(self, actions: Sequence[Action]) -> pa.Table:
        """Return the rows that a commit added, in order; none if it only rearranged rows, as OPTIMIZE does."""
        adds = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
        added = list(self._scan(ROW_SCHEMA, map(DataFile.of_action, adds)))
        if not added:
            return ROW_SCHEMA.empty_table()
        rows = pa.concat_tables(added)
        return rows if len(added) == 1 and _ascends(rows) else in_log_order(rows)

    def _unknown(self, rows: pa.Table) -> pa.Table:
        """Return the rows from the ends on: a cleaning adds earlier rows again (R15)."""
        ends = pa.array(self.ends, pa.int64()).take(rows["log_partition"])
        return rows.filter(pc.greater_equal(rows["record_offset"], ends))

    def _scan(self, schema: pa.Schema, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        return LogScan(self._table, schema, block_rows=_BLOCK_ROWS).rows(files)

    def _note_ends(self, rows: pa.Table) -> None:
        partitions = rows["log_partition"].to_numpy()
        highest = np.array(self.ends, dtype=np.int64)
        np.maximum.at(highest, partitions, rows["record_offset"].to_numpy() + 1)
        self.ends = highest.tolist()


def _transactions(actions: Sequence[Action]) -> Iterator[int]:
    return (action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == APPLICATION)


def _leaves(log_partitions: Collection[int], actions: Sequence[Action]) -> bool:
    """Return whether a commit only appends, and no rows of these log partitions by the bounds of its files."""
    if takes_rows(actions) or changes_rules(actions):
        return False
    files = [DataFile.of_action(action["add"]) for action in actions if "add" in action]
    return not any(each.may_hold({"log_partition": sorted(log_partitions)}) for each in files)


def _ascends(rows: pa.Table) -> bool:
    partitions, offsets = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
    step = np.diff(partitions)
    return bool(np.all((step > 0) | ((step == 0) & (np.diff(offsets) > 0))))


def _writer(actions: Iterable[Action]) -> str:
    return str(info_of(actions).get("userMetadata", ""))
