"""Whether the state is what a replay of the log gives.

Tasks replay whole log partitions and compare the result with the rows of the state that count there. The replay is the
columnar one, which also wrote the state, or the specification, which finds a fault of the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.fold.state.changes import ReplayStart, groups_of, partitions_of
from offsets_pipeline.fold.state.fold_progress import FoldProgress, PartitionProgress, belonging
from offsets_pipeline.fold.state.merge_on_read import (
    CONNECT,
    DESCRIBED,
    OFFSETS,
    RECORDS,
    SHARES,
    StateTable,
    ended,
    state_tables_of,
)
from offsets_pipeline.fold.state.published_rows import in_key_order, rows_by_sql
from offsets_pipeline.fold.state.replay_job import replay_log
from offsets_pipeline.fold.state.stored_rows import StoredRows, rows_of
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.connect_keys import state_value
from offsets_pipeline.semantics.effects import ReplayedPartition, within_bounds
from offsets_pipeline.semantics.group_facts import described_columns
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.semantics.table_replay import log_rows
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import connect_rows
from offsets_pipeline.semantics.topic_state import TopicPartitionState
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG
from offsets_pipeline.store.log.log_reader import LogReader
from offsets_pipeline.store.log.log_scan import LogRange
from offsets_pipeline.store.store_snapshot import LogIncarnation

if TYPE_CHECKING:
    from hashlib import _Hash

    from offsets_pipeline.common.config.sections import FoldSettings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.store import Store

#: The column of a table of facts that is null for a tombstone.
_VALUE_OF = {OFFSETS.name: "committed_offset", CONNECT.name: "value", SHARES.name: "state_epoch"}
_EXAMPLES = 5  # differences that a verification shows in words
_HEX_DIGITS = 16
Row = TypeVar("Row", bound=tuple[Any, ...])
#: Log partitions, and rows by the name of their state table.
Replayed = tuple[dict[int, ReplayedPartition], dict[str, pa.Table]]


@dataclass
class Verification:
    """Numbers of compared log partitions, records and rows; differences by table, and the first few in words.

    ``digests`` has log partition, table and digest of the rows that the log gives, if there are any: not of tombstones
    and of records of groups, which a cleaning removes.
    """

    log_partitions: int = 0
    records: int = 0
    offsets: int = 0
    groups: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    digests: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def add(self, other: Verification) -> None:
        """Take in the comparison of other log partitions."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def note_progress(self, log_partition: int, of_log: object, of_state: object) -> None:
        """Note a log partition whose end or pending commits differ."""
        if of_log != of_state:
            self.differences[FOLD_PROGRESS.name] += 1
            self.examples.append(
                f"{FOLD_PROGRESS.name}: log_partition {log_partition}: the log gives {of_log}, the state has {of_state}"
            )

    def compare(self, table: str, key: tuple[str, ...], expected: pa.Table, found: pa.Table) -> None:
        """Note rows that only one of the two has, rows that differ, and rows that ``found`` has more than once."""
        if expected.equals(found):
            return
        columns = [name for name in expected.column_names if name not in key]
        of_log = _by_key(expected, key, columns)
        copies = Counter(zip(*(found[name].to_pylist() for name in key), strict=True))
        of_state = _by_key(found, key, columns)
        differing = [
            at for at in of_log.keys() | of_state.keys() if of_log.get(at) != of_state.get(at) or copies[at] > 1
        ]
        if not differing:
            return
        self.differences[table] += len(differing)
        for at in sorted(differing, key=repr)[:_EXAMPLES]:
            where = ", ".join(f"{name} {value!r}" for name, value in zip(key, at, strict=True))
            times = f" {copies[at]} times" if copies[at] > 1 else ""
            self.examples.append(
                f"{table}: {where}: the log gives {of_log.get(at, 'nothing')}, "
                f"the state has {of_state.get(at, 'nothing')}{times}"
            )


@dataclass(frozen=True)
class _Comparison:
    """Compares replayed log partitions with their state; picklable.

    ``rows`` are those of the state tables, and ``progress`` is theirs. With ``is_independent`` the specification has
    replayed.
    """

    kind: TopicKind
    rows: StoredRows
    progress: Mapping[int, PartitionProgress]
    cleaned_to: Mapping[int, int]
    is_independent: bool

    def __call__(self, replayed: Replayed) -> tuple[set[int], Verification]:
        """Compare all of a replay; returns its log partitions, too."""
        partitions, rows = replayed
        result = self.compare_rows(set(partitions), rows)
        for at, each in partitions.items():
            result.records += each.records
            result.note_progress(at, self._place(each), self._place(self.progress[at]))
        return set(partitions), result

    def compare_rows(self, partitions: set[int], rows: Mapping[str, pa.Table]) -> Verification:
        """Compare the rows of these log partitions, by the name of their table, with those of the state that count."""
        result = Verification(log_partitions=len(partitions))
        for table in state_tables_of(self.kind):
            if table.name not in rows:
                continue  # the specification has no records of groups
            of_log, of_state = (
                self._comparable(table, in_key_order(table, each.combine_chunks()).combine_chunks())
                for each in (rows[table.name], self._of_state(table, partitions))
            )
            result.compare(table.name, table.key, of_log, of_state)
            if table is not RECORDS:
                found = digests(_answers(table, of_log)).items()
                result.digests += [(at, table.name, digest) for at, digest in found]
            if table is DESCRIBED:
                result.groups = of_log.num_rows
            elif table is not RECORDS:
                value = of_log[_VALUE_OF[table.name]]
                result.offsets = of_log.num_rows - value.null_count
        return result

    def _of_state(self, table: StateTable, partitions: set[int]) -> pa.Table:
        """The rows that count, merged by another engine than publishing's: it keeps copies of published rows, too."""
        stored = self.rows.of_partitions(partitions)
        ends = {at: each.folded_to for at, each in self.progress.items()}
        tables = {"facts": stored.folded_facts(table, table.columns, ends)}
        if table.published is not None:
            name = table.published.name
            tables["published"] = rows_of(stored.tables[name], stored.files[name], partitions)
        newest = table.newest("facts", "published" if "published" in tables else None)
        return rows_by_sql(newest, **tables).cast(table.row_schema())

    def _comparable(self, table: StateTable, rows: pa.Table) -> pa.Table:
        """The rows without those, and without the columns, that may differ."""
        if table is OFFSETS and self.is_independent:  # the specification has neither tombstones nor positions
            return _answers(table, rows)
        if table is OFFSETS:
            return self._kept(rows)
        if table is RECORDS:
            return _live(rows) if self.cleaned_to else _but_commits(rows)
        return _existing(rows) if table is DESCRIBED else rows

    def _kept(self, offsets: pa.Table) -> pa.Table:
        """The offsets without tombstones that a cleaning of the log may have removed (R23)."""
        cleaned = ended(offsets, {**dict.fromkeys(self.progress, 0), **self.cleaned_to})
        is_cleaned = pc.less(offsets["record_offset"], cleaned)
        return offsets.filter(pc.invert(pc.and_(offsets["committed_offset"].is_null(), is_cleaned)))

    def _place(self, progress: ReplayedPartition | PartitionProgress) -> dict[str, object]:
        """End and pending commits of a log partition."""
        if not self.kind.has_groups:
            identity: tuple[str, ...] = ("key", "value") if self.kind is TopicKind.SHARE_STATE else ("key",)
        elif self.is_independent:
            identity = ("group_id", "topic", "partition")
        else:
            return {"folded_to": progress.folded_to, "pending": progress.pending}
        names = ("producer_id", *identity, "record_offset")
        return {
            "folded_to": progress.folded_to,
            "pending": {tuple(commit[name] for name in names) for commit in progress.pending},
        }


def verify_store(store: Store, settings: FoldSettings, *, independent: bool = False) -> Verification:
    """Replay the log from its start, as far as it is folded, and compare the result with the state tables.

    With ``independent`` the specification replays record by record, which takes much longer. Ignores records that are
    appended during the run, and folds that end during it.

    Raises DamagedTable if a table does not belong to the progress.
    """
    progress, known = _state_of(store)
    log = store.table(LOG.name)
    starts = {at: replace(each, folded_to=0, pending=[]) for at, each in progress.partitions.items()}
    kind, semantics = store.properties.topic_kind, progress.semantics or store.properties.coordinator_semantics
    log_range = LogRange(dict.fromkeys(starts, 0), progress.folded_to, progress.log_incarnation)
    found = (each for each in store.log_incarnations() if each.number == progress.log_incarnation)
    of_state = next(found, LogIncarnation(progress.log_incarnation, store.properties.offsets_partitions))
    count = of_state.offsets_partitions
    start = ReplayStart(count, semantics, kind=kind).continued(starts)
    reader = LogReader(log, log_range, start.schema, None if independent else start.compact)
    files = [file for file in log.snapshot().files() if reader.range.may_hold(file)]
    names = [name for each in start.tables for name in each.names]
    stored = StoredRows.of(map(known.__getitem__, names), progress.incarnations)
    comparison = _Comparison(kind, stored, progress.partitions, of_state.cleaned_to, independent)

    def compared(rows: Iterable[pa.Table]) -> tuple[set[int], Verification]:
        if not independent or kind is TopicKind.SHARE_STATE:
            return comparison(_replayed(start, rows))
        return comparison(specified_topic(rows, kind) if kind.is_connect else specified_groups(rows, count, semantics))

    whole, replayed = Verification(), set()
    for partitions, each in replay_log(store, reader, files, settings.driver_rows, compared):
        replayed |= partitions
        whole.add(each)
    # log partitions without records should have no rows
    nothing = {each.name: each.row_schema().empty_table() for each in start.tables}
    of_others = replace(comparison, is_independent=False).compare_rows(progress.partitions.keys() - replayed, nothing)
    of_others.log_partitions = 0
    whole.add(of_others)
    for at in set(range(count) if progress.partitions else ()) - progress.partitions.keys():
        whole.note_progress(at, "a row", "none")
    del whole.examples[_EXAMPLES:]
    whole.digests.sort()
    return whole


def _state_of(store: Store) -> tuple[FoldProgress, dict[str, Snapshot]]:
    """Return the newest progress, and the versions of the state tables by name that have just what it names."""
    tables = state_tables_of(store.properties.topic_kind)
    facts = [each.name for each in tables]
    published = [each.published.name for each in tables if each.published is not None]
    while True:
        progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
        names = dict.fromkeys([*facts, *published, *progress.versions])  # published rows after the facts: `belonging`
        known = {name: belonging(store.table(name), progress, is_named=True, is_exact=True) for name in names}
        if FoldProgress.read(store.table(FOLD_PROGRESS.name)).says_same(progress):
            return progress, known


def _replayed(start: ReplayStart, tables: Iterable[pa.Table]) -> Replayed:
    """What a columnar replay gives, as rows of all state tables."""
    effects = start.replay(tables)
    records = pa.concat_tables([effects.group_records, effects.group_commits])
    return partitions_of(effects), {
        OFFSETS.name: effects.offsets,
        RECORDS.name: records,
        DESCRIBED.name: groups_of(records, start),
        CONNECT.name: effects.connect_records,
        SHARES.name: effects.share_partitions,
    }


def _answers(table: StateTable, rows: pa.Table) -> pa.Table:
    """The comparable rows that any log with the same records gives, cleaned or not, and either replay."""
    if table is DESCRIBED:
        return rows
    is_tombstone = rows[_VALUE_OF[table.name]].is_null()
    return rows.filter(pc.invert(is_tombstone)).select([name for name in rows.column_names if name != "position"])


def _existing(groups: pa.Table) -> pa.Table:
    """The groups that exist; a published one says nothing by an empty protocol, as a broker does (R34)."""
    existing = groups.filter(pc.not_equal(groups["state"], DEAD)).drop_columns(["record_offset"])
    protocol = pc.fill_null(existing["protocol"], "")
    return existing.set_column(existing.schema.get_field_index("protocol"), "protocol", protocol)


def _but_commits(records: pa.Table) -> pa.Table:
    """Rows of types other than 1. Of commits the state keeps only the proof of a group, which `groups` shows."""
    return records.filter(pc.not_equal(records["record_type"], 1))


def _live(records: pa.Table) -> pa.Table:
    """The values that no later tombstone of their key or their group hides (R14), but for commits.

    A log that was cleaned has no others (R23).
    """
    rows = _but_commits(records)
    removing = rows.filter(pc.is_in(rows["record_type"], pa.array(list(GROUP_REMOVING_TYPES), pa.int16())))
    removed = removing.group_by(["log_partition", "group_id"]).aggregate([("tombstone_offset", "max")])
    found = rows.join(removed, ["log_partition", "group_id"])
    hidden_to = pc.max_element_wise(found["tombstone_offset"], found["tombstone_offset_max"], -1)
    live = found.filter(pc.greater(found["value_offset"], hidden_to)).drop_columns(["tombstone_offset"])
    none = pa.nulls(live.num_rows, pa.int64())
    return in_key_order(RECORDS, live.append_column("tombstone_offset", none).select(records.column_names))


def _by_key(rows: pa.Table, key: tuple[str, ...], columns: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keys = zip(*(rows[name].to_pylist() for name in key), strict=True)
    return dict(zip(keys, rows.select(columns).to_pylist(), strict=True))


# --- digests of rows, which depend neither on their writer nor on batches


def digests(rows: pa.Table) -> dict[int, str]:
    """Return a digest for each log partition: 16 hex digits of the SHA-256 of its rows, in their order.

    Covers names, nulls and values of the columns, but not `log_partition`.
    """
    numbers = rows["log_partition"]
    columns = rows.drop_columns(["log_partition"])
    return {at: _digest(columns.filter(pc.equal(numbers, at))) for at in numbers.unique().to_pylist()}


def _digest(rows: pa.Table) -> str:
    found = hashlib.sha256(rows.num_rows.to_bytes(8, "little"))
    for name in sorted(rows.column_names):
        found.update(f"{name}\n".encode())
        _add(found, rows[name].combine_chunks())
    return found.hexdigest()[:_HEX_DIGITS]


def _add(found: _Hash, values: pa.Array) -> None:
    """Add the values of a column. What an array holds where it is null is left out."""
    found.update(values.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False))
    values = values.drop_null()
    if pa.types.is_list(values.type):
        found.update(pc.list_value_length(values).to_numpy())
        _add(found, values.flatten())
    elif pa.types.is_struct(values.type):
        for name, each in zip((field.name for field in values.type), values.flatten(), strict=True):
            found.update(f"{name}\n".encode())
            _add(found, each)
    elif pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        found.update(pc.binary_length(values).to_numpy())
        found.update(b"".join(values.cast(pa.binary()).to_pylist()))
    elif pa.types.is_boolean(values.type):
        found.update(values.cast(pa.uint8()).to_numpy())
    else:
        numbers = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
        found.update(numbers.to_numpy().tobytes())


# --- the specifications' replays, record by record


def specified_groups(tables: Iterable[pa.Table], offsets_partitions: int, semantics: CoordinatorSemantics) -> Replayed:
    """The groups and the visible offsets by `PartitionState`, from all rows of some log partitions in any order.

    Positions of offsets and record offsets of groups are -1.
    """
    rows = _by_log_partition(chain.from_iterable(map(log_rows, tables)))
    states = {at: partition_state.replay(each, at, offsets_partitions, semantics) for at, each in rows.items()}
    partitions = {
        at: ReplayedPartition(
            state.end,
            len(rows[at]),
            pending=[
                {"producer_id": producer_id, "group_id": group_id, **where._asdict(), **offset._asdict()}
                for producer_id, of_producer in state.pending.items()
                for group_id, of_group in of_producer.items()
                for where, offset in of_group.items()
            ],
        )
        for at, state in states.items()
    }
    offsets = [
        {
            "log_partition": at,
            "group_id": group_id,
            **where._asdict(),
            **offset._asdict(),
            "commit_timestamp": _microseconds(offset.commit_timestamp_ms),
            "expire_timestamp": _microseconds(offset.expire_timestamp_ms),
            "position": -1,
            "misplaced": state.is_misplaced(group_id),
        }
        for at, state in states.items()
        for group_id, of_group in state.offsets.items()
        for where, offset in of_group.items()
    ]
    groups = [
        described_columns(group.description)
        | {"log_partition": at, "group_id": group_id, "record_offset": -1, "misplaced": state.is_misplaced(group_id)}
        for at, state in states.items()
        for group_id, group in state.groups.items()
    ]
    return partitions, {
        OFFSETS.name: pa.Table.from_pylist(offsets, schema=OFFSETS.row_schema()),
        DESCRIBED.name: pa.Table.from_pylist(groups, schema=DESCRIBED.row_schema()),
    }


def specified_topic(tables: Iterable[pa.Table], kind: TopicKind) -> Replayed:
    """The records of a topic of Kafka Connect by `TopicPartitionState`, from all rows of some log partitions."""
    rows = _by_log_partition(chain.from_iterable(map(connect_rows, tables)))
    states = {at: TopicPartitionState(kind) for at in rows}
    for at, of_partition in rows.items():
        for row in of_partition:
            states[at].replay(row)
    partitions = {
        at: ReplayedPartition(
            state.end,
            len(rows[at]),
            pending=[
                {"producer_id": producer_id, "key": raw_key.encode(), "record_offset": record.record_offset}
                for producer_id, of_producer in state.pending.items()
                for raw_key, record in of_producer.items()
            ],
        )
        for at, state in states.items()
    }
    records = [
        {
            "log_partition": at,
            "raw_key": raw_key,
            **record._asdict(),
            **record.key._asdict(),
            "record_type": record.key.record_type.value,
            "value": state_value(record.value),
        }
        for at, state in states.items()
        for raw_key, record in state.records.items()
    ]
    return partitions, {CONNECT.name: pa.Table.from_pylist(records, schema=CONNECT.row_schema())}


def _by_log_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each log partition in the order of their record offsets; rows begin with both."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=itemgetter(0, 1)):
        found[row[0]].append(row)
    return found


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else within_bounds(milliseconds) * 1000
