"""Offsets that a live cluster answers for moments of a mirrored topic; hand-worked."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.kafka.broker.log_offsets import LATEST
from offsets_pipeline.repair.offset_reset import translation
from offsets_pipeline.repair.offset_reset.restore_plan import FoundBy, FoundOffset
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.repair.offset_reset.translation import Moment, Point

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

    monkeypatch.setattr(translation, "list_offsets", listed)
    moments: dict[Point, Moment | str] = {
        (("t", 0), 5): (MOMENT_MS, FoundBy.TIMESTAMP, "a record"),
        (("t", 0), 6): "it has no timestamp",
    }
    find = translation.translated(cast("Cluster", None), moments)
    if isinstance(expected, str):
        since_then = "cannot find the first record since 1970-01-01T00:00:01.000Z"
        expected = FoundOffset(None, None, f"{since_then}: {expected}")
    assert find(TopicPartition("t", 0), 5) == expected
    assert find(TopicPartition("t", 0), 6) == FoundOffset(None, None, "it has no timestamp")
