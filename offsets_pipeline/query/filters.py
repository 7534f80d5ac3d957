"""Which groups and log partitions a query asks the views of history for, so that other files need not be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.query.parse_tree import Node

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
