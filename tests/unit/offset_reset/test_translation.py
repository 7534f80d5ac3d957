"""Offsets that a live cluster answers for moments of a mirrored topic; hand-worked."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.kafka.broker.fetch import FirstRecord
from offsets_pipeline.kafka.broker.log_offsets import LATEST
from offsets_pipeline.repair.offset_reset import restore_plan
from offsets_pipeline.repair.offset_reset.restore_plan import FoundBy, FoundOffset
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.kafka.broker.fetch import FoundRecord
    from offsets_pipeline.repair.offset_reset.restore_plan import Moment, Point

MOMENT_MS = 1_000
AWAY = KafkaFailed("the leader is away")


@pytest.mark.parametrize(
    ("since", "end", "expected"),
    [
        (7, 9, FoundOffset(7, FoundBy.TIMESTAMP, "a record")),
        (None, 9, FoundOffset(9, FoundBy.LOG_END, "a record; no record is that late")),
        (AWAY, 9, "the leader is away"),
        (None, AWAY, "the leader is away"),
        (None, None, "no answer"),
    ],
)
def test_an_offset_is_the_first_since_the_moment_else_the_log_end_else_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    since: int | OffsetsError | None,
    end: int | OffsetsError | None,
    expected: FoundOffset | str,
) -> None:
    def listed(_: Cluster, times: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | OffsetsError | None]:
        return {place: end if time == LATEST else since for place, time in times.items()}

    monkeypatch.setattr(restore_plan, "list_offsets", listed)
    moments: dict[Point, Moment | str] = {
        (("t", 0), 5): (MOMENT_MS, FoundBy.TIMESTAMP, "a record"),
        (("t", 0), 6): "it has no timestamp",
    }
    find = restore_plan.translated(cast("Cluster", None), moments)
    if isinstance(expected, str):
        since_then = "cannot find the first record since 1970-01-01T00:00:01.000Z"
        expected = FoundOffset(None, None, f"{since_then}: {expected}")
    assert find(TopicPartition("t", 0), 5) == expected
    assert find(TopicPartition("t", 0), 6) == FoundOffset(None, None, "it has no timestamp")


def test_a_record_has_its_timestamp_and_the_end_of_a_log_that_of_the_youngest_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: dict[Point, FoundRecord] = {
        (("t", 0), 5): FirstRecord(5, 1_000),
        (("t", 0), 7): FirstRecord(9, 2_000),
        (("t", 1), 3): None,  # the end of the log
        (("t", 1), 1): FirstRecord(1, 3_000),  # its youngest record
        (("t", 2), 0): AWAY,
        (("t", 3), 0): FirstRecord(2, None),
        (("t", 4), 6): None,  # a log without records
        (("t", 5), 8): None,
        (("t", 5), 4): FirstRecord(4, None),
    }
    youngest = {("t", 1): 1, ("t", 4): None, ("t", 5): 4}

    def listed(_: Cluster, times: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        assert set(times.values()) == {-3}  # KIP-734: the record with the highest timestamp
        return {place: youngest[place] for place in times}

    def first(_: Cluster, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], FoundRecord]:
        return {place: records[place, offset] for place, offset in offsets.items()}

    monkeypatch.setattr(restore_plan, "list_offsets", listed)
    monkeypatch.setattr(restore_plan, "first_records", first)
    points = [point for point in records if point not in [(("t", 1), 1), (("t", 5), 4)]]
    gone = "the store's cluster has no record left that tells a timestamp"
    assert restore_plan.moments_by_records(cast("Cluster", None), points) == {
        (("t", 0), 5): (1_000, FoundBy.TIMESTAMP, "record 5 has the timestamp 1970-01-01T00:00:01.000Z"),
        (("t", 0), 7): (
            *(2_000, FoundBy.TIMESTAMP),
            "record 7 is gone; the next one, 9, has the timestamp 1970-01-01T00:00:02.000Z",
        ),
        (("t", 1), 3): (
            *(3_001, FoundBy.TIMESTAMP),
            "all records were consumed; the last one has the timestamp 1970-01-01T00:00:03.000Z",
        ),
        (("t", 2), 0): "cannot read the record in the store's cluster: the leader is away",
        (("t", 3), 0): "record 2 has no timestamp",
        **dict.fromkeys(((("t", 4), 6), (("t", 5), 8)), gone),
    }
