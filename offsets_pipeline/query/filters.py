"""Which groups and log partitions a query asks the views of history for, so that other files need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Collection

_GROUP, _PARTITION = "group_id", "log_partition"
#: A filter on a group reads the log partition of R1: misplaced records are elsewhere.
_MISPLACED = "misplaced"


class Filters(NamedTuple):
    """The groups and log partitions whose rows suffice; None: all."""

    group_ids: list[str] | None = None
    log_partitions: list[int] | None = None


def filters_of(tree: exp.Expr, views: Collection[str]) -> Filters:
    """The filters of a query on these views: conditions in WHERE with = or IN, joined by AND.

    A condition counts if it is about the column of the view itself, and if each use of a view has one.
    """
    own = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    uses = [each for each in tree.find_all(exp.Table) if each.name.lower() in views and each.name.lower() not in own]
    asks_for_misplaced = any(each.name.lower() == _MISPLACED for each in tree.find_all(exp.Column))
    groups = None if asks_for_misplaced else _union([_values(each, _GROUP) for each in uses])
    partitions = _union([_values(each, _PARTITION) for each in uses])
    return Filters(
        None if groups is None else [str(each) for each in groups if isinstance(each, str)],
        None if partitions is None else [each for each in partitions if isinstance(each, int)],
    )


def _union(found: list[set[str | int] | None]) -> list[str | int] | None:
    known = [each for each in found if each is not None]
    return sorted(set().union(*known), key=str) if known and len(known) == len(found) else None


def _values(use: exp.Table, column: str) -> set[str | int] | None:
    """The values that a SELECT allows a column of one of its tables; None: any."""
    source = use.parent
    select = source.parent if isinstance(source, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select):
        return None
    where = select.args.get("where")
    if where is None:
        return None
    is_alone = not select.args.get("joins") and not select.args.get("laterals")
    found: set[str | int] | None = None
    conditions = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
    for condition in conditions:
        allowed = _allowed(condition.unnest(), column, use.alias_or_name.lower(), is_alone=is_alone)
        if allowed is not None:
            found = allowed if found is None else found & allowed
    return found


def _allowed(condition: exp.Expr, column: str, table: str, *, is_alone: bool) -> set[str | int] | None:
    if isinstance(condition, exp.EQ):
        left, values = condition.left, [condition.right]
        if not isinstance(left, exp.Column):
            left, values = condition.right, [condition.left]
    elif isinstance(condition, exp.In) and not condition.args.get("query") and not condition.args.get("unnest"):
        left, values = condition.this, condition.expressions
    else:
        return None
    if not isinstance(left, exp.Column) or left.name.lower() != column:
        return None
    if left.table.lower() != table if left.table else not is_alone:
        return None
    if not all(isinstance(each, exp.Literal) and each.is_string == (column == _GROUP) for each in values):
        return None  # another type: the query converts it
    if column == _GROUP:
        return {each.this for each in values}
    return {int(each.this) for each in values} if all(each.is_int for each in values) else None
