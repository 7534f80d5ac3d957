"""Records that a cleaning keeps, rule by rule, on small logs (R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import LogRow
from tests.logs import LogPartition
from tests.property.test_cleaning_keeps import cleaned, said
from tests.replays import replay

if TYPE_CHECKING:
    from collections.abc import Callable

AT = ("g", "t", 0)
OLD = 1_000_000  # behind all of a log: every tombstone is old


def kept(log: LogPartition, *, aged_to: int = 0, semantics: CoordinatorSemantics = MODERN) -> list[int]:
    """The record offsets that a cleaning of the whole log keeps; the replay of these has to be the same."""
    rows = cleaned(log.rows, log.next_offset, aged_to, semantics=semantics)
    assert said(replay(rows, 0, 1, semantics)) == said(replay(log.rows, 0, 1, semantics))
    return [row.record_offset for row in rows]


def superseded(log: LogPartition) -> list[int]:
    log.commit(AT, 1)
    return [log.commit(AT, 2), log.commit(("g", "t", 1), 1)]


def same_identity_by_its_old_key(log: LogPartition) -> list[int]:  # R9
    log.commit(AT, 1, key_version=0)
    return [log.commit(AT, 2)]


def young_tombstone(log: LogPartition) -> list[int]:
    log.group(2, "g")
    log.commit(AT, 1)
    log.delete(AT)
    log.commit(AT, 2)
    value = log.group(2, "g")
    return [value, log.delete(AT)]


def open_transaction(log: LogPartition) -> list[int]:  # R11
    first = log.commit(AT, 1, 7)
    second = log.commit(AT, 2, 7)
    log.commit(("g", "t", 1), 1)
    return [first, second, log.commit(("g", "t", 1), 2)]


def tombstone_over_an_open_transaction(log: LogPartition) -> list[int]:  # R12
    pending = log.commit(AT, 1, 7)
    tombstone = log.delete(AT)
    return [pending, tombstone, log.commit(AT, 3)]


def committed_transaction(log: LogPartition) -> list[int]:
    log.commit(AT, 1, 7)
    log.end_commit(7)
    second = log.commit(AT, 2, 7)
    return [second, log.end_commit(7), log.end_commit(8)]


def commit_that_a_plain_one_overtook(log: LogPartition) -> list[int]:  # R10
    log.commit(AT, 1, 7)
    return [log.commit(AT, 2), log.end_commit(7)]


def aborted_transaction(log: LogPartition) -> list[int]:
    plain = log.commit(AT, 1)
    log.commit(AT, 2, 7)
    return [plain, log.end_abort(7)]


def group_known_by_an_aborted_commit(log: LogPartition) -> list[int]:  # R14
    log.commit(AT, 1, 7)
    aborted = log.commit(AT, 2, 7)
    return [aborted, log.end_abort(7)]


def simple_group_that_holds_nothing(log: LogPartition) -> list[int]:  # R14, R16
    log.commit(AT, 1)
    return [log.commit(AT, 2), log.delete(AT)]


def group_whose_last_member_left(log: LogPartition) -> list[int]:  # R14: of its kind still
    log.commit(AT, 1)
    member = log.group(5, "g", "m")
    return [member, log.group_tombstone(5, "g", "m"), log.commit(AT, 2)]


def what_a_removal_left_behind(log: LogPartition) -> list[int]:  # R14
    left = log.commit(AT, 1)
    log.group(2, "g")
    return [left, log.group_tombstone(2, "g")]


def members_of_a_group(log: LogPartition) -> list[int]:
    log.group(5, "g", "m")
    log.group(5, "g", "gone")
    member = log.group(5, "g", "m")
    log.group_tombstone(5, "g", "gone")
    return [member, log.group(3, "g", epoch=2)]


def corrupt_record_behind_a_healthy_one(log: LogPartition) -> list[int]:  # R6, R16
    healthy = log.commit(AT, 1)
    key = log.rows[-1].key
    log.record(key, b"\x00\x63")
    return [healthy, log.record(key, b"\x00\x64")]


def corrupt_record_of_a_group_behind_a_healthy_one(log: LogPartition) -> list[int]:  # R6, R16
    log.group(3, "g", epoch=1)
    healthy = log.group(3, "g", epoch=2)
    return [healthy, log.record(log.rows[-1].key, b"\x00\x63")]


def group_of_a_type_that_replaced_another(log: LogPartition) -> list[int]:  # R14: the newest value of each type
    log.group(5, "g", "m")
    consumer = log.group(3, "g", epoch=1)
    return [consumer, log.group(2, "g")]


def corrupt_record_before_a_healthy_one(log: LogPartition) -> list[int]:
    log.commit(AT, 1)
    log.record(log.rows[-1].key, b"\x00\x63")
    return [log.commit(AT, 2)]


def records_of_unknown_types(log: LogPartition) -> list[int]:  # R6
    log.record(b"\x00\x63one", b"1")
    log.record(b"\x00\x63two", b"1")
    return [log.record(b"\x00\x63one", b"2"), log.record(b"\x00\x63two", None)]


def records_without_a_key(log: LogPartition) -> list[int]:  # R3
    log.record(None, b"1")
    empty = log.record(b"", b"1")
    return [empty, log.record(None, b"2")]


def unknown_record_of_an_aborted_transaction(log: LogPartition) -> list[int]:
    first = log.record(b"\x00\x63one", b"1")
    log.record(b"\x00\x63one", b"2", 7)
    return [first, log.end_abort(7)]


@pytest.mark.parametrize(
    "write",
    [
        superseded,
        same_identity_by_its_old_key,
        young_tombstone,
        open_transaction,
        tombstone_over_an_open_transaction,
        committed_transaction,
        commit_that_a_plain_one_overtook,
        aborted_transaction,
        group_known_by_an_aborted_commit,
        simple_group_that_holds_nothing,
        group_whose_last_member_left,
        what_a_removal_left_behind,
        corrupt_record_behind_a_healthy_one,
        corrupt_record_of_a_group_behind_a_healthy_one,
        group_of_a_type_that_replaced_another,
        corrupt_record_before_a_healthy_one,
        records_of_unknown_types,
        records_without_a_key,
        unknown_record_of_an_aborted_transaction,
    ],
)
def test_what_stays(write: Callable[[LogPartition], list[int]]) -> None:
    log = LogPartition()
    expected = write(log)
    assert kept(log) == sorted(expected)


@pytest.mark.parametrize(
    ("write", "goes"),
    [
        (young_tombstone, 1),
        (members_of_a_group, 0),
        (records_of_unknown_types, 1),
        # these hide something that stays
        (tombstone_over_an_open_transaction, 0),
        (simple_group_that_holds_nothing, 0),
        (group_whose_last_member_left, 0),
        (what_a_removal_left_behind, 0),
    ],
)
def test_old_tombstones_go_but_where_they_hide_something(write: Callable[[LogPartition], list[int]], goes: int) -> None:
    log = LogPartition()
    expected = sorted(write(log))
    assert kept(log, aged_to=OLD) == expected[: len(expected) - goes]


def test_last_record_of_a_producer_goes_when_it_is_old() -> None:
    log = LogPartition()
    log.commit(AT, 1, 7)
    log.end_abort(7)
    log.end_abort(7)
    fences = log.end_abort(8)
    plain = log.commit(AT, 2)
    assert kept(log, aged_to=fences) == [fences, plain]
    assert kept(log, aged_to=fences + 1) == [plain]


def test_aborted_commit_of_a_group_with_records_proves_nothing() -> None:  # R14
    log = LogPartition()
    group = log.group(2, "g")
    log.commit(AT, 1, 7)
    log.end_abort(7)
    assert kept(log, aged_to=OLD) == [group]


def test_nothing_is_left_of_a_group_that_was_deleted_long_ago() -> None:
    log = LogPartition()
    log.group(2, "g", protocol_type="consumer")
    log.commit(AT, 1)
    log.delete(AT)
    log.group_tombstone(2, "g")
    assert kept(log) == [2, 3]
    assert kept(log, aged_to=OLD) == []


def test_classic_cleaning_keeps_what_brings_an_offset_back_and_nothing_of_a_group_without_offsets() -> None:
    # R10c, R12, R14
    log = LogPartition()
    brought_back = log.commit(AT, 1, 7)
    overruled = log.delete(AT)
    marker = log.end_commit(7)
    left_behind = log.commit(("h", "t", 0), 1)
    log.group_tombstone(2, "h")
    log.commit(("i", "t", 0), 1)
    log.delete(("i", "t", 0))
    log.commit(("j", "t", 0), 1, 8)
    log.end_abort(8)
    assert kept(log, aged_to=OLD, semantics=CoordinatorSemantics.CLASSIC) == [
        brought_back,
        overruled,
        marker,
        left_behind,
    ]


def test_nothing_at_or_above_the_end_of_the_cleaning_is_looked_at() -> None:
    log = LogPartition()
    log.commit(AT, 1)
    log.commit(AT, 2, 7)
    end = log.commit(AT, 3)
    log.end_commit(7)
    assert [row.record_offset for row in cleaned(log.rows, end, OLD)] == [0, 1, 2, 3]
    assert cleaned([], 0, 0) == []
    assert cleaned([LogRow(0, 5, None, None)], 6, OLD) == []
