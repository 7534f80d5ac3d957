"""The fold equals the reference for every log and every delivery of it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.semantics import columnar_replay
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.group_description import describe_group
from tests.folded_state import StateInMemory, assert_same
from tests.random_logs import Log, deliveries, examples, logs, several
from tests.replays import references

FIXED = examples(70)
both = pytest.mark.parametrize("semantics", CoordinatorSemantics)


def assert_described(tables: StateInMemory) -> None:
    """Every group that exists can be described (R33)."""
    for kind, values in tables.groups().values():
        assert describe_group(kind, values).group_type == kind


@both
@FIXED
@given(log=logs())
def test_log_of_one_partition_folded_at_once_is_as_the_reference_says(
    log: Log, semantics: CoordinatorSemantics
) -> None:  # R10-R14
    tables = StateInMemory(1, semantics)
    tables.fold(log.rows())
    assert_same(tables, references(log.rows(), 1, semantics))
    assert_described(tables)


@both
@FIXED
@given(data=st.data())
def test_log_of_one_partition_folded_in_steps_is_as_the_reference_says(
    data: st.DataObject, semantics: CoordinatorSemantics
) -> None:  # R15, R16
    log = data.draw(logs())
    tables = StateInMemory(1, semantics)
    for batch in data.draw(deliveries(log)):
        tables.fold(batch.rows, batch.chunk_rows)
    assert_same(tables, references(log.rows(), 1, semantics))
    assert_described(tables)


@both
@FIXED
@given(data=st.data())
def test_log_of_several_partitions_folded_in_steps_is_as_the_reference_says(
    data: st.DataObject, semantics: CoordinatorSemantics
) -> None:
    # R1, R11, R15: log partitions know nothing of each other
    log = data.draw(logs(several(3), max_steps=40))
    tables = StateInMemory(3, semantics)
    for batch in data.draw(deliveries(log)):
        tables.fold(batch.rows, batch.chunk_rows)
    assert_same(tables, references(log.rows(), 3, semantics))


@both
@FIXED
@given(data=st.data())
def test_every_step_is_as_the_reference_says(
    data: st.DataObject, semantics: CoordinatorSemantics
) -> None:  # R16: restarts anywhere between
    log = data.draw(logs())
    rows = log.rows()
    tables = StateInMemory(1, semantics)
    for batch in data.draw(deliveries(log)):
        tables.fold(batch.rows, batch.chunk_rows)
        folded = [row for row in rows if row.record_offset < tables.folded_to.get(0, 0)]
        assert_same(tables, references(folded, 1, semantics))


@both
@FIXED
@given(data=st.data())
def test_limits_of_batches_do_not_matter(data: st.DataObject, semantics: CoordinatorSemantics) -> None:
    log = data.draw(logs(several(2)))
    tables = StateInMemory(2, semantics)
    with patch.object(columnar_replay, "_COMPACT_AT_ROWS", 2), patch.object(columnar_replay, "_RESULT_ROWS", 1):
        for batch in data.draw(deliveries(log)):
            tables.fold(batch.rows, batch.chunk_rows)
    assert_same(tables, references(log.rows(), 2, semantics))


@both
@FIXED
@given(log=logs(several(2)), data=st.data())
def test_order_of_rows_does_not_matter(
    log: Log, data: st.DataObject, semantics: CoordinatorSemantics
) -> None:  # R10, R15
    tables = StateInMemory(2, semantics)
    tables.fold(data.draw(st.permutations(log.rows() * 2)), data.draw(st.sampled_from([1, 4, 1000])))
    for each in tables.progress.values():
        assert each.unknown_records <= len(log.rows())
    assert_same(tables, references(log.rows(), 2, semantics))
