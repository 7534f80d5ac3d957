"""Groups by name pattern, offsets with the members that consume them, and a line of figures for each group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import shown_time
from offsets_pipeline.delta.reader import quoted
from offsets_pipeline.semantics.answering import IS_LISTED, answering_rows
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from offsets_pipeline.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer
    from offsets_pipeline.query.state_reader import StateReader

_NOTHING = (0, 0, None)  # offsets, topics, last commit
_PATTERN = re.compile(r"[*?]")


@dataclass(frozen=True)
class GroupListing:
    """A group, its number of members and committed offsets, and the time of its last commit in ISO 8601.

    ``lag`` is the sum over its committed offsets, as of the time ``lag_as_of``; None where no lag of them is known.
    """

    group: str
    type: str
    state: str
    protocol_type: str
    members: int
    offsets: int
    topics: int
    last_commit: str | None
    cluster: str
    lag: int | None = None
    lag_as_of: str | None = None


class ConsumedPartition(NamedTuple):
    """A partition that a group has an offset of, or that a member is assigned; None where there is no such."""

    topic: str
    partition: int
    offset: OffsetAnswer | None
    member: MemberAnswer | None


def is_pattern(name: str) -> bool:
    """Return whether a name stands for several groups: `*` for any text, `?` for one character."""
    return _PATTERN.search(name) is not None


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that equal or match one of the patterns, in order."""
    exact = set(patterns)
    found = re.compile(
        "|".join(
            "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
            for pattern in patterns
            if is_pattern(pattern)
        )
        or "(?!)",
        re.DOTALL,
    )
    return [name for name in names if name in exact or found.fullmatch(name)]


def group_names(reader: StateReader) -> list[str]:
    """Return the ids of all listed groups, in order."""
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    query = f"SELECT DISTINCT group_id FROM ({reader.newest(DESCRIBED)}) g WHERE {IS_LISTED}"
    return sorted(reader.select(query, DESCRIBED.name)["group_id"].to_pylist())


def consumed_partitions(group: GroupAnswer) -> list[ConsumedPartition]:
    """Return the partitions with a committed offset or a member of the group, by topic and partition."""
    members = {place: member for member in group.members for place in member.assignment}
    offsets = {f"{each.topic}-{each.partition}": each for each in group.offsets}
    found = []
    for place in offsets.keys() | members.keys():
        topic, _, partition = place.rpartition("-")
        found.append(ConsumedPartition(topic, int(partition), offsets.get(place), members.get(place)))
    return sorted(found, key=lambda each: each[:2])


def list_groups(reader: StateReader) -> list[GroupListing]:
    """Return a line for each listed group, by name. A misplaced group has no members and offsets (R1)."""
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    groups = reader.rows(
        "SELECT log_partition, group_id, group_type, state, protocol_type, misplaced, "
        "cardinality(members) AS members, group_type = 'Share' AS hides_offsets "
        f"FROM ({reader.newest(DESCRIBED)}) g WHERE {IS_LISTED} ORDER BY group_id, log_partition",
        DESCRIBED.name,
    )
    figures = _figures(reader)
    found = []
    for row in answering_rows(groups, reader.current.offsets_partitions).values():
        at = row["log_partition"], row["group_id"]
        answers = not row["misplaced"]
        count, topics, last_us = figures.get(at, _NOTHING) if answers and not row["hides_offsets"] else _NOTHING
        found.append(
            GroupListing(
                row["group_id"],
                row["group_type"],
                row["state"],
                row["protocol_type"],
                (row["members"] or 0) if answers else 0,
                count,
                topics,
                None if last_us is None else shown_time(last_us // 1000),
                reader.cluster,
            )
        )
    return found


def _figures(reader: StateReader) -> dict[tuple[int, str], list[int]]:
    """Number of offsets, number of topics, and time of the last commit in microseconds, by log partition and group."""
    rows = reader.select(
        "SELECT log_partition, group_id, count(*) AS offsets, count(DISTINCT topic) AS topics, "
        "max(arrow_cast(commit_timestamp, 'Int64')) AS last_us "
        f"FROM ({reader.newest(OFFSETS)}) o WHERE committed_offset >= 0 AND NOT misplaced "
        "GROUP BY log_partition, group_id",
        OFFSETS.name,
    )
    columns = (rows[name].to_pylist() for name in ("log_partition", "group_id", "offsets", "topics", "last_us"))
    return {(at, group_id): figures for at, group_id, *figures in zip(*columns, strict=True)}


def groups_with_topics(reader: StateReader, topics: Sequence[str]) -> set[str]:
    """Return the ids of groups that have an offset of one of the topics."""
    query = (
        f"SELECT DISTINCT group_id FROM ({reader.newest(OFFSETS)}) o "
        f"WHERE committed_offset >= 0 AND NOT misplaced AND topic IN ({', '.join(map(quoted, topics))})"
    )
    return set(reader.select(query, OFFSETS.name)["group_id"].to_pylist())
