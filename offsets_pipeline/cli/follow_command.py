"""The commands `ingest-topic` and `follow`: read a topic until told to stop, and say how it goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import progress
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.figures import StateMetrics, TopicMetrics, Watched, batches_counted
from offsets_pipeline.follow import Follower
from offsets_pipeline.ingest.kafka_options import KafkaOptions, parse_options
from offsets_pipeline.ingest.topic import TopicIngest
from offsets_pipeline.metrics import Metrics
from offsets_pipeline.observability.warnings import warn
from offsets_pipeline.query.state import StateReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from offsets_pipeline.config import Settings


def read_topic(
    options: argparse.Namespace, session: Callable[[Settings], SparkSession], settings: Settings, *, fold: bool
) -> int:
    """Land the topic in the log, and fold the log too if asked to; returns the exit status.

    ``session`` starts Spark, when the options are found to be in order.

    Raises what `TopicIngest` raises of the broker, the topic and the store, and MetricsUnavailable.
    """
    kafka = KafkaOptions(options.bootstrap_server, {**settings.kafka.options, **parse_options(options.option)})
    clock, metrics = SystemClock(), Metrics()
    observer = TopicMetrics(metrics, progress, warn, clock)
    folded = 0

    def on_batch(_: int, records: int) -> None:
        nonlocal folded
        folded += records
        metrics.add("offsets_records_folded_total", records)
        if records:
            progress(f"{records} records folded")

    with Watched(metrics, options.metrics_file, options.metrics_port, observer.warned) as watched:
        spark = session(settings)
        ingest = TopicIngest(spark, options.store, kafka, settings, clock, observer, options.topic)
        ingest.prepare()
        follower = Follower(ingest, settings, clock) if fold else None
        stopping = Stopping(ingest.stop if follower is None else follower.stop, spark)
        watched.start(StateMetrics(metrics, lambda: StateReader(ingest.store.folder())).count)
        with batches_counted(spark, metrics):
            if follower is None:
                read = ingest.run(available_now=options.available_now)
            else:
                metrics.add("offsets_records_folded_total", 0)
                read = follower.run(on_batch, observer.warned, available_now=options.available_now)
    sys.stdout.write(f"{read} records added to {options.store}" + (f", {folded} folded\n" if fold else "\n"))
    return stopping.status(has_an_end=options.available_now)
