"""Rows of the state tables for tests: written as folds and publishings write them, and read by all queries for them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from offsets_pipeline.fold.state.current import CurrentState
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.merge_on_read import OFFSETS, StateTable, named_rows
from offsets_pipeline.fold.state.published_rows import rows_by_sql, write_facts, write_published
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pytest

    from offsets_pipeline.fold.state.fold_progress import PartitionProgress
    from offsets_pipeline.store.store import Store

    #: Of a table of facts, its published table and the progress, the rows that count, or of these the answered ones.
    Query = Callable[[StateTable, TableFolder, TableFolder | None, Mapping[int, PartitionProgress]], pa.Table]

#: Functions of Spark that `newest_in_spark` uses, for DuckDB.
_SPARK_FUNCTIONS = (
    "CREATE MACRO get(items, place) AS list_extract(items, place + 1)",
    "CREATE MACRO collect_list(item) AS list(item)",
    """CREATE MACRO struct(a, b, c) AS
        struct_pack(log_partition := a, incarnation := b, published_to := c)""",
)


def of_a_reader(
    table: StateTable, facts: TableFolder, published: TableFolder | None, progress: Mapping[int, PartitionProgress]
) -> pa.Table:
    """The rows that count, as a question reads them."""
    folders = {each.table.name: each for each in (facts, published) if each is not None}
    all_ended = {at: replace(each, folded_to=2**62) for at, each in progress.items()}
    properties = StoreProperties(MIRRORED, len(progress))
    state = CurrentState(lambda name: folders[name].snapshot(), properties, 0, MODERN, all_ended, all_ended)
    return state.newest(table, table.columns)


def in_duckdb(
    table: StateTable, facts: TableFolder, published: TableFolder | None, progress: Mapping[int, PartitionProgress]
) -> pa.Table:
    """The rows that count, by DuckDB."""
    named = named_rows({at: each.incarnation for at, each in progress.items()})
    of_facts = rows_by_sql(f"SELECT {', '.join(table.columns)} FROM facts WHERE {named}", facts=facts.snapshot().rows())
    if published is None:
        return rows_by_sql(table.newest("facts", None), facts=of_facts)
    return rows_by_sql(table.newest("facts", "published"), facts=of_facts, published=published.snapshot().rows())


def in_spark(
    table: StateTable, facts: TableFolder, published: TableFolder | None, progress: Mapping[int, PartitionProgress]
) -> pa.Table:
    """The rows that count and are answered, by the query for Spark."""
    of_facts = facts.snapshot().rows()
    return answered_in_spark(table, of_facts, None if published is None else published.snapshot().rows(), progress)


def answered_in_spark(
    table: StateTable, facts: pa.Table, published: pa.Table | None, progress: Mapping[int, PartitionProgress]
) -> pa.Table:
    """The rows that count and are answered of all rows of two tables, by the query for Spark, which DuckDB runs."""
    sql = table.newest_in_spark("facts", None if published is None else "published", "progress")
    sql = re.sub(r"\bLEFT (ANTI|SEMI) JOIN\b", r"\1 JOIN", sql)
    partitions = [
        {"log_partition": at, "incarnation": each.incarnation, "published_to": each.published_to}
        for at, each in progress.items()
    ]
    with duckdb.connect() as connection:
        for macro in _SPARK_FUNCTIONS:
            connection.execute(macro)
        connection.register("facts", facts)
        if published is not None:
            connection.register("published", published)
        schema = pa.schema([("log_partition", pa.int32()), ("incarnation", pa.int32()), ("published_to", pa.int64())])
        connection.register("progress", pa.Table.from_pylist(partitions, schema=schema))
        return connection.sql(sql).to_arrow_table()


def write(
    folder: TableFolder, rows: list[dict[str, Any]], *, folded_to: int | None = None, incarnation: int = 1
) -> None:
    """Append facts, as a fold does; by default its log partition ends behind the rows."""
    ends = [row["record_offset"] + 1 for row in rows if "record_offset" in row]
    end = max(ends, default=0) if folded_to is None else folded_to
    schema = pa.schema([each for each in folder.table.arrow_schema() if each.name != "incarnation"])
    facts = pa.Table.from_pylist([row | {"folded_to": end} for row in rows], schema=schema)
    incarnations = dict.fromkeys(facts["log_partition"].to_pylist(), incarnation)
    folder.commit(add=write_facts(folder, facts, incarnations), seen=folder.snapshot())


def put(folder: TableFolder, rows: list[dict[str, Any]]) -> None:
    """Put rows in place of those of a published table."""
    seen = folder.snapshot()
    found = pa.Table.from_pylist(rows, schema=folder.table.arrow_schema())
    folder.commit(write_published(folder, found), seen.files(), seen=seen)


def in_order(table: StateTable, rows: pa.Table) -> list[dict[str, Any]]:
    """Rows by their key."""
    return sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in table.key))


def offset(
    where: str, record_offset: int, *, log_partition: int = 0, is_tombstone: bool = False, position: int | None = None
) -> dict[str, Any]:
    """A row of an offset; ``where`` is a letter for the topic and a digit for the partition."""
    return {
        "log_partition": log_partition,
        "group_id": "h",  # of log partition 0 of two
        "topic": where[0],
        "partition": int(where[1]),
        "committed_offset": None if is_tombstone else record_offset,
        "record_offset": record_offset,
        "position": record_offset if position is None else position,
        "misplaced": False,
    }


def places(rows: pa.Table) -> list[tuple[str, int, int | None]]:
    """Topic and partition, record offset and committed offset of rows of offsets, by their key."""
    return [
        (f"{row['topic']}{row['partition']}", row["record_offset"], row["committed_offset"])
        for row in in_order(OFFSETS, rows)
    ]


def acts_before(patch: pytest.MonkeyPatch, table: str, act: Callable[[], object]) -> None:
    """Do something before the next commit to a table."""
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if self.table.name == table:
            patch.setattr(TableFolder, "commit", whole)
            act()
        return whole(self, *arguments, **named)

    patch.setattr(TableFolder, "commit", commit)


def before_swap(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when the next fold or reload has written everything but its progress."""
    whole = FoldProgress.replace

    def replace(self: FoldProgress, *more: Any) -> None:  # noqa: ANN401
        patch.setattr(FoldProgress, "replace", whole)
        act()
        whole(self, *more)

    patch.setattr(FoldProgress, "replace", replace)


def progress_of(store: Store) -> FoldProgress:
    return FoldProgress.read(store.table(FOLD_PROGRESS.name))


def swap(store: Store, partitions: Mapping[int, PartitionProgress]) -> None:
    """Swap the progress, as a fold does that has written to no table."""
    progress = progress_of(store)
    progress.swap({**progress.partitions, **partitions}, {})


def append(
    store: Store, *rows: dict[str, Any], table: StateTable = OFFSETS, folded_to: int | None = None, incarnation: int = 1
) -> None:
    """Append facts, as a fold does."""
    write(store.table(table.name), list(rows), folded_to=folded_to, incarnation=incarnation)


def offsets(store: Store) -> list[tuple[str, int, int | None]]:
    """The offsets that count, equal by all queries."""
    progress = progress_of(store).partitions
    folders = store.table(OFFSETS.name), store.table(OFFSETS.names[1])
    rows = of_a_reader(OFFSETS, *folders, progress)
    found = places(rows)
    assert places(in_duckdb(OFFSETS, *folders, progress)) == found
    answered = rows.filter(pc.and_(pc.greater_equal(rows["committed_offset"], 0), pc.invert(rows["misplaced"])))
    assert places(in_spark(OFFSETS, *folders, progress)) == places(answered)
    return found


def published(location: Path | str) -> list[tuple[str, int, int | None]]:
    """The rows of `current_offsets`, as any reader of Delta tables finds them."""
    return places(DeltaTable(f"{location}/current_offsets").to_pyarrow_table())
