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

from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, GROUP_RECORDS, GROUPS, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Columns by which a table is partitioned. Its files do not hold them: a commit assigns them.
PARTITION_COLUMNS = ("base", "incarnation")


@dataclass(frozen=True)
class StateTable:
    """A state table with its key and, as SQL, the number by which rows of one key compare."""

    table: Table
    key: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def columns(self) -> list[str]:
        """All columns that a file of the table holds."""
        return [name for name in self.table.names() if name not in PARTITION_COLUMNS]

    def file_schema(self) -> pa.Schema:
        """The Arrow schema of `columns`."""
        schema = self.table.arrow_schema()
        return pa.schema([schema.field(name) for name in self.columns])

    def newest(self, name: str, named: str) -> str:
        """SQL of Spark and DataFusion for the rows that count, with `columns`.

        Args:
            name: The table in SQL.
            named: Condition on `log_partition` and `incarnation`: the incarnations that `fold_progress` names. It may
                restrict the key as well.
        """
        same = " AND ".join(f"b.{each} = d.{each}" for each in self.key)
        delta, base = (
            self._delta(name, named),
            f"(SELECT *, {self.version} AS version FROM {name} WHERE base AND {named})",
        )
        listed = ", ".join(self.columns)
        return f"""
            SELECT {listed} FROM {base} b LEFT ANTI JOIN {delta} d ON {same} AND d.version > b.version
            UNION ALL
            SELECT {listed} FROM {delta} d LEFT ANTI JOIN {base} b ON {same} AND b.version >= d.version
        """

    def newest_in_spark(self, name: str, named: str) -> str:
        """The same for Spark alone, in which a small delta is broadcast.

        Base rows whose key hash no delta row has are in the answer as they are. Only the others, and the delta, are
        compared by their keys: two keys with one hash do no harm.
        """
        listed, key = ", ".join(self.columns), ", ".join(self.key)
        hashes = f"(SELECT DISTINCT xxhash64({key}) AS key_hash FROM {name} WHERE NOT base AND {named}) d"
        base = f"(SELECT *, xxhash64({key}) AS key_hash FROM {name} WHERE base AND {named}) b"
        return f"""
            SELECT /*+ BROADCAST(d) */ {listed} FROM {base} LEFT ANTI JOIN {hashes} ON b.key_hash = d.key_hash
            UNION ALL
            SELECT {listed} FROM (
                SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {self.version} DESC) AS place FROM (
                    SELECT {listed} FROM {name} WHERE NOT base AND {named}
                    UNION ALL
                    SELECT /*+ BROADCAST(d) */ {listed} FROM {base} LEFT SEMI JOIN {hashes} ON b.key_hash = d.key_hash
                ) v
            ) p WHERE place = 1
        """

    def _delta(self, name: str, named: str) -> str:
        """SQL of the newest delta row of each key, with `columns` and its version."""
        listed = ", ".join(self.columns)
        return f"""(
            SELECT {listed}, version FROM (
                SELECT *, row_number() OVER (PARTITION BY {", ".join(self.key)} ORDER BY version DESC) AS place
                FROM (SELECT *, {self.version} AS version FROM {name} WHERE NOT base AND {named}) v
            ) p WHERE place = 1
        )"""


OFFSETS = StateTable(
    COMMITTED_OFFSETS,
    ("log_partition", "group_id", "topic", "partition"),
    # R10c: the pair (position, record offset or -1 for a tombstone); record offsets stay below 2^62
    "(CAST(position AS DECIMAL(19, 0)) * CAST(4611686018427387904 AS DECIMAL(19, 0))"
    " + CASE WHEN committed_offset IS NULL THEN -1 ELSE record_offset END)",
)
RECORDS = StateTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    "greatest(coalesce(value_offset, -1), coalesce(tombstone_offset, -1))",
)
DESCRIBED = StateTable(GROUPS, ("log_partition", "group_id"), "record_offset")

STATE_TABLES = (OFFSETS, RECORDS, DESCRIBED)


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
    incarnations = (
        "SELECT transform(array_sort(collect_list(struct(log_partition, incarnation))), each -> each.incarnation) "
        f"FROM {progress}"
    )
    return f"incarnation = get(({incarnations}), log_partition)"
