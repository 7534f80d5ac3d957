"""Groups and offsets as of a time or a position of the log, in the shape of `describe`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.errors import InvalidTime
from offsets_pipeline.history.log_history import LogHistory
from offsets_pipeline.history.state_as_of import PartitionAsOf, state_as_of
from offsets_pipeline.query.describe import GroupAnswer, answering, by_group, group_answers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.history.state_as_of import StateAsOf
    from offsets_pipeline.query.describe import Group, Offset
    from offsets_pipeline.store_snapshot import StoreSnapshot


@dataclass(frozen=True)
class AsOfAnswer:
    """Groups by group id, as `describe_groups` returns them, and how far each log partition was replayed.

    ``log_incarnation`` is that of the log which was replayed. Log partitions without records are missing.
    """

    groups: dict[str, GroupAnswer]
    partitions: list[PartitionAsOf]
    log_incarnation: int

    @property
    def is_complete(self) -> bool:
        """Whether no record is missing that decides an answer: none was cleaned or compacted away."""
        return all(each.is_complete for each in self.partitions)

    @property
    def complete_since_ms(self) -> int | None:
        """Answers about this time or later ones are exact, in ms since 1970; None: about every time."""
        return max(
            (each.complete_since_ms for each in self.partitions if each.complete_since_ms is not None), default=None
        )


def offsets_as_of(
    store: str | StoreSnapshot,
    *,
    time_ms: int | None = None,
    positions: Mapping[int, int] | None = None,
    group_ids: Collection[str] | None = None,
) -> AsOfAnswer:
    """Return the groups and offsets of a store as they were at a time or at a position of the log.

    Reads the newest log incarnation, without Spark and without the state tables.

    Args:
        store: the store's folder, or a snapshot of it.
        time_ms: in ms since 1970. In each log partition the first record with a later timestamp, and all records after
            it, do not count (as in `export-segments --as-of`).
        positions: by log partition, the first record offset that does not count. Other log partitions do not answer.
        group_ids: these groups; None: all groups that are listed.

    Raises:
        InvalidTime: not exactly one of ``time_ms`` and ``positions`` is given, or a log partition does not exist.
        NoSuchStore, NotAStore, StoreMismatch, DamagedTable, UnsupportedTable: as `LogHistory`.
    """
    if (time_ms is None) == (positions is None):
        raise InvalidTime("cannot tell the state as of a time and a position: give one of both")
    history = store if isinstance(store, LogHistory) else LogHistory(store)
    offsets_partitions = history.current_log.offsets_partitions
    for partition in positions or ():
        if not 0 <= partition < offsets_partitions:
            raise InvalidTime(
                f"cannot read log partition {partition}: {history.location} has the log partitions 0 to "
                f"{offsets_partitions - 1}"
            )
    state = state_as_of(history, time_ms=time_ms, positions=positions, group_ids=group_ids)
    groups = groups_of(state, history.current_log.offsets_partitions, group_ids)
    return AsOfAnswer(groups, list(state.partitions.values()), history.current_log.number)


def pending_of(state: StateAsOf) -> dict[Group, set[tuple[str, int]]]:
    """Return the topic partitions with pending commits (R17) by log partition and group id."""
    return by_group((row["log_partition"], row) for row in state.pending)


def groups_of(
    state: StateAsOf, offsets_partitions: int, group_ids: Collection[str] | None = None
) -> dict[str, GroupAnswer]:
    """Return the groups of a state by group id: those that are listed, or of ``group_ids`` those that exist."""
    offsets: dict[Group, list[Offset]] = defaultdict(list)
    for row in state.offsets:
        if row["committed_offset"] >= 0 and not row["misplaced"]:  # a negative committed offset answers as no offset
            offsets[row["log_partition"], row["group_id"]].append(
                (row["topic"], row["partition"], row["committed_offset"], row["leader_epoch"], row["metadata"], None)
            )
    for of_group in offsets.values():
        of_group.sort(key=lambda offset: offset[:2])
    listed = answering(state.groups, is_named=group_ids is not None)
    return group_answers(listed, offsets, pending_of(state), state.topic_names, offsets_partitions)
