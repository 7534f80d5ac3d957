"""What a cleaning of the log keeps of one log partition (R23): rows in, survivors out, without Spark or Delta.

Kept is what a replay needs to come to the same state, and whatever follows then comes to the same too (docs/adr/0010):

- of each identity the highest visible commit, where no tombstone lies behind it (R10), and every record of an open
  transaction (R11);
- of each group that exists the last values of its records, the newest value that tells its kind, and a commit above its
  last removal where nothing else proves that it exists (R14);
- of each raw key that this program cannot read, unknown or corrupt, the last record (R6);
- the last tombstone of each key until it is old enough, and longer where a record is kept that it hides;
- the marker that ended the transaction of a record that is kept;
- the last record of each producer id until it is old enough: its epoch shuts out older ones, as in a broker's memory;
- whatever was appended late (`backfill`): a stream may have to see it yet.

A broker knows raw keys alone, so it keeps less: R16 says what that costs. Here a corrupt record hides nothing, a simple
group stays, and a tombstone stays in front of what it deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record.commit_columns import parse_commits
from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.compaction import are_commits, codes_of, last_of_each
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES, GROUP_TYPE_OF_RECORD_TYPE, record_key_of
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.transactions import next_markers

if TYPE_CHECKING:
    from collections.abc import Iterable

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

#: What a cleaning looks at. ``aged``: old enough for a tombstone to go (`delete.retention.ms`).
SCHEMA = pa.schema(
    [
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("producer_id", pa.int64()),
        pa.field("control_type", pa.string()),
        pa.field("backfill", pa.bool_(), nullable=False),
        pa.field("aged", pa.bool_(), nullable=False),
    ]
)

_NONE = -1


def survivors(rows: pa.Table) -> Bools:
    """Which of these rows stay.

    ``rows`` are all records of one log partition below some record offset, with the columns of SCHEMA, in record-offset
    order. What lies at that record offset or above stays, and is not among them. Rows that an early compaction left out
    (`compact_early`) would not stay either.
    """
    return _Cleaning(rows.select(SCHEMA.names).combine_chunks()).kept()


class _Cleaning:
    """Positions among the rows stand for record offsets throughout: they are in the same order."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._count = rows.num_rows
        self._tombstone = _mask(rows["value"].is_null())
        self._aged = _mask(rows["aged"])
        self._in_transaction = _mask(rows["producer_id"].is_valid())
        self._data = _mask(rows["control_type"].is_null())
        self._read_transactions()
        self._keep = _mask(rows["backfill"]) | self._open
        self._read_commits()
        self._groups = _GroupRecords(self._groups_of_commits)
        self._read_others()

    def _read_transactions(self) -> None:
        """Find the marker of each record of a transaction (R11)."""
        controls = self._rows["control_type"]
        markers = np.flatnonzero(_mask(pc.is_in(controls, pa.array([COMMIT, ABORT]))) & self._in_transaction)
        members = np.flatnonzero(self._data & self._in_transaction)
        producers = pc.fill_null(self._rows["producer_id"], 0).to_numpy()
        here, of_markers = np.zeros(len(members), dtype=np.int64), np.zeros(len(markers), dtype=np.int64)
        found = next_markers(here, producers[members], members, of_markers, producers[markers], markers)
        self._marker = np.full(self._count, _NONE, dtype=np.int64)
        ended = found >= 0
        self._marker[members[ended]] = markers[found[ended]]
        self._open = np.zeros(self._count, dtype=np.bool_)
        self._open[members[~ended]] = True
        commits = _mask(pc.fill_null(pc.equal(controls, COMMIT), fill_value=False))
        self._aborted = np.zeros(self._count, dtype=np.bool_)
        self._aborted[members[ended]] = ~commits[markers[found[ended]]]

    def _read_commits(self) -> None:
        """Find the offset commits that decode, and give each identity and each of their groups a small integer."""
        rows = np.flatnonzero(self._data & are_commits(self._rows["key"]))
        parsed = _taken(self._rows, rows)
        commits = parse_commits(parsed["key"].combine_chunks(), parsed["value"].combine_chunks())
        commits, self._commits = commits.take(np.flatnonzero(commits.valid)), rows[commits.valid]
        self._identity = codes_of(commits.identities())
        groups = commits.group_ids().dictionary_encode()
        self._groups_of_commits: list[str] = groups.dictionary.to_pylist()
        self._group = groups.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _read_others(self) -> None:
        """Take in a group's records, and find what means nothing to a replay."""
        is_commit = np.zeros(self._count, dtype=np.bool_)
        is_commit[self._commits] = True
        rows = np.flatnonzero(self._data & ~is_commit)
        others = _taken(self._rows, rows)
        unread = [
            row
            for row, key, value in zip(
                rows.tolist(), others["key"].to_pylist(), others["value"].to_pylist(), strict=True
            )
            if not self._groups.add(row, key, value)
        ]
        self._unread = np.array(unread, dtype=np.int64)

    def kept(self) -> Bools:
        keep = self._keep
        if not self._count:
            return keep
        keep[self._last_of_unread()] = True
        of_commits = self._tombstone[self._commits]
        visible = np.flatnonzero(of_commits | ~(self._open | self._aborted)[self._commits])  # R12: a tombstone at once
        winners = self._commits[visible[last_of_each(self._identity[visible], self._commits[visible])]]
        keep[winners[~(self._tombstone & self._aged)[winners]]] = True
        keep[self._groups.live_values()] = True
        tombstones = self._groups.last_tombstones()
        keep[tombstones[~self._aged[tombstones]]] = True
        self._keep_proofs(keep)
        self._keep_what_hides(keep)
        self._keep_producers(keep)
        ended = np.flatnonzero(keep & (self._marker >= 0))
        keep[self._marker[ended]] = True
        return keep

    def _last_of_unread(self) -> Int64s:
        """Of what does not decode the last record of its raw key, as a broker keeps it; null is a key too."""
        if not len(self._unread):
            return self._unread
        keys = codes_of(self._rows["key"].cast(pa.large_binary()).fill_null(b""))
        keys = keys * 2 + _mask(self._rows["key"].is_null())
        counted = np.flatnonzero(self._data & ~self._aborted)
        last = counted[last_of_each(keys[counted], counted)]
        return last[np.isin(last, self._unread) & ~(self._tombstone & self._aged)[last]]

    def _keep_proofs(self, keep: Bools) -> None:
        """Keep the last commit of each simple group of which no commit is kept: it proves that there is one (R14)."""
        values = np.flatnonzero(~self._tombstone[self._commits])  # also of pending and aborted ones
        newest = self._highest_by_group(values)
        kept = self._highest_by_group(values[keep[self._commits[values]]])
        removed = np.array([self._groups.removed(name) for name in self._groups_of_commits], dtype=np.int64)
        simple = np.array([not self._groups.has_values(name) for name in self._groups_of_commits], dtype=np.bool_)
        keep[newest[simple & (newest > removed) & (kept <= removed)]] = True

    def _highest_by_group(self, commits: Int64s) -> Int64s:
        highest = np.full(len(self._groups_of_commits), _NONE, dtype=np.int64)
        np.maximum.at(highest, self._group[commits], self._commits[commits])
        return highest

    def _keep_what_hides(self, keep: Bools) -> None:
        """Keep the last tombstone of whatever a kept value before it belongs to, however old: it would come back."""
        of_commits = self._tombstone[self._commits]
        deletions = np.flatnonzero(of_commits)
        deletions = deletions[last_of_each(self._identity[deletions], self._commits[deletions])]
        lowest = np.full(int(self._identity.max(initial=0)) + 1, self._count, dtype=np.int64)
        values = np.flatnonzero(~of_commits & keep[self._commits])
        np.minimum.at(lowest, self._identity[values], self._commits[values])
        rows = self._commits[deletions]
        keep[rows[lowest[self._identity[deletions]] < rows]] = True
        lowest = np.full(len(self._groups_of_commits), self._count, dtype=np.int64)
        np.minimum.at(lowest, self._group[values], self._commits[values])
        first_commit = dict(zip(self._groups_of_commits, lowest.tolist(), strict=True))
        keep[self._groups.hiding(keep, first_commit)] = True

    def _keep_producers(self, keep: Bools) -> None:
        """Keep the last record of each producer: a coordinator that reads the log knows epochs from there alone."""
        rows = np.flatnonzero(self._in_transaction)
        last = rows[last_of_each(codes_of(self._rows["producer_id"].take(pa.array(rows))), rows)]
        keep[last[~self._aged[last]]] = True


class _Group(NamedTuple):
    """The rows of a group's records: values and tombstones by record type and record key."""

    values: dict[tuple[int, str], list[int]]
    tombstones: dict[tuple[int, str], int]


class _GroupRecords:
    """The records of groups, one by one: they are few."""

    def __init__(self, more_groups: Iterable[str]) -> None:
        self._groups: dict[str, _Group] = {name: _Group({}, {}) for name in more_groups}

    def add(self, row: int, key: bytes | None, value: bytes | None) -> bool:
        """Take a record; False for one that means nothing to a replay. Rows come in ascending order."""
        try:
            decoded = decode_key(key)
            if value is not None:
                decode_value(decoded.record_type, value)
        except (CorruptRecord, UnknownRecordType):
            return False
        if decoded.record_type not in GROUP_TYPE_OF_RECORD_TYPE:
            return False
        group = self._groups.setdefault(decoded.group_id, _Group({}, {}))
        at = decoded.record_type, record_key_of(decoded)
        if value is None:
            group.tombstones[at] = row
        else:
            group.values.setdefault(at, []).append(row)
        return True

    def removed(self, group_id: str) -> int:
        """The last tombstone that removed the group (R14); -1 for none."""
        tombstones = self._groups[group_id].tombstones
        return max((row for (kind, _), row in tombstones.items() if kind in GROUP_REMOVING_TYPES), default=_NONE)

    def has_values(self, group_id: str) -> bool:
        """Whether the group is there by a record of its own, and not by commits alone."""
        removed = self.removed(group_id)
        return any(rows[-1] > removed for rows in self._groups[group_id].values.values())

    def live_values(self) -> list[int]:
        """The last values of records of groups that are there, and of each kind the newest value."""
        live: list[int] = []
        for name, group in self._groups.items():
            removed = self.removed(name)
            newest: dict[str, int] = {}
            for at, rows in group.values.items():
                kind = GROUP_TYPE_OF_RECORD_TYPE[at[0]]
                if rows[-1] > max(removed, newest.get(kind, _NONE)):
                    newest[kind] = rows[-1]
                if rows[-1] > max(removed, group.tombstones.get(at, _NONE)):
                    live.append(rows[-1])
            live += newest.values()
        return live

    def last_tombstones(self) -> Int64s:
        """The tombstones behind which no value of the same key lies."""
        return np.array(
            [
                row
                for group in self._groups.values()
                for at, row in group.tombstones.items()
                if row > max(group.values.get(at, ()), default=_NONE)
            ],
            dtype=np.int64,
        )

    def hiding(self, keep: Bools, first_commit: dict[str, int]) -> list[int]:
        """The last tombstones of keys, and last removals of groups, behind something of theirs that is kept.

        ``first_commit`` is the first kept commit of a group.
        """
        hiding = []
        for name, group in self._groups.items():
            first = first_commit.get(name, len(keep))
            for at, rows in group.values.items():
                kept = next((row for row in rows if keep[row]), len(keep))
                first = min(first, kept)
                if kept < group.tombstones.get(at, _NONE):
                    hiding.append(group.tombstones[at])
            if first < self.removed(name):
                hiding.append(self.removed(name))
        return hiding


def _mask(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _taken(rows: pa.Table, positions: Int64s) -> pa.Table:
    return rows.select(["key", "value"]).take(pa.array(positions)).combine_chunks()
