"""What the log says of groups: their state and offsets at a past time, and their last commits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.schemas import LOG, LOG_INCARNATION
from offsets_pipeline.lag.commit_windows import (
    COLUMNS,
    MANY_GROUPS,
    Commit,
    CommitWindows,
    Identity,
    commit_key_prefixes,
    of_groups,
)
from offsets_pipeline.log.ordered_log import OrderedLog
from offsets_pipeline.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer
from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.query.state_reader import StateReader
    from offsets_pipeline.semantics.group_description import Member


class LoggedGroups:
    """Some groups, or all (None), as the log has them up to a time in ms, or up to its end (None).

    A time cuts each log partition before its first record with a later timestamp, as `export-segments --as-of` does.
    """

    def __init__(self, reader: StateReader, group_ids: Collection[str] | None, at_ms: int | None) -> None:
        self._reader = reader
        self._group_ids = group_ids
        self._at_ms = at_ms

    def last_commits(self, size: int) -> dict[Identity, list[Commit]]:
        """The last visible commits of each offset, at most ``size``, in the order of the log."""
        windows = CommitWindows(size, self._group_ids, self._offsets_partitions)
        if self._at_ms is None and self._group_ids is not None and len(self._group_ids) <= MANY_GROUPS:
            windows.add(self._rows_of_commits(self._group_ids))
        else:
            for _, rows in self._runs():
                windows.add(rows)
        return windows.windows()

    def described(self) -> dict[str, GroupAnswer]:
        """The groups that existed at the time, with members and offsets, by group id."""
        semantics, count = self._reader.coordinator_semantics, self._reader.offsets_partitions
        states: dict[int, PartitionState] = {}
        few = self._group_ids is not None and len(self._group_ids) <= MANY_GROUPS
        for log_partition, run in self._runs():
            rows = run
            if few:  # and the markers of transactions
                is_control = run["control_type"].is_valid().to_numpy()
                rows = run.filter(of_groups(run, self._group_ids) | is_control)
            if log_partition not in states:
                states[log_partition] = PartitionState(log_partition, count, semantics=semantics)
            replay_table(states[log_partition], rows)
        names = {row["topic_id"]: row["topic"] for row in self._reader.rows("SELECT * FROM topics", "topics")}
        found = {}
        for state in states.values():
            for group_id in state.groups:
                group = state.group(group_id)
                if group is not None and (self._group_ids is None or group_id in self._group_ids):
                    found[group_id] = _described(state, group_id, count, names | state.topic_names)
        return dict(sorted(found.items()))

    def _rows_of_commits(self, group_ids: Collection[str]) -> pa.Table:
        """The commits of a few groups, and markers of transactions: the query reads little else of the log."""
        ranges = " OR ".join(
            f"(key >= X'{prefix.hex()}' AND key < X'{_next(prefix).hex()}')"
            for group_id in group_ids
            for prefix in commit_key_prefixes(group_id)
        )
        query = (
            f"SELECT {', '.join(COLUMNS)} FROM log WHERE log_incarnation = {self._log_incarnation} "
            f"AND (control_type IS NOT NULL OR {ranges})"
        )
        if self._homes is not None:
            query += f" AND log_partition IN ({', '.join(map(str, self._homes))})"
        found = self._reader.select(f"{query} ORDER BY log_partition, record_offset", "log")
        return found.cast(pa.schema([LOG.arrow_schema().field(name).with_nullable(nullable=True) for name in COLUMNS]))

    @cached_property
    def _offsets_partitions(self) -> int | None:
        return None if self._reader.coordinator_semantics.is_classic else self._reader.offsets_partitions

    def _runs(self) -> Iterator[tuple[int, pa.Table]]:
        log = OrderedLog(self._reader.table("log"), self._log_incarnation, self._at_ms, self._homes)
        yield from log.runs()

    @cached_property
    def _homes(self) -> list[int] | None:
        """The log partitions of the groups (R1); None: all."""
        if self._group_ids is None or self._offsets_partitions is None:
            return None
        return sorted({partition_for(group_id, self._offsets_partitions) for group_id in self._group_ids})

    @cached_property
    def _log_incarnation(self) -> int:
        notes = self._reader.rows("SELECT log_incarnation FROM log_partitions", "log_partitions")
        return max((row["log_incarnation"] for row in notes), default=LOG_INCARNATION)


def _next(prefix: bytes) -> bytes:
    """The least bytes above all that start with a prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _described(state: PartitionState, group_id: str, offsets_partitions: int, names: dict[str, str]) -> GroupAnswer:
    group = state.groups[group_id]
    described = group.description
    hides_offsets = state.group_with_offsets(group_id) is None
    offsets = {} if hides_offsets else state.offsets_of(group_id)
    return GroupAnswer(
        type=described.group_type,
        state=described.state,
        protocol_type=described.protocol_type,
        assignor=described.protocol or "",
        group_epoch=described.group_epoch,
        log_partition=partition_for(group_id, offsets_partitions),
        misplaced=False,
        members=[_member(each, names) for each in described.members],
        offsets=[
            OffsetAnswer(
                where.topic,
                where.partition,
                each.committed_offset,
                each.leader_epoch,
                each.metadata,
                state.is_pending(group_id, where),
            )
            for where, each in sorted(offsets.items())
            if each.committed_offset >= 0
        ],
    )


def _member(member: Member, names: dict[str, str]) -> MemberAnswer:
    return MemberAnswer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=sorted(
            f"{each.topic or names.get(each.topic_id or '', each.topic_id)}-{each.partition}"
            for each in member.assignment
        ),
        subscribed_topics=member.subscribed_topics,
    )
