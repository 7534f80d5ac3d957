"""All recorded logs in small batches and by reload, in the driver without Spark; tests/streaming has them in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.folded_stores import new_store
from tests.logs import all_captures, in_batches
from tests.published import assert_published
from tests.spark.stores import CLOCK, appended, assert_as_reference, state_rows

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings


@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_small_batches_and_a_reload_give_the_state_that_the_reference_replays(
    place: Path, settings: Settings, semantics: CoordinatorSemantics
) -> None:  # R15, R16
    log_partitions, rows = all_captures(semantics)
    store = new_store(place, log_partitions, semantics)
    done = 0
    for batch in in_batches(rows, 4):
        appended(store.location, batch)
        assert fold_log(store, settings, CLOCK) == len(batch)
        done += len(batch)
    assert done == len(rows) > 500
    assert_as_reference(store.location, rows)
    assert publish(store, CLOCK)
    assert_published(store.location, rows, log_partitions, semantics)
    folded = state_rows(store.location)
    assert reload_partitions(store, None, settings, CLOCK) == len(rows)
    assert state_rows(store.location) == folded
    assert publish(store, CLOCK)
    assert_published(store.location, rows, log_partitions, semantics)
