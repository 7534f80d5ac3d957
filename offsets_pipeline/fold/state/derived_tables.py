"""Published tables that are written as a whole: members, pending commits, connectors, and how far all tables reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.sql_dialects import DUCKDB
from offsets_pipeline.connect.connector_views import stores_beside
from offsets_pipeline.fold.state.data_time import data_ms_of, notes_of
from offsets_pipeline.fold.state.fold_progress import INCARNATION, FoldProgress, belonging, pending_of
from offsets_pipeline.fold.state.merge_on_read import CONNECT, SHARES, StateTable
from offsets_pipeline.fold.state.published_rows import connect_rows, rows_by_sql
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.fold.state.unfolded import unfolded_records
from offsets_pipeline.fold.state.view_queries import SHARE_VIEWS, VIEWS
from offsets_pipeline.semantics.answering import HIDES_OFFSETS
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.schemas import (
    CONSUMER_GROUPS,
    FOLD_PROGRESS,
    GROUP_MEMBERS,
    LOG,
    LOG_PARTITIONS,
    PUBLISHED_AS_OF,
    SHARE_PARTITIONS,
    TOPICS,
    UNSTABLE_OFFSETS,
    published_tables_of,
)
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.snapshot import Snapshot

#: Delta application whose transactions in `group_members` are the version of `topics` that its names are of.
_TOPICS = "offsets-topics"
#: Delta application whose transactions are the number of records that connectors or share partitions were made of.
_RECORDS = "offsets-records"


def write_derived(
    store: Store,
    progress: FoldProgress,
    seen: Mapping[str, Snapshot],
    versions: Mapping[str, int],
    *,
    groups_changed: bool,
) -> dict[str, int]:
    """Write the tables that are made from the published groups, or from connect records; returns their versions.

    ``seen`` are these tables as they were before the progress was read. ``versions`` are those of the published tables
    that this publishing has written: a later one may have rows of a reload that never ends.

    Raises WriteConflict if another process has written them since, DamagedTable as `belonging`.
    """
    for table in published_tables_of(store.properties.topic_kind):
        belonging(store.table(table.name), progress)
    if not store.properties.topic_kind.has_groups:
        return _write_from_facts(store, progress, seen)
    folder, version = store.table(CONSUMER_GROUPS.name), versions.get(CONSUMER_GROUPS.name)
    groups = belonging(folder, progress) if version is None else folder.snapshot()
    if version is not None and groups.version != version:
        groups = folder.snapshot(version)
    return {
        GROUP_MEMBERS.name: _write_members(
            store, progress, seen[GROUP_MEMBERS.name], groups, groups_changed=groups_changed
        ),
        UNSTABLE_OFFSETS.name: _write_unstable(store, progress, seen[UNSTABLE_OFFSETS.name], groups),
    }


def _write_members(
    store: Store, progress: FoldProgress, seen: Snapshot, groups: Snapshot, *, groups_changed: bool
) -> int:
    names = store.table(TOPICS.name).snapshot()
    made_of = {INCARNATION: progress.incarnation, _TOPICS: names.version}
    if not groups_changed and all(seen.transaction(each) == version for each, version in made_of.items()):
        return seen.version
    rows = rows_by_sql(
        VIEWS["group_members"].format(groups="groups", answers="TRUE", topics="topics", **DUCKDB),
        groups=groups.rows(["group_id", "members"]),
        topics=names.rows(),
    )
    return store.table(GROUP_MEMBERS.name).replace(rows, seen=seen, advance=made_of)


def _write_unstable(store: Store, progress: FoldProgress, seen: Snapshot, groups: Snapshot) -> int:
    """R17: the pending commits of groups that exist."""
    if not any(each.pending for each in progress.partitions.values()) and not seen.files():
        return seen.version
    found = rows_by_sql(
        VIEWS["unstable_offsets"].format(
            groups="groups", hides_offsets=HIDES_OFFSETS, fold_progress="progress", **DUCKDB
        ),
        groups=groups.rows(["log_partition", "group_id", "group_type", "state"]),
        progress=pending_of(progress.partitions),
    ).cast(UNSTABLE_OFFSETS.arrow_schema())
    return seen.version if found.equals(seen.rows()) else store.table(UNSTABLE_OFFSETS.name).replace(found, seen=seen)


# --- Kafka Connect, and share partitions


def _write_from_facts(store: Store, progress: FoldProgress, seen: Mapping[str, Snapshot]) -> dict[str, int]:
    """R30, R39: the rows of the views, if this store or one beside it has more records; returns the versions."""
    kind = store.properties.topic_kind
    others = stores_beside(store.location, store.properties, lambda other: Store.find(lambda: store.spark, other))
    every = {store: progress} | {each: FoldProgress.read(each.table(FOLD_PROGRESS.name)) for each in others}
    records = sum(each.records for one in every.values() for each in one.partitions.values())
    made_of = {INCARNATION: progress.incarnation, _RECORDS: records}
    written = {table.name: seen[table.name] for table in published_tables_of(kind)}
    if all(each.transaction(name) == made for each in written.values() for name, made in made_of.items()):
        return {name: each.version for name, each in written.items()}
    if kind.is_connect:
        stores = [(each.properties.topic_kind, _facts(each, CONNECT, known)) for each, known in every.items()]
        rows = {name: connect_rows(name, stores) for name in written}
    else:
        view = SHARE_VIEWS[SHARE_PARTITIONS.name].format(share_partitions="facts")
        found = rows_by_sql(view, facts=_facts(store, SHARES, progress)).cast(SHARE_PARTITIONS.arrow_schema())
        rows = {SHARE_PARTITIONS.name: found}
    return {name: store.table(name).replace(rows[name], seen=each, advance=made_of) for name, each in written.items()}


def _facts(store: Store, table: StateTable, progress: FoldProgress) -> pa.Table:
    """The rows of a table of facts that count as of a progress."""
    rows = StoredRows.of([belonging(store.table(table.name), progress)], progress.incarnations)
    return rows.newest(table, table.columns, ends=progress.folded_to)


# --- how far they reach


def note_as_of(store: Store, progress: FoldProgress, seen: Snapshot, times: dict[int, int], now_ms: int) -> None:
    """Write how far the published tables reach, and as of when; no data time steps back.

    The data time is that of ``times``, from `data_times`, or else that of the newest commit in the published rows. None
    is after now, as the timestamp of a commit may be. ``seen`` is the table as it was before the progress was read.
    Raises WriteConflict if it was written since.
    """
    known = seen.rows()
    places = zip(known["table_name"].to_pylist(), known["log_partition"].to_pylist(), strict=True)
    before = dict(zip(places, known["data_time"].cast(pa.int64()).to_pylist(), strict=True))
    now = now_ms * 1000
    if not progress.partitions.keys() <= times.keys():
        times = _newest_commits(store) | times
    rows = [
        {
            "table_name": published.name,
            "log_partition": at,
            "record_offset": each.folded_to,
            "data_time": max(
                (min(each, now) for each in (times.get(at), before.get((published.name, at))) if each), default=None
            ),
            "published_at": now,
        }
        for published in published_tables_of(store.properties.topic_kind)
        for at, each in sorted(progress.partitions.items())
    ]
    found = pa.Table.from_pylist(rows, schema=PUBLISHED_AS_OF.arrow_schema())
    store.table(PUBLISHED_AS_OF.name).replace(found, seen=seen)


def data_times(store: Store, progress: FoldProgress, now_ms: int) -> dict[int, int]:
    """The data time of each log partition without unfolded records (R36), in microseconds, as the progress was read."""
    notes = store.table(LOG_PARTITIONS.name).snapshot()  # before the log: a look at the source may follow an append
    log, incarnation = store.table(LOG.name).snapshot(), progress.log_incarnation
    if store.current_log().number != incarnation:
        return {}
    missing, behind, _ = unfolded_records(log, incarnation, progress.partitions, progress.snapshot)
    whole = progress.partitions.keys() - missing.keys() - behind
    if store.properties.kind == OWNED:
        return dict.fromkeys(whole, now_ms * 1000)
    of_incarnation = notes_of(notes.rows(), incarnation)
    found = data_ms_of(store.properties.kind, store.location, log, of_incarnation, incarnation, now_ms)
    return {at: found[at] * 1000 for at in whole & found.keys()}


def _newest_commits(store: Store) -> dict[int, int]:
    """The time of the newest commit in the published rows of each log partition, in microseconds."""
    kind = store.properties.topic_kind
    time_of = "commit_timestamp" if kind.has_groups else "record_timestamp"
    rows = store.table(published_tables_of(kind)[0].name).snapshot().rows(["log_partition", time_of])
    times = rows_by_sql(f"SELECT log_partition, epoch_us(max({time_of})) FROM found GROUP BY ALL", found=rows)
    in_pairs = zip(*(column.to_pylist() for column in times.columns), strict=True)
    return {at: time_us for at, time_us in in_pairs if time_us is not None}
