"""Answers from the log of a store whose newest log incarnation has another number of log partitions than its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.ingest.segments.segment_files import find_log
from offsets_pipeline.questions.lag.commit_windows import CommitsOfGroups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export.segment_export import export_segments
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from tests.folded_stores import folded_store, opened
from tests.logs import LogPartition
from tests.spark.stores import appended

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow

GROUPS = "abcdefgh"
NOW_MS = 1_795_000_000_000


def rows_of(count: int) -> list[LogRow]:
    """A commit of each group in a log of so many log partitions."""
    logs = [LogPartition(each) for each in range(count)]
    for group in GROUPS:
        logs[partition_for(group, count)].commit((group, "t", 0), count)
    return [row for log in logs for row in log.rows]


@pytest.fixture(params=[(2, 4), (4, 2)], ids=["more", "fewer"])
def counts(request: pytest.FixtureRequest) -> tuple[int, int]:
    """The numbers of log partitions before and after the topic was created again."""
    found: tuple[int, int] = request.param
    return found


@pytest.fixture
def reader(tmp_path: Path, counts: tuple[int, int]) -> StateReader:
    """A store with a folded log, and a new incarnation of it that is not folded yet."""
    before, after = counts
    store = folded_store(tmp_path / "store", StoreProperties(MIRRORED, before), rows_of(before))
    rows = rows_of(after)
    appended(str(store), rows, log_incarnation=1)
    ends = {at: sum(row.log_partition == at for row in rows) for at in range(after)}
    read = {at: TopicRead(0, end, end, end, NOW_MS, NOW_MS, None, 0) for at, end in ends.items()}
    LogMetadata(opened(store), SystemClock(), 1).read(read)
    return StateReader(str(store))


def test_the_last_commits_of_all_groups_are_found(reader: StateReader, counts: tuple[int, int]) -> None:  # R1
    windows = CommitsOfGroups(reader, GROUPS, None).last(10)
    assert sorted(windows.identities) == [(group, "t", 0) for group in GROUPS]
    assert windows.offset.tolist() == [counts[1]] * len(GROUPS)


def test_an_export_has_the_log_partitions_of_its_log(
    reader: StateReader, counts: tuple[int, int], tmp_path: Path
) -> None:
    exported = export_segments(reader, tmp_path / "to")
    assert [each.log_partition for each in exported.log_partitions] == [*range(counts[1])]
    assert find_log([str(tmp_path / "to")]).partitions() <= {*range(counts[1])}
    assert sum(each.records for each in exported.log_partitions) == len(GROUPS)
