"""Metrics of the state tables are of the log incarnation that they answer for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.kafka.record.segment import Damage
from offsets_pipeline.observability.collectors import StateMetrics
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.figures import by_partition, exposed, extents
from tests.logs import capture_rows, oracle
from tests.places import copied
from tests.spark.stores import CLOCK, appended, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.figures import Figures
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.slow

OLD, NEW = "4.2.0-kip848", "4.2.0-txn-open"
BEHIND = "offsets_fold_behind_log_records"


def answered_by_the_broker(capture: str) -> tuple[int, int]:
    """How many groups, and how many committed offsets."""
    groups = [group for group in oracle(capture)["groups"].values() if group["listed"]]
    return len(groups), sum(each["offset"] >= 0 for group in groups for each in group["offsets"])


def counted(figures: Figures) -> tuple[float, float]:
    return figures["offsets_groups"][""], figures["offsets_committed_offsets"][""]


def test_metrics_are_of_the_current_log_incarnation_and_state(
    workbench: Workbench, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copied(folded(OLD), tmp_path / "a store")
    state = StateMetrics(lambda: StateReader(str(store), at_most=0))  # what a stream has folded

    def figures() -> Figures:
        return exposed(state.count)

    notes = LogMetadata(workbench.open(store), CLOCK)
    notes.damage([(0, "a file", Damage(10, 5, "a reason", b"12345"))])
    seen = figures()
    assert counted(seen) == answered_by_the_broker(OLD)
    assert (seen[BEHIND], seen["offsets_quarantined_records"]) == (by_partition({}), {"": 1})

    # a second log incarnation, which does not count yet
    rows = [row for part in capture_rows(NEW).values() for row in part if row.log_partition != 4]
    appended(store, rows, log_incarnation=1)
    assert figures() == seen
    # it counts, and nothing of it is folded
    LogMetadata(workbench.open(store), CLOCK, 1).bounds(dict.fromkeys(range(5), (0, 10_000)))
    behind = {at: end - first for at, (first, end) in extents((r.log_partition, r.record_offset) for r in rows).items()}
    seen_then = figures()
    assert counted(seen_then) == counted(seen)
    assert (seen_then[BEHIND], seen_then["offsets_quarantined_records"]) == (by_partition(behind), {"": 0})
    assert max(behind.values()) > 0
    # the rest comes, and all of it is folded
    appended(store, capture_rows(NEW)[4], log_incarnation=1)
    workbench.fold(store)
    seen = figures()
    assert counted(seen) == answered_by_the_broker(NEW)
    assert seen[BEHIND] == by_partition({})
    assert len(log_of(store)) > len(rows)


def test_tables_that_cannot_be_counted_are_an_error(folded: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(folded(OLD), tmp_path / "store")
    for file in (store / "consumer_groups").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(DamagedTable, match="consumer_groups"):
        StateMetrics(lambda: StateReader(str(store))).count()
