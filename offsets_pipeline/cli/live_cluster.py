"""What a command asks in addition to the store: a live cluster, or a file with positions of topics.

A cluster is also the target of repairs, if the store has its log: the store is what `restore` needs to undo them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of, snapshot_interval_ms
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.options import LiveBrokers, OneStore, PositionsFrom
from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, samples_of, table_of
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions, literal_secret, parse_options
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups, lag_of_groups, topics_of
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.group_listing import groups_with_lag
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED, SNAPSHOT

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.questions.query.state_reader import StateReader

_STALE_INTERVALS = 3


def kafka_options(brokers: LiveBrokers, settings: Settings) -> KafkaOptions:
    """Return how clients reach these brokers: by the settings or a file of properties, and by `--option`.

    Raises ConfigError, NoSuchPath, MalformedFile.
    """
    given = settings.kafka.options
    if brokers.command_config is not None:
        from offsets_pipeline.ingest.topic_positions.broker_positions import read_client_properties

        given = read_client_properties(brokers.command_config)
    return KafkaOptions(str(brokers.bootstrap_server), {**given, **parse_options(brokers.client_options)})


class LiveCluster(Closing):
    """The cluster of `--bootstrap-server`, or the file of `--positions`. Connects at the first question."""

    def __init__(self, asked: LiveBrokers, settings: Settings) -> None:
        self._asked = asked
        self._settings = settings
        self._opened = ExitStack()

    @property
    def is_given(self) -> bool:
        """Whether there is a cluster to ask."""
        return self._asked.bootstrap_server is not None

    def coordinators(self, offsets_topic: str | None) -> Mapping[int, str]:
        """Return the coordinators of groups by log partition. Raises the errors of `Cluster`."""
        from offsets_pipeline.kafka.broker.groups_client import coordinators_of_log

        return coordinators_of_log(self.cluster, offsets_topic or self._settings.topic.name) if self.is_given else {}

    def topic_names(self) -> dict[str, str]:
        """Return names of topics by their ids; none without a cluster. Raises the errors of `Cluster`."""
        topics = self.cluster.topics(None) if self.is_given else {}
        return {each.topic_id: name for name, each in topics.items() if each.topic_id}

    def groups(self, reader: StateReader, patterns: Sequence[str] | None) -> dict[str, GroupAnswer]:
        """Return the groups of a store for `lag`, as `groups_with_lag`; the cluster names topics of share groups."""
        is_share = reader.properties.topic_kind is TopicKind.SHARE_STATE
        return groups_with_lag(reader, patterns, self.topic_names() if is_share else {})

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster, if there is one to ask. Raises the errors of `Cluster`."""
        from offsets_pipeline.kafka.broker.cluster import Cluster

        return self._opened.enter_context(Cluster(kafka_options(self._asked, self._settings)))

    def lag(self, of: StoreGroups) -> list[LagRow]:
        """Return the lag of groups, as `lag_of_groups` does, by `positions`; without status."""
        return lag_of_groups(of, self.positions(of))

    def positions(self, of: StoreGroups, warn: Callable[[str], object] = warn) -> SampledPositions:
        """Return the positions of the groups' topics, now or at a past time: from the file, the cluster or the samples.

        ``warn`` is called if the samples of the store are old or missing.
        """
        reader, topics, now_ms = of.reader, topics_of(of.groups), SystemClock().now_ms()
        asked_ms = now_ms if of.at_ms is None else of.at_ms
        if isinstance(self._asked, PositionsFrom) and self._asked.positions is not None:
            from offsets_pipeline.ingest.topic_positions.sample_table import read_sample_file

            data_ms = min(of.time.data_ms.values(), default=asked_ms)
            of_file = read_sample_file(self._asked.positions, now_ms, topics, data_ms)
            return SampledPositions(PositionSamples(of_file), asked_ms)
        table = table_of(reader.location)
        if self.is_given:
            # a broker's client takes long to import
            from offsets_pipeline.questions.lag.broker_source import BrokerPositions

            require_same_cluster(reader, self.cluster)
            return BrokerPositions(self.cluster, topics, samples_of(table, topics), SystemClock(), of.at_ms)
        sampled = SampledPositions(read_samples(table, topics), asked_ms)
        until_ms, interval_ms = sampled.until_ms, max(self._settings.lag.sample_interval_ms, 1_000)
        if reader.properties.kind == SNAPSHOT:  # each snapshot samples
            interval_ms = max(interval_ms, snapshot_interval_ms(reader))
        if until_ms is None and topics:
            or_file = " or --positions" if isinstance(self._asked, PositionsFrom) else ""
            warn(
                f"the lag is not known: {reader.location} has no positions of these topics; add --bootstrap-server"
                f"{or_file}, or run `offsets sample-topic-offsets --store {shlex.quote(reader.location)} "
                "--bootstrap-server HOST:PORT`"
            )
        elif until_ms is not None and asked_ms - until_ms > _STALE_INTERVALS * interval_ms:
            warn(f"the newest positions in {reader.location} are of {shown_time(until_ms)}; lag is as of then")
        return sampled

    def close(self) -> None:
        """Close the connections."""
        self._opened.close()


@contextmanager
def mirrored_cluster(store: str, brokers: LiveBrokers, settings: Settings) -> Iterator[Cluster]:
    """Connect to the cluster whose groups the store has; warn of records that the store lacks.

    Raises StoreMismatch for a store of another topic, for an owned store and for another cluster, and the errors of
    `Cluster` and `open_reader`.
    """
    reader = open_reader(store, settings)
    reader.properties.require_topic_kind(store, TopicKind.CONSUMER_OFFSETS)  # else no `restore` undoes a change
    if reader.properties.kind == OWNED:
        raise StoreMismatch(f"{store} is an owned store, which has no brokers to ask")
    answer_time_of(reader, store, settings)
    with LiveCluster(brokers, settings) as live:
        require_same_cluster(reader, live.cluster)
        yield live.cluster


def require_same_cluster(reader: StateReader, cluster: Cluster) -> None:
    """Raise StoreMismatch if the brokers are of another cluster than the log of the store, and both are known."""
    of_log, of_brokers = reader.properties.cluster_id, cluster.cluster_id()
    if None not in {of_log, of_brokers} and of_log != of_brokers:
        raise StoreMismatch(
            f"{cluster.settings.at} is cluster {of_brokers}, but {reader.location} has the log of cluster {of_log}; "
            "name brokers of that cluster"
        )


def say_undo(options: OneStore, brokers: LiveBrokers, group_ids: Collection[str], before_ms: int) -> None:
    """Write the `restore` that commits the offsets of these groups as of before a repair; leaves out secrets.

    Writes nothing without groups, because that `restore` would take all groups.
    """
    if not group_ids:
        return
    words = ["offsets", "restore", "--store", options.store, "--as-of", shown_time(before_ms)]
    words += [] if options.config is None else ["--config", str(options.config)]
    words += ["--bootstrap-server", str(brokers.bootstrap_server)]
    words += [word for each in brokers.client_options if literal_secret(each) is None for word in ("--option", each)]
    words += [] if brokers.command_config is None else ["--command-config", str(brokers.command_config)]
    words += [word for group_id in group_ids for word in ("--group", group_id)]
    sys.stderr.write(
        f"offsets: to undo this, when the store has the records up to now: {printable(shlex.join(words))}\n"
    )
