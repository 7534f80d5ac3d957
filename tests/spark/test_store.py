"""Stores: their fixed properties, the folders and schemas that are accepted, and those that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.errors import DamagedTable, InvalidPartitionCount, NoSuchStore, NotAStore, StoreMismatch
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.schemas import TABLES
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.file_writer import LogFilePlace
from offsets_pipeline.store.store import Store
from tests.logs import oracle
from tests.places import copied, remove_place
from tests.spark.stores import CLOCK, assert_as_reference, differences, log_of, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.stores import Workbench

MODERN, CLASSIC = CoordinatorSemantics


def test_properties_are_fixed_with_the_store(spark: SparkSession, place: Path) -> None:  # R1, R4
    location = str(place / "a store")
    given = StoreProperties(OWNED, 7, "a cluster", "a topic")
    assert Store.create(spark, location, given).properties == given
    store = Store.open(spark, location + "/")
    assert store.properties == given
    store.require(OWNED)
    with pytest.raises(
        StoreMismatch, match="is an owned store, but this command needs a mirrored one; name another store"
    ):
        store.require(MIRRORED)
    with pytest.raises(StoreMismatch, match="it has a store with other properties; name another folder"):
        Store.create(spark, location, StoreProperties(MIRRORED, 5))
    assert Store.open(spark, location).properties == given


def test_semantics_are_those_asked_for_or_of_the_settings_and_only_a_reload_changes_them(
    workbench: Workbench, place: Path
) -> None:
    segments = str(segments_of("3.9.2-txn-open"))
    classic = replace(workbench.settings, log=replace(workbench.settings.log, coordinator_semantics="classic"))
    found: list[CoordinatorSemantics] = []
    for settings, asked in ((workbench.settings, None), (classic, None), (classic, MODERN)):
        location = str(place / f"store{len(found)}")
        ingest_segments(workbench.spark, location, [segments], settings, CLOCK, semantics=asked)
        found.append(StateReader(location).coordinator_semantics)
        ingest_segments(workbench.spark, location, [segments], settings, CLOCK)
    assert found == [MODERN, CLASSIC, MODERN]
    with pytest.raises(StoreMismatch, match="has modern coordinator semantics, not classic: `offsets reload --coord"):
        ingest_segments(workbench.spark, str(place / "store0"), [segments], classic, CLOCK, semantics=CLASSIC)


def test_owned_store_is_always_modern(workbench: Workbench, place: Path) -> None:
    owned = Store.create(workbench.spark, str(place), StoreProperties(OWNED, 1))
    with pytest.raises(StoreMismatch, match="it is an owned store, and its coordinator is modern"):
        workbench.reload(owned.location, semantics=CLASSIC)
    assert Store.open(workbench.spark, owned.location).properties == owned.properties


def test_tables_have_their_columns_comments_and_constraints(
    spark: SparkSession, empty: Callable[[int], Path], place: Path
) -> None:
    store = Store.open(spark, str(empty(5)))
    for table in TABLES:
        columns = store.read(table.name).schema
        assert columns.simpleString() == from_arrow_schema(table.arrow_schema()).simpleString()
        assert [each.metadata for each in columns] == [{"comment": each.comment} for each in table.columns]
        detail = spark.sql(f"DESCRIBE DETAIL {store.table_name(table.name)}").first()
        assert detail is not None
        assert detail["description"] == table.comment
        assert (
            detail["properties"].items()
            >= {key: value for key, value in table.properties.items() if "constraints" in key}.items()
        )
    # a column that must hold something, and a constraint, hold for SQL by hand too
    copy = copied(empty(5), place / "store")
    names = "log_partition, log_incarnation, start_offset, end_offset, updated_at"
    for values in ("NULL, 0, 1, 2, current_timestamp()", "0, 0, 2, 1, current_timestamp()"):
        with pytest.raises(Exception, match=r"DELTA_NOT_NULL_CONSTRAINT_VIOLATED|DELTA_VIOLATE_CONSTRAINT"):
            spark.sql(f"INSERT INTO delta.`{copy}/log_partitions` ({names}) VALUES ({values})")


def test_store_that_has_lost_its_log_is_no_store_in_the_making(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    location = copied(folded("4.2.0-kip848"), place / "store")
    remove_place(location / "log")
    with pytest.raises(NotAStore, match="has no table named log"):
        Store.find(workbench.spark, str(location))
    with pytest.raises(NotAStore, match="it is not empty"):
        Store.create(workbench.spark, str(location), StoreProperties(MIRRORED, 5))
    assert not (location / "log").exists()


def test_incomplete_store_does_not_open_and_is_completed(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(5), place / "store")
    for name in ("log", "quarantine"):  # the log is made last
        remove_place(location / name)
    with pytest.raises(NoSuchStore, match="no store at"):
        workbench.open(location)
    assert Store.find(workbench.spark, str(location)) is None  # so an ingest completes it
    assert Store.create(workbench.spark, str(location), StoreProperties(MIRRORED, 3)).properties.offsets_partitions == 3
    assert workbench.open(location).properties.offsets_partitions == 3
    assert {path.name for path in location.iterdir()} == {table.name for table in TABLES}


@pytest.mark.local_only("of paths of a machine")
def test_store_may_be_named_by_any_path_to_it(
    spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    Store.create(spark, "../a/store", StoreProperties(MIRRORED, 3))
    for location in ("../a/store", f"{place}/here/../a/store/", str(place / "a" / "store")):
        store = Store.open(spark, location)
        assert store.location == str(place / "a" / "store")
        assert StateReader(location).properties.offsets_partitions == 3
        assert not DeltaTable.forPath(spark, f"{store.location}/log").toDF().take(1)


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_store_with_an_impossible_number_of_log_partitions_is_refused(
    spark: SparkSession, place: Path, count: int
) -> None:
    with pytest.raises(InvalidPartitionCount, match=f"a log has 1 to 100000 partitions, not {count}"):
        Store.create(spark, str(place / "store"), StoreProperties(MIRRORED, count))
    assert not (place / "store").exists()


def test_folder_with_other_files_is_not_a_store_and_stays_unchanged(spark: SparkSession, place: Path) -> None:
    other = place / "photos"
    other.mkdir()
    (other / "one.jpg").write_bytes(b"jpg")
    for ask in (
        lambda: Store.open(spark, str(other)),
        lambda: Store.create(spark, str(other), StoreProperties(MIRRORED, 5)),
        lambda: StateReader(str(other)),
    ):
        with pytest.raises(NotAStore):
            ask()
    assert [path.name for path in other.iterdir()] == ["one.jpg"]


def test_table_named_log_of_another_program_is_not_a_store(spark: SparkSession, place: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{place}/log` (line STRING) USING delta")
    for ask in (lambda: Store.open(spark, str(place)), lambda: StateReader(str(place))):
        with pytest.raises(NotAStore, match="its table log is not a log of this program"):
            ask()


def test_store_of_a_newer_format_is_refused(spark: SparkSession, empty: Callable[[int], Path], place: Path) -> None:
    location = copied(empty(5), place / "store")
    spark.sql(f"ALTER TABLE delta.`{location}/log` SET TBLPROPERTIES ('offsets.format.version' = '7')")
    with pytest.raises(NotAStore, match="it has format 7, this program reads 6; use a newer version of the program"):
        Store.open(spark, str(location))


@pytest.mark.parametrize("location", ["nothing", "empty", "schema:no_such_schema", "schema:no name"])
def test_missing_folder_is_not_a_store(spark: SparkSession, place: Path, location: str) -> None:
    (place / "empty").mkdir()
    where = location if location.startswith("schema:") else str(place / location)
    with pytest.raises(NoSuchStore):
        Store.open(spark, where)


def test_store_is_created_in_no_schema_whose_name_is_not_valid(spark: SparkSession) -> None:
    with pytest.raises(NoSuchStore, match="'a; b' is not a schema name: use letters, digits, _ and dots"):
        Store.create(spark, "schema:a; b", StoreProperties(OWNED, 1))


@pytest.mark.slow
def test_store_in_a_schema_of_the_catalog_works_from_end_to_end(workbench: Workbench, schema: str) -> None:
    capture = "4.2.0-classic"
    assert workbench.ingest(schema, segments_of(capture)).created
    assert workbench.fold(schema) > 0
    assert workbench.fold(schema) == 0
    assert workbench.verify(schema).equal
    assert workbench.ingest(schema, segments_of(capture)).added == 0
    folder = workbench.open(schema).folder().removeprefix("file:")
    with pytest.raises(NotAStore, match="by its folder: its tables are a schema's; name schema:NAME"):
        workbench.fold(folder)
    assert LogAppender(workbench.open(schema)).place(CLOCK) == LogFilePlace(f"{folder}/log", CLOCK.now_ms())
    assert differences(folder, oracle(capture)) == []
    assert_as_reference(folder, log_of(folder))
    workbench.spark.sql(f"DELETE FROM {schema.removeprefix('schema:')}.published_current_offsets")
    with pytest.raises(DamagedTable, match=r"published_current_offsets was changed by another program: .* DELETE"):
        workbench.verify(schema)
    workbench.reload(schema)
    assert differences(folder, oracle(capture)) == []
    assert describe_groups(StateReader(folder)).keys() == {
        name for name, group in oracle(capture)["groups"].items() if group["listed"]
    }


def test_schema_in_the_making_is_completed_and_one_that_lost_its_log_is_not(workbench: Workbench, schema: str) -> None:
    spark, name = workbench.spark, schema.removeprefix("schema:")
    capture = "4.2.0-classic"
    Store.create(spark, schema, StoreProperties(MIRRORED, 5))
    for table in ("log", "quarantine"):
        spark.sql(f"DROP TABLE {name}.{table}")
    assert Store.find(spark, schema) is None
    assert workbench.ingest(schema, segments_of(capture)).created
    assert workbench.fold(schema) > 0
    spark.sql(f"DROP TABLE {name}.log")
    with pytest.raises(NotAStore, match="it has no table named log; name a store's schema"):
        Store.find(spark, schema)
    with pytest.raises(NotAStore, match="it is not empty; name a new or empty schema"):
        Store.create(spark, schema, StoreProperties(MIRRORED, 5))


def test_failed_first_ingest_leaves_no_schema(workbench: Workbench, schema: str) -> None:
    with pytest.raises(InvalidPartitionCount):
        workbench.ingest(schema, segments_of("4.2.0-classic"), partitions=50)
    with pytest.raises(AnalysisException):
        workbench.spark.sql(f"DESCRIBE SCHEMA {schema.removeprefix('schema:')}")
