"""A streaming query over the file source: its rows, and its positions in an owned store, after restarts too."""

from __future__ import annotations

import json
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from examples.file_source import FORMAT, FileSource
from offsets_pipeline.connect.connect_log import ConnectLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.streaming

PATIENCE_SECONDS = 60


class Copy:
    """Queries that copy a file to files of JSON."""

    def __init__(self, spark: SparkSession, folder: Path, place: Path) -> None:
        """The file is in a folder; store, target and checkpoints are at a place."""
        self.file, self.store, self.target = folder / "a.txt", place / "owned", place / "lines"
        ConnectLog.create(self.store, "lab", 3)
        spark.dataSource.register(FileSource)
        self._spark = spark

    def start(
        self, checkpoint: str, options: Mapping[str, str] = MappingProxyType({}), *, available_now: bool = True
    ) -> StreamingQuery:
        """Start a query; a new checkpoint is a new query."""
        needed = {"name": "files", "file": str(self.file), "offset.storage.topic": str(self.store)}
        trigger = {"availableNow": True} if available_now else {"processingTime": "50 milliseconds"}
        return (
            self._spark.readStream.format(FORMAT)
            .options(**needed, **options)
            .load()
            .writeStream.format("json")
            .option("checkpointLocation", str(self.target.with_name(checkpoint)))
            .trigger(**trigger)
            .start(str(self.target / checkpoint))
        )

    def copied(self, checkpoint: str, options: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """All lines that were copied, after a query has read what there is."""
        self.start(checkpoint, options).awaitTermination()
        rows = [json.loads(line) for file in self.target.rglob("*.json") for line in file.read_text().splitlines()]
        return [row["value"] for row in sorted(rows, key=lambda row: int(row["position"]))]

    def await_position(self, position: int) -> None:
        """Wait until the store has a position: the process of a reader flushes while the query ends."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self.position() != position:
            assert time.monotonic() < until, self.position()
            time.sleep(0.01)

    def position(self) -> int | None:
        """The position in the store."""
        with ConnectLog.open(self.store) as log:
            offsets = log.read(lambda: log.offsets("files"))
        return int(json.loads(offsets[0].source_offset)["position"]) if offsets else None


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path, place: Path) -> Copy:
    """A file with two lines and the beginning of a third, and an empty store."""
    made = Copy(spark, tmp_path, place)
    made.file.write_bytes("one\né\nth".encode())
    return made


@pytest.mark.on_s3  # with checkpoints beside the store
@pytest.mark.slow  # three queries, each with a process of Python for its source
def test_each_line_is_copied_once_with_its_checkpoint_or_the_stores_position(copy: Copy) -> None:
    assert copy.copied("first", {"batch.size": "1"}) == ["one", "é"]
    copy.await_position(6)
    with copy.file.open("ab") as more:
        more.write(b"ree\nfour\n")
    assert copy.copied("first") == ["one", "é", "three", "four"]
    copy.await_position(17)
    with copy.file.open("ab") as more:
        more.write(b"five\n")
    assert copy.copied("second") == ["one", "é", "three", "four", "five"]  # a checkpoint of its own: by the store
    copy.await_position(22)


def test_a_running_query_flushes_by_interval_and_says_that_its_file_was_truncated(copy: Copy) -> None:
    query = copy.start("running", {"offset.flush.interval.ms": "20"}, available_now=False)
    try:
        copy.await_position(6)
        copy.file.write_bytes(b"")
        with pytest.raises(StreamingQueryException, match="it was truncated to 0 bytes; put the file back"):
            query.awaitTermination()
    finally:
        query.stop()


def test_wrong_options_are_named(copy: Copy) -> None:
    with pytest.raises(Exception, match=r"offset\.flush\.interval: no such option"):
        copy.start("wrong", {"offset.flush.interval": "1"}).awaitTermination()
