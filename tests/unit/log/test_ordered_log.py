"""Reads the log in order, whatever files its rows are in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from offsets_pipeline.errors import UnsupportedTable
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log import ordered_log
from offsets_pipeline.store.log.ordered_log import OrderedLog
from tests.log_tables import APPENDED_MS, log_store, log_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

PARTITIONS = 4
Rows = list[tuple[int, int]]


def append(places: Rows, appended_at_ms: int = APPENDED_MS, log_incarnation: int = 0, time_of: int = 1) -> pa.Table:
    """Rows at these places; a record is as old as its record offset."""
    offset: npt.NDArray[np.int64] = np.array([at for _, at in places], dtype=np.int64)
    count = len(places)
    records = pa.table(
        {
            "record_offset": offset,
            "record_timestamp": pa.array(offset * time_of, pa.timestamp("ms", tz="UTC")),
            "key": pa.array([b"%d-%d" % place for place in places], pa.binary()),
            "value": pa.nulls(count, pa.binary()),
            "producer_id": pa.nulls(count, pa.int64()),
            "producer_epoch": pa.nulls(count, pa.int16()),
            "control_type": pa.nulls(count, pa.string()),
        }
    )
    partition = pa.array([at for at, _ in places], pa.int32())
    return log_table(records, partition, appended_at_ms=appended_at_ms, log_incarnation=log_incarnation)


def opened(location: Path, log_incarnation: int = 0, as_of_ms: int | None = None) -> OrderedLog:
    return OrderedLog(TableFolder(str(location / "log"), LOG).snapshot(), log_incarnation, as_of_ms)


def read(log: OrderedLog) -> dict[int, list[int]]:
    """The record offsets of each log partition, as they come."""
    found: dict[int, list[int]] = {}
    for partition, rows in log.runs():
        assert rows["log_partition"].to_pylist() == [partition] * rows.num_rows
        offsets = rows["record_offset"].to_pylist()
        assert rows["key"].to_pylist() == [b"%d-%d" % (partition, at) for at in offsets]
        found.setdefault(partition, []).extend(offsets)
    return found


def expected(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in sorted(places):
        found.setdefault(partition, []).append(offset)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_rows_come_in_order_from_files_in_any(
    place: Path, monkeypatch: pytest.MonkeyPatch, seed: int, run_seed: int
) -> None:
    chosen = random.Random(run_seed + seed)
    monkeypatch.setattr(ordered_log, "_BLOCK_ROWS", chosen.choice([1, 7, 100]))
    places = [(at, offset) for at in range(PARTITIONS) for offset in chosen.sample(range(1000), 60)]
    if seed % 3 == 0:
        chosen.shuffle(places)  # no order at all
    elif seed % 3 == 1:
        places.sort(key=lambda place: (place[1] // 250, place))  # as time goes on, as of small appends put together
    else:
        places.sort()
    ends = sorted(chosen.sample(range(1, len(places)), 6))
    parts = [places[start:end] for start, end in zip([0, *ends], [*ends, len(places)], strict=True)]
    chosen.shuffle(parts)
    assert read(opened(log_store(place / "s", PARTITIONS, map(append, parts)))) == expected(places)


def test_rows_wait_for_those_before_them_and_for_no_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends of a stream, put together by upkeep in the wrong order, and one late row: few rows are held."""
    monkeypatch.setattr(ordered_log, "_BLOCK_ROWS", 10)
    appends = [[(at, 100 * number + n) for at in range(PARTITIONS) for n in range(1, 6)] for number in range(20)]
    files = [appends[0] + appends[19], [row for each in appends[1:19] for row in each], [(3, 50)]]
    log = opened(log_store(place / "s", PARTITIONS, map(append, files)))
    largest = 0
    for _, rows in log.runs():
        largest = max(largest, rows.num_rows)
    assert largest <= 15  # a block, and what a block had left over
    assert read(log) == expected(row for each in files for row in each)


def test_a_row_that_is_there_twice_comes_once(place: Path) -> None:  # R15
    first, second = [(0, 1), (0, 2), (1, 5)], [(0, 2), (0, 3), (1, 5)]
    log = opened(log_store(place / "s", PARTITIONS, map(append, (first, second))))
    assert read(log) == {0: [1, 2, 3], 1: [5]}


def test_a_log_partition_ends_before_its_first_younger_record(place: Path) -> None:
    rows = append([(0, 10), (0, 20), (0, 30), (1, 35), (2, 5)])
    # the clock went back: what lies behind a younger record is left out with it
    late = append([(0, 40)], time_of=0)
    log = opened(log_store(place / "s", PARTITIONS, [rows, late]), as_of_ms=20)
    assert read(log) == {0: [10, 20], 2: [5]}
    assert log.ends == {0: 30, 1: 35}


def test_a_record_is_not_younger_than_its_append(place: Path) -> None:
    """R36: the clock of the broker was ahead of that of `follow`."""
    ahead, rest = append([(0, 20), (0, 99), (1, 99)], appended_at_ms=25), append([(0, 100), (1, 100)], 30, time_of=0)
    store = log_store(place / "s", PARTITIONS, [ahead, rest])
    for as_of_ms, found in ((19, {}), (20, {0: [20]}), (24, {0: [20]}), (25, {0: [20, 99, 100], 1: [99, 100]})):
        assert read(opened(store, as_of_ms=as_of_ms)) == found


def test_a_record_without_a_timestamp_is_not_too_young(place: Path) -> None:
    rows = append([(0, 1), (0, 2)])
    rows = rows.set_column(2, rows.schema.field(2), pa.nulls(2, rows.schema.field(2).type))
    assert read(opened(log_store(place / "s", PARTITIONS, [rows]), as_of_ms=0)) == {0: [1, 2]}


def test_rows_of_another_log_incarnation_are_left_out(place: Path) -> None:
    old, new = append([(0, 1), (0, 2), (1, 1)], log_incarnation=3), append([(0, 1)], log_incarnation=4)
    store = log_store(place / "s", PARTITIONS, [old, new])
    assert read(opened(store, log_incarnation=4)) == {0: [1]}
    assert read(opened(store, log_incarnation=3)) == {0: [1, 2], 1: [1]}


def test_a_log_partitioned_by_its_owner_is_read(place: Path) -> None:
    places = [(at, offset) for offset in range(5) for at in range(3)]
    write_deltalake(place / "s" / "log", append(places), partition_by=["log_partition"])
    assert read(opened(place / "s")) == expected(places)


def test_timestamps_as_spark_writes_them_by_itself_are_read(place: Path) -> None:
    rows = append([(0, 1_700_000_000_123), (0, 1_700_000_000_456)])
    store = log_store(place / "s", PARTITIONS, [rows])
    (file,) = (store / "log").glob("*.parquet")
    commit = store / "log" / "_delta_log" / f"{1:020}.json"
    size = file.stat().st_size
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_schema=False)
    assert f'"size":{size}' in commit.read_text()
    commit.write_text(commit.read_text().replace(f'"size":{size}', f'"size":{file.stat().st_size}'))
    ((_, found),) = opened(store, as_of_ms=1_700_000_000_123).runs()
    assert found["record_timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000]


def test_a_table_that_only_spark_reads_is_refused(place: Path) -> None:
    store = log_store(place / "s", PARTITIONS, [append([(0, 1)])])
    first = store / "log" / "_delta_log" / f"{0:020}.json"
    features = '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["variantType"],'
    written = first.read_text().replace('"minReaderVersion": 1, "minWriterVersion": 2', features.rstrip(","))
    first.write_text(written.replace('["variantType"]', '["variantType"],"writerFeatures":["variantType"]'))
    with pytest.raises(UnsupportedTable, match=r"cannot read the table .* without Spark: .*variantType"):
        opened(store)
