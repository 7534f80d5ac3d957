"""Rows of the state tables for tests: written as a fold writes them, and read by both queries for rows that count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.state.changes import write_files
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import OFFSETS, StateTable, named_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from offsets_pipeline.delta.data_file import AddFile
    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.state.fold_progress import PartitionProgress
    from offsets_pipeline.store import Store

    Query = Callable[[StateTable, str, str], str]


def without_spark(table: StateTable, name: str, named: str) -> str:
    """The query for DataFusion."""
    return table.newest(name, named)


def in_spark(table: StateTable, name: str, named: str, compacted_to: str | None = None) -> str:
    """The query for Spark, with half of the hash equal for all keys. ``compacted_to``: None for the end of the base."""
    end_of_base = f"(SELECT coalesce(max({table.version}) + 1, 0) FROM {name} WHERE base AND {named})"
    return with_half_a_hash(table.newest_in_spark(name, named, compacted_to or end_of_base))


def with_half_a_hash(query: str) -> str:
    """The query as if the first half of the hash were the same for all keys."""
    found, joins = re.subn(r"b\.key_hash_high = d\.key_hash_high", "TRUE", query)
    assert joins == 3
    return found


def written(
    folder: TableFolder, table: StateTable, rows: list[dict[str, Any]], *, is_base: bool = False, incarnation: int = 1
) -> list[AddFile]:
    """A file of the table with these rows."""
    of_file = pa.Table.from_pylist(rows, schema=table.file_schema())
    return write_files(folder, table, of_file, is_base=is_base, incarnation=incarnation)


def newest(folder: TableFolder, table: StateTable, incarnations: dict[int, int], query: Query) -> list[dict[str, Any]]:
    """The rows that count, by key."""
    sql = query(table, table.name, named_rows(incarnations))
    rows: list[dict[str, Any]] = folder.snapshot().query(sql).read_all().to_pylist()
    return sorted(rows, key=lambda row: tuple(row[name] for name in table.key))


def offset(where: str, record_offset: int, *, log_partition: int = 0, is_tombstone: bool = False) -> dict[str, Any]:
    """A row of `committed_offsets`; ``where`` is a letter for the topic and a digit for the partition."""
    return {
        "log_partition": log_partition,
        "group_id": "g",
        "topic": where[0],
        "partition": int(where[1]),
        "committed_offset": None if is_tombstone else record_offset,
        "record_offset": record_offset,
        "position": record_offset,
        "misplaced": False,
    }


def of_offsets(folder: TableFolder, incarnations: dict[int, int], query: Query) -> list[tuple[str, int, int | None]]:
    return [
        (f"{row['topic']}{row['partition']}", row["record_offset"], row["committed_offset"])
        for row in newest(folder, OFFSETS, incarnations, query)
    ]


def before_swap(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when the next fold has written everything but its progress."""
    whole = FoldProgress.swap

    def swap(self: FoldProgress, partitions: dict[int, PartitionProgress]) -> None:
        patch.setattr(FoldProgress, "swap", whole)
        act()
        whole(self, partitions)

    patch.setattr(FoldProgress, "swap", swap)


def progress_of(store: Store) -> FoldProgress:
    return FoldProgress.read(store.table(FOLD_PROGRESS.name))


def append(store: Store, *rows: dict[str, Any], table: StateTable = OFFSETS, incarnation: int = 1) -> None:
    """Append delta rows, as a fold does."""
    folder = store.table(table.name)
    folder.commit(add=written(folder, table, list(rows), incarnation=incarnation), seen=folder.snapshot())


def offsets(store: Store) -> list[tuple[str, int, int | None]]:
    """The rows that count, equal by both queries."""
    progress = progress_of(store)
    ends = " ".join(f"WHEN {at} THEN {each.compacted_to[OFFSETS.name]}" for at, each in progress.partitions.items())

    def to_spark(table: StateTable, name: str, named: str) -> str:
        return in_spark(table, name, named, f"CASE log_partition {ends} END")

    folder = store.table(OFFSETS.name)
    found = of_offsets(folder, progress.incarnations, without_spark)
    assert of_offsets(folder, progress.incarnations, to_spark) == found
    return found
