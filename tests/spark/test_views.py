"""The views give the answers of `describe`, in one session and from a shared catalog."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.handlers import fetch_offsets
from offsets_pipeline.coordinator.requests import NO_MEMBER
from offsets_pipeline.errors import NoSuchStore, QueryFailed
from offsets_pipeline.observability.collectors import StateMetrics
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.retention_forecast import retention_inputs
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.query.views import create_views, register_views, run_query
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.schemas import TABLES
from tests.logs import LogPartition, capture_partitions, capture_rows
from tests.places import copied
from tests.programs import start
from tests.replays import references
from tests.spark.frames import assert_same_rows
from tests.spark.stores import appended, export_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.stores import Workbench

CAPTURES = [pytest.param("4.2.0-kip848", marks=pytest.mark.long), "4.2.0-txn-open"]
OFFSETS = "SELECT group_id, topic, partition, committed_offset, leader_epoch, metadata FROM {}current_offsets"
GROUPS = "SELECT group_id, group_type, state, protocol_type, assignor, group_epoch, member_count FROM {}consumer_groups"
MEMBERS = (
    "SELECT group_id, member_id, instance_id, client_id, client_host, subscribed_topics, concat(topic, '-', partition) "
    "FROM {}group_members"
)
UNSTABLE = "SELECT DISTINCT group_id, topic, partition FROM {}unstable_offsets"

# Two applications in turn with a catalog that lasts: the second finds what the first wrote. They print all that is
# printed, but for the error of the last command.
PROGRAM = """
import json, os, sys
from offsets_pipeline.cli import main
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.questions.query.views import create_views
from offsets_pipeline.store.session import build_session
folder, store, *queries = sys.argv[1:]

def application():
    return build_session("application", load_settings(), {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": folder + "/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=" + folder + "/metastore;create=true",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "  # Hive fills 48 MB
        "-Dderby.stream.error.file=" + folder + "/derby.log",
    })

first = application()
first_id = first.sparkContext.applicationId
first.sql("CREATE TEMPORARY VIEW ends AS SELECT 1")
create_views(first, store, schema="offsets")
first.stop()
second = application()
assert second.sparkContext.applicationId != first_id
assert not second.catalog.tableExists("ends")
print(json.dumps([[list(row) for row in second.sql(query).collect()] for query in queries]))

table = os.getcwd() + "/table"
second.range(3).write.format("delta").save(table)
second.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")  # the default is 10,000 tasks
second.sql(f"VACUUM delta.`{table}`")  # Delta prints the result to stdout
print(second.read.format("delta").load(table).count(), second.conf.get("spark.sql.shuffle.partitions"), flush=True)
sys.exit(main(["sql", "--spark", "--store", store, "SELECT raise_error(group_id) FROM consumer_groups"]))
"""

#: Warnings of the catalog that the program makes.
OF_HIVE = re.compile(r" WARN (ObjectStore|SessionState|HiveConf): ")
Rows = list[tuple[Any, ...]]


VIEWS = ("current_offsets", "unstable_offsets", "consumer_groups", "group_members", "consumer_lag")
#: Types of the columns of the queries.
COLUMNS = {
    OFFSETS: "group_id string, topic string, partition int, committed_offset bigint, leader_epoch int, metadata string",
    GROUPS: "group_id string, group_type string, state string, protocol_type string, assignor string, "
    "group_epoch int, member_count int",
    MEMBERS: "group_id string, member_id string, instance_id string, client_id string, client_host string, "
    "subscribed_topics array<string>, held string",
    UNSTABLE: "group_id string, topic string, partition int",
}


def assert_answers(session: SparkSession, query: str, expected: Rows, schema: str = "") -> None:
    """The views answer these rows, in any order."""
    found = session.sql(query.format(schema)).toDF(*(each.split()[0] for each in COLUMNS[query].split(", ")))
    columns = StructType.fromDDL(COLUMNS[query])
    assert isinstance(columns, StructType)
    assert_same_rows(found, session.createDataFrame(expected, columns))


def described(store: Path) -> dict[str, Rows]:
    """Answers of `describe`, as rows of the queries."""
    groups = export_of(store)["groups"]
    offset = ("topic", "partition", "offset", "leader_epoch", "metadata")
    group = ("type", "state", "protocol_type", "assignor", "group_epoch")
    member = ("member_id", "instance_id", "client_id", "host", "subscribed_topics")
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
    return {identity for state in states for identity in state.unstable}


@pytest.mark.usefixtures("code_generation")
@pytest.mark.parametrize("capture", CAPTURES)
def test_views_answer_what_describe_answers(spark: SparkSession, folded: Callable[[str], Path], capture: str) -> None:
    session, store = spark.newSession(), folded(capture)
    register_views(session, str(store))
    for query, expected in described(store).items():
        if query == UNSTABLE:  # it also tells of identities that have no committed offset yet
            assert set(expected) <= unstable(capture)
            assert_answers(session, query, list(unstable(capture)))
        else:
            assert expected
            assert_answers(session, query, expected)
    assert (
        session.sql("SELECT count(*) FROM log").first() == session.sql("SELECT sum(records) FROM fold_progress").first()
    )


@pytest.mark.usefixtures("code_generation")
def test_every_reader_answers_for_the_same_groups(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:  # R1, R14
    store, pending = copied(empty(2), tmp_path / "store"), 7
    logs = {at: LogPartition(at) for at in range(2)}

    def home(group_id: str) -> LogPartition:
        return logs[partition_for(group_id, 2)]

    def away(group_id: str) -> LogPartition:
        return logs[1 - partition_for(group_id, 2)]

    for group_id in ("simple", "both", "removed", "shared"):
        home(group_id).commit((group_id, "t", 0), 1)
        home(group_id).commit((group_id, "t", 1), 2, pending)
    for group_id in ("stray", "both"):
        away(group_id).commit((group_id, "t", 0), 3)
        away(group_id).commit((group_id, "t", 1), 4, pending)
    away("stray").group(3, "stray", epoch=1)
    away("stray").group(5, "stray", "m", client_id="c", client_host="h")
    home("removed").group_tombstone(2, "removed")
    home("shared").group(11, "shared", epoch=1)
    rows = [row for log in logs.values() for row in log.rows]
    appended(store, rows)
    workbench.fold(store)

    expected = {(name, "t", 0, 1) for name in ("simple", "both")}
    unstable_now = {(name, "t", 1) for name in ("simple", "both")}
    listed = [
        ("simple", "Classic", "Empty", "", "", None, 0),
        ("both", "Classic", "Empty", "", "", None, 0),
        ("both", "Classic", "Empty", "", "", None, 0),  # as the brokers of two log partitions would list it
        ("shared", "Share", "Empty", "share", "", 1, 0),
        ("stray", "Consumer", "Assigning", "consumer", "", None, 0),
    ]
    states = references(rows, 2).values()
    assert {(*key, o.committed_offset) for each in states for key, o in each.current.items()} == expected
    assert {identity for each in states for identity in each.unstable} == unstable_now

    session = workbench.spark.newSession()
    register_views(session, str(store))
    assert_answers(session, OFFSETS, [(*each, None, "") for each in expected])
    assert_answers(session, UNSTABLE, list(unstable_now))
    assert_answers(session, GROUPS, listed)
    assert_answers(session, MEMBERS, [])

    reader = StateReader(str(store))
    groups = describe_groups(reader)
    assert {(name, o.topic, o.partition, o.offset) for name, g in groups.items() for o in g.offsets} == expected
    assert {
        name: (g.type, g.state, g.protocol_type, g.assignor, g.group_epoch, len(g.members))
        for name, g in groups.items()
    } == {name: tuple(rest) for name, *rest in listed}
    assert [name for name, group in groups.items() if group.misplaced] == ["stray"]
    assert describe_groups(reader, ["simple", "stray", "shared", "removed"]).keys() == {"simple", "shared"}

    held = {each.group_id: each for each in retention_inputs(reader)}
    assert held.keys() == {"simple", "both", "shared"}

    metrics = StateMetrics(lambda: StateReader(str(store))).count()
    assert (metrics["offsets_groups"], metrics["offsets_committed_offsets"]) == (3, 2)

    for at, log in logs.items():
        state = PartitionState(at, 2)
        for row in log.rows:
            state.replay(row)
        for name in ("simple", "both", "stray", "removed", "shared"):
            if partition_for(name, 2) == at:
                answers = fetch_offsets(state, name, None, NO_MEMBER, require_stable=False)
                assert {(name, *where, each.offset) for where, each in answers.items()} == {
                    each for each in expected if each[0] == name
                }


@pytest.mark.usefixtures("code_generation")
def test_classic_store_answers_for_misplaced_groups_and_lists_groups_with_offsets(
    workbench: Workbench, empty: Callable[..., Path], tmp_path: Path
) -> None:  # R1, R14
    store = copied(empty(2, CoordinatorSemantics.CLASSIC), tmp_path / "store")
    logs = {at: LogPartition(at) for at in (0, 1)}
    away = logs[1 - partition_for("stray", 2)]
    away.commit(("stray", "t", 0), 1)
    away.commit(("stray", "t", 1), 2, 7)
    away.commit(("removed", "t", 0), 3)
    away.group_tombstone(2, "removed")
    away.commit(("gone", "t", 0), 4)
    away.delete(("gone", "t", 0))
    logs[partition_for("stray", 2)].commit(("pending", "t", 0), 5, 8)
    rows = [row for log in logs.values() for row in log.rows]
    appended(store, rows)
    workbench.fold(store)

    offsets = [("stray", "t", 0, 1, None, ""), ("removed", "t", 0, 3, None, "")]
    listed = [(name, "Classic", "Empty", "", "", None, 0) for name in ("stray", "removed", "pending")]
    session = workbench.spark.newSession()
    register_views(session, str(store))
    assert_answers(session, OFFSETS, offsets)
    assert_answers(session, UNSTABLE, [("stray", "t", 1), ("pending", "t", 0)])
    assert_answers(session, GROUPS, listed)
    reader = StateReader(str(store))
    groups = describe_groups(reader)
    answered = [(name, o.topic, o.partition, o.offset, None, "") for name, g in groups.items() for o in g.offsets]
    assert in_order(answered) == in_order(offsets)
    assert groups.keys() == {name for name, *_ in listed}
    assert describe_groups(reader, ["stray", "removed", "gone"]).keys() == {"stray", "removed"}
    held = {each.group_id: (set(each.offsets), each.pending) for each in retention_inputs(reader)}
    assert held == {
        "stray": ({("t", 0)}, {("t", 1)}),
        "removed": ({("t", 0)}, set()),
        "pending": (set(), {("t", 0)}),
    }
    metrics = StateMetrics(lambda: StateReader(str(store))).count()
    assert (metrics["offsets_groups"], metrics["offsets_committed_offsets"]) == (3, 2)


def test_views_are_created_in_a_catalog_by_a_command(
    workbench: Workbench,
    folded: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = folded("4.2.0-kip848")
    command = ["create-views", "--store", str(store), "--schema", "made_by_command"]
    capsys.readouterr()
    assert main(command) == 1  # this session's catalog is in its memory
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(
        "offsets: error: cannot create views: this session's catalog ends with the session; configure"
    )
    assert not workbench.spark.catalog.databaseExists("made_by_command")
    monkeypatch.setattr("offsets_pipeline.questions.query.views.require_lasting_catalog", lambda *_: None)
    try:
        assert main(command) == 0
        assert capsys.readouterr() == (
            f"views of {store} created: " + ", ".join(f"made_by_command.{name}" for name in VIEWS) + "\n",
            "",
        )
        # of all others, test_views_in_a_catalog_last_for_other_programs
        assert_answers(workbench.spark, GROUPS, described(store)[GROUPS], "made_by_command.")
        workbench.spark.sql("CREATE TABLE made_by_command.other (a int) USING parquet")
        workbench.spark.sql("DROP VIEW made_by_command.group_members")
        workbench.spark.sql("ALTER TABLE made_by_command.other RENAME TO made_by_command.group_members")
        assert main(command) == 1
        assert capsys.readouterr().err.startswith("offsets: error: the query failed: [EXPECT_VIEW_NOT_TABLE")
    finally:
        workbench.spark.sql("DROP SCHEMA IF EXISTS made_by_command CASCADE")


@pytest.mark.parametrize(
    "query", ["SELEKT 1", "SELECT nothing FROM current_offsets", "SELECT * FROM nowhere", "SELECT raise_error('no')"]
)
def test_query_that_fails_says_why_in_one_line(spark: SparkSession, folded: Callable[[str], Path], query: str) -> None:
    with pytest.raises(QueryFailed, match=r"^the query failed: ") as failed:
        list(run_query(spark.newSession(), str(folded("4.2.0-kip848")), query=query)[1])
    assert "\n" not in str(failed.value)


def test_query_registers_the_views_that_it_names_or_all(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    store, session = folded("4.2.0-kip848"), spark.newSession()
    names, rows = run_query(session, str(store), query="SELECT count(*) AS n FROM Current_Offsets")
    assert (names, list(rows)) == (["n"], [[len(described(store)[OFFSETS])]])
    assert [row.viewName for row in session.sql("SHOW VIEWS").collect()] == ["current_offsets"]
    shown = {row[1] for row in run_query(session, str(store), query="SHOW VIEWS")[1]}
    assert shown >= {*VIEWS, *HISTORY_VIEWS, *(each.name for each in TABLES), "topic_offsets"}


def test_structs_of_a_query_have_the_names_of_their_fields(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    structs = "named_struct('a', 1, 'b', array(struct('x' AS c))) AS s, map('k', struct(2 AS n)) AS m"
    query = f"SELECT {structs}, 3 AS d, 4 AS d"
    names, rows = run_query(spark.newSession(), str(folded("4.2.0-kip848")), query=query)
    assert (names, list(rows)) == (["s", "m", "d", "d"], [[{"a": 1, "b": [{"c": "x"}]}, {"k": {"n": 2}}, 3, 4]])


def test_views_of_no_store_and_in_no_schema_are_refused(
    spark: SparkSession, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(NoSuchStore):
        register_views(spark.newSession(), str(tmp_path / "nothing"))
    with pytest.raises(NoSuchStore, match="is not a valid name of a schema"):
        create_views(spark, str(folded("4.2.0-kip848")), schema="a; DROP TABLE b")


@pytest.mark.slow  # the catalog of the session of the tests ends with it
@pytest.mark.process
def test_views_in_a_catalog_last_for_other_programs_and_these_are_quiet_and_fail_in_one_line(
    folded: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    store, queries = folded("4.2.0-kip848"), [OFFSETS, GROUPS, MEMBERS]
    of_schema = [query.format("offsets.") for query in queries]
    done = start(folder, sys.executable, "-c", PROGRAM, tmp_path, store, *of_schema)
    answers, *lines = done.stdout.splitlines()
    assert lines == ["3 2"], done.stderr[-2000:]
    said = [line for line in done.stderr.splitlines() if not OF_HIVE.search(line)]
    assert len(said) == 1, said
    assert said[0].startswith("offsets: error: the query failed: ")  # raised in a task, in the JVM
    assert done.returncode == 1
    assert [each.name for each in folder.iterdir()] == ["table"]
    expected = described(store)
    for query, found in zip(queries, json.loads(answers), strict=True):
        assert in_order([tuple(row) for row in found]) == in_order(expected[query])
