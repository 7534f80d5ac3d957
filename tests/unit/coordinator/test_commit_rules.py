"""Which member may commit to which group, and what a request may hold: decided on a state, without a store (R24, R25).

The answers are those of Kafka's ClassicGroup, ConsumerGroup and OffsetMetadataManager.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator import commits
from offsets_pipeline.coordinator.commits import FetchedOffset
from offsets_pipeline.coordinator.groups import delete_group, delete_offsets, store_group
from offsets_pipeline.coordinator.record_encoding import group_record
from offsets_pipeline.coordinator.requests import (
    GroupMetadata,
    MemberOfGroup,
    OffsetAndMetadata,
    OffsetCommit,
    validated_group_id,
    validated_partition,
)
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics import partition_state
from tests.logs import LogPartition
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at, refusal

if TYPE_CHECKING:
    from offsets_pipeline.semantics.partition_state import PartitionState

NOW_MS = 1_795_000_000_000
LAST_TIME_MS = 9_223_372_036_854_775  # of a table's microseconds in 64 bits
STABLE = stable()
NOBODY, UNKNOWN, ILLEGAL, STALE = MemberOfGroup(), "UnknownMemberId", "IllegalGeneration", "StaleMemberEpoch"


def state_of(kind: GroupMetadata | str) -> PartitionState:
    """A log partition with a group "g"."""
    log = LogPartition()
    if isinstance(kind, GroupMetadata):
        record = group_record(0, kind, NOW_MS)
        log.record(record.key, record.value)
    elif kind == "simple":
        log.commit(("g", "t", 0), 5)
    elif kind == "share":
        log.group(11, "g", epoch=1)
    elif kind != "none":
        if kind != "left":
            classic = {"session_timeout_ms": 1, "supported_protocols": []} if kind == "speaks classic" else None
            log.group(5, "g", "m", subscribed_topic_names=["t"], classic_member_metadata=classic)
        log.group(3, "g", epoch=5)
        if kind != "left":
            log.group(8, "g", "m", member_epoch=5)
    return partition_state.replay(log.rows, 0, 1)


@pytest.mark.parametrize(
    ("kind", "member", "refused", "in_transaction"),
    [
        ("none", NOBODY, "", ""),
        ("none", MemberOfGroup("m"), "", ""),
        ("none", MemberOfGroup("m", 0), "NoSuchGroup", ILLEGAL),
        ("simple", NOBODY, "", ""),
        ("simple", MemberOfGroup("m", -1, "i"), "", ""),
        ("simple", MemberOfGroup("m", 0), UNKNOWN, UNKNOWN),
        (STABLE, NOBODY, UNKNOWN, ""),
        *((STABLE, MemberOfGroup(*each), "", "") for each in (("m", 3), ("s", 3), ("s", 3, "i"))),
        *((STABLE, MemberOfGroup("m", each), ILLEGAL, ILLEGAL) for each in (-1, 2, 4)),
        (STABLE, MemberOfGroup("x", 3), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("", 3), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("m", 3, "j"), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("m", 3, "i"), "FencedInstanceId", "FencedInstanceId"),
        (STABLE, MemberOfGroup("", -1, "i"), "FencedInstanceId", "FencedInstanceId"),
        (replace(STABLE, leader=None), MemberOfGroup("m", 3), "RebalanceInProgress", ""),
        (replace(STABLE, protocol=None), MemberOfGroup("m", 3), "RebalanceInProgress", ""),
        ("consumer", MemberOfGroup("m", 5), "", ""),
        ("consumer", NOBODY, UNKNOWN, ""),
        ("consumer", MemberOfGroup("x", 5), UNKNOWN, UNKNOWN),
        *(("consumer", MemberOfGroup("m", each), STALE, ILLEGAL) for each in (-1, 4, 6)),
        ("speaks classic", MemberOfGroup("m", 4), ILLEGAL, ILLEGAL),
        ("left", NOBODY, "", ""),
        ("left", MemberOfGroup("m", 5), UNKNOWN, UNKNOWN),
        ("share", NOBODY, "NoSuchGroup", "NoSuchGroup"),
    ],
)
def test_a_member_may_commit(
    kind: GroupMetadata | str, member: MemberOfGroup, refused: str, in_transaction: str
) -> None:  # R25
    state = state_of(kind)
    found = [refusal(commits.validate_member, state, "g", member, transactional=each) for each in (False, True)]
    assert found == [refused, in_transaction]


def test_a_fetch_names_its_member_or_none() -> None:
    def fetched(kind: GroupMetadata | str, member: MemberOfGroup) -> str:
        return refusal(commits.fetch_offsets, state_of(kind), "g", None, member, require_stable=False)

    members = (NOBODY, MemberOfGroup("m", 5), MemberOfGroup("m"), MemberOfGroup("", 5), MemberOfGroup("", -1, "i"))
    for kind in ("none", "simple", STABLE, "share"):
        assert [fetched(kind, each) for each in members] == [""] * 5
    assert [fetched("consumer", each) for each in members] == ["", "", STALE, UNKNOWN, ""]
    assert fetched("speaks classic", MemberOfGroup("m", 4)) == ILLEGAL


def test_a_commit_has_valid_offsets_times_and_metadata() -> None:  # R24
    settings = CoordinatorSettings(offset_metadata_max_bytes=2)

    def commit(*offsets: OffsetAndMetadata, retention_time_ms: int | None = None) -> Any:  # noqa: ANN401
        request = OffsetCommit("g", {at("t", n): each for n, each in enumerate(offsets)}, NOBODY, retention_time_ms)
        return commits.commit_offsets(state_of("none"), request, NOW_MS, settings)

    def times(outcome: Any) -> list[tuple[object, object]]:  # noqa: ANN401
        values = (decode_value(1, each.value).fields for each in outcome.records)
        return [(each["commit_timestamp"], each.get("expire_timestamp")) for each in values]

    five = OffsetAndMetadata(5)
    last = replace(five, commit_timestamp_ms=LAST_TIME_MS)
    assert times(commit(five, replace(five, commit_timestamp_ms=0), last)) == [
        *((NOW_MS, None), (0, None), (LAST_TIME_MS, None))
    ]
    assert times(commit(five, retention_time_ms=1)) == [(NOW_MS, NOW_MS + 1)]
    assert [refusal(commit, five, retention_time_ms=each) for each in (None, -1, 1, 0, -2)] == [
        *("", "", "", "InvalidRequest", "InvalidRequest")
    ]
    refused = [replace(five, commit_timestamp_ms=each) for each in (-1, LAST_TIME_MS + 1)]
    refused += [OffsetAndMetadata(each) for each in (-1, 2**63, "5")]  # type: ignore[arg-type]
    assert [refusal(commit, each) for each in refused] == ["InvalidRequest"] * 2 + ["OffsetOutOfRange"] * 3
    assert [refusal(commit, OffsetAndMetadata(each)) for each in (0, 2**63 - 1)] == ["", ""]
    outcome = commit(replace(five, metadata="ab"), replace(five, metadata="abc"), replace(five, metadata="ää"))
    assert len(outcome.records) == 1
    assert str(outcome.error) == (
        "the metadata for t-1, t-2 has more than 2 bytes; the 1 others were committed; shorten it"
    )
    assert str(commit(replace(five, metadata="abc")).error) == "the metadata for t-0 has more than 2 bytes; shorten it"


def test_names_and_numbers_fit_into_a_key() -> None:
    ids: list[Any] = ["", "ü" * 16_383, "x" * 32_767, "x" * 32_768, "ü" * 16_384, "\ud800", None]
    assert [refusal(validated_group_id, each) for each in ids] == [""] * 3 + ["InvalidGroupId"] * 4
    assert [refusal(validated_group_id, each, may_be_empty=False) for each in ("g", "")] == ["", "InvalidGroupId"]
    names: list[Any] = ["", "\ud800", 5]
    places: list[Any] = [*(("t", each) for each in (0, 2**31 - 1, 2**31, -1, "0")), *((each, 0) for each in names)]
    assert [refusal(validated_partition, each) for each in places] == [""] * 2 + ["UnknownTopicOrPartition"] * 6


def test_offsets_and_groups_are_deleted_as_the_group_is() -> None:  # R26
    other = replace(STABLE, protocol_type="connect")
    groups: list[Any] = ["none", "simple", STABLE, other, replace(other, members=()), "consumer", "left", "share"]
    assert [refusal(delete_group, state_of(each), "g") for each in groups] == [
        *("NoSuchGroup", "", "NonEmptyGroup", "NonEmptyGroup", "", "NonEmptyGroup", "", "")
    ]
    assert [refusal(delete_offsets, state_of(each), "g", [at()]) for each in groups] == [
        *("NoSuchGroup", "", "", "NonEmptyGroup", "", "", "", "NoSuchGroup")
    ]
    subscribed = [
        str(delete_offsets(state_of(each), "g", [at(), at()]).error) for each in groups[1:-1] if each != other
    ]
    assert subscribed == [
        *("None", "group 'g' subscribes to t", "None", "group 'g' subscribes to t", "None"),
    ]
    outcome = delete_offsets(state_of("simple"), "g", [at("t", 1), at(), at()])
    assert (outcome.response, len(outcome.records)) == (1, 1)
    assert [refusal(store_group, state_of(each), STABLE, NOW_MS) for each in groups] == [
        *("", "", "", "", "", "NonEmptyGroup", "", "")
    ]
    for generation, refused in ((2, ILLEGAL), (3, ""), (4, "")):
        assert refusal(store_group, state_of(STABLE), stable(generation=generation), NOW_MS) == refused


def test_a_negative_offset_is_none_and_a_pending_one_unstable() -> None:  # R17
    log = LogPartition()
    for partition, offset in enumerate((0, -1)):
        log.commit(("g", "t", partition), offset)
    log.commit(("g", "t", 2), 5, producer_id=7)
    state = partition_state.replay(log.rows, 0, 1)
    chosen = [at("t", each) for each in range(4)]
    for require_stable in (False, True):
        found = commits.fetch_offsets(state, "g", chosen, NOBODY, require_stable=require_stable)
        errors = [type(each.error).__name__ for each in found.values() if each.error is not None]
        assert errors == ["UnstableOffsetCommit"] * require_stable
        assert [each.offset for each in found.values()] == [0, None, None, None]
    found = commits.fetch_offsets(state, "g", None, NOBODY, require_stable=False)
    assert found == {at("t", 0): FetchedOffset(0), at("t", 1): FetchedOffset(None)}
