"""A legal cleaning of the log replays to the same state (R16, R23), by the reference and by the fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.folded_state import StateInMemory, assert_same
from tests.property.broker_cleaning import cleaned, last_removals
from tests.random_logs import LEGAL, examples, logs
from tests.replays import DecodedGroup, Replayed, references, replay

if TYPE_CHECKING:
    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import CommittedOffset
    from tests.logs import Identity

FIXED = examples(120)
legal_logs = logs(LEGAL, max_steps=30).map(lambda log: log.partitions[0])


def offsets_of(state: Replayed, removed: dict[str, int]) -> dict[Identity, CommittedOffset]:
    """Answers without offsets that a group tombstone left, which may or may not answer again (R16)."""
    return {
        identity: offset
        for identity, offset in state.current.items()
        if offset.record_offset > removed.get(identity[0], -1)
    }


def pending_of(state: Replayed) -> dict[tuple[int, Identity], CommittedOffset]:
    return {
        (producer_id, identity): offset
        for producer_id, offsets in state.pending.items()
        for identity, offset in offsets.items()
    }


def outlived(state: Replayed, identity: Identity, pending: CommittedOffset) -> bool:
    """Whether a later record is visible already: the pending one will never be.

    A tombstone between the two, which took the pending one away (R12), is not the last of its key and may be gone.
    """
    visible = state.offsets.get(identity)
    return visible is not None and visible.record_offset > pending.record_offset


def groups_of(state: Replayed) -> dict[str, DecodedGroup]:
    """The groups, without empty simple groups, which a cleaning may lose (R16)."""
    holding = {identity[0] for identity in (*state.offsets, *(key[1] for key in pending_of(state)))}
    return {group_id: group for group_id, group in state.groups.items() if group.records or group_id in holding}


def simple_by_what_was_left(state: Replayed, removed: dict[str, int]) -> set[str]:
    """Simple groups that only have offsets that a group tombstone left."""
    alive = {identity[0] for identity in offsets_of(state, removed)}
    alive |= {
        identity[0]
        for (_, identity), offset in pending_of(state).items()
        if offset.record_offset > removed.get(identity[0], -1)
    }
    return {group_id for group_id, group in state.groups.items() if not group.records and group_id not in alive}


def assert_equal_but_for_the_exceptions(rows: list[LogRow], kept: list[LogRow]) -> None:
    removed = last_removals(rows)
    whole, loaded = replay(rows, 0, 1), replay(kept, 0, 1)
    assert offsets_of(loaded, removed) == offsets_of(whole, removed)
    assert {key: offset for key, offset in pending_of(loaded).items() if not outlived(loaded, key[1], offset)} == {
        key: offset for key, offset in pending_of(whole).items() if not outlived(whole, key[1], offset)
    }
    assert pending_of(loaded).items() >= pending_of(whole).items()
    excepted = simple_by_what_was_left(whole, removed) | simple_by_what_was_left(loaded, removed)
    expected = {group_id: group for group_id, group in groups_of(whole).items() if group_id not in excepted}
    assert {group_id: group for group_id, group in groups_of(loaded).items() if group_id not in excepted} == expected


@FIXED
@given(legal_logs, st.data())
def test_cleaned_log_gives_the_same(rows: list[LogRow], data: st.DataObject) -> None:  # R16
    kept = cleaned(rows, data.draw(st.integers(0, len(rows)) | st.just(len(rows))))
    assume(len(kept) < len(rows))
    assert_equal_but_for_the_exceptions(rows, kept)


@FIXED
@given(legal_logs, st.data())
def test_fold_of_a_cleaned_log_is_as_the_reference_says(rows: list[LogRow], data: st.DataObject) -> None:  # R16
    kept = cleaned(rows, data.draw(st.integers(0, len(rows))))
    tables = StateInMemory(1)
    split = data.draw(st.integers(0, len(kept)))
    for batch in (kept[:split], kept[split:]):
        if batch:
            tables.fold(batch)
    assert_same(tables, references(kept, 1))


@FIXED
@given(legal_logs, st.data())
def test_cleaning_below_the_folded_position_changes_nothing(rows: list[LogRow], data: st.DataObject) -> None:
    # R15, R16: what was folded before the cleaning stays, and the fold goes on with the head
    split = data.draw(st.integers(0, len(rows)))
    tables = StateInMemory(1)
    tables.fold(rows[:split])
    tables.fold(cleaned(rows, split))
    assert_same(tables, references(rows, 1))
