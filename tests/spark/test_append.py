"""Appends of files that tasks wrote: read alike by everybody, once each, and by one writer at a time."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from offsets_pipeline.errors import UnsupportedTable, WriteConflict
from offsets_pipeline.ingest.segments import segment_ingest as segments
from offsets_pipeline.ingest.segments.segment_files import find_log
from offsets_pipeline.ingest.segments.segment_ingest import write_segments
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.store.log.append import Append, LogAppender
from tests.logs import LogPartition, capture_rows
from tests.places import copied
from tests.spark.segments import batches_of, write_segment
from tests.spark.stores import CLOCK, log_of, rows_of, segments_of, table, versions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.store import Store
    from tests.spark.stores import Workbench

CAPTURE = "4.2.0-txn-open"  # has transactions, markers and tombstones


def capture_log() -> list[LogRow]:
    rows = [row for of_one in capture_rows(CAPTURE).values() for row in of_one]
    return sorted(rows, key=lambda row: (row.log_partition, row.record_offset))


def actions_of(store: Path, kind: str) -> list[dict[str, Any]]:
    """The actions of a kind in the commits to the table `log`."""
    commits = sorted((store / "log" / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    return [line[kind] for line in lines if kind in line]


def files_for(store: Store, appender: LogAppender, source: Path) -> list[DataFile]:
    """Rows that tasks write for an append of all records of a data folder."""
    place = appender.place(CLOCK)
    return write_segments(store.spark, find_log([str(source)]).folders, {}, place, store.properties).files


def test_spark_reads_from_the_files_what_the_segments_hold(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(5), place / "a store")
    report = workbench.ingest(location, segments_of(CAPTURE))
    assert log_of(location) == capture_log()  # without Spark
    store = workbench.open(location)
    assert read_by_spark(store) == capture_log()
    found = store.read("log").collect()
    assert report.added == len(found)
    with_producer = [row for row in found if row["producer_id"] is not None]
    assert {row["producer_epoch"] for row in with_producer} == {0}
    assert {row["producer_epoch"] for row in found if row not in with_producer} == {None}
    written = store.read("log").select(
        F.unix_millis("appended_at").alias("at"), F.unix_millis("record_timestamp").alias("made"), "*"
    )
    assert {(row["at"], row["log_incarnation"], row["backfill"]) for row in written.collect()} == {
        (CLOCK.now_ms(), 0, False)
    }
    assert all(row["made"] > 1_700_000_000_000 for row in written.collect())
    # what the commit says of its files is what they hold, and files are skipped by it
    adds = actions_of(location, "add")
    assert {add["path"] for add in adds} == {path.name for path in (location / "log").glob("*.parquet")}
    for add in adds:
        with (location / "log" / add["path"]).open("rb") as file:
            rows = pq.read_table(file)
        stats = json.loads(add["stats"])
        assert stats["numRecords"] == rows.num_rows
        for name in ("log_partition", "record_offset"):
            values = rows[name].to_pylist()
            assert (stats["minValues"][name], stats["maxValues"][name]) == (min(values), max(values))
        assert rows == rows.sort_by([("log_partition", "ascending"), ("record_offset", "ascending")])
    history = store.spark.sql(f"DESCRIBE HISTORY {store.table_name('log')} LIMIT 1").first()
    assert history is not None
    assert (history["operation"], history["operationMetrics"]["numOutputRows"]) == ("WRITE", str(len(found)))
    assert store.read("log").where(F.col("appended_at") == F.timestamp_millis(F.lit(CLOCK.now_ms()))).count() == len(
        found
    )


def read_by_spark(store: Store) -> list[LogRow]:
    found = store.read("log").orderBy("log_partition", "record_offset").select(list(LogRow._fields)).collect()
    rows = [LogRow(*row) for row in found]
    return [row._replace(key=_bytes(row.key), value=_bytes(row.value)) for row in rows]


def _bytes(binary: bytes | None) -> bytes | None:
    return None if binary is None else bytes(binary)


@pytest.mark.parametrize("late", [(False, False), (False, True), (True, False)])
def test_of_two_appends_that_began_at_one_version_the_second_is_refused(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path, late: tuple[bool, bool]
) -> None:
    location = copied(empty(5), place / "store")
    store = workbench.open(location)
    rows = workbench.open(_one_record(workbench, empty, tmp_path)).read("log")
    appends = [_begun(store, is_late=each, rows=rows) for each in late]
    assert appends[0]().records == (1 if late[0] else len(capture_log()))
    before, held = versions(location), table(location, "log").num_rows
    with pytest.raises(WriteConflict):
        appends[1]()
    assert versions(location) == before
    assert table(location, "log").num_rows == held


def _begun(store: Store, *, is_late: bool, rows: DataFrame) -> Callable[[], Append]:
    """An append that has looked at the table, and ends when it is called."""
    appender = LogAppender(store)
    return (
        partial(appender.append_late, rows, appender.place(CLOCK))
        if is_late
        else partial(appender.append_files, files_for(store, appender, segments_of(CAPTURE)))
    )


def _one_record(workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path) -> Path:
    log = LogPartition(0)
    log.commit(("g", "t", 0), 1)
    other = copied(empty(1), tmp_path / "other")
    workbench.ingest(other, write_segment(tmp_path / "one", 0, b"".join(batches_of(log.rows))))
    return other


def test_table_that_is_changed_while_tasks_write_refuses_their_files(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(5), place / "store")
    store = workbench.open(location)
    appender = LogAppender(store)
    files = files_for(store, appender, segments_of(CAPTURE))
    store.spark.sql(f"ALTER TABLE {store.table_name('log')} ADD CONSTRAINT few CHECK (record_offset < 3)")
    with pytest.raises(UnsupportedTable, match=r"requires the constraint few \(record_offset < 3\)"):
        appender.append_files(files)
    assert rows_of(location, "log") == []
    wait_until("no file is left", lambda: not list((location / "log").glob("*.parquet")))


def test_files_of_an_ingest_that_died_are_not_in_the_log(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(5), place / "store")
    store = workbench.open(location)
    assert files_for(store, LogAppender(store), segments_of(CAPTURE))
    assert rows_of(location, "log") == []
    assert workbench.ingest(location, segments_of(CAPTURE)).added == len(capture_log())
    assert log_of(location) == capture_log()


def test_conflicting_ingest_retries_and_appends_only_missing_records(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = copied(empty(5), place / "store")
    one = segments_of(CAPTURE) / f"__consumer_offsets-{max(capture_rows(CAPTURE))}"
    inner: list[int] = []

    def overtaken(*arguments: Any) -> object:  # noqa: ANN401
        done = write_segments(*arguments)
        if not inner:
            inner.append(0)
            inner[0] = workbench.ingest(location, one).added
        return done

    monkeypatch.setattr(segments, "write_segments", overtaken)
    report = workbench.ingest(location, segments_of(CAPTURE))
    assert (inner[0], report.added) == (
        len(capture_rows(CAPTURE)[max(capture_rows(CAPTURE))]),
        len(capture_log()) - inner[0],
    )
    assert log_of(location) == capture_log()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ADD CONSTRAINT no_such_key CHECK (key IS NULL OR length(key) < 100000)", "the constraint no_such_key"),
        ("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "column mapping"),
        ("ADD COLUMN note STRING", None),
    ],
)
def test_table_that_its_owner_changed_is_written_or_refused_by_name(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, change: str, named: str | None
) -> None:
    location = copied(empty(5), place / "store")
    store = workbench.open(location)
    store.spark.sql(f"ALTER TABLE {store.table_name('log')} {change}")
    if named is not None:
        with pytest.raises(UnsupportedTable, match=f"requires {named}"):
            workbench.ingest(location, segments_of(CAPTURE))
        wait_until("no file is left", lambda: not list((location / "log").glob("*.parquet")))
        return
    assert workbench.ingest(location, segments_of(CAPTURE)).added == len(capture_log())
    assert read_by_spark(store) == capture_log()
    assert workbench.ingest(location, segments_of(CAPTURE)).added == 0
