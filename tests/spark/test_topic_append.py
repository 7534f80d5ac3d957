"""Each record of a topic is appended once, however often and by however many processes it is delivered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.errors import BrokerUnreachable
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.ingest.topic.topic_append import RECORDS_SCHEMA, TopicAppender
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.clean import clean_log
from tests.logs import CAPTURES
from tests.places import copied
from tests.spark.stores import CLOCK, Workbench, rows_of, table, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from offsets_pipeline.store.delta.data_file import DataFile

LOG_INCARNATION = 3
SOURCE = "kafka://c/t"
Places = list[tuple[int, int]]


@pytest.fixture
def store(empty: Callable[[int], Path], place: Path) -> Path:
    return copied(empty(5), place / "store")


def batch(workbench: Workbench, places: Iterable[tuple[int, int]]) -> DataFrame:
    """Records of these log partitions and record offsets, as the source hands them on."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    rows = [
        (part, offset, at, b"key", f"{part} {offset}".encode(), None, None, None, SOURCE, None)
        for part, offset in places
    ]
    return workbench.spark.createDataFrame(rows, from_arrow_schema(RECORDS_SCHEMA)).repartition(2)


def appender(
    workbench: Workbench, confirm: Callable[[], object] = lambda: None, log_incarnation: int = LOG_INCARNATION
) -> TopicAppender:
    return TopicAppender(log_incarnation, workbench.settings, CLOCK, confirm)


def held(store: Path, log_incarnation: int = LOG_INCARNATION) -> Places:
    rows = table(store, "log").select(["log_partition", "record_offset", "log_incarnation", "value"]).to_pylist()
    found = [(row["log_partition"], row["record_offset"]) for row in rows if row["log_incarnation"] == log_incarnation]
    assert all(row["value"] == f"{row['log_partition']} {row['record_offset']}".encode() for row in rows)
    return sorted(found)


def codecs_of(store: Path) -> set[str]:
    """The codecs in the footers of the log's files."""
    found = [pq.read_metadata(file) for file in DeltaTable(store / "log").file_uris()]
    return {each.row_group(0).column(at).compression for each in found for at in range(each.num_columns)}


FIRST: Places = [(0, 0), (0, 2), (1, 5)]  # with gaps, as a cleaner leaves them
SECOND: Places = [(0, 3), (4, 1)]
THIRD: Places = [(0, 7), (1, 6), (4, 2)]


def test_a_batch_that_was_appended_although_its_append_failed_is_not_appended_again(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LogAppender.append_files

    def commit_and_fail(self: LogAppender, files: Sequence[DataFile], complete_ms: int | None) -> None:
        append(self, files, complete_ms)
        raise OSError("the answer of the storage is lost")

    one, opened = appender(workbench), workbench.open(store)
    assert one.append(opened, batch(workbench, FIRST)).records == len(FIRST)
    monkeypatch.setattr(LogAppender, "append_files", commit_and_fail)
    with pytest.raises(OSError, match="is lost"):
        one.append(opened, batch(workbench, SECOND))
    monkeypatch.undo()
    assert held(store) == sorted(FIRST + SECOND)
    before = versions(store)
    assert one.append(opened, batch(workbench, SECOND)).records == 0  # delivered again in the same query
    assert (
        appender(workbench).append(opened, batch(workbench, FIRST + SECOND)).records == 0
    )  # and by one that starts anew
    assert versions(store) == before
    assert one.append(opened, batch(workbench, SECOND + THIRD)).records == len(THIRD)
    assert held(store) == sorted(FIRST + SECOND + THIRD)


def test_of_two_that_append_the_same_records_each_notices_the_other(workbench: Workbench, store: Path) -> None:
    one, other, opened = appender(workbench), appender(workbench), workbench.open(store)
    assert one.append(opened, batch(workbench, FIRST)).records == len(FIRST)
    assert other.append(opened, batch(workbench, FIRST + SECOND)).records == len(SECOND)
    assert one.append(opened, batch(workbench, SECOND + THIRD)).records == len(THIRD)
    assert other.append(opened, batch(workbench, THIRD)).records == 0
    assert held(store) == sorted(FIRST + SECOND + THIRD)
    next_incarnation = appender(workbench, log_incarnation=LOG_INCARNATION + 1)
    assert next_incarnation.append(opened, batch(workbench, SECOND)).records == len(
        SECOND
    )  # record offsets of another log
    assert held(store, LOG_INCARNATION + 1) == sorted(SECOND)


def test_two_that_append_the_same_records_at_once_append_them_once(workbench: Workbench, store: Path) -> None:
    opened, added = workbench.open(store), list[int]()

    def be_overtaken() -> None:
        if not added:  # the other comes between this one's look at the log and its commit
            added.append(appender(workbench).append(opened, batch(workbench, FIRST + SECOND)).records)

    assert appender(workbench, be_overtaken).append(opened, batch(workbench, FIRST + SECOND + THIRD)).records == len(
        THIRD
    )
    assert added == [len(FIRST + SECOND)]
    assert held(store) == sorted(FIRST + SECOND + THIRD)


def test_a_batch_that_is_not_confirmed_stays_out_of_the_log(workbench: Workbench, store: Path) -> None:
    away = True

    def confirm() -> None:
        if away:
            raise BrokerUnreachable("no broker answers")

    one, opened, before = appender(workbench, confirm), workbench.open(store), versions(store)
    with pytest.raises(BrokerUnreachable):
        one.append(opened, batch(workbench, FIRST))
    assert (versions(store), rows_of(store, "log")) == (before, [])
    away = False
    assert one.append(opened, batch(workbench, FIRST)).records == len(FIRST)
    assert held(store) == sorted(FIRST)


def test_a_damaged_batch_is_in_the_quarantine_once(workbench: Workbench, store: Path) -> None:
    one, opened = appender(workbench), workbench.open(store)
    at = datetime(2026, 11, 21, tzinfo=UTC)
    damage = (1, 6, at, None, b"raw bytes", None, None, None, SOURCE, "its checksum is wrong (9 bytes)")
    rows = workbench.spark.createDataFrame([damage, damage], from_arrow_schema(RECORDS_SCHEMA)).repartition(
        2
    )  # of two tasks that share a batch
    assert one.append(opened, rows.union(batch(workbench, FIRST))).records == len(FIRST)
    assert one.append(opened, rows).records == 0  # delivered again, without records
    assert held(store) == sorted(FIRST)
    (found,) = rows_of(store, "quarantine")
    names = ("log_partition", "log_incarnation", "record_offset", "source", "position", "length", "reason", "value")
    expected = (1, LOG_INCARNATION, None, SOURCE, 6, 9, "its checksum is wrong (9 bytes)", b"raw bytes")
    assert tuple(found[name] for name in names) == expected


def test_appends_ingests_cleanings_and_compactions_write_files_with_the_codec_of_the_setting(
    workbench: Workbench, store: Path, tmp_path: Path
) -> None:
    log = LogSettings(offsets_topic_compression_codec="gzip")
    chosen = Workbench(workbench.spark, replace(workbench.settings, log=log))
    appender(chosen).append(chosen.open(store), batch(chosen, FIRST))
    assert codecs_of(store) == {"GZIP"}
    appender(workbench).append(workbench.open(store), batch(workbench, THIRD))
    assert codecs_of(store) == {"GZIP", "ZSTD"}
    maintain_store(chosen.open(store), CLOCK, chosen.settings)
    assert codecs_of(store) == {"GZIP"}
    ingested = tmp_path / "ingested"
    chosen.ingest(ingested, CAPTURES / "4.2.0-kip848" / "segments")
    assert codecs_of(ingested) == {"GZIP"}
    workbench.fold(ingested)
    clean_log(workbench.open(ingested), workbench.settings, CLOCK)
    assert codecs_of(ingested) == {"ZSTD"}
