"""Measures the first read of a topic into a log, beside Spark's own Kafka source, in one run.

    .venv/bin/python -m benchmarks.read_topic [--records 5000000] [--records-per-batch 10] [--rounds 3]
        [--before FOLDER]

A real broker on this machine serves the log of `generate.py` as `__consumer_offsets`: 50 log partitions, and no
transactions, since Spark's source leaves their markers out. One Spark session reads all of it in each way, one after
the other, into new tables. The first round warms up and does not count.

Seconds are from the start of the query to its end; its tables were created before. Processor time is that of Spark's
JVM, of its Python workers and of the driver, without the broker's.

With `--before` it measures something else: `offsets follow --available-now` into log and state, as a process from its
start to its end, by turns with that of the program in another folder (`git worktree add FOLDER COMMIT`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.broker import (
    KAFKA_JARS,
    SPARK_KAFKA_JARS,
    Broker,
    BrokerError,
    ended_by_sigterm,
    replace_segments,
)
from benchmarks.generate import generate
from benchmarks.log_content import Shape
from benchmarks.processes import OFFSETS, ProcessTree
from benchmarks.table import markdown
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.ingest.topic.record_batch_source import SourceOptions, read_stream
from offsets_pipeline.ingest.topic.topic_append import TopicAppender
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.store.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from offsets_pipeline.common.config import Settings

    #: Reads the whole topic, and returns how many records that were.
    Reading = Callable[[], int]

TOPIC = "__consumer_offsets"
OURS, APPENDED, BY_SPARK = "ingest-topic", "Spark's source, our append", "Spark's source, Spark's Delta writer"
TUNED = "the same with fetch.max.wait.ms 10"
FOLLOWED, BEFORE = "follow --available-now, log and state", "the same, the program before"
OURS_ALONE, SPARK_ALONE = "our source, nothing written", "Spark's source, nothing written"
#: By way of Spark's source, ours with the same purpose.
COUNTERPARTS = {APPENDED: OURS, TUNED: OURS, BY_SPARK: OURS, SPARK_ALONE: OURS_ALONE, BEFORE: FOLLOWED}
_LOG_PARTITIONS = 50
_OURS = Path(__file__).resolve().parent.parent
_DEFAULTS: Mapping[str, str] = MappingProxyType({})


@dataclass
class Line:
    """Times of the rounds after the first."""

    what: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


def render(lines: Sequence[Line], records: int) -> str:
    """Return the lines as a Markdown table, by medians; the last column says how many times as fast ours is."""
    medians = {line.what: statistics.median(line.seconds) for line in lines}
    rows = [["what", "seconds", "records/s", "CPU s", "ours is as fast"]]
    for line in lines:
        median, counterpart = medians[line.what], COUNTERPARTS.get(line.what)
        ratio = "" if counterpart is None else f"{median / medians[counterpart]:.2f} times"
        seconds = f"{median:.2f} ({min(line.seconds):.2f} to {max(line.seconds):.2f})"
        rows.append(
            [line.what, seconds, f"{records / median:,.0f}", f"{statistics.median(line.cpu_seconds):.1f}", ratio]
        )
    return markdown(rows)


class Reader:
    """Reads the topic in each way, into tables below a folder."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, settings: Settings) -> None:
        self._spark = spark
        self._address = address
        self._folder = folder
        self._settings = settings
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no public name for it
        assert jvm is not None  # noqa: S101
        self._spark_processes = ProcessTree(jvm.java.lang.ProcessHandle.current().pid())
        self._tables = 0

    def ways(self) -> dict[str, Callable[[], Reading]]:
        """Return for each line a function that creates a table and returns the reading into it."""
        return {
            OURS: self._ingest,
            APPENDED: self._append,
            TUNED: lambda: self._append({"kafka.fetch.max.wait.ms": "10"}),
            BY_SPARK: self._write_by_spark,
            OURS_ALONE: lambda: lambda: self._run(self._ours().writeStream.format("noop")),
            SPARK_ALONE: lambda: lambda: self._run(self._sparks().writeStream.format("noop")),
        }

    def measure(self, line: Line, way: Callable[[], Reading], records: int) -> None:
        """Read once; exits with an error if it read another number of records."""
        read = way()
        driver, began = time.process_time(), time.perf_counter()
        with self._spark_processes.watched() as processor_time:
            found = read()
            seconds = time.perf_counter() - began
        if found != records:
            sys.exit(f"read_topic: error: {line.what} read {found} records of {records}")
        line.seconds.append(seconds)
        line.cpu_seconds.append(processor_time.seconds + time.process_time() - driver)

    # --- into a table

    def _ingest(self) -> Reading:
        ingest = self._new_ingest()
        return lambda: ingest.run(available_now=True)

    def _append(self, options: Mapping[str, str] = _DEFAULTS) -> Reading:
        """Read with Spark's source and our append, as earlier versions did."""
        store = self._new_ingest().store
        appender = TopicAppender(0, self._settings, SystemClock(), lambda: None)
        unknown = {"producer_id": "bigint", "producer_epoch": "smallint", "control_type": "string"}
        added: list[int] = []

        def land(rows: DataFrame, _: int) -> None:
            in_log = rows.select(
                *_columns(),
                *(F.lit(None).cast(kind).alias(name) for name, kind in unknown.items()),
                F.lit(f"kafka://{self._address}/{TOPIC}").alias("source"),
                F.lit(None).cast("string").alias("damage"),
            )
            added.append(appender.append(store.in_session(rows.sparkSession), in_log).records)

        def read() -> int:
            self._run(self._sparks(options).writeStream.foreachBatch(land))
            return sum(added)

        return read

    def _write_by_spark(self) -> Reading:
        rows, table = self._sparks().select(*_columns()), str(self._new_folder())
        self._spark.createDataFrame([], rows.schema).write.format("delta").save(table)
        return lambda: self._run(rows.writeStream.format("delta").option("path", table))

    def _new_ingest(self) -> TopicIngest:
        options = KafkaOptions(self._address, {})
        ingest = TopicIngest(self._spark, str(self._new_folder()), options, self._settings, SystemClock())
        ingest.prepare()
        return ingest

    def _new_folder(self) -> Path:
        self._tables += 1
        return self._folder / f"table-{self._tables}"

    # --- the sources, with batches of the same size

    def _ours(self) -> DataFrame:
        tasks, most = self._spark.sparkContext.defaultParallelism, self._settings.topic.max_records_per_batch
        starts = dict.fromkeys(range(_LOG_PARTITIONS), FetchPosition(0, None))
        options = SourceOptions(TOPIC, KafkaOptions(self._address, {}), starts, most, tasks)
        return read_stream(self._spark, options)

    def _sparks(self, options: Mapping[str, str] = _DEFAULTS) -> DataFrame:
        return (
            self._spark.readStream.format("kafka")
            .options(**options)
            .option("kafka.bootstrap.servers", self._address)
            .option("kafka.isolation.level", "read_committed")
            # A subscription would join a group, and so write into the topic.
            .option("assign", json.dumps({TOPIC: list(range(_LOG_PARTITIONS))}))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._settings.topic.max_records_per_batch)
            .load()
        )

    def _run(self, writer: DataStreamWriter) -> int:
        """Run a query up to the topic's end; returns the number of its records."""
        with tempfile.TemporaryDirectory(dir=self._folder) as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            return sum(progress["numInputRows"] for progress in query.recentProgress)


def _columns() -> list[Column]:
    """Return the columns of the log that Spark's source has."""
    names = {"partition": "log_partition", "offset": "record_offset", "timestamp": "record_timestamp"}
    return [*(F.col(name).alias(of_log) for name, of_log in names.items()), F.col("key"), F.col("value")]


def measure(options: argparse.Namespace, folder: Path) -> list[Line]:
    """Measure all ways, once to warm up and then `rounds` times."""
    shape = Shape(
        commits=options.records,
        records_per_batch=options.records_per_batch,
        tombstones=0.01,
        offsets_partitions=_LOG_PARTITIONS,
    )
    log = generate(shape, folder / "segments")
    print(
        f"{log.records:,} records, {shape.records_per_batch} a batch, {log.bytes_per_record:.0f} bytes each, "
        f"{shape.offsets_partitions} log partitions",
        flush=True,
    )
    broker = Broker(folder, shape.offsets_partitions)
    broker.format()
    broker.load(make_log=True)
    replace_segments(log.folder, broker.data, shape.offsets_partitions)
    if options.before is not None:
        with broker.serving(make_log=False) as address:
            return measure_programs({FOLLOWED: _OURS, BEFORE: options.before}, address, folder, options.rounds)
    settings = load_settings()
    jars = ",".join(str(jar) for jar in sorted(SPARK_KAFKA_JARS.glob("*.jar")))
    of_spark = {
        "spark.jars": jars,
        # Spark's newer way to ask for the ends of partitions ignores internal topics.
        "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true",
        # Each query has consumers of its own: room for those of all rounds, so that none waits for a place.
        "spark.kafka.consumer.cache.capacity": "10000",
    }
    with broker.serving(make_log=False) as address:
        spark = build_session("read_topic", settings, of_spark)
        reader = Reader(spark, address, folder, settings)
        lines = {what: Line(what) for what in reader.ways()}
        for number in range(1 + options.rounds):
            for what, way in reader.ways().items():
                line = lines[what] if number else Line(what)
                reader.measure(line, way, log.records)
                print(f"round {number}: {what}: {line.seconds[-1]:.2f} s", file=sys.stderr, flush=True)
        spark.stop()
    return list(lines.values())


def measure_programs(programs: Mapping[str, Path], address: str, folder: Path, rounds: int) -> list[Line]:
    """Measure `offsets follow --available-now` of the programs in these folders by turns, once to warm up."""
    lines = {what: Line(what) for what in programs}
    for number in range(1 + rounds):
        for what, tree in programs.items():
            store = folder / f"{number}-{tree.name}"
            command = [str(OFFSETS), "follow", "--available-now", "--store", str(store), "--bootstrap-server", address]
            began = time.perf_counter()
            process = subprocess.Popen(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)})
            with ProcessTree(process.pid).watched() as taken:
                status = process.wait()
            seconds = time.perf_counter() - began
            if status:
                sys.exit(f"read_topic: error: {what}: the program ended with status {status}")
            shutil.rmtree(store)
            print(f"round {number}: {what}: {seconds:.2f} s", file=sys.stderr, flush=True)
            if number:
                lines[what].seconds.append(seconds)
                lines[what].cpu_seconds.append(taken.seconds)
    return list(lines.values())


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; exits with status 2 if one is wrong."""
    parser = argparse.ArgumentParser(
        description="Measure how fast a topic is read from nothing, beside Spark's own Kafka source.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=5_000_000, metavar="N", help="records of the topic")
    parser.add_argument("--records-per-batch", type=int, default=10, metavar="N", help="1 to 10")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds that count, after the first")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another version, to compare follow with")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    if min(options.records, options.rounds) < 1 or not 1 <= options.records_per_batch <= Shape().identities_per_group:
        parser.error("--records and --rounds take 1 or more, --records-per-batch takes 1 to 10")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    options = parsed(arguments)
    for jars in (KAFKA_JARS, SPARK_KAFKA_JARS):
        if not jars.is_dir():
            sys.exit(f"read_topic: error: no JARs in {jars}: run `make kafka`")
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="offsets-read-", dir=options.folder) as folder:
        try:
            lines = measure(options, Path(folder))
        except BrokerError as error:
            sys.exit(f"read_topic: error: {error}")
    print(render(lines, options.records))


if __name__ == "__main__":
    main()
