"""The changes of a replay to the state, and the one writer of their files.

They depend on replayed rows and on the known state of their groups. `StateWriter` runs where the rows are: in a
Spark task for its log partitions, or in the driver for a small batch. Its files belong to the state once a commit adds
them (fold.py). Rows that are written twice, or late, change nothing (merge_on_read.py).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.fold.state.merge_on_read import (
    CONNECT,
    DESCRIBED,
    OFFSETS,
    RECORDS,
    SHARES,
    StateTable,
    ended,
    last_of_each,
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
from offsets_pipeline.fold.state.stored_rows import KnownGroups, groups_in
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, Effects, ReplayedPartition
from offsets_pipeline.semantics.group_description import GroupRecordRow, existence
from offsets_pipeline.semantics.group_facts import described
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.store.log.log_reader import compacted_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from offsets_pipeline.fold.state.fold_progress import FoldProgress
    from offsets_pipeline.fold.state.replay_start import ReplayStart
    from offsets_pipeline.store.delta.data_file import DataFile

    Group = tuple[int, str]

_PENDING_FIELDS = ["log_partition", *FOLD_PROGRESS.arrow_schema().field("pending").type.value_type.names]


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
    known: KnownGroups | None = None

    def changes(self, tables: Iterable[pa.Table]) -> Changes:
        """Replay all unfolded records of whole log partitions, and write the files with what they change."""
        effects = self.start.replay(tables)
        changes = Changes(partitions=partitions_of(effects), topics=effects.topics, quarantine=effects.quarantine)
        known = None if self.known is None else self.known.up_to(self.start.folded_to)
        news, whole = _group_records(effects, known)
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


def _group_records(effects: Effects, known: KnownGroups | None) -> tuple[pa.Table, pa.Table]:
    """Rows of `group_records` that are new, and all rows of the groups that these are about.

    A commit only says that its group exists (R14), so it changes nothing if the group is known to exist. A steady
    stream of commits writes nothing here. Under `classic` a commit row without a value says that the group may have
    lost its last offset, which the state must tell.
    """
    records, commits = effects.group_records, effects.group_commits
    holding = commits.filter(commits["value_offset"].is_valid())
    if known is None:
        whole = pa.concat_tables([records, holding])
        return whole, whole
    bare = commits.filter(commits["value_offset"].is_null())
    named = groups_in(records)
    existing = known.existing(groups_in(commits) - named)
    changed = named | (groups_in(holding) - existing) | (groups_in(bare) & existing)
    of_state = _of_groups(known.records(changed), changed)
    news = [records, _of_groups(holding, changed)]
    if bare.num_rows:
        deleted = effects.offsets.filter(effects.offsets["committed_offset"].is_null())
        news.append(_told_by_state(_of_groups(bare, changed), _newest_of_each([records], of_state), known, deleted))
    whole = _newest_of_each(news, of_state)
    return whole.filter(whole["is_new"]).select(RECORDS.columns), whole.select(RECORDS.columns)


def _told_by_state(bare: pa.Table, records: pa.Table, known: KnownGroups, deleted: pa.Table) -> pa.Table:
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
    holds = are_of_groups(bare, known.with_offsets(asked, _of_groups(deleted, asked)))
    values = bare.filter(holds).rename_columns({"tombstone_offset": "value_offset", "value_offset": "tombstone_offset"})
    return pa.concat_tables([bare.filter(pc.invert(holds)), values.select(bare.column_names)])


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
