"""Folding few records in the driver: what a steady stream's batches are.

Of such a batch Spark's own jobs, a few dozen small ones, would take nearly all of the time. Here one job brings the
rows to the driver. The same replay folds them there, what has to be known of the state is read without Spark, and the
files of the state are written here (docs/adr/0011).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.delta.reader import UNREADABLE, answer, newest_table, quoted, table_as_of
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, TOPICS
from offsets_pipeline.fold.dataframes import few_rows, log_rows
from offsets_pipeline.fold.fold_writer import FoldWriter, lies_alone
from offsets_pipeline.fold.state_files import in_order, layer_files, layer_rows, layer_schema
from offsets_pipeline.layers import DESCRIBED, OFFSETS, RECORDS
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, PENDING, TOPIC
from offsets_pipeline.semantics.group_rows import described

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.fold.state import FoldedState, FoldedTo
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.layers import LayeredTable
    from offsets_pipeline.store import Store

    Group = tuple[int, str]

_FEW_ROWS = 50_000  # of the state, that are looked at here
_FEW_BYTES = 64 * 1024 * 1024
_PENDING_FIELDS = [each.name for each in FOLD_PROGRESS.schema()["pending"].dataType.elementType.fields]  # type: ignore[attr-defined]


def fold_few(store: Store, rows: DataFrame, state: FoldedState, at_most: int) -> pa.Table | None:
    """Fold rows of the table `log`; EFFECT_SCHEMA. None where that is for Spark's tasks to do.

    That is so for more than ``at_most`` rows, and where a table of the state can only be written by Spark.
    """
    if state.pending is None or any(writer.files is None for writer in state.writers.values()):
        return None
    carried = _carried_rows(state.pending)
    found = few_rows(log_rows(rows), state.folded_to, at_most - carried.num_rows)
    if found is None:
        return None
    replay = Replay(store.properties.offsets_partitions, state.folded_to)
    replay.add(found)
    replay.add(carried)
    return pa.Table.from_batches(replay.effects())


def _carried_rows(pending: pa.Table) -> pa.Table:
    """The open transactional commits as rows that the fold takes in again (R11); INPUT_SCHEMA."""
    lists = pending["pending"].combine_chunks()
    commits = lists.flatten()
    columns = {
        "log_partition": pending["log_partition"].combine_chunks().take(pc.list_parent_indices(lists)),
        "control_type": pa.nulls(len(commits), pa.string()),
        "backfill": pa.repeat(pa.scalar(value=False), len(commits)),
        "records": pa.repeat(pa.scalar(0, pa.int64()), len(commits)),
    }
    arrays = [columns[each] if each in columns else pc.struct_field(commits, each) for each in INPUT_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=INPUT_SCHEMA)


class FewWriter(FoldWriter):
    """Writes the effects of a fold of few records: looks at the state, and writes its files, in the driver.

    What is more than that is for `FoldWriter`.
    """

    def __init__(self, store: Store, effects: pa.Table, settings: FoldSettings, clock: Clock, log_epoch: int) -> None:
        super().__init__(store, effects, settings, clock, log_epoch)
        self._few = effects

    # --- offsets

    def _append_offsets(self, rows: int) -> None:
        facts = self._of_kind_here(OFFSETS, OFFSET)
        if self._state.has_pending and self._state.writers[OFFSETS.table.name].version:
            overtaken = self._overtaken(facts)
            if overtaken is None:
                super()._append_offsets(rows)
                return
            facts = facts.filter(pa.array(~overtaken))
        self._append_rows(OFFSETS, facts)

    def _overtaken(self, facts: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which facts are of transactions that a later record overtook before their marker came (R10, R11).

        None where the state holds more about their groups than is looked at here.
        """
        folded_to = self._state.folded_to
        offsets = facts["record_offset"].to_pylist()
        keys = list(zip(*(facts[name].to_pylist() for name in OFFSETS.key), strict=True))
        carried = [row for row, key in enumerate(keys) if offsets[row] < folded_to.get(key[0], 0)]
        overtaken = np.zeros(facts.num_rows, dtype=np.bool_)
        known = self._rows_of_groups(OFFSETS, {keys[row][:2] for row in carried}, [*OFFSETS.key, "record_offset"])
        if known is None:
            return None
        newest: dict[tuple[object, ...], int] = {}
        for *key, record_offset in zip(*(column.to_pylist() for column in known.columns), strict=True):
            newest[tuple(key)] = max(record_offset, newest.get(tuple(key), -1))
        for row in carried:
            overtaken[row] = newest.get(keys[row], -1) >= offsets[row]
        return overtaken

    # --- groups

    def _write_groups(self, summary: Summary) -> None:
        changed = self._changed_groups()
        known = None if changed is None else self._rows_of_groups(RECORDS, changed, RECORDS.columns)
        if changed is None or known is None:
            super()._write_groups(summary)
        elif changed:
            self._append_changed(changed, known)

    def _append_changed(self, changed: set[Group], known: pa.Table) -> None:
        records = self._of_kind_here(RECORDS, GROUP_RECORD, GROUP_COMMIT).to_pylist()
        news: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in records:
            if (row["log_partition"], row["group_id"]) in changed:
                _combine(news, row)
        whole = news.copy()
        for row in known.to_pylist():
            key = _combine(whole, row)
            if key in news:
                news[key] = whole[key]
        appended = pa.Table.from_pylist(list(news.values()), schema=known.schema)
        of_groups = in_order(RECORDS, pa.Table.from_pylist(list(whole.values()), schema=known.schema))
        rows = pa.Table.from_batches(described(of_groups.to_batches(), self._store.properties.offsets_partitions))
        writes = [partial(self._append_rows, RECORDS, appended), partial(self._append_rows, DESCRIBED, rows)]
        self._side_by_side(writes)

    def _changed_groups(self) -> set[Group] | None:
        """The groups about which there is something to write; None where that takes a look at too much.

        A commit says no more than that its group exists (R14): nothing new of a group that the state knows to exist.
        """
        told, named = (
            set(zip(*(rows[name].to_pylist() for name in DESCRIBED.key), strict=True))
            for rows in (self._of_kind_here(RECORDS, kind) for kind in (GROUP_RECORD, GROUP_COMMIT))
        )
        columns = [*DESCRIBED.key, "state", "record_offset"]
        states = self._rows_of_groups(DESCRIBED, named - told, columns)
        if states is None:
            return None
        newest: dict[Group, tuple[int, str]] = {}
        for log_partition, group_id, state, offset in zip(*(each.to_pylist() for each in states.columns), strict=True):
            at = log_partition, group_id
            newest[at] = max(newest.get(at, (-1, "")), (offset, state))
        return told | {group for group in named - told if newest.get(group, (-1, "Dead"))[1] == "Dead"}

    # --- topics and progress

    def _write_topics(self) -> None:
        told = self._few.filter(pc.equal(self._few["kind"], TOPIC)).select(["topic_id", "topic"]).to_pylist()
        try:
            query = f"SELECT * FROM topics WHERE topic_id IN ({_listed(row['topic_id'] for row in told)})"
            rows = answer(query, topics=newest_table(self._store.arrow_folder(TOPICS.name))).read_all().to_pylist()
        except UNREADABLE:
            rows = []
        known = {row["topic_id"]: row["topic"] for row in rows}
        if any(row["topic_id"] not in known or row["topic"] < known[row["topic_id"]] for row in told):
            super()._write_topics()

    def _open_commits(self, summary: Summary, state: FoldedTo) -> dict[int, list[dict[str, Any]]] | None:
        if state.pending is None:
            return None
        moved = {row.log_partition for row in summary.progress}
        found = zip(*(column.to_pylist() for column in state.pending.columns), strict=True)
        pending = {log_partition: commits for log_partition, commits in found if log_partition not in moved}
        rows = self._few.filter(pc.equal(self._few["kind"], PENDING)).sort_by("record_offset")
        for log_partition, commit in zip(
            rows["log_partition"].to_pylist(), rows.select(_PENDING_FIELDS).to_pylist(), strict=True
        ):
            pending.setdefault(log_partition, []).append(commit)
        return pending

    # --- reading and writing

    def _of_kind_here(self, layered: LayeredTable, *kinds: str) -> pa.Table:
        """The effects of these kinds as rows of a table, but for its layer."""
        rows = self._few.filter(pc.is_in(self._few["kind"], pa.array(kinds)))
        return layer_rows(layered, rows, self._log_epoch)

    def _rows_of_groups(self, layered: LayeredTable, groups: Collection[Group], columns: list[str]) -> pa.Table | None:
        """What the table holds about these groups, both layers; None where that is too much to be looked at here."""
        writer = self._state.writers[layered.table.name]
        schema = pa.schema([layer_schema(layered).field(name) for name in columns])
        if not groups or not writer.version:
            return schema.empty_table()
        partitions, names = {group[0] for group in groups}, {group[1] for group in groups}
        query = f"""
            SELECT {", ".join(columns)} FROM rows
            WHERE log_partition IN ({", ".join(map(str, partitions))}) AND group_id IN ({_listed(names)})
            AND log_epoch = {self._log_epoch}
        """
        found: list[pa.RecordBatch] = []
        try:
            for batch in answer(query, rows=table_as_of(writer.files.folder, writer.version)):
                found.append(batch)
                if sum(each.num_rows for each in found) > _FEW_ROWS or sum(each.nbytes for each in found) > _FEW_BYTES:
                    return None
        except UNREADABLE:
            return None
        return pa.Table.from_batches(found).cast(schema) if found else schema.empty_table()

    def _append_rows(self, layered: LayeredTable, rows: pa.Table) -> None:
        writer = self._state.writers[layered.table.name]
        files = layer_files(layered, in_order(layered, rows), writer.files.folder, settled=lies_alone(writer))
        writer.files.append(list(files))


def _combine(records: dict[tuple[Any, ...], dict[str, Any]], row: dict[str, Any]) -> tuple[Any, ...]:
    """Take a row of `group_records` in: of each key the last value and the last tombstone; returns its key."""
    key = tuple(row[name] for name in RECORDS.key)
    known = records.get(key)
    if known is None:
        records[key] = row
        return key
    later = row if _offset(row["value_offset"]) > _offset(known["value_offset"]) else known
    tombstones = [each["tombstone_offset"] for each in (row, known) if each["tombstone_offset"] is not None]
    records[key] = {
        **known,
        "value_offset": later["value_offset"],
        "value": later["value"],
        "tombstone_offset": max(tombstones, default=None),
        "log_epoch": max(row["log_epoch"], known["log_epoch"]),
    }
    return key


def _offset(offset: int | None) -> int:
    return -1 if offset is None else offset


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(map(quoted, texts))
