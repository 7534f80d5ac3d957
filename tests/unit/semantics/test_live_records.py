"""Which records of a group count, from the last value and the last tombstone of each key (R14)."""

from __future__ import annotations

import pytest

from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE
from offsets_pipeline.semantics.group_description import GroupRecordRow, live_records
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, GROUP_TYPE_OF_RECORD_TYPE


def row(record_type: int, value: int | None, tombstone: int | None = None, name: str = "") -> GroupRecordRow:
    """A key's last value and last tombstone, by their record offsets; the value's bytes are its record offset."""
    return GroupRecordRow(record_type, name, value, None if value is None else str(value).encode(), tombstone)


def commit(at: int, without: int | None = None) -> GroupRecordRow:
    """``without``: under `classic` the end of the last batch that may have left the group no offset."""
    return GroupRecordRow(COMMIT_RECORD_TYPE, "", at, None, without)


def live(*rows: GroupRecordRow) -> tuple[str, dict[tuple[int, str], int]] | None:
    found = live_records(rows)
    assert found == live_records(reversed(rows))
    return None if found is None else (found[0], {name: int(value) for name, value in found[1].items()})


def test_no_records_are_no_group() -> None:
    assert live() is None


def test_tombstones_alone_are_no_group() -> None:  # R13
    assert live(row(2, None, 0), row(5, None, 1, "m")) is None


def test_value_at_record_offset_0_counts() -> None:
    assert live(row(3, 0)) == (CONSUMER, {(3, ""): 0})
    assert live(commit(0)) == (CLASSIC, {})


@pytest.mark.parametrize("record_type", GROUP_TYPE_OF_RECORD_TYPE)
def test_value_makes_a_group_of_its_kind(record_type: int) -> None:
    assert live(row(record_type, 3, name="m")) == (GROUP_TYPE_OF_RECORD_TYPE[record_type], {(record_type, "m"): 3})


def test_commit_makes_a_simple_group() -> None:
    assert live(commit(4)) == (CLASSIC, {})
    assert live(commit(4), row(2, None, 5)) is None
    assert live(commit(6), row(2, None, 5)) == (CLASSIC, {})


def test_group_of_offsets_alone_is_gone_with_a_later_batch_that_left_none() -> None:
    assert live(commit(4, 5)) is None
    assert live(commit(5, 5)) == live(commit(6, 5)) == (CLASSIC, {})  # a batch that came again found offsets
    assert live(commit(5), row(2, None, 5)) == (CLASSIC, {})  # the batch that removed the group left offsets behind


@pytest.mark.parametrize("removing", [2, 3, 11, 17])
def test_removal_takes_all_that_is_older(removing: int) -> None:
    assert live(row(5, 1, name="m"), row(16, 2, name=".*"), row(removing, None, 3)) is None
    assert live(row(5, 1, name="m"), row(5, 4, name="n"), row(removing, None, 3)) == (CONSUMER, {(5, "n"): 4})
    assert live(row(5, 1, name="m"), commit(4), row(removing, None, 3)) == (CLASSIC, {})


def test_commit_does_not_end_a_group() -> None:
    assert live(row(3, 1), commit(9)) == (CONSUMER, {(3, ""): 1})


def test_tombstone_of_another_type_removes_its_record_alone() -> None:
    assert live(row(3, 1), row(5, 2, 3, "m"), row(5, 2, None, "n")) == (CONSUMER, {(3, ""): 1, (5, "n"): 2})
    assert live(row(5, 2, 3, "m")) == (CONSUMER, {})


def test_value_after_its_tombstone_counts() -> None:
    assert live(row(3, 1), row(5, 4, 3, "m")) == (CONSUMER, {(3, ""): 1, (5, "m"): 4})
    assert live(row(3, 4, 3)) == (CONSUMER, {(3, ""): 4})


def test_newest_value_tells_the_kind_and_hides_what_another_kind_wrote_before() -> None:
    assert live(row(2, 5), row(3, 3), row(5, 4, name="m")) == (CLASSIC, {(2, ""): 5})
    assert live(row(2, 5), row(3, 7), row(5, 4, name="m")) == (CONSUMER, {(3, ""): 7})
    assert live(row(2, 5), row(3, 7), row(5, 6, name="m")) == (CONSUMER, {(3, ""): 7, (5, "m"): 6})


def test_upgrade_and_downgrade_leave_the_newer_kind() -> None:
    assert live(row(2, 1, 2), row(5, 3, name="m"), row(3, 4)) == (CONSUMER, {(5, "m"): 3, (3, ""): 4})
    assert live(row(5, 1, 3, "m"), row(3, 2, 4), row(2, 5)) == (CLASSIC, {(2, ""): 5})
