"""`offsets lag`: offsets behind, seconds behind, and status of groups. Imports no Spark."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.cli.answer_times import STALE, answer_time_of, log_answer_time_of
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import with_cluster, write_rows
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.lag.lag_rows import GroupLag, LagRow, group_lags
from offsets_pipeline.questions.query.as_of import offsets_as_of
from offsets_pipeline.questions.query.group_listing import is_pattern, matching, without_match
from offsets_pipeline.semantics.group_types import SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from offsets_pipeline.cli.section_questions import Lag
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.describe import GroupAnswer

_FIRST_COLUMNS = ("cluster", "group", "topic", "partition", "lag", "lag_seconds", "status", "reason")


@contextmanager
def _for_many_rows() -> Iterator[None]:
    """Stop the garbage collector, and let Arrow allocate as the C library does.

    The collector takes a second to look at the rows of 200,000 offsets, and finds nothing. Arrow's own allocator gives
    memory back after each block of the log, and takes a second to get it again.
    """
    was_enabled, pool = gc.isenabled(), pa.default_memory_pool()
    gc.disable()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
        if was_enabled:
            gc.enable()


@_for_many_rows()
def lag(options: Lag, settings: Settings) -> None:
    """Show the lag of these groups, or of all.

    Raises NoSuchGroup for named groups that do not exist, and for patterns that match none, after the others are shown.
    """
    kind = GroupLag if options.summary else LagRow
    readers = open_readers(options.stores, settings)
    columns = with_cluster(kind._fields, readers)
    answered: set[str] = set()
    shown: list[tuple[Any, ...]] = []
    for store, reader in readers.items():
        with LiveCluster(options.positions_from, settings) as live:
            if options.at_ms is None:
                groups = live.groups(reader, options.groups or None)
                time = answer_time_of(reader, store, settings)
            else:
                log = LogHistory(reader)
                groups = _past_groups(log, options.groups, options.at_ms)
                time = log_answer_time_of(log, store, settings, options.at_ms)
            of_store = live.lag(reader, groups, time, window_commits=settings.lag.window_commits, at_ms=options.at_ms)
        rows: Sequence[tuple[Any, ...]] = group_lags(groups, of_store) if options.summary else of_store
        if len(readers) > 1:
            rows = [(*row, reader.cluster) for row in rows]
        if options.format_ == "json":
            stale = {  # a share group has share partitions in several log partitions
                name: time.stale if group.type == SHARE else time.of_partition(group.log_partition)
                for name, group in groups.items()
            }
            rows = [(*row, stale[row[0]]) for row in rows]
        shown += rows
        answered.update(groups)
    if options.format_ == "json":
        columns.append(STALE)
    missing = without_match(options.groups, answered)
    if shown or not missing:
        write_rows(columns, shown, options.format_, absolute=options.absolute, first=_FIRST_COLUMNS)
    if missing:
        raise NoSuchGroup.of(missing, ", ".join(reader.location for reader in readers.values()))


def _past_groups(log: LogHistory, patterns: Sequence[str], at_ms: int) -> dict[str, GroupAnswer]:
    """The groups with these names or patterns, or all, at a past time."""
    if not any(map(is_pattern, patterns)):
        return offsets_as_of(log, time_ms=at_ms, group_ids=patterns or None).groups
    groups = offsets_as_of(log, time_ms=at_ms).groups
    return {name: groups[name] for name in matching(groups, patterns)}
