"""`offsets ingest-topic` and `follow`: read a topic until a signal stops them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from offsets_pipeline.cli.live_cluster import kafka_options
from offsets_pipeline.cli.opened import retention_of, spark_when_needed
from offsets_pipeline.cli.stopping import Stopping, is_submitted
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.fold.stream.folding import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler, SamplerThread
from offsets_pipeline.observability.collectors import QueryMetrics, StateMetrics
from offsets_pipeline.observability.group_metrics import GroupMetrics
from offsets_pipeline.observability.operator_log import FollowedTopic, OperatorLog
from offsets_pipeline.questions.broker_comparison import MirrorSample
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.service.metrics.exposition import Exposition, Values, ValueSource
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.lease import END, FOLD, INGEST_TOPIC, WAIT, Lease

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_sources import OfTopic
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.describe import GroupAnswer


def read_topic(options: OfTopic, settings: Settings) -> int:
    """Append the topic to the log, and if the command ``folds`` fold the log; returns the exit status.

    With ``sample`` compares so many groups with the brokers at an interval. Checks address, topic and store, and waits
    for another process that does the same, before it starts Spark.

    Raises the errors of `TopicIngest` and `Exposition`, LeaseHeld, LeaseLost, and ConfigError for a ``sample`` without
    an interval.
    """
    return _TopicReading(options, settings).run()


class _TopicReading:
    """One run of a command: it waits for the topic, then for the lease, then reads until a signal or the end."""

    def __init__(self, options: OfTopic, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._kafka = kafka_options(options.brokers, settings)
        self._clock = clock = SystemClock()
        self._log = OperatorLog(clock, only_warnings=options.available_now)
        self._topic = FollowedTopic(options.topic or settings.topic.name, self._log, clock)
        self._queries = QueryMetrics()
        self._folded = 0
        self._mirror: MirrorSample | None = None
        if options.sample is not None:
            if not settings.lag.sample_interval_ms:
                raise ConfigError(
                    "--sample compares groups every sample_interval_ms, which is 0 in the settings; set it"
                )
            self._mirror = MirrorSample(self._kafka, self._groups, options.sample, self._log.warning)
        self._spark = spark_when_needed(settings, options.store, is_small=True)
        self._ingest = TopicIngest(
            *(self._spark, options.store, self._kafka, settings, clock, self._topic),
            *(options.topic, options.semantics),
        )
        self._stopped = threading.Event()

    def run(self) -> int:
        """Read the topic, and print how many records were added; returns the exit status."""
        options, added = self._options, 0
        sources = [self._topic.values, self._folds, self._queries.values, self._log.values]
        sources += [] if self._mirror is None else [self._mirror.values]
        with Exposition(options.metrics_file, options.metrics_port, self._log.warning, *sources) as exposition:
            stopping = Stopping(self._stop, self._spark() if is_submitted() else None)
            if options.available_now or self._ingest.await_topic():
                added = self._read_alone(stopping, exposition)
        folded = f", {self._folded} folded" if options.folds else ""
        sys.stdout.write(f"{counted(added, 'record')} added to {options.store}{folded}\n")
        return stopping.status(has_an_end=options.available_now)

    def _stop(self) -> None:
        self._stopped.set()
        self._ingest.stop()

    def _read_alone(self, stopping: Stopping, exposition: Exposition) -> int:
        """Read while no other process does the same work on the store; returns the number of appended records."""
        options, folder = self._options, arrow_folder(self._ingest.prepare().folder())
        command, tasks = ("follow", (INGEST_TOPIC, FOLD)) if options.folds else ("ingest-topic", (INGEST_TOPIC,))
        lease = Lease(folder, command, tasks, self._settings, self._clock, self._log.warning)
        if_held = options.if_held or (END if options.available_now else WAIT)
        with lease.held(if_held, self._stopped) as is_held:
            lease.when_lost(self._stop)
            if not is_held:
                return 0
            if lease.has_waited:
                self._ingest.prepare()
            stopping.spare_jvm(self._spark())
            samplers = list(self._samplers()) if options.folds else []
            exposition.start(*self._counted())
            return self._read(samplers)

    def _read(self, samplers: list[SamplerThread]) -> int:
        """Append, and fold, with the samplers beside it, or once at the end; returns the number of appended records."""
        is_ending = self._options.available_now
        with self._queries.counting(self._spark()), ExitStack() as ends:
            for each in samplers if not is_ending else ():
                each.start()
                ends.callback(each.close)
            if self._options.folds:
                records = follow(
                    *(self._ingest, self._settings, self._clock),
                    available_now=is_ending,
                    on_fold=self._on_fold,
                    on_upkeep=self._log.upkeep,
                    warn=self._log.warning,
                )
            else:
                records = self._ingest.run(available_now=is_ending)
        for each in samplers if is_ending else ():
            each.run_once()
        return records

    def _samplers(self) -> Iterator[SamplerThread]:
        """Samples of topics' positions if settings and topic want them, and the comparison with the brokers.

        Raises StoreMismatch for a comparison in a store of another topic than `__consumer_offsets`.
        """
        store, clock, warn, mirror = self._ingest.store, self._clock, self._log.warning, self._mirror
        interval_ms, topics = self._settings.lag.sample_interval_ms, self._settings.lag.sample_topics
        if interval_ms and not store.properties.topic_kind.is_connect:
            table = store.table(TOPIC_OFFSETS.name)
            yield SamplerThread(lambda: PositionSampler(self._kafka, table, topics, clock), interval_ms, clock, warn)
        if mirror is not None:
            store.properties.require_topic_kind(store.location, TopicKind.CONSUMER_OFFSETS)
            failing = "cannot compare groups with the brokers"
            yield SamplerThread(lambda: mirror, interval_ms, clock, warn, name="mirror-sample", failing=failing)

    # --- metrics

    def _on_fold(self, records: int) -> None:
        self._folded += records

    def _folds(self) -> Values:
        return {"offsets_records_folded_total": self._folded if self._options.folds else None}

    def _reader(self) -> StateReader:
        return StateReader(self._ingest.store.folder(), self._settings.questions.max_unfolded_records)

    def _groups(self) -> Mapping[str, GroupAnswer] | None:
        """The groups of the store; None while the store lacks records of the topic."""
        reader = self._reader()
        is_current = self._topic.is_caught_up and not reader.current.unfolded
        return describe_groups(reader) if is_current or self._options.available_now else None

    def _counted(self) -> Iterator[ValueSource]:
        """Counts of the state tables, and with a fold of groups."""
        store, settings = self._ingest.store, self._settings
        yield StateMetrics(self._reader).count
        if self._options.folds and not store.properties.topic_kind.is_connect:
            yield GroupMetrics(
                *(self._reader, store.table(TOPIC_OFFSETS.name), settings.lag),
                lambda each: retention_of(each, settings, None).retention_ms,
                *(self._clock, self._log.warning),
            ).count
