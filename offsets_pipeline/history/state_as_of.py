"""The state at a position or time of the past: a columnar replay of the log up to there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.history.of_groups import of_groups
from offsets_pipeline.log.log_reader import as_input
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.group_rows import described

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.history.completeness import Completeness
    from offsets_pipeline.history.log_history import LogHistory
    from offsets_pipeline.semantics.effects import Effects

_PENDING = ["log_partition", "group_id", "topic", "partition", "misplaced"]
_OFFSETS = [*_PENDING, "committed_offset", "leader_epoch", "metadata"]
_ORDER = [("log_partition", "ascending"), ("group_id", "ascending")]
#: Without these times no answer imports pandas.
_GROUPS = (
    *("log_partition", "group_id", "group_type", "state", "protocol_type", "protocol"),
    *("group_epoch", "assignment_epoch", "misplaced", "members"),
)


@dataclass(frozen=True)
class PartitionAsOf:
    """End and completeness of the replay of a log partition.

    ``end`` is the first record offset that was not replayed. The answer is exact if ``end`` is at least
    ``complete_from``; at times before ``complete_since_ms`` it may not be. None: exact at every time.
    """

    log_partition: int
    end: int
    complete_from: int
    complete_since_ms: int | None

    @property
    def is_complete(self) -> bool:
        """Whether no record that decides the answer is missing."""
        return self.end >= self.complete_from


@dataclass(frozen=True)
class StateAsOf:
    """Groups, visible offsets and pending commits, as rows of the state tables, and names of topic ids.

    ``records`` are the last records of groups, and ``commit_times`` the times of the offsets that answer, as in the
    state tables; both by log partition and group id.
    """

    groups: list[dict[str, Any]]
    offsets: list[dict[str, Any]]
    pending: list[dict[str, Any]]
    topic_names: dict[str, str]
    records: pa.Table
    commit_times: pa.Table
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
        time_ms: replay each log partition up to its first record with a later timestamp (as `export-segments --as-of`).
        positions: replay these log partitions only, each up to this record offset, which is left out.
        group_ids: these groups only.

    Raises DamagedTable, UnsupportedTable.
    """
    incarnation = history.current_log
    homes = history.homes(group_ids, incarnation)
    wanted = None if homes is None else set(homes)
    if positions is not None:
        wanted = set(positions) if wanted is None else wanted & set(positions)
    log = history.read(incarnation, as_of_ms=time_ms, partitions=wanted, ends=positions or {})
    replay = Replay(incarnation.offsets_partitions, semantics=history.semantics)
    found: dict[int, Completeness] = {}
    for partition, rows in log.runs():
        if partition not in found:
            found[partition] = history.completeness(incarnation, partition)
        found[partition].add(rows)
        replay.add(as_input(rows if group_ids is None else of_groups(rows, group_ids), INPUT_SCHEMA))
    state = _state(replay.effects(), history, group_ids)
    cut = {at: end for at, end in log.ends.items() if at not in found or not found[at].is_complete_at(end)}
    found |= _read_on(history, cut)
    for partition, known in sorted(found.items()):
        end = log.ends.get(partition, known.end)
        state.partitions[partition] = PartitionAsOf(partition, end, known.complete_from, known.complete_since_ms)
    return state


def _read_on(history: LogHistory, partitions: Collection[int]) -> dict[int, Completeness]:
    """From where on log partitions are complete, by all of their records: these are cut off before that position."""
    found = {partition: history.completeness(history.current_log, partition) for partition in partitions}
    columns = ("log_partition", "record_offset", "record_timestamp", "key", "control_type")
    if partitions:
        for partition, rows in history.read(history.current_log, partitions=partitions, columns=columns).runs():
            found[partition].add(rows)
    return found


def _state(effects: Effects, history: LogHistory, group_ids: Collection[str] | None) -> StateAsOf:
    names = history.topic_names()
    for topic_id, topic in effects.topics:
        names[topic_id] = min(topic, names.get(topic_id, topic))  # R35
    # under `classic` a commit's fact without a value says that the group holds no offset; a replay from the start
    # has no older fact that it could remove
    commits = effects.group_commits.filter(effects.group_commits["value_offset"].is_valid())
    facts = pa.concat_tables([effects.group_records, commits]).sort_by(_ORDER)
    offsets = effects.offsets.filter(effects.offsets["committed_offset"].is_valid())
    groups = [
        row
        for row in described(facts, history.current_log.offsets_partitions, history.semantics)
        .select(_GROUPS)
        .to_pylist()
        if group_ids is None or row["group_id"] in group_ids
    ]
    return StateAsOf(
        groups,
        offsets.select(_OFFSETS).to_pylist(),
        effects.pending.select(_PENDING).to_pylist(),
        names,
        facts,
        offsets.filter(pc.invert(offsets["misplaced"])).sort_by(_ORDER),
    )
