"""SQL over stores without Spark: DuckDB reads the tables' files, and only those that a query names (docs/adr/0038).

Every relation is a view in DuckDB's memory. The table `log` of the first store is `store0_log`. The views for users are
those of fold/state/view_queries.py, over these, of all stores.

DuckDB reads nothing but these files: it has no access to other files and no extensions, its configuration is locked,
and a query is one SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain
from string import Formatter
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from offsets_pipeline.common.sql_dialects import DUCKDB
from offsets_pipeline.connect.connector_views import CONNECT_VIEWS, connect_conditions
from offsets_pipeline.errors import NoSuchTable, OffsetsError, QueryFailed
from offsets_pipeline.fold.state.fold_progress import pending_of
from offsets_pipeline.fold.state.merge_on_read import CONNECT, DESCRIBED, OFFSETS, SHARES
from offsets_pipeline.fold.state.view_queries import CONDITIONS, SHARE_VIEWS, VIEWS, tables_without_view
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.questions.query.answer_time import data_times
from offsets_pipeline.questions.query.lag_view import CONSUMER_LAG, STEPS
from offsets_pipeline.questions.query.parse_tree import DIALECTS, Filters, filters_of, parsed, tables_in
from offsets_pipeline.questions.query.relations import ERRORS, Relations, connected
from offsets_pipeline.semantics.answering import HIDES_OFFSETS
from offsets_pipeline.store.delta.reader import quoted
from offsets_pipeline.store.delta.schemas import LATER_TABLES, TOPIC_OFFSETS, TOPICS

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.semantics.topic_kind import TopicKind

_NO_COLUMN = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_OWN_NAME = re.compile(r"\bstore\d+_(?:newest_)?")
#: Parts of a type that its values are shown without, or as another type: times have no zone, whole numbers no scale.
_OTHER_TYPE = re.compile(
    r"""(?P<name>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<zone> WITH TIME ZONE)|(?P<whole>DECIMAL\(\d+,0\))"""
    r"""|(?P<text>\b(?:INTERVAL|UUID)\b(?! ))|(?P<list>\[\d+\])"""
)
_SHOWN_AS = {"zone": "", "whole": "HUGEINT", "text": "VARCHAR", "list": "[]"}
_ROWS_AT_ONCE = 10_000
_NEAREST = 3
_SHOWN_CHARACTERS = 300


class LocalSql:
    """Queries over the stores of some readers. `close` ends it.

    ``beside`` are readers of the other topics of a Connect worker, by the number of the store that they are beside.
    """

    def __init__(self, readers: Sequence[StateReader], beside: Sequence[Sequence[StateReader]] = ()) -> None:
        self._connection = connected()
        self._stores = [Relations(each, self._connection, f"store{number}_") for number, each in enumerate(readers)]
        self._beside = {
            store.prefix: [
                Relations(each, self._connection, f"{store.prefix}{number}_") for number, each in enumerate(others, 1)
            ]
            for store, others in zip(self._stores, beside, strict=False)
        }
        self._filters = Filters()
        self._of_history: set[str] = set()  # the views of history that are read together

    def kinds(self) -> dict[str, str]:
        """Return the names of the views and tables, each with its kind: view, view of history or table."""
        kinds = {store.reader.properties.topic_kind for store in self._stores}
        views = {name: "view" for kind in kinds for name in _views_of(kind)}
        if any(kind.has_groups for kind in kinds):
            views |= dict.fromkeys(HISTORY_VIEWS, "view of history")
        tables = {table.name: "table" for kind in kinds for table in tables_without_view(kind)}
        return dict(sorted(views.items())) | dict(sorted(tables.items()))

    def columns(self) -> list[list[str]]:
        """Return name, kind, column and type of each column of the views and tables. Run no query afterwards.

        Raises DamagedTable if a file is missing or corrupt.
        """
        self._filters, self._of_history = Filters([], []), {*HISTORY_VIEWS}  # the columns are those of no rows, too
        found = []
        try:
            for name, kind in self.kinds().items():
                self._make(name)
                relation = self._connection.table(name)
                pairs = zip(relation.columns, relation.types, strict=True)
                found += [[name, kind, column, str(type_)] for column, type_ in pairs]
        except ERRORS as error:
            raise self._failed(error, []) from None
        return found

    def run(self, query: str) -> tuple[list[str], Iterator[list[Any]]]:
        """Return the columns and the rows of a query in DuckDB's SQL. Call it once: then no other file may be read.

        Raises QueryFailed with the reason in one line, also while rows are fetched; a wrong name comes with the nearest
        right ones. Raises DamagedTable if a file is missing or corrupt.
        """
        nodes = parsed(query)
        named = tables_in(nodes, self.kinds())
        self._of_history = HISTORY_VIEWS.keys() & named
        self._filters = filters_of(nodes, self._of_history)
        try:
            for name in named:
                self._make(name)
            self._lock()
            result = self._connection.sql(query)
            shown = [f"CAST(#{n} AS {_shown_type(str(each))})" for n, each in enumerate(result.types, 1)]
            self._connection.execute(result.project(", ".join(shown)).sql_query())
            return result.columns, self._rows()
        except ERRORS as error:
            raise self._failed(error, named) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --- relations

    def _make(self, name: str) -> None:
        """Make a view or table for users, of all stores that have it. Raises QueryFailed for a wrong name."""
        parts = []
        for store in self._stores:
            source = self._source(store, name)
            if source is not None:
                parts.append(f"SELECT *, {quoted(store.reader.cluster)} AS cluster FROM {source}")
        if not parts:
            raise QueryFailed(f"no view or table {name}: {_nearest(name, list(self.kinds()))}")
        self._connection.execute(f"CREATE TEMP VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}")

    def _source(self, store: Relations, name: str) -> str | None:
        """The relation of a view or table of one store; None if it has none of the name."""
        kind = store.reader.properties.topic_kind
        own = store.prefix + name
        if own in store.made:
            return own
        if name in HISTORY_VIEWS and kind.has_groups:
            from offsets_pipeline.questions.history.history_tables import read_views  # noqa: PLC0415 - few queries need it

            groups, partitions = self._filters
            views = read_views(store.reader, self._of_history, group_ids=groups, partitions=partitions)
            for each, rows in views.items():
                store.registered(store.prefix + each, rows)
            return own
        if name in _views_of(kind):
            query, placeholders = _views_of(kind)[name], self._placeholders(store)
            used = {each for _, each, _, _ in Formatter().parse(query) if each is not None}
            return store.create(own, query.format(**{each: placeholders[each]() for each in used}))
        table = next((each for each in tables_without_view(kind) if each.name == name), None)
        try:
            return None if table is None else store.stored(table)
        except NoSuchTable:
            if table not in LATER_TABLES:
                raise
            return store.registered(own, pa.Table.from_batches([], table.arrow_schema()))

    def _placeholders(self, store: Relations) -> dict[str, Callable[[], str | None]]:
        """What makes the relations and conditions that the views of one store name."""
        stores = [store, *self._beside.get(store.prefix, ())]
        source, reader = partial(self._source, store), store.reader
        constants = DUCKDB | CONDITIONS | connect_conditions([each.reader.properties.topic_kind for each in stores])
        return {name: partial(str, each) for name, each in constants.items()} | {
            "offsets": lambda: f"(FROM {store.newest(OFFSETS)} WHERE {OFFSETS.answered})",
            "groups": lambda: f"(FROM {store.newest(DESCRIBED)} WHERE {DESCRIBED.answered})",
            "hiding_groups": lambda: f"(FROM {store.newest(DESCRIBED)} WHERE {HIDES_OFFSETS})",
            "share_partitions": lambda: store.newest(SHARES),
            "own": lambda: store.newest(CONNECT),
            "all": lambda: " UNION ALL ".join(f"FROM {each.newest(CONNECT)}" for each in stores),
            "current_offsets": partial(source, "current_offsets"),
            "group_members": partial(source, "group_members"),
            "steps": lambda: f"({STEPS.format(topic_offsets=source(TOPIC_OFFSETS.name))})",
            "data_times": lambda: store.registered(f"{store.prefix}data_times", data_times(reader)),
            "fold_progress": lambda: store.registered(f"{store.prefix}pending", pending_of(reader.current.progress)),
            "topics": lambda: store.registered(f"{store.prefix}known_topics", _topics(reader)),
        }

    # --- results

    def _lock(self) -> None:
        """Leave DuckDB with no access to anything but the files of the tables that the query names."""
        allowed = ", ".join(quoted(path) for each in self._relations() for path in each.paths)
        self._connection.execute(f"SET allowed_paths = [{allowed}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def _relations(self) -> Iterator[Relations]:
        return chain(self._stores, *self._beside.values())

    def _rows(self) -> Iterator[list[Any]]:
        try:
            while some := self._connection.fetchmany(_ROWS_AT_ONCE):
                yield from map(list, some)
        except ERRORS as error:
            raise self._failed(error, []) from None

    def _failed(self, error: Exception, named: Sequence[str]) -> OffsetsError:
        damaged = next(filter(None, (each.damage(error) for each in self._relations())), None)
        if damaged is not None:
            return damaged
        reason = str(error).strip()
        found = _NO_COLUMN.search(reason)
        if found is not None:
            wrong = next(each for each in found.groups() if each is not None)
            columns = sorted({each for name in named for each in self._connection.table(name).columns})
            return QueryFailed(f"no column {wrong} in {', '.join(named) or 'the query'}: {_nearest(wrong, columns)}")
        line = _OWN_NAME.sub("", re.sub(r"^\w+(?: \w+)? Error: ", "", reason.splitlines()[0]))
        dialects = f"; {DIALECTS}" if isinstance(error, duckdb.CatalogException) else ""
        return QueryFailed(f"the query failed: {line[:_SHOWN_CHARACTERS]}{dialects}")


def _nearest(wrong: str, names: list[str]) -> str:
    near = get_close_matches(wrong, names, _NEAREST, 0.4)
    return f"nearest are {', '.join(near)}" if near else f"there are {', '.join(names)}"


def _topics(reader: StateReader) -> pa.Table:
    """The names of topic ids."""
    rows = [{"topic_id": topic_id, "topic": topic} for topic_id, topic in reader.topic_names().items()]
    return pa.Table.from_pylist(rows, schema=TOPICS.arrow_schema())


def _views_of(kind: TopicKind) -> Mapping[str, str]:
    """The definitions of the views of a store, by name."""
    if kind.has_groups:
        return VIEWS | {"consumer_lag": CONSUMER_LAG}
    return CONNECT_VIEWS if kind.is_connect else SHARE_VIEWS


def _shown_type(type_: str) -> str:
    """The type as which values of a type are shown."""
    return _OTHER_TYPE.sub(lambda part: _SHOWN_AS.get(str(part.lastgroup), part[0]), type_)
