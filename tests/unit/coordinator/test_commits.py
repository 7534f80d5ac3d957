"""Committing and fetching offsets (R17, R24, R25, R27).

The rules of members are those of Kafka's ClassicGroup, ConsumerGroup and OffsetMetadataManager.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator import handlers
from offsets_pipeline.coordinator.handlers import FetchedOffset, delete_group, delete_offsets, store_group
from offsets_pipeline.coordinator.record_encoding import group_record
from offsets_pipeline.coordinator.requests import (
    GroupMetadata,
    MemberOfGroup,
    OffsetAndMetadata,
    OffsetCommit,
    validated_group_id,
    validated_partition,
)
from offsets_pipeline.errors import (
    InvalidCommitOffsetSize,
    InvalidGroupId,
    InvalidRequest,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    UnstableOffsetCommit,
)
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.unit.coordinator.groups import PARTITIONS, share_group, stable
from tests.unit.coordinator.states import at, calls, refusal
from tests.unit.coordinator.stores import NOW_MS, append_rows, log_of, opened, references_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.partition_state import PartitionState

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
LAST_TIME_MS = 9_223_372_036_854_775  # of a table's microseconds in 64 bits
STABLE = stable()
NOBODY, UNKNOWN, ILLEGAL, STALE = MemberOfGroup(), "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH"


def committed(store: Path) -> dict[tuple[str, str, int], int]:
    """The offsets that the reference replay finds in the log."""
    return {
        identity: offset.committed_offset
        for state in references_of(store, 3).values()
        for identity, offset in state.current.items()
    }


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
        ("none", MemberOfGroup("m", 0), "GROUP_ID_NOT_FOUND", ILLEGAL),
        ("simple", NOBODY, "", ""),
        ("simple", MemberOfGroup("m", -1, "i"), "", ""),
        ("simple", MemberOfGroup("m", 0), UNKNOWN, UNKNOWN),
        (STABLE, NOBODY, UNKNOWN, ""),
        *((STABLE, MemberOfGroup(*each), "", "") for each in (("m", 3), ("s", 3), ("s", 3, "i"))),
        *((STABLE, MemberOfGroup("m", each), ILLEGAL, ILLEGAL) for each in (-1, 2, 4)),
        (STABLE, MemberOfGroup("x", 3), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("", 3), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("m", 3, "j"), UNKNOWN, UNKNOWN),
        (STABLE, MemberOfGroup("m", 3, "i"), "FENCED_INSTANCE_ID", "FENCED_INSTANCE_ID"),
        (STABLE, MemberOfGroup("", -1, "i"), "FENCED_INSTANCE_ID", "FENCED_INSTANCE_ID"),
        (replace(STABLE, leader=None), MemberOfGroup("m", 3), "REBALANCE_IN_PROGRESS", ""),
        (replace(STABLE, protocol=None), MemberOfGroup("m", 3), "REBALANCE_IN_PROGRESS", ""),
        ("consumer", MemberOfGroup("m", 5), "", ""),
        ("consumer", NOBODY, UNKNOWN, ""),
        ("consumer", MemberOfGroup("x", 5), UNKNOWN, UNKNOWN),
        *(("consumer", MemberOfGroup("m", each), STALE, ILLEGAL) for each in (-1, 4, 6)),
        ("speaks classic", MemberOfGroup("m", 4), ILLEGAL, ILLEGAL),
        ("left", NOBODY, "", ""),
        ("left", MemberOfGroup("m", 5), UNKNOWN, UNKNOWN),
        ("share", NOBODY, "GROUP_ID_NOT_FOUND", "GROUP_ID_NOT_FOUND"),
    ],
)
def test_a_member_may_commit(
    kind: GroupMetadata | str, member: MemberOfGroup, refused: str, in_transaction: str
) -> None:  # R25
    state = state_of(kind)
    found = [refusal(handlers.validate_member, state, "g", member, transactional=each) for each in (False, True)]
    assert found == [refused, in_transaction]


def test_a_fetch_names_its_member_or_none() -> None:
    def fetched(kind: GroupMetadata | str, member: MemberOfGroup) -> str:
        return refusal(handlers.fetch_offsets, state_of(kind), "g", None, member, require_stable=False)

    members = (NOBODY, MemberOfGroup("m", 5), MemberOfGroup("m"), MemberOfGroup("", 5), MemberOfGroup("", -1, "i"))
    for kind in ("none", "simple", STABLE, "share"):
        assert [fetched(kind, each) for each in members] == [""] * 5
    assert [fetched("consumer", each) for each in members] == ["", "", STALE, UNKNOWN, ""]
    assert fetched("speaks classic", MemberOfGroup("m", 4)) == ILLEGAL


def test_a_commit_has_valid_offsets_times_and_metadata() -> None:  # R24
    settings = CoordinatorSettings(offset_metadata_max_bytes=2)

    def commit(*offsets: OffsetAndMetadata, retention_time_ms: int | None = None) -> Any:  # noqa: ANN401
        request = OffsetCommit("g", {at("t", n): each for n, each in enumerate(offsets)}, NOBODY, retention_time_ms)
        return handlers.commit_offsets(state_of("none"), request, NOW_MS, settings)

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
        *("", "", "", "INVALID_REQUEST", "INVALID_REQUEST")
    ]
    refused = [replace(five, commit_timestamp_ms=each) for each in (-1, LAST_TIME_MS + 1)]
    refused += [OffsetAndMetadata(each) for each in (-1, 2**63, "5", True)]  # type: ignore[arg-type]
    assert [refusal(commit, each) for each in refused] == ["INVALID_REQUEST"] * 2 + ["OFFSET_OUT_OF_RANGE"] * 4
    assert [refusal(commit, OffsetAndMetadata(each)) for each in (0, 2**63 - 1)] == ["", ""]
    outcome = commit(replace(five, metadata="ab"), replace(five, metadata="abc"), replace(five, metadata="ää"))
    assert len(outcome.records) == 1
    assert str(outcome.error) == (
        "the metadata for t-1, t-2 has more than 2 bytes; the 1 others were committed; shorten it"
    )
    assert str(commit(replace(five, metadata="abc")).error) == "the metadata for t-0 has more than 2 bytes; shorten it"


def test_names_and_numbers_fit_into_a_key() -> None:
    ids: list[Any] = ["", "ü" * 16_383, "x" * 32_767, "x" * 32_768, "ü" * 16_384, "\ud800", None]
    assert [refusal(validated_group_id, each) for each in ids] == [""] * 3 + ["INVALID_GROUP_ID"] * 4
    assert [refusal(validated_group_id, each, may_be_empty=False) for each in ("g", "")] == ["", "INVALID_GROUP_ID"]
    names: list[Any] = ["", "\ud800", 5]
    places: list[Any] = [
        *(("t", each) for each in (0, 2**31 - 1, 2**31, -1, "0", False)),
        *((each, 0) for each in names),
    ]
    assert [refusal(validated_partition, each) for each in places] == [""] * 2 + ["UNKNOWN_TOPIC_OR_PARTITION"] * 7


def test_offsets_and_groups_are_deleted_as_the_group_is() -> None:  # R26
    other = replace(STABLE, protocol_type="connect")
    groups: list[Any] = ["none", "simple", STABLE, other, replace(other, members=()), "consumer", "left", "share"]
    assert [refusal(delete_group, state_of(each), "g") for each in groups] == [
        *("GROUP_ID_NOT_FOUND", "", "NON_EMPTY_GROUP", "NON_EMPTY_GROUP", "", "NON_EMPTY_GROUP", "", "")
    ]
    assert [refusal(delete_offsets, state_of(each), "g", [at()]) for each in groups] == [
        *("GROUP_ID_NOT_FOUND", "", "", "NON_EMPTY_GROUP", "", "", "", "GROUP_ID_NOT_FOUND")
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
        *("", "", "", "", "", "NON_EMPTY_GROUP", "", "")
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
        found = handlers.fetch_offsets(state, "g", chosen, NOBODY, require_stable=require_stable)
        errors = [type(each.error).__name__ for each in found.values() if each.error is not None]
        assert errors == ["UnstableOffsetCommit"] * require_stable
        assert [each.offset for each in found.values()] == [0, None, None, None]
    found = handlers.fetch_offsets(state, "g", None, NOBODY, require_stable=False)
    assert found == {at("t", 0): FetchedOffset(0), at("t", 1): FetchedOffset(None)}


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


def test_a_member_commits_in_its_generation(coordinator: Coordinator) -> None:  # R25
    coordinator.store_group(stable())
    coordinator.commit_offsets("g", {("t", 0): 1}, member=MemberOfGroup("m", 3))
    coordinator.commit_offsets("g", {("t", 0): 2}, member=MemberOfGroup("s", 3, "i"))
    coordinator.commit_offsets("g", {("t", 0): 3}, member=MemberOfGroup("s", 3))
    assert coordinator.fetch_offsets("g")[at()].offset == 3


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


def test_a_commit_larger_than_a_batch_is_refused(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    (row,) = next(coordinator._core.log.load([coordinator.partition_for("g")])).to_pylist()
    monkeypatch.setattr(handlers, "MAX_REQUEST_BYTES", len(row["key"]) + len(row["value"]))
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
    assert coordinator.fetch_all_offsets() == {"g": coordinator.fetch_offsets("g")}
    assert coordinator.fetch_all_offsets(require_stable=True)["g"][at("t", 0)].offset is None


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
