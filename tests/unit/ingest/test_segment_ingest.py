"""What an ingest of segment files appends, notes and refuses. Without Spark: a stand-in runs the tasks here."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from offsets_pipeline.cli import main
from offsets_pipeline.cli import opened as opened_module
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.errors import (
    CommitUnknown,
    InvalidPartitionCount,
    OffsetsError,
    StorageFailed,
    StoreMismatch,
    WrongRecords,
)
from offsets_pipeline.ingest.segments import segment_ingest
from offsets_pipeline.ingest.segments.segment_files import LogFolder
from offsets_pipeline.ingest.segments.segment_ingest import (
    FileReport,
    IngestReport,
    ingest_segments,
    parsed_segments,
    write_segments,
)
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.kafka.record.segment import Damage
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.log.file_writer import LogFilePlace
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from tests.folded_stores import new_store, opened
from tests.logs import LogPartition, commit_key
from tests.record_batches import encode_batch
from tests.spark.segments import batches_of, write_segment
from tests.spark.stores import appended, log_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

CLOCK = FixedClock(5_000)
PROPERTIES = StoreProperties(MIRRORED, 5)
CLASSIC = CoordinatorSemantics.CLASSIC


class InDriver:
    """Stands for Spark: a table without rows, and jobs whose tasks run here, each with the numbers of its items."""

    def __init__(self, cores: int = 1) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=cores)
        self.tasks: list[int] = []
        self.results: list[dict[str, Any]] = []

    def range(self, start: int, end: int, step: int, tasks: int) -> InDriver:
        assert (start, step, tasks) == (0, 1, max(1, end))
        self.tasks = list(range(end))
        return self

    def mapInArrow(self, run: Callable[..., Iterable[pa.RecordBatch]], _: object) -> SimpleNamespace:  # noqa: N802 - Spark's
        batches = [each for at in self.tasks for each in run([pa.RecordBatch.from_pydict({"id": [at]})])]
        self.results = [row for each in batches for row in each.to_pylist()]
        return SimpleNamespace(collect=lambda: self.results)

    def table(self, _: str) -> InDriver:
        return self

    def collect(self) -> list[tuple[int, int]]:
        return []

    where = groupBy = agg = lambda self, *_: self  # noqa: N815 - Spark's


def session(cores: int = 1) -> SparkSession:
    return cast("SparkSession", InDriver(cores))


@pytest.fixture(autouse=True)
def _functions_without_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        __eq__ = isin = lambda self, _: self
        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(segment_ingest, "F", SimpleNamespace(col=lambda _: Column(), max=lambda _: Column()))


def simple_log(commits: int, at: int = 0, group: str = "g", start: int = 0) -> LogPartition:
    log = LogPartition(at, start)
    for number in range(commits):
        log.commit((group, "t", 0), number)
    return log


def folder_of(place: Path, at: int, start: int = 0, **segments: bytes) -> LogFolder:
    """A copy of a log partition: `folder_of(..., _0=b"...", _6=b"...")`."""
    files = (write_segment(place, at, data, int(name[1:])) for name, data in segments.items())
    return LogFolder(at, tuple(map(str, files)), start)


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["log_partition"], row["record_offset"]) for row in rows]


# --- reading


def test_a_folder_is_read_from_its_start_offset_and_each_record_once(tmp_path: Path) -> None:
    first, *others = batches_of(simple_log(12).rows)  # four batches of three records
    torn = others[2][:-5]
    folder = folder_of(tmp_path, 0, 1, _0=first + others[0], _3=others[0] + others[1], _9=torn)
    place = LogFilePlace(str(tmp_path), 0)
    written = write_segments(session(), [folder], {}, place, PROPERTIES)
    assert [each.rows for each in written.files] == [8]
    damage = Damage(0, 0, "3 records repeat record offsets of the segment before", b"")
    name = "__consumer_offsets-0/{:020}.log".format
    assert written.reports[:2] == [
        FileReport(0, name(0), 1, 6, 5),  # the broker has deleted record 0, which is no damage
        FileReport(0, name(3), 3, 9, 3, (damage,)),
    ]
    last = written.reports[2]
    assert (last.source, last.start_offset, last.end_offset, last.records, last.damage) == (name(9), 9, None, 0, ())
    assert str(last.torn_tail).startswith(f"{len(torn)} bytes at position 0: ")
    # what is known of the log is left out
    for after, records in (({0: 5}, 3), ({0: 8}, 0), ({0: 0, 1: 9}, 8)):
        again = write_segments(session(), [folder], after, place, PROPERTIES)
        assert [each.rows for each in again.files] == [records] * (records > 0)
        assert [each.records for each in again.reports] == [5, 3, 0]


def test_rows_of_a_folder_end_at_a_record_offset(tmp_path: Path) -> None:
    halves = [batches_of(simple_log(5, at).rows) for at in (0, 1)]
    folders = [folder_of(tmp_path, at, _0=first, _3=second) for at, (first, second) in enumerate(halves)]

    whole = [(at, offset) for at in (0, 1) for offset in range(5)]
    for last in range(5):
        frame: Any = parsed_segments(session(), folders, PROPERTIES, {0: last, 1: 9})
        assert places(frame.collect()) == [*whole[: last + 1], *whole[5:]]


@pytest.mark.parametrize(("cores", "shares"), [(1, [1, 1, 1, 2]), (2, [1] * 5)])
def test_neighbours_share_a_task_if_there_are_more_folders_than_tasks(
    tmp_path: Path, cores: int, shares: list[int]
) -> None:
    spark: Any = session(cores)
    folders = [folder_of(tmp_path, at, _0=b"".join(batches_of(simple_log(1, at).rows))) for at in range(5)]
    written = write_segments(spark, folders, {}, LogFilePlace(str(tmp_path), 0), PROPERTIES)
    assert sum(each.rows for each in written.files) == 5
    assert [each.log_partition for each in written.reports] == [0, 1, 2, 3, 4]
    assert [len(pickle.loads(each["result"]).reports) for each in spark.results] == shares


# --- an ingest


def ingested(location: Path, *paths: object, settings: Settings | None = None, **options: Any) -> IngestReport:  # noqa: ANN401
    return ingest_segments(session(), str(location), map(str, paths), settings or Settings(), CLOCK, **options)


def test_a_new_store_has_the_records_bounds_and_damage_of_the_files(tmp_path: Path) -> None:
    home = partition_for("g", 2)
    data = tmp_path / "data"
    first, second, third = batches_of(simple_log(9, home).rows)
    bad = bytearray(second)
    bad[-1] ^= 1
    write_segment(data, home, first + bad)
    write_segment(data, home, third, 6)
    write_segment(data, 1 - home, b"", 4)
    (data / "meta.properties").write_text("cluster.id=here\n")
    (data / f"__consumer_offsets-{home}" / "partition.metadata").write_text("topic_id: the-id\n")
    (data / "t-0").mkdir()
    (data / "t-0" / "partition.metadata").write_text("topic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    report = ingested(tmp_path / "store", data)
    assert (report.created, report.offsets_partitions, report.added, report.left_out) == (True, 2, 6, 0)
    assert sorted((each.log_partition, each.records, len(each.damage)) for each in report.files) == sorted(
        [(home, 3, 1), (home, 3, 0), (1 - home, 0, 0)]
    )
    store = opened(tmp_path / "store")
    assert store.properties == StoreProperties(MIRRORED, 2, "here", "the-id", coordinator_semantics=MODERN)
    rows = store.table("log").snapshot().rows().to_pylist()
    assert sorted(places(rows)) == [(home, offset) for offset in (0, 1, 2, 6, 7, 8)]
    assert {(row["log_incarnation"], row["backfill"]) for row in rows} == {(0, False)}
    noted = store.table(LOG_PARTITIONS.name).snapshot().rows().to_pylist()
    bounds = {row["log_partition"]: (row["start_offset"], row["end_offset"]) for row in noted}
    assert bounds == {home: (0, 9), 1 - home: (4, 4)}
    assert store.table("topics").snapshot().rows().to_pylist() == [{"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "topic": "t"}]
    (stretch,) = store.table("quarantine").snapshot().rows().to_pylist()
    found = [stretch[name] for name in ("log_partition", "source", "position", "length", "value")]
    assert found == [home, f"__consumer_offsets-{home}/{0:020}.log", len(first), len(bad), bytes(bad)]


def test_number_of_log_partitions_is_given_found_or_set(tmp_path: Path) -> None:  # R1
    settings = Settings(log=LogSettings(offsets_partitions=7))

    def count(name: str, at: tuple[int, ...], topic: str = "__consumer_offsets", **options: int) -> int:
        for each in at:
            folder = tmp_path / name / f"{topic}-{each}"
            folder.mkdir(parents=True)
            (folder / f"{0:020}.log").write_bytes(b"")
        found = ingested(tmp_path / f"{name}-store", tmp_path / name, settings=settings, topic=topic, **options)
        assert found.offsets_partitions == opened(tmp_path / f"{name}-store").properties.offsets_partitions
        assert (found.added, found.left_out) == (0, 0)
        return found.offsets_partitions

    assert count("all", (0, 1, 2)) == 3
    assert count("some", (0, 2)) == 7
    assert count("given", (0, 2), offsets_partitions=4) == 4
    assert count("connect", (0, 2), "connect-offsets") == 3


def test_log_partitions_of_which_no_ingest_read_a_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker has not all of them."""
    for at in (0, 2, 3):
        write_segment(tmp_path / "data", at, b"")
    of = [tmp_path / "data" / f"__consumer_offsets-{at}" for at in (0, 2, 3)]
    assert ingested(tmp_path / "store", of[0], of[1], offsets_partitions=4).unread == [1, 3]
    assert ingested(tmp_path / "store", of[2]).unread == [1]
    monkeypatch.setattr(opened_module, "spark_when_needed", lambda *_: session())
    assert main(["ingest-segments", "--store", str(tmp_path / "store"), str(of[0])]) == 0
    assert capsys.readouterr().err == (
        "offsets: warning: nothing was read of log partition 1: the store does not know their groups; "
        "ingest these folders, too\n"
    )
    for name, semantics, expected in (("s", CLASSIC, CLASSIC), ("t", None, MODERN)):
        write_segment(tmp_path / name, 0, b"")
        ingested(tmp_path / f"{name}-store", tmp_path / name, semantics=semantics)
        assert opened(tmp_path / f"{name}-store").properties.coordinator_semantics == expected


def test_first_records_are_looked_at_before_a_store_is_made(tmp_path: Path) -> None:
    others = LogPartition(0)
    for number in range(30):
        others.record(f"user-{number}".encode(), b"an order")
    wrong = write_segment(tmp_path / "others", 0, b"".join(batches_of(others.rows)))
    with pytest.raises(WrongRecords, match=r"20 of the first 20 records are others \(record 0 of partition 0 has the"):
        ingested(tmp_path / "store", wrong)
    # the first file that has records counts; records of a group in another log partition are few here
    home = partition_for("g", 3)
    log = simple_log(2, home, start=4)
    write_segment(tmp_path / "data", home, b"", 0)
    write_segment(tmp_path / "data", home, b"".join(batches_of(log.rows)), 4)
    write_segment(tmp_path / "data", home, b"".join(batches_of(replaced(others, home).rows)), 6)
    assert ingested(tmp_path / "right", tmp_path / "data", offsets_partitions=3).added == 32
    away = (home + 1) % 3
    write_segment(tmp_path / "away", away, b"".join(batches_of(simple_log(2, away).rows)))
    with pytest.raises(InvalidPartitionCount, match="1 of 1 groups are in the wrong partition of a log of 3 partit"):
        ingested(tmp_path / "store", tmp_path / "away", offsets_partitions=3)
    assert not (tmp_path / "store").exists()


def replaced(log: LogPartition, at: int) -> LogPartition:
    """The records in another log partition, from record offset 6 on."""
    found = LogPartition(at, 6)
    for row in log.rows:
        found.record(row.key, row.value)
    return found


def test_a_first_batch_that_is_longer_than_the_look_is_read_whole(tmp_path: Path) -> None:
    key = pa.array([commit_key("g")] * 2, pa.binary())
    values = pa.array([np.random.default_rng(1).bytes(60_000)] * 2, pa.binary())
    write_segment(tmp_path / "data", 0, encode_batch(key, values, base_offset=0))
    assert ingested(tmp_path / "store", tmp_path / "data").added == 2
    write_segment(tmp_path / "text", 0, b"no records" * 10_000)
    with pytest.raises(NotASegment):
        ingested(tmp_path / "other", tmp_path / "text")


@pytest.mark.parametrize(
    ("properties", "options", "error", "said"),
    [
        (StoreProperties(OWNED, 1), {}, StoreMismatch, "is an owned store, but this command needs a mirrored one"),
        (
            StoreProperties(MIRRORED, 1, "there"),
            {},
            StoreMismatch,
            "mirrors cluster there, the segments belong to here",
        ),
        (StoreProperties(MIRRORED, 1, None, "old"), {}, StoreMismatch, "mirrors topic old, the segments belong to id;"),
        (
            StoreProperties(MIRRORED, 1),
            {"offsets_partitions": 2},
            InvalidPartitionCount,
            "has 1 partitions, not 2, and",
        ),
        (StoreProperties(MIRRORED, 1), {"semantics": CLASSIC}, StoreMismatch, "has modern coordinator semantics, not"),
        (StoreProperties(MIRRORED, 1, "here", "id"), {"offsets_partitions": 1}, None, ""),
    ],
)
def test_segments_of_another_log_than_the_stores_are_refused(
    tmp_path: Path, properties: StoreProperties, options: dict[str, Any], error: type[OffsetsError] | None, said: str
) -> None:
    create_tables(str(tmp_path / "store"), properties)
    segment = write_segment(tmp_path / "data", 0, b"".join(batches_of(simple_log(3).rows)))
    (segment.parent / "partition.metadata").write_text("topic_id: id\n")
    (tmp_path / "data" / "meta.properties").write_text("cluster.id=here\n")
    if error is None:
        found = ingested(tmp_path / "store", tmp_path / "data", **options)
        assert (found.created, found.added) == (False, 3)
    else:
        with pytest.raises(error, match=said):
            ingested(tmp_path / "store", tmp_path / "data", **options)


def test_a_store_that_follows_a_topic_takes_no_segments(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", 1)
    LogMetadata(store, CLOCK).read({0: TopicRead(0, 3, 3, 3, 1_000, None, None, None)})
    segment = write_segment(tmp_path / "data", 0, b"".join(batches_of(simple_log(3).rows)))
    with pytest.raises(StoreMismatch, match="it follows a broker's topic; ingest them into another store"):
        ingested(tmp_path / "store", segment)


@pytest.mark.parametrize(
    ("error", "appends", "stays"),
    [
        (StorageFailed("full"), 0, False),
        (StorageFailed("full"), 1, False),
        (CommitUnknown("no answer"), 0, True),
        (KeyboardInterrupt(), 0, False),
        (PySparkException(f"a task failed:\n{NotASegment.__module__}.NotASegment: no records"), 0, False),
    ],
)
def test_a_store_that_a_failed_ingest_made_is_removed_unless_a_commit_may_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, appends: int, stays: bool
) -> None:
    left = [appends]

    def failing(*arguments: Any) -> Any:  # noqa: ANN401 - of the original
        if not left[0]:
            raise error
        left[0] -= 1
        return write_segments(*arguments)

    monkeypatch.setattr(segment_ingest, "write_segments", failing)
    batches = b"".join(batches_of(simple_log(3).rows))
    paths = [write_segment(tmp_path / name, 0, batches) for name in "ab"]  # an append for each copy
    with pytest.raises(NotASegment if isinstance(error, PySparkException) else type(error)):
        ingested(tmp_path / "store", *paths)
    assert (tmp_path / "store").exists() == stays


def test_a_failed_ingest_leaves_a_store_to_which_another_writer_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copies = tmp_path / "store", iter("ab")

    def overtaken(*arguments: Any) -> Any:  # noqa: ANN401 - of the original
        if next(copies) == "a":
            return write_segments(*arguments)
        appended(store, simple_log(1, group="other").rows)
        raise StorageFailed("full")

    monkeypatch.setattr(segment_ingest, "write_segments", overtaken)
    paths = [  # a copy without records appends nothing
        write_segment(tmp_path / name, 0, b"".join(batches_of(simple_log(commits).rows)))
        for name, commits in (("a", 0), ("b", 3))
    ]
    with pytest.raises(StorageFailed, match="full"):
        ingested(store, *paths)
    assert [row.key for row in log_of(store)] == [commit_key("other", "t", 0)]
