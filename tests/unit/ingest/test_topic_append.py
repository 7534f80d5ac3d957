"""A task writes the records of a topic that the log lacks, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.ingest.topic import topic_append
from offsets_pipeline.ingest.topic.topic_append import TopicAppender, _writer, _Written
from offsets_pipeline.kafka.record.segment import Damage
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.append import Append
from offsets_pipeline.store.log.file_writer import SCHEMA, LogFilePlace
from offsets_pipeline.store.log.log_scan import ends_by_incarnation
from tests.folded_stores import new_store
from tests.logs import LogPartition
from tests.spark.stores import appended

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from offsets_pipeline.store.delta.table_folder import TableFolder


def batch(*places: tuple[int, int], damage: str | None = None, **columns: object) -> pa.RecordBatch:
    """Records or damage of the topic, as the source hands them to a task."""
    count = len(places)
    rows = {
        "log_partition": pa.array([at for at, _ in places], pa.int32()),
        "record_offset": pa.array([offset for _, offset in places], pa.int64()),
        "record_timestamp": pa.array([1_000_000] * count, pa.timestamp("us", tz="UTC")),
        "key": pa.array([b"key"] * count),
        "value": pa.array([None] * count, pa.binary()),
        "producer_id": pa.array([None] * count, pa.int64()),
        "producer_epoch": pa.array([None] * count, pa.int16()),
        "control_type": pa.array([None] * count, pa.string()),
        "source": pa.array(["kafka://c/t"] * count),
        "damage": pa.array([damage] * count, pa.string()),
    }
    rows |= {name: pa.array([value] * count, rows[name].type) for name, value in columns.items()}
    return pa.RecordBatch.from_pydict(rows)


def written(folder: Path, ends: dict[int, int], *batches: pa.RecordBatch) -> tuple[list[pa.Table], _Written]:
    place = LogFilePlace(str(folder), 5_000, log_incarnation=2)
    found = _writer(place, ends)(batches)
    return [pq.read_table(folder / file.name) for file in found.files], found


def test_records_in_the_log_are_left_out_and_others_are_written_once(tmp_path: Path) -> None:
    (rows,), found = written(tmp_path, {0: 5, 1: 9}, batch((0, 3), (0, 4), (0, 7), (1, 8)), batch((0, 8), (2, 0)))
    assert rows.schema.equals(SCHEMA)
    places = zip(rows["log_partition"].to_pylist(), rows["record_offset"].to_pylist(), strict=True)
    assert list(places) == [(0, 7), (0, 8), (2, 0)]
    assert (found.ends, found.damage) == ({0: 9, 2: 1}, [])


def test_rows_have_the_columns_of_the_source_and_of_the_append(tmp_path: Path) -> None:
    (rows,), _ = written(
        tmp_path, {}, batch((0, 0)), batch((0, 1), producer_id=7, producer_epoch=2, control_type="ABORT")
    )
    plain, control = rows.to_pylist()
    assert (plain["source"], plain["log_incarnation"], plain["backfill"]) == ("kafka://c/t", 2, False)
    assert (plain["producer_id"], plain["producer_epoch"], plain["control_type"]) == (None, None, None)
    assert (control["producer_id"], control["producer_epoch"], control["control_type"]) == (7, 2, "ABORT")


def test_damage_is_no_record_of_the_log(tmp_path: Path) -> None:
    (rows,), found = written(tmp_path, {}, batch((0, 0)), batch((0, 1), damage="bad", value=b"raw"), batch((0, 2)))
    assert rows["record_offset"].to_pylist() == [0, 2]
    assert found.damage == [(0, "kafka://c/t", Damage(1, 3, "bad", b"raw"))]


def test_damage_alone_needs_no_file(tmp_path: Path) -> None:
    tables, found = written(tmp_path, {0: 5}, batch((0, 3), damage="bad", value=b"raw"), batch((0, 4)))
    assert (tables, found.ends, len(found.damage)) == ([], {}, 1)
    assert list(tmp_path.iterdir()) == []


def test_where_the_log_holds_all_no_file_is_written(tmp_path: Path) -> None:
    assert written(tmp_path, {0: 5}, batch((0, 3), (0, 4))) == ([], _Written())
    assert list(tmp_path.iterdir()) == []


def test_a_fold_takes_the_records_that_the_log_lacked(tmp_path: Path) -> None:
    folded: list[pa.RecordBatch] = []

    def fold(batches: Iterable[pa.RecordBatch]) -> int:
        folded.extend(batches)
        return len(folded)

    damaged = batch((1, 1), damage="bad", value=b"raw")
    found = _writer(LogFilePlace(str(tmp_path), 5_000), {0: 5}, fold)([batch((0, 4), (0, 5)), damaged, batch((1, 0))])
    assert found.folded == 2
    (rows,) = [pq.read_table(tmp_path / file.name) for file in found.files]
    taken = pa.Table.from_batches(folded)
    assert taken.equals(rows.select(taken.column_names).cast(taken.schema))
    assert taken["log_partition"].to_pylist() == [0, 1]
    assert taken["record_offset"].to_pylist() == [5, 0]


def test_a_fold_that_takes_no_records_leaves_the_log_whole(tmp_path: Path) -> None:
    found = _writer(LogFilePlace(str(tmp_path), 5_000), {}, lambda _: None)([batch((0, 4)), batch((1, 0))])
    assert sum(file.rows for file in found.files) == 2


def test_ends_of_the_log_are_read_again_only_after_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []

    def ends(log: TableFolder) -> dict[int, dict[int, int]]:
        reads.append(log)
        return ends_by_incarnation(log)

    monkeypatch.setattr(topic_append, "ends_by_incarnation", ends)
    store, log = new_store(tmp_path), LogPartition()
    log.commit(("g", "t", 0), 1)
    appended(tmp_path, log.rows)
    ours, other = (TopicAppender(0, Settings(), FixedClock(5_000), lambda: None) for _ in range(2))

    def added(appender: TopicAppender, *places: tuple[int, int]) -> int:
        rows: Any = None  # the records come from the driver
        return appender.append(store, rows, records=lambda: [batch(*places)]).records

    assert [added(ours, (0, 0)), added(ours, (0, 0)), len(reads)] == [0, 0, 1]
    assert [added(ours, (0, 0), (0, 1), (0, 2)), added(ours, (0, 2), (0, 3)), len(reads)] == [2, 1, 1]
    assert [added(other, (0, 3), (0, 4)), len(reads)] == [1, 2]
    assert [added(ours, (0, 4)), len(reads)] == [0, 3]
    assert ends_by_incarnation(store.table(LOG.name)) == {0: {0: 5}}


def test_damage_without_records_is_kept_once_the_topic_is_confirmed(tmp_path: Path) -> None:
    store, confirmed = new_store(tmp_path), list[int]()
    appender = TopicAppender(0, Settings(), FixedClock(5_000), lambda: confirmed.append(1))
    rows: Any = None
    before = store.version(LOG.name)
    for records in ([], [batch((1, 3), damage="bad", value=b"raw")]):
        assert confirmed == []
        assert appender.append(store, rows, records=lambda found=records: found) == Append(before, 0)  # type: ignore[misc]
    assert (confirmed, store.version(LOG.name)) == ([1], before)
    (stretch,) = store.table("quarantine").snapshot().rows().to_pylist()
    found = [stretch[name] for name in ("log_partition", "log_incarnation", "source", "position", "length", "reason")]
    assert (found, stretch["value"]) == ([1, 0, "kafka://c/t", 3, 3, "bad"], b"raw")
