"""A live cluster that a command asks in addition to the store: ends of topics, coordinators of groups."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Self

import click

from offsets_pipeline.cli.values import OPTION, SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.config import Settings


def live_options(run: Callable[..., int]) -> Callable[..., int]:
    """The options `--bootstrap-server` and `--option`."""
    option = click.option(
        "--option",
        "options",
        type=OPTION,
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of Kafka's clients, such as security.protocol=SASL_SSL. A value env:NAME or file:PATH "
        "names a secret. May be repeated.",
    )
    server = click.option(
        "--bootstrap-server",
        type=SERVERS,
        metavar="HOST:PORT",
        help="Live brokers with the topics, separated by commas.",
    )
    return server(option(run))


class LiveCluster:
    """The cluster of `--bootstrap-server`. Connects at the first question; without the option nothing is known."""

    def __init__(self, bootstrap_server: str | None, options: Sequence[str], settings: Settings) -> None:
        self._bootstrap_server = bootstrap_server
        self._options = options
        self._settings = settings
        self._opened = ExitStack()

    @property
    def is_given(self) -> bool:
        """Whether there is a cluster to ask."""
        return self._bootstrap_server is not None

    def coordinators(self, offsets_topic: str | None) -> Mapping[int, str]:
        """Return the coordinators of groups by log partition. Raises the errors of `Cluster`."""
        from offsets_pipeline.broker.group_coordinators import coordinators_of_log

        return coordinators_of_log(self.cluster, offsets_topic or self._settings.topic.name) if self.is_given else {}

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster, if there is one to ask. Raises the errors of `Cluster`."""
        from offsets_pipeline.broker.cluster import Cluster
        from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options

        given = {**self._settings.kafka.options, **parse_options(self._options)}
        return self._opened.enter_context(Cluster(KafkaOptions(str(self._bootstrap_server), given)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
