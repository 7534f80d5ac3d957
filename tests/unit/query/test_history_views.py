"""What tasks of Spark do for the views of history, what limits their rows, and views in a catalog. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.errors import NoSuchStore
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import COLUMNS
from offsets_pipeline.questions.query import views
from offsets_pipeline.questions.query.parse_tree import Filters
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.log_tables import capture_log
from tests.unit.history.history_stores import capture_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.store.store import Store

CAPTURE, GROUP, OTHER = "4.2.0-classic", "g-deloff", "g-deleted"
REPLAYED = ("offset_history", "group_history", "deleted_offsets")


@pytest.mark.parametrize("group_ids", [None, [GROUP], [GROUP, OTHER]])
def test_a_task_gives_the_rows_of_the_tables_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_ids: list[str] | None
) -> None:
    monkeypatch.setattr(views, "_TAKE_ROWS", 20)
    store, queries = capture_store(tmp_path / "store", CAPTURE), list[str]()
    frame = SimpleNamespace(mapInArrow=lambda task, _: task)  # what a task does with its batches
    frame.repartition = frame.sortWithinPartitions = lambda *_: frame

    def sql(query: str) -> SimpleNamespace:
        queries.append(query)
        return frame

    spark = SimpleNamespace(sql=sql)
    opened = cast("Store", SimpleNamespace(folder=lambda: store, spark=spark, table_name=lambda name: f"`{name}`"))
    tasks: dict[str, Any] = dict(views._history_views(opened, dict.fromkeys(REPLAYED, Filters(group_ids))))
    columns = [*COLUMNS, "log_incarnation"]
    order = [(name, "ascending") for name in ("log_partition", "log_incarnation", "record_offset")]
    batches = capture_log(CAPTURE).select(columns).sort_by(order).combine_chunks().to_batches(max_chunksize=7)
    expected = read_views(store, REPLAYED, group_ids=group_ids)
    for name in REPLAYED:
        parts = [part.to_pylist() for part in tasks[name](iter(batches)) if part.num_rows]
        assert group_ids is not None or len(parts) > 1
        assert sorted((row for part in parts for row in part), key=str) == sorted(expected[name].to_pylist(), key=str)
        assert parts
    homes = [] if group_ids is None else sorted({partition_for(each, 5) for each in group_ids})
    condition = f"log_incarnation = 0 AND log_partition IN ({', '.join(map(str, homes))})" if homes else "TRUE"
    newest = "coalesce((SELECT max(log_incarnation) FROM `log_partitions`), 0)"
    log = f"SELECT * FROM `log` WHERE log_incarnation <= {newest} AND ({condition})"
    assert queries.count(f"SELECT {', '.join(columns)} FROM ({log}) l") == 3


def test_a_catalog_gets_the_views_of_each_store_with_its_cluster(tmp_path: Path) -> None:
    kinds = {
        "groups": (MIRRORED, TopicKind.CONSUMER_OFFSETS),
        "owned": (OWNED, TopicKind.CONSUMER_OFFSETS),
        "share": (MIRRORED, TopicKind.SHARE_STATE),
        "connect": (MIRRORED, TopicKind.CONNECT_OFFSETS),
        "connect-configs": (MIRRORED, TopicKind.CONNECT_CONFIGS),
    }
    for name, (kind, topic_kind) in kinds.items():
        create_tables(str(tmp_path / name), StoreProperties(kind, 1, topic_kind=topic_kind))

    def created(*names: str) -> dict[str, str]:
        said = list[str]()
        session: Any = SimpleNamespace(sql=said.append)
        views_of = views.create_views(session, *(str(tmp_path / name) for name in names), schema="lab.x")
        assert said.pop(0) == "CREATE SCHEMA IF NOT EXISTS lab.x"
        begin = "CREATE OR REPLACE VIEW lab.x."
        assert [text.partition(" AS ")[0] for text in said] == [begin + name for name in views_of]
        return {name: text.partition(" AS ")[2] for name, text in zip(views_of, said, strict=True)}

    of_groups = {"current_offsets", "unstable_offsets", "consumer_groups", "group_members", "consumer_lag"}
    both, alone = created("groups", "owned"), created("owned")
    assert both.keys() == alone.keys() == of_groups
    for name, text in both.items():
        first, second = text.split(" UNION ALL SELECT *, 'owned' AS cluster FROM (")
        assert first.startswith("SELECT *, 'groups' AS cluster FROM (")
        assert alone[name] == f"SELECT *, 'owned' AS cluster FROM ({second}"
        assert (f"{tmp_path}/groups/" in first, f"{tmp_path}/owned/" in second) == (True, True)
    # data times of an owned log, and samples of a store without them, have no rows
    assert both["consumer_lag"].count("WHERE TRUE") == alone["consumer_lag"].count("WHERE FALSE") - 1 == 1
    SampleWriter(table_of(str(tmp_path / "owned")), "a test").write({("t", 0): (0, 1)}, 1)
    assert created("owned")["consumer_lag"].count("WHERE FALSE") == 1
    assert created("share").keys() == {"share_partitions"}
    of_connect = created("connect")
    assert of_connect.keys() == {"connectors", "connector_offsets"}
    read = [f"/connect{suffix}/" in of_connect["connectors"] for suffix in ("", "-configs", "-status")]
    assert read == [True, True, False]


@pytest.mark.parametrize("schema", ["", "a b", "a.", ".a", "a-b", "a; DROP SCHEMA b"])
def test_a_schema_has_a_name_of_letters_digits_and_dots(schema: str) -> None:
    with pytest.raises(NoSuchStore, match="is not a valid name of a schema"):
        views.create_views(cast("Any", None), "none", schema=schema)


@pytest.mark.parametrize(
    ("query", "groups"),
    [
        ("SELECT * FROM offset_history WHERE group_id = 'g'", ["g"]),
        ("SELECT /*+ REPARTITION(2) */ * FROM offset_history WHERE `group_id` IN ('g', 'h')", ["g", "h"]),
        # a text of Spark that is another one in DuckDB: its, it's, "g"
        ("SELECT * FROM offset_history WHERE group_id = 'it''s'", None),
        (r"SELECT * FROM offset_history WHERE group_id = 'it\'s' AND topic = ' OR '", None),
        (r"SELECT * FROM offset_history WHERE group_id = 'a\\b'", None),
        ("""SELECT * FROM offset_history WHERE group_id = "it's" AND topic = "it's" """, None),
        ("SELECT * FROM offset_history WHERE group_id = 'g' AND topic RLIKE 't' LATERAL VIEW", None),
        ("SELECT * FROM offset_history LATERAL VIEW explode(array(1)) AS a WHERE group_id = 'g'", None),
        ("SHOW VIEWS", None),
    ],
)
def test_conditions_of_spark_that_duckdb_reads_otherwise_limit_nothing(query: str, groups: list[str] | None) -> None:
    assert views._filters(query, ["offset_history"]).get("offset_history", Filters()).group_ids == groups
