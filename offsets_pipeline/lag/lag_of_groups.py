"""Lag of groups of a store, as of its data time: the same rows for every command, metric and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.lag.lag_rows import lag_rows
from offsets_pipeline.lag.logged_commits import commits_at, last_commits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.lag.commit_windows import WindowColumns
    from offsets_pipeline.lag.lag_rows import LagRow
    from offsets_pipeline.lag.position_sources import PositionSource
    from offsets_pipeline.query.answer_time import AnswerTime
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader


def lag_of_groups(
    reader: StateReader,
    groups: Mapping[str, GroupAnswer],
    time: AnswerTime,
    positions: PositionSource,
    window_commits: int | None = None,
    at_ms: int | None = None,
) -> list[LagRow]:
    """Return the lag of these groups of a store.

    Args:
        reader: the store.
        groups: its groups, as of ``at_ms``.
        time: the data time of the groups.
        positions: positions of their topics.
        window_commits: evaluates statuses from so many commits of each offset; None: rows have no status.
        at_ms: the time of a question about the past.
    """

    def commits(group_ids: Collection[str], until_ms: int | None) -> WindowColumns:
        cut_ms = at_ms if until_ms is None else until_ms
        if window_commits is None:
            return commits_at(reader, group_ids, cut_ms)
        return last_commits(reader, group_ids, window_commits, cut_ms)

    return lag_rows(groups, positions, time.data_ms, commits, with_status=window_commits is not None)
