"""The cluster whose log a store has, as the target of repairs. The store is what `restore` needs to undo them."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.live_cluster import kafka_options
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.kafka_options import literal_secret
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.cli.options import LiveBrokers
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.state_reader import StateReader


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
    with Cluster(kafka_options(brokers, settings)) as cluster:
        require_same_cluster(reader, cluster)
        yield cluster


def require_same_cluster(reader: StateReader, cluster: Cluster) -> None:
    """Raise StoreMismatch if the brokers are of another cluster than the log of the store, and both are known."""
    of_log, of_brokers = reader.properties.cluster_id, cluster.cluster_id()
    if None not in {of_log, of_brokers} and of_log != of_brokers:
        raise StoreMismatch(
            f"{cluster.settings.at} is cluster {of_brokers}, but {reader.location} has the log of cluster {of_log}; "
            "name brokers of that cluster"
        )


def say_undo(store: str, brokers: LiveBrokers, group_ids: Collection[str], before_ms: int) -> None:
    """Write the `restore` that commits the offsets of these groups as of before a repair; leaves out secrets.

    Writes nothing without groups, because that `restore` would take all groups.
    """
    if not group_ids:
        return
    words = ["offsets", "restore", "--store", store, "--as-of", shown_time(before_ms)]
    words += ["--bootstrap-server", str(brokers.bootstrap_server)]
    words += [word for each in brokers.client_options if literal_secret(each) is None for word in ("--option", each)]
    words += [] if brokers.command_config is None else ["--command-config", str(brokers.command_config)]
    words += [word for group_id in group_ids for word in ("--group", group_id)]
    sys.stderr.write(
        f"offsets: to undo this, when the store has the records up to now: {printable(shlex.join(words))}\n"
    )
