"""DuckDB's parse tree of a query: one SELECT, the tables that it names, and what it asks of the views of history.

`filters_of` finds the groups and log partitions to which a query limits a view, so that other files need not be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from offsets_pipeline.common.input_text import is_deeper, is_utf8
from offsets_pipeline.errors import QueryFailed

if TYPE_CHECKING:
    Node = dict[str, Any]

#: Ends the message of a query that DuckDB does not understand.
DIALECTS = "`offsets sql` speaks DuckDB's SQL, `offsets sql --spark` Spark's"
#: Nodes of a query that only reads: DuckDB allows INSERT, UPDATE, DELETE and COPY in WITH.
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"}
#: Functions in place of a table that read no files and no settings.
_TABLE_FUNCTIONS = {"unnest", "range", "generate_series"}
#: DuckDB allows as many. Its parser takes 9 KB of memory for each bracket before it counts them.
_MOST_BRACKETS = 1_000
#: Levels of a parse tree: as many as Python 3.11 reads.
_MOST_LEVELS = 900

_GROUP, _PARTITION = "group_id", "log_partition"
#: A filter on a group reads the log partition of R1: misplaced records are elsewhere.
_MISPLACED = "misplaced"
#: Joins that need no rows outside of the filter. ASOF and POSITIONAL pair a row by its neighbours.
_JOINS = {"REGULAR", "CROSS", "NATURAL"}
_KINDS = {_GROUP: "STRING", _PARTITION: "INTEGER"}
_PARTITION_NUMBER = re.compile("[0-9]{1,9}")


class Filters(NamedTuple):
    """The groups and log partitions whose rows suffice; None: all."""

    group_ids: list[str] | None = None
    log_partitions: list[int] | None = None


def parsed(query: str) -> list[Node]:
    """Return the nodes of the parse tree of one SELECT, in no order. Raises QueryFailed for any other text."""
    if not is_utf8(query):
        raise QueryFailed("cannot run the query: it has an unpaired surrogate, which UTF-8 cannot hold")
    too_deep = QueryFailed("cannot run the query: it is nested too deeply; nest it less")
    if max(accumulate((each in "([{") - (each in ")]}") for each in query), default=0) > _MOST_BRACKETS:
        raise too_deep
    with duckdb.connect(":memory:") as connection:
        ((text,),) = connection.execute("SELECT json_serialize_sql(?, skip_default := true)", [query]).fetchall()
    try:
        answer = json.loads(text)
    except RecursionError:
        raise too_deep from None
    if is_deeper(answer, _MOST_LEVELS):
        raise too_deep
    if answer["error"] and answer["error_type"] == "parser":
        reason = answer["error_message"].splitlines()[0]
        if "depth limit" in reason:
            raise too_deep
        before = query.encode()[: int(answer.get("position", 0))].decode(errors="ignore").split("\n")
        position = f"line {len(before)}, column {len(before[-1]) + 1}"
        raise QueryFailed(f"the query is not DuckDB's SQL: {reason}, at {position}; {DIALECTS}")
    statements = answer.get("statements", [])
    nodes = _nodes(statements)
    kinds = {str(each.get("type")) for each in nodes}
    if len(statements) != 1 or any(each.endswith(("_NODE", "SHOW_REF")) and each not in _QUERIES for each in kinds):
        raise QueryFailed(
            "cannot run the query: it is not one SELECT; --tables lists the views and tables, --spark runs other "
            "statements of Spark SQL"
        )
    return nodes


def tables_in(nodes: Collection[Node], known: Collection[str]) -> list[str]:
    """Return the names of the tables and views that a query reads, in lower case.

    A name that WITH defines counts if it is one of the ``known`` names: the query may read both.

    Raises QueryFailed for a name with a schema, and for a function in place of a table.
    """
    own = {entry["key"].lower() for each in nodes for entry in each.get("cte_map", {}).get("map", ())}
    found = {}
    for each in nodes:
        if each.get("type") == "TABLE_FUNCTION":
            path = each["function"]["qualified_name"]["path"]
            if len(path) != 1 or path[0].lower() not in _TABLE_FUNCTIONS:
                raise QueryFailed(f"cannot read {'.'.join(path)}() as a table; name a view or a table of the store")
        elif each.get("type") == "BASE_TABLE":
            path = each["qualified_name"]["path"]
            if len(path) != 1:
                raise QueryFailed(f"no view or table {'.'.join(path)}: views and tables have no schema here")
            name = path[0].lower()
            if name not in own or name in known:
                found[name] = each.get("query_location", 0)
    return sorted(found, key=found.__getitem__)


def _nodes(tree: object) -> list[Node]:
    """All objects of a JSON document, without recursion: a tree may be deep."""
    found, waiting = [], [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found.append(each)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def filters_of(nodes: Collection[Node], views: Collection[str]) -> Filters:
    """The filters of a parsed query on these views: conditions in WHERE with = or IN, joined by AND.

    A condition counts if it is about the column of the view itself, and if each use of a view has one.
    """
    selects = [each for each in nodes if each.get("type") == "SELECT_NODE"]
    select_of = {id(table): each for each in selects for table in _joined(each["from_table"])}
    uses = [each for each in nodes if each.get("type") == "BASE_TABLE" and each["table_name"].lower() in views]
    columns = {name.lower() for each in nodes for name in each.get("column_names", ())}
    found = {
        column: [_values(select_of.get(id(each)), each, column) for each in uses] for column in (_GROUP, _PARTITION)
    }
    groups = None if _MISPLACED in columns else _union(found[_GROUP])
    partitions = _union(found[_PARTITION])
    return Filters(groups, None if partitions is None else [int(each) for each in partitions])


def _union(found: list[set[str] | None]) -> list[str] | None:
    known = [each for each in found if each is not None]
    return sorted(set().union(*known)) if known and len(known) == len(found) else None


def _joined(source: Node) -> Iterator[Node]:
    """The tables of a FROM from which rows may be left out."""
    waiting = [source]
    while waiting:
        each = waiting.pop()
        if each["type"] != "JOIN":
            yield each
        elif each["ref_type"] in _JOINS:
            waiting += [each["left"], each["right"]]


def _values(select: Node | None, use: Node, column: str) -> set[str] | None:
    """The values that a SELECT allows a column of one of its tables; None: any."""
    if select is None or "where_clause" not in select or use.keys() & {"sample", "column_name_alias"}:
        return None
    names = [[(use.get("alias") or use["table_name"]).lower(), column]]
    if select["from_table"] is use:
        names.append([column])
    found, conditions = None, [select["where_clause"]]
    while conditions:
        condition = conditions.pop()
        if condition["type"] == "CONJUNCTION_AND":
            conditions += condition["children"]
        elif (allowed := _allowed(condition, names)) is not None:
            found = allowed if found is None else found & allowed
    return found


def _allowed(condition: Node, names: list[list[str]]) -> set[str] | None:
    """The literals to which a condition compares a column of one of these names."""
    compared = condition.get("children") if condition["type"] == "COMPARE_IN" else None
    if condition["type"] == "COMPARE_EQUAL":
        compared = sorted((condition["left"], condition["right"]), key=lambda each: "literal" in each)
    if compared is None or [each.lower() for each in compared[0].get("column_names", ())] not in names:
        return None
    literals = [each.get("literal", {}) for each in compared[1:]]
    texts = {str(each.get("text", "")) for each in literals}
    if any(each.get("kind") != _KINDS[names[0][1]] for each in literals):
        return None  # another type: the query converts it
    return texts if names[0][1] == _GROUP or all(map(_PARTITION_NUMBER.fullmatch, texts)) else None
