"""SQL without Spark: wrong names, what it may read, and what is not folded yet."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import closing
from datetime import datetime
from datetime import time as clock_time
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import QueryFailed, StoreMismatch
from offsets_pipeline.questions.history import history_tables
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.parse_tree import Filters, filters_of, parsed, tables_in
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.log.ordered_log import OrderedLog
from tests.folded_stores import folded_capture, new_store
from tests.logs import LogPartition
from tests.spark.stores import appended
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.store.delta.snapshot import Snapshot


@pytest.fixture
def committed(tmp_path: Path) -> str:
    """An owned store that no stream has folded, with a group and an open transaction's offset."""
    OwnedStore.create(tmp_path / "prod", 3)
    with opened(tmp_path / "prod") as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 5})
        coordinator.commit_offsets("h", {("t", 0): 7})
    return str(tmp_path / "prod")


def rows_of(query: str, *stores: str) -> list[list[Any]]:
    with closing(LocalSql([StateReader(each) for each in stores])) as local:
        return list(local.run(query)[1])


def test_a_commit_is_seen_at_once_on_a_store_that_no_stream_folds(committed: str) -> None:
    query = "SELECT group_id, topic, partition, committed_offset, cluster FROM current_offsets ORDER BY ALL"
    expected = [["g", "t", 0, 1, "prod"], ["g", "t", 1, 5, "prod"], ["h", "t", 0, 7, "prod"]]
    assert rows_of(query, committed) == expected
    with opened(committed) as coordinator:
        coordinator.commit_offsets("h", {("t", 0): 8})
    assert rows_of(query, committed) == [*expected[:2], ["h", "t", 0, 8, "prod"]]
    assert rows_of("SELECT group_id, state FROM consumer_groups ORDER BY 1", committed) == [
        ["g", "Empty"],
        ["h", "Empty"],
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT * FROM curent_offsets",
            "no view or table curent_offsets: nearest are current_offsets, unstable_offsets, deleted_offsets",
        ),
        ("SELECT * FROM xyzzy", "no view or table xyzzy: there are consumer_groups, consumer_lag, current"),
        (
            "SELECT comitted_offset FROM current_offsets",
            "no column comitted_offset in current_offsets: nearest are com",
        ),
        ("SELECT c.topics FROM current_offsets c", "no column topics in current_offsets: nearest are topic"),
        ("SELECT a.b FROM (SELECT 1 AS c) a", "no column b in the query: there are "),
        ("SELECT group_id FROM current_offsets ORDER BY 1 WHERE", "the query is not DuckDB's SQL: "),
        ("SELECT nosuch(group_id) FROM current_offsets", "the query failed: Scalar Function with name nosuch"),
        ("SELECT sum(commit_timestamp::BIGINT) FROM current_offsets", "the query failed: Unimplemented type for cast"),
        ("SELECT error('broken ' || topic) FROM current_offsets", "the query failed: broken t"),
        ("", "cannot run the query: it is not one SELECT"),
    ],
)
def test_a_wrong_query_is_answered_in_one_line_with_the_nearest_names(committed: str, query: str, said: str) -> None:
    with pytest.raises(QueryFailed) as failed:
        rows_of(query, committed)
    assert str(failed.value).startswith(said)
    assert "\n" not in str(failed.value)
    assert "store0" not in str(failed.value)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT CAST(joined AS array<string>)", 'syntax error at or near "array", at line 1, column 23'),
        (
            "SELECT m\nFROM groups LATERAL VIEW explode(members) AS m",
            'syntax error at or near "LATERAL", at line 2, column 13',
        ),
        (
            "SELECT substring_index(topic, '-', 1) FROM current_offsets",
            "Scalar Function with name substring_index does not exist!",
        ),
    ],
)
def test_a_query_in_sparks_dialect_is_told_which_dialect_to_write(committed: str, query: str, reason: str) -> None:
    with pytest.raises(QueryFailed) as failed:
        rows_of(query, committed)
    assert f"{reason}; `offsets sql` speaks DuckDB's SQL, `offsets sql --spark` Spark's" in str(failed.value)
    assert "\n" not in str(failed.value)


NESTED = {"a": None, "b": [{"c": Decimal("1.5")}], "d": {2: datetime(1970, 1, 2)}}  # noqa: DTZ001 - UTC


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'it''s'", "it's"),
        ("'a\\b'", "a\\b"),
        ("epoch(TIMESTAMP '1970-01-02 00:00:01')::BIGINT", 86_401),
        ("date_diff('hour', TIMESTAMP '2026-11-20 19:59:00', TIMESTAMP '2026-11-20 21:01:00')", 2),
        ("CAST(2.7 AS INT)", 3),
        ("TIMESTAMPTZ '2026-11-20 21:00:00+02'", datetime(2026, 11, 20, 19)),  # noqa: DTZ001 - UTC
        ("[{'at': TIMESTAMPTZ '2026-11-20 21:00:00+02'}]", [{"at": datetime(2026, 11, 20, 19)}]),  # noqa: DTZ001
        ("MAP {'a': 1}", {"a": 1}),
        ("[(SELECT sum(x) FROM range(3) r(x))]", [3]),
        ("(SELECT sum(x) FROM range(3) r(x))", 3),
        ("TIMESTAMP '2026-11-21 01:00:00' - TIMESTAMP '2026-11-20 00:00:00'", "1 day 01:00:00"),
        ("1.50", Decimal("1.50")),
        ("NULL::TIMESTAMP", None),
        ("[NULL, 3::HUGEINT]", [None, 3]),
        ("{'a': NULL::HUGEINT, 'b': [{'c': 1.5}], 'd': MAP {2::HUGEINT: TIMESTAMPTZ '1970-01-02 00:00:00Z'}}", NESTED),
        ("340282366920938463463374607431768211455::UHUGEINT", 2**128 - 1),
        ("{'UUID': [1, 2]::INTEGER[2], 'DECIMAL(5,0)': [5::DECIMAL(5,0)]}", {"UUID": [1, 2], "DECIMAL(5,0)": [5]}),
        ("['101'::BIT]", ["101"]),
        ("[INTERVAL 1 DAY]", ["1 day"]),
        ("['a6a1f1a0-0000-4000-8000-000000000001'::UUID]", ["a6a1f1a0-0000-4000-8000-000000000001"]),
        ("MAP {[1]: 2}", {"key": [[1]], "value": [2]}),
        ("TIMETZ '01:02:03+02'", clock_time(1, 2, 3)),
    ],
)
def test_values_are_those_of_duckdb(committed: str, expression: str, value: object) -> None:
    (row,) = rows_of(f"SELECT {expression}", committed)
    assert row == [value]
    assert type(row[0]) is type(value)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("FROM current_offsets SELECT group_id, committed_offset ORDER BY ALL LIMIT 1", [["g", 1]]),
        ("SELECT 1 AS n UNION SELECT 2 ORDER BY n;", [[1], [2]]),
        ("VALUES (1), (2)", [[1], [2]]),
        ("WITH log AS (SELECT * FROM log) SELECT count(*) FROM log", [[3]]),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT max(i) FROM n", [[3]]),
        ("SELECT n, count(*) FROM Current_Offsets, unnest([1, 2]) AS u(n) GROUP BY ALL ORDER BY ALL", [[1, 3], [2, 3]]),
        ("SELECT max(i) FROM range(5) r(i) WHERE EXISTS (FROM consumer_groups)", [[4]]),
        ("SELECT 1 AS a, 2 AS a", [[1, 2]]),
    ],
)
def test_every_form_of_a_select_is_answered(committed: str, query: str, expected: list[list[Any]]) -> None:
    assert rows_of(query, committed) == expected


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW current_offsets",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "ATTACH '{folder}/new.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT 1; DROP VIEW current_offsets",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO log VALUES (1)",
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "SELECT * FROM read_text('{folder}/secret.csv')",
        "SELECT * FROM parquet_scan('{folder}/secret.csv')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM '{folder}/secret.csv'",
        'SELECT * FROM "{folder}/secret.csv"',
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('log')",
        "SELECT (SELECT max(size) FROM read_blob('{folder}/secret.csv'))",
        "WITH out AS (COPY (SELECT 1) TO '{folder}/out.csv') SELECT * FROM out",
        "WITH gone AS (DELETE FROM log RETURNING *) SELECT * FROM gone",
        "SHOW TABLES",
        "DESCRIBE log",
        "SELECT * FROM (SUMMARIZE log)",
        "PIVOT log ON log_partition",
        "EXPLAIN SELECT 1",
        "CALL pragma_version()",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM store0_log, log",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM main.current_offsets",
        "SELECT * FROM information_schema.tables",
    ],
)
def test_a_query_reads_nothing_but_the_stores_and_changes_nothing(committed: str, tmp_path: Path, query: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(QueryFailed):
        rows_of(query.format(folder=tmp_path), committed)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "COPY (SELECT 1 AS a) TO '{folder}/out.csv'",
        "COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet)",
        "ATTACH '{folder}/new.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ],
)
def test_duckdb_itself_refuses_what_a_query_should_not_reach(committed: str, tmp_path: Path, statement: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    reader = StateReader(committed)
    log = reader.table("log")
    stored = [*tmp_path.rglob("*.parquet")]
    contents = [path.read_bytes() for path in stored]
    with closing(LocalSql([reader])) as local:
        assert list(local.run("SELECT count(*) FROM log")[1]) == [[3]]
        with pytest.raises(duckdb.Error):
            local._connection.execute(statement.format(folder=tmp_path, file=log.path(log.files()[0])))
    assert [path.read_bytes() for path in stored] == contents
    assert not (tmp_path / "out.csv").exists()


def test_only_tables_that_a_query_names_are_read(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    table = StateReader.table

    def noted(self: StateReader, name: str) -> Snapshot:
        read.append(name)
        return table(self, name)

    monkeypatch.setattr(StateReader, "table", noted)
    assert rows_of("SELECT 1", committed) == [[1]]
    assert set(read) == {"log"}  # its properties are those of the store
    assert rows_of("SELECT count(*) FROM quarantine", committed) == [[0]]
    assert set(read) == {"log", "quarantine"}


def test_tables_are_listed_with_their_columns_and_the_log_is_not_read(
    committed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[int] = []

    def noted(*log: Any, **options: Any) -> OrderedLog:  # noqa: ANN401
        found = OrderedLog(*log, **options)
        read.append(found.files)
        return found

    monkeypatch.setattr(history_tables, "OrderedLog", noted)
    assert main(["sql", "--store", committed, "--tables", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(read) == 0
    kinds = {row["name"]: row["kind"] for row in rows}
    assert {name for name, kind in kinds.items() if kind == "view"} == {
        *("current_offsets", "unstable_offsets", "consumer_groups", "group_members", "consumer_lag")
    }
    assert {name for name, kind in kinds.items() if kind == "view of history"} == {
        *("log_records", "offset_history", "group_history", "deleted_offsets")
    }
    assert {name for name, kind in kinds.items() if kind == "table"} >= {"log", "fold_progress", "topic_offsets"}
    types = {(row["name"], row["column"]): row["type"] for row in rows}
    assert types["current_offsets", "commit_timestamp"] == "TIMESTAMP WITH TIME ZONE"
    assert types["group_history", "joined"] == "VARCHAR[]"
    assert types["log", "cluster"] == "VARCHAR"
    assert main(["sql", "--store", committed, "--tables"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["NAME", "KIND", "COLUMN", "TYPE"]


def test_history_is_answered_by_the_same_views(committed: str) -> None:
    with opened(committed) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 0})
        coordinator.delete_groups(["h"])
    assert rows_of("SELECT committed_offset, delta, is_rewind FROM offset_history WHERE is_rewind", committed) == [
        [0, -1, True]
    ]
    assert rows_of("SELECT group_id, event, joined FROM group_history ORDER BY ALL", committed) == [
        ["g", "created", []],
        ["h", "created", []],
        ["h", "removed", []],
    ]
    assert rows_of("SELECT group_id, cause, cluster FROM deleted_offsets", committed) == [
        ["h", "group removed", "prod"]
    ]
    counted = "SELECT record_name, count(*) FROM log_records GROUP BY 1 ORDER BY 1"
    assert rows_of(counted, committed) == [["GroupMetadata", 1], ["OffsetCommit", 5]]


HISTORY = {"offset_history", "group_history", "deleted_offsets"}


@pytest.mark.parametrize(
    ("query", "groups", "partitions"),
    [
        ("SELECT * FROM offset_history WHERE group_id = 'g'", ["g"], None),
        ("SELECT * FROM offset_history WHERE 'g' = Group_Id AND delta < 0", ["g"], None),
        ("SELECT * FROM offset_history h WHERE h.group_id IN ('b', 'a') AND log_partition = 3", ["a", "b"], [3]),
        ("SELECT * FROM offset_history WHERE group_id IN ('a', 'b') AND group_id = 'b'", ["b"], None),
        ("SELECT * FROM group_history WHERE log_partition IN (1, 2)", None, [1, 2]),
        (
            "SELECT 1 FROM offset_history h, deleted_offsets d WHERE h.group_id = 'a' AND d.group_id = 'b'",
            ["a", "b"],
            None,
        ),
        ("SELECT * FROM offset_history WHERE group_id = 'it''s' AND (log_partition = 1 AND delta < 0)", ["it's"], [1]),
        ("FROM offset_history h LEFT JOIN log l USING (record_offset) WHERE h.group_id = ''", [""], None),
        (
            "SELECT 1 FROM offset_history WHERE group_id = 'a' UNION SELECT 1 FROM group_history WHERE group_id = 'b'",
            ["a", "b"],
            None,
        ),
        ("WITH h AS (SELECT * FROM offset_history WHERE group_id = 'g') SELECT count(*) FROM h", ["g"], None),
        # without a filter on one use, or with a condition that allows more
        ("SELECT * FROM offset_history", None, None),
        ("SELECT * FROM offset_history h JOIN deleted_offsets d USING (topic) WHERE h.group_id = 'a'", None, None),
        ("SELECT * FROM offset_history h JOIN deleted_offsets d USING (topic) WHERE group_id = 'a'", None, None),
        ("SELECT * FROM offset_history WHERE group_id = 'g' OR delta < 0", None, None),
        ("SELECT * FROM offset_history WHERE NOT group_id = 'g'", None, None),
        ("SELECT * FROM offset_history WHERE group_id NOT IN ('g')", None, None),
        ("SELECT * FROM offset_history WHERE group_id LIKE 'g%'", None, None),
        ("SELECT * FROM offset_history WHERE log_partition = '3'", None, None),
        ("SELECT * FROM offset_history WHERE group_id IN (SELECT group_id FROM consumer_groups)", None, None),
        ("SELECT * FROM offset_history WHERE log_partition = 99999999999999999999", None, None),
        ("SELECT * FROM offset_history h(group_id, topic) WHERE group_id = 'g'", None, None),
        ("SELECT * FROM offset_history h, log_records l WHERE group_id = 'g'", None, None),
        ("SELECT * FROM offset_history TABLESAMPLE 2 ROWS WHERE group_id = 'g'", None, None),
        ("SELECT * FROM offset_history PIVOT (max(delta) FOR topic IN ('t')) WHERE group_id = 'g'", None, None),
        ("WITH offset_history AS (FROM offset_history WHERE group_id = 'g') FROM offset_history", None, None),
        # the nearest row of all groups may be one of another group
        (
            "FROM log ASOF JOIN offset_history h ON log.log_partition > h.log_partition WHERE h.group_id = 'g'",
            None,
            None,
        ),
        # records that are misplaced lie in other log partitions than that of R1
        ("SELECT misplaced FROM offset_history WHERE group_id = 'g'", None, None),
        ("SELECT misplaced FROM offset_history WHERE group_id = 'g' AND log_partition = 1", None, [1]),
        (
            "FROM offset_history, group_history g, deleted_offsets d WHERE g.group_id = 'b' AND d.group_id = 'c'",
            None,
            None,
        ),
        (
            "FROM offset_history h, group_history g, log l WHERE h.group_id = 'a' AND l.group_id = g.group_id",
            None,
            None,
        ),
        (
            "FROM offset_history h NATURAL JOIN group_history g WHERE h.group_id = 'b' AND g.group_id IN ('a', 'b')",
            ["a", "b"],
            None,
        ),
        (
            "FROM offset_history h CROSS JOIN group_history g WHERE h.log_partition = 3 AND g.log_partition = 2",
            None,
            [2, 3],
        ),
        (
            "FROM offset_history h POSITIONAL JOIN group_history g WHERE h.group_id = 'a' AND g.group_id = 'a'",
            None,
            None,
        ),
        ("FROM OFFSET_HISTORY H WHERE h.GROUP_ID = 'g'", ["g"], None),
        ("FROM offset_history WHERE offset_history.group_id = 'g'", ["g"], None),
        ("FROM offset_history WHERE group_id IN ('a', 'b') AND group_id IN ('b', 'c')", ["b"], None),
        ("FROM offset_history WHERE group_id = 'a' AND group_id = 'b'", [], None),
        ("FROM offset_history h, log l WHERE l.group_id = 'g'", None, None),
        ("FROM offset_history WHERE topic = 'g'", None, None),
        ("FROM offset_history WHERE group_id = topic", None, None),
        ("FROM offset_history WHERE group_id > 'a'", None, None),
        ("FROM offset_history WHERE group_id IN ('a', 5)", None, None),
        ("FROM offset_history WHERE log_partition = 999999999", None, [999_999_999]),
        ("FROM offset_history WHERE log_partition IN (7, 1000000000)", None, None),
        ("FROM log", None, None),
    ],
)
def test_filters_of_a_query_on_history(query: str, groups: list[str] | None, partitions: list[int] | None) -> None:
    assert filters_of(parsed(query), HISTORY) == Filters(groups, partitions)


def test_a_view_that_is_not_asked_for_needs_no_filter() -> None:
    nodes = parsed("FROM offset_history h, group_history g WHERE h.group_id = 'a'")
    assert [filters_of(nodes, [name]) for name in ("offset_history", "group_history")] == [Filters(["a"]), Filters()]


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT * FROM b JOIN A ON TRUE", ["b", "a"]),
        ("FROM (FROM z), y WHERE 1 IN (FROM x)", ["z", "y", "x"]),
        ("WITH X AS (FROM b) FROM x", ["b"]),
        ("WITH log AS (FROM b) FROM Log", ["b", "log"]),  # a known name: it may be both
        ("WITH a AS (WITH b AS (FROM c) FROM b) FROM a, d", ["c", "d"]),
        ("FROM range(3), Unnest([1]), generate_series(2)", []),
        ("FROM main.range(3)", "cannot read main.range() as a table; name a view or a table of the store"),
        ("FROM glob('x')", "cannot read glob() as a table; name a view or a table of the store"),
        ("FROM s.log", "no view or table s.log: views and tables have no schema here"),
    ],
)
def test_tables_of_a_query_are_in_its_order(query: str, tables: list[str] | str) -> None:
    nodes = parsed(query)
    if isinstance(tables, list):
        assert tables_in(nodes, {"log"}) == tables
        return
    with pytest.raises(QueryFailed) as failed:
        tables_in(nodes, {"log"})
    assert str(failed.value) == tables


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT '" + "([{" * 333 + "('", None),
        ("SELECT '" + "([{" * 333 + "(['", "it is nested too deeply"),
        ("SELECT " + "(1)," * 1_100 + "[1]", None),
        ("SELECT " + "NOT " * 300 + "TRUE", None),
        ("SELECT " + "NOT " * 460 + "TRUE", "it is nested too deeply"),  # two levels each
        ("SELECT 'é'\n, é) FROM", 'syntax error at or near ")", at line 2, column 4; '),
        ("SELECT é é é", 'syntax error at or near "é", at line 1, column 12; '),
        ("SELECT 1; SELECT 2", "it is not one SELECT"),
        ("\ud800", "it has an unpaired surrogate"),
    ],
)
def test_a_text_is_parsed_if_it_is_one_select_that_is_not_deep(query: str, said: str | None) -> None:
    if said is None:
        assert "SELECT_NODE" in {str(each.get("type")) for each in parsed(query)}
        return
    with pytest.raises(QueryFailed) as failed:
        parsed(query)
    assert said in str(failed.value)


def test_a_query_for_one_group_reads_its_log_partition_once_for_all_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(folded_capture(tmp_path / "s", "4.2.0-classic"))
    read: list[tuple[list[int] | None, int]] = []

    def noted(*log: Any, **options: Any) -> OrderedLog:  # noqa: ANN401
        found = OrderedLog(*log, **options)
        read.append((log[-1], found.files))
        return found

    query = (
        "SELECT h.committed_offset, d.record_offset, g.event FROM offset_history h JOIN deleted_offsets d "
        "USING (group_id, topic, partition) JOIN group_history g USING (group_id){where} ORDER BY ALL"
    )
    where = " WHERE h.group_id = 'g-deloff' AND d.group_id = 'g-deloff' AND g.group_id = 'g-deloff'"
    # a condition that is not pushed down
    expected = rows_of(query.format(where=where.replace("h.group_id =", "h.group_id LIKE")), store)
    monkeypatch.setattr(history_tables, "OrderedLog", noted)
    assert rows_of(query.format(where=where), store) == expected
    assert expected
    assert read == [([partition_for("g-deloff", 5)], 1)]


def test_rows_of_the_log_are_those_of_its_incarnation_with_the_values_asked_for(tmp_path: Path) -> None:
    """A file whose rows were all appended before the time is left out."""
    store = new_store(tmp_path / "store", 2)
    for incarnation, at, appended_ms in ((0, 0, 100), (0, 1, 200), (1, 0, 300)):
        log = LogPartition(at, start=appended_ms)
        log.commit(("g", "t", at), 1)
        appended(store.location, log.rows, log_incarnation=incarnation, appended_ms=appended_ms)
    relations = StateReader(store.location).relations
    for since_ms, only, expected in (
        *((0, {}, [100, 200]), (100, {}, [100, 200]), (101, {}, [200]), (201, {}, [])),
        *((0, {"log_partition": [1]}, [200]), (0, {"log_partition": [0, 1], "record_offset": [100]}, [100])),
    ):
        query = f"SELECT record_offset FROM {relations.log(since_ms, only)} ORDER BY 1"
        assert relations.select(query)["record_offset"].to_pylist() == expected
    assert rows_of("SELECT record_offset, log_incarnation FROM log ORDER BY 1", store.location) == [
        *([100, 0], [200, 0], [300, 1])
    ]


def test_a_store_of_another_kind_has_no_rows_in_views_that_it_lacks(committed: str, tmp_path: Path) -> None:
    share = str(tmp_path / "share")
    create_tables(share, StoreProperties(MIRRORED, 1, topic_kind=TopicKind.SHARE_STATE))
    for view, count, cluster in (
        *(("offset_history", 3, "prod"), ("current_offsets", 3, "prod"), ("share_partitions", 0, None)),
        *(("log", 3, "prod"), ("topic_offsets", 0, None)),
    ):
        assert rows_of(f"SELECT count(*), max(cluster) FROM {view}", committed, share) == [[count, cluster]]
    with closing(LocalSql([StateReader(share)])) as local:
        assert [name for name, kind in local.kinds().items() if kind != "table"] == ["share_partitions"]
        with pytest.raises(QueryFailed, match="no view or table offset_history: "):
            local.run("SELECT 1 FROM offset_history")


def test_two_stores_with_one_cluster_name_are_refused(tmp_path: Path) -> None:
    from offsets_pipeline.cli.opened import open_readers  # noqa: PLC0415
    from offsets_pipeline.common.config import Settings  # noqa: PLC0415

    places = [str(tmp_path / each / "store") for each in ("a", "b")]
    for place in places:
        OwnedStore.create(place, 1)
    with pytest.raises(StoreMismatch, match="both have the cluster name 'store'"):
        open_readers(places, Settings())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folded store of a capture."""
    return folded_capture(tmp_path_factory.mktemp("whole") / "store", "4.2.0-kip848")


@pytest.fixture
def folded(whole: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(whole, tmp_path / "a store"))


def _first_file(table: Path) -> Path:
    return max(table.rglob("*.parquet"), key=lambda path: path.stat().st_size)


HARM: dict[str, Callable[[Path], object]] = {
    "is missing": lambda table: _first_file(table).unlink(),
    "it has 0 bytes instead of": lambda table: _first_file(table).write_bytes(b""),
    "it has 50 bytes instead of": lambda table: _first_file(table).write_bytes(_first_file(table).read_bytes()[:50]),
    "is corrupt (": lambda table: _first_file(table).write_bytes(b"x" * _first_file(table).stat().st_size),
    "is corrupt (Couldn't deserialize thrift": lambda table: _lose_pages(_first_file(table)),
}


def _lose_pages(file: Path) -> None:
    """Leave the footer of a Parquet file, and overwrite the pages before it."""
    data = file.read_bytes()
    (footer_bytes,) = struct.unpack("<i", data[-8:-4])
    end = len(data) - 8 - footer_bytes
    file.write_bytes(data[:4] + b"\xff" * (end - 4) + data[end:])


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("question", ["sql", "describe"])
def test_a_damaged_file_of_the_state_is_named_with_the_way_back(
    folded: Path, harm: str, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = folded / "offset_facts"
    name = str(_first_file(table).relative_to(table))
    HARM[harm](table)
    words = ["--all-groups"] if question == "describe" else ["SELECT count(committed_offset) FROM current_offsets"]
    assert main([question, "--store", str(folded), *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"offsets: error: the data file {name} (added by version ")
    assert harm in err
    assert err.endswith(f"make the state again from the log: offsets reload --store {folded}\n")


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize(
    "question",
    [
        ["sql", "SELECT max(key) FROM log"],
        ["history", "--group", "g"],
        ["why", "--group", "g", "--topic", "t1", "--partition", "0"],
    ],
    ids=itemgetter(0),
)
def test_a_damaged_file_of_the_log_is_named(
    folded: Path, harm: str, question: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(_first_file(folded / "log").relative_to(folded / "log"))
    HARM[harm](folded / "log")
    assert main([question[0], "--store", str(folded), *question[1:]]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"offsets: error: the data file {name} (added by version ")
    assert harm in err
    assert err.endswith("ingest the log again into a new store\n")


@pytest.mark.parametrize("question", ["sql", "describe"])
def test_a_missing_table_of_the_state_is_named_with_the_way_back(
    folded: Path, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(folded / "offset_facts")
    words = ["--all-groups"] if question == "describe" else ["SELECT 1 FROM current_offsets"]
    assert main([question, "--store", str(folded), *words]) == 1
    assert capsys.readouterr().err == (
        f"offsets: error: no Delta table at {folded}/offset_facts; make the state again from the log: offsets reload "
        f"--store {folded}\n"
    )
