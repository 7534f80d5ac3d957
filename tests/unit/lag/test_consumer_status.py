"""Status of partitions and groups, on vectors worked by hand from Burrow's published rules.

Each vector is a window of (offset, time of the commit in seconds, lag at that time), the lag now, and the time now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from offsets_pipeline.questions.lag.commit_windows import WindowColumns
from offsets_pipeline.questions.lag.consumer_status import UNKNOWN_LAG, group_status, partition_statuses

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic_positions.position_samples import Float64s
    from offsets_pipeline.kafka.record.records import Int64s

# ten commits, a minute apart
MINUTES = range(0, 600, 60)
NOW = 545


Vector = tuple[list[int], list[float | None], int | None]


def statuses(vectors: list[Vector], now: int) -> list[str]:
    """The statuses of partitions with these windows (offsets, lags) and lags, all at once."""
    sizes = [len(offsets) for offsets, _, _ in vectors]

    def column(values: list[int]) -> Int64s:
        return np.array(values, dtype=np.int64)

    def lags_of(values: list[float | None]) -> Float64s:
        return np.array([np.nan if each is None else each for each in values], dtype=np.float64)

    windows = WindowColumns(
        [],
        np.cumsum([0, *sizes]),
        column([each for offsets, _, _ in vectors for each in offsets]),
        column([MINUTES[number] * 1000 for size in sizes for number in range(size)]),
    )
    commit_lags = lags_of([each for _, lags, _ in vectors for each in lags])
    lags = column([UNKNOWN_LAG if lag is None else lag for _, _, lag in vectors])
    return partition_statuses(windows, commit_lags, lags, np.full(len(vectors), now * 1000))


@pytest.mark.parametrize(
    ("name", "offsets", "lags", "lag", "now", "status"),
    [
        ("no lag now, whatever the window holds", [10] * 10, [5] * 10, 0, NOW, "OK"),
        ("no lag now, and no commit for long", [10] * 10, [5] * 10, 0, 100_000, "OK"),
        ("some commit had no lag", list(range(10, 110, 10)), [0, *range(10, 100, 10)], 90, NOW, "OK"),
        ("same offset, same lag", [10] * 10, [5] * 10, 5, NOW, "STALL"),
        ("same offset, growing lag", [10] * 10, list(range(1, 11)), 10, NOW, "STALL"),
        ("same offset, one commit without lag", [10] * 10, [0, *range(1, 10)], 10, NOW, "OK"),
        ("growing offset, growing lag", list(range(10, 110, 10)), list(range(1, 11)), 10, NOW, "WARN"),
        ("growing offset, same lag", list(range(10, 110, 10)), [5] * 10, 5, NOW, "WARN"),
        ("growing offset, lag fell once", list(range(10, 110, 10)), [*range(1, 6), 4, *range(5, 9)], 8, NOW, "OK"),
        ("moves now and then, lag never falls", [10] * 5 + [20] * 5, list(range(1, 11)), 10, NOW, "WARN"),
        # 540 s between the first and the last commit: STOP after 540 s without one
        ("as long without a commit as the window", [10] * 10, [5] * 10, 5, 1080, "STALL"),
        ("longer without a commit than the window", [10] * 10, [5] * 10, 5, 1081, "STOP"),
        ("stopped, although commits had no lag", list(range(10, 110, 10)), [0] * 10, 5, 1081, "STOP"),
        ("STOP before REWIND", [*range(10, 100, 10), 20], [5] * 10, 5, 1081, "STOP"),
        # Burrow's issue 714: back from 30 to 20; at 30 again it has recovered
        ("went back", [10, 20, 30, 20], [0, 0, 0, 10], 10, 185, "REWIND"),
        ("went back and caught up", [10, 20, 30, 20, 30], [0, 0, 0, 10, 15], 15, 245, "OK"),
        ("REWIND before STALL", [30, 20, 20, 20], [5] * 4, 5, 185, "REWIND"),
        ("REWIND before OK by a commit without lag", [30, 20], [0, 10], 10, 65, "REWIND"),
        ("one commit, and time has passed", [10], [5], 5, 1, "STOP"),
        ("no commits", [], [], 5, NOW, "UNKNOWN"),
        ("lag is not known", [10] * 10, [5] * 10, None, NOW, "UNKNOWN"),
        ("lags of commits are not known", [10] * 10, [None] * 10, 5, NOW, "UNKNOWN"),
        # log ends between samples: fractions of a record are no fall, and no lag
        ("lag falls by less than a record", list(range(10, 110, 10)), [5.9, 5.0] * 5, 5, NOW, "WARN"),
        ("less than a record of lag", list(range(10, 110, 10)), [0.4, *range(1, 10)], 9, NOW, "OK"),
        ("a fall of the lag is known", [10, 20, 30], [None, 9, 8], 8, 125, "OK"),
        ("a commit without lag is known", [10, 20, 30], [None, 0, 8], 8, 125, "OK"),
    ],
)
def test_partition_has_the_status_that_burrow_gives(
    name: str, offsets: list[int], lags: list[float | None], lag: int | None, now: int, status: str
) -> None:
    between: list[Vector] = [([10, 9], [3, 3], 3), ([], [], 5), ([10], [0], 0)]
    vectors: list[Vector] = [between[0], (offsets, lags, lag), between[1], (offsets, lags, lag), between[2]]
    found = statuses(vectors, now)
    assert (found[1], found[3]) == (status, status), name
    assert statuses([(offsets, lags, lag)], now) == [status], name


@pytest.mark.parametrize(
    ("partitions", "status"),
    [
        (["OK", "OK"], "OK"),
        (["OK", "WARN"], "WARN"),
        (["WARN", "STOP"], "ERR"),
        (["REWIND"], "ERR"),
        (["OK", "STALL", "WARN"], "ERR"),
        (["OK", "UNKNOWN"], "OK"),
        (["UNKNOWN"], "UNKNOWN"),
    ],
)
def test_group_has_the_status_of_its_worst_partition(partitions: list[str], status: str) -> None:
    assert group_status(partitions) == status
