"""Groups by name pattern, and a line of figures for each group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS
from offsets_pipeline.questions.query.describe import GroupAnswer, describe_groups
from offsets_pipeline.questions.query.share_partitions import share_groups
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS, IS_LISTED, answering_rows
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.reader import quoted

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.state_reader import StateReader

#: Columns of a query in the order of GroupFigures.
_OF_QUERY = ("group_id", "group_type", "state", "protocol_type", "members", "offsets", "topics")
_PATTERN = re.compile(r"[*?]")


@dataclass(frozen=True)
class GroupFigures:
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


def is_pattern(name: str) -> bool:
    """Return whether a name stands for several groups: `*` for any text, `?` for one character."""
    return _PATTERN.search(name) is not None


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that equal or match one of the patterns, in order."""
    exact = set(patterns)
    translated = (translate(each.replace("[", "[[]")) for each in patterns if is_pattern(each))
    found = re.compile("|".join(translated) or "(?!)")
    return [name for name in names if name in exact or found.fullmatch(name)]


def without_match(patterns: Sequence[str], groups: Collection[str]) -> list[str]:
    """Return the names and patterns that match none of the groups, in order, each once."""
    return [each for each in dict.fromkeys(patterns) if not matching(groups, [each])]


def describe_matching(
    reader: StateReader, patterns: Sequence[str] | None, *, targets: bool = False
) -> dict[str, GroupAnswer]:
    """Return `describe_groups` of the groups with these names or patterns; None: of all listed groups."""
    if patterns is not None and any(map(is_pattern, patterns)):
        reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
        groups = reader.current.newest(DESCRIBED, ("log_partition", "group_id", "state")).to_pylist()
        patterns = matching(answering_rows(groups, reader.current.offsets_partitions), patterns)
    return describe_groups(reader, patterns, targets=targets)


def groups_with_lag(
    reader: StateReader, patterns: Sequence[str] | None = None, topic_names: Mapping[str, str] = MappingProxyType({})
) -> dict[str, GroupAnswer]:
    """Return the groups that `lag_of_groups` takes: `describe_matching`, or the share groups of a store of these.

    ``topic_names`` by topic id, in addition to those that the store has.
    """
    if reader.properties.topic_kind is not TopicKind.SHARE_STATE:
        return describe_matching(reader, patterns)
    found = share_groups(reader, {**reader.topic_names(), **topic_names})
    return found if patterns is None else {name: found[name] for name in matching(found, patterns)}


def list_groups(reader: StateReader, topics: Sequence[str] = (), patterns: Sequence[str] = ()) -> list[GroupFigures]:
    """Return a line for each listed group, by name. A misplaced group has no members and offsets (R1).

    ``topics``: only groups with a committed offset in one of these topics. ``patterns``: only those with these names.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    tables = reader.relations
    of_topics = f"bool_or(topic IN ({', '.join(map(quoted, topics))}))" if topics else "NULL"
    figures = (
        "SELECT log_partition, group_id, count(*) AS offsets, count(DISTINCT topic) AS topics, "
        f"{of_topics} AS of_topics, epoch_us(max(commit_timestamp)) // 1000 AS last_ms "
        f"FROM {tables.newest(OFFSETS)} WHERE {OFFSETS.answered} GROUP BY log_partition, group_id"
    )
    rows = tables.select(
        "SELECT g.log_partition, g.group_id, group_type, state, protocol_type, coalesce(offsets, 0) AS offsets, "
        "coalesce(topics, 0) AS topics, of_topics, last_ms, "
        "coalesce(CASE WHEN NOT misplaced THEN len(members) END, 0) AS members "
        f"FROM {tables.newest(DESCRIBED)} g LEFT JOIN ({figures}) f "
        f"ON f.log_partition = g.log_partition AND f.group_id = g.group_id AND {ANSWERS} AND NOT {HIDES_OFFSETS} "
        f"WHERE {IS_LISTED}"
    ).to_pylist()
    found = answering_rows(rows, reader.current.offsets_partitions)
    return [
        GroupFigures(*(*(row[name] for name in _OF_QUERY), shown_time(row["last_ms"]), reader.cluster))
        for row in map(found.__getitem__, matching(found, patterns) if patterns else found)
        if not topics or row["of_topics"]
    ]
