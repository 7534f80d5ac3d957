"""Groups and offsets as of a time or a position of the log: a columnar replay of the log up to there.

`offsets_as_of` answers in the shape of `describe`; `state_as_of` returns rows of the state tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.errors import InvalidTime
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS
from offsets_pipeline.questions.history.log_history import Completeness, LogHistory
from offsets_pipeline.questions.query.describe import GroupAnswer, GroupState, group_answers, pending_by_group
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.group_facts import described
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.log.log_reader import as_input
from offsets_pipeline.store.log.ordered_log import OrderedLog

if TYPE_CHECKING:
    from offsets_pipeline.semantics.effects import Effects
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

_PENDING = ["log_partition", "group_id", "topic", "partition", "misplaced"]


@dataclass(frozen=True)
class PartitionAsOf:
    """End and completeness of the replay of a log partition.

    ``end`` is the first record offset that was not replayed. The answer is exact if ``end`` is at least
    ``complete_from``; at times before ``complete_since_ms`` it may not be. None: exact at every time.
    ``asked`` is the position that was asked for, None for a time.
    """

    log_partition: int
    end: int
    complete_from: int
    complete_since_ms: int | None
    asked: int | None = None

    @property
    def is_cleaned(self) -> bool:
        """Whether a record that decides the answer may have been cleaned or compacted away."""
        return self.end < self.complete_from

    @property
    def ends_early(self) -> bool:
        """Whether the log partition ends before the position that was asked for."""
        return self.asked is not None and self.end < self.asked

    @property
    def is_complete(self) -> bool:
        """Whether no record that decides the answer is missing."""
        return not (self.is_cleaned or self.ends_early)


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
        """Whether no record is missing that decides an answer."""
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
        time_ms: in ms since 1970. In each log partition the first record that was written later (R36), and all
            records after it, do not count (as in `export-segments --as-of`).
        positions: by log partition, the first record offset that does not count. Other log partitions do not answer.
        group_ids: these groups; None: all groups that are listed.

    Raises:
        InvalidTime: not exactly one of ``time_ms`` and ``positions`` is given, a log partition does not exist, or that
            of a group has no position.
        NoSuchStore, NotAStore, StoreMismatch, DamagedTable, UnsupportedTable: as `LogHistory`.
    """
    if (time_ms is None) == (positions is None):
        raise InvalidTime("the state is as of a time or of positions: give one of both")
    history = store if isinstance(store, LogHistory) else LogHistory(store)
    offsets_partitions = history.current_log.offsets_partitions
    for partition in positions or ():
        if not 0 <= partition < offsets_partitions:
            raise InvalidTime(
                f"cannot read log partition {partition}: {history.location} has the log partitions 0 to "
                f"{offsets_partitions - 1}"
            )
    for group_id in group_ids or () if positions is not None else ():
        if not history.homes([group_id], history.current_log, positions):
            raise InvalidTime(
                f"cannot tell of group {group_id!r}: its log partition {partition_for(group_id, offsets_partitions)} "
                "(R1) is not among the positions; add it"
            )
    state = state_as_of(history, time_ms=time_ms, positions=positions, group_ids=group_ids)
    groups = group_answers(state, state.topic_names, are_named=group_ids is not None)
    return AsOfAnswer(groups, list(state.partitions.values()), history.current_log.number)


@dataclass(frozen=True)
class StateAsOf(GroupState):
    """A state of the past, the names of topic ids, and how far each log partition was replayed."""

    topic_names: Mapping[str, str]
    partitions: dict[int, PartitionAsOf] = field(default_factory=dict)


def state_as_of(
    history: LogHistory,
    *,
    time_ms: int | None = None,
    positions: Mapping[int, int] | None = None,
    group_ids: Collection[str] | None = None,
) -> StateAsOf:
    """The state of the newest log incarnation at a time or a position.

    Args:
        history: the log.
        time_ms: replay each log partition up to its first record that was written later (as `export-segments --as-of`).
        positions: replay these log partitions only, each up to this record offset, which is left out.
        group_ids: these groups only.

    Raises DamagedTable, UnsupportedTable.
    """
    incarnation = history.current_log
    wanted = history.homes(group_ids, incarnation, positions)
    log = OrderedLog(history.log, incarnation.number, time_ms, wanted, ends=positions or {})
    replay = Replay(incarnation.offsets_partitions, semantics=history.semantics)
    found: dict[int, Completeness] = {}
    for partition, rows in log.runs():
        if partition not in found:
            found[partition] = history.completeness(incarnation, partition)
        found[partition].add(rows)
        replay.add(as_input(rows if group_ids is None else of_groups(rows, group_ids), INPUT_SCHEMA))
    state = _state(replay.effects(), history)
    cut = {at: end for at, end in log.ends.items() if at not in found or not found[at].is_complete_at(end)}
    found |= _read_on(history, cut)
    for partition, known in sorted(found.items()):
        asked = None if positions is None else positions.get(partition)
        end = log.ends.get(partition, known.end) if asked is None else min(asked, known.end)
        state.partitions[partition] = PartitionAsOf(partition, end, known.complete_from, known.complete_since_ms, asked)
    return state


def _read_on(history: LogHistory, partitions: Collection[int]) -> dict[int, Completeness]:
    """From where on log partitions are complete, by all of their records: these are cut off before that position."""
    found = {partition: history.completeness(history.current_log, partition) for partition in partitions}
    columns = ("log_partition", "record_offset", "record_timestamp", "key", "control_type")
    if partitions:
        log = OrderedLog(history.log, history.current_log.number, None, partitions, columns=columns)
        for partition, rows in log.runs():
            found[partition].add(rows)
    return found


def _state(effects: Effects, history: LogHistory) -> StateAsOf:
    names = history.topic_names()
    for topic_id, topic in effects.topics:
        names[topic_id] = min(topic, names.get(topic_id, topic))  # R35
    # under `classic` a commit's fact without a value says that the group holds no offset; a replay from the start
    # has no older fact that it could remove
    commits = effects.group_commits.filter(effects.group_commits["value_offset"].is_valid())
    facts = pa.concat_tables([effects.group_records, commits]).sort_by(
        [("log_partition", "ascending"), ("group_id", "ascending")]
    )
    of_log = history.current_log.offsets_partitions, history.semantics
    rows = {RECORDS.name: facts, DESCRIBED.name: described(facts, *of_log), OFFSETS.name: effects.offsets}
    pending = pending_by_group((row["log_partition"], row) for row in effects.pending.select(_PENDING).to_pylist())
    return StateAsOf(lambda table, columns: rows[table.name].select(columns), pending, *of_log, names)
