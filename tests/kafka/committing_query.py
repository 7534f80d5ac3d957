"""A PySpark job with an OffsetsListener, as a user writes it: tests run it as a process, and kill it.

    python -m tests.kafka.committing_query BOOTSTRAP-SERVER STORE FOLDER [--available-now]

With --available-now it reads all records, and stops. Then it reads them again with a query whose sources have names.
At last it counts the records from the offsets of the group HALF on.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from benchmarks.broker import SPARK_KAFKA_JARS
from offsets_pipeline.spark_query.offsets_listener import OffsetsListener
from offsets_pipeline.spark_query.starting_offsets import starting_offsets

GROUP, HALF = "spark-orders", "half"
TOPIC = "orders"
#: Folders of checkpoints.
NUMBERED, NAMED = "numbered", "named"
#: File with the number of records from the offsets of the group HALF on.
COUNT = "count"


class LateProgress(StreamingQueryListener):
    """Holds up Spark's delivery of progress to later listeners until the query has ended, as a slow machine may."""

    def __init__(self) -> None:
        self.query_ended = threading.Event()

    def onQueryStarted(self, _: object) -> None:  # noqa: N802 - Spark's
        """Hold up nothing: `start` waits for this call."""

    def onQueryProgress(self, _: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Wait for the end of the query."""
        self.query_ended.wait()

    def onQueryTerminated(self, _: object) -> None:  # noqa: N802 - Spark's
        """Hold up nothing."""


def main(bootstrap_server: str, store: str, folder: str, *more: str) -> None:
    """Run the query until the process is killed, or with --available-now until all records are read."""
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(map(str, sorted(SPARK_KAFKA_JARS.glob("*.jar")))),
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "spark.sql.streaming.minBatchesToRetain": "1000",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def read(name: str | None = None, in_batch: int = 10) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_server)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", in_batch)
        return (reader if name is None else reader.name(name)).option("subscribe", TOPIC).load()

    def run(rows: DataFrame, checkpoint: str) -> None:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder, checkpoint)))
        (writer.trigger(availableNow=True) if more else writer).start().awaitTermination()

    late = LateProgress()
    if more:
        spark.streams.addListener(late)
    listener = OffsetsListener(store, GROUP, bootstrap_server)
    spark.streams.addListener(listener)
    run(read(), NUMBERED)
    late.query_ended.set()
    assert listener.close(120), "Spark did not deliver the progress"
    spark.streams.removeListener(listener)
    spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    run(read("early", 50).unionByName(read("late", 30)), NAMED)
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap_server).option("subscribe", TOPIC)
    count = rows.option("startingOffsets", starting_offsets(store, HALF, [TOPIC])).load().count()
    Path(folder, COUNT).write_text(str(count))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
