"""Translates queries in Spark SQL to DuckDB's SQL: sqlglot, and what it does not translate.

Raises QueryFailed for a text that is not one query.
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

from offsets_pipeline.errors import QueryFailed
from offsets_pipeline.input_text import is_utf8

#: Functions of Spark that DuckDB lacks, as macros.
MACROS = (
    """CREATE MACRO substring_index(s, d, n) AS
        array_to_string(CASE WHEN n > 0 THEN string_split(s, d)[1:n] ELSE string_split(s, d)[n:] END, d)""",
    # of bytes: whole bytes, not halves of two
    "CREATE MACRO contains_bytes(a, b) AS regexp_matches(hex(a), '^(..)*' || hex(b))",
)
_MAP_OF_TEXTS = re.compile(r"map\s*<\s*string\s*,\s*string\s*>", re.IGNORECASE)
_ANSI = re.compile("\x1b\\[[0-9;]*m")
_TABLE_FUNCTIONS = (exp.Unnest, exp.Explode)
#: Texts, names in quotes, and comments.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_OPERATOR = re.compile(
    r"\b(?:and|or|not|when|between|like|union|except|intersect|join)\b|\|\||[-+*/%&^|~]", re.IGNORECASE
)
#: More take seconds to translate.
_MOST_OPERATORS = 1_000
_SHOWN_DIGITS = 20
_LONG_NUMBER = re.compile(r"[0-9]{500,}")


def parsed(query: str) -> exp.Expr:
    """Return the tree of one query. Raises QueryFailed."""
    _refuse_large(query)
    try:
        return _parsed(query)
    except RecursionError:
        raise _too_deep() from None


def _refuse_large(query: str) -> None:
    """Raise QueryFailed for a query that takes long to translate, before anything is done with it."""
    if not is_utf8(query):
        raise QueryFailed("the query is not Spark SQL: it has an unpaired surrogate, which UTF-8 cannot hold")
    outside = _QUOTED.sub("''", query)
    operators = sum(1 for _ in _OPERATOR.finditer(outside))
    if operators > _MOST_OPERATORS:
        raise QueryFailed(
            f"cannot run the query: it has {operators} conditions and operators, and {_MOST_OPERATORS} are allowed; "
            "write IN (...) for many values of a column, or try --spark"
        )
    if (number := _LONG_NUMBER.search(outside)) is not None:
        raise QueryFailed(f"cannot run the query: the number {number[0][:_SHOWN_DIGITS]}... is too long")


def _too_deep() -> QueryFailed:
    return QueryFailed("cannot run the query: it is nested too deeply; nest it less, or try --spark")


def _parsed(query: str) -> exp.Expr:
    try:
        trees = [each for each in sqlglot.parse(query, read="spark") if each is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {"description": str(error), "line": 1, "col": 1}
        raise QueryFailed(
            f"the query is not Spark SQL: {_ANSI.sub('', str(first['description'])).rstrip('.')}, at line "
            f"{first['line']}, column {first['col']}"
        ) from None
    except SqlglotError as error:
        raise QueryFailed(f"the query is not Spark SQL: {_ANSI.sub('', str(error)).splitlines()[0]}") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise QueryFailed("cannot run the query: it is not one SELECT; --spark runs other statements of Spark SQL")
    for select in trees[0].find_all(exp.Select):
        select.set("hint", None)
    return trees[0]


def tables_in(tree: exp.Expr) -> list[str]:
    """Return the names of the tables and views that a query reads. Raises QueryFailed for a name with a schema.

    Raises QueryFailed for a function in place of a table, too.
    """
    own = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    found: dict[str, None] = {}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            if isinstance(table.this, _TABLE_FUNCTIONS):
                continue
            raise QueryFailed(f"cannot read {table.this.sql('spark')} as a table; name a view or a table of the store")
        if table.args.get("db") is not None:
            raise QueryFailed(f"no view or table {table.sql('spark')}: views and tables have no schema here")
        if table.name.lower() not in own:
            found[table.name] = None
    return list(found)


def in_duckdb(tree: exp.Expr) -> str:
    """Return the query in DuckDB's SQL. Raises QueryFailed if it has no equal there."""
    try:
        tree = tree.copy()
        _name_columns(tree)
        return tree.transform(_adapted).sql("duckdb", unsupported_level=ErrorLevel.IGNORE)
    except SqlglotError as error:
        raise QueryFailed(f"cannot translate the query to DuckDB: {str(error).splitlines()[0]}; try --spark") from None
    except RecursionError:
        raise _too_deep() from None


def _name_columns(tree: exp.Expr) -> None:
    """Give columns without a name those that Spark gives them, such as count(1)."""
    first = next(iter(tree.find_all(exp.Select)), None)
    for each in () if first is None else first.expressions:
        if not (isinstance(each, exp.Alias | exp.Column | exp.Star | exp.Dot) or (each.is_star and each.name == "*")):
            text = each.sql("spark", normalize_functions="lower")
            each.replace(exp.alias_(each.copy(), "count(1)" if text == "count(*)" else text, quoted=True))


def _adapted(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Lateral) and node.args.get("outer") and isinstance(node.this, exp.Explode):
        node.this.set("this", _never_empty(node.this.this))  # DuckDB's UNNEST drops rows with nothing in the array
    elif isinstance(node, exp.ArgMax | exp.ArgMin):  # a null argument counts
        name = "arg_max_null" if isinstance(node, exp.ArgMax) else "arg_min_null"
        return exp.func(name, node.this, node.expression)
    elif isinstance(node, exp.Contains) and isinstance(node.expression, exp.Encode):
        return exp.func("contains_bytes", node.this, node.expression)
    elif isinstance(node, exp.FromJson) and _MAP_OF_TEXTS.fullmatch(node.expression.name):
        return exp.cast(exp.cast(node.this, "JSON"), exp.DataType.build("MAP(VARCHAR, VARCHAR)", dialect="duckdb"))
    return node


def _never_empty(array: exp.Expr) -> exp.Expr:
    """The array; one null in place of an empty array and of null."""
    text = array.sql("spark")
    return sqlglot.parse_one(f"CASE WHEN size({text}) > 0 THEN {text} ELSE array(NULL) END", read="spark")
