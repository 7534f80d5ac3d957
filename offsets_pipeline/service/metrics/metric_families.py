"""The metrics of the program: their names, types, help texts and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

#: A value for each series of a metric, by the tuple of its label values; a single label may be a text or a number.
#: A summary has a count and a sum. A value that is not known is None.
Series: TypeAlias = Mapping[Any, float | tuple[int, float] | None]
#: Values by the name of the metric; a number belongs to a metric without labels.
Values: TypeAlias = Mapping[str, float | Series | None]
#: Returns the present values of some metrics.
ValueSource: TypeAlias = Callable[[], Values]


class MetricFamily(NamedTuple):
    """The type of a metric, its help text, and the names of the labels that distinguish its series, in order."""

    type: str
    help: str
    labels: tuple[str, ...]


def _counter(help_: str, *labels: str) -> MetricFamily:
    return MetricFamily("counter", help_, labels)


def _gauge(help_: str, *labels: str) -> MetricFamily:
    return MetricFamily("gauge", help_, labels)


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
    "offsets_batch_duration_seconds": MetricFamily("summary", "Duration of the batches of a query.", ("query",)),
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
        "Seconds that a group is behind in its worst partition.", *_GROUP
    ),
    "kafka_consumergroup_group_topic_sum_lag": _gauge("Offsets that a group is behind in a topic.", *_TOPIC),
    "kafka_consumergroup_group_offset": _gauge("Committed offset of a partition.", *_PARTITION),
    "kafka_consumergroup_group_lag": _gauge("Offsets that a group is behind in a partition.", *_PARTITION),
    "kafka_consumergroup_group_lag_seconds": _gauge("Seconds that a group is behind in a partition.", *_PARTITION),
    "kafka_partition_latest_offset": _gauge("Log end of a partition.", "cluster_name", "partition", "topic"),
    "kafka_partition_earliest_offset": _gauge("Log start of a partition.", "cluster_name", "partition", "topic"),
    "offsets_group_topic_max_lag_seconds": _gauge(
        "Seconds that a group is behind in its worst partition of a topic.", *_TOPIC
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
