"""Windows of commits for tests of lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offsets_pipeline.questions.lag.commit_windows import WindowColumns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.questions.lag.commit_windows import Identity


def windows_of(commits: Mapping[Identity, Sequence[tuple[int, int]]]) -> WindowColumns:
    """The windows with these commits, each with its offset and its time in ms."""
    sizes = [len(each) for each in commits.values()]
    columns = np.array([each for of_one in commits.values() for each in of_one], dtype=np.int64).reshape(-1, 2)
    return WindowColumns(list(commits), np.cumsum([0, *sizes], dtype=np.int64), columns[:, 0], columns[:, 1])
