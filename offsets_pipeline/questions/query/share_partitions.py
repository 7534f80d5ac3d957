"""Where share groups stand (R39): their share partitions, with names of topics and lag where these are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from offsets_pipeline.fold.state.merge_on_read import SHARES
from offsets_pipeline.semantics.share_state import NO_START_OFFSET
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.questions.query.state_reader import StateReader


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
    columns = [name for name in SHARES.columns if not name.endswith("_timestamp")]  # Arrow imports pandas for times
    found = []
    for row in reader.current.newest(SHARES, columns).to_pylist():
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
                topic_id=row["topic_id"],
                partition=row["partition"],
                start_offset=start,
                log_end_offset=end,
                lag=lag,
                delivery_complete_count=complete,
                state_epoch=row["state_epoch"],
                leader_epoch=row["leader_epoch"],
                state_batches=row["state_batches"],
                log_partition=row["log_partition"],
            )
        )
    return sorted(found, key=lambda each: (each.group, each.topic or each.topic_id, each.partition))
