"""Merge on read: which rows of a state table count.

A row counts if `fold_progress` names its incarnation for its log partition, and if no other row of its key has a higher
record offset (R10), or under `classic` a higher position and record offset (R10c). So every fold appends its rows
blindly: two folds that write the same change, or an old one, change nothing. Compaction puts the rows that count into
base files, each key once; later rows are the delta (docs/adr/0008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, CONNECT_RECORDS, GROUP_RECORDS, GROUPS, KEY_HASH, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.semantics.topic_kind import TopicKind

#: Columns by which a table is partitioned. Its files do not hold them: a commit assigns them.
PARTITION_COLUMNS = ("base", "incarnation")
_HASH_COLUMNS = tuple(column.name for column in KEY_HASH)


@dataclass(frozen=True)
class StateTable:
    """A state table with its key and, as SQL, the number by which rows of one key compare, and then another one."""

    table: Table
    key: tuple[str, ...]
    version: str
    tie: str = "0"

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def columns(self) -> list[str]:
        """All columns of a row. A file holds the hash of the key as well."""
        return [name for name in self.table.names() if name not in (*PARTITION_COLUMNS, *_HASH_COLUMNS)]

    def file_schema(self) -> pa.Schema:
        """The Arrow schema of `columns`."""
        schema = self.table.arrow_schema()
        return pa.schema([schema.field(name) for name in self.columns])

    def newest(self, name: str, named: str, anti_join: str = "LEFT ANTI JOIN") -> str:
        """SQL of Spark and DataFusion for the rows that count, with `columns`.

        Args:
            name: The table in SQL.
            named: Condition on `log_partition` and `incarnation`: the incarnations that `fold_progress` names. It may
                restrict the key as well.
            anti_join: The join in SQL; DuckDB writes it ANTI JOIN.
        """
        same = " AND ".join(f"b.{each} = d.{each}" for each in self.key)
        delta = _newest_of(self._versions(name, f"NOT base AND {named}"), self.key)
        base = self._versions(name, f"base AND {named}")
        listed = ", ".join(self.columns)
        return f"""
            SELECT {listed} FROM {base} b {anti_join} {delta} d
              ON {same} AND (d.version > b.version OR d.version = b.version AND d.tie > b.tie)
            UNION ALL
            SELECT {listed} FROM {delta} d {anti_join} {base} b
              ON {same} AND (b.version > d.version OR b.version = d.version AND b.tie >= d.tie)
        """

    def _versions(self, name: str, where: str) -> str:
        """SQL of rows with the two numbers by which they compare."""
        return f"(SELECT *, {self.version} AS version, {self.tie} AS tie FROM {name} WHERE {where})"

    def newest_in_spark(self, name: str, named: str, compacted_to: str) -> str:
        """The same for Spark alone, in which the delta is broadcast and the base is read once.

        A delta row from ``compacted_to`` on, an SQL expression over `log_partition`, is newer than every base row. Only
        keys with an older one are looked up in the base. Usually there is none: then Spark's adaptive execution drops
        that join.

        The joins compare hashes of keys, which the files hold: a query of two columns reads no key. Spark looks up one
        number five times as fast as two, so the others are compared by inequalities. What is joined to rows of named
        incarnations needs no filter by ``named``, only their incarnation: each such filter costs time to plan.
        """
        listed, high = ", ".join(self.columns), _HASH_COLUMNS[0]
        compared = (*_HASH_COLUMNS[1:], "incarnation")
        same = " AND ".join(
            [f"b.{high} = d.{high}", *(f"b.{each} <= d.{each} AND b.{each} >= d.{each}" for each in compared)]
        )
        joined = f"version, tie, {high}, {', '.join(compared)}"
        of_delta = self._versions(name, f"NOT base AND {named}")
        return f"""
            SELECT /*+ BROADCAST(d) */ {listed} FROM {self._versions(name, f"base AND {named}")} b
            LEFT ANTI JOIN (SELECT {joined} FROM {self._versions(name, "NOT base")}) d
              ON {same} AND (b.version < d.version OR b.version = d.version AND b.tie <= d.tie)
            UNION ALL
            SELECT /*+ BROADCAST(b) */ {listed} FROM {_newest_of(of_delta, _HASH_COLUMNS)} d
            LEFT ANTI JOIN (
                SELECT /*+ BROADCAST(d) */ {joined} FROM {self._versions(name, "base")} b
                LEFT SEMI JOIN (SELECT {high} FROM {of_delta} WHERE version < {compacted_to}) d ON b.{high} = d.{high}
            ) b
              ON {same} AND (b.version > d.version OR b.version = d.version AND b.tie > d.tie)
        """


def _newest_of(delta: str, key: Sequence[str]) -> str:
    """SQL of the newest row of each key; ``delta`` is SQL of rows with the two numbers."""
    by_age = f"PARTITION BY {', '.join(key)} ORDER BY version DESC, tie DESC"
    return f"""(
        SELECT * FROM (SELECT *, row_number() OVER ({by_age}) AS place FROM {delta} v) p WHERE place = 1
    )"""


OFFSETS = StateTable(
    COMMITTED_OFFSETS,
    ("log_partition", "group_id", "topic", "partition"),
    "position",
    "CASE WHEN committed_offset IS NULL THEN -1 ELSE record_offset END",  # R10c
)
RECORDS = StateTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    "greatest(coalesce(value_offset, -1), coalesce(tombstone_offset, -1))",
)
DESCRIBED = StateTable(GROUPS, ("log_partition", "group_id"), "record_offset")

CONNECT = StateTable(CONNECT_RECORDS, ("log_partition", "raw_key"), "record_offset")

STATE_TABLES = (OFFSETS, RECORDS, DESCRIBED)


def state_tables_of(kind: TopicKind) -> tuple[StateTable, ...]:
    """The state tables of a store with a topic of this kind."""
    return (CONNECT,) if kind.is_connect else STATE_TABLES


def by_incarnation(incarnations: Mapping[int, int]) -> dict[int, list[int]]:
    """The log partitions of each incarnation."""
    found: dict[int, list[int]] = {}
    for log_partition, incarnation in incarnations.items():
        found.setdefault(incarnation, []).append(log_partition)
    return found


def named_rows(incarnations: Mapping[int, int]) -> str:
    """SQL condition for the rows of these incarnations, given by log partition."""
    partitions = by_incarnation(incarnations)
    if len(partitions) == 1:  # `fold_progress` has all log partitions
        return f"incarnation = {next(iter(partitions))}"
    each = (
        f"(incarnation = {incarnation} AND log_partition IN ({', '.join(map(str, of_incarnation))}))"
        for incarnation, of_incarnation in partitions.items()
    )
    return f"({' OR '.join(each)})" if partitions else "FALSE"


def named_by(progress: str) -> str:
    """SQL condition, for Spark, for the rows of the incarnations that the table ``progress`` names."""
    return f"incarnation = {_of_partition(progress)}.incarnation"


def compacted_to_by(progress: str, table: StateTable) -> str:
    """SQL expression, for Spark, for `compacted_to` of a row of ``table``, by the table ``progress``."""
    return f"{_of_partition(progress)}.compacted_to.{table.name}"


def _of_partition(progress: str) -> str:
    """The row of ``progress`` for a row's log partition. Spark runs equal subqueries of a query once."""
    partitions = f"SELECT array_sort(collect_list(struct(log_partition, incarnation, compacted_to))) FROM {progress}"
    return f"get(({partitions}), log_partition)"
