"""The last commits of each offset, read from the log: the window that a consumer's status is evaluated from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.decode import VERSION_BYTES
from offsets_pipeline.semantics.compaction import are_commits, paired
from offsets_pipeline.semantics.effects import EARLIEST_MS, LATEST_MS
from offsets_pipeline.semantics.group_types import OFFSET_COMMIT_TYPES
from offsets_pipeline.semantics.log_row import are_keys_of, as_bools, codes_of, group_prefix, has_one_prefix
from offsets_pipeline.semantics.partitioning import are_misplaced, homes_of
from offsets_pipeline.semantics.transactions import COMMITTED, endings
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.log_scan import WRITTEN_US
from offsets_pipeline.store.log.ordered_log import OrderedLog

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

#: The columns of the log that windows are made from.
COLUMNS = ["log_partition", "record_offset", "key", "value", "producer_id", "control_type"]
_COMPACT_ROWS = 100_000
#: From so many groups on it is quicker to decode all commits.
MANY_GROUPS = 50
#: Groups that commit have committed in this time.
RECENT_MS = 600_000

_NO_COMMITS = np.zeros(0, dtype=np.int64)

#: Group, topic and partition.
Identity = tuple[str, str, int]


class WindowColumns(NamedTuple):
    """Commits of many identities, window by window, and in each in the order of the log.

    ``first`` is the index of the first commit of each identity, and after them the number of commits.
    """

    identities: list[Identity]
    first: Int64s
    offset: Int64s
    committed_ms: Int64s

    @classmethod
    def together(cls, parts: Sequence[WindowColumns]) -> WindowColumns:
        """The windows of all parts; no identity is in two of them."""
        ends = np.cumsum([0, *(len(each.offset) for each in parts)], dtype=np.int64)
        return cls(
            [identity for each in parts for identity in each.identities],
            np.concatenate([*(each.first[:-1] + start for each, start in zip(parts, ends, strict=False)), ends[-1:]]),
            np.concatenate([_NO_COMMITS, *(each.offset for each in parts)]),
            np.concatenate([_NO_COMMITS, *(each.committed_ms for each in parts)]),
        )


class CommitWindows:
    """Collects rows of the log, and returns the last visible commits of each offset.

    ``size`` is the number of commits. A tombstone empties the window; under `classic` a later marker brings a pending
    commit back (R12). Transactional commits count if they were committed (R11) and no later commit of the offset was
    visible before. ``offsets_partitions`` is n of R1: misplaced commits do not count, except under `classic`.
    """

    def __init__(
        self,
        size: int,
        group_ids: Collection[str] | None,
        offsets_partitions: int,
        semantics: CoordinatorSemantics,
    ) -> None:
        self._size = size
        self._semantics = semantics
        self._group_ids = None if group_ids is None or len(group_ids) > MANY_GROUPS else group_ids
        self._offsets_partitions = offsets_partitions
        self._rows: list[pa.Table] = []
        self._compacted = 0

    def add(self, rows: pa.Table) -> None:
        """Take rows with the columns of the log, of any log partitions; those of one partition come in order."""
        wanted = are_commits(rows["key"])
        if self._group_ids is not None:
            wanted &= are_keys_of(rows["key"], self._group_ids)
        wanted |= as_bools(rows["control_type"].is_valid())
        self._rows.append(rows.select(COLUMNS).filter(pa.array(wanted)))
        held = sum(each.num_rows for each in self._rows)
        if held - self._compacted > max(_COMPACT_ROWS, self._compacted):
            table = pa.concat_tables(self._rows).combine_chunks()
            self._rows = [table.filter(pa.array(self._needed(table)))]
            self._compacted = self._rows[0].num_rows

    def _needed(self, table: pa.Table) -> Bools:
        """The rows that may be in a window: transactional rows, markers, and the last plain rows of each key."""
        plain = as_bools(table["producer_id"].is_null())
        code = paired(codes_of(table["key"]), table["log_partition"].to_numpy())
        needed = ~plain
        rows = np.flatnonzero(plain)
        rows = rows[np.lexsort((table["record_offset"].to_numpy()[rows], code[rows]))]
        needed[rows[_rank_from_end(code[rows]) < self._size]] = True
        return needed

    def windows(self) -> WindowColumns:
        """The last commits of each offset, in the order of the log."""
        if not self._rows:
            return WindowColumns.together([])
        table = pa.concat_tables(self._rows).combine_chunks()
        visible, visible_at = _visibility(table)
        if not visible.all():
            table, visible_at = table.filter(pa.array(visible)).combine_chunks(), visible_at[visible]
        keys = table["key"].combine_chunks()
        commits = CommitColumns(keys, table["value"].combine_chunks())
        key_code = codes_of(keys)
        partition, record_offset = table["log_partition"].to_numpy(), table["record_offset"].to_numpy()
        if not commits.valid.all():
            valid = np.flatnonzero(commits.valid)
            key_code, partition, record_offset = key_code[valid], partition[valid], record_offset[valid]
            visible_at = visible_at[valid]
            commits = commits.take(valid)
        code = paired(_identity_codes(commits, key_code), partition)
        order = np.lexsort((record_offset, code))
        last_tombstone = _last_tombstone(code[order], commits.tombstone[order])
        counts = np.arange(len(order)) > last_tombstone
        if self._semantics.is_classic:
            counts |= visible_at[order] > record_offset[order][last_tombstone]  # R12
        order = order[counts]
        if (visible_at != record_offset).any():
            order = order[~_superseded(code[order], visible_at[order])]
        order = order[_rank_from_end(code[order]) < self._size]
        first = np.flatnonzero(np.diff(code[order], prepend=-1))
        named = commits.take(order[first])
        of_named = pa.array(partition[order[first]])
        misplaced = are_misplaced(named.group_ids(), of_named, self._offsets_partitions, self._semantics)
        is_at_home = pc.invert(misplaced).to_numpy(zero_copy_only=False)
        sizes = np.diff(np.append(first, len(order)))
        order = order[np.repeat(is_at_home, sizes)]
        named = named.take(np.flatnonzero(is_at_home))
        return WindowColumns(
            list(zip(named.group_ids().to_pylist(), named.topics().to_pylist(), named.partition.tolist(), strict=True)),
            np.append(0, np.cumsum(sizes[is_at_home])),
            commits.committed_offset[order],
            np.clip(commits.commit_timestamp_ms[order], EARLIEST_MS, LATEST_MS),
        )


class CommitsOfGroups:
    """Commits of groups in the log, up to a time in ms or up to the end of the log (None).

    A time cuts each log partition before its first record that was written later (R36).
    """

    def __init__(self, reader: StateReader, group_ids: Collection[str], at_ms: int | None) -> None:
        self._reader = reader
        self._group_ids = group_ids
        self._at_ms = at_ms
        self._of_log = reader.current_log.offsets_partitions, reader.coordinator_semantics
        self._homes = homes_of(group_ids, *self._of_log)

    def last(self, size: int) -> WindowColumns:
        """The last visible commits of each offset, at most ``size``, in the order of the log."""
        if self._at_ms is None and len(self._group_ids) <= MANY_GROUPS and all(map(has_one_prefix, self._group_ids)):
            return self._last_of(self._rows_of_commits(), size)
        by_partition: dict[int, CommitWindows] = {}  # no identity is in two of them, and each needs little memory
        log, incarnation = self._reader.table(LOG.name), self._reader.current_log.number
        for partition, rows in OrderedLog(log, incarnation, self._at_ms, self._homes, columns=COLUMNS).runs():
            if partition not in by_partition:
                by_partition[partition] = CommitWindows(size, self._group_ids, *self._of_log)
            by_partition[partition].add(rows)
        return WindowColumns.together([by_partition.pop(partition).windows() for partition in sorted(by_partition)])

    def recent(self, wanted: Collection[Identity] = ()) -> WindowColumns:
        """The last visible commit of each offset.

        Reads only records that were appended from ten minutes before that time on. If an offset that is ``wanted`` has
        no commit in them, reads all commits of its group, for MANY_GROUPS groups at most. Other offsets are missing.
        """
        since_ms = (self._reader.opened_ms if self._at_ms is None else self._at_ms) - RECENT_MS
        appended = f"epoch_us(appended_at) >= {since_ms * 1000}{self._until}"
        found = self._last_of(self._rows(appended, since_ms))
        names = {group_id for group_id, *_ in set(wanted).difference(found.identities)}
        missing = frozenset(sorted(filter(has_one_prefix, names))[:MANY_GROUPS])
        if not missing:
            return found
        kept = [row for row, (group_id, *_) in enumerate(found.identities) if group_id not in missing]
        others = WindowColumns(
            [found.identities[row] for row in kept],
            np.arange(len(kept) + 1),
            found.offset[kept],
            found.committed_ms[kept],
        )
        log = CommitsOfGroups(self._reader, missing, self._at_ms)
        return WindowColumns.together([others, log._last_of(log._rows_of_commits())])

    @property
    def _until(self) -> str:
        """The rest of a condition, for rows up to the time (R36)."""
        return "" if self._at_ms is None else f" AND {WRITTEN_US} <= {self._at_ms * 1000}"

    def _last_of(self, rows: pa.Table, size: int = 1) -> WindowColumns:
        windows = CommitWindows(size, self._group_ids, *self._of_log)
        windows.add(rows)
        return windows.windows()

    def _rows_of_commits(self) -> pa.Table:
        """The commits of a few groups, and markers of transactions: the query reads little else of the log."""
        prefixes = [
            record_type.to_bytes(VERSION_BYTES, "big") + group_prefix(group_id)
            for record_type in sorted(OFFSET_COMMIT_TYPES)
            for group_id in self._group_ids
        ]
        ranges = " OR ".join(
            f"(key >= unhex('{prefix.hex()}') AND key < unhex('{_next(prefix).hex()}'))" for prefix in prefixes
        )
        return self._rows(f"(control_type IS NOT NULL OR {ranges}){self._until}")

    def _rows(self, condition: str, since_ms: int = 0) -> pa.Table:
        """The rows that meet a condition, in order; ``since_ms`` as of `Relations.log`."""
        log = self._reader.relations.log(since_ms, {} if self._homes is None else {"log_partition": self._homes})
        found = self._reader.relations.select(
            f"SELECT {', '.join(COLUMNS)} FROM {log} WHERE {condition} ORDER BY log_partition, record_offset"
        )
        return found.cast(pa.schema([LOG.arrow_schema().field(name).with_nullable(nullable=True) for name in COLUMNS]))


def _identity_codes(commits: CommitColumns, key_code: Int64s) -> Int64s:
    """Number the identities, from numbers of the keys: decodes one commit for each key."""
    if not len(key_code):
        return key_code
    first = np.zeros(int(key_code.max()) + 1, dtype=np.int64)
    first[key_code[::-1]] = np.arange(len(key_code))[::-1]  # of equal indices numpy keeps the last
    return codes_of(commits.take(first).identities())[key_code]


def _visibility(table: pa.Table) -> tuple[Bools, Int64s]:
    """Whether each row is a commit or a tombstone that counts: plain, or in a committed transaction (R11, R12).

    And the record offset that made it visible: its own, or that of its marker.
    """
    is_data, record_offset = as_bools(table["control_type"].is_null()), table["record_offset"].to_numpy()
    if table["producer_id"].null_count == table.num_rows:
        return is_data, record_offset
    at_once = as_bools(pc.or_(table["producer_id"].is_null(), table["value"].is_null()))
    ended = endings(table)
    visible: Bools = is_data & (at_once | (ended.outcome == COMMITTED))
    return visible, np.where(at_once, record_offset, ended.marker_offset)


def _superseded(code: Int64s, visible_at: Int64s) -> Bools:
    """Whether each commit was never answered: a later one of the same code became visible before it, or with it.

    Equal codes are neighbours, in the order of the log (R10, R11).
    """
    count = len(code)
    rank = code * count + np.unique(visible_at, return_inverse=True)[1]  # a later code has a higher rank
    least = np.minimum.accumulate(rank[::-1])[::-1]
    superseded = np.zeros(count, dtype=np.bool_)
    superseded[:-1] = least[1:] <= rank[:-1]
    return superseded


def _rank_from_end(code: Int64s) -> Int64s:
    """The number of rows after each row that have the same code; equal codes are neighbours."""
    count = len(code)
    last = np.append(np.flatnonzero(np.diff(code)), count - 1) if count else np.zeros(0, dtype=np.int64)
    sizes = np.diff(last, prepend=-1)
    return np.repeat(last, sizes) - np.arange(count)


def _last_tombstone(code: Int64s, tombstone: Bools) -> Int64s:
    """The index of the last tombstone of each row's code; equal codes are neighbours, in order.

    Without one it is that of an earlier code, or -1.
    """
    position = np.arange(len(code))
    last_before = np.maximum.accumulate(np.where(tombstone, position, -1)) if len(code) else position
    last: Int64s = last_before[position + _rank_from_end(code)]
    return last


def _next(prefix: bytes) -> bytes:
    """The least bytes above all that start with a prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
