"""Upkeep of a store that lives for years: few files, and none that nobody reads any more.

Settles the state tables, puts small files of the others together (OPTIMIZE), and removes the files that their tables
let go of long enough ago (VACUUM; each table's own `delta.deletedFileRetentionDuration` says how long). It runs beside
streams: what it rearranges is no change to them, and files that a stream still has to read stay.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.delta.schemas import LOG, TABLES
from offsets_pipeline.errors import NoSuchCheckpoint
from offsets_pipeline.log.clean import clean_log
from offsets_pipeline.retry import CONFLICTS
from offsets_pipeline.state.compact import compact, sizes_of
from offsets_pipeline.state.merge_on_read import STATE_TABLES
from offsets_pipeline.store import absolute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.state.merge_on_read import StateTable
    from offsets_pipeline.store import Store

_LEAST_TASKS = 8
_MARGIN_MS = 60_000  # clocks of several machines differ
_CONF = {
    # As the tasks of an ingest write the log (docs/adr/0007); what Spark does by itself takes three times the space.
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.dictionary.page.size": str(64 * 1024 * 1024),
    # Larger files are left alone: a long log is not written again and again, and tasks share it out by files.
    "spark.databricks.delta.optimize.minFileSize": str(16 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(64 * 1024 * 1024),
    # The table's history then tells what a VACUUM did.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}


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
    # VACUUM lists folders in so many tasks, by default in ten thousand
    tasks = str(max(_LEAST_TASKS, store.spark.sparkContext.defaultParallelism))
    with _configured(store.spark, _CONF | {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}):
        for table in TABLES:
            before = _live_files(store, table.name)
            if table is LOG and settings is not None and settings.log.history_hours:
                clean_log(store, settings, clock, older_than_ms=settings.log.history_hours * MS_OF_HOUR)
            if table.name in state_tables:
                _compact(store, state_tables[table.name])
            else:
                with suppress(*CONFLICTS):  # somebody rewrote the same files: the next time will do
                    store.spark.sql(f"OPTIMIZE {store.table_name(table.name)}")  # in Python a path may have no backtick
            removed = _vacuum(store, table.name, clock, unread if table is LOG else None)
            done.append(Upkeep(table.name, *before, *_live_files(store, table.name), removed))
    return done


def _compact(store: Store, table: StateTable) -> None:
    """Compact a state table that has delta files, or files of incarnations that are no longer named.

    If a stream compacts the table at the same time, the next run does it.
    """
    sizes = sizes_of(store, table)
    if sizes.delta_files or sizes.dropped_files:
        compact(store, table)


def _vacuum(store: Store, name: str, clock: Clock, unread: int | None) -> int:
    """Remove what the table let go of long enough ago; returns how many files.

    Nothing, as long as a stream has yet to read a version that is older than that.
    """
    version = store.version(name)
    since_ms = None if unread is None else store.committed_ms(name, unread)
    # What was added from that version on was let go of since then, if it was. How long to keep is the table's to say:
    # Delta ignores any other number.
    if since_ms is not None and clock.now_ms() - since_ms + _MARGIN_MS > store.kept_ms(name):
        return 0
    store.delta(name).vacuum()
    ended = [each for each in store.commits(name, version + 1) if each.get("operation") == "VACUUM END"]
    return sum(int(each["operationMetrics"]["numDeletedFiles"]) for each in ended)


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
    lines = store.spark.read.text(f"{checkpoint}/offsets/{max(ended, default=min(planned))}").collect()
    offsets = [json.loads(row["value"]) for row in lines if row["value"].startswith("{")]
    versions = [int(each["reservoirVersion"]) for each in offsets if "reservoirVersion" in each]
    return min(versions, default=None)


def _live_files(store: Store, name: str) -> tuple[int, int]:
    found = store.files(name).agg(F.count("*"), F.coalesce(F.sum("size"), F.lit(0))).first()
    assert found is not None  # noqa: S101 - an aggregate has a row
    return found[0], found[1]


@contextmanager
def _configured(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
