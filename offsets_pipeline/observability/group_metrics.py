"""Metrics of groups: committed offsets, lag, last commits, members and states, for a bounded number of series."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from offsets_pipeline.lag.lag_of_groups import lag_of_groups
from offsets_pipeline.lag.lag_rows import offsets_of, topics_of
from offsets_pipeline.lag.position_sources import SampledPositions
from offsets_pipeline.query.answer_time import answer_time
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.semantics.group_description import STABLE
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.topic_positions.sample_table import read_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config.sections import LagSettings
    from offsets_pipeline.delta import TableFolder
    from offsets_pipeline.lag.lag_rows import LagRow
    from offsets_pipeline.metrics.metric_registry import Labels, Metrics
    from offsets_pipeline.query.answer_time import AnswerTime
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader

    #: Committed offset by group, topic and partition; None for a partition that is assigned without a commit.
    Committed = Mapping[tuple[str, str, int], int | None]

_MS_OF_SECOND = 1_000
#: The metrics that `metrics_partitions` adds.
OF_PARTITIONS = (
    "kafka_consumergroup_group_offset",
    "kafka_consumergroup_group_lag",
    "kafka_consumergroup_group_lag_seconds",
    "kminion_kafka_consumer_group_topic_partition_lag",
    "kafka_partition_latest_offset",
    "kafka_partition_earliest_offset",
)


class GroupMetrics:
    """Sets the metrics of groups with each `count`.

    Groups have metrics if `metrics_groups` matches, in the order of their names, as long as no metric has more than
    `metrics_max_series` series. Share groups have none.
    """

    def __init__(
        self,
        metrics: Metrics,
        reader: Callable[[], StateReader],
        samples: TableFolder,
        settings: LagSettings,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        """``samples`` is the table `topic_offsets` of the store."""
        self._metrics = metrics
        self._reader = reader
        self._samples = samples
        self._settings = settings
        self._pattern = re.compile(settings.metrics_groups)
        self._clock = clock
        self._warn = warn
        self._left_out = 0

    def count(self) -> None:
        """Set the metrics from the state and the newest positions."""
        reader = self._reader()
        cluster = reader.cluster
        described = describe_groups(reader)
        groups = self._chosen(described)
        topics = topics_of(groups)
        source = SampledPositions(read_samples(self._samples, topics), self._clock.now_ms())
        time = answer_time(reader, 0)
        rows = lag_of_groups(reader, groups, time, source)
        committed = {
            (name, *place): commit and commit[0]
            for name in groups
            for place, commit in offsets_of(groups[name]).items()
        }
        self._of_times(time, source)
        self._of_groups(cluster, groups, rows)
        self._of_topics(cluster, rows, committed, _last_commits(groups))
        if self._settings.metrics_partitions:
            self._of_partitions(cluster, rows, committed)

    def _of_times(self, time: AnswerTime, source: SampledPositions) -> None:
        """The ages of the data and of the samples that lag is computed from."""
        times = {
            "offsets_data_timestamp_seconds": min(time.data_ms.values(), default=self._clock.now_ms()),
            "offsets_positions_timestamp_seconds": source.until_ms,
        }
        for name, at_ms in times.items():
            if at_ms is not None:
                self._metrics.set(name, at_ms / _MS_OF_SECOND)

    def _chosen(self, described: Mapping[str, GroupAnswer]) -> dict[str, GroupAnswer]:
        """The groups that have metrics; warns when the number of others changes."""
        matching = {
            name: group
            for name, group in described.items()
            if group.type != SHARE and not group.misplaced and self._pattern.fullmatch(name)
        }
        chosen: dict[str, GroupAnswer] = {}
        series = 0
        for name, group in matching.items():
            places = offsets_of(group)
            series += max(1, len(places if self._settings.metrics_partitions else {topic for topic, _ in places}))
            if series > self._settings.metrics_max_series:
                break
            chosen[name] = group
        left_out = len(matching) - len(chosen)
        self._metrics.set("offsets_groups_without_metrics", left_out)
        if left_out > self._left_out:
            first = next(name for name in matching if name not in chosen)
            self._warn(
                f"{left_out} groups have no metrics, {first!r} and those after it: raise metrics_max_series, or choose "
                "groups with metrics_groups"
            )
        self._left_out = left_out
        return chosen

    def _of_groups(self, cluster: str, groups: Mapping[str, GroupAnswer], rows: Iterable[LagRow]) -> None:
        self._metrics.replace(
            "kminion_kafka_consumer_group_info",
            {
                _labels(
                    group_id=name, protocol=group.assignor, protocol_type=group.protocol_type, state=group.state
                ): int(group.state == STABLE)
                for name, group in groups.items()
            },
        )
        self._metrics.replace(
            "kminion_kafka_consumer_group_members",
            {_labels(group_id=name): len(group.members) for name, group in groups.items()},
        )
        lags: dict[Labels, list[int]] = defaultdict(list)
        seconds: dict[Labels, list[float]] = defaultdict(list)
        for row in rows:
            labels = _labels(cluster_name=cluster, group=row.group)
            if row.lag is not None:
                lags[labels].append(row.lag)
            if row.lag_seconds is not None:
                seconds[labels].append(row.lag_seconds)
        self._metrics.replace("kafka_consumergroup_group_sum_lag", {each: sum(of) for each, of in lags.items()})
        self._metrics.replace("kafka_consumergroup_group_max_lag", {each: max(of) for each, of in lags.items()})
        self._metrics.replace(
            "kafka_consumergroup_group_max_lag_seconds", {each: max(of) for each, of in seconds.items()}
        )

    def _of_topics(
        self, cluster: str, rows: Iterable[LagRow], committed: Committed, commits: Mapping[tuple[str, str], float]
    ) -> None:
        lags: dict[tuple[str, str], int] = defaultdict(int)
        offsets: dict[tuple[str, str], int] = defaultdict(int)
        seconds: dict[tuple[str, str], float] = {}
        for (group, topic, _), offset in committed.items():
            offsets[group, topic] += offset or 0
        for row in rows:
            at = row.group, row.topic
            if row.lag is not None:
                lags[at] += row.lag
            if row.lag_seconds is not None:
                seconds[at] = max(row.lag_seconds, seconds.get(at, 0.0))

        def ours(series: Mapping[tuple[str, str], float]) -> dict[Labels, float]:
            return {_labels(cluster_name=cluster, group=at[0], topic=at[1]): each for at, each in series.items()}

        def kminions(series: Mapping[tuple[str, str], float]) -> dict[Labels, float]:
            return {_labels(group_id=at[0], topic_name=at[1]): each for at, each in series.items()}

        self._metrics.replace("kminion_kafka_consumer_group_topic_offset_sum", kminions(offsets))
        self._metrics.replace("kminion_kafka_consumer_group_topic_lag", kminions(lags))
        self._metrics.replace("kafka_consumergroup_group_topic_sum_lag", ours(lags))
        self._metrics.replace("offsets_group_topic_max_lag_seconds", ours(seconds))
        self._metrics.replace("offsets_group_last_commit_timestamp_seconds", ours(commits))

    def _of_partitions(self, cluster: str, rows: Iterable[LagRow], committed: Committed) -> None:
        found: dict[str, dict[Labels, float]] = {name: {} for name in OF_PARTITIONS}
        for row in rows:
            of_topic = {"cluster_name": cluster, "partition": str(row.partition), "topic": row.topic}
            labels = _labels(group=row.group, **of_topic)
            of_kminion = _labels(group_id=row.group, partition_id=str(row.partition), topic_name=row.topic)
            values = (
                (labels, committed[row[:3]]),
                (labels, row.lag),
                (labels, row.lag_seconds),
                (of_kminion, row.lag),
                (_labels(**of_topic), row.log_end_offset),
                (_labels(**of_topic), row.log_start_offset),
            )
            for name, (each, value) in zip(OF_PARTITIONS, values, strict=True):
                if value is not None:
                    found[name][each] = value
        for name, series in found.items():
            self._metrics.replace(name, series)


def _labels(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


def _last_commits(groups: Mapping[str, GroupAnswer]) -> dict[tuple[str, str], float]:
    """Time of the last commit of each group and topic, in seconds since 1970."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for name, group in groups.items():
        for each in group.offsets:
            if each.committed_ms is not None:
                found[name, each.topic] = max(found[name, each.topic], each.committed_ms / _MS_OF_SECOND)
    return found
