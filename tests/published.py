"""The published tables as any reader of Delta tables finds them, and as the row-wise replay specifies them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import EARLIEST_MS, LATEST_MS
from offsets_pipeline.semantics.group_description import describe_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from offsets_pipeline.semantics.group_description import Member
    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import PartitionState

    Row = dict[str, Any]

#: The published tables of a store of consumer groups, with the columns that make a row the only one. Under `classic`
#: a group may answer in two log partitions (R1), and a member of both is there twice.
KEYS = {
    "current_offsets": ("log_partition", "group_id", "topic", "partition"),
    "consumer_groups": ("log_partition", "group_id"),
    "group_members": ("group_id", "member_id", "topic", "partition"),
    "unstable_offsets": ("log_partition", "group_id", "topic", "partition", "producer_id"),
}
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_MEMBER = (
    *("member_id", "instance_id", "client_id", "client_host", "session_timeout_ms", "rebalance_timeout_ms"),
    *("member_epoch", "subscribed_topics", "subscribed_regex"),
)


def read(location: Path | str, name: str, version: int | None = None) -> list[Row]:
    """The rows of a published table in order, as `rows_of`, read by deltalake and PyArrow alone."""
    return rows_of(name, DeltaTable(f"{location}/{name}", version=version).to_pyarrow_table())


def rows_of(name: str, found: pa.Table) -> list[Row]:
    """The rows that any reader found in a published table in order, times as microseconds."""
    fields = [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in found.schema]
    rows: list[Row] = found.cast(pa.schema(fields)).to_pylist()
    if name in KEYS and name != "group_members":
        keys = [tuple(str(row[each]) for each in KEYS[name]) for row in rows]
        assert len(set(keys)) == len(keys), f"a key of {name} is there twice: {sorted(keys)}"
    return _in_order(name, [_comparable(name, row) for row in rows])


def _in_order(name: str, rows: list[Row]) -> list[Row]:
    def place(row: Row) -> tuple[str, ...]:
        return (*(str(row[each]) for each in KEYS.get(name, ())), str(sorted(row.items())))

    return sorted(rows, key=place)


def read_as_of(location: Path | str) -> dict[str, dict[int, int]]:
    """How far each published table reaches, by log partition, as `published_as_of` says."""
    ends: dict[str, dict[int, int]] = {}
    for row in read(location, "published_as_of"):
        of_table = ends.setdefault(row["table_name"], {})
        assert row["log_partition"] not in of_table
        of_table[row["log_partition"]] = row["record_offset"]
    return ends


def assert_published(
    location: Path | str, rows: Iterable[LogRow], offsets_partitions: int, semantics: CoordinatorSemantics = MODERN
) -> None:
    """Assert that the published tables have what is specified of these rows, up to where `published_as_of` says."""
    specified = Specification(rows, offsets_partitions, semantics)
    topics = {row["topic_id"]: row["topic"] for row in read(location, "topics")}
    ends = read_as_of(location)
    assert ends.keys() == KEYS.keys()
    for name, of_table in ends.items():
        assert of_table.keys() == set(range(offsets_partitions))
        assert read(location, name) == specified.rows(name, of_table, topics), f"{name} as of {of_table}"


class Specification:
    """What the published tables have of a log, by the row-wise replay of each log partition up to an end."""

    def __init__(
        self, rows: Iterable[LogRow], offsets_partitions: int, semantics: CoordinatorSemantics = MODERN
    ) -> None:
        self._offsets_partitions = offsets_partitions
        self._semantics = semantics
        self._rows: dict[int, list[LogRow]] = {at: [] for at in range(offsets_partitions)}
        for row in sorted(rows, key=lambda row: row.record_offset):
            self._rows[row.log_partition].append(row)
        self._found: dict[tuple[int, int], dict[str, list[Row]]] = {}

    def end(self, log_partition: int) -> int:
        """The end of a log partition."""
        return max((row.record_offset + 1 for row in self._rows[log_partition]), default=0)

    def rows(self, name: str, ends: Mapping[int, int], topics: Mapping[str, str] = _NO_NAMES) -> list[Row]:
        """The rows of a published table in order, with all records before these ends; ``topics`` are names of ids."""
        found = [row for at, end in ends.items() for row in self.of_partition(name, at, end)]
        if name == "group_members":
            found = [row | {"topic": topics.get(row["topic"], row["topic"])} for row in found]
        return _in_order(name, found)

    def state(self, at: int, end: int) -> PartitionState:
        """The replay of a log partition up to an end."""
        before = (row for row in self._rows[at] if row.record_offset < end)
        return partition_state.replay(before, at, self._offsets_partitions, self._semantics)

    def of_partition(self, name: str, at: int, end: int) -> list[Row]:
        """The rows of a published table of one log partition, likewise."""
        if (at, end) not in self._found:
            state = self.state(at, end)
            found = {
                "current_offsets": _offsets(state),
                "consumer_groups": _groups(state),
                "group_members": _members(state),
                "unstable_offsets": _unstable(state),
            }
            self._found[at, end] = {name: _in_order(name, list(rows)) for name, rows in found.items()}
        return self._found[at, end][name]


def _offsets(state: PartitionState) -> Iterator[Row]:
    for group_id in state.offsets:
        if state.group_with_offsets(group_id) is None:
            continue  # R14
        for where, offset in state.offsets_of(group_id).items():
            if offset.committed_offset >= 0:  # R14
                yield {
                    "group_id": group_id,
                    "topic": where.topic,
                    "partition": where.partition,
                    "committed_offset": offset.committed_offset,
                    "leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "commit_timestamp": _microseconds(offset.commit_timestamp_ms),
                    "expire_timestamp": _microseconds(offset.expire_timestamp_ms),
                    "topic_id": offset.topic_id,
                    "log_partition": state.log_partition,
                    "record_offset": offset.record_offset,
                }


def _groups(state: PartitionState) -> Iterator[Row]:
    for group_id, group in state.groups.items():
        described = describe_group(group.group_type, group.records)
        is_misplaced = state.is_misplaced(group_id)
        answers: Row = {
            "assignor": described.protocol or "",
            "generation": described.generation,
            "group_epoch": described.group_epoch,
            "assignment_epoch": described.assignment_epoch,
            "leader": described.leader,
            "state_timestamp": _microseconds(described.state_timestamp_ms),
            "members": [_member(each) for each in sorted(described.members, key=lambda each: each.member_id)],
            "member_count": len(described.members),
        }
        nothing = dict.fromkeys(answers) | {"assignor": "", "member_count": 0}  # R1
        yield {
            "group_id": group_id,
            "group_type": described.group_type,
            "state": described.state,
            "protocol_type": described.protocol_type,
            **(nothing if is_misplaced else answers),
            "log_partition": state.log_partition,
            "misplaced": is_misplaced,
        }


def _member(member: Member) -> Row:
    assignment = [
        {"topic": each.topic, "topic_id": each.topic_id, "partition": each.partition} for each in member.assignment
    ]
    return {
        **{name: getattr(member, name) for name in _MEMBER},
        "rack_id": member.rack_id,
        "assignment": assignment,
    }


def _members(state: PartitionState) -> Iterator[Row]:
    for group_id, group in state.groups.items():
        if state.is_misplaced(group_id):
            continue  # R1
        for member in describe_group(group.group_type, group.records).members:
            of_member = {"group_id": group_id, **{name: getattr(member, name) for name in _MEMBER}}
            if not member.assignment:
                yield of_member | {"topic": None, "partition": None}
            for each in member.assignment:
                yield of_member | {"topic": each.topic or each.topic_id, "partition": each.partition}


def _unstable(state: PartitionState) -> Iterator[Row]:
    for producer_id, groups in state.pending.items():
        for group_id, offsets in groups.items():
            if state.group_with_offsets(group_id) is None:
                continue  # R17
            for where, offset in offsets.items():
                yield {
                    "group_id": group_id,
                    "topic": where.topic,
                    "partition": where.partition,
                    "producer_id": producer_id,
                    "pending_offset": offset.committed_offset,
                    "log_partition": state.log_partition,
                    "record_offset": offset.record_offset,
                }


def _microseconds(timestamp_ms: int | None) -> int | None:
    """A time as a table holds it."""
    return None if timestamp_ms is None else min(max(timestamp_ms, EARLIEST_MS), LATEST_MS) * 1000


def _comparable(name: str, row: Row) -> Row:
    """A row without what the specification leaves open."""
    if name != "consumer_groups":
        return row
    members = (
        None if row["misplaced"] else [each | {"assignment": each["assignment"] or []} for each in row["members"] or ()]
    )
    without = {key: value for key, value in row.items() if key != "record_offset"}  # of a fold that described the group
    return without | {"members": None if row["misplaced"] else members}
