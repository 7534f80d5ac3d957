"""Rows of the state tables in their files, in a task or in the driver: facts, published rows, and those that count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.fold.state.fold_progress import UNSTORED_INCARNATION
from offsets_pipeline.fold.state.merge_on_read import StateTable, by_incarnation, ended
from offsets_pipeline.store.delta.data_file import ALL_ROWS, with_values

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import DataFile, Only
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder

    Group = tuple[int, str]

_MOST_PARTITIONS = 100_000  # of a log, for files of other programs without statistics


@dataclass(frozen=True)
class StoredRows:
    """Files of facts and of published rows by table, and the incarnation that counts by log partition; picklable.

    A log partition of UNSTORED_INCARNATION has no rows there. All functions raise as `TableFolder.open_file`.
    """

    tables: Mapping[str, TableFolder]
    files: Mapping[str, Sequence[DataFile]]
    incarnations: Mapping[int, int]

    @classmethod
    def of(
        cls,
        snapshots: Iterable[Snapshot],
        incarnations: Mapping[int, int],
        written: Mapping[str, Sequence[DataFile]] = MappingProxyType({}),
    ) -> Self:
        """The rows in these versions of tables; ``written`` are files in place of those of a table, by its name."""
        named = {str(each) for each in incarnations.values()}
        seen = {each.table.name: each for each in snapshots}
        files = {
            name: [file for file in each.files() if not file.partition or file.partition["incarnation"] in named]
            for name, each in seen.items()
            if name not in written
        }
        return cls({name: each.table_folder for name, each in seen.items()}, {**files, **written}, incarnations)

    def of_partitions(self, partitions: Iterable[int]) -> Self:
        """The rows of these log partitions."""
        return replace(self, incarnations={at: self.incarnations[at] for at in partitions})

    def facts(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table:
        """Columns of the facts with values of ``only``, in no order."""
        found = [pa.Table.from_batches([], table.table.arrow_schema(columns))]
        for incarnation, partitions in by_incarnation(self.incarnations).items():
            own = [file for file in self.files[table.name] if file.partition["incarnation"] == str(incarnation)]
            found.append(rows_of(self.tables[table.name], own, partitions, columns, only))
        return pa.concat_tables(found)

    def folded_facts(
        self, table: StateTable, columns: Sequence[str], ends: Mapping[int, int], only: Only = ALL_ROWS
    ) -> pa.Table:
        """The facts as `facts`, without those that are later than these ends."""
        facts = self.facts(table, [*columns, "folded_to"], only)
        return facts.filter(are_folded(facts, ends)).select(columns)

    def published(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table | None:
        """The published rows as `facts`; None if the table has none."""
        if table.published is None:
            return None
        name = table.published.name
        sources = dict.fromkeys(table.as_published.get(each, each) for each in columns)
        stored = [at for at, each in self.incarnations.items() if each != UNSTORED_INCARNATION]
        rows = rows_of(self.tables[name], self.files[name], stored, [each for each in sources if each], only)
        return table.as_facts(rows, columns)

    def newest(
        self,
        table: StateTable,
        columns: Sequence[str],
        only: Only = ALL_ROWS,
        *,
        ends: Mapping[int, int] | None = None,
        more: pa.Table | None = None,
    ) -> pa.Table:
        """Return columns of the rows that count, in no order.

        ``only`` restricts the rows to values of columns of the key. ``ends``: later facts of a log partition do not
        count. ``more`` are facts in addition to those in files.
        """
        names = [*dict.fromkeys([*columns, *only, *table.key, *table.compared, *table.of_tie])]
        facts = self.facts(table, names, only) if ends is None else self.folded_facts(table, names, ends, only)
        if more is not None:
            facts = pa.concat_tables([facts, with_values(more.select(names), only)])
        return table.newest_rows(facts, self.published(table, names, only)).select(columns)


def are_folded(facts: pa.Table, ends: Mapping[int, int]) -> pa.ChunkedArray:
    """Whether facts count in a state up to these ends: later ones are of a fold that has not ended, or died."""
    return pc.less_equal(facts["folded_to"], ended(facts, ends))


def groups_in(rows: pa.Table) -> set[Group]:
    """Return the group of each row, each group once."""
    return set(zip(rows["log_partition"].to_pylist(), rows["group_id"].to_pylist(), strict=True))


def rows_of(
    folder: TableFolder,
    files: Iterable[DataFile],
    partitions: Collection[int],
    columns: Sequence[str] | None = None,
    only: Only = ALL_ROWS,
) -> pa.Table:
    """Return columns, by default all, of the rows of these log partitions in files, with values of ``only``."""
    found = [pa.Table.from_batches([], folder.table.arrow_schema(columns))]
    for file in files:
        wanted = only
        if not log_partitions_in(file).issubset(partitions):
            own = set(partitions).intersection(only.get("log_partition", partitions))
            wanted = {**only, "log_partition": sorted(own)}
        if file.may_hold(wanted):
            found.append(folder.read_file(file, columns, wanted))
    return pa.concat_tables(found)


def log_partitions_in(file: DataFile) -> set[int]:
    """The log partitions that a file may have rows of."""
    if not {"log_partition"} <= file.lowest.keys() & file.highest.keys():
        return set(range(_MOST_PARTITIONS))
    return set(range(file.lowest["log_partition"], file.highest["log_partition"] + 1))
