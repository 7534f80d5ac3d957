"""The result of a comparison of the state with a replay, and the rows of the state that it reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.delta.snapshot import query
from offsets_pipeline.state.changes import in_key_order
from offsets_pipeline.state.merge_on_read import StateTable, named_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.state.fold_progress import PartitionProgress

#: Differences that a verification shows in words.
EXAMPLES = 5


@dataclass
class Verification:
    """Numbers of what was compared; differences by table, and the first few of them in words."""

    log_partitions: int = 0
    records: int = 0
    offsets: int = 0
    groups: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def add(self, other: Verification) -> None:
        """Take in the comparison of other log partitions."""
        self.log_partitions += other.log_partitions
        self.records += other.records
        self.offsets += other.offsets
        self.groups += other.groups
        for table, count in other.differences.items():
            self.differences[table] = self.differences.get(table, 0) + count
        self.examples += other.examples

    def note_progress(self, log_partition: int, of_log: object, of_state: object) -> None:
        """Note a log partition whose end or pending commits differ."""
        if of_log != of_state:
            self.differences[FOLD_PROGRESS.name] = self.differences.get(FOLD_PROGRESS.name, 0) + 1
            self.examples.append(
                f"{FOLD_PROGRESS.name}: log_partition {log_partition}: the log gives {of_log}, the state has {of_state}"
            )

    def compare(self, table: str, key: tuple[str, ...], expected: pa.Table, found: pa.Table) -> None:
        """Note rows that only one of the two has, rows that differ, and rows that ``found`` has more than once."""
        if expected.equals(found):
            return
        columns = [name for name in expected.column_names if name not in key]
        of_log = _by_key(expected, key, columns)
        copies = Counter(zip(*(found[name].to_pylist() for name in key), strict=True))
        of_state = _by_key(found, key, columns)
        differing = [
            at for at in of_log.keys() | of_state.keys() if of_log.get(at) != of_state.get(at) or copies[at] > 1
        ]
        if not differing:
            return
        self.differences[table] = self.differences.get(table, 0) + len(differing)
        for at in sorted(differing, key=repr)[:EXAMPLES]:
            where = ", ".join(f"{name} {value!r}" for name, value in zip(key, at, strict=True))
            times = f" {copies[at]} times" if copies[at] > 1 else ""
            self.examples.append(
                f"{table}: {where}: the log gives {of_log.get(at, 'nothing')}, "
                f"the state has {of_state.get(at, 'nothing')}{times}"
            )


@dataclass(frozen=True)
class StateRows:
    """Versions of the state tables, and the progress that names their rows; picklable."""

    tables: Mapping[str, tuple[TableFolder, int]]
    progress: Mapping[int, PartitionProgress]

    def state(self, table: StateTable, partitions: set[int]) -> pa.Table:
        """The rows of the state of these log partitions that count."""
        schema = table.row_schema()
        if not partitions:
            return schema.empty_table()
        where = f"log_partition IN ({', '.join(map(str, sorted(partitions)))})"
        named = named_rows({at: self.progress[at].incarnation for at in partitions})
        facts = f"(SELECT * FROM {table.name} WHERE {named} AND {where})"
        published = None if table.published is None else f"(SELECT * FROM {table.published.name} WHERE {where})"
        snapshots = [folder.snapshot(version) for folder, version in map(self.tables.__getitem__, table.names)]
        return query(table.newest(facts, published), *snapshots).read_all().cast(schema)


def place(folded_to: int, pending: object) -> dict[str, object]:
    """End and pending commits of a log partition, for `note_progress`."""
    return {"folded_to": folded_to, "pending": pending}


def ordered(table: StateTable, rows: pa.Table) -> pa.Table:
    """The rows sorted by their key, in one chunk."""
    return in_key_order(table, rows.combine_chunks()).combine_chunks()


def _by_key(rows: pa.Table, key: tuple[str, ...], columns: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keys = zip(*(rows[name].to_pylist() for name in key), strict=True)
    return dict(zip(keys, rows.select(columns).to_pylist(), strict=True))
