"""Commits that lag reads from the log of a store, up to a time and from a time on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.questions.lag.commit_windows import CommitsOfGroups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from tests.logs import LogPartition
from tests.unit.lag.stores import TimedRow, folded_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.lag.commit_windows import WindowColumns

NOW_MS = 1_795_000_000_000
TEN_MINUTES_MS = 600_000
#: Of g-t-0, by the time after NOW_MS; the record of 200 follows one of a later time.
COMMITS = {-TEN_MINUTES_MS - 1: 10, -TEN_MINUTES_MS: 20, -1: 30, 0: 40, 1: 50, -200: 200}


def shown(columns: WindowColumns) -> dict[str, list[int]]:
    found = zip(columns.identities, pairwise(columns.first.tolist()), strict=True)
    return {f"{group}-{topic}": columns.offset[start:end].tolist() for (group, topic, _), (start, end) in found}


def opened_store(to: Path, settings: Settings, semantics: CoordinatorSemantics) -> StateReader:
    """Two log partitions: R1 has g and c (99) in the second one, which has h (104), too, against R1."""
    rows = []
    first, second = LogPartition(0), LogPartition(1)
    for at_ms, offset in COMMITS.items():
        second.commit(("g", "t", 0), offset)
        rows.append(TimedRow(second.rows[-1], NOW_MS + at_ms))
    for group, topic in (("g", "v"), ("h", "t")):
        first.commit((group, topic, 0), 7)
        rows.append(TimedRow(first.rows[-1], NOW_MS))
    second.commit(("c", "t", 0), 1)
    second.commit(("c", "t", 0), 2, 5)
    second.end_commit(5)
    second.commit(("h", "w", 0), 3)
    rows += [TimedRow(row, NOW_MS - TEN_MINUTES_MS - 1) for row in second.rows[-4:]]
    store = folded_store(rows, to, 2, settings, semantics)
    return StateReader(str(store), clock=FixedClock(NOW_MS))


@pytest.mark.parametrize("semantics", [MODERN, CoordinatorSemantics.CLASSIC])
def test_windows_end_with_the_last_commit_before_the_first_later_record_and_recent_ones_begin_ten_minutes_before(
    tmp_path: Path, settings: Settings, semantics: CoordinatorSemantics
) -> None:
    reader = opened_store(tmp_path / "store", settings, semantics)
    stray, more = ({"g-v": [7]}, {"h-w": [3]}) if semantics.is_classic else ({}, {})  # R1 does not count then

    def last(size: int, at_ms: int | None, *groups: str) -> dict[str, list[int]]:
        return shown(CommitsOfGroups(reader, groups, at_ms).last(size))

    assert last(9, None, "g") == {"g-t": [*COMMITS.values()]} | stray
    assert last(2, None, "g", "c") == {"g-t": [50, 200], "c-t": [1, 2]} | stray
    assert last(1, None, "h") == {"h-t": [7]} | more
    assert last(9, NOW_MS, "g", "h") == {"g-t": [10, 20, 30, 40], "h-t": [7]} | stray
    assert last(2, NOW_MS - 1, "g", "c") == {"g-t": [20, 30]}
    assert last(9, NOW_MS + 1, "c", "none") == {"c-t": [1, 2]}
    assert last(9, None, "none") == {}

    def recent(at_ms: int | None, *groups: str) -> dict[str, list[int]]:
        return shown(CommitsOfGroups(reader, groups, at_ms).recent())

    assert recent(None, "g", "c") == {"g-t": [200]} | stray
    assert recent(NOW_MS, "g") == {"g-t": [200]} | stray
    assert recent(NOW_MS - 201, "g", "c") == {"g-t": [20], "c-t": [2]}
    assert recent(NOW_MS + TEN_MINUTES_MS, "g") == {"g-t": [50]} | stray
    assert recent(NOW_MS + TEN_MINUTES_MS + 2, "g") == {}
    assert recent(NOW_MS - 1, "c") == {"c-t": [2]}

    def recent_and_wanted(at_ms: int, *wanted: str) -> dict[str, list[int]]:
        """The last commits of g and c, with those of wanted groups from before the ten minutes."""
        return shown(CommitsOfGroups(reader, "gc", at_ms).recent([(group, "t", 0) for group in wanted]))

    assert recent_and_wanted(NOW_MS, "g") == {"g-t": [200]} | stray  # its commit is in the ten minutes
    assert recent_and_wanted(NOW_MS, "c") == {"g-t": [200], "c-t": [2]} | stray
    later_ms = NOW_MS + TEN_MINUTES_MS + 2
    assert recent_and_wanted(later_ms) == {}
    assert recent_and_wanted(later_ms, "g", "c") == {"g-t": [200], "c-t": [2]} | stray


def test_a_commit_with_a_time_ahead_counts_from_its_append_on(tmp_path: Path, settings: Settings) -> None:
    """R36: the clock of the broker was two hours ahead."""
    log = LogPartition(1)
    for offset in range(3):
        log.commit(("g", "t", 0), offset)
    times = ((NOW_MS - 9, None), (NOW_MS + 12 * TEN_MINUTES_MS, NOW_MS - 5), (NOW_MS + 12 * TEN_MINUTES_MS, NOW_MS + 5))
    rows = [TimedRow(row, *at) for row, at in zip(log.rows, times, strict=True)]
    reader = StateReader(str(folded_store(rows, tmp_path / "store", 2, settings)), clock=FixedClock(NOW_MS))
    for at_ms, offsets in ((NOW_MS - 6, [0]), (NOW_MS - 5, [0, 1]), (NOW_MS, [0, 1]), (NOW_MS + 5, [0, 1, 2])):
        commits = CommitsOfGroups(reader, ["g"], at_ms)
        assert (shown(commits.last(9)), shown(commits.recent())) == ({"g-t": offsets}, {"g-t": offsets[-1:]})
