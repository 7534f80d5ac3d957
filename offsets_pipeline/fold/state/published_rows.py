"""Rows of the state in memory, for folds and publishing: their order, those that are answered, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.sql_dialects import DUCKDB
from offsets_pipeline.connect.connector_views import CONNECT_VIEWS, connect_conditions
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, StateTable, are_answered, by_incarnation
from offsets_pipeline.fold.state.view_queries import VIEWS
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS, IS_LISTED
from offsets_pipeline.semantics.log_row import of_partitions
from offsets_pipeline.store.delta.schemas import CONSUMER_GROUPS, CURRENT_OFFSETS, TABLE_BY_NAME

if TYPE_CHECKING:
    import numpy.typing as npt

    from offsets_pipeline.semantics.topic_kind import TopicKind
    from offsets_pipeline.store.delta.data_file import DataFile

#: Groups by log partition and group id.
Groups = frozenset[tuple[int, str]]

_FILE_ROWS = 1_000_000
#: One core: publishing runs beside folds.
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {"threads": 1}

_LISTED = f"(FROM groups WHERE {IS_LISTED})"
#: Facts of groups that say more than their published rows: a misplaced one describes itself, others hide offsets.
_STAYS = f"{HIDES_OFFSETS} OR misplaced"


def hiding(groups: pa.Table) -> Groups:
    """The groups among rows of `group_facts` that hide their offsets (R14)."""
    found = rows_by_sql(f"SELECT log_partition, group_id FROM groups WHERE {HIDES_OFFSETS}", groups=groups)
    return frozenset(zip(*(column.to_pylist() for column in found.columns), strict=True))


def in_key_order(table: StateTable, rows: pa.Table) -> pa.Table:
    """The rows sorted by their key."""
    ranks = [_ranks(rows[name].combine_chunks()) for name in reversed(table.key)]
    return rows.take(pa.array(np.lexsort(ranks)))


def divided(table: StateTable, rows: pa.Table, hidden: AbstractSet[tuple[int, str]]) -> tuple[pa.Table, pa.Table]:
    """Divide rows into those of the published table and those that stay facts.

    The rows are sorted by key, with each key once. A fact with more information than its published row is in both: the
    position of an offset (R10c), the description of a misplaced group, a group that hides its offsets.
    """
    if table is DESCRIBED:
        view = VIEWS["consumer_groups"].format(groups=_LISTED, answers=ANSWERS, **DUCKDB)
        published = rows_by_sql(view, "log_partition, group_id", groups=rows)
        stays = rows_by_sql(f"FROM groups WHERE {_STAYS}", "log_partition, group_id", groups=rows)
        return published.cast(CONSUMER_GROUPS.arrow_schema()), stays.cast(rows.schema)
    is_answered = are_answered(rows)
    if hidden:
        is_answered = pc.and_not(is_answered, are_of_groups(rows, hidden))
    stays = rows.filter(pc.or_(pc.invert(is_answered), pc.not_equal(rows["position"], rows["record_offset"])))
    published = rows.select(CURRENT_OFFSETS.names())
    if not pc.all(is_answered).as_py():
        published = published.filter(is_answered)
    return published.cast(CURRENT_OFFSETS.arrow_schema()), stays


class FileWriter(Protocol):
    """A `TableFolder`, or an object with the same method `write_file`."""

    def write_file(self, rows: pa.Table, partition: Mapping[str, str] = ...) -> DataFile:
        """See `TableFolder`."""


def write_published(folder: FileWriter, rows: pa.Table) -> list[DataFile]:
    """Write published rows, sorted by their key, to files of whole log partitions; a large one has several."""
    return [folder.write_file(each) for each in _shares(rows)]


def write_facts(folder: FileWriter, facts: pa.Table, incarnations: Mapping[int, int]) -> list[DataFile]:
    """Write facts, sorted by their key, to files of the incarnations of their log partitions; no file for no rows."""
    return [
        folder.write_file(own.slice(start, _FILE_ROWS), {"incarnation": str(incarnation)})
        for incarnation, partitions in by_incarnation(incarnations).items()
        for own in [of_partitions(facts, partitions)]
        for start in range(0, own.num_rows, _FILE_ROWS)
    ]


def _shares(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in shares of about a million, cut between log partitions; a larger log partition has several."""
    partitions = rows["log_partition"].to_numpy()
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    ends = np.append(starts[1:], rows.num_rows)
    share = rows.num_rows / max(1, round(rows.num_rows / _FILE_ROWS))
    first_of_share = np.diff((starts + ends) / 2 // share, prepend=-1) > 0
    for start, end in pairwise([*starts[first_of_share].tolist(), rows.num_rows]):
        most = end - start if end - start < 2 * _FILE_ROWS else _FILE_ROWS
        for part in range(start, end, most):
            yield rows.slice(part, min(most, end - part))


def are_of_groups(rows: pa.Table, groups: AbstractSet[tuple[int, str]]) -> pa.Array:
    """Whether a row is of one of these groups."""
    may_be = pc.is_in(rows["group_id"], pa.array(sorted({group_id for _, group_id in groups}), pa.string()))
    at = np.flatnonzero(may_be.to_numpy())
    some = rows.take(pa.array(at)).select(["log_partition", "group_id"])
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    of_some = zip(some["log_partition"].to_pylist(), some["group_id"].to_pylist(), strict=True)
    found[at] = [group in groups for group in of_some]
    return pa.array(found)


# --- reading


def rows_by_sql(query: str, order: str = "ALL", **tables: pa.Table) -> pa.Table:
    """The rows of a query in DuckDB's SQL over these tables, in this order."""
    import duckdb  # noqa: PLC0415 - questions import this module and publish nothing

    with duckdb.connect(config=_CONFIGURATION) as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        return connection.sql(f"SELECT * FROM ({query}) q ORDER BY {order}").to_arrow_table()


def connect_rows(view: str, stores: Sequence[tuple[TopicKind, pa.Table]]) -> pa.Table:
    """The rows of a view of Kafka Connect (R30), of rows of `connect_records` that count: of a store, and beside it."""
    rows = {f"store{number}": each for number, (_, each) in enumerate(stores)}
    names = {"own": "store0", "all": " UNION ALL ".join(f"FROM {name}" for name in rows)}
    names |= DUCKDB | connect_conditions([kind for kind, _ in stores])
    return rows_by_sql(CONNECT_VIEWS[view].format(**names), **rows).cast(TABLE_BY_NAME[view].arrow_schema())


def _ranks(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers that sort as the values do: sorting on several columns of strings takes ten times as long."""
    if not pa.types.is_string(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    encoded = column.dictionary_encode()
    ranks = pc.rank(encoded.dictionary, tiebreaker="first").to_numpy()
    return np.asarray(ranks[encoded.indices.to_numpy()], dtype=np.int64)
