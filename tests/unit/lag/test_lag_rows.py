"""Rows of lag, worked by hand. Samples of t-0 are of seconds 5, 10 and 20: 40, 100 and 200 records.

The log starts at 0, 50 and 60 then. The question is of second 30, and the log partitions have data up to seconds 20, 15
and 30.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.questions.lag.lag_rows import GroupLag, LagRow, group_lags, lag_rows, topics_of, total_lag
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer, StartOffset
from tests.unit.lag.windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsets_pipeline.questions.lag.commit_windows import WindowColumns

DATA_MS = {0: 20_000, 1: 15_000, 2: 30_000}
SAMPLES = [(("t", 0), Sample(*each)) for each in ((0, 40, 5_000), (50, 100, 10_000), (60, 200, 20_000))]
NO_COMMIT, NO_POSITION = "the group has no committed offset", "no position of the partition is known"
ANY: Any = None  # does not count


def at(second: int) -> str:
    return f"1970-01-01T00:00:{second:02}.000Z"


def group(offset: int, committed_s: int | None, log_partition: int = 0, **fields: Any) -> GroupAnswer:  # noqa: ANN401
    committed_ms = None if committed_s is None else committed_s * 1_000
    held = [OffsetAnswer("t", 0, offset, None, "", committed_ms=committed_ms)]
    return GroupAnswer("Classic", "Empty", "", "", None, log_partition, misplaced=False, offsets=held, **fields)


def member(*assignment: str) -> MemberAnswer:
    return MemberAnswer("m", None, "", "", [*assignment], None)


def positions() -> SampledPositions:
    return SampledPositions(PositionSamples(rows_of(SAMPLES, "a test")), 30_000)


def test_each_row_is_of_one_time_with_the_reason_for_what_it_lacks() -> None:  # R37
    groups = {
        "above": group(201, 12),
        "at-end": group(200, None, 2),
        "behind": group(120, 12, members=[member("t-0", "u-1")]),
        "early": group(30, 12, 1),
        "hidden": replace(group(1, 1, members=[member("t-0")]), misplaced=True, offsets=[]),
        "newer": group(999, 21, 2),
        "newest": group(199, 20, 2),
        "only-newer": group(999, 21, 2),
        "quiet": group(162, 18, 2),
        "unknown": group(160, 19),
    }
    commits = {
        "behind": [(84, 11), (120, 12)],
        "early": [(4, 6), (30, 12)],
        "newer": [(170, 18), (180, 19)],
        "quiet": [(150, 11), (162, 18)],
        "unknown": [(10, 4), (160, 19)],
    }
    read: list[tuple[set[str], int | None]] = []

    def last_commits(names: Collection[str], until_ms: int | None) -> WindowColumns:
        read.append(({*names}, until_ms))
        found = {name: [(offset, second * 1_000) for offset, second in commits[name]] for name in commits}
        return windows_of({(name, "t", 0): found[name] for name in sorted(names) if name in found})

    rates: dict[tuple[str, str, int], float] = {}
    at_20: tuple[Any, ...] = at(20), at(20), at(20)
    at_30: tuple[Any, ...] = at(20), at(30), at(20)
    by, none = "interpolated", "none"
    no_lag = "no status: the commits of the window, or the log end at the time of one, are not known"
    not_known = f"the commit at {at(20)} is not known: the group has committed since"
    # current offset, log start, log end, lag, seconds, method, status, reason, available; record 120 is of 12.05 s
    assert lag_rows(groups, positions(), DATA_MS, last_commits, rates=rates) == [
        LagRow("above", "t", 0, 201, 60, 200, 0, 0.0, by, "OK", "the committed offset is above the log end", 0, *at_20),
        LagRow("at-end", "t", 0, 200, 60, 200, 0, 0.0, by, "OK", None, 0, *at_30),
        LagRow("behind", "t", 0, 120, 60, 200, 80, 7.95, by, "STOP", None, 80, *at_20),
        LagRow(
            *("behind", "u", 1, None, None, None, None, None, none, "UNKNOWN", f"{NO_COMMIT}; {NO_POSITION}", None),
            *at_20,
        ),
        LagRow("early", "t", 0, 30, 50, 150, 120, 9.125, by, "WARN", None, 100, at(15), at(15), at(20)),
        LagRow("newer", "t", 0, 180, 60, 200, 20, 1.95, by, "WARN", None, 20, *at_30),
        LagRow("newest", "t", 0, 199, 60, 200, 1, 0.05, by, "UNKNOWN", no_lag, 1, *at_30),
        LagRow("only-newer", "t", 0, None, 60, 200, None, None, none, "UNKNOWN", not_known, None, *at_30),
        LagRow("quiet", "t", 0, 162, 60, 200, 38, 3.75, by, "STOP", None, 38, *at_30),
        LagRow("unknown", "t", 0, 160, 60, 200, 40, 3.95, by, "UNKNOWN", no_lag, 40, *at_20),
    ]
    assert rates == {
        ("behind", "t", 0): (80 - 26) / 9,
        ("early", "t", 0): (120 - 48) / 9,
        ("newer", "t", 0): (20 - 10) / 2,
        ("quiet", "t", 0): 38 / 19,  # to second 30
    }
    assert read == [
        ({"newer", "only-newer"}, 20_000),
        ({"behind", "early", "newest", "quiet", "unknown"}, 20_000),
    ]
    assert topics_of(groups) == {"t", "u"}


def test_commits_are_read_up_to_the_end_of_a_log_that_positions_reach() -> None:
    read: list[tuple[set[str], int | None]] = []

    def last_commits(names: Collection[str], until_ms: int | None) -> WindowColumns:
        read.append(({*names}, until_ms))
        return windows_of({})

    for data_ms in (19_999, 20_000, 20_001):
        lag_rows({"g": group(120, 21)}, positions(), {0: data_ms}, last_commits)
    assert read == [({"g"}, None), ({"g"}, None), ({"g"}, 20_000)]
    assert lag_rows({}, positions(), {}, last_commits) == []
    assert len(read) == 3


@pytest.mark.parametrize(("data_ms", "is_exact"), [(20_000, True), (7_000, False)])
def test_the_highest_log_end_is_whole_after_the_last_sample_and_never_negative(data_ms: int, *, is_exact: bool) -> None:
    """Between two samples it is a float, which has 53 bits."""
    samples = [(("t", 0), Sample(0, 2**63 - 1, at_ms)) for at_ms in (5_000, 10_000)]
    source = SampledPositions(PositionSamples(rows_of(samples, "a test"), 20_000), 20_000)
    (row,) = lag_rows({"g": group(5, 3)}, source, {0: data_ms}, lambda *_: windows_of({}))
    assert (row.log_end_offset, row.lag) == ((2**63 - 1, 2**63 - 6) if is_exact else (2**63 - 1024, 2**63 - 1029))


def test_share_groups_count_what_is_left_of_each_partition_at_its_own_log_partition() -> None:  # R39
    def start(partition: int, offset: int, count: int | None, log_partition: int) -> StartOffset:
        return StartOffset(
            *("t", partition, offset, None, ""), delivery_complete_count=count, log_partition=log_partition
        )

    held = [start(0, 100, 20, 1), start(1, -1, 0, 9), start(2, 7, None, 0)]
    groups = {"s": GroupAnswer("Share", "Empty", "share", "", 1, 0, misplaced=False, offsets=[*held])}
    samples = [*SAMPLES, (("t", 2), Sample(0, 9, 5_000))]
    source = SampledPositions(PositionSamples(rows_of(samples, "a test")), 25_000)
    no_count = "the broker wrote no count of complete deliveries"
    unknown = f"no start offset of the share partition is known; {NO_POSITION}"
    rows = lag_rows(groups, source, DATA_MS, lambda *_: ANY, with_status=False)
    assert rows == [
        # 150 records then, and record 100 is of 10.05 s
        LagRow("s", "t", 0, 100, 50, 150, 30, 4.95, "interpolated", None, None, 30, at(15), at(15), at(20)),
        LagRow("s", "t", 1, None, None, None, None, None, "none", None, unknown, None, at(20), at(25), at(20)),
        LagRow("s", "t", 2, 7, 0, 9, None, None, "none", None, no_count, None, at(20), at(20), at(20)),
    ]
    assert group_lags(groups, rows) == [GroupLag("s", None, None, None, 3, 30, 30, 4.95, "interpolated", at(15))]


@pytest.mark.parametrize(
    ("lags", "total"),
    [
        ([], (None, None, None, "none")),
        ([(None, None)], (None, None, None, "none")),
        ([(None, None), (3, None), (0, 0.0), (4, 1.5)], (7, 4, None, "none")),  # the second may be the worst
        ([(None, None), (0, None), (0, 0.0), (4, 1.5)], (4, 4, 1.5, "exact")),
        ([(None, None), (3, None), (0, 0.0), (4, 60.1)], (7, 4, 60.1, "at_least")),
        ([(0, 0.0)], (0, 0, 0.0, "exact")),
    ],
)
def test_lag_of_a_group_is_that_of_the_partitions_that_have_one(
    lags: list[tuple[int | None, float | None]], total: tuple[int | None, int | None, float | None, str]
) -> None:
    rows = [
        LagRow("g", "t", 0, 1, 0, 9, lag, seconds, "exact", status, None, lag, at(9 - number), at(9), None)
        for number, (status, (lag, seconds)) in enumerate(zip((None, "OK", "WARN", "OK"), lags, strict=False))
    ]
    assert total_lag(rows) == total
    groups = {"g": group(1, 1, members=[member(), member()]), "h": group(1, 1)}
    status = "WARN" if len(lags) > 1 else None
    expected = [GroupLag("g", "Empty", 2, status, len(lags), *total, at(10 - len(lags)))] if lags else []
    assert group_lags(groups, rows) == expected
