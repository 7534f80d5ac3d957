"""Published tables that are made as a whole: members, pending commits, connectors, and how far all tables reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.connect.connector_views import CONNECT_VIEWS, connect_conditions
from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.delta.properties import OWNED, beside
from offsets_pipeline.delta.schemas import (
    CONNECTOR_OFFSETS,
    CONSUMER_GROUPS,
    CURRENT_OFFSETS,
    FOLD_PROGRESS,
    GROUP_MEMBERS,
    LOG,
    LOG_PARTITIONS,
    PUBLISHED_AS_OF,
    TOPICS,
    UNSTABLE_OFFSETS,
    published_tables_of,
)
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.sql_dialects import DUCKDB
from offsets_pipeline.state.belonging import INCARNATION, belonging
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import CONNECT
from offsets_pipeline.state.merged_rows import facts_of, merged, named_files
from offsets_pipeline.state.published_rows import ended, published_members
from offsets_pipeline.state.unfolded import UnfoldedLog
from offsets_pipeline.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from offsets_pipeline.delta.snapshot import Snapshot

#: Delta application whose transactions in `group_members` are the version of `topics` that its names are of.
_TOPICS = "offsets-topics"
#: Delta application whose transactions are the number of records that connectors were made of.
_RECORDS = "offsets-records"


def write_derived(
    store: Store, progress: FoldProgress, seen: Mapping[str, Snapshot], *, groups_changed: bool
) -> dict[str, int]:
    """Write the tables that are made from the published groups, or from connect records; returns their versions.

    ``seen`` are these tables as they were before the progress was read. Raises WriteConflict if another process has
    written them since, DamagedTable as `belonging`.
    """
    for table in published_tables_of(store.properties.topic_kind):
        belonging(store.table(table.name), progress)
    if store.properties.topic_kind.is_connect:
        return _write_connectors(store, progress, seen)
    return {
        GROUP_MEMBERS.name: _write_members(store, progress, seen[GROUP_MEMBERS.name], groups_changed=groups_changed),
        UNSTABLE_OFFSETS.name: _write_unstable(store, progress, seen[UNSTABLE_OFFSETS.name]),
    }


def _write_members(store: Store, progress: FoldProgress, seen: Snapshot, *, groups_changed: bool) -> int:
    names = store.table(TOPICS.name).snapshot()
    made_of = {INCARNATION: progress.incarnation, _TOPICS: names.version}
    if not groups_changed and all(seen.transaction(each) == version for each, version in made_of.items()):
        return seen.version
    folder = store.table(CONSUMER_GROUPS.name)
    found = [CONSUMER_GROUPS.arrow_schema().empty_table().select(["group_id", "members"])]
    for file in folder.snapshot().files():
        with folder.open_file(file) as parquet:
            found.append(parquet.read(found[0].column_names, use_threads=False).cast(found[0].schema))
    topics = names.rows()
    of_id = dict(zip(topics["topic_id"].to_pylist(), topics["topic"].to_pylist(), strict=True))
    return _replace(store, seen, published_members(pa.concat_tables(found), of_id), made_of)


def _write_unstable(store: Store, progress: FoldProgress, seen: Snapshot) -> int:
    """R17: the pending commits of groups that exist."""
    rows = [
        {
            **{name: each[name] for name in ("group_id", "topic", "partition", "producer_id", "record_offset")},
            "pending_offset": each["committed_offset"],
            "log_partition": at,
        }
        for at, partition in progress.partitions.items()
        for each in partition.pending
        if not each["misplaced"]
    ]
    if not rows and not seen.files():
        return seen.version
    existing = _answering_groups(store, {row["group_id"] for row in rows})
    kept = [row for row in rows if (row["log_partition"], row["group_id"]) in existing]
    found = pa.Table.from_pylist(kept, schema=UNSTABLE_OFFSETS.arrow_schema())
    known = seen.rows()
    return seen.version if found.equals(known) else _replace(store, seen, found)


def _answering_groups(store: Store, group_ids: set[str]) -> set[tuple[int, str]]:
    """Those of the groups whose offsets are answered (R14)."""
    folder = store.table(CONSUMER_GROUPS.name)
    found: set[tuple[int, str]] = set()
    for file in folder.snapshot().files() if group_ids else ():
        with folder.open_file(file) as parquet:
            rows = parquet.read(["log_partition", "group_id", "group_type"], use_threads=False)
        hides = pc.fill_null(pc.equal(rows["group_type"], SHARE), False)  # noqa: FBT003 - of Arrow
        rows = rows.filter(pc.and_not(pc.is_in(rows["group_id"], pa.array(sorted(group_ids), pa.string())), hides))
        found |= set(zip(rows["log_partition"].to_pylist(), rows["group_id"].to_pylist(), strict=True))
    return found


# --- Kafka Connect


def _write_connectors(store: Store, progress: FoldProgress, seen: Mapping[str, Snapshot]) -> dict[str, int]:
    """R30: the rows of the views, if this store or one beside it has more records; returns the versions."""
    beside_it = (Store.find(lambda: store.spark, each) for each in beside(store.location))
    others = [each for each in beside_it if each is not None and each.properties.topic_kind.is_connect]
    every = {store: progress} | {each: FoldProgress.read(each.table(FOLD_PROGRESS.name)) for each in others}
    records = sum(each.records for one in every.values() for each in one.partitions.values())
    made_of = {INCARNATION: progress.incarnation, _RECORDS: records}
    written = {table.name: seen[table.name] for table in published_tables_of(store.properties.topic_kind)}
    if all(each.transaction(name) == made for each in written.values() for name, made in made_of.items()):
        return {name: each.version for name, each in written.items()}
    kinds = [each.properties.topic_kind for each in every]
    with duckdb.connect() as connection:
        for number, (each, known) in enumerate(every.items()):
            connection.register(f"store{number}", _connect_rows(each, known))
        places = {
            "own": "store0",
            "all": " UNION ALL ".join(f"FROM store{number}" for number in range(len(every))),
            **DUCKDB,
            **connect_conditions(kinds),
        }
        found = {
            name: connection.sql(f"FROM ({CONNECT_VIEWS[name].format(**places)}) ORDER BY 1, 2").to_arrow_table()
            for name in written
        }
    return {
        name: _replace(store, each, found[name].cast(each.table.arrow_schema()), made_of)
        for name, each in written.items()
    }


def _connect_rows(store: Store, progress: FoldProgress) -> pa.Table:
    """The rows of `connect_records` that count as of a progress."""
    folder = store.table(CONNECT.name)
    files = named_files(belonging(folder, progress).files(), progress.incarnations)
    facts = facts_of(CONNECT, folder, files, progress.incarnations, progress.partitions.keys())
    return merged(CONNECT, facts.filter(pc.less_equal(facts["folded_to"], ended(facts, progress.folded_to))), None)


def _replace(store: Store, seen: Snapshot, rows: pa.Table, advance: Mapping[str, int] | None = None) -> int:
    """Put rows in place of all rows of a table; returns the version. Raises WriteConflict if it changed since."""
    folder = store.table(seen.table.name)
    return folder.commit(
        [folder.write_file(rows)] if rows.num_rows else [],
        seen.files(),
        seen=seen,
        advance={APPLICATION: seen.transaction(APPLICATION) + 1, **(advance or {})},
    )


# --- how far they reach


def note_as_of(store: Store, progress: FoldProgress, seen: Snapshot, times: Mapping[int, int], now_ms: int) -> None:
    """Write how far the published tables reach, and as of when, by `data_times`; no data time steps back.

    ``seen`` is the table as it was before the progress was read. Raises WriteConflict if it was written since.
    """
    known = seen.rows()
    before = dict(
        zip(
            zip(known["table_name"].to_pylist(), known["log_partition"].to_pylist(), strict=True),
            known["data_time"].cast(pa.int64()).to_pylist(),
            strict=True,
        )
    )
    rows = [
        {
            "table_name": published.name,
            "log_partition": at,
            "record_offset": each.folded_to,
            "data_time": max(filter(None, (times.get(at), before.get((published.name, at)))), default=None),
            "published_at": now_ms * 1000,
        }
        for published in published_tables_of(store.properties.topic_kind)
        for at, each in sorted(progress.partitions.items())
    ]
    _replace(store, seen, pa.Table.from_pylist(rows, schema=PUBLISHED_AS_OF.arrow_schema()))


def data_times(store: Store, progress: FoldProgress, now_ms: int) -> dict[int, int]:
    """The data time of each log partition in microseconds (R36), just after the progress was read.

    A log partition without unfolded records has all records up to the last look at its source. Another one has them up
    to its newest commit of the last publishing; without one it has none here.
    """
    log = UnfoldedLog(store.table(LOG.name).snapshot(), store.table(LOG_PARTITIONS.name).snapshot(), store.properties)
    if log.incarnation != progress.log_incarnation:
        return {}
    missing, behind = log.unfolded(progress.partitions)
    notes = _notes(store, progress.log_incarnation)
    files_us = max((each["updated_at"] or 0 for each in notes.values()), default=0)
    times: dict[int, int] = {}
    for at in progress.partitions.keys() - missing.keys() - behind:
        if store.properties.kind == OWNED:
            times[at] = now_ms * 1000
        elif at in notes:
            times[at] = notes[at]["read_at"] or files_us
    late = progress.partitions.keys() - times.keys()
    return times | _newest_commits(store, late) if late else times


def _notes(store: Store, log_incarnation: int) -> dict[int, dict[str, Any]]:
    rows = store.table(LOG_PARTITIONS.name).snapshot().rows()
    columns = {name: rows[name].cast(pa.int64()).to_pylist() for name in ("log_partition", "log_incarnation")}
    for name in ("updated_at", "read_at"):  # as numbers: Arrow imports pandas to convert a time
        columns[name] = rows[name].cast(pa.int64()).to_pylist()
    notes = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return {each["log_partition"]: each for each in notes if each["log_incarnation"] == log_incarnation}


def _newest_commits(store: Store, partitions: AbstractSet[int]) -> dict[int, int]:
    """The time of the newest published commit of each of these log partitions, in microseconds."""
    is_connect = store.properties.topic_kind.is_connect
    table, time_of = (CONNECTOR_OFFSETS, "record_timestamp") if is_connect else (CURRENT_OFFSETS, "commit_timestamp")
    folder = store.table(table.name)
    newest: dict[int, int] = {}
    for file in folder.snapshot().files():
        with folder.open_file(file) as parquet:
            rows = parquet.read(["log_partition", time_of], use_threads=False)
        found = rows.group_by("log_partition").aggregate([(time_of, "max")])
        times = found[f"{time_of}_max"].cast(pa.int64()).to_pylist()
        for at, time in zip(found["log_partition"].to_pylist(), times, strict=True):
            if at in partitions and time is not None:
                newest[at] = max(time, newest.get(at, time))
    return newest
