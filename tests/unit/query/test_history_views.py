"""What tasks of Spark do for the views of history, and what limits their rows. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.errors import NoSuchStore
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import COLUMNS
from offsets_pipeline.questions.query import history_views, views
from offsets_pipeline.questions.query.parse_tree import Filters
from offsets_pipeline.semantics.partitioning import partition_for
from tests.log_tables import capture_log
from tests.unit.history.history_stores import capture_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from offsets_pipeline.store.store import Store

CAPTURE, GROUP, OTHER = "4.2.0-classic", "g-deloff", "g-deleted"
REPLAYED = ("offset_history", "group_history", "deleted_offsets")


class Frame:
    """A DataFrame of a query: mapInArrow returns what a task does with its batches."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    def repartition(self, _: str) -> Frame:
        return self

    def sortWithinPartitions(self, *_: str) -> Frame:  # noqa: N802 - Spark's name
        return self

    def mapInArrow(self, task: Any, _: object) -> Frame:  # noqa: ANN401, N802 - Spark's name
        self.task = task
        return self


@pytest.mark.parametrize("group_ids", [None, [GROUP], [GROUP, OTHER]])
def test_a_task_gives_the_rows_of_the_tables_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_ids: list[str] | None
) -> None:
    monkeypatch.setattr(history_views, "_TAKE_ROWS", 20)
    store = capture_store(tmp_path / "store", CAPTURE)
    spark = SimpleNamespace(sql=Frame)
    opened = cast("Store", SimpleNamespace(folder=lambda: store, spark=spark, table_name=lambda name: f"`{name}`"))
    filters = dict.fromkeys(REPLAYED, Filters(group_ids))
    found = cast("dict[str, Frame]", history_views.history_views(opened, filters))
    columns = [*COLUMNS, "log_incarnation"]
    order = [(name, "ascending") for name in ("log_partition", "log_incarnation", "record_offset")]
    batches = capture_log(CAPTURE).select(columns).sort_by(order).combine_chunks().to_batches(max_chunksize=7)
    expected = read_views(store, REPLAYED, group_ids=group_ids)
    for name in REPLAYED:
        task = found[name].task
        assert task is not None
        parts = [part.to_pylist() for part in task(iter(batches)) if part.num_rows]
        rows = [row for part in parts for row in part]
        assert group_ids is not None or len(parts) > 1
        assert sorted(rows, key=str) == sorted(expected[name].to_pylist(), key=str) != []
        homes = None if group_ids is None else sorted({partition_for(each, 5) for each in group_ids})
        condition = "TRUE" if homes is None else f"log_incarnation = 0 AND log_partition IN ({str(homes)[1:-1]})"
        assert found[name].query == (
            f"SELECT {', '.join(columns)} FROM (SELECT * FROM `log` WHERE log_incarnation <= "
            f"coalesce((SELECT max(log_incarnation) FROM `log_partitions`), 0) AND ({condition})) l"
        )


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
