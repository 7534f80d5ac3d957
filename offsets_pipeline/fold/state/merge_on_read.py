"""Merge on read: which rows of the state count.

A fact counts if `fold_progress` names its incarnation for its log partition, and if no other row of its key has a
higher record offset (R10), or under `classic` a higher position and record offset (R10c). So every fold appends its
facts blindly: two folds that write the same change, or an old one, change nothing. Publishing moves the facts that are
answered to a published table, which has each key once. All other facts, and later ones, stay (docs/adr/0037). Of a
published row and a fact with the same key, the higher one counts. If they are equal, the fact counts: it may have more
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.arrow_values import all_false, array_of
from offsets_pipeline.semantics.answering import IS_LISTED
from offsets_pipeline.store.delta.schemas import (
    CONNECT_RECORDS,
    CONSUMER_GROUPS,
    CURRENT_OFFSETS,
    GROUP_FACTS,
    GROUP_RECORDS,
    OFFSET_FACTS,
    SHARE_PARTITION_FACTS,
    Table,
)

if TYPE_CHECKING:
    from offsets_pipeline.semantics.topic_kind import TopicKind

#: Columns that only facts have. A commit assigns `incarnation`.
_OF_FACT = ("folded_to", "incarnation")


@dataclass(frozen=True)
class StateTable:
    """A table of facts with its key. Rows of one key compare by the highest of some columns, nulls left out.

    ``has_tie``: rows with equal columns compare by the record offset, which a tombstone lacks (R10c). ``published`` is
    the table with the facts that are answered, ``answered`` the SQL condition for these. ``as_published`` maps a column
    that the published table lacks to the column that has its value; None: the value is false.
    """

    table: Table
    key: tuple[str, ...]
    compared: tuple[str, ...] = ("record_offset",)
    has_tie: bool = False
    published: Table | None = None
    answered: str = "TRUE"
    as_published: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))

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

    @property
    def of_tie(self) -> tuple[str, ...]:
        """The columns that decide between rows with equal `compared`."""
        return ("record_offset", "committed_offset") if self.has_tie else ()

    def row_schema(self) -> pa.Schema:
        """The Arrow schema of `columns`."""
        return self.table.arrow_schema(self.columns)

    def newest_rows(self, facts: pa.Table, published: pa.Table | None) -> pa.Table:
        """The rows that count, in no order, of rows with the same columns: `key` and `compared` among them.

        Args:
            facts: the facts of the incarnations that count; all of a key, or none.
            published: the published rows, restricted likewise; None: none of them counts.
        """
        rest = facts.slice(0, 0)  # `empty_table` imports pandas
        if published is not None:  # most published rows have no fact
            may_be = pc.is_in(published[self.key[1]], pc.unique(facts[self.key[1]]))
            rest = published.filter(pc.invert(may_be))
            facts = pa.concat_tables([published.filter(may_be), facts])
        version = [pc.max_element_wise(*(facts[name] for name in self.compared))]
        if self.has_tie:
            none = pa.nulls(facts.num_rows, pa.int64())
            version.append(pc.if_else(facts["committed_offset"].is_valid(), facts["record_offset"], none))
        return pa.concat_tables([rest, last_of_each(facts, self.key, version)])

    def as_facts(self, published: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return rows of the published table with the columns of facts."""
        found = []
        for name in columns:
            source = self.as_published.get(name, name)
            found.append(all_false(published.num_rows) if source is None else published[source])
        return pa.Table.from_arrays(found, schema=self.table.arrow_schema(columns))

    def newest(self, facts: str, published: str | None) -> str:
        """SQL of DuckDB for the rows that count, with `columns`; arguments as of `newest_rows`."""
        listed = ", ".join(self.columns)
        newest = self._newest_of(self._compared(facts))
        if published is None:
            return f"SELECT {listed} FROM {newest} f"
        rows = self._compared(self._as_facts(published))
        return f"""
            SELECT {listed} FROM {newest} f ANTI JOIN {rows} p
              ON {self._same} AND (p.version > f.version OR p.version = f.version AND p.tie > f.tie)
            UNION ALL
            SELECT {listed} FROM {rows} p ANTI JOIN {newest} f
              ON {self._same} AND (f.version > p.version OR f.version = p.version AND f.tie >= p.tie)
        """

    def newest_in_spark(self, facts: str, published: str | None, progress: str) -> str:
        """SQL of Spark for the rows that count and are `answered`. Each query resolves the three tables by itself.

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
            f"{self.as_published[name] or 'FALSE'} AS {name}" if name in self.as_published else name
            for name in self.columns
        ]
        return f"(SELECT {', '.join(columns)} FROM {published} q)"

    def _compared(self, rows: str) -> str:
        """SQL of rows with the two numbers by which they compare."""
        numbers = [f"coalesce({name}, -1)" for name in self.compared]
        version = f"greatest({', '.join(numbers)})" if len(numbers) > 1 else self.compared[0]
        tie = "CASE WHEN committed_offset IS NULL THEN -1 ELSE record_offset END" if self.has_tie else "0"
        return f"(SELECT *, {version} AS version, {tie} AS tie FROM {rows} r)"

    def _newest_of(self, versions: str) -> str:
        """SQL of the newest row of each key; ``versions`` is SQL of rows with the two numbers."""
        by_age = f"PARTITION BY {', '.join(self.key)} ORDER BY version DESC, tie DESC"
        return f"""(
            SELECT * FROM (SELECT *, row_number() OVER ({by_age}) AS place FROM {versions} v) w WHERE place = 1
        )"""


OFFSETS = StateTable(
    OFFSET_FACTS,
    ("log_partition", "group_id", "topic", "partition"),
    ("position",),
    has_tie=True,
    published=CURRENT_OFFSETS,
    answered="committed_offset >= 0 AND NOT misplaced",  # and its group does not hide it (R14)
    as_published=MappingProxyType({"position": "record_offset", "misplaced": None}),
)
RECORDS = StateTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    ("value_offset", "tombstone_offset"),
)
DESCRIBED = StateTable(
    GROUP_FACTS,
    ("log_partition", "group_id"),
    published=CONSUMER_GROUPS,
    answered=IS_LISTED,
    as_published=MappingProxyType({"protocol": "assignor"}),
)

CONNECT = StateTable(CONNECT_RECORDS, ("log_partition", "raw_key"))
SHARES = StateTable(SHARE_PARTITION_FACTS, ("log_partition", "group_id", "topic_id", "partition"))

STATE_TABLES = (OFFSETS, RECORDS, DESCRIBED)


def state_tables_of(kind: TopicKind) -> tuple[StateTable, ...]:
    """The tables of facts of a store with a topic of this kind."""
    if kind.has_groups:
        return STATE_TABLES
    return (CONNECT,) if kind.is_connect else (SHARES,)


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


def are_answered(offsets: pa.Table) -> pa.ChunkedArray:
    """Whether rows of OFFSETS are `answered`: a negative committed offset answers as none, and a tombstone has null."""
    committed = offsets["committed_offset"]
    has_offset = pc.and_kleene(committed.is_valid(), pc.greater_equal(committed, array_of([0])[0]))
    return pc.and_not(has_offset, offsets["misplaced"])


def ended(rows: pa.Table, ends: Mapping[int, int]) -> pa.Array:
    """Return for each row the end of its log partition; null for a log partition without an end."""
    place = pc.index_in(rows["log_partition"].cast(pa.int64()), array_of(list(ends)))
    return array_of(list(ends.values())).take(place)


def last_of_each(rows: pa.Table, key: Sequence[str], order: Sequence[pa.ChunkedArray]) -> pa.Table:
    """The row of each key that has the highest values of ``order``, null being the lowest; of equal ones the last.

    Without pandas, which NumPy's arrays would import: it takes longer than most questions.
    """
    if not rows.num_rows:
        return rows
    codes = [_code_of(rows[name]) for name in key]
    names = [str(number) for number in range(len(codes) + len(order))]
    sort_keys = [(name, "ascending", "at_start") for name in names]
    places = pc.sort_indices(pa.Table.from_arrays([*codes, *order], names), sort_keys)
    in_order = [each.take(places) for each in codes]
    is_last = reduce(pc.or_, (pc.not_equal(each.slice(0, len(each) - 1), each.slice(1)) for each in in_order))
    last = len(places) - 1
    return rows.take(pa.concat_arrays([places.slice(0, last).filter(is_last), places.slice(last)]))


def _code_of(column: pa.ChunkedArray) -> pa.Array:
    """A number for each value; equal values have equal numbers."""
    values = column.combine_chunks()
    return values.dictionary_encode().indices if pa.types.is_string(values.type) else values


def _published_to(progress: str) -> str:
    """SQL of Spark for the record offset to which the log partition of a row is published."""
    return f"{_of_partition(progress)}.published_to"


def _of_partition(progress: str) -> str:
    """The row of ``progress`` for a row's log partition. Spark runs equal subqueries of a query once."""
    partitions = f"SELECT array_sort(collect_list(struct(log_partition, incarnation, published_to))) FROM {progress}"
    return f"get(({partitions}), log_partition)"
