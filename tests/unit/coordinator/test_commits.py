"""Committing and fetching offsets (R17, R24, R25, R27)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator import commits
from offsets_pipeline.coordinator.commits import FetchedOffset
from offsets_pipeline.coordinator.requests import MemberOfGroup, OffsetAndMetadata
from offsets_pipeline.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    InvalidRequest,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OffsetsError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.unit.coordinator.groups import PARTITIONS, of_kip848, share_group, stable
from tests.unit.coordinator.states import at, calls
from tests.unit.coordinator.stores import NOW_MS, append_rows, log_of, opened, references_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def committed(store: Path) -> dict[tuple[str, str, int], int]:
    """The offsets that the reference replay finds in the log."""
    return {
        identity: offset.committed_offset
        for state in references_of(store, 3).values()
        for identity, offset in state.current.items()
    }


def test_a_commit_is_in_the_log_and_answers(coordinator: Coordinator, store: Path) -> None:
    given = {at("t", 0): OffsetAndMetadata(5, 7, "größe", TOPIC_ID), at("u", 1): OffsetAndMetadata(0)}
    coordinator.commit_offsets("g", given)
    assert coordinator.fetch_offsets("g") == {
        at("t", 0): FetchedOffset(5, 7, "größe"),
        at("u", 1): FetchedOffset(0),
    }
    state = references_of(store, 3)[coordinator.partition_for("g")]
    offset = state.offsets["g", "t", 0]
    assert (offset.committed_offset, offset.leader_epoch, offset.metadata) == (5, 7, "größe")
    assert (offset.commit_timestamp_ms, offset.expire_timestamp_ms, offset.topic_id) == (NOW_MS, None, TOPIC_ID)
    assert committed(store) == {("g", "t", 0): 5, ("g", "u", 1): 0}


def test_the_last_partition_that_a_record_can_name_takes_a_commit(coordinator: Coordinator, store: Path) -> None:
    coordinator.commit_offsets("g", {at("t", 2**31 - 1): OffsetAndMetadata(5)})
    assert committed(store) == {("g", "t", 2**31 - 1): 5}


@pytest.mark.parametrize("version", range(5))
def test_values_have_the_version_of_the_settings(store: Path, version: int) -> None:  # R7
    with opened(store, offset_commit_value_version=version) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(5, 7, "m", TOPIC_ID)})
        coordinator.commit_offsets("g", {("t", 1): 6}, retention_time_ms=1_000)
        answer = coordinator.fetch_offsets("g", [("t", 0)])[at("t", 0)]
    assert answer == FetchedOffset(5, 7 if version >= 3 else None, "m")
    values = [decode_value(1, row.value) for rows in log_of(store).values() for row in rows if row.value is not None]
    assert [value.version for value in values] == [version, 1]
    assert values[0].fields.get("topic_id") == (TOPIC_ID if version == 4 else None)
    assert values[1].fields["expire_timestamp"] == NOW_MS + 1_000  # R19


def test_the_default_retention_is_the_store_s_own(store: Path) -> None:  # R19
    """As `retentionTimeMs` of -1 in OffsetCommit v2 to v4."""
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 5}, retention_time_ms=-1)
        coordinator.expire_loaded(NOW_MS + 60_000)
        assert coordinator.fetch_offsets("g")[at()].offset == 5
    (value,) = [decode_value(1, row.value) for rows in log_of(store).values() for row in rows if row.value is not None]
    assert value.fields.get("expire_timestamp") is None


@pytest.mark.parametrize("retention_time_ms", [0, -2, -NOW_MS])
def test_a_retention_that_deletes_the_commit_at_once_is_refused(store: Path, retention_time_ms: int) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 5})
        with pytest.raises(InvalidRequest, match=f"retention_time_ms={retention_time_ms} is not allowed"):
            coordinator.commit_offsets("g", {("t", 0): 6}, retention_time_ms=retention_time_ms)
    assert committed(store) == {("g", "t", 0): 5}


def test_a_member_commits_in_its_generation(coordinator: Coordinator) -> None:  # R25
    coordinator.store_group(stable())
    coordinator.commit_offsets("g", {("t", 0): 1}, member=MemberOfGroup("m", 3))
    coordinator.commit_offsets("g", {("t", 0): 2}, member=MemberOfGroup("s", 3, "i"))
    coordinator.commit_offsets("g", {("t", 0): 3}, member=MemberOfGroup("s", 3))
    assert coordinator.fetch_offsets("g")[at()].offset == 3


@pytest.mark.parametrize(
    ("member", "error", "kafka_name"),
    [
        (MemberOfGroup(), UnknownMemberId, "UNKNOWN_MEMBER_ID"),
        (MemberOfGroup("x", 3), UnknownMemberId, "UNKNOWN_MEMBER_ID"),
        (MemberOfGroup("m", 3, "j"), UnknownMemberId, "UNKNOWN_MEMBER_ID"),
        (MemberOfGroup("m", 3, "i"), FencedInstanceId, "FENCED_INSTANCE_ID"),
        (MemberOfGroup("m", 2), IllegalGeneration, "ILLEGAL_GENERATION"),
        (MemberOfGroup("m", 4), IllegalGeneration, "ILLEGAL_GENERATION"),
        (MemberOfGroup("m"), IllegalGeneration, "ILLEGAL_GENERATION"),
    ],
)
def test_only_members_of_the_generation_may_commit(
    coordinator: Coordinator, store: Path, member: MemberOfGroup, error: type[OffsetsError], kafka_name: str
) -> None:  # R25
    coordinator.store_group(stable())
    before = log_of(store)
    with pytest.raises(error):
        coordinator.commit_offsets("g", {("t", 0): 1}, member=member)
    assert error.kafka_name == kafka_name
    assert log_of(store) == before


def test_without_a_generation_only_an_empty_or_unknown_group_takes_commits(coordinator: Coordinator) -> None:  # R25
    coordinator.commit_offsets("g", {("t", 0): 1})
    coordinator.commit_offsets("g", {("t", 0): 2}, member=MemberOfGroup("anybody"))
    with pytest.raises(UnknownMemberId):  # an empty group has no member of any generation
        coordinator.commit_offsets("g", {("t", 0): 3}, member=MemberOfGroup("m", 0))
    with pytest.raises(NoSuchGroup):
        coordinator.commit_offsets("new", {("t", 0): 3}, member=MemberOfGroup("m", 0))
    assert coordinator.fetch_offsets("g")[at()].offset == 2
    assert coordinator.get_group("new") is None


def test_a_generation_that_is_not_agreed_upon_takes_no_commits(coordinator: Coordinator) -> None:
    group = stable()
    coordinator.store_group(type(group)(group.group_id, group.protocol_type, 4, None, None, group.members))
    with pytest.raises(RebalanceInProgress) as refused:
        coordinator.commit_offsets("g", {("t", 0): 1}, member=MemberOfGroup("m", 4))
    assert refused.value.kafka_name == "REBALANCE_IN_PROGRESS"


@pytest.mark.parametrize(
    ("member", "error"),
    [
        (MemberOfGroup("m", 4), StaleMemberEpoch),
        (MemberOfGroup("m", 6), StaleMemberEpoch),
        (MemberOfGroup("x", 5), UnknownMemberId),
        (MemberOfGroup(), UnknownMemberId),
    ],
)
def test_a_member_of_a_consumer_group_commits_in_its_epoch(
    coordinator: Coordinator, store: Path, member: MemberOfGroup, error: type[OffsetsError]
) -> None:
    of_kip848(store, "c")
    coordinator.commit_offsets("c", {("t", 0): 1}, member=MemberOfGroup("m", 5))
    with pytest.raises(error):
        coordinator.commit_offsets("c", {("t", 0): 2}, member=member)
    assert coordinator.fetch_offsets("c", member=MemberOfGroup("m", 5))[at()].offset == 1
    if member.generation >= 0:
        with pytest.raises(error):
            coordinator.fetch_offsets("c", member=member)
    assert StaleMemberEpoch.kafka_name == "STALE_MEMBER_EPOCH"


def test_a_classic_member_of_a_consumer_group_hears_of_its_generation(coordinator: Coordinator, store: Path) -> None:
    of_kip848(store, "c", classic=True)
    with pytest.raises(IllegalGeneration):
        coordinator.commit_offsets("c", {("t", 0): 2}, member=MemberOfGroup("m", 4))


def test_a_share_group_has_no_offsets(coordinator: Coordinator, store: Path) -> None:
    coordinator.commit_offsets("s", {("t", 0): 1})
    share_group(store, "s")  # in place of the simple group (R14)
    for ask in (
        lambda: coordinator.commit_offsets("s", {("t", 0): 2}),
        lambda: coordinator.delete_offsets("s", [("t", 0)]),
    ):
        with pytest.raises(NoSuchGroup, match="share group"):
            ask()
    assert coordinator.fetch_offsets("s") == {}
    assert coordinator.fetch_all_offsets() == {}
    assert coordinator.fetch_offsets("s", [("t", 0)], require_stable=True) == {at(): FetchedOffset(None)}


def test_a_pending_commit_of_a_group_that_does_not_exist_is_unstable(coordinator: Coordinator, store: Path) -> None:
    """As Kafka 4.2's OffsetMetadataManager answers; no broker is known to write such a log."""
    log = LogPartition(partition_for("g", PARTITIONS))
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.group_tombstone(2, "g")
    append_rows(store, log.rows, PARTITIONS)
    assert coordinator.get_group("g") is None
    (answer,) = coordinator.fetch_offsets("g", [("t", 0)], require_stable=True).values()
    assert isinstance(answer.error, UnstableOffsetCommit)
    assert coordinator.fetch_offsets("g", [("t", 0)]) == {at(): FetchedOffset(None)}


@pytest.mark.parametrize(("letter", "count"), [("x", 4_096), ("ü", 2_048)])
def test_metadata_of_4096_bytes_passes_and_4097_does_not(coordinator: Coordinator, letter: str, count: int) -> None:
    coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(1, metadata=letter * count)})
    assert coordinator.fetch_offsets("g")[at()].metadata == letter * count
    three = OffsetAndMetadata(3)
    with pytest.raises(OffsetMetadataTooLarge, match="t-0 has more than 4096 bytes; the 1 others were") as refused:
        coordinator.commit_offsets(
            "g", {("t", 0): OffsetAndMetadata(2, metadata=letter * count + "x"), ("t", 1): three}
        )
    assert refused.value.kafka_name == "OFFSET_METADATA_TOO_LARGE"
    # as in Kafka the other partitions are committed
    assert {where: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {
        at("t", 0): 1,
        at("t", 1): 3,
    }


def test_limit_of_metadata_is_a_setting(store: Path) -> None:
    with opened(store, offset_metadata_max_bytes=3) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(1, metadata="abc")})
        with pytest.raises(OffsetMetadataTooLarge, match="more than 3 bytes"):
            coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(1, metadata="abcd")})


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_invalid_offset_is_refused(coordinator: Coordinator, offset: int) -> None:
    coordinator.commit_offsets("g", {("t", 0): 2**63 - 1})
    with pytest.raises(OffsetOutOfRange) as refused:
        coordinator.commit_offsets("g", {("t", 0): offset})
    assert refused.value.kafka_name == "OFFSET_OUT_OF_RANGE"
    assert coordinator.fetch_offsets("g")[at()].offset == 2**63 - 1


def test_a_commit_larger_than_a_batch_is_refused(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    (row,) = next(coordinator._core.log.load([coordinator.partition_for("g")])).to_pylist()
    monkeypatch.setattr(commits, "MAX_REQUEST_BYTES", len(row["key"]) + len(row["value"]))
    coordinator.commit_offsets("g", {("t", 1): 1})
    with pytest.raises(InvalidCommitOffsetSize) as refused:
        coordinator.commit_offsets("g", {("t", 1): OffsetAndMetadata(1, metadata="x")})
    assert refused.value.kafka_name == "INVALID_COMMIT_OFFSET_SIZE"
    with pytest.raises(InvalidCommitOffsetSize, match="above 32767"):
        coordinator.commit_offsets("g", {("t" * 32_768, 1): 1})


@pytest.mark.parametrize("group_id", [None, 5, "half \ud800", "ü" * 16_384])
def test_invalid_group_id_is_refused(coordinator: Coordinator, group_id: str) -> None:
    for ask in (
        lambda: coordinator.commit_offsets(group_id, {("t", 0): 1}),
        lambda: coordinator.fetch_offsets(group_id),
        lambda: coordinator.get_group(group_id),
        lambda: coordinator.remove_group(group_id),
        lambda: coordinator.find_coordinator(group_id),
    ):
        with pytest.raises(InvalidGroupId) as refused:
            ask()
        assert refused.value.kafka_name == "INVALID_GROUP_ID"


def test_empty_group_id_is_refused_only_where_a_broker_refuses_it(coordinator: Coordinator) -> None:
    coordinator.commit_offsets("", {("t", 0): 1})
    coordinator.begin_transaction(7, 0)
    for ask in calls(
        lambda: coordinator.txn_commit_offsets(7, 0, "", {("t", 0): 2}),
        lambda: coordinator.delete_offsets("", [("t", 0)]),
    ):
        with pytest.raises(InvalidGroupId, match="does not allow an empty group id"):
            ask()
    assert coordinator.fetch_offsets("")[at()].offset == 1
    assert coordinator.remove_group("") == 1


@pytest.mark.parametrize("where", [("t", -1), ("t", 2**31), ("", 0), ("half \ud800", 0), (None, 0), (5, 0), ("t", "0")])
def test_invalid_partition_is_refused(coordinator: Coordinator, where: tuple[str, int]) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        coordinator.commit_offsets("g", {where: 1})


def test_a_partition_without_offset_answers_as_none(coordinator: Coordinator, store: Path) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    log = LogPartition(partition_for("g", 3))
    log.commit(("g", "t", 1), -1)  # as a broker's clients could write it
    append_rows(store, log.rows, 3)
    assert coordinator.fetch_offsets("g", [("t", 0), ("t", 1), ("u", 0)]) == {
        at("t", 0): FetchedOffset(1),
        at("t", 1): FetchedOffset(None),
        at("u", 0): FetchedOffset(None),
    }
    assert coordinator.fetch_offsets("nobody", [("t", 0)]) == {at(): FetchedOffset(None)}
    assert coordinator.fetch_offsets("nobody") == {}


def test_offsets_of_all_groups(coordinator: Coordinator) -> None:
    for group_id in ("a", "b", "c", "d"):
        coordinator.commit_offsets(group_id, {("t", 0): 1})
    coordinator.store_group(stable("e"))  # with members and without offsets
    assert coordinator.fetch_all_offsets() == {each: {at(): FetchedOffset(1)} for each in ("a", "b", "c", "d")}


def test_stable_reads_report_open_transactions(coordinator: Coordinator) -> None:  # R17
    coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 2, ("t", 2): 2})
    stable_answers = coordinator.fetch_offsets("g", [("t", 0), ("t", 1), ("t", 2)], require_stable=True)
    assert {where: each.offset for where, each in stable_answers.items()} == {
        at("t", 0): None,
        at("t", 1): 1,
        at("t", 2): None,
    }
    errors = {where: type(each.error) for where, each in stable_answers.items() if each.error is not None}
    assert errors == {at("t", 0): UnstableOffsetCommit, at("t", 2): UnstableOffsetCommit}
    # of all partitions those that hold an offset are named, as a broker does
    assert coordinator.fetch_offsets("g", require_stable=True).keys() == {at("t", 0), at("t", 1)}
    assert {where: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {
        at("t", 0): 1,
        at("t", 1): 1,
    }


def test_commits_of_a_group_are_appended_in_order(coordinator: Coordinator) -> None:
    coordinator.store_group(stable())
    done = [
        coordinator.commit_offsets_async("g", {("t", 0): offset}, member=MemberOfGroup("m", 3)) for offset in range(200)
    ]
    for each in done:
        each.result(10)
    assert coordinator.fetch_offsets("g")[at()].offset == 199
    assert coordinator.gauges().appends < 150  # many commits share an append


def test_refused_asynchronous_commit_has_the_reason(coordinator: Coordinator) -> None:
    failed: Callable[[], object] = coordinator.commit_offsets_async("g", {("t", 0): -1}).result
    with pytest.raises(OffsetOutOfRange):
        failed()


def test_commit_made_elsewhere_keeps_its_time(coordinator: Coordinator, store: Path) -> None:
    then = NOW_MS - 86_400_000
    offset = OffsetAndMetadata(5, commit_timestamp_ms=then)
    coordinator.commit_offsets("g", {("t", 0): offset, ("t", 1): OffsetAndMetadata(6)})
    (state,) = (state for state in references_of(store, 3).values() if state.current)
    assert {identity[2]: each.commit_timestamp_ms for identity, each in state.current.items()} == {0: then, 1: NOW_MS}
    with pytest.raises(InvalidRequest, match=r"commit_timestamp_ms=-1 is not allowed for t-0"):
        coordinator.commit_offsets("g", {("t", 0): OffsetAndMetadata(5, commit_timestamp_ms=-1)})
