"""Status of consumers whose commits fall between samples: production and consumption are constant, so worked by hand.

A topic grows by 10 records a second. Its end is sampled every 30 seconds: at 0, 30, 60 and so on it is ten times that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.questions.lag.lag_rows import LagRow, lag_rows
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer
from tests.unit.lag.windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from offsets_pipeline.questions.lag.commit_windows import WindowColumns

SECOND_MS = 1_000
NOW_S = 2_400
PRODUCED = 10  # records a second
SAMPLES_S = range(0, NOW_S + 1, 30)
INTERVALS_S = (2, 15, 30, 37, 120)  # of commits: more often than samples, as often, more rarely


class WindowCommit(NamedTuple):
    """The offset and the time of a commit."""

    offset: int
    committed_ms: int


def row_of(commits: list[WindowCommit], data_s: int = NOW_S, samples_s: range = SAMPLES_S) -> LagRow:
    """The row of a group with these commits in partition t-0, in a log with this data time."""
    newest = commits[-1]
    offset = OffsetAnswer("t", 0, newest.offset, None, "", committed_ms=newest.committed_ms)
    group = GroupAnswer("Classic", "Empty", "", "", None, 0, misplaced=False, offsets=[offset])

    def last_commits(_: Collection[str], until_ms: int | None) -> WindowColumns:
        found = [each for each in commits if until_ms is None or each.committed_ms <= until_ms]
        return windows_of({("g", "t", 0): found[-10:]} if found else {})

    samples = rows_of([(("t", 0), Sample(0, PRODUCED * at, at * SECOND_MS)) for at in samples_s], "a test")
    positions = SampledPositions(PositionSamples(samples), NOW_S * SECOND_MS)
    (row,) = lag_rows({"g": group}, positions, {0: data_s * SECOND_MS}, last_commits)
    return row


def commits_at(interval_s: int, offset_at: Callable[[int], int], until_s: int = NOW_S) -> list[WindowCommit]:
    return [WindowCommit(offset_at(at), at * SECOND_MS) for at in range(7, until_s + 1, interval_s)]


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_consumer_that_reads_less_than_is_produced_is_slow(interval_s: int) -> None:
    row = row_of(commits_at(interval_s, lambda at: 8 * at))
    committed_s = range(7, NOW_S + 1, interval_s)[-1]
    assert (row.status, row.lag) == ("WARN", PRODUCED * NOW_S - 8 * committed_s)


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_consumer_that_stays_as_far_behind_is_slow(interval_s: int) -> None:
    assert row_of(commits_at(interval_s, lambda at: PRODUCED * at - 70)).status == "WARN"


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_consumer_that_catches_up_is_ok(interval_s: int) -> None:
    row = row_of(commits_at(interval_s, lambda at: 12 * at - 2 * NOW_S - 500))
    assert row.status == "OK"
    assert row.lag is not None
    assert row.lag >= 500


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_consumer_that_commits_the_same_offset_stalls(interval_s: int) -> None:
    assert row_of(commits_at(interval_s, lambda _: 40)).status == "STALL"


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_consumer_without_commits_for_longer_than_its_window_has_stopped(interval_s: int) -> None:
    commits = commits_at(interval_s, lambda at: 8 * at, NOW_S - 10 * interval_s)
    assert row_of(commits).status == "STOP"
    # a log that has no newer records does not tell that
    last_s = commits[-1].committed_ms // SECOND_MS
    assert row_of(commits, data_s=last_s).status == "WARN"


def test_commit_after_the_newest_sample_is_not_compared_with_it() -> None:
    """R37: the newest sample is of second 2,370, and at 2,397 the group committed more than its log end."""
    commits = [WindowCommit(PRODUCED * at - 5, at * SECOND_MS) for at in range(7, NOW_S + 1, 10)]
    row = row_of(commits, samples_s=SAMPLES_S[:-1])
    assert (row.current_offset, row.log_end_offset, row.lag) == (23_665, 23_700, 35)  # as of 2,370
    assert (row.as_of, row.data_time, row.sampled_at) == (
        "1970-01-01T00:39:30.000Z",
        "1970-01-01T00:40:00.000Z",
        "1970-01-01T00:39:30.000Z",
    )
    assert row.reason is None


def test_commit_after_the_newest_sample_without_one_before_has_no_lag() -> None:
    row = row_of([WindowCommit(23_900, (NOW_S - 3) * SECOND_MS)], samples_s=SAMPLES_S[:-1])
    assert (row.current_offset, row.lag, row.status) == (None, None, "UNKNOWN")
    assert row.reason == "the commit at 1970-01-01T00:39:30.000Z is not known: the group has committed since"


def test_mirror_that_is_behind_is_compared_with_the_end_between_the_samples_of_that_time() -> None:
    """R37: the log has the commits up to second 2,045; the samples go on."""
    row = row_of(commits_at(10, lambda at: PRODUCED * at, 2_037), data_s=2_045)
    assert (row.current_offset, row.log_end_offset, row.lag, row.status) == (20_370, 20_450, 80, "OK")


def test_commit_proves_that_its_records_were_there() -> None:
    """All records of seconds 2,370 to 2,400 came in the first of them, and the samples do not tell that."""
    row = row_of([WindowCommit(24_000, 2_371 * SECOND_MS)], data_s=2_372)
    assert (row.log_end_offset, row.lag, row.reason) == (24_000, 0, None)
    beyond = row_of([WindowCommit(24_001, 2_371 * SECOND_MS)], data_s=2_372)
    assert (beyond.log_end_offset, beyond.lag, beyond.reason) == (
        24_000,
        0,
        "the committed offset is above the log end",
    )


def test_topic_that_was_created_again_has_no_end_between_its_incarnations() -> None:
    samples = rows_of(
        [(("t", 0), Sample(0, end, at * SECOND_MS)) for at, end in ((0, 0), (60, 600), (90, 10), (120, 40))], "a test"
    )
    for at_s, ends in ((70, 600), (100, 20)):
        positions = SampledPositions(PositionSamples(samples), at_s * SECOND_MS)
        offset = OffsetAnswer("t", 0, 5, None, "")
        group = GroupAnswer("Classic", "Empty", "", "", None, 0, misplaced=False, offsets=[offset])
        (row,) = lag_rows({"g": group}, positions, {}, lambda *_: windows_of({}), with_status=False)
        assert row.log_end_offset == (None if at_s == 70 else ends), row
