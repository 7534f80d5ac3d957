"""Merge on read: which rows of the state count.

A fact counts if `fold_progress` names its incarnation for its log partition, and if no other row of its key has a
higher record offset (R10), or under `classic` a higher position and record offset (R10c). So every fold appends its
facts blindly: two folds that write the same change, or an old one, change nothing. Publishing moves the facts that are
answered to a published table, which has each key once; the others, and later ones, stay facts (docs/adr/0037). A row
counts as of both tables. Where they are equal, the fact counts: it may have more columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.schemas import (
    CONNECT_RECORDS,
    CONSUMER_GROUPS,
    CURRENT_OFFSETS,
    GROUP_FACTS,
    GROUP_RECORDS,
    OFFSET_FACTS,
    Table,
)
from offsets_pipeline.semantics.answering import IS_LISTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.semantics.topic_kind import TopicKind

#: What a fact has beside the columns of its row; a commit assigns the second.
_OF_FACT = ("folded_to", "incarnation")


@dataclass(frozen=True)
class StateTable:
    """A table of facts with its key and, as SQL, the number by which rows of one key compare, and then another one.

    ``published`` is the table with the facts that are answered. ``answered`` is SQL for these, ``as_published`` SQL for
    the columns that the published table lacks.
    """

    table: Table
    key: tuple[str, ...]
    version: str
    tie: str = "0"
    published: Table | None = None
    answered: str = "TRUE"
    as_published: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """The name of the table of facts."""
        return self.table.name

    @property
    def names(self) -> list[str]:
        """The names of the tables of facts and of published rows."""
        return [self.table.name, *([] if self.published is None else [self.published.name])]

    @property
    def columns(self) -> list[str]:
        """All columns of a row."""
        return [name for name in self.table.names() if name not in _OF_FACT]

    def row_schema(self) -> pa.Schema:
        """The Arrow schema of `columns`."""
        schema = self.table.arrow_schema()
        return pa.schema([schema.field(name) for name in self.columns])

    def newest(self, facts: str, published: str | None, anti_join: str = "LEFT ANTI JOIN") -> str:
        """SQL of DataFusion for the rows that count, with `columns`.

        Args:
            facts: SQL of the facts of the incarnations that count; it may restrict the key as well.
            published: SQL of the published rows, restricted likewise; None: none of them counts.
            anti_join: The join in SQL; DuckDB writes it ANTI JOIN.
        """
        listed = ", ".join(self.columns)
        newest = self._newest_of(self._compared(facts))
        if published is None:
            return f"SELECT {listed} FROM {newest} f"
        rows = self._compared(self._as_facts(published))
        return f"""
            SELECT {listed} FROM {newest} f {anti_join} {rows} p
              ON {self._same} AND (p.version > f.version OR p.version = f.version AND p.tie > f.tie)
            UNION ALL
            SELECT {listed} FROM {rows} p {anti_join} {newest} f
              ON {self._same} AND (f.version > p.version OR f.version = p.version AND f.tie >= p.tie)
        """

    def newest_in_spark(self, facts: str, published: str | None, progress: str) -> str:
        """The same for Spark, of three tables that each query resolves by itself, for the rows that are `answered`.

        Spark pins the version of a table where it comes first in a query: the progress, in a subquery, comes before the
        facts, and these before the published rows. Publishing writes in the other direction, so rows that are no
        longer facts are published (docs/adr/0037).

        A fact from `published_to` on counts, and not the published row of its key. Only earlier facts are looked up
        among the published rows. Usually none of them is answered: then Spark's adaptive execution drops that join.
        """
        facts_that_count = self.facts_in_spark(facts, published, progress, self.answered)
        if published is None:
            return facts_that_count
        listed, key = ", ".join(self.columns), ", ".join(self.key)
        return f"""
            {facts_that_count}
            UNION ALL
            SELECT /*+ BROADCAST(f) */ {listed} FROM {self._compared(self._as_facts(published))} p
            LEFT ANTI JOIN (
                SELECT {key}, version, tie, version >= {_published_to(progress)} AS is_later
                FROM {self._named(facts, progress)} v
            ) f
              ON {self._same}
              AND (f.is_later OR f.version > p.version OR f.version = p.version AND f.tie >= p.tie)
        """

    def facts_in_spark(self, facts: str, published: str | None, progress: str, answered: str) -> str:
        """SQL of Spark for the facts among these rows."""
        listed, key = ", ".join(self.columns), ", ".join(self.key)
        newest = f"(SELECT * FROM {self._newest_of(self._named(facts, progress))} n WHERE {answered})"
        if published is None:
            return f"SELECT {listed} FROM {newest} f"
        return f"""
            SELECT /*+ BROADCAST(p) */ {listed} FROM {newest} f
            LEFT ANTI JOIN (
                SELECT /*+ BROADCAST(f) */ {key}, version, tie FROM {self._compared(self._as_facts(published))} p
                LEFT SEMI JOIN (SELECT {key} FROM {newest} n WHERE version < {_published_to(progress)}) f
                  ON {self._same}
            ) p
              ON {self._same} AND (p.version > f.version OR p.version = f.version AND p.tie > f.tie)
        """

    def _named(self, facts: str, progress: str) -> str:
        named = f"incarnation = {_of_partition(progress)}.incarnation"
        return self._compared(f"(SELECT * FROM {facts} WHERE {named})")

    @property
    def _same(self) -> str:
        return " AND ".join(f"p.{each} = f.{each}" for each in self.key)

    def _as_facts(self, published: str) -> str:
        """SQL of published rows with the columns of facts."""
        columns = [
            f"{self.as_published[name]} AS {name}" if name in self.as_published else name for name in self.columns
        ]
        return f"(SELECT {', '.join(columns)} FROM {published} q)"

    def _compared(self, rows: str) -> str:
        """SQL of rows with the two numbers by which they compare."""
        return f"(SELECT *, {self.version} AS version, {self.tie} AS tie FROM {rows} r)"

    def _newest_of(self, versions: str) -> str:
        """SQL of the newest row of each key; ``versions`` is SQL of rows with the two numbers."""
        by_age = f"PARTITION BY {', '.join(self.key)} ORDER BY version DESC, tie DESC"
        return f"""(
            SELECT * FROM (SELECT *, row_number() OVER ({by_age}) AS place FROM {versions} v) w WHERE place = 1
        )"""


OFFSETS = StateTable(
    OFFSET_FACTS,
    ("log_partition", "group_id", "topic", "partition"),
    "position",
    "CASE WHEN committed_offset IS NULL THEN -1 ELSE record_offset END",  # R10c
    CURRENT_OFFSETS,
    "committed_offset >= 0 AND NOT misplaced",  # and its group does not hide it (R14)
    MappingProxyType({"position": "record_offset", "misplaced": "FALSE"}),
)
RECORDS = StateTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    "greatest(coalesce(value_offset, -1), coalesce(tombstone_offset, -1))",
)
DESCRIBED = StateTable(
    GROUP_FACTS,
    ("log_partition", "group_id"),
    "record_offset",
    published=CONSUMER_GROUPS,
    answered=IS_LISTED,
    as_published=MappingProxyType({"protocol": "assignor"}),
)

CONNECT = StateTable(CONNECT_RECORDS, ("log_partition", "raw_key"), "record_offset")

STATE_TABLES = (OFFSETS, RECORDS, DESCRIBED)


def state_tables_of(kind: TopicKind) -> tuple[StateTable, ...]:
    """The tables of facts of a store with a topic of this kind."""
    return (CONNECT,) if kind.is_connect else STATE_TABLES


def by_incarnation(incarnations: Mapping[int, int]) -> dict[int, list[int]]:
    """The log partitions of each incarnation."""
    found: dict[int, list[int]] = {}
    for log_partition, incarnation in incarnations.items():
        found.setdefault(incarnation, []).append(log_partition)
    return found


def named_rows(incarnations: Mapping[int, int]) -> str:
    """SQL condition for the facts of these incarnations, given by log partition."""
    partitions = by_incarnation(incarnations)
    if len(partitions) == 1:  # `fold_progress` has all log partitions
        return f"incarnation = {next(iter(partitions))}"
    each = (
        f"(incarnation = {incarnation} AND log_partition IN ({', '.join(map(str, of_incarnation))}))"
        for incarnation, of_incarnation in partitions.items()
    )
    return f"({' OR '.join(each)})" if partitions else "FALSE"


def _published_to(progress: str) -> str:
    """SQL of Spark for the record offset to which the log partition of a row is published."""
    return f"{_of_partition(progress)}.published_to"


def _of_partition(progress: str) -> str:
    """The row of ``progress`` for a row's log partition. Spark runs equal subqueries of a query once."""
    partitions = f"SELECT array_sort(collect_list(struct(log_partition, incarnation, published_to))) FROM {progress}"
    return f"get(({partitions}), log_partition)"
