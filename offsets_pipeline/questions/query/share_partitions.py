"""Where share groups stand (R39): their share partitions, with names of topics and lag where these are known.

`share_groups` returns them as groups with start offsets in place of committed offsets, for the functions of lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from offsets_pipeline.fold.state.merge_on_read import SHARES
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer, StartOffset
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.share_state import NO_START_OFFSET
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.questions.query.state_reader import StateReader

#: Fields of SharePartitionInfo that are columns of the state.
_AS_STORED = (
    *("topic_id", "partition", "delivery_complete_count", "state_epoch", "leader_epoch", "state_batches"),
    "log_partition",
)


class SharePartitionInfo(NamedTuple):
    """A share partition. ``topic``, ``log_end_offset`` and ``lag`` are None where they are not known.

    ``lag`` counts the records whose delivery is not complete, as the broker does: log end minus start offset minus
    ``delivery_complete_count``. It is None without a start offset or a count.
    """

    group: str
    topic: str | None
    topic_id: str
    partition: int
    start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    delivery_complete_count: int | None
    state_epoch: int
    leader_epoch: int
    state_batches: list[dict[str, Any]]
    log_partition: int


def share_partitions(
    reader: StateReader,
    topic_names: Mapping[str, str],
    log_ends: Mapping[tuple[str, int], int],
) -> list[SharePartitionInfo]:
    """Return the share partitions of all groups, by group, topic and partition.

    Args:
        reader: reads a store of `__share_group_state`.
        topic_names: names of topic ids.
        log_ends: log ends of partitions.

    Raises StoreMismatch for a store of another kind of topic.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.SHARE_STATE)
    found = []
    for row in reader.current.newest(SHARES, ("group_id", "start_offset", *_AS_STORED)).to_pylist():
        if row["state_epoch"] is None:
            continue  # deleted
        topic = topic_names.get(row["topic_id"])
        end = None if topic is None else log_ends.get((topic, row["partition"]))
        start = None if row["start_offset"] == NO_START_OFFSET else row["start_offset"]
        complete = row["delivery_complete_count"]
        lag = None if end is None or start is None or complete is None else max(end - start - complete, 0)
        found.append(
            SharePartitionInfo(
                group=row["group_id"],
                topic=topic,
                start_offset=start,
                log_end_offset=end,
                lag=lag,
                **{name: row[name] for name in _AS_STORED},
            )
        )
    return sorted(found, key=lambda each: (each.group, each.topic or each.topic_id, each.partition))


_OF_START = (
    *("log_partition", "group_id", "topic_id", "partition", "state_epoch", "start_offset", "delivery_complete_count"),
    "record_timestamp",
)


def share_groups(reader: StateReader, topic_names: Mapping[str, str]) -> dict[str, GroupAnswer]:
    """Return all share groups by name, with the start offsets of their share partitions; states and members are empty.

    A topic without a name has its id in place of it. Raises as `share_partitions`.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.SHARE_STATE)
    found: dict[str, GroupAnswer] = {}
    for group_id, start in _starts(reader.current.newest(SHARES, _OF_START)):
        group = found.setdefault(group_id, GroupAnswer(SHARE, "", "", "", None, start.log_partition, misplaced=False))
        group.offsets.append(replace(start, topic=topic_names.get(start.topic_id, start.topic_id)))
    return found


def share_groups_until(
    reader: StateReader, groups: Mapping[str, GroupAnswer], until_ms: int, since_ms: int
) -> Mapping[str, GroupAnswer]:
    """Return share groups with the start offsets of a time in ms where they changed since.

    Reads the last records of share partitions up to then, of those that were appended from ``since_ms`` on. A broker
    writes start offset and count to each update, so the records before need not be read.
    """
    if all((each.committed_ms or 0) <= until_ms for group in groups.values() for each in group.offsets):
        return groups
    # they import pandas, which most questions do not need
    from offsets_pipeline.semantics.share_replay import replay_shares  # noqa: PLC0415
    from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA  # noqa: PLC0415
    from offsets_pipeline.store.log.log_reader import as_input  # noqa: PLC0415
    from offsets_pipeline.store.log.log_scan import WRITTEN_US  # noqa: PLC0415

    last = reader.relations.select(
        f"FROM {reader.relations.log(since_ms)} WHERE control_type IS NULL "
        f"AND {WRITTEN_US} <= {until_ms * 1000} AND epoch_us(appended_at) >= {since_ms * 1000} "
        "QUALIFY row_number() OVER (PARTITION BY log_partition, key ORDER BY record_offset DESC) = 1"
    )
    facts = replay_shares([as_input(last, CONNECT_INPUT_SCHEMA)], {}).share_partitions
    then = {(group_id, start.topic_id, start.partition): start for group_id, start in _starts(facts)}

    def of_then(group_id: str, start: OffsetAnswer) -> OffsetAnswer:
        if not isinstance(start, StartOffset) or (start.committed_ms or 0) <= until_ms:
            return start
        found = then.get((group_id, start.topic_id, start.partition))
        unknown = replace(start, offset=NO_START_OFFSET, committed_ms=None)
        return unknown if found is None else replace(found, topic=start.topic)

    return {
        name: replace(group, offsets=[of_then(name, each) for each in group.offsets]) for name, group in groups.items()
    }


def _starts(facts: pa.Table) -> Iterator[tuple[str, StartOffset]]:
    """Group and start offset of each share partition that was not deleted; its topic is the topic's id."""
    order = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    for row in in_milliseconds(facts.select(_OF_START).sort_by(order)).to_pylist():
        if row["state_epoch"] is not None:
            yield (
                row["group_id"],
                StartOffset(
                    *(row["topic_id"], row["partition"], row["start_offset"], None, ""),
                    committed_ms=row["record_timestamp"],
                    topic_id=row["topic_id"],
                    delivery_complete_count=row["delivery_complete_count"],
                    log_partition=row["log_partition"],
                ),
            )
