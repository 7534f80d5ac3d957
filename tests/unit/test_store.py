"""A store's properties, without a Spark session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks.s3 import create_bucket
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.errors import ConfigError, NoSuchStore, NotAStore, StoreMismatch
from offsets_pipeline.kafka.record.scan import Damage
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics, of_setting
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import FORMAT_VERSION, IN_SCHEMA, MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.schemas import QUARANTINE, TABLE_BY_NAME
from offsets_pipeline.store.delta.store_folder import create_tables, name_cluster, properties_of, set_properties
from offsets_pipeline.store.log.metadata import LogMetadata, note_quarantine
from offsets_pipeline.store.store import Store, _has_no_store_yet, normalised, sql_name
from tests.places import place_of
from tests.unit.coordinator.states import refusal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CLASSIC = CoordinatorSemantics.CLASSIC


def created(folder: Path, properties: StoreProperties) -> Store:
    create_tables(str(folder), properties)
    return Store(cast("SparkSession", None), str(folder), properties)


@pytest.mark.parametrize(("setting", "semantics"), [("auto", MODERN), ("modern", MODERN), ("classic", CLASSIC)])
def test_a_log_without_a_broker_has_the_semantics_of_the_setting(setting: str, semantics: CoordinatorSemantics) -> None:
    assert of_setting(setting) is semantics


@pytest.mark.parametrize(
    ("location", "normal"),
    [
        ("s3://bucket/store/", "s3://bucket/store"),
        ("schema:offsets", "schema:offsets"),
        ("/data/./store/", "/data/store"),
        ("/data/other/../store", "/data/store"),
        ("file:/data/store/", "/data/store"),  # as Spark names it
        ("file:///data/store", "/data/store"),
        ("file:///data/a%20store", "/data/a store"),
        ("s3a://bucket/a%20store/", "s3a://bucket/a store"),
    ],
)
def test_one_store_has_one_location(location: str, normal: str) -> None:
    assert normalised(location) == normal


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("/data/a`store", "delta.`/data/a``store/log`"),
        ("schema:lab", "lab.log"),
        ("schema:unity.lab_1", "unity.lab_1.log"),
    ],
)
def test_a_table_has_a_name_in_sql(location: str, name: str) -> None:
    assert sql_name(location, "log") == name


@pytest.mark.parametrize("schema", ["", "a b", "a.", ".a", "a..b", "a`b"])
def test_a_name_that_no_schema_has_is_refused(schema: str) -> None:
    with pytest.raises(NoSuchStore, match="is not a schema name: use letters, digits, _ and dots"):
        sql_name(f"schema:{schema}", "log")


@pytest.mark.parametrize(
    ("partitions", "refused"),
    [(0, "InvalidPartitionCount"), (1, ""), (100_000, ""), (100_001, "InvalidPartitionCount")],
)
def test_a_log_has_from_one_to_a_hundred_thousand_partitions(partitions: int, refused: str) -> None:
    assert refusal(StoreProperties(MIRRORED, partitions).require_partition_count) == refused


@pytest.mark.parametrize(("here", "appends", "stays"), [(True, 1, False), (True, 0, True), (False, 1, True)])
def test_a_store_is_discarded_by_its_creator_unless_another_writer_has_appended(
    place: Path, *, here: bool, appends: int, stays: bool
) -> None:
    store = created(place / "s", StoreProperties(MIRRORED, 1))
    store.table("log").commit(seen=store.table("log").snapshot())
    if here:
        store.created_here = True
    store.discard(*([appends] if appends else []))
    assert (place / "s").exists() is stays


def test_of_two_programs_that_create_a_store_one_has_created_it(place: Path) -> None:
    location, session = str(place / "s"), cast("SparkSession", None)
    assert Store.find(session, location) is None
    first, second = (Store.create(session, f"{location}/", StoreProperties(MIRRORED, 1)) for _ in range(2))
    assert [each.created_here for each in (first, second, Store.open(session, location))] == [True, False, False]
    assert first.location == second.location == location
    assert Store.find(session, location) is not None


def test_a_store_that_is_a_schema_is_not_opened_by_its_folder(place: Path) -> None:
    store = created(place / "s", StoreProperties(MIRRORED, 1))
    set_properties(store.table("log"), {IN_SCHEMA: "true"}, "a test")
    with pytest.raises(
        NotAStore, match=f"^cannot open store {store.location} by its folder: its tables are a schema's"
    ):
        Store.open(cast("SparkSession", None), store.location)


def test_a_command_refuses_a_store_of_another_kind_or_with_other_semantics() -> None:
    owned = Store(cast("SparkSession", None), "/data/s", StoreProperties(OWNED, 1))
    owned.require(OWNED)
    with pytest.raises(StoreMismatch, match="/data/s is an owned store, but this command needs a mirrored one; name"):
        owned.require(MIRRORED)
    for same in (None, MODERN):
        owned.require_semantics(same)
    with pytest.raises(StoreMismatch, match="/data/s has modern coordinator semantics, not classic: `offsets reload"):
        owned.require_semantics(CLASSIC)


@pytest.mark.parametrize("location", ["s3:/bucket/store", "s3://", "~/store", "s3:bucket"])
def test_a_location_that_is_no_folder_here_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match=f"^wrong location {location}: "):
        normalised(location)


@pytest.mark.parametrize("below", ["", "/prefix/store"])
def test_a_store_that_is_discarded_leaves_the_rest_of_its_bucket(s3: str, below: str) -> None:
    bucket = create_bucket(f"discarded-{len(below)}")
    store = created(place_of(bucket + below), StoreProperties(MIRRORED, 1))
    other = place_of(bucket, "other")
    other.write_bytes(b"of another program")
    store.created_here = True
    store.discard()
    assert other.read_bytes() == b"of another program"
    assert not [each for each in place_of(bucket).rglob("*") if each.is_file() and each != other]
    other.unlink()
    created(place_of(bucket + below), StoreProperties(MIRRORED, 1))


def test_columns_are_those_of_the_format(root: Path) -> None:
    """Programs of one format read each other's tables, so a change of this list is another format, unless it adds."""
    found = [
        f"{table.name}.{each.name} {each.type}{'' if each.nullable else ' not null'}"
        for table in (*TABLE_BY_NAME.values(), *HISTORY_VIEWS.values())
        for each in table.columns
    ]
    listed = root / "tests" / "data" / f"columns-of-format-{FORMAT_VERSION}.txt"
    assert found == listed.read_text(encoding="utf-8").splitlines()


def test_a_topic_is_noted_and_unknown_ids_keep_the_known_ones(tmp_path: Path) -> None:
    store = created(tmp_path / "s", StoreProperties(MIRRORED, 1))
    for cluster_id, topic_id, known in (
        (None, None, (None, None)),
        ("c", "A" * 22, ("c", "A" * 22)),
        (None, None, ("c", "A" * 22)),
        ("d", "B" * 22, ("d", "B" * 22)),
    ):
        store = store.with_topic(cluster_id, topic_id, "groups", 7)
        for found in (store.properties, properties_of(store.location)):
            assert (found.cluster_id, found.topic_id) == known
            assert (found.topic_name, found.offsets_partitions) == ("groups", 7)


def test_a_replay_takes_records_before_its_end_out_of_the_quarantine_of_its_log_partitions(tmp_path: Path) -> None:
    store = created(tmp_path / "s", StoreProperties(MIRRORED, 2))

    def note(
        records: list[tuple[int, int]], replayed_to: dict[int, int], log_incarnation: int = 0
    ) -> list[tuple[int, int]]:
        rows = [
            {"log_partition": at, "record_offset": offset, "reason": "cut off", "key": b"", "value": None}
            for at, offset in records
        ]
        note_quarantine(store, rows, log_incarnation, FixedClock(1), replayed_to=replayed_to)
        only = {"log_incarnation": [log_incarnation]}
        held = store.table(QUARANTINE.name).snapshot().rows(["log_partition", "record_offset", "source"], only)
        return sorted((row["log_partition"], row["record_offset"]) for row in held.to_pylist() if not row["source"])

    stretch = (0, "a.log", Damage(0, 5, "cut off", b"bytes"))
    for _ in range(2):
        LogMetadata(store, FixedClock(1)).damage([stretch, stretch])
    assert note([(0, 0)], {}, log_incarnation=1) == [(0, 0)]
    assert note([(0, 0), (1, 0), (1, 7)], {}) == [(0, 0), (1, 0), (1, 7)]
    assert note([(0, 0), (1, 3)], {}) == [(0, 0), (1, 0), (1, 3), (1, 7)]  # each once
    assert note([(1, 0)], {1: 7}) == [(0, 0), (1, 0), (1, 7)]  # the replay did not reach the last
    assert note([], {0: 1, 1: 8}) == []
    of_others = store.table(QUARANTINE.name).snapshot().rows(["log_incarnation", "source", "value"]).to_pylist()
    assert sorted((row["log_incarnation"], row["source"], row["value"]) for row in of_others) == [
        (0, "a.log", b"bytes"),
        (1, None, None),
    ]


def test_the_retention_of_the_brokers_is_noted_with_the_time_at_which_it_was_first_read(tmp_path: Path) -> None:
    store = created(tmp_path / "s", StoreProperties(MIRRORED, 1))
    assert properties_of(store.location).retention is None
    for minutes, read_at_ms, known, known_ms in (
        (9, 1_000, 9, 1_000),
        (9, 2_000, 9, 1_000),
        (None, 3_000, 9, 1_000),  # the brokers refuse it now
        (10, 4_000, 10, 4_000),
    ):
        found = None if minutes is None else Retention(minutes * 60_000, 2_000, is_known=True, read_at_ms=read_at_ms)
        version = store.version("log")
        store = store.with_topic(None, None, "groups", 1, found)
        expected = Retention(known * 60_000, 2_000, is_known=True)
        for noted in (store.properties.retention, properties_of(store.location).retention):
            assert noted == expected
            assert noted.read_at_ms == known_ms
        assert (store.version("log") > version) == (known_ms == read_at_ms)
        name_cluster(store.location, f"named-{read_at_ms}")  # by another process
    assert properties_of(store.location).cluster_name == "named-4000"
    store.with_topic("c", None, "groups", 1)
    assert properties_of(store.location).cluster_name == "named-4000"


@pytest.mark.parametrize(
    ("kind", "topic_kind", "semantics", "refused"),
    [
        (MIRRORED, TopicKind.CONSUMER_OFFSETS, CLASSIC, None),
        (OWNED, TopicKind.CONSUMER_OFFSETS, CLASSIC, "it is an owned store, and its coordinator is modern"),
        (MIRRORED, TopicKind.CONNECT_OFFSETS, CLASSIC, "its topic has no records of groups"),
        (OWNED, TopicKind.CONSUMER_OFFSETS, MODERN, None),
        (MIRRORED, TopicKind.CONNECT_OFFSETS, MODERN, None),
    ],
)
def test_only_the_log_of_a_broker_has_classic_semantics(
    tmp_path: Path, kind: str, topic_kind: TopicKind, semantics: CoordinatorSemantics, refused: str | None
) -> None:
    store = created(tmp_path / "s", StoreProperties(kind, 1, topic_kind=topic_kind))
    if refused is None:
        store.with_semantics(semantics)
    else:
        with pytest.raises(StoreMismatch, match=f"as classic: {refused}"):
            store.with_semantics(semantics)
    assert properties_of(store.location).coordinator_semantics == (semantics if refused is None else MODERN)


@pytest.mark.parametrize(
    ("exists", "tables", "expected"),
    [
        (False, {}, True),
        (True, {}, True),
        (True, {"a_view": True}, True),
        (True, {"a_table": False}, False),
        (True, {"log": False}, False),
    ],
)
def test_a_schema_without_tables_has_no_store_yet(exists: bool, tables: dict[str, bool], expected: bool) -> None:
    shown = [SimpleNamespace(tableName=name, isTemporary=is_temporary) for name, is_temporary in tables.items()]
    spark: Any = SimpleNamespace(
        catalog=SimpleNamespace(databaseExists=lambda _: exists),
        sql=lambda _: SimpleNamespace(collect=lambda: shown),
    )
    assert _has_no_store_yet(spark, "schema:lab") == expected
