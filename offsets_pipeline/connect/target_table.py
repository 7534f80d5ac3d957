"""The Delta table that a source task writes: rows, flush number and source offsets in one commit (R31).

A commit has two transactions (Delta's action `txn`): the flush number of the task's application id, and beside it the
epoch of the instance of the task. Its user metadata holds the source offsets, as `FlushedOffsets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import InvalidRequest, OffsetsLost, StoreReplaced, TaskFenced, WriteConflict
from offsets_pipeline.semantics.connect_keys import canonical_json
from offsets_pipeline.semantics.facts import Column
from offsets_pipeline.store.delta.filesystems import resolved_folder
from offsets_pipeline.store.delta.protocol import delta_type
from offsets_pipeline.store.delta.schemas import Table
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.store.delta.snapshot import Snapshot

_STATISTICS = "delta.dataSkippingStatsColumns"


@dataclass(frozen=True)
class FlushedOffsets:
    """The source offsets of a task up to a flush; flush -1: none yet."""

    flush: int = -1
    #: By source partition as canonical JSON: the source offset as JSON text, and the flush that wrote it. An offset of
    #: null deletes.
    offsets: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def as_json(self, application: str, epoch: int) -> str:
        """The user metadata of a commit."""
        offsets = [
            {"partition": json.loads(partition), "offset": json.loads(offset), "flush": flush}
            for partition, (offset, flush) in self.offsets.items()
        ]
        return canonical_json({"application": application, "epoch": epoch, "flush": self.flush, "offsets": offsets})

    @classmethod
    def of_json(cls, text: str) -> FlushedOffsets:
        """Read the user metadata of a commit. Raises ValueError or KeyError for metadata of another program."""
        found = json.loads(text)
        return cls(
            found["flush"],
            {
                canonical_json(each["partition"]): (canonical_json(each["offset"]), each["flush"])
                for each in found["offsets"]
            },
        )


class TargetTable:
    """A Delta table in a folder, for one source task. Other writers may append to it, too, and compact it.

    ``schema`` has the columns that the task writes; the table is created with them if there is none.
    Raises ConfigError for a wrong location.
    """

    def __init__(self, location: str | Path, schema: pa.Schema) -> None:
        folder = resolved_folder(str(location))
        self.schema = schema
        self._folder = TableFolder(folder, _table(folder, schema))
        self._table_id: str | None = None

    @property
    def location(self) -> str:
        """The table's folder."""
        return self._folder.folder

    @property
    def table_id(self) -> str:
        """The id of the table as of `fence`."""
        assert self._table_id is not None  # noqa: S101 - `fence` comes first
        return self._table_id

    def epoch(self, application: str) -> int:
        """The epoch of the newest instance of a task; -1 without one. Creates the table if there is none.

        Raises UnsafeStorage, StorageFailed, DamagedTable.
        """
        if not self._folder.exists():
            self._folder.create()
        return self._folder.snapshot().transaction(_epoch_of(application))

    def fence(self, application: str, epoch: int) -> None:
        """Commit the epoch of an instance: no commit of an instance with a lower epoch succeeds from now on.

        Raises TaskFenced if another instance has this epoch or a higher one, and as `commit`.
        """
        seen = self._folder.snapshot()
        self._folder.refuse_unwritable(seen)
        if seen.transaction(_epoch_of(application)) >= epoch:
            raise self._fenced(application, epoch)
        try:
            self._folder.commit(seen=seen, advance={_epoch_of(application): epoch})
        except WriteConflict:
            raise self._fenced(application, epoch) from None
        self._table_id = seen.table_id

    def flushed(self, application: str, followed: int) -> FlushedOffsets:
        """The source offsets of the last flush in the table. After `fence` no older instance adds one.

        If the table no longer has the commit of that flush, returns no offsets. Raises OffsetsLost then unless the
        flush is ``followed``, the last flush of the store.
        """
        seen = self._folder.snapshot()
        flush = seen.transaction(application)
        if flush < 0:
            return FlushedOffsets()
        text = seen.user_metadata(application)
        if text is not None:
            try:
                return FlushedOffsets.of_json(text)
            except (ValueError, KeyError, TypeError):
                text = None
        if flush != followed:
            raise OffsetsLost(
                f"cannot resume {application}: {self.location} has its flush {flush}, and no longer the commit with "
                f"the source offsets; the store has those of flush {followed}; alter the offsets by the rows of the "
                "table, and write to another table"
            )
        return FlushedOffsets(flush)

    def commit(self, application: str, epoch: int, flushed: FlushedOffsets, rows: pa.Table) -> None:
        """Commit rows with the source offsets after them, both or none, so that they survive a loss of power.

        Raises TaskFenced if a newer instance has started, StoreReplaced if the table was created again, InvalidRequest
        for rows that do not fit the schema, StorageFailed, UnsupportedTable: nothing was written. Raises CommitUnknown
        if the commit may be there.
        """
        rows = self._conformed(rows)
        metadata = flushed.as_json(application, epoch)
        while True:
            seen = self._folder.snapshot()
            self._require(seen, application, epoch)
            add = [self._folder.write_file(rows)] if rows.num_rows else []
            try:
                self._folder.commit(
                    add,
                    seen=seen,
                    advance={application: flushed.flush},
                    unless_advanced=[_epoch_of(application)],
                    user_metadata=metadata,
                )
            except WriteConflict:  # fenced, or the commits since `seen` are no longer kept
                continue
            return

    def _require(self, seen: Snapshot, application: str, epoch: int) -> None:
        if seen.table_id != self._table_id:
            raise StoreReplaced(
                f"the table {self.location} was created again while a task wrote to it; start the task again"
            )
        if seen.transaction(_epoch_of(application)) != epoch:
            raise self._fenced(application, epoch)

    def _fenced(self, application: str, epoch: int) -> TaskFenced:
        return TaskFenced(
            f"cannot write to {self.location} as {application} with epoch {epoch}: another instance of this task has "
            "started; nothing was written; stop this one"
        )

    def _conformed(self, rows: pa.Table) -> pa.Table:
        known = set(_members(self.schema))
        more = [name for name in _members(rows.schema) if name not in known]  # a cast would drop them
        if more:
            column = ".".join(more[0])
            raise InvalidRequest(f"the rows do not fit the table {self.location}: it lacks the column {column}")
        try:
            found = rows.select(self.schema.names).cast(self.schema)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise InvalidRequest(f"the rows do not fit the table {self.location}: {first_line(error)}") from error
        for each in self.schema:
            if not each.nullable and found[each.name].null_count:
                raise InvalidRequest(f"column {each.name} of {self.location} must not be null")
        return found


def _members(fields: Iterable[pa.Field], within: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of columns and of members of structs, also of those in arrays and maps."""
    for each in fields:
        kind = each.type
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        path = (*within, each.name)
        yield path
        if pa.types.is_map(kind):
            yield from _members([kind.key_field.with_name("key"), kind.item_field.with_name("value")], path)
        elif pa.types.is_struct(kind):
            yield from _members(kind, path)


def _epoch_of(application: str) -> str:
    return f"{application}/epoch"


def _table(folder: str, schema: pa.Schema) -> Table:
    for each in schema:
        try:
            delta_type(each.type)
        except KeyError as error:
            raise InvalidRequest(f"column {each.name} has the type {each.type}, which Delta lacks; cast it") from error
    columns = tuple(Column(each.name, each.type, "", each.nullable) for each in schema)
    bounded = [each.name for each in schema if not each.nullable and pa.types.is_integer(each.type)]
    return Table(
        folder.rpartition("/")[2],
        "Rows of a source task. The user metadata of each commit has the source offsets.",
        columns,
        {_STATISTICS: ",".join(bounded)} if bounded else {},
    )
