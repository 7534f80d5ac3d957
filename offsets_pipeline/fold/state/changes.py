"""How the log of a store is replayed by the kind of its topic, and the one writer of the changes of a replay.

Changes depend on replayed rows and on the known state of their groups. `StateWriter` runs where the rows are: in a
Spark task for its log partitions, or in the driver for a small batch. Its files belong to the state once a commit adds
them (fold.py). Rows that are written twice, or late, change nothing (merge_on_read.py). No Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.fold.state.merge_on_read import (
    CONNECT,
    DESCRIBED,
    OFFSETS,
    RECORDS,
    SHARES,
    StateTable,
    ended,
    last_of_each,
    state_tables_of,
)
from offsets_pipeline.fold.state.published_rows import (
    FileWriter,
    Groups,
    are_of_groups,
    divided,
    hiding,
    in_key_order,
    write_facts,
    write_published,
)
from offsets_pipeline.fold.state.stored_rows import StoredRows, groups_in
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.compaction import compact_early, gathered
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, Effects, ReplayedPartition
from offsets_pipeline.semantics.group_description import GroupRecordRow, existence
from offsets_pipeline.semantics.group_facts import described
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.semantics.share_replay import compact_shares, replay_shares
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA, compact_topic, replay_topic
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.store.log.log_reader import compacted_input

if TYPE_CHECKING:
    from offsets_pipeline.fold.state.fold_progress import FoldProgress, PartitionProgress
    from offsets_pipeline.store.delta.data_file import DataFile, Only

    Group = tuple[int, str]

_ADD_ROWS = 250_000  # rows that the replay takes at once
_PENDING_FIELDS = ["log_partition", *FOLD_PROGRESS.arrow_schema().field("pending").type.value_type.names]


@dataclass(frozen=True)
class ReplayStart:
    """Start of a replay: R1's n, semantics, first unfolded record offsets, and pending commits as `schema`; picklable.

    ``kind`` is that of the log's topic. A topic without groups is of Kafka Connect, or of the share coordinator.
    """

    offsets_partitions: int
    semantics: CoordinatorSemantics = MODERN
    folded_to: Mapping[int, int] = field(default_factory=dict)
    pending: pa.Table = field(default_factory=INPUT_SCHEMA.empty_table)
    kind: TopicKind = TopicKind.CONSUMER_OFFSETS

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows to replay."""
        return INPUT_SCHEMA if self.kind.has_groups else CONNECT_INPUT_SCHEMA

    @property
    def tables(self) -> tuple[StateTable, ...]:
        """The tables of facts that the replay changes."""
        return state_tables_of(self.kind)

    @property
    def known(self) -> list[str]:
        """The names of the tables that a fold looks up groups in."""
        tables = (RECORDS, DESCRIBED, *((OFFSETS,) if self.semantics.is_classic else ()))
        return [name for each in tables if self.kind.has_groups for name in each.names]

    def compact(self, table: pa.Table) -> pa.Table:
        """The rows that `compact_early`, `compact_topic` or `compact_shares` leaves."""
        if self.kind.has_groups:
            return compact_early(table, self.folded_to, self.semantics)
        if self.kind is TopicKind.SHARE_STATE:
            return compact_shares(table, self.folded_to)
        return compact_topic(table, self.kind, self.folded_to)

    def replay(self, tables: Iterable[pa.Table]) -> Effects:
        """The effects of rows of `schema`; they hold all unfolded rows of their log partitions."""
        if self.kind is TopicKind.SHARE_STATE:
            return replay_shares([*tables, self.pending], self.folded_to)
        if not self.kind.has_groups:
            return replay_topic([*tables, self.pending], self.kind, self.folded_to)
        replay = Replay(self.offsets_partitions, self.folded_to, self.semantics)
        for table in gathered(tables, _ADD_ROWS):
            with working_on(partial(place_of, table)):
                replay.add(table)
        replay.add(self.pending)  # of log partitions without new rows nothing changes
        with working_on(lambda: f"the end of {replay.place()}"):
            return replay.effects()

    def continued(self, progress: Mapping[int, PartitionProgress]) -> ReplayStart:
        """The start of a replay that continues these log partitions."""
        folded_to = {at: each.folded_to for at, each in progress.items()}
        return replace(self, folded_to=folded_to, pending=pending_rows(progress, self.schema))


def pending_rows(partitions: Mapping[int, PartitionProgress], schema: pa.Schema = INPUT_SCHEMA) -> pa.Table:
    """The pending commits of these log partitions as rows that a replay takes in again (R11).

    The tombstone that gives a commit its position (R10c) comes in again, too. ``schema`` is that of the replay.
    """
    rows = []
    for at, each in partitions.items():
        for commit in each.pending:
            row = {
                "log_partition": at,
                "record_offset": commit["record_offset"],
                "key": commit["key"],
                "value": commit["value"],
                "producer_id": commit["producer_id"],
                "record_timestamp": commit["commit_timestamp"],
                "records": 0,
            }
            rows.append(row)
            if commit["position"] != commit["record_offset"]:
                rows.append(row | {"record_offset": commit["position"], "value": None, "producer_id": None})
    return pa.Table.from_pylist(rows, schema=schema)


@dataclass
class Changes:
    """The changes of a replay: files of the state tables, and the facts that the driver commits.

    ``topics`` are pairs of topic id and name (R35), ``quarantine`` are records that do not decode, as in `Effects`.
    """

    files: dict[str, list[DataFile]] = field(default_factory=lambda: defaultdict(list))
    partitions: dict[int, ReplayedPartition] = field(default_factory=dict)
    topics: set[tuple[str, str]] = field(default_factory=set)
    quarantine: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Changes) -> None:
        """Take in the changes of other log partitions."""
        for name, files in other.files.items():
            self.files[name] += files
        self.partitions |= other.partitions
        self.topics |= other.topics
        self.quarantine += other.quarantine

    @property
    def records(self) -> int:
        """Number of records replayed."""
        return sum(each.records for each in self.partitions.values())

    def first_corrupt(self) -> str | None:
        """A sentence about the first record that does not decode; None if all do."""
        if not self.quarantine:
            return None
        first = min(self.quarantine, key=itemgetter("log_partition", "record_offset"))
        return (
            f"record {first['record_offset']} of log partition {first['log_partition']} does not decode: "
            f"{first['reason']}"
        )


@dataclass(frozen=True)
class StateWriter:
    """Replays records from a start, and writes what they change; picklable.

    ``tables`` are where the files of the state go. ``incarnations`` are those of the state by log partition. ``known``
    is the state that the replay continues; None if it starts at the start of its log partitions: then each key comes
    once, and what is answered is published.
    """

    start: ReplayStart
    tables: Mapping[str, FileWriter]
    incarnations: Mapping[int, int]
    known: StoredRows | None = None

    def changes(self, tables: Iterable[pa.Table]) -> Changes:
        """Replay all unfolded records of whole log partitions, and write the files with what they change."""
        effects = self.start.replay(tables)
        changes = Changes(partitions=partitions_of(effects), topics=effects.topics, quarantine=effects.quarantine)
        news, whole = _group_records(effects, self.known, self.start.folded_to)
        hidden: Groups = frozenset()
        if whole.num_rows:
            self._write(changes, RECORDS, news)
            groups = groups_of(whole, self.start)
            self._write(changes, DESCRIBED, groups)
            hidden = hiding(groups) if self.known is None else frozenset()  # of facts none is hidden
        self._write(changes, OFFSETS, effects.offsets, hidden)
        self._write(changes, CONNECT, effects.connect_records)
        self._write(changes, SHARES, effects.share_partitions)
        return changes

    def _write(self, changes: Changes, table: StateTable, rows: pa.Table, hidden: Groups = frozenset()) -> None:
        """Write rows with the table's columns to files, sorted by their key; ``hidden`` are groups of `hiding`."""
        if not rows.num_rows:
            return
        rows = in_key_order(table, rows)
        if self.known is None and table.published is not None:
            published, rows = divided(table, rows, hidden)
            changes.files[table.published.name] += write_published(self.tables[table.published.name], published)
        ends = {at: each.folded_to for at, each in changes.partitions.items()}
        facts = rows.append_column("folded_to", ended(rows, ends))
        changes.files[table.name] += write_facts(self.tables[table.name], facts, self.incarnations)


class NextFold(StateWriter):
    """A fold of the records of the next append to the log, where they are: in a task or in the driver."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Changes:
        """Write the files of what records change: all records of the append in their log partitions."""
        rows = (pa.Table.from_batches([each]) for each in batches)
        return self.changes(compacted_input(rows, self.start.schema, self.start.compact))

    def continues(self, progress: FoldProgress) -> bool:
        """Whether no other fold has changed the state since this one was made."""
        return self.start.folded_to == progress.folded_to and self.incarnations == progress.incarnations


def groups_of(records: pa.Table, start: ReplayStart) -> pa.Table:
    """The groups of these rows of `group_records`, as rows of `group_facts`."""
    return described(in_key_order(RECORDS, records), start.offsets_partitions, start.semantics)


# --- groups


def _group_records(effects: Effects, known: StoredRows | None, ends: Mapping[int, int]) -> tuple[pa.Table, pa.Table]:
    """Rows of `group_records` that are new, and all rows of the groups that these are about.

    A commit only says that its group exists (R14), so it changes nothing if the group is known to exist. A steady
    stream of commits writes nothing here. Under `classic` a commit row without a value says that the group may have
    lost its last offset, which the state must tell. ``ends``: where the fold begins. Later facts in ``known`` are of
    another fold, which has not ended, or died, and do not count.
    """
    records, commits = effects.group_records, effects.group_commits
    holding = commits.filter(commits["value_offset"].is_valid())
    if known is None:
        whole = pa.concat_tables([records, holding])
        return whole, whole
    bare = commits.filter(commits["value_offset"].is_null())
    named = groups_in(records)
    existing = existing_groups(known, groups_in(commits) - named, ends)
    changed = named | (groups_in(holding) - existing) | (groups_in(bare) & existing)
    held = known.folded_facts(RECORDS, RECORDS.columns, ends, _only(changed)) if changed else records.slice(0, 0)
    of_state = _of_groups(held, changed)  # groups with the same id may be in other log partitions
    news = [records, _of_groups(holding, changed)]
    if bare.num_rows:
        deleted = effects.offsets.filter(effects.offsets["committed_offset"].is_null())
        newest = _newest_of_each([records], of_state)
        news.append(_told_by_state(_of_groups(bare, changed), newest, known, deleted, ends))
    whole = _newest_of_each(news, of_state)
    return whole.filter(whole["is_new"]).select(RECORDS.columns), whole.select(RECORDS.columns)


def _told_by_state(
    bare: pa.Table, records: pa.Table, known: StoredRows, deleted: pa.Table, ends: Mapping[int, int]
) -> pa.Table:
    """Commit rows of groups that may have lost their last offset. With a value if the state holds another (R14).

    Groups that exist by records of their own are left out.
    """
    by_group: dict[Group, list[GroupRecordRow]] = {group: [] for group in groups_in(bare)}
    own = _of_groups(records.filter(pc.not_equal(records["record_type"], COMMIT_RECORD_TYPE)), by_group.keys())
    columns = own.select(["log_partition", "group_id", *GroupRecordRow._fields]).columns
    for log_partition, group_id, *row in zip(*(each.to_pylist() for each in columns), strict=True):
        by_group[log_partition, group_id].append(GroupRecordRow._make(row))
    asked = {group for group, rows in by_group.items() if existence(rows).group_type is None}
    if not asked:
        return bare.slice(0, 0)
    bare = _of_groups(bare, asked)
    named = ["log_partition", "group_id", "committed_offset"]
    visible = known.newest(OFFSETS, named, _only(asked), ends=ends, more=_of_groups(deleted, asked))
    holds = are_of_groups(bare, groups_in(visible.filter(visible["committed_offset"].is_valid())))
    values = bare.filter(holds).rename_columns({"tombstone_offset": "value_offset", "value_offset": "tombstone_offset"})
    return pa.concat_tables([bare.filter(pc.invert(holds)), values.select(bare.column_names)])


def existing_groups(known: StoredRows, groups: Collection[Group], ends: Mapping[int, int]) -> set[Group]:
    """Return those of the groups that exist in the state up to these ends (R14)."""
    if not groups:
        return set()
    found = known.newest(DESCRIBED, ["log_partition", "group_id", "state"], _only(groups), ends=ends)
    return groups_in(found.filter(pc.not_equal(found["state"], DEAD))).intersection(groups)


def _only(groups: Collection[Group]) -> Only:
    return {
        "log_partition": sorted({log_partition for log_partition, _ in groups}),
        "group_id": sorted({group_id for _, group_id in groups}),
    }


def _newest_of_each(news: Sequence[pa.Table], of_state: pa.Table) -> pa.Table:
    """Of each key the last value and the last tombstone; and whether the key is among the news (`is_new`)."""
    found = [of_state.append_column("is_new", pa.repeat(pa.scalar(value=False), of_state.num_rows))]
    found += [each.append_column("is_new", pa.repeat(pa.scalar(value=True), each.num_rows)) for each in news]
    rows = pa.concat_tables(found)
    newest = last_of_each(rows, RECORDS.key, [rows["value_offset"]])
    for name in ("tombstone_offset", "is_new"):  # each has the keys in the same order
        highest = last_of_each(rows, RECORDS.key, [rows[name]])[name]
        newest = newest.set_column(newest.column_names.index(name), name, highest)
    return newest


def _of_groups(rows: pa.Table, groups: AbstractSet[Group]) -> pa.Table:
    return rows.filter(are_of_groups(rows, groups))


# --- from effects


def partitions_of(effects: Effects) -> dict[int, ReplayedPartition]:
    """The ends of the log partitions, and their pending commits."""
    pending: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    fields = [name for name in effects.pending.column_names if name in _PENDING_FIELDS]
    for commit in effects.pending.select(fields).sort_by("record_offset").to_pylist():
        pending[commit.pop("log_partition")].append(commit)
    return {at: replace(each, pending=pending[at]) for at, each in effects.progress.items()}
