"""The facts of a columnar replay, applied to dictionaries without files, and compared with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.record.decode import decode_value
from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import EARLIEST_MS, LATEST_MS
from offsets_pipeline.semantics.group_description import GroupRecordRow, live_records
from offsets_pipeline.semantics.partition_state import CommittedOffset
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.state.fold_progress import PartitionProgress
from offsets_pipeline.state.replay_start import pending_rows
from tests.logs import Identity, input_table
from tests.replays import Replayed, replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsets_pipeline.semantics.log_row import LogRow


def effects_of(replayed: Replay) -> dict[str, list[Any]]:
    """All effects of a replay by kind, as rows; topics as pairs.

    Timestamps are microseconds: a damaged timestamp may lie beyond what `datetime` can hold.
    """
    return {
        kind: _raw(rows).to_pylist() if isinstance(rows, pa.Table) else sorted(rows)
        for kind, rows in vars(replayed.effects()).items()
    }


def _raw(rows: pa.Table) -> pa.Table:
    fields = [each.with_type(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in rows.schema]
    return rows.cast(pa.schema(fields))


class StateTables:
    """State tables in memory. `fold` takes a batch, with the earlier end and the pending commits."""

    def __init__(self, offsets_partitions: int, semantics: CoordinatorSemantics = MODERN) -> None:
        self.offsets_partitions = offsets_partitions
        self.semantics = semantics
        self.offsets: dict[tuple[int, Identity], dict[str, Any]] = {}
        self.group_records: dict[tuple[int, str, int, str], GroupRecordRow] = {}
        self.topics: dict[str, str] = {}
        self.quarantine: dict[int, dict[int, str]] = {}
        self.folded_to: dict[int, int] = {}
        self.unknown_records: dict[int, int] = {}
        self.pending: dict[int, list[dict[str, Any]]] = {}

    def fold(self, rows: Sequence[LogRow], chunk_rows: int = 1_000_000) -> None:
        """Fold a batch, handed to the replay ``chunk_rows`` at a time."""
        replayed = Replay(self.offsets_partitions, self.folded_to, self.semantics)
        pending = {at: PartitionProgress(at, pending=rows) for at, rows in self.pending.items()}
        carried = pending_rows(pending)
        table = pa.concat_tables([input_table(rows), carried])
        for start in range(0, table.num_rows, chunk_rows):
            replayed.add(table.slice(start, chunk_rows))
        self._write(effects_of(replayed))

    def _write(self, effects: dict[str, list[Any]]) -> None:
        for row in effects["quarantine"]:
            self.quarantine.setdefault(row["log_partition"], {}).setdefault(row["record_offset"], row["reason"])
        for topic_id, topic in effects["topics"]:
            self.topics[topic_id] = min(topic, self.topics.get(topic_id, topic))
        self._write_offsets(effects["offsets"])
        self._write_group_records(effects["group_records"], effects["group_commits"])
        for row in effects["progress"]:
            at = row["log_partition"]
            self.folded_to[at] = row["folded_to"]
            self.unknown_records[at] = self.unknown_records.get(at, 0) + row["unknown_records"]
            self.pending[at] = [each for each in effects["pending"] if each["log_partition"] == at]

    def _write_offsets(self, rows: list[dict[str, Any]]) -> None:
        keys = [(row["log_partition"], (row["group_id"], row["topic"], row["partition"])) for row in rows]
        assert len(set(keys)) == len(keys), "a merge cannot match two rows with one"
        for key, row in zip(keys, rows, strict=True):
            held = self.offsets.get(key)
            if held is None or _version(row) > _version(held):
                self.offsets[key] = row

    def _write_group_records(self, facts: list[dict[str, Any]], commits: list[dict[str, Any]]) -> None:
        """A commit is noted where its group is not known to exist, or other facts about it come in (`state.py`)."""
        alive = self.groups().keys()
        touched = {(row["log_partition"], row["group_id"]) for row in facts}
        if self.semantics.is_classic:
            commits = [self._with_offsets_held(row) for row in commits]
            touched |= {(row["log_partition"], row["group_id"]) for row in commits if row["value_offset"] is None}
        noted = [
            row for row in commits if (at := (row["log_partition"], row["group_id"])) not in alive or at in touched
        ]
        keys = [(row["log_partition"], row["group_id"], row["record_type"], row["record_key"]) for row in facts + noted]
        assert len(set(keys)) == len(keys), "a merge cannot match two rows with one"
        for key, row in zip(keys, facts + noted, strict=True):
            held = self.group_records.get(key)
            new = GroupRecordRow(key[2], key[3], row["value_offset"], row["value"], row["tombstone_offset"])
            self.group_records[key] = new if held is None else _merged(held, new)

    def _with_offsets_held(self, row: dict[str, Any]) -> dict[str, Any]:
        """Whether offsets of the group are visible, where its batch alone cannot tell."""
        is_held = any(
            (at, identity[0]) == (row["log_partition"], row["group_id"]) and held["committed_offset"] is not None
            for (at, identity), held in self.offsets.items()
        )
        is_asked = row["value_offset"] is None and is_held
        return row | {"value_offset": row["tombstone_offset"], "tombstone_offset": None} if is_asked else row

    def groups(self) -> dict[tuple[int, str], tuple[str, dict[tuple[int, str], bytes]]]:
        """The groups that exist, their kind and the last values of their records."""
        records: dict[tuple[int, str], list[GroupRecordRow]] = {}
        for (log_partition, group_id, _, _), row in self.group_records.items():
            records.setdefault((log_partition, group_id), []).append(row)
        found = {at: live_records(rows) for at, rows in records.items()}
        return {at: live for at, live in found.items() if live is not None}


def _version(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["position"], -1 if row["committed_offset"] is None else row["record_offset"]


def _merged(held: GroupRecordRow, new: GroupRecordRow) -> GroupRecordRow:
    newest = new if _at(new.value_offset) > _at(held.value_offset) else held
    tombstones = [row.tombstone_offset for row in (held, new) if row.tombstone_offset is not None]
    return GroupRecordRow(
        new.record_type, new.record_key, newest.value_offset, newest.value, max(tombstones, default=None)
    )


def _at(offset: int | None) -> int:
    return -1 if offset is None else offset


def references(
    rows: Iterable[LogRow], offsets_partitions: int, semantics: CoordinatorSemantics = MODERN
) -> dict[int, Replayed]:
    """The reference's state of each log partition."""
    by_partition: dict[int, list[LogRow]] = {}
    for row in sorted(rows, key=lambda row: row.record_offset):
        by_partition.setdefault(row.log_partition, []).append(row)
    return {at: replay(of_one, at, offsets_partitions, semantics) for at, of_one in by_partition.items()}


def named_topics(states: Iterable[Replayed]) -> dict[str, str]:
    """Names of topic ids from the records of all log partitions (R35)."""
    told = sorted(pair for state in states for pair in state.topic_names.items())
    return dict(reversed(told))  # the lesser of two


def _committed(row: Mapping[str, Any]) -> CommittedOffset:
    return CommittedOffset(
        record_offset=row["record_offset"],
        committed_offset=row["committed_offset"],
        leader_epoch=row["leader_epoch"],
        metadata=row["metadata"],
        commit_timestamp_ms=row["commit_timestamp"] // 1000,
        expire_timestamp_ms=None if row["expire_timestamp"] is None else row["expire_timestamp"] // 1000,
        topic_id=row["topic_id"],
    )


def _held(offset: CommittedOffset) -> CommittedOffset:
    """The value in a table."""
    expire = offset.expire_timestamp_ms
    return offset._replace(
        commit_timestamp_ms=_within(offset.commit_timestamp_ms),
        expire_timestamp_ms=None if expire is None else _within(expire),
    )


def _within(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, EARLIEST_MS), LATEST_MS)


def _identity(row: Mapping[str, Any]) -> Identity:
    return row["group_id"], row["topic"], row["partition"]


def assert_same(tables: StateTables, expected: Mapping[int, Replayed], earlier: Iterable[Replayed] = ()) -> None:
    """Assert that the state tables equal the reference, with topic names that ``earlier`` log incarnations held."""
    assert tables.folded_to == {at: state.end for at, state in expected.items()}
    assert tables.topics == named_topics([*expected.values(), *earlier])
    for at, state in expected.items():
        live = {
            identity: _committed(row)
            for (partition, identity), row in tables.offsets.items()
            if partition == at and row["committed_offset"] is not None
        }
        assert live == {identity: _held(offset) for identity, offset in state.offsets.items()}
        pending = {(row["producer_id"], _identity(row)): _committed(row) for row in tables.pending[at]}
        assert len(pending) == len(tables.pending[at])
        assert pending == {
            (producer_id, identity): _held(offset)
            for producer_id, offsets in state.pending.items()
            for identity, offset in offsets.items()
        }
        groups = {group_id: group for (partition, group_id), group in tables.groups().items() if partition == at}
        assert {group_id: (kind, _decoded(values)) for group_id, (kind, values) in groups.items()} == {
            group_id: (group.group_type, group.records) for group_id, group in state.groups.items()
        }
        assert tables.quarantine.get(at, {}) == state.quarantined
        assert tables.unknown_records[at] == state.unknown_records
    for (at, (group_id, _, _)), row in tables.offsets.items():
        is_away = partition_for(group_id, tables.offsets_partitions) != at
        assert row["misplaced"] == (is_away and not tables.semantics.is_classic)  # R1


def _decoded(values: Mapping[tuple[int, str], bytes]) -> dict[tuple[int, str], dict[str, Any]]:
    return {name: decode_value(name[0], value).fields for name, value in values.items()}
