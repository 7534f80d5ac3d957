"""History names the cause of every deletion that this program's coordinator writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator import record_encoding
from offsets_pipeline.coordinator.owned_log import Record
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.questions.history.group_timeline import why
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Retention
from tests.unit.coordinator.stores import NOW_MS, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator

RETENTION_MS = 60 * MS_PER_MINUTE
#: Long after the offsets became due, so that records alone cannot tell expiry from requests.
LATER_MS = 5 * RETENTION_MS


def expire(coordinator: Coordinator) -> object:
    return coordinator.expire(coordinator.partition_for("g"))


def delete_group(coordinator: Coordinator) -> object:
    return coordinator.delete_groups(["g"])


def delete_offset(coordinator: Coordinator) -> object:
    return coordinator.delete_offsets("g", [("t", 0)])


def test_deletions_of_one_moment_have_the_cause_of_their_own_request(store: Path) -> None:
    """One append has the tombstones of both requests, with one timestamp."""
    with opened(store, FixedClock(NOW_MS)) as coordinator:
        coordinator.commit_offsets("g", {("t", at): OffsetAndMetadata(120) for at in (0, 1)})
        delete_offset(coordinator)
        delete_group(coordinator)
    log = LogHistory(str(store))
    assert [why(log, Retention(), "g", "t", at).cause for at in (0, 1)] == ["deleted", "group removed"]


def _without_note(
    log_partition: int,
    key: bytes,
    value: bytes | None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    *,
    request: str | None = None,
) -> Record:
    """A record as the coordinator of an earlier version wrote it."""
    del request
    return Record(log_partition, key, value, producer_id, producer_epoch)


@pytest.mark.parametrize(
    ("delete", "cause"), [(expire, "expired"), (delete_group, "group removed"), (delete_offset, "deleted")]
)
def test_the_coordinator_notes_why_it_deletes(store: Path, delete: Callable[[Coordinator], object], cause: str) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock, offsets_retention_minutes=60) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(120)})
        clock.advance_ms(LATER_MS)
        delete(coordinator)
    answer = why(LogHistory(str(store)), Retention(RETENTION_MS, is_known=True), "g", "t", 0)
    assert (answer.status, answer.cause, answer.committed_offset) == ("deleted", cause, 120)


@pytest.mark.parametrize(
    ("delete", "cause"), [(expire, "expired"), (delete_group, "group removed"), (delete_offset, "deleted")]
)
@pytest.mark.parametrize("after_ms", [1_000, RETENTION_MS, LATER_MS])
def test_without_the_note_the_records_give_the_true_cause_or_unknown(
    store: Path, monkeypatch: pytest.MonkeyPatch, delete: Callable[[Coordinator], object], cause: str, after_ms: int
) -> None:
    """As in the log of an earlier version, or of a broker."""
    monkeypatch.setattr(record_encoding, "Record", _without_note)
    clock = FixedClock(NOW_MS)
    with opened(store, clock, offsets_retention_minutes=60) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(120)})
        clock.advance_ms(after_ms)
        delete(coordinator)
    answer = why(LogHistory(str(store)), Retention(RETENTION_MS, is_known=True), "g", "t", 0)
    if delete is expire and after_ms < RETENTION_MS:
        assert answer.status == "committed"
    elif delete is delete_offset or after_ms < RETENTION_MS:
        assert answer.cause == cause
    else:
        likely = "expired (likely)" if after_ms == RETENTION_MS else "unknown"
        assert (answer.cause, answer.candidates) == (likely, ["expired", "group removed"])
