"""DuckDB's parse tree of a query: one SELECT, and the tables that it names."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import duckdb

from offsets_pipeline.errors import QueryFailed
from offsets_pipeline.input_text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Collection

    Node = dict[str, Any]

#: Ends the message of a query that DuckDB does not understand.
DIALECTS = "`offsets sql` speaks DuckDB's SQL, `offsets sql --spark` Spark's"
#: Nodes of a query that only reads: DuckDB allows INSERT, UPDATE, DELETE and COPY in WITH.
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"}
#: Functions in place of a table that read no files and no settings.
_TABLE_FUNCTIONS = {"unnest", "range", "generate_series"}
#: DuckDB allows as many. Its parser takes 9 KB of memory for each bracket before it counts them.
_MOST_BRACKETS = 1_000


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
    if answer["error"] and answer["error_type"] == "parser":
        reason = answer["error_message"].splitlines()[0]
        if "depth limit" in reason:
            raise too_deep
        before = query.encode()[: int(answer.get("position", 0))].decode(errors="ignore").split("\n")
        place = f"line {len(before)}, column {len(before[-1]) + 1}"
        raise QueryFailed(f"the query is not DuckDB's SQL: {reason}, at {place}; {DIALECTS}")
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
