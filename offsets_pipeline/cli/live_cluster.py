"""A live cluster that a command asks in addition to the store: ends of topics, coordinators of groups."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Self

from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.cli.options import LiveBrokers, PositionsFrom
    from offsets_pipeline.config import Settings


def kafka_options(bootstrap_server: str, client_options: Iterable[str], settings: Settings) -> KafkaOptions:
    """Return how clients reach these brokers: by the settings, and by `--option`. Raises ConfigError."""
    return KafkaOptions(bootstrap_server, {**settings.kafka.options, **parse_options(client_options)})


class LiveCluster:
    """The cluster of `--bootstrap-server`. Connects at the first question; without the option nothing is known."""

    def __init__(self, asked: LiveBrokers | PositionsFrom, settings: Settings) -> None:
        self._asked = asked
        self._settings = settings
        self._opened = ExitStack()

    @property
    def is_given(self) -> bool:
        """Whether there is a cluster to ask."""
        return self._asked.bootstrap_server is not None

    def coordinators(self, offsets_topic: str | None) -> Mapping[int, str]:
        """Return the coordinators of groups by log partition. Raises the errors of `Cluster`."""
        from offsets_pipeline.broker.group_coordinators import coordinators_of_log

        return coordinators_of_log(self.cluster, offsets_topic or self._settings.topic.name) if self.is_given else {}

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster, if there is one to ask. Raises the errors of `Cluster`."""
        from offsets_pipeline.broker.cluster import Cluster

        server = str(self._asked.bootstrap_server)
        kafka = kafka_options(server, self._asked.client_options, self._settings)
        return self._opened.enter_context(Cluster(kafka))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
