"""Metrics of groups: committed offsets, lag, last commits, members and states, for a bounded number of series."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import MS_OF_SECOND, Clock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples
from offsets_pipeline.questions.lag.commit_windows import MANY_GROUPS
from offsets_pipeline.questions.lag.consumer_status import LATE_SECONDS, PartitionStatus
from offsets_pipeline.questions.lag.lag_rows import (
    StoreGroups,
    group_lags,
    lag_of_groups,
    offsets_of,
    topics_of,
    total_lag,
)
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.answer_time import answer_time
from offsets_pipeline.questions.query.group_listing import groups_with_lag
from offsets_pipeline.questions.query.retention_forecast import next_expiries
from offsets_pipeline.semantics.group_description import STABLE
from offsets_pipeline.semantics.share_state import NO_START_OFFSET

if TYPE_CHECKING:
    from offsets_pipeline.common.config.sections import LagSettings
    from offsets_pipeline.questions.lag.lag_rows import GroupLag, LagRow
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.service.metrics.exposition import Values
    from offsets_pipeline.store.delta.table_folder import TableFolder

    #: Committed offset by group, topic and partition; None for a partition that is assigned without a commit.
    Committed = Mapping[tuple[str, str, int], int | None]


class GroupMetrics:
    """Computes the metrics of groups with each `count`.

    Groups have metrics if `metrics_groups` matches, in the order of their names, as long as no metric has more than
    `metrics_max_series` series. In a store of `__consumer_offsets` share groups have no offsets, and so only metrics of
    the group. In one of `__share_group_state` they have only lag, and start offsets in place of committed ones.
    """

    def __init__(
        self,
        reader: Callable[[], StateReader],
        samples: TableFolder,
        settings: LagSettings,
        retention_ms: Callable[[StateReader], int],
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        """``samples`` is the table `topic_offsets` of the store. ``retention_ms``: so long are its offsets retained."""
        self._reader = reader
        self._retention_ms = retention_ms
        self._samples = samples
        self._settings = settings
        self._pattern = re.compile(settings.metrics_groups, re.DOTALL)
        self._clock = clock
        self._warn = warn
        self._left_out = 0

    def count(self) -> Values:
        """Return the metrics from the state and the newest positions."""
        reader = self._reader()
        now_ms, cluster = self._clock.now_ms(), reader.cluster
        groups = self._chosen(groups_with_lag(reader))
        source = SampledPositions(read_samples(self._samples, topics_of(groups)), now_ms)
        of = StoreGroups(reader, groups, answer_time(reader, 0))
        rows = lag_of_groups(of, source)
        lags = group_lags(groups, rows)
        committed = {
            (name, *place): None if commit is None or commit.offset == NO_START_OFFSET else commit.offset
            for name in groups
            for place, commit in offsets_of(groups[name]).items()
        }
        found: Values = {
            "offsets_data_timestamp_seconds": min(of.time.data_ms.values(), default=now_ms) / MS_OF_SECOND,
            "offsets_positions_timestamp_seconds": source.until_ms and source.until_ms / MS_OF_SECOND,
            "offsets_groups_without_metrics": self._left_out,
            **_of_lag(cluster, lags, rows),
            **(_of_partitions(cluster, rows, committed) if self._settings.metrics_partitions else {}),
        }
        if not reader.properties.topic_kind.has_groups:
            return found
        return {
            **found,
            "offsets_group_partitions": self._bad_partitions(of, lags, source),
            "offsets_group_next_expiry_timestamp_seconds": {
                (cluster, name): each.at_ms / MS_OF_SECOND
                for name, each in next_expiries(reader, self._retention_ms(reader)).items()
                if name in groups and each.at_ms is not None
            },
            **_of_groups(groups),
            **_of_epochs(reader, groups),
            **_of_commits(cluster, groups, committed),
        }

    def _chosen(self, described: Mapping[str, GroupAnswer]) -> dict[str, GroupAnswer]:
        """The groups that have metrics; warns when the number of others changes."""
        matching = {
            name: group for name, group in described.items() if not group.misplaced and self._pattern.fullmatch(name)
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
        if left_out > self._left_out:
            first = next(name for name in matching if name not in chosen)
            self._warn(
                f"{counted(left_out, 'group')} without metrics, {first!r} and those after it: raise "
                "metrics_max_series, or choose groups with metrics_groups"
            )
        self._left_out = left_out
        return chosen

    def _bad_partitions(
        self, of: StoreGroups, lags: Collection[GroupLag], source: SampledPositions
    ) -> dict[tuple[str, ...], int]:
        """Partitions by status, of the groups that are behind for longest: a status needs commits of the log."""
        seconds = {each.group: each.max_lag_seconds for each in lags if each.lag}
        late = [name for name, each in seconds.items() if each is None or each > LATE_SECONDS]
        late.sort(key=lambda name: -(seconds[name] or 0))
        of_late = of._replace(groups={name: of.groups[name] for name in late[:MANY_GROUPS]})
        judged = lag_of_groups(of_late, source, self._settings.window_commits)
        return Counter(
            (of.reader.cluster, row.group, row.status)
            for row in judged
            if row.status not in (None, PartitionStatus.OK, PartitionStatus.UNKNOWN)
        )


def _of_epochs(reader: StateReader, groups: Mapping[str, GroupAnswer]) -> Values:
    rows = reader.current.newest(DESCRIBED, ("log_partition", "group_id", "generation", "group_epoch")).to_pylist()
    homes = {(group.log_partition, name) for name, group in groups.items()}
    return {
        "offsets_group_epoch": {
            (reader.cluster, row["group_id"]): row["generation"] if row["group_epoch"] is None else row["group_epoch"]
            for row in rows
            if (row["log_partition"], row["group_id"]) in homes
        }
    }


def _of_groups(groups: Mapping[str, GroupAnswer]) -> Values:
    return {
        "kminion_kafka_consumer_group_info": {
            (name, group.assignor, group.protocol_type, group.state): int(group.state == STABLE)
            for name, group in groups.items()
        },
        "kminion_kafka_consumer_group_members": {name: len(group.members) for name, group in groups.items()},
    }


def _of_commits(cluster: str, groups: Mapping[str, GroupAnswer], committed: Committed) -> Values:
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for (group_id, topic, _), offset in committed.items():
        if offset is not None:
            sums[group_id, topic] += offset
    last: dict[tuple[str, ...], float] = defaultdict(float)
    for name, group in groups.items():
        for each in group.offsets:
            if each.committed_ms is not None:
                at = cluster, name, each.topic
                last[at] = max(last[at], each.committed_ms / MS_OF_SECOND)
    return {
        "kminion_kafka_consumer_group_topic_offset_sum": sums,
        "offsets_group_last_commit_timestamp_seconds": last,
    }


def _of_lag(cluster: str, lags: Collection[GroupLag], rows: Collection[LagRow]) -> Values:
    groups = {(cluster, each.group): each for each in lags}
    by_topic: dict[tuple[str, ...], list[LagRow]] = defaultdict(list)
    for row in rows:
        by_topic[cluster, row.group, row.topic].append(row)
    topics = {at: total_lag(of_topic) for at, of_topic in by_topic.items()}
    return {
        "kafka_consumergroup_group_sum_lag": {at: each.lag for at, each in groups.items()},
        "kafka_consumergroup_group_max_lag": {at: each.max_lag for at, each in groups.items()},
        "kafka_consumergroup_group_max_lag_seconds": {at: each.max_lag_seconds for at, each in groups.items()},
        "kafka_consumergroup_group_topic_sum_lag": {at: each.lag for at, each in topics.items()},
        "offsets_group_topic_max_lag_seconds": {at: each.max_lag_seconds for at, each in topics.items()},
    }


def _of_partitions(cluster: str, rows: Collection[LagRow], committed: Committed) -> Values:
    by_labels = {(cluster, row.group, str(row.partition), row.topic): row for row in rows}
    # several groups have rows of a partition: the newest one counts, and one of them may lack a position
    in_time = [((cluster, str(row.partition), row.topic), row) for row in sorted(rows, key=lambda row: row.as_of)]
    ends = {at: row.log_end_offset for at, row in in_time if row.log_end_offset is not None}
    starts = {at: row.log_start_offset for at, row in in_time if row.log_start_offset is not None}
    offsets = {at: committed[row.group, row.topic, row.partition] for at, row in by_labels.items()}
    return {
        "kafka_consumergroup_group_offset": offsets,
        "kafka_consumergroup_group_lag": {at: row.lag for at, row in by_labels.items()},
        "kafka_consumergroup_group_lag_seconds": {at: row.lag_seconds for at, row in by_labels.items()},
        "kafka_partition_latest_offset": ends,
        "kafka_partition_earliest_offset": starts,
    }
