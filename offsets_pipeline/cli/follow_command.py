"""`offsets ingest-topic` and `follow`: read a topic until a signal stops them."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from offsets_pipeline.cli.live_cluster import kafka_options
from offsets_pipeline.cli.opened import retention_of, spark_when_needed
from offsets_pipeline.cli.stopping import Stopping, is_submitted
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.fold.stream.follow import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler, SamplerThread
from offsets_pipeline.observability.collectors import QueryMetrics, StateMetrics, TopicMetrics
from offsets_pipeline.observability.group_metrics import GroupMetrics
from offsets_pipeline.observability.mirror_sample import MirrorSample
from offsets_pipeline.observability.operator_log import OperatorLog, TopicLog
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.service.metrics.exposition import Exposition
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.lease import END, FOLD, INGEST_TOPIC, WAIT, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from offsets_pipeline.cli.section_sources import OfTopic
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.service.metrics.metric_families import Values, ValueSource
    from offsets_pipeline.store.store import Store


def read_topic(options: OfTopic, settings: Settings, *, fold: bool, sample: int | None = None) -> int:
    """Append the topic to the log, and with ``fold`` fold the log; returns the exit status.

    With ``sample`` compares so many groups with the brokers at an interval. Checks address, topic and store, and waits
    for another process that does the same, before it starts Spark.

    Raises the errors of `TopicIngest`, MetricsUnavailable, LeaseHeld, LeaseLost, and ConfigError for a ``sample``
    without an interval.
    """
    store = options.store
    kafka = kafka_options(options.brokers, settings)
    clock, queries = SystemClock(), QueryMetrics()
    log = OperatorLog(clock, only_warnings=options.available_now)
    topic = TopicMetrics(TopicLog(options.topic or settings.topic.name, log, clock), clock)
    folded = 0

    def on_fold(records: int) -> None:
        nonlocal folded
        folded += records

    def folds() -> Values:
        return {"offsets_records_folded_total": folded if fold else None}

    def groups() -> Mapping[str, GroupAnswer]:
        return describe_groups(_reader(ingest.store, settings))

    mirrors = _mirrors(kafka, groups, sample, settings, log.warning)
    sources = (topic.values, folds, queries.values, log.values, *(each.values for each in mirrors))
    with Exposition(options.metrics_file, options.metrics_port, log.warning, *sources) as exposition:
        spark, stopped = spark_when_needed(settings, store, is_small=True), threading.Event()
        ingest = TopicIngest(spark, store, kafka, settings, clock, topic, options.topic, options.semantics)

        def stop() -> None:
            stopped.set()
            ingest.stop()

        def read() -> int:
            stopping.spare_jvm(spark())
            samplings = list(_samplings(ingest.store, kafka, mirrors, settings, clock, log.warning)) if fold else []
            exposition.start(*_counted(ingest.store, settings, clock, log.warning, with_groups=fold))
            with queries.counting(spark()), ExitStack() as ends:
                for each in samplings if not options.available_now else ():
                    each.start()
                    ends.callback(each.close)
                if fold:
                    records = follow(
                        *(ingest, settings, clock),
                        available_now=options.available_now,
                        on_fold=on_fold,
                        on_upkeep=log.upkeep,
                        warn=log.warning,
                    )
                else:
                    records = ingest.run(available_now=options.available_now)
            for each in samplings if options.available_now else ():
                each.sample_once()
            return records

        stopping = Stopping(stop, spark() if is_submitted() else None)
        added = 0
        if options.available_now or ingest.await_topic():
            folder = arrow_folder(ingest.prepare().folder())
            command, tasks = ("follow", (INGEST_TOPIC, FOLD)) if fold else ("ingest-topic", (INGEST_TOPIC,))
            lease = Lease(folder, command, tasks, settings, clock, log.warning)
            with lease.held(options.if_held or (END if options.available_now else WAIT), stopped) as is_held:
                lease.when_lost(stop)
                if lease.has_waited and is_held:
                    ingest.prepare()
                added = read() if is_held else 0
    sys.stdout.write(f"{added} records added to {store}" + (f", {folded} folded\n" if fold else "\n"))
    return stopping.status(has_an_end=options.available_now)


def _reader(store: Store, settings: Settings) -> StateReader:
    return StateReader(store.folder(), settings.questions.max_unfolded_records)


def _counted(
    store: Store, settings: Settings, clock: Clock, warn: Callable[[str], None], *, with_groups: bool
) -> Iterator[ValueSource]:
    """Counts of the state tables, and with a fold of groups."""

    def reader() -> StateReader:
        return _reader(store, settings)

    yield StateMetrics(reader).count
    if with_groups and not store.properties.topic_kind.is_connect:
        samples = store.table(TOPIC_OFFSETS.name)
        yield GroupMetrics(
            reader,
            samples,
            settings.lag,
            lambda each: retention_of(each, settings, None).retention_ms,
            clock,
            warn,
        ).count


def _mirrors(
    kafka: KafkaOptions,
    groups: Callable[[], Mapping[str, GroupAnswer]],
    size: int | None,
    settings: Settings,
    warn: Callable[[str], None],
) -> list[MirrorSample]:
    """The comparison of groups with the brokers, if there is a size of the sample. Raises ConfigError."""
    if size is None:
        return []
    if not settings.lag.sample_interval_ms:
        raise ConfigError("--sample compares groups every sample_interval_ms, which is 0 in the settings; set it")
    return [MirrorSample(kafka, groups, size, warn)]


def _samplings(
    store: Store,
    kafka: KafkaOptions,
    mirrors: Iterable[MirrorSample],
    settings: Settings,
    clock: Clock,
    warn: Callable[[str], None],
) -> Iterator[SamplerThread]:
    """Samples of topics' positions if settings and topic want them, and comparisons with the brokers."""
    interval_ms = settings.lag.sample_interval_ms
    if interval_ms and not store.properties.topic_kind.is_connect:
        table, topics = store.table(TOPIC_OFFSETS.name), settings.lag.sample_topics
        yield SamplerThread(lambda: PositionSampler(kafka, table, topics, clock), interval_ms, clock, warn)
    for mirror in mirrors:
        yield _comparing(mirror, store, interval_ms, clock, warn)


def _comparing(
    mirror: MirrorSample, store: Store, interval_ms: int, clock: Clock, warn: Callable[[str], None]
) -> SamplerThread:
    """Comparisons at an interval. Raises StoreMismatch for a topic of Connect, which has no groups."""
    store.properties.require_topic_kind(store.location, TopicKind.CONSUMER_OFFSETS)
    failing = "cannot compare groups with the brokers"
    return SamplerThread(lambda: mirror, interval_ms, clock, warn, name="mirror-sample", failing=failing)
