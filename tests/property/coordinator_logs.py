"""Random logs as a coordinator writes them, and what a legal cleaning leaves of them (R16, R23).

A coordinator removes what it made: members before their group, every record of a group that goes or changes its kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from offsets_pipeline.record.decode import decode_key
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from tests.logs import Identity, LogPartition

if TYPE_CHECKING:
    from offsets_pipeline.semantics.log_row import LogRow

GROUPS = ["g", "h"]
PRODUCERS = [7, 8]
CLASSIC_TYPE, GROUP_TYPE, MEMBER_TYPES, TARGET_TYPE = 2, 3, (5, 7, 8), 6


class Coordinator:
    """Writes the records of a few groups into one log partition, each step as brokers of 4.x do."""

    def __init__(self) -> None:
        self.log = LogPartition()
        self._members: dict[str, set[str]] = {}  # of consumer groups
        self._classic: set[str] = set()
        self._offset = 0

    def commit(self, identity: Identity, producer_id: int | None, key_version: int) -> None:
        self._offset += 1
        self.log.commit(identity, self._offset, producer_id, key_version=key_version)

    def delete(self, identity: Identity, key_version: int) -> None:
        self.log.delete(identity, key_version=key_version)

    def end(self, producer_id: int, how: str) -> None:
        self.log.marker(producer_id, how)

    def join_classic(self, group_id: str) -> None:
        if group_id in self._members:
            self._remove_consumer(group_id)
        self._offset += 1
        self.log.group(CLASSIC_TYPE, group_id, protocol_type="consumer", generation=self._offset)
        self._classic.add(group_id)

    def join_consumer(self, group_id: str, member_id: str) -> None:
        if group_id in self._classic:
            self._remove_classic(group_id)
        self._offset += 1
        self._members.setdefault(group_id, set()).add(member_id)
        self.log.group(5, group_id, member_id, rebalance_timeout_ms=self._offset)
        self.log.group(GROUP_TYPE, group_id, epoch=self._offset)
        self.log.group(7, group_id, member_id)
        self.log.group(TARGET_TYPE, group_id, assignment_epoch=self._offset)
        self.log.group(8, group_id, member_id, member_epoch=self._offset)

    def leave_consumer(self, group_id: str, member_id: str) -> None:
        if member_id in self._members.get(group_id, ()):
            self._members[group_id].remove(member_id)
            self._remove_member(group_id, member_id)
            self._offset += 1
            self.log.group(GROUP_TYPE, group_id, epoch=self._offset)

    def remove(self, group_id: str) -> None:
        """Of a simple group it writes the tombstone too, although it never wrote a value for it."""
        if group_id in self._members:
            self._remove_consumer(group_id)
        else:
            self._remove_classic(group_id)

    def _remove_classic(self, group_id: str) -> None:
        self._classic.discard(group_id)
        self.log.group_tombstone(CLASSIC_TYPE, group_id)

    def _remove_member(self, group_id: str, member_id: str) -> None:
        for record_type in reversed(MEMBER_TYPES):
            self.log.group_tombstone(record_type, group_id, member_id)

    def _remove_consumer(self, group_id: str) -> None:
        for member_id in sorted(self._members.pop(group_id)):
            self._remove_member(group_id, member_id)
        for record_type in (TARGET_TYPE, GROUP_TYPE):
            self.log.group_tombstone(record_type, group_id)


@st.composite
def coordinator_logs(draw: st.DrawFn, max_steps: int = 30) -> list[LogRow]:
    coordinator = Coordinator()
    steps = ["commit", "commit", "commit", "delete", "end", "end", "classic", "join", "leave", "remove"]
    for step in draw(st.lists(st.sampled_from(steps), min_size=1, max_size=max_steps)):
        group_id = draw(st.sampled_from(GROUPS))
        identity = (group_id, "t", draw(st.integers(0, 1)))
        if step == "commit":
            version = draw(st.sampled_from([1, 1, 0]))
            coordinator.commit(identity, draw(st.sampled_from([None, *PRODUCERS])), version)
        elif step == "delete":
            coordinator.delete(identity, draw(st.sampled_from([1, 1, 0])))
        elif step == "end":
            coordinator.end(draw(st.sampled_from(PRODUCERS)), draw(st.sampled_from([COMMIT, ABORT])))
        elif step == "classic":
            coordinator.join_classic(group_id)
        elif step == "join":
            coordinator.join_consumer(group_id, draw(st.sampled_from(["m", "n"])))
        elif step == "leave":
            coordinator.leave_consumer(group_id, draw(st.sampled_from(["m", "n"])))
        else:
            coordinator.remove(group_id)
    return coordinator.log.rows


def endings(rows: list[LogRow]) -> dict[int, str | None]:
    """Of each transactional record its transaction's marker: COMMIT, ABORT, or None while it is open (R11)."""
    next_marker: dict[int, str] = {}
    ended: dict[int, str | None] = {}
    for row in reversed(rows):
        if row.producer_id is None:
            continue
        if row.control_type is not None:
            next_marker[row.producer_id] = row.control_type
        else:
            ended[row.record_offset] = next_marker.get(row.producer_id)
    return ended


def cleaned(rows: list[LogRow], up_to: int) -> list[LogRow]:
    """R23: of the rows below ``up_to`` the last of each raw key, the open transactions, and all markers."""
    ended = endings(rows)
    last: dict[bytes, int] = {}
    for row in rows:
        if row.control_type is None and row.key is not None and ended.get(row.record_offset, COMMIT) == COMMIT:
            last[row.key] = row.record_offset
    return [
        row
        for row in rows
        if row.record_offset >= up_to
        or row.control_type is not None
        or (row.key is not None and last.get(row.key) == row.record_offset)
        or ended.get(row.record_offset, COMMIT) is None
    ]


def last_removals(rows: list[LogRow]) -> dict[str, int]:
    """The record offset of the last tombstone that removed each group."""
    removed: dict[str, int] = {}
    for row in rows:
        if row.control_type is None and row.value is None:
            key = decode_key(row.key)
            if key.record_type in GROUP_REMOVING_TYPES:
                removed[key.group_id] = row.record_offset
    return removed
