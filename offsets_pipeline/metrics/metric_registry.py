"""Metrics in Prometheus' text format: kept in memory, and exposed over HTTP (metrics_server.py) or in a file.

The file is replaced atomically.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.errors import MetricsUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Told(NamedTuple):
    """The metadata of one metric: type, help text, and the labels that distinguish its series, separated by commas."""

    kind: str
    text: str
    label: str | None = None


#: All metrics by name, in the order of the text format.
HELP: Mapping[str, Told] = {
    "offsets_records_read_total": Told("counter", "Records of the topic that were appended to the log."),
    "offsets_records_folded_total": Told("counter", "Records of the log that were folded into the state."),
    "offsets_log_behind_topic_records": Told(
        "gauge", "Record offsets up to the topic's high watermark that were not read yet.", "log_partition"
    ),
    "offsets_topic_unstable_records": Told(
        "gauge",
        "Record offsets from the topic's last stable offset on: they wait for an open transaction.",
        "log_partition",
    ),
    "offsets_topic_open_transaction_seconds": Told(
        "gauge",
        "Seconds since that transaction began, or since its last write if the cluster does not report its start.",
        "log_partition",
    ),
    "offsets_topic_up": Told("gauge", "Whether the last request about the topic succeeded: 1 or 0."),
    "offsets_topic_last_success_timestamp_seconds": Told(
        "gauge", "Time of the last successful request about the topic, in seconds since 1970."
    ),
    "offsets_fold_behind_log_records": Told(
        "gauge", "Record offsets of the log that were not folded yet.", "log_partition"
    ),
    "offsets_quarantined_records": Told("gauge", "Records, and byte ranges of segment files, that did not decode."),
    "offsets_groups": Told("gauge", "Groups that exist."),
    "offsets_committed_offsets": Told("gauge", "Committed offsets that a fetch returns."),
    "offsets_log_incarnation": Told(
        "gauge", "Incarnation of the log that is read: how often the topic was read again from its beginning."
    ),
    "offsets_batch_duration_seconds": Told("summary", "Duration of the batches of a query.", "query"),
    "offsets_batches_total": Told("counter", "Batches of a query.", "query"),
    "offsets_warnings_total": Told("counter", "Warnings; each is also printed on stderr."),
    # of groups, with the names and labels of kminion and kafka-lag-exporter, whose dashboards ask for them
    "kminion_kafka_consumer_group_info": Told(
        "gauge", "Groups by state: 1 if the group is Stable, else 0.", "group_id, protocol, protocol_type, state"
    ),
    "kminion_kafka_consumer_group_members": Told("gauge", "Members of a group.", "group_id"),
    "kminion_kafka_consumer_group_topic_offset_sum": Told(
        "gauge", "Sum of a group's committed offsets in a topic.", "group_id, topic_name"
    ),
    "kminion_kafka_consumer_group_topic_lag": Told(
        "gauge", "Offsets that a group is behind in a topic.", "group_id, topic_name"
    ),
    "kminion_kafka_consumer_group_topic_partition_lag": Told(
        "gauge", "Offsets that a group is behind in a partition.", "group_id, partition_id, topic_name"
    ),
    "kafka_consumergroup_group_sum_lag": Told("gauge", "Offsets that a group is behind.", "cluster_name, group"),
    "kafka_consumergroup_group_max_lag": Told(
        "gauge", "Offsets that a group is behind in its worst partition.", "cluster_name, group"
    ),
    "kafka_consumergroup_group_max_lag_seconds": Told(
        "gauge", "Seconds that a group is behind in its worst partition.", "cluster_name, group"
    ),
    "kafka_consumergroup_group_topic_sum_lag": Told(
        "gauge", "Offsets that a group is behind in a topic.", "cluster_name, group, topic"
    ),
    "kafka_consumergroup_group_offset": Told(
        "gauge", "Committed offset of a partition.", "cluster_name, group, partition, topic"
    ),
    "kafka_consumergroup_group_lag": Told(
        "gauge", "Offsets that a group is behind in a partition.", "cluster_name, group, partition, topic"
    ),
    "kafka_consumergroup_group_lag_seconds": Told(
        "gauge", "Seconds that a group is behind in a partition.", "cluster_name, group, partition, topic"
    ),
    "kafka_partition_latest_offset": Told("gauge", "Log end of a partition.", "cluster_name, partition, topic"),
    "kafka_partition_earliest_offset": Told("gauge", "Log start of a partition.", "cluster_name, partition, topic"),
    "offsets_group_topic_max_lag_seconds": Told(
        "gauge", "Seconds that a group is behind in its worst partition of a topic.", "cluster_name, group, topic"
    ),
    "offsets_group_last_commit_timestamp_seconds": Told(
        "gauge", "Time of a group's last commit in a topic, in seconds since 1970.", "cluster_name, group, topic"
    ),
    "offsets_data_timestamp_seconds": Told(
        "gauge", "Data time of the groups: the log holds all records up to then. In seconds since 1970."
    ),
    "offsets_positions_timestamp_seconds": Told(
        "gauge", "Time of the newest sample of topics' positions, in seconds since 1970."
    ),
    "offsets_groups_without_metrics": Told(
        "gauge", "Groups that have no metrics of their own, because metrics_max_series allows no more series."
    ),
    "offsets_coordinator_groups": Told("gauge", "Groups in the log partitions that the coordinator has loaded."),
    "offsets_coordinator_offsets": Told("gauge", "Offsets in the log partitions that the coordinator has loaded."),
    "offsets_coordinator_commits_total": Told("counter", "Commits that are in the log."),
    "offsets_coordinator_committed_offsets_total": Told("counter", "Offsets of these commits."),
    "offsets_coordinator_lost_commits_total": Told(
        "counter", "Commits with acks=0 that were refused or not written; their callers got no error."
    ),
    "offsets_coordinator_expired_offsets_total": Told("counter", "Offsets that the coordinator expired."),
    "offsets_coordinator_expired_groups_total": Told("counter", "Groups that the coordinator removed by expiration."),
    "offsets_coordinator_appends_total": Told("counter", "Appends to the log; an append has many requests."),
    "offsets_coordinator_appended_records_total": Told("counter", "Records of these appends."),
    "offsets_coordinator_append_conflicts_total": Told(
        "counter", "Appends that another writer preceded; each is retried."
    ),
    "offsets_coordinator_load_duration_seconds": Told(
        "gauge", "Duration of the last load of a log partition.", "log_partition"
    ),
    "offsets_coordinator_refused_requests_total": Told(
        "counter", "Requests that were answered with this error.", "error"
    ),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Values by name and labels. Thread-safe."""

    def __init__(self, collect: Callable[[Metrics], None] | None = None) -> None:
        """``collect`` is called with these metrics before each `text`, to set values that change without an event."""
        self._collect = collect
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}

    def add(self, name: str, by: float, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            of_name = self._values.setdefault(name, {})
            key = tuple(sorted(labels.items()))
            of_name[key] = of_name.get(key, 0) + by

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        with self._lock:
            self._values.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def set_all(self, name: str, label: str, values: Mapping[int, float] | Mapping[str, float]) -> None:
        """Set a gauge for each value of one label, and drop all other series of that name."""
        with self._lock:
            self._values[name] = {((label, str(at)),): value for at, value in values.items()}

    def replace(self, name: str, series: Mapping[Labels, float]) -> None:
        """Set a gauge to these series, and drop all others of that name; labels are in order."""
        with self._lock:
            self._values[name] = dict(series)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        if self._collect is not None:
            self._collect(self)
        with self._lock:
            lines = []
            for name, help_ in HELP.items():
                # a summary has series NAME_sum and NAME_count
                series = {
                    each: of
                    for each, of in self._values.items()
                    if each.removeprefix(name) in ("", *_PARTS[help_.kind])
                }
                if any(series.values()):
                    lines += [f"# HELP {name} {help_.text}", f"# TYPE {name} {help_.kind}"]
                for each, of_name in sorted(series.items()):
                    lines += [f"{each}{_shown(labels)} {value:.15g}" for labels, value in sorted(of_name.items())]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Replace a file with all metrics, atomically. Raises MetricsUnavailable."""
        half = path.with_name(f"{path.name}.part")
        try:
            half.write_text(self.text(), encoding="utf-8")
            half.replace(path)
        except OSError as error:
            raise MetricsUnavailable(f"cannot write metrics to {path}: {error.strerror}") from error


_PARTS = {"counter": (), "gauge": (), "summary": ("_sum", "_count")}


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return "{" + ",".join(quoted) + "}"


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
