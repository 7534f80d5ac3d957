"""Upkeep of a store: cleans the log if the settings ask for it, compacts its tables and vacuums them.

A vacuum removes files that a table dropped longer ago than its `delta.deletedFileRetentionDuration`. Streams and
coordinators may run meanwhile: a compaction changes no row, and a vacuum keeps files that a stream has yet to read.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.delta.filesystems import read_text
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.delta.upkeep import compact, kept_ms, live, vacuum
from offsets_pipeline.errors import NoSuchCheckpoint
from offsets_pipeline.log.clean import clean_log
from offsets_pipeline.log.file_compaction import rewritten
from offsets_pipeline.state.merge_on_read import state_tables_of
from offsets_pipeline.state.table_compaction import compact as compact_state
from offsets_pipeline.state.table_compaction import sizes_of
from offsets_pipeline.store import absolute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.delta import TableFolder
    from offsets_pipeline.state.merge_on_read import StateTable
    from offsets_pipeline.store import Store

_MARGIN_MS = 60_000  # clocks of several machines differ


class Upkeep(NamedTuple):
    """A table's live files and their bytes, before and after; ``removed`` is the number of vacuumed files."""

    table: str
    files_before: int
    bytes_before: int
    files: int
    bytes: int
    removed: int


def maintain_store(
    store: Store, clock: Clock, checkpoints: Iterable[str] = (), *, settings: Settings | None = None
) -> list[Upkeep]:
    """Compact and vacuum every table of the store; returns the upkeep of each.

    Cleans the log first if `history_hours` is set.

    Args:
        store: the store.
        clock: the present time.
        checkpoints: checkpoint folders outside of the store, of streams that read the log; those inside are known.
        settings: the program's settings; without them the log is not cleaned.

    Raises:
        NoSuchCheckpoint: one of ``checkpoints`` is not the checkpoint of a stream over the log.
        CannotClean: the log cannot be cleaned.
        WriteConflict: other writers that rewrite the log committed first too often.
    """
    unread = _first_unread_version(store, checkpoints)
    state_tables = {each.name: each for each in state_tables_of(store.properties.topic_kind)}
    done = []
    for table in store.tables:
        folder = store.table(table.name)
        before = live(folder)
        cleans = settings is not None and settings.log.history_hours and not store.properties.topic_kind.is_connect
        if table is LOG and settings is not None and cleans:
            clean_log(store, settings, clock, older_than_ms=settings.log.history_hours * MS_OF_HOUR)
        if table.name in state_tables:
            _compact_state(store, state_tables[table.name])
        else:
            compact(folder, partial(rewritten, folder) if table is LOG else None)
        removed = _vacuum(folder, clock, unread if table is LOG else None)
        done.append(Upkeep(table.name, *before, *live(folder), removed))
    return done


def _compact_state(store: Store, table: StateTable) -> None:
    """Compact a state table if it has delta files, or files of dropped incarnations.

    If a stream compacts the table at the same time, the next run compacts the rest.
    """
    sizes = sizes_of(store, table)
    if sizes.delta_files or sizes.dropped_files:
        compact_state(store, table)


def _vacuum(folder: TableFolder, clock: Clock, unread: int | None) -> int:
    """Remove files that the table dropped longer ago than its retention; returns how many.

    Removes none if a stream has yet to read a version older than the retention. ``unread`` is the first such version.
    """
    since_ms = None if unread is None else folder.committed_ms(unread)
    # The table drops a version's files after its commit. Vacuum keeps them if the commit is younger than the retention.
    if since_ms is not None and clock.now_ms() - since_ms + _MARGIN_MS > kept_ms(folder):
        return 0
    return vacuum(folder)


# --- streams that read the log


def _first_unread_version(store: Store, checkpoints: Iterable[str]) -> int | None:
    """The first version of the log that one of the streams has not read; None without streams."""
    versions = [_unread(store, folder) for folder in store.checkpoints()]
    for folder in checkpoints:
        version = _unread(store, absolute(folder))
        if version is None:
            raise NoSuchCheckpoint(f"{folder} is not the checkpoint of a stream over the log; name the folder of one")
        versions.append(version)
    return min((each for each in versions if each is not None), default=None)


def _unread(store: Store, checkpoint: str) -> int | None:
    """The version of the log that the stream reads next: of its last committed batch, else of its first planned one."""
    ended, planned = (
        [int(name) for name in store.children(f"{checkpoint}/{folder}") if name.isdigit()]
        for folder in ("commits", "offsets")
    )
    if not planned:
        return None
    text = read_text(f"{checkpoint}/offsets/{max(ended, default=min(planned))}")
    offsets = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    versions = [int(each["reservoirVersion"]) for each in offsets if "reservoirVersion" in each]
    return min(versions, default=None)
