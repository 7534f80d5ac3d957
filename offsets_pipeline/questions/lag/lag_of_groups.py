"""Lag of groups of a store, as of its data time: the same rows for every command, metric and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.kafka.record.decode import VERSION_BYTES
from offsets_pipeline.questions.lag.commit_windows import COLUMNS, MANY_GROUPS, CommitWindows, WindowColumns
from offsets_pipeline.questions.lag.lag_rows import lag_rows
from offsets_pipeline.questions.query.share_partitions import share_groups_until
from offsets_pipeline.semantics.group_types import OFFSET_COMMIT_TYPES
from offsets_pipeline.semantics.log_row import group_prefix, has_one_prefix
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.ordered_log import OrderedLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.lag_rows import LagRow
    from offsets_pipeline.questions.lag.position_sources import SampledPositions
    from offsets_pipeline.questions.query.answer_time import AnswerTime
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.questions.query.state_reader import StateReader

#: Groups that commit have committed in this time.
_RECENT_MS = 600_000


def lag_of_groups(
    reader: StateReader,
    groups: Mapping[str, GroupAnswer],
    time: AnswerTime,
    positions: SampledPositions,
    window_commits: int | None = None,
    at_ms: int | None = None,
    rates: dict[Identity, float] | None = None,
) -> list[LagRow]:
    """Return the lag of these groups of a store. Share groups have no status.

    Args:
        reader: the store.
        groups: its groups, as of ``at_ms``.
        time: the data time of the groups.
        positions: positions of their topics.
        window_commits: evaluates statuses from so many commits of each offset; None: rows have no status.
        at_ms: the time of a question about the past.
        rates: as of `lag_rows`.
    """

    def commits(group_ids: Collection[str], until_ms: int | None) -> WindowColumns:
        cut_ms = at_ms if until_ms is None else until_ms
        log = CommitsOfGroups(reader, group_ids, cut_ms)
        return log.recent() if window_commits is None else log.last(window_commits)

    if reader.properties.topic_kind is TopicKind.SHARE_STATE:
        if (until_ms := positions.until_ms) is not None:
            since_ms = until_ms - _RECENT_MS if window_commits is None else 0
            groups = share_groups_until(reader, groups, until_ms, since_ms)
        window_commits = None
    return lag_rows(groups, positions, time.data_ms, commits, with_status=window_commits is not None, rates=rates)


class CommitsOfGroups:
    """Commits of groups in the log, up to a time in ms or up to the end of the log (None).

    A time cuts each log partition before its first record with a later timestamp, as `export-segments --as-of` does.
    """

    def __init__(self, reader: StateReader, group_ids: Collection[str], at_ms: int | None) -> None:
        self._reader = reader
        self._group_ids = group_ids
        self._at_ms = at_ms
        n = None if reader.coordinator_semantics.is_classic else reader.offsets_partitions
        self._offsets_partitions = n
        #: The log partitions of the groups (R1); None: all.
        self._homes = None if n is None else sorted({partition_for(group_id, n) for group_id in group_ids})

    def last(self, size: int) -> WindowColumns:
        """The last visible commits of each offset, at most ``size``, in the order of the log."""
        if self._at_ms is None and len(self._group_ids) <= MANY_GROUPS and all(map(has_one_prefix, self._group_ids)):
            windows = CommitWindows(size, self._group_ids, self._offsets_partitions)
            windows.add(self._rows_of_commits())
            return windows.windows()
        by_partition: dict[int, CommitWindows] = {}  # no identity is in two of them, and each needs little memory
        log, incarnation = self._reader.table(LOG.name), self._reader.current_log.number
        for partition, rows in OrderedLog(log, incarnation, self._at_ms, self._homes, columns=COLUMNS).runs():
            if partition not in by_partition:
                by_partition[partition] = CommitWindows(size, self._group_ids, self._offsets_partitions)
            by_partition[partition].add(rows)
        return WindowColumns.together([by_partition.pop(partition).windows() for partition in sorted(by_partition)])

    def recent(self) -> WindowColumns:
        """The last visible commit of each offset.

        Reads only records that were appended from ten minutes before that time on. Offsets without a commit in them are
        missing.
        """
        windows = CommitWindows(1, self._group_ids, self._offsets_partitions)
        since_ms = (self._reader.opened_ms if self._at_ms is None else self._at_ms) - _RECENT_MS
        condition = f"epoch_us(appended_at) >= {since_ms * 1000}"
        if self._at_ms is not None:
            condition += f" AND epoch_us(record_timestamp) <= {self._at_ms * 1000}"
        windows.add(self._rows(condition, since_ms))
        return windows.windows()

    def _rows_of_commits(self) -> pa.Table:
        """The commits of a few groups, and markers of transactions: the query reads little else of the log."""
        prefixes = [
            record_type.to_bytes(VERSION_BYTES, "big") + group_prefix(group_id)
            for record_type in sorted(OFFSET_COMMIT_TYPES)
            for group_id in self._group_ids
        ]
        ranges = " OR ".join(
            f"(key >= unhex('{prefix.hex()}') AND key < unhex('{_next(prefix).hex()}'))" for prefix in prefixes
        )
        return self._rows(f"(control_type IS NOT NULL OR {ranges})")

    def _rows(self, condition: str, since_ms: int = 0) -> pa.Table:
        """The rows that meet a condition, in order; ``since_ms`` as of `Relations.log`."""
        log = self._reader.relations.log(since_ms, {} if self._homes is None else {"log_partition": self._homes})
        found = self._reader.relations.select(
            f"SELECT {', '.join(COLUMNS)} FROM {log} WHERE {condition} ORDER BY log_partition, record_offset"
        )
        return found.cast(pa.schema([LOG.arrow_schema().field(name).with_nullable(nullable=True) for name in COLUMNS]))


def _next(prefix: bytes) -> bytes:
    """The least bytes above all that start with a prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
