"""The groups that a reset may choose, and their offsets: of a store, and of the brokers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.kafka.broker.groups_client import GroupListing
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer
from offsets_pipeline.repair.offset_reset import group_offsets
from offsets_pipeline.repair.offset_reset.group_offsets import cluster_group_offsets, mirrored_group_offsets
from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection

ANY: Any = None  # the answers are given
OFFSETS = {TopicPartition("t", 1): 7}


def test_all_groups_of_a_cluster_are_its_consumer_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {
        "simple": GroupListing("simple", "Classic", "", "Empty"),
        "stable": GroupListing("stable", "Consumer", "consumer", "Stable"),
        "dead": GroupListing("dead", "Classic", "consumer", "Dead"),
        "of an old broker": GroupListing("of an old broker", "Classic", "consumer", None),
        "worker": GroupListing("worker", "Classic", "connect", "Stable"),
        "share": GroupListing("share", "Share", "share", "Stable"),
    }

    def fetched(_: object, group_ids: Collection[str]) -> dict[str, dict[tuple[str, int], tuple[int, None, str]]]:
        return {group_id: {("t", 1): (7, None, "metadata")} for group_id in group_ids}

    monkeypatch.setattr(group_offsets, "list_groups", lambda _: listed)
    monkeypatch.setattr(group_offsets, "fetch_group_offsets", fetched)
    assert cluster_group_offsets(ANY, None) == {
        "simple": GroupOffsets("Empty", OFFSETS),
        "stable": GroupOffsets("Stable", OFFSETS),
        "dead": GroupOffsets(None, OFFSETS),
        "of an old broker": GroupOffsets("Empty", OFFSETS),
    }
    named = cluster_group_offsets(ANY, ["worker", "none"])
    assert named == {"worker": GroupOffsets("Stable", OFFSETS), "none": GroupOffsets(None, OFFSETS)}


def test_all_groups_of_a_store_are_its_consumer_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def group(kind: str, protocol_type: str, *, misplaced: bool = False) -> GroupAnswer:
        answer = OffsetAnswer("t", 1, 7, None, "")
        return GroupAnswer(kind, "Empty", protocol_type, "", None, 0, misplaced=misplaced, offsets=[answer])

    groups = {
        "simple": group("Classic", ""),
        "consumer": group("Consumer", "consumer"),
        "misplaced": group("Classic", "consumer", misplaced=True),
        "worker": group("Classic", "connect"),
        "share": group("Share", "share"),
    }
    monkeypatch.setattr(group_offsets, "describe_groups", lambda *_: groups)
    held = GroupOffsets("Empty", OFFSETS)
    assert mirrored_group_offsets(ANY, None) == {"simple": held, "consumer": held}
    assert mirrored_group_offsets(ANY, ["worker", "none"]) == {"worker": held, "none": GroupOffsets(None, {})}
    with pytest.raises(NoSuchGroup, match="group 'share' is a share group, which has no committed offsets"):
        mirrored_group_offsets(ANY, ["none", "share"])
