"""Batches of a query that may be stopped between two of them."""

from __future__ import annotations

import pytest

from offsets_pipeline.ingest.batch_barrier import BarrierClosedError, BatchBarrier


def test_no_batch_starts_after_the_barrier_is_closed_and_a_running_one_is_waited_for() -> None:
    barrier, ran, closed = BatchBarrier(), list[str](), list[bool]()
    for name in ("first", "second"):
        with barrier.batch():
            ran.append(name)
            closed.append(barrier.closed)
            if name == "second":
                barrier.close(0)  # the batch runs longer
            closed.append(barrier.closed)
    for timeout_seconds in (-1.0, 0.0):
        barrier.close(timeout_seconds)
        with pytest.raises(BarrierClosedError), barrier.batch():
            ran.append("late")
    assert (ran, closed) == (["first", "second"], [False, False, False, True])
