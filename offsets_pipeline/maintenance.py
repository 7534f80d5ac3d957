"""Upkeep of a store that lives for years: few files, and none that nobody reads any more.

Compacts the tables, and removes files that their tables let go of long enough ago (each table's own
`delta.deletedFileRetentionDuration` says how long). It runs beside streams and coordinators: no row
changes for them, and files that a stream still has to read stay.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.delta.filesystems import read_text
from offsets_pipeline.delta.schemas import LOG, TABLES
from offsets_pipeline.delta.upkeep import compact, kept_ms, live, vacuum
from offsets_pipeline.errors import NoSuchCheckpoint
from offsets_pipeline.log.clean import clean_log
from offsets_pipeline.log.file_compaction import rewritten
from offsets_pipeline.state.merge_on_read import STATE_TABLES
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
    """A table's live files and their bytes, before and after, and how many dead files were removed."""

    table: str
    files_before: int
    bytes_before: int
    files: int
    bytes: int
    removed: int


def maintain_store(
    store: Store, clock: Clock, checkpoints: Iterable[str] = (), *, settings: Settings | None = None
) -> list[Upkeep]:
    """Settle, compact and vacuum every table of the store; what was done to each.

    The log is cleaned before, where the settings say that nobody wants its whole history. ``checkpoints`` are those of
    streams that read the log and keep their checkpoint outside of the store; those within are known.

    Raises NoSuchCheckpoint where such a folder holds no checkpoint, CannotClean where the log is to be cleaned and
    cannot be, WriteConflict where others who rewrite the log came first too often.
    """
    unread = _first_unread_version(store, checkpoints)
    state_tables = {each.name: each for each in STATE_TABLES}
    done = []
    for table in TABLES:
        folder = store.table(table.name)
        before = live(folder)
        if table is LOG and settings is not None and settings.log.history_hours:
            clean_log(store, settings, clock, older_than_ms=settings.log.history_hours * MS_OF_HOUR)
        if table.name in state_tables:
            _compact_state(store, state_tables[table.name])
        else:
            compact(folder, partial(rewritten, folder) if table is LOG else None)
        removed = _vacuum(folder, clock, unread if table is LOG else None)
        done.append(Upkeep(table.name, *before, *live(folder), removed))
    return done


def _compact_state(store: Store, table: StateTable) -> None:
    """Compact a state table that has delta files, or files of incarnations that are no longer named.

    If a stream compacts the table at the same time, the next run does it.
    """
    sizes = sizes_of(store, table)
    if sizes.delta_files or sizes.dropped_files:
        compact_state(store, table)


def _vacuum(folder: TableFolder, clock: Clock, unread: int | None) -> int:
    """Remove files that the table let go of long enough ago; returns how many.

    Removes none while a stream has yet to read a version that is older than that.
    """
    since_ms = None if unread is None else folder.committed_ms(unread)
    # a file that the table has had since that version was let go of after it
    if since_ms is not None and clock.now_ms() - since_ms + _MARGIN_MS > kept_ms(folder):
        return 0
    return vacuum(folder)


# --- who reads the log


def _first_unread_version(store: Store, checkpoints: Iterable[str]) -> int | None:
    """The first version of the log that one of the streams has not read; None where there are no streams."""
    versions = [_unread(store, folder) for folder in store.checkpoints()]
    for folder in checkpoints:
        version = _unread(store, absolute(folder))
        if version is None:
            raise NoSuchCheckpoint(f"{folder} is no checkpoint of a stream that has read the log: name its folder")
        versions.append(version)
    return min((each for each in versions if each is not None), default=None)


def _unread(store: Store, checkpoint: str) -> int | None:
    """The version of the log that the stream reads next, by the last of its batches that ended, or its first plan."""
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
