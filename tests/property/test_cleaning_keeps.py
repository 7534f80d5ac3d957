"""A log cleaned by this program replays to the same state, without a broker's exceptions (R16, R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.semantics.compaction import compact_early
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.survivors import SCHEMA, survivors
from tests.folded_state import StateInMemory, assert_same
from tests.logs import input_table
from tests.property.broker_cleaning import cleaned as cleaned_by_broker
from tests.random_logs import LEGAL, examples, logs
from tests.replays import Replayed, references, replay

if TYPE_CHECKING:
    from offsets_pipeline.semantics.log_row import LogRow

FIXED = examples(250)
both = pytest.mark.parametrize("semantics", CoordinatorSemantics)
legal_logs = logs(LEGAL, max_steps=40).map(lambda log: log.partitions[0])
any_log = st.one_of(logs(max_steps=40).map(lambda log: log.partitions[0]), legal_logs)


def cleaned(
    rows: list[LogRow],
    up_to: int,
    aged_to: int,
    chunk_rows: int = 1000,
    semantics: CoordinatorSemantics = MODERN,
) -> list[LogRow]:
    """Rows that a cleaning below ``up_to`` keeps; tombstones below ``aged_to`` are old."""
    below = [row for row in rows if row.record_offset < up_to]
    table = input_table(below)
    offsets = [row.record_offset for row in below]
    table = table.append_column(SCHEMA.field("aged"), pa.array([offset < aged_to for offset in offsets], pa.bool_()))
    if below:  # as tasks do that read parts of a log partition
        parts = [
            compact_early(table.slice(at, chunk_rows), {}, semantics, keep_producers=True)
            for at in range(0, len(below), chunk_rows)
        ]
        table = pa.concat_tables(parts).sort_by("record_offset")
    kept = set(table.filter(pa.array(survivors(table, semantics)))["record_offset"].to_pylist())
    return [row for row in rows if row.record_offset >= up_to or row.record_offset in kept]


def said(state: Replayed) -> dict[str, object]:
    """State of a replay without its counts, its end, and topic names that no remaining record has."""
    not_compared = ("quarantined", "unknown_records", "topic_names", "end")
    return {name: value for name, value in vars(state).items() if name not in not_compared} | {
        # a producer whose transactions ended is remembered or not: it holds nothing
        "pending": {producer_id: offsets for producer_id, offsets in state.pending.items() if offsets}
    }


@st.composite
def cleanings(draw: st.DrawFn, rows: list[LogRow], semantics: CoordinatorSemantics) -> list[LogRow]:
    offsets = [row.record_offset for row in rows]
    up_to = draw(st.sampled_from(offsets) | st.just(offsets[-1] + 1))
    aged_to = draw(st.sampled_from(offsets) | st.just(offsets[-1] + 1))
    return cleaned(rows, up_to, aged_to, draw(st.sampled_from([3, 1000])), semantics)


@both
@FIXED
@given(rows=any_log, data=st.data())
def test_cleaned_log_gives_the_same_from_where_it_was_cleaned_to_on(
    rows: list[LogRow], data: st.DataObject, semantics: CoordinatorSemantics
) -> None:
    offsets = [row.record_offset for row in rows]
    up_to = data.draw(st.sampled_from(offsets) | st.just(offsets[-1] + 1))
    aged_to = data.draw(st.sampled_from(offsets) | st.just(offsets[-1] + 1))
    kept = cleaned(rows, up_to, aged_to, data.draw(st.sampled_from([3, 1000])), semantics)
    assert set(kept) <= set(rows)
    for end in [up_to, *(offset + 1 for offset in offsets if offset >= up_to)]:
        whole = replay([row for row in rows if row.record_offset < end], 0, 1, semantics)
        assert said(replay([row for row in kept if row.record_offset < end], 0, 1, semantics)) == said(whole)


@both
@FIXED
@given(rows=any_log, data=st.data())
def test_log_may_be_cleaned_again_and_again(
    rows: list[LogRow], data: st.DataObject, semantics: CoordinatorSemantics
) -> None:
    kept = rows
    for _ in range(3):
        kept = data.draw(cleanings(kept, semantics))
        if not kept:
            break
    assert said(replay(kept, 0, 1, semantics)) == said(replay(rows, 0, 1, semantics))


@both
@FIXED
@given(rows=any_log, data=st.data())
def test_fold_of_what_is_kept_is_as_the_reference_says(
    rows: list[LogRow], data: st.DataObject, semantics: CoordinatorSemantics
) -> None:
    kept = data.draw(cleanings(rows, semantics))
    tables = StateInMemory(1, semantics)
    split = data.draw(st.integers(0, len(kept)))
    for batch in (kept[:split], kept[split:]):
        if batch:
            tables.fold(batch)
    assert_same(tables, references(kept, 1, semantics))


@both
@FIXED
@given(rows=legal_logs)
def test_little_more_is_kept_than_a_broker_keeps(rows: list[LogRow], semantics: CoordinatorSemantics) -> None:
    # R23: beyond the last record of each raw key only what proves a simple group, and what hides a kept record
    end = rows[-1].record_offset + 1
    by_broker = set(cleaned_by_broker(rows, end))
    more = [row for row in cleaned(rows, end, 0, semantics=semantics) if row not in by_broker]
    groups = 2
    producers = 2
    assert len(more) <= groups * (1 + producers * 2)
