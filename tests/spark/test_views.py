"""The views answer what describe answers: in a session of one's own, and from a catalog for everybody."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.errors import NoSuchStore, QueryFailed
from offsets_pipeline.query.sql import run_query
from offsets_pipeline.query.views import create_views, register_views
from tests.logs import capture_partitions, capture_rows
from tests.spark.stores import export_of
from tests.unit.fold.state_tables import references

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

CAPTURES = ["4.2.0-kip848", "4.2.0-txn-open"]
OFFSETS = "SELECT group_id, topic, partition, committed_offset, leader_epoch, metadata FROM {}current_offsets"
GROUPS = "SELECT group_id, group_type, state, protocol_type, assignor, group_epoch, member_count FROM {}consumer_groups"
MEMBERS = (
    "SELECT group_id, member_id, instance_id, client_id, client_host, concat(topic, '-', partition) "
    "FROM {}group_members"
)
UNSTABLE = "SELECT DISTINCT group_id, topic, partition FROM {}unstable_offsets"

# A program of its own with a catalog that lasts: what one of them writes, another one finds.
PROGRAM = """
import json, sys
from offsets_pipeline.config import load_settings
from offsets_pipeline.query.views import create_views
from offsets_pipeline.session import build_session
folder, store, *queries = sys.argv[1:]
spark = build_session("program", load_settings(), {
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": folder + "/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=" + folder + "/metastore;create=true",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Dderby.stream.error.file=" + folder + "/derby.log",
})
if not queries:
    create_views(spark, store, "offsets")
print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in queries]))
"""

Rows = list[tuple[Any, ...]]


def described(store: Path) -> dict[str, Rows]:
    """What describe answers, as rows of the queries."""
    groups = export_of(store)["groups"]
    offset = ("topic", "partition", "offset", "leader_epoch", "metadata")
    group = ("type", "state", "protocol_type", "assignor", "group_epoch")
    member = ("member_id", "instance_id", "client_id", "host")
    return {
        OFFSETS: [(name, *(o[part] for part in offset)) for name, g in groups.items() for o in g["offsets"]],
        GROUPS: [(name, *(g[part] for part in group), len(g["members"])) for name, g in groups.items()],
        MEMBERS: [
            (name, *(m[part] for part in member), each)
            for name, g in groups.items()
            for m in g["members"]
            for each in (m["assignment"] or [None])
        ],
        UNSTABLE: [
            (name, o["topic"], o["partition"]) for name, g in groups.items() for o in g["offsets"] if o["pending"]
        ],
    }


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=str)


def unstable(capture: str) -> set[tuple[Any, ...]]:
    """R17: as the reference replays the same log."""
    rows = [row for of_one in capture_rows(capture).values() for row in of_one]
    states = references(rows, capture_partitions(capture)).values()
    return {identity for state in states for identity in state.unstable()}


@pytest.mark.parametrize("capture", CAPTURES)
def test_views_answer_what_describe_answers(spark: SparkSession, folded: Callable[[str], Path], capture: str) -> None:
    session, store = spark.newSession(), folded(capture)
    register_views(session, str(store))
    for query, expected in described(store).items():
        found = [tuple(row) for row in session.sql(query.format("")).collect()]
        if query == UNSTABLE:  # it also tells of identities that have no committed offset yet
            assert set(expected) <= set(found)
            assert set(found) == unstable(capture)
        else:
            assert expected
            assert in_order(found) == in_order(expected)
    assert (
        session.sql("SELECT count(*) FROM log").first() == session.sql("SELECT sum(records) FROM fold_progress").first()
    )


@pytest.mark.parametrize(
    "query", ["SELEKT 1", "SELECT nothing FROM current_offsets", "SELECT * FROM nowhere", "SELECT raise_error('no')"]
)
def test_query_that_fails_says_why_in_one_line(spark: SparkSession, folded: Callable[[str], Path], query: str) -> None:
    with pytest.raises(QueryFailed, match=r"^the query failed: ") as failed:
        list(run_query(spark.newSession(), str(folded("4.2.0-kip848")), query)[1])
    assert "\n" not in str(failed.value)


def test_views_of_no_store_and_in_no_schema_are_refused(
    spark: SparkSession, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(NoSuchStore):
        register_views(spark.newSession(), str(tmp_path / "nothing"))
    with pytest.raises(NoSuchStore, match="is no name of a schema"):
        create_views(spark, str(folded("4.2.0-kip848")), "a; DROP TABLE b")


@pytest.mark.slow
def test_views_in_a_catalog_last_for_other_programs(folded: Callable[[str], Path], root: Path, tmp_path: Path) -> None:
    store = folded("4.2.0-kip848")

    def run(*queries: str) -> list[list[list[Any]]]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(store), *queries],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers: list[list[list[Any]]] = json.loads(done.stdout)
        return answers

    assert run() == []
    expected = described(store)
    queries = [OFFSETS, GROUPS, MEMBERS]
    for query, found in zip(queries, run(*(query.format("offsets.") for query in queries)), strict=True):
        assert in_order([tuple(row) for row in found]) == in_order(expected[query])
