"""The metrics of the program, and their exposition to Prometheus in a file and over HTTP.

Imported only by a process that may expose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest, write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import CollectorRegistry

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.service.rest.guard import send_response

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client.metrics_core import Metric
    from starlette.types import Receive, Scope, Send

    from offsets_pipeline.service.rest.server import Limits, RestServer

_COUNT_SECONDS = 30.0  # between two counts of the state tables
_WRITE_SECONDS = 2.0
_TEXT = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
_MAX_REQUEST_BYTES = 4_096  # requests have no body
_CONNECTIONS = 100  # fewer than of a service: the process has other work

#: A value for each series of a metric, by the tuple of its label values; a single label may be a text or a number.
#: A summary has a count and a sum. A value that is not known is None.
Series: TypeAlias = Mapping[Any, float | tuple[int, float] | None]
#: Values by the name of the metric; a number belongs to a metric without labels.
Values: TypeAlias = Mapping[str, float | Series | None]
#: Returns the present values of some metrics.
ValueSource: TypeAlias = Callable[[], Values]


class MetricFamily(NamedTuple):
    """The class of a metric, its help text, and the names of the labels that distinguish its series, in order."""

    kind: Callable[..., Any]
    help: str
    labels: tuple[str, ...]


def _counter(help_: str, *labels: str) -> MetricFamily:
    return MetricFamily(CounterMetricFamily, help_, labels)


def _gauge(help_: str, *labels: str) -> MetricFamily:
    return MetricFamily(GaugeMetricFamily, help_, labels)


_GROUP = ("cluster_name", "group")
_TOPIC = (*_GROUP, "topic")
_PARTITION = (*_GROUP, "partition", "topic")

#: All metrics by name.
FAMILIES: Mapping[str, MetricFamily] = {
    "offsets_records_read_total": _counter("Records of the topic that were appended to the log."),
    "offsets_records_folded_total": _counter("Records of the log that were folded into the state."),
    "offsets_log_behind_topic_records": _gauge(
        "Record offsets up to the topic's high watermark that were not read yet.", "log_partition"
    ),
    "offsets_topic_unstable_records": _gauge(
        "Record offsets from the topic's last stable offset on: they wait for an open transaction.", "log_partition"
    ),
    "offsets_topic_open_transaction_seconds": _gauge(
        "Seconds since that transaction began, or since its last write if the cluster does not report its start.",
        "log_partition",
    ),
    "offsets_store_up": _gauge("Whether the store's storage can be read and written, as far as tried: 1 or 0."),
    "offsets_topic_up": _gauge("Whether the last request about the topic succeeded: 1 or 0."),
    "offsets_topic_last_success_timestamp_seconds": _gauge(
        "Time of the last successful request about the topic, in seconds since 1970."
    ),
    "offsets_fold_behind_log_records": _gauge("Record offsets of the log that were not folded yet.", "log_partition"),
    "offsets_quarantined_records": _gauge("Records, and byte ranges of segment files, that did not decode."),
    "offsets_groups": _gauge("Groups that exist."),
    "offsets_committed_offsets": _gauge("Committed offsets that a fetch returns."),
    "offsets_log_incarnation": _gauge(
        "Incarnation of the log that is read: how often the topic was read again from its beginning."
    ),
    "offsets_batch_duration_seconds": MetricFamily(
        SummaryMetricFamily, "Duration of the batches of a query.", ("query",)
    ),
    "offsets_batches_total": _counter("Batches of a query.", "query"),
    "offsets_mirror_compared_groups_total": _counter("Groups that were compared with the brokers (follow --sample)."),
    "offsets_mirror_differing_groups": _gauge(
        "Groups that differed from the brokers' answer at two looks, while this answer did not change."
    ),
    "offsets_warnings_total": _counter("Warnings; each is also printed on stderr."),
    # of groups, with the names and labels of kminion
    "kminion_kafka_consumer_group_info": _gauge(
        "Groups by state: 1 if the group is Stable, else 0.", "group_id", "protocol", "protocol_type", "state"
    ),
    "kminion_kafka_consumer_group_members": _gauge("Members of a group.", "group_id"),
    "kminion_kafka_consumer_group_topic_offset_sum": _gauge(
        "Sum of a group's committed offsets in a topic.", "group_id", "topic_name"
    ),
    # of lag, with the names and labels of kafka-lag-exporter, and with the prefix offsets_ where it has no such metric
    "kafka_consumergroup_group_sum_lag": _gauge("Offsets that a group is behind.", *_GROUP),
    "kafka_consumergroup_group_max_lag": _gauge("Offsets that a group is behind in its worst partition.", *_GROUP),
    "kafka_consumergroup_group_max_lag_seconds": _gauge(
        "Seconds that a group is behind in its worst partition; at least, if the samples begin later.", *_GROUP
    ),
    "kafka_consumergroup_group_topic_sum_lag": _gauge("Offsets that a group is behind in a topic.", *_TOPIC),
    "kafka_consumergroup_group_offset": _gauge("Committed offset of a partition.", *_PARTITION),
    "kafka_consumergroup_group_lag": _gauge("Offsets that a group is behind in a partition.", *_PARTITION),
    "kafka_consumergroup_group_lag_seconds": _gauge(
        "Seconds that a group is behind in a partition; at least, if the samples begin later.", *_PARTITION
    ),
    "kafka_partition_latest_offset": _gauge("Log end of a partition.", "cluster_name", "partition", "topic"),
    "kafka_partition_earliest_offset": _gauge("Log start of a partition.", "cluster_name", "partition", "topic"),
    "offsets_group_topic_max_lag_seconds": _gauge(
        "Seconds that a group is behind in its worst partition of a topic; at least, if the samples begin later.",
        *_TOPIC,
    ),
    "offsets_group_last_commit_timestamp_seconds": _gauge(
        "Time of a group's last commit in a topic, in seconds since 1970.", *_TOPIC
    ),
    "offsets_group_partitions": _gauge(
        "Partitions of a group by status: STOP, REWIND, STALL or WARN; of groups that are behind for over a minute.",
        *_GROUP,
        "status",
    ),
    "offsets_group_next_expiry_timestamp_seconds": _gauge(
        "Time of the first expiry of a group's offsets if it commits no more, in seconds since 1970.", *_GROUP
    ),
    "offsets_group_epoch": _gauge(
        "Generation of a classic group, epoch of any other group: it grows with each rebalance.", *_GROUP
    ),
    "offsets_data_timestamp_seconds": _gauge(
        "Data time of the groups: the log holds all records up to then. In seconds since 1970."
    ),
    "offsets_positions_timestamp_seconds": _gauge(
        "Time of the newest sample of topics' positions, in seconds since 1970."
    ),
    "offsets_groups_without_metrics": _gauge(
        "Groups that have no metrics of their own, because metrics_max_series allows no more series."
    ),
    "offsets_coordinator_groups": _gauge("Groups in the log partitions that the coordinator has loaded."),
    "offsets_coordinator_offsets": _gauge("Offsets in the log partitions that the coordinator has loaded."),
    "offsets_coordinator_commits_total": _counter("Commits that are in the log."),
    "offsets_coordinator_committed_offsets_total": _counter("Offsets of these commits."),
    "offsets_coordinator_lost_commits_total": _counter(
        "Commits with acks=0 that were refused or not written; their callers got no error."
    ),
    "offsets_coordinator_expired_offsets_total": _counter("Offsets that the coordinator expired."),
    "offsets_coordinator_expired_groups_total": _counter("Groups that the coordinator removed by expiration."),
    "offsets_coordinator_appends_total": _counter("Appends to the log; an append has many requests."),
    "offsets_coordinator_appended_records_total": _counter("Records of these appends."),
    "offsets_coordinator_append_conflicts_total": _counter("Appends that another writer preceded; each is retried."),
    "offsets_coordinator_load_duration_seconds": _gauge(
        "Duration of the last load of a log partition.", "log_partition"
    ),
    "offsets_coordinator_refused_requests_total": _counter("Requests that were answered with this error.", "error"),
}


class _Collector:
    """Collects the present values of a source.

    The program has no `Counter` or `Gauge` of prometheus_client: they add series `_created`, and write files if the
    environment of the embedding process says so (PROMETHEUS_MULTIPROC_DIR).
    """

    def __init__(self, source: ValueSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have a value."""
        for name, value in self._source().items():
            of = FAMILIES[name]
            family = of.kind(name, of.help, labels=of.labels)
            series: Mapping[Any, Any] = value if isinstance(value, Mapping) else {(): value}
            for at, each in series.items():
                if each is not None:
                    labels = at if isinstance(at, tuple) else (str(at),)
                    family.add_metric(labels, *(each if isinstance(each, tuple) else (each,)))
            if family.samples:
                yield family


def registry_of(*sources: ValueSource) -> CollectorRegistry:
    """Return a registry that reads these sources for each exposition."""
    registry = CollectorRegistry()
    for source in sources:
        registry.register(_Collector(source))
    return registry


def write_metrics(registry: CollectorRegistry, path: Path) -> None:
    """Replace a file with all metrics, atomically. Raises TargetNotWritable."""
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise TargetNotWritable(f"cannot write metrics to {path}: {error.strerror}") from error


def serve_metrics(registry: CollectorRegistry, host: str, port: int, limits: Limits | None = None) -> RestServer:
    """Serve metrics at /metrics until `RestServer.close`. Port 0 takes a free port. It needs the extra `serve`.

    Requests need no authentication. On a loopback address their header Host must name it, as for all services.

    Raises ServiceUnavailable if the address cannot be bound.
    """
    import asyncio  # noqa: PLC0415 - for a port alone: the HTTP server takes 7 MiB

    from offsets_pipeline.service.rest.server import Access, Limits, RestServer  # noqa: PLC0415 - the same

    async def answer(scope: Scope, _: Receive, send: Send) -> None:
        if scope["path"] not in ("/", "/metrics"):
            await send_response(send, 404, b"404: only /metrics is here\n", _TEXT)
        elif scope["method"] not in ("GET", "HEAD"):
            await send_response(send, 405, b"405: only GET is allowed\n", _TEXT | {"Allow": "GET, HEAD"})
        else:
            # in a thread: a coordinator counts under its lock
            await send_response(send, 200, await asyncio.to_thread(generate_latest, registry), _TEXT)

    limits = limits or Limits(connections=_CONNECTIONS)
    return RestServer(host, port, Access(is_public=True), lambda _: answer, _MAX_REQUEST_BYTES, limits)


class Exposition(Closing):
    """Exposes metrics in a file or at a port until `close`, or the end of `with`; passes later failures to ``warn``.

    Raises TargetNotWritable if the file cannot be written, ServiceUnavailable if the address cannot be bound.
    """

    def __init__(
        self, file: Path | None, address: tuple[str, int] | None, warn: Callable[[str], None], *sources: ValueSource
    ) -> None:
        """``sources`` are read for each exposition."""
        self._file = file
        self._warn = warn
        self._periodic: list[Periodic[None]] = []
        self._registry = registry_of(*sources)
        if file is not None:
            write_metrics(self._registry, file)
        self._server: RestServer | None = None
        if address is not None:
            self._server = serve_metrics(self._registry, *address)

    def start(self, *counted: ValueSource) -> None:
        """Read the sources ``counted`` every half minute and rewrite the file every two seconds, each in a thread.

        Does nothing without a file and a port.
        """
        if self._file is None and self._server is None:
            return
        found: dict[ValueSource, Values] = {source: {} for source in counted}
        for source in counted:
            self._registry.register(_Collector(partial(found.__getitem__, source)))

        def count() -> None:
            for source in counted:
                found[source] = source()

        self._start("figures", count, _COUNT_SECONDS, "cannot count the state tables")
        if self._file is not None:
            write = partial(write_metrics, self._registry, self._file)
            self._start("metrics-file", write, _WRITE_SECONDS, "metrics are not up to date")

    def _start(self, name: str, run: Callable[[], None], rest_seconds: float, failing: str) -> None:
        periodic = Periodic(
            run,
            round(rest_seconds * 1000),
            rests=True,
            warn=self._warn,
            describe=lambda error: f"{failing}: {first_line(error)}",
            at_end=run,
            name=name,
        )
        self._periodic.append(periodic)
        periodic.start()

    def close(self) -> None:
        """Count and write once more, then close the port."""
        for each in self._periodic:
            each.close()
        if self._server is not None:
            self._server.close()
