"""Known state of some groups, read from the files of the state tables, in a task or in the driver."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.classic_offsets import TOMBSTONE_RANK
from offsets_pipeline.state.fold_progress import UNSTORED_INCARNATION
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, StateTable, by_incarnation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsets_pipeline.delta.data_file import DataFile, Only
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.topic_kind import TopicKind

    Group = tuple[int, str]

_GROUP = ["log_partition", "group_id"]


@dataclass(frozen=True)
class KnownGroups:
    """Files of facts and published rows, and the log partitions of each incarnation that a fold continues; picklable.

    A log partition of UNSTORED_INCARNATION has no rows there.
    """

    tables: Mapping[str, TableFolder]
    files: Mapping[str, Sequence[DataFile]]
    partitions: Mapping[int, Sequence[int]]

    @classmethod
    def of(
        cls,
        snapshots: Iterable[Snapshot],
        incarnations: Mapping[int, int],
        written: Mapping[str, Sequence[DataFile]] = MappingProxyType({}),
    ) -> KnownGroups:
        """Look at these versions of the tables that `names_of_known` names.

        ``written`` are files to look at in place of those of a table, by its name.
        """
        seen = {each.table.name: each for each in snapshots}
        return cls(
            {name: TableFolder(each.folder, each.table) for name, each in seen.items()},
            {name: written[name] if name in written else each.files() for name, each in seen.items()},
            by_incarnation(incarnations),
        )

    def existing(self, groups: Collection[Group]) -> set[Group]:
        """Those of the groups that exist (R14)."""
        newest: dict[Group, tuple[int, str]] = {}
        rows = self._rows(DESCRIBED, groups, ["state", "record_offset"])
        for at, group_id, state, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            newest[at, group_id] = max(newest.get((at, group_id), (-1, DEAD)), (offset, state))
        return {group for group, (_, state) in newest.items() if state != DEAD and group in groups}

    def records(self, groups: Collection[Group]) -> pa.Table:
        """Rows of `group_records` of these groups; of a key maybe several."""
        return self._rows(RECORDS, groups, [name for name in RECORDS.columns if name not in _GROUP])

    def with_offsets(self, groups: Collection[Group], deleted: pa.Table) -> set[Group]:
        """Those of the groups that have a visible offset behind the tombstones ``deleted``, rows of OFFSETS.

        For a state of `classic` semantics.
        """
        columns = [*OFFSETS.key[len(_GROUP) :], "committed_offset", "record_offset", "position"]
        known = self._rows(OFFSETS, groups, columns)
        newest: dict[tuple[object, ...], tuple[int, int]] = {}
        for row in (row for rows in (known, deleted.select(known.column_names)) for row in rows.to_pylist()):
            at = tuple(row[name] for name in OFFSETS.key)
            rank = TOMBSTONE_RANK if row["committed_offset"] is None else row["record_offset"]
            newest[at] = max(newest.get(at, (-1, TOMBSTONE_RANK)), (row["position"], rank))
        visible = {(at[0], at[1]) for at, (_, rank) in newest.items() if rank != TOMBSTONE_RANK}
        return {group for group in groups if group in visible}

    def _rows(self, table: StateTable, groups: Collection[Group], columns: list[str]) -> pa.Table:
        """Facts and published rows of these groups; a group of that name in another log partition may be with them."""
        schema = pa.schema([table.row_schema().field(name) for name in [*_GROUP, *columns]])
        if not groups:
            return schema.empty_table()
        partitions = {partition for partition, _ in groups}
        published = partitions - set(self.partitions.get(UNSTORED_INCARNATION, ()))
        group_ids = sorted({group_id for _, group_id in groups})
        found = [schema.empty_table()]
        for name in table.names:
            for file in self.files.get(name, ()):
                incarnation = file.partition.get("incarnation")  # published rows have none
                own = published if incarnation is None else partitions & set(self.partitions.get(int(incarnation), ()))
                only: Only = {"group_id": group_ids, "log_partition": sorted(own)}
                if file.may_hold(only):
                    rows = self.tables[name].read_file(file, schema.names, only)
                    if "position" in schema.names and incarnation is None:
                        rows = rows.append_column("position", rows["record_offset"])
                    found.append(rows.select(schema.names).cast(schema))
        return pa.concat_tables(found)


def names_of_known(kind: TopicKind, semantics: CoordinatorSemantics) -> list[str]:
    """The tables that a fold looks up groups in; a topic of Kafka Connect has no groups."""
    if kind.is_connect:
        return []
    return [name for each in (RECORDS, DESCRIBED, *((OFFSETS,) if semantics.is_classic else ())) for name in each.names]
