"""The records of one log partition that a cleaning keeps (R23).

A replay of the kept records gives the same state, whatever records follow (docs/adr/0010). Kept are:

- of each identity the highest visible commit, unless a tombstone follows it (R10, R10c), and every record of an open
  transaction (R11);
- of each group that exists the last values of its records, the newest value of each group type, and, under `modern`, a
  commit above its last removal where nothing else proves that it exists (R14);
- of each raw key that this program cannot read, unknown or corrupt, the last record (R6);
- the last tombstone of each key until it is old enough, and as long as a record that it hides is kept;
- the marker that ended the transaction of a record that is kept;
- the last record of each producer id until it is old enough: its epoch fences older ones, as in a broker's memory.

A broker compares raw keys alone and keeps less (R16 lists the consequences). Here a corrupt record hides nothing, a
simple group stays, and a tombstone stays as long as a record that it deleted.

`topic_survivors` does the same for topics of Kafka Connect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics.compaction import are_commits, highest_of_each, last_of_each
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.group_description import Existence, GroupRecordRow, existence, is_live
from offsets_pipeline.semantics.group_types import GROUP_TYPE_OF_RECORD_TYPE, decode_known_key, record_key_of
from offsets_pipeline.semantics.log_row import as_bools, codes_of
from offsets_pipeline.semantics.share_replay import superseded_by
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import ParsedRows
from offsets_pipeline.semantics.transactions import ABORTED, NO_MARKER, OPEN, TOMBSTONE_RANK, classic_offsets, endings

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s

#: The columns that a cleaning reads. ``aged``: older than `delete.retention.ms`, so that a tombstone may go.
SCHEMA = pa.schema(
    [
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("producer_id", pa.int64()),
        pa.field("control_type", pa.string()),
        pa.field("aged", pa.bool_(), nullable=False),
    ]
)

_NONE = -1


def survivors(rows: pa.Table, semantics: CoordinatorSemantics = MODERN) -> Bools:
    """Whether each row stays, for replays by ``semantics``.

    ``rows`` are all records of one log partition below some record offset, in record-offset order, with the columns of
    SCHEMA. Rows that `compact_early` removed may be missing: they would not stay.
    """
    return _OffsetsCleaning(rows.select(SCHEMA.names).combine_chunks(), semantics).kept()


def topic_survivors(rows: pa.Table, kind: TopicKind) -> Bools:
    """Whether each row of a topic without groups stays (R30); ``rows`` as of `survivors`, without early compaction.

    Kept are:

    - the last visible record of each raw key, also an old tombstone: it may hide another raw key of its identity, even
      in another log partition;
    - of each raw key whose record does not decode or has an unknown type, the last record (R6);
    - every record of an open transaction, the markers of records that are kept, and the last record of each producer.

    Of a share coordinator's topic the records stay that `superseded_by` leaves.
    """
    if kind is TopicKind.SHARE_STATE:
        return superseded_by(rows) < 0
    return _TopicCleaning(rows.select(SCHEMA.names).combine_chunks(), kind).kept()


class _Cleaning:
    """The records of one log partition that a cleaning looks at: what topics of all kinds have in common.

    Uses positions of rows in place of record offsets: they have the same order.
    """

    _keep: Bools

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._count = rows.num_rows
        self._tombstone = as_bools(rows["value"].is_null())
        self._aged = as_bools(rows["aged"])
        self._in_transaction = as_bools(rows["producer_id"].is_valid())
        self._data = as_bools(rows["control_type"].is_null())
        at = np.arange(self._count)
        numbered = rows.select(["producer_id", "control_type"]).append_column("record_offset", pa.array(at))
        self._ends = endings(numbered.append_column("log_partition", pa.array(np.zeros_like(at))))
        self._marker = np.where(self._ends.marker_offset == NO_MARKER, _NONE, self._ends.marker_offset)
        self._open = self._data & self._in_transaction & (self._ends.outcome == OPEN)
        self._aborted: Bools = self._ends.outcome == ABORTED
        self._keep = self._open.copy()

    def _last_of_unread(self, unread: Int64s) -> Int64s:
        """The last record of each raw key that does not decode, as a broker keeps it; null is a key, too (R6)."""
        if not len(unread):
            return unread
        keys = codes_of(self._rows["key"].cast(pa.large_binary()).fill_null(b""))
        keys = keys * 2 + as_bools(self._rows["key"].is_null())
        counted = np.flatnonzero(self._data & ~self._aborted)
        last = counted[last_of_each(keys[counted], counted)]
        return last[np.isin(last, unread) & ~(self._tombstone & self._aged)[last]]

    def _keep_transactions(self, keep: Bools) -> None:
        """Keep the last record of each producer, and the markers of the records that are kept."""
        rows = np.flatnonzero(self._in_transaction)
        last = rows[last_of_each(codes_of(self._rows["producer_id"].take(pa.array(rows))), rows)]
        keep[last[~self._aged[last]]] = True  # a coordinator learns producer epochs from the log alone
        ended = np.flatnonzero(keep & (self._marker >= 0))
        keep[self._marker[ended]] = True


class _OffsetsCleaning(_Cleaning):
    def __init__(self, rows: pa.Table, semantics: CoordinatorSemantics) -> None:
        super().__init__(rows)
        self._semantics = semantics
        self._read_commits()
        self._groups = _GroupRecords(self._groups_of_commits, semantics)
        self._read_others()

    def _read_commits(self) -> None:
        """Find the offset commits that decode, and number their identities and groups."""
        rows = np.flatnonzero(self._data & are_commits(self._rows["key"]))
        parsed = _taken(self._rows, rows)
        commits = CommitColumns(parsed["key"].combine_chunks(), parsed["value"].combine_chunks())
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
        keep[self._last_of_unread(self._unread)] = True
        winners = self._classic_winners() if self._semantics.is_classic else self._winners()
        keep[winners[~(self._tombstone & self._aged)[winners]]] = True
        keep[self._groups.live_values()] = True
        tombstones = self._groups.last_tombstones()
        keep[tombstones[~self._aged[tombstones]]] = True
        if not self._semantics.is_classic:
            self._keep_proofs(keep)
        self._keep_what_hides(keep)
        self._keep_transactions(keep)
        return keep

    def _winners(self) -> Int64s:
        """The visible record with the highest record offset of each identity (R10)."""
        tombstone = self._tombstone[self._commits]  # R12: a tombstone applies at once
        visible = np.flatnonzero(tombstone | ~(self._open | self._aborted)[self._commits])
        return np.asarray(self._commits[visible[last_of_each(self._identity[visible], self._commits[visible])]])

    def _classic_winners(self) -> Int64s:
        """The visible record of each identity, or its last tombstone (R10c)."""
        rows, tombstone = self._commits, self._tombstone[self._commits]
        producer = codes_of(self._rows["producer_id"].take(pa.array(rows)).fill_null(-1))
        found = classic_offsets(
            self._identity, rows, tombstone, self._in_transaction[rows], producer, self._ends.taken(rows)
        )
        visible = np.flatnonzero(found.visible)
        rank = np.where(tombstone, TOMBSTONE_RANK, rows)
        last = highest_of_each(self._identity[visible], found.position[visible], rank[visible])
        return np.asarray(rows[visible[last]])

    def _keep_proofs(self, keep: Bools) -> None:
        """Keep the last commit of each simple group without another kept commit: it proves the group (R14)."""
        values = np.flatnonzero(~self._tombstone[self._commits])  # also of pending and aborted ones
        newest = self._highest_by_group(values)
        kept = self._highest_by_group(values[keep[self._commits[values]]])
        groups = [self._groups.existence(name) for name in self._groups_of_commits]
        removed = np.array([group.removed for group in groups], dtype=np.int64)
        simple = np.array([group.group_type is None for group in groups], dtype=np.bool_)
        keep[newest[simple & (newest > removed) & (kept <= removed)]] = True

    def _highest_by_group(self, commits: Int64s) -> Int64s:
        highest = np.full(len(self._groups_of_commits), _NONE, dtype=np.int64)
        np.maximum.at(highest, self._group[commits], self._commits[commits])
        return highest

    def _keep_what_hides(self, keep: Bools) -> None:
        """Keep the last tombstone after a kept value, however old it is: without it the value would come back."""
        of_commits = self._tombstone[self._commits]
        is_classic = self._semantics.is_classic
        of_transactions = of_commits & self._in_transaction[self._commits] & is_classic  # these hide nothing else
        deletions = np.flatnonzero(of_commits & ~of_transactions)
        deletions = deletions[last_of_each(self._identity[deletions], self._commits[deletions])]
        deletions = np.concatenate([deletions, np.flatnonzero(of_transactions)])
        lowest = np.full(int(self._identity.max(initial=0)) + 1, self._count, dtype=np.int64)
        values = np.flatnonzero(~of_commits & keep[self._commits])
        np.minimum.at(lowest, self._identity[values], self._commits[values])
        rows = self._commits[deletions]
        keep[rows[lowest[self._identity[deletions]] < rows]] = True
        lowest = np.full(len(self._groups_of_commits), self._count, dtype=np.int64)
        np.minimum.at(lowest, self._group[values], self._commits[values])
        # R14: under `classic` a tombstone of a group hides none of its offsets
        first_commit = {} if is_classic else dict(zip(self._groups_of_commits, lowest.tolist(), strict=True))
        keep[self._groups.hiding(keep, first_commit)] = True


class _TopicCleaning(_Cleaning):
    def __init__(self, rows: pa.Table, kind: TopicKind) -> None:
        super().__init__(rows)
        self._parsed = ParsedRows(rows, kind)

    def kept(self) -> Bools:
        keep = self._keep
        known = self._data & self._parsed.known
        visible = np.flatnonzero(known & ~self._open & ~self._aborted)
        keep[visible[last_of_each(self._parsed.key_code[visible], visible)]] = True  # R10
        keep[self._last_of_unread(np.flatnonzero(self._data & ~known))] = True
        self._keep_transactions(keep)
        return keep


class _Group(NamedTuple):
    """The rows of a group's records: values and tombstones by record type and record key."""

    values: dict[tuple[int, str], list[int]]
    tombstones: dict[tuple[int, str], int]

    def records(self) -> list[GroupRecordRow]:
        """The facts about its records, with positions for record offsets."""
        return [
            GroupRecordRow(*at, max(self.values.get(at, ()), default=None), None, self.tombstones.get(at))
            for at in self.values.keys() | self.tombstones.keys()
        ]


class _GroupRecords:
    """The records of groups, one by one: they are few."""

    def __init__(self, more_groups: Iterable[str], semantics: CoordinatorSemantics) -> None:
        self._semantics = semantics
        self._groups: dict[str, _Group] = {name: _Group({}, {}) for name in more_groups}

    def add(self, row: int, key: bytes | None, value: bytes | None) -> bool:
        """Take a record, in ascending order; False if the replay ignores it."""
        try:
            decoded = decode_known_key(key, self._semantics)
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

    def existence(self, group_id: str) -> Existence:
        """Whether the group exists by records of its own, commits left out (R14)."""
        return existence(self._groups[group_id].records())

    def live_values(self) -> list[int]:
        """The last values of records of groups that exist, and the newest value of each group type."""
        live: list[int] = []
        for group in self._groups.values():
            records = group.records()
            found = existence(records)
            live += [row.value_offset for row in records if row.value_offset is not None and is_live(row, found)]
            live += [newest for newest in found.newest.values() if newest > found.removed]
        return live

    def last_tombstones(self) -> Int64s:
        """The last tombstones of keys without a later value."""
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
        """The last tombstones of keys and last removals of groups that follow a kept record of the key or group.

        ``first_commit`` has the first kept commit of each group.
        """
        hiding = []
        for name, group in self._groups.items():
            first = first_commit.get(name, len(keep))
            for at, rows in group.values.items():
                kept = next((row for row in rows if keep[row]), len(keep))
                first = min(first, kept)
                if kept < group.tombstones.get(at, _NONE):
                    hiding.append(group.tombstones[at])
            removed = self.existence(name).removed
            if first < removed:
                hiding.append(removed)
        return hiding


def _taken(rows: pa.Table, positions: Int64s) -> pa.Table:
    return rows.select(["key", "value"]).take(pa.array(positions)).combine_chunks()
