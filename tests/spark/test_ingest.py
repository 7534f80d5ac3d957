"""Segment files into the log: new records are appended once, and files of another log are refused without a change."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.common.foreign_errors import raised_on_executor
from offsets_pipeline.errors import (
    ConflictingLog,
    InvalidPartitionCount,
    NoSegments,
    NoSuchPath,
    OffsetsError,
    StorageFailed,
    StoreMismatch,
    UndecodableRecord,
    WrongRecords,
)
from offsets_pipeline.ingest.segments.segment_files import LogFolder
from offsets_pipeline.ingest.segments.segment_ingest import write_segments
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.questions.query.log_info import LogPartitionInfo, log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.log.file_writer import LogFilePlace
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from offsets_pipeline.store.store import Store
from tests.logs import LogPartition, capture_rows
from tests.places import copied
from tests.record_batches import encode_batch
from tests.spark.segments import batch_ends, batches_of, write_log, write_segment
from tests.spark.stores import CLOCK, assert_as_reference, export_of, log_of, rows_of, segments_of, versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

UNUSED_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def simple_log(commits: int, *, first: int = 0) -> LogPartition:
    """The one group of log partition 0 commits 0, 1, 2 and so on."""
    log = LogPartition(0, start=first)
    for number in range(first, first + commits):
        log.commit(("g", "t", 0), number)
    return log


def test_records_in_the_log_are_not_appended_again(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = copied(folded("4.2.0-classic"), place / "store")
    before, rows = versions(store), rows_of(store, "log")
    report = workbench.ingest(store, segments_of("4.2.0-classic"))
    assert (report.created, report.added) == (False, 0)
    assert sum(file.records for file in report.files) == len(rows)
    assert rows_of(store, "log") == rows
    assert versions(store)["log"] == before["log"]


def test_log_of_another_topic_is_refused_and_no_store_is_made(
    workbench: Workbench, place: Path, tmp_path: Path
) -> None:
    log = LogPartition(0)
    for number in range(30):
        log.record(f"user-{number}".encode(), b"an order")
    segments = write_log(tmp_path / "segments", log.rows)
    with pytest.raises(
        WrongRecords, match=r"20 of the first 20 records are others .record 0 of partition 0 has the key b'user-0'"
    ):
        workbench.ingest(place / "store", segments)
    assert not (place / "store").exists()


def test_longer_copy_appends_only_its_new_records(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:
    store = copied(empty(1), place / "store")
    log = simple_log(10)
    batches = batches_of(log.rows)
    assert workbench.ingest(store, write_segment(tmp_path / "a", 0, b"".join(batches[:2]))).added == 6
    # the second segment of the folder begins where the first ends; the copy holds both
    write_segment(tmp_path / "b", 0, b"".join(batches[:2]))
    write_segment(tmp_path / "b", 0, b"".join(batches[2:]), base_offset=6)
    assert workbench.ingest(store, tmp_path / "b").added == 4
    assert log_of(store) == log.rows
    assert {row["source"] for row in rows_of(store, "log")} == {
        f"__consumer_offsets-0/{base:020}.log" for base in (0, 6)
    }
    assert not any(row["backfill"] for row in rows_of(store, "log"))


def test_another_record_at_the_same_record_offset_is_refused_and_changes_nothing(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = copied(folded("4.2.0-classic"), place / "store")
    before = versions(store)
    with pytest.raises(ConflictingLog) as refused:
        workbench.ingest(store, segments_of("4.2.0-old-codec1"))
    first = min(
        (row.log_partition, row.record_offset)
        for partition, rows in capture_rows("4.2.0-old-codec1").items()
        for row in rows
        if row.record_offset < len(capture_rows("4.2.0-classic").get(partition, []))
        and row[2:] != capture_rows("4.2.0-classic")[partition][row.record_offset][2:]
    )
    assert str(refused.value).startswith(
        f"record {first[1]} of log partition {first[0]} in __consumer_offsets-{first[0]}/"
    )
    assert versions(store) == before


def test_data_folder_of_a_broker_gives_log_bounds_names_and_ids(
    workbench: Workbench, place: Path, tmp_path: Path
) -> None:
    data, store = tmp_path / "kraft logs", place / "a store"
    n = 3
    home = partition_for("g", n)
    log = LogPartition(home)
    for number in range(9):
        log.commit(("g", "t", 0), number)
    batches = batches_of(log.rows)
    segment = write_segment(data, home, b"".join(batches))
    for other in {0, 1, 2} - {home}:
        write_segment(data, other, b"")
    moved = simple_log(4).rows  # of what a broker is about to delete, move or replace
    for suffix in (".0a1b2c3d-delete", ".0a1b2c3d-future", "-stray", ".0a1b2c3d-stray"):
        gone = write_segment(tmp_path / "gone", home, b"".join(batches_of(moved))).parent
        gone.rename(data / f"__consumer_offsets-{home}{suffix}")
    for base, suffix in ((9, ".deleted"), (9, ".cleaned"), (0, ".swap")):
        shutil.copy(segment, segment.parent / f"{base:020}.log{suffix}")
    for name in (
        f"{0:020}.index",
        f"{0:020}.timeindex",
        f"{0:020}.txnindex",
        f"{5:020}.snapshot",
        "leader-epoch-checkpoint",
    ):
        (segment.parent / name).write_bytes(b"\x00\x01\x02")
    (segment.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {UNUSED_TOPIC_ID}\n")
    (data / "meta.properties").write_text(f"#comment\ncluster.id={CLUSTER}\nversion=1\nnode.id=1\n")
    starts = f"0\n2\n__consumer_offsets {home} 3\nt 0 77\n"
    (data / "log-start-offset-checkpoint").write_text(starts)
    for topic, topic_id in (("t", "t" * 22), ("with-dash", "w" * 22), ("__consumer_offsets_2", "x" * 22)):
        folder = data / f"{topic}-0"
        folder.mkdir()
        (folder / f"{0:020}.log").write_bytes(segment.read_bytes())
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")

    report = workbench.ingest(store, data)
    assert (report.created, report.added, report.offsets_partitions) == (True, 6, 3)
    assert [row.record_offset for row in log_of(store)] == [3, 4, 5, 6, 7, 8]
    found = workbench.open(store).properties
    assert (found.cluster_id, found.topic_id) == (CLUSTER, UNUSED_TOPIC_ID)
    names = {row["topic"]: row["topic_id"] for row in rows_of(store, "topics")}
    assert names == {"t": "t" * 22, "with-dash": "w" * 22, "__consumer_offsets_2": "x" * 22}
    assert log_info(StateReader(str(store)))[home] == LogPartitionInfo(
        log_partition=home,
        start=3,
        end=9,
        folded_to=None,
        records=6,
        quarantined=None,
        unknown=0,
        pending=0,
        cleaned_to=None,
        coordinator_semantics="modern",
    )
    workbench.fold(store)
    assert export_of(store)["groups"]["g"]["offsets"][0]["offset"] == 8

    # the same cluster again, and another
    assert workbench.ingest(store, data).added == 0
    (data / "meta.properties").write_text("cluster.id=another\n")
    before = versions(store)
    with pytest.raises(StoreMismatch, match=f"mirrors cluster {CLUSTER}, the segments belong to another"):
        workbench.ingest(store, data)
    assert versions(store) == before


def test_torn_tail_is_reported_and_read_once_it_is_whole(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:
    store = copied(empty(1), place / "store")
    log = simple_log(6)
    data = b"".join(batches_of(log.rows))
    end = batch_ends(data)[0]
    (torn,) = workbench.ingest(store, write_segment(tmp_path / "torn", 0, data[:-5])).files
    assert (torn.records, torn.end_offset, torn.damage) == (3, 3, ())
    assert torn.torn_tail is not None
    assert torn.torn_tail.startswith(f"{len(data) - 5 - end} bytes at position {end}: ")
    assert rows_of(store, "quarantine") == []
    (whole,) = workbench.ingest(store, write_segment(tmp_path / "whole", 0, data)).files
    assert (whole.records, whole.torn_tail) == (6, None)
    assert log_of(store) == log.rows


def test_damage_goes_to_quarantine_and_later_batches_are_read(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:
    store = copied(empty(1), place / "store")
    log = simple_log(9)
    batches = batches_of(log.rows)
    damaged = bytearray(b"".join(batches))
    start, end = batch_ends(bytes(damaged))[:2]
    damaged[end - 3] ^= 0xFF  # in the last record of the second batch: its checksum does not fit
    path = write_segment(tmp_path, 0, bytes(damaged))
    for again in (False, True):
        report = workbench.ingest(store, path)
        assert report.added == (0 if again else 6)
        (found,) = rows_of(store, "quarantine")
        assert (found["source"], found["position"], found["length"]) == (
            f"__consumer_offsets-0/{0:020}.log",
            start,
            end - start,
        )
        assert found["reason"].startswith("checksum is ")
        assert found["value"] == bytes(damaged[start:end])
        assert found["record_offset"] is None
    assert log_of(store) == log.rows[:3] + log.rows[6:]
    workbench.fold(store)
    assert export_of(store)["groups"]["g"]["offsets"][0]["offset"] == 8
    assert log_info(StateReader(str(store)))[0].quarantined == 1
    # a healthy copy of the same segment brings what was damaged, and the fold goes back to it
    assert workbench.ingest(store, write_segment(tmp_path / "healthy", 0, b"".join(batches))).added == 3
    workbench.fold(store)
    assert log_of(store) == log.rows
    assert_as_reference(store, log.rows)


def test_corrupt_record_stops_the_fold_where_the_settings_say_so(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:  # R6
    store = copied(empty(1), place / "store")
    log = simple_log(2)
    log.record(b"\x00\x01\x00", b"")
    workbench.ingest(store, write_log(tmp_path / "log", log.rows))
    strict = replace(workbench, settings=replace(workbench.settings, log=LogSettings(corrupt_records="fail")))
    with pytest.raises(UndecodableRecord, match=r"^record 2 of log partition 0 does not decode: "):
        strict.fold(store)
    with pytest.raises(UndecodableRecord):
        strict.reload(store)
    for name in ("offset_facts", "group_facts", "quarantine", "fold_progress"):
        assert rows_of(store, name) == []
    assert workbench.fold(store) == 3
    assert [row["record_offset"] for row in rows_of(store, "quarantine")] == [2]


def nothing(folder: Path) -> Path:
    return folder / "nothing"


def folder_without_segments(folder: Path) -> Path:
    (folder / "data" / "topic-0").mkdir(parents=True)
    (folder / "data" / "topic-0" / f"{0:020}.log").write_bytes(b"")
    return folder / "data"


def file_elsewhere(folder: Path) -> Path:
    (folder / f"{0:020}.log").write_bytes(b"".join(batches_of(simple_log(3).rows)))
    return folder / f"{0:020}.log"


def file_of_something_else(folder: Path) -> Path:
    return write_segment(folder, 0, b"this is no log segment at all; " * 20)


def log_of_five(folder: Path) -> Path:
    return segments_of("4.2.0-classic")


def damaged_late(folder: Path) -> Path:
    """Only the ingest itself finds that the second copy contradicts the first."""
    first = write_segment(folder / "a", 0, b"".join(batches_of(simple_log(3).rows)))
    write_segment(folder / "b", 0, b"".join(batches_of(simple_log(4, first=1).rows[:2])), base_offset=0)
    other = LogPartition()
    other.commit(("g", "t", 0), 500)
    write_segment(folder / "b", 0, b"".join(batches_of(other.rows)))
    return first.parent.parent.parent


@pytest.mark.parametrize(
    ("bad", "partitions", "error"),
    [
        (nothing, None, NoSuchPath),
        (folder_without_segments, None, NoSegments),
        (file_elsewhere, None, NoSegments),
        (file_of_something_else, None, NotASegment),
        (log_of_five, 4, InvalidPartitionCount),
        (log_of_five, 50, InvalidPartitionCount),
        (log_of_five, 0, InvalidPartitionCount),
        (damaged_late, None, ConflictingLog),
    ],
)
def test_first_ingest_that_fails_leaves_no_store(
    workbench: Workbench,
    place: Path,
    tmp_path: Path,
    bad: Callable[[Path], Path],
    partitions: int | None,
    error: type[OffsetsError],
) -> None:
    store, source = place / "store", tmp_path / "source"
    source.mkdir()
    with pytest.raises(error) as refused:
        workbench.ingest(store, bad(source), partitions=partitions)
    assert "\n" not in str(refused.value)
    assert not store.exists()


def test_partition_count_is_fixed_with_the_store(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:  # R1, R4
    with pytest.raises(InvalidPartitionCount, match="has 5 partitions, not 6"):
        workbench.ingest(folded("4.2.0-classic"), segments_of("4.2.0-classic"), partitions=6)
    # a later, smaller delivery says nothing about the number
    store = copied(folded("4.2.0-classic"), place / "store")
    one = segments_of("4.2.0-classic") / "__consumer_offsets-0"
    assert workbench.ingest(store, one).offsets_partitions == 5


def test_owned_store_takes_no_segments(workbench: Workbench, place: Path) -> None:  # R4
    location = place / "store"
    Store.create(workbench.spark, str(location), StoreProperties(OWNED, 5))
    with pytest.raises(StoreMismatch, match="is an owned store, but this command needs a mirrored one"):
        workbench.ingest(location, segments_of("4.2.0-classic"))
    assert rows_of(location, "log") == []


def test_a_file_with_timestamps_that_no_table_holds_is_ingested_without_their_records(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:
    store = copied(empty(1), place / "store")
    rows = simple_log(3).rows
    times = np.array([1_700_000_000_000, 2**62, 1_700_000_000_001])
    keys, values = (pa.array([getattr(row, name) for row in rows], pa.binary()) for name in ("key", "value"))
    report = workbench.ingest(
        store, write_segment(tmp_path / "a", 0, encode_batch(keys, values, base_offset=0, timestamps=times))
    )
    assert report.added == 2
    assert log_of(store) == [rows[0], rows[2]]
    (aside,) = rows_of(store, "quarantine")
    assert (aside["position"], aside["record_offset"]) == (0, None)
    assert aside["reason"].startswith("1 of 3 records have a timestamp that the table cannot hold")


def test_an_error_in_a_task_names_the_file_it_was_reading(workbench: Workbench, tmp_path: Path) -> None:
    gone = tmp_path / "__consumer_offsets-0" / f"{0:020}.log"
    folders = [LogFolder(0, (str(gone),), 0)]
    with pytest.raises(Exception, match="StorageFailed") as failed:
        write_segments(workbench.spark, folders, {}, LogFilePlace(str(tmp_path), 0), StoreProperties(MIRRORED, 1))
    ours = raised_on_executor(failed.value)
    assert isinstance(ours, StorageFailed)
    assert str(ours) == f"{gone} is gone: its broker has replaced or deleted it; run this again"


def test_segments_are_refused_by_a_store_that_follows_a_topic(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    store = copied(empty(5), place / "store")
    notes = LogMetadata(workbench.open(store), CLOCK)
    notes.bounds({0: (0, 0)})  # what an ingest of segments notes
    workbench.ingest(store, segments_of("4.2.0-txn-open"))
    held = log_of(store)
    notes.read({0: TopicRead(0, 0, 0, 0, CLOCK.now_ms(), None, None, None)})
    with pytest.raises(StoreMismatch, match="it follows a broker's topic; ingest them into another store"):
        workbench.ingest(store, segments_of("4.2.0-txn-open"))
    assert log_of(store) == held
