"""The owned store beside Spark: the same tables, conflicting appends, and a fold with the coordinator's answers."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.clock import FixedClock, SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import MemberOfGroup
from offsets_pipeline.errors import InvalidProducerEpoch, UnsupportedTable, WriteConflict
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.store.delta.properties import CREATION, OWNED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG, TABLES
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.clean import clean_log
from offsets_pipeline.store.store import Store
from tests.logs import commit_key, commit_value
from tests.programs import assert_refused, in_process
from tests.spark.stores import CLOCK, assert_as_reference, described_offsets, export_of, log_of, state_rows
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import calls

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.programs import Done
    from tests.spark.stores import Workbench

PARTITIONS = 3
HOUR_MS = 3_600_000


def first_commit(store: Path, table: str) -> dict[str, Any]:
    """Protocol and metadata of a table, without the parts that differ in each creation."""
    lines = (store / table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    actions = {name: action for line in lines for name, action in json.loads(line).items()}
    metadata = actions["metaData"]
    del metadata["id"], metadata["createdTime"]
    metadata["configuration"].pop(CREATION, None)
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    return {"metaData": metadata, "protocol": actions["protocol"]}


def spark_rows(spark: SparkSession, rows: list[LogRow]) -> DataFrame:
    now = datetime.fromtimestamp(0, UTC)
    return spark.createDataFrame(
        [
            (row.log_partition, row.record_offset, now, row.key, row.value, None, None, None, "a test", now, 0, False)
            for row in rows
        ],
        from_arrow_schema(LOG.arrow_schema()),
    )


def test_store_without_a_jvm_is_the_same_store(spark: SparkSession, place: Path) -> None:
    Store.create(spark, str(place / "spark"), StoreProperties(OWNED, PARTITIONS))
    OwnedStore.create(place / "python", PARTITIONS)
    for table in TABLES:
        assert first_commit(place / "python", table.name) == first_commit(place / "spark", table.name)
    assert {path.name for path in (place / "python").iterdir()} == {path.name for path in (place / "spark").iterdir()}
    store = Store.create(spark, str(place / "python"), StoreProperties(OWNED, PARTITIONS))  # it is one already
    for name, columns in (("log", "-1, 0, NULL, NULL, NULL, NULL, NULL, NULL, 's', current_timestamp(), 0, false"),):
        with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT"):
            spark.sql(f"INSERT INTO {store.table_name(name)} VALUES ({columns})")
    assert OwnedStore.open(place / "spark").properties == OwnedStore.open(place / "python").properties


def test_appends_of_spark_and_of_the_coordinator_notice_each_other(spark: SparkSession, place: Path) -> None:
    OwnedStore.create(place, PARTITIONS)
    store = Store.open(spark, str(place))
    with Coordinator.open(place, clock=CLOCK, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        partition = coordinator.partition_for("g")

        def row(offset: int) -> LogRow:
            return LogRow(partition, offset, commit_key("g", "t", offset), commit_value(10 + offset))

        overtaken, of_files = LogAppender(store), LogAppender(store)
        file_place = of_files.place(CLOCK)
        coordinator.commit_offsets("g", {("t", 0): 2})
        for append in calls(
            lambda: overtaken.append_late(spark_rows(spark, [row(1)]), file_place), lambda: of_files.append_files([])
        ):
            with pytest.raises(WriteConflict):
                append()
        assert LogAppender(store).append_late(spark_rows(spark, [row(2)]), file_place).records == 1
        # the coordinator's next append is behind Spark's, which it sees
        coordinator.commit_offsets("g", {("t", 1): 3})
        assert {where.partition: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {
            0: 2,
            1: 3,
            2: 12,
        }
    rows = log_of(place)
    assert [each.record_offset for each in rows] == [0, 1, 2, 3]


def test_changes_by_spark_to_the_log_are_supported_or_refused(spark: SparkSession, place: Path) -> None:
    """Needs Spark: it alone writes deletion vectors and in-commit timestamps."""
    OwnedStore.create(place, PARTITIONS)
    log = f"delta.`{place}/log`"

    def alter(properties: str) -> None:
        spark.sql(f"ALTER TABLE {log} SET TBLPROPERTIES ({properties})")

    with Coordinator.open(place, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 2})
        alter("'delta.enableInCommitTimestamps' = 'true'")
        with pytest.raises(UnsupportedTable, match="requires the writer feature 'inCommitTimestamp'"):
            coordinator.commit_offsets("g", {("t", 0): 3})
        assert {each.offset for each in coordinator.fetch_offsets("g").values()} == {1, 2}
        alter("'delta.enableInCommitTimestamps' = 'false', 'delta.enableDeletionVectors' = 'true'")
        coordinator.commit_offsets("g", {("t", 2): 3})
        spark.sql(f"DELETE FROM {log} WHERE record_offset = 1")
        for ask in (lambda: coordinator.fetch_offsets("g"), lambda: coordinator.commit_offsets("g", {("t", 0): 4})):
            with pytest.raises(UnsupportedTable, match=r"REORG TABLE .* APPLY \(PURGE\)"):
                ask()
        with pytest.raises(UnsupportedTable, match=r"REORG TABLE .* APPLY \(PURGE\)"):
            reload_partitions(Store.open(spark, str(place)), None, Settings(), SystemClock())
        spark.sql(f"REORG TABLE {log} APPLY (PURGE)")
        assert {each.offset for each in coordinator.fetch_offsets("g").values()} == {1, 3}
        coordinator.commit_offsets("g", {("t", 0): 4})
    assert [each.record_offset for each in log_of(place)] == [0, 2, 3]
    assert reload_partitions(Store.open(spark, str(place)), None, Settings(), SystemClock()) == 3
    alter("'delta.columnMapping.mode' = 'name'")
    with pytest.raises(UnsupportedTable, match="column mapping"):
        reload_partitions(Store.open(spark, str(place)), None, Settings(), SystemClock())


def test_owned_log_folds_to_what_the_coordinator_answers(workbench: Workbench, place: Path) -> None:
    OwnedStore.create(place, PARTITIONS)
    with Coordinator.open(place, clock=CLOCK, housekeeping=False) as coordinator:
        coordinator.store_group(stable("active"))
        coordinator.commit_offsets("active", {("t", 0): 1}, member=MemberOfGroup("m", 3))
        for group_id in ("a", "b", "c", "gone"):
            coordinator.commit_offsets(group_id, {("t", 0): 1, ("t", 1): 2})
        coordinator.remove_group("gone")
        coordinator.begin_transaction(7, 0)
        coordinator.txn_commit_offsets(7, 0, "a", {("t", 0): 5})
        coordinator.end_transaction(7, 0, commit=True)
        coordinator.begin_transaction(8, 0)
        coordinator.txn_commit_offsets(8, 0, "b", {("t", 0): 6})
        coordinator.delete_offsets("c", [("t", 1)])
        answers = {
            (group_id, *where): fetched.offset
            for group_id, offsets in coordinator.fetch_all_offsets().items()
            for where, fetched in offsets.items()
        }
        listed = {(each.group_id, each.state) for each in coordinator.list_groups()}
    workbench.fold(place)
    assert_as_reference(place, log_of(place))

    described = describe_groups(StateReader(str(place)))
    assert {
        (name, each.topic, each.partition): each.offset for name, group in described.items() for each in group.offsets
    } == answers
    assert {(name, group.state) for name, group in described.items()} == listed


@pytest.mark.slow  # Spark creates the tables, and plans each look at their folders
def test_owned_store_in_a_catalog_folds_and_expires_as_one_in_a_folder(
    workbench: Workbench, schema: str, tmp_path: Path
) -> None:
    folders = []
    for location in (str(tmp_path / "store"), schema):
        store = Store.create(workbench.spark, location, StoreProperties(OWNED, PARTITIONS))
        folders.append(store.folder())
        before = FixedClock(CLOCK.now_ms() - HOUR_MS)
        with Coordinator.open(folders[-1], clock=before, housekeeping=False) as coordinator:
            coordinator.store_group(stable("active"))
            coordinator.commit_offsets("active", {("t", 0): 1}, member=MemberOfGroup("m", 3))
            coordinator.commit_offsets("a", {("t", 0): 1, ("t", 1): 2})
            coordinator.commit_offsets("expires", {("t", 0): 1, ("u", 0): 2}, retention_time_ms=HOUR_MS)
            coordinator.commit_offsets("gone", {("t", 0): 1})
            coordinator.delete_offsets("a", [("t", 1)])
            coordinator.delete_groups(["gone"])
        assert workbench.fold(location) == len(log_of(folders[-1]))  # with the tombstones of what it expired
        assert workbench.verify(location).equal
        assert workbench.fold(location) == 0
    in_folder, in_schema = folders
    assert described_offsets(in_schema) == [("a", "t", 0, 1), ("active", "t", 0, 1)]
    assert log_of(in_schema) == log_of(in_folder)
    assert state_rows(in_schema) == state_rows(in_folder)
    assert export_of(in_schema) == export_of(in_folder)
    assert_as_reference(in_schema, log_of(in_schema))


#: Of an owned store, and of one of connectors.
COMMANDS = (
    "create --offsets-partitions 3",
    "commit --group billing orders:0=42 orders:1=17",
    "commit --group old orders:0=1",
    "commit --group expired --retention-ms 1 orders:0=1",
    "reset-offsets --group billing --topic orders:0 --to-offset 40 --execute",
    "delete-offsets --group billing orders:1",
    "delete-group --group old",
    "expire-offsets",
    "import-checkpoint {checkpoint} --group spark --offsets-partitions 3",
    "fold --available-now",
    "verify",
    "sql --format csv 'SELECT group_id, topic, partition, committed_offset FROM current_offsets ORDER BY ALL'",
)
CONNECT_COMMANDS = (
    "create --connect-cluster-id lab",
    "connect config --connector files --settings {settings}",
    "connect stop --connector files",
    "connect config --connector files",
    "fold --available-now",
    "connect describe --connector files --format json",
)


@pytest.mark.slow  # sixteen commands, each on two stores
def test_commands_on_a_store_in_a_catalog_do_as_on_one_in_a_folder(
    spark: SparkSession, schema: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"checkpoint": root / "tests/data/checkpoints/spark-4.2-v1", "settings": tmp_path / "files.json"}
    named["settings"].write_text('{"connector.class": "FileStreamSource", "file": "a", "topic": "b"}')

    def run(line: str, location: str) -> Done:
        return in_process(tmp_path, *shlex.split(line.format(**named)), "--store", location)

    def said(done: Done, location: str) -> str:
        """The output, without digests: the times of the commits differ."""
        return re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", done.stdout.replace(location, "S"))

    refused = run(COMMANDS[0], schema)  # this session's catalog is in its memory
    assert_refused(refused, f"cannot create store {schema}: this session's catalog ends with the session; configure")
    assert Store.find(spark, schema) is None
    monkeypatch.setattr("offsets_pipeline.store.session.require_lasting_catalog", lambda *_: None)
    for commands in (COMMANDS, CONNECT_COMMANDS):
        in_folder = str(tmp_path / f"store{len(commands)}")
        for line in commands:
            done, expected = run(line, schema), run(line, in_folder)
            assert (done.returncode, expected.returncode) == (0, 0), done.stderr + expected.stderr
            assert said(done, schema) == said(expected, in_folder)
        folder = Store.open(spark, schema).folder().removeprefix("file:")
        assert_refused(run(commands[0], schema), f"cannot create a store in {folder}: it has an owned store of ")
        spark.sql(f"DROP SCHEMA {schema.removeprefix('schema:')} CASCADE")


def answers_of(coordinator: Coordinator) -> dict[str, Any]:
    """All answers of a coordinator about its groups."""
    return {
        "offsets": coordinator.fetch_all_offsets(),
        "stable offsets": coordinator.fetch_all_offsets(require_stable=True),
        "groups": sorted(coordinator.list_groups(), key=lambda each: each.group_id),
        "described": coordinator.describe_groups(["active", "a", "b"]),
    }


def test_owned_log_is_cleaned_beside_coordinators_which_answer_as_before(workbench: Workbench, place: Path) -> None:
    OwnedStore.create(place, PARTITIONS)
    with Coordinator.open(place, clock=CLOCK, housekeeping=False) as coordinator:
        coordinator.store_group(stable("active"))
        for offset in range(30):
            coordinator.commit_offsets("a", {("t", 0): offset, ("t", 1): offset})
        coordinator.commit_offsets("gone", {("t", 0): 1})
        coordinator.remove_group("gone")
        for producer_id, epoch in ((7, 0), (8, 0), (9, 3)):
            coordinator.begin_transaction(producer_id, epoch)
            coordinator.txn_commit_offsets(producer_id, epoch, "b", {("t", producer_id): 5})
        coordinator.end_transaction(7, 0, commit=True)
        coordinator.begin_transaction(9, 4)  # shuts out epoch 3, and aborts what it had open
        workbench.fold(place)
        before, exported = answers_of(coordinator), export_of(place)

        done = clean_log(workbench.open(place), workbench.settings, CLOCK)
        assert done.removed >= 58
        assert done.bytes is not None
        assert done.bytes < done.bytes_before
        maintain_store(workbench.open(place), CLOCK)
        assert workbench.verify(place).equal
        assert workbench.reload(place) == done.records
        assert export_of(place) == exported

        with Coordinator.open(
            place, clock=CLOCK, housekeeping=False
        ) as anew:  # which knows nothing but the cleaned log
            assert answers_of(coordinator) == answers_of(anew) == before
            with pytest.raises(InvalidProducerEpoch):
                anew.begin_transaction(9, 3)
            anew.end_transaction(8, 0, commit=True)
            ends = {row.log_partition: row.record_offset for row in log_of(place)}
            anew.commit_offsets("a", {("t", 0): 99})
            coordinator.commit_offsets("b", {("t", 1): 100})
            assert answers_of(coordinator) == answers_of(anew)
    offsets = [(row.log_partition, row.record_offset) for row in log_of(place)]
    assert len(set(offsets)) == len(offsets)
    assert {at for at in offsets if at[1] > ends[at[0]]} == {
        (coordinator.partition_for(group), ends[coordinator.partition_for(group)] + step)
        for group, step in (("a", 1), ("b", 1 + (coordinator.partition_for("a") == coordinator.partition_for("b"))))
    }
    workbench.fold(place)
    assert_as_reference(place, log_of(place))
