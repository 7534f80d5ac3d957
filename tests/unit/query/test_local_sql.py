"""SQL without Spark: wrong names, what it may read, and what is not folded yet."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import QueryFailed, StoreMismatch
from offsets_pipeline.query import local_sql
from offsets_pipeline.query.local_sql import LocalSql
from offsets_pipeline.query.state_reader import StateReader
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.delta.snapshot import Snapshot


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
        ("SELECT * FROM curent_offsets", "no view or table curent_offsets: nearest are current_offsets"),
        ("SELECT * FROM xyzzy", "no view or table xyzzy: there are consumer_groups, consumer_lag, current"),
        (
            "SELECT comitted_offset FROM current_offsets",
            "no column comitted_offset in current_offsets: nearest are com",
        ),
        ("SELECT c.topics FROM current_offsets c", "no column topics in current_offsets: nearest are topic"),
        ("SELECT group_id FROM current_offsets ORDER BY 1 WHERE", "the query is not Spark SQL: "),
        ("SELECT nosuch(group_id) FROM current_offsets", "the query failed: Scalar Function with name nosuch"),
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
        "SELECT * FROM csv.`{folder}/secret.csv`",
        "SELECT * FROM '{folder}/secret.csv'",
        "SELECT * FROM `{folder}/secret.csv`",
        "SELECT * FROM delta.`{folder}/prod/log`",
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


def test_a_view_that_a_module_makes_is_made_when_a_query_names_it(
    committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(local_sql.MADE_VIEWS, "made_here", f"{__name__}:made_here")
    assert rows_of("SELECT twice, cluster FROM made_here", committed) == [[4, "prod"]]
    with pytest.raises(QueryFailed, match="nearest are made_here"):
        rows_of("SELECT * FROM made_her", committed)


def made_here(reader: StateReader) -> pa.Table:
    """A view for the test above."""
    return pa.Table.from_arrays([pa.array([2 * len(reader.properties.kind) - 6])], names=["twice"])


def test_two_stores_with_one_cluster_name_are_refused(tmp_path: Path) -> None:
    from offsets_pipeline.cli.opened import open_readers  # noqa: PLC0415
    from offsets_pipeline.config import Settings  # noqa: PLC0415

    places = [str(tmp_path / each / "store") for each in ("a", "b")]
    for place in places:
        OwnedStore.create(place, 1)
    with pytest.raises(StoreMismatch, match="both have the cluster name 'store'"):
        open_readers(places, Settings())
