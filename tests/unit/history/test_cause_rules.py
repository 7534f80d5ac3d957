"""Causes of deletions at the boundaries of their rules: worked by hand from the records that coordinators write."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.questions.history.deletion_causes import Cause, Causes
from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.group_types import CLASSIC, SHARE
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, TopicPartition
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, SNAPSHOT
from tests.logs import group_value
from tests.member_bytes import subscription

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
#: The run after the hour: ten minutes later, and five seconds late.
LATEST_MS = HOUR_MS + 10 * MINUTE_MS + 5_000
KNOWN = Retention(HOUR_MS, is_known=True)
T, KEPT, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
E, LIKELY, D, G, TOPIC = "expired", "expired (likely)", "deleted", "group removed", "topic gone"


def offset(committed_ms: int = 0, expires_ms: int | None = None, topic_id: str | None = None) -> CommittedOffset:
    return CommittedOffset(0, 7, None, "", committed_ms, expires_ms, topic_id)


HELD = {T: offset()}
OWN = {T: offset(0, 5_000)}


def deletion(
    time_ms: int | None,
    offsets: Mapping[TopicPartition, CommittedOffset] = HELD,
    *deleted: TopicPartition,
    gone: bool = False,
    group: Group | None = None,
    kept: Sequence[str] = (),
    pending: Collection[TopicPartition] = (),
    others: Mapping[str, bool] = MappingProxyType({}),
    changed_ms: int | None = None,
    source: str = "a test",
) -> GroupDeletion:
    """The tombstones of these offsets, of all if none is named, and of the group if it is ``gone``."""
    chosen = deleted or tuple(offsets)
    return GroupDeletion(
        *("g", time_ms, 50, 9, group or Group(CLASSIC), offsets, pending),
        dict.fromkeys(chosen, 50),
        dict.fromkeys(chosen, source),
        changed_ms,
        51 if gone else None,
        others=others,
        topics_kept={*kept},
    )


def classic(protocol_type: str, *topics: str, version: int = 2, generation: int = 1) -> Group:
    """A classic group, empty since second 1, or with a member that subscribes to topics."""
    of_member = {"subscription": subscription(*topics), "assignment": b""}
    member = {"member_id": "m", "client_id": "c", "client_host": "/h", "rebalance_timeout": 1, "session_timeout": 1}
    fields: dict[str, Any] = {"protocol_type": protocol_type, "generation": generation, "protocol": "range"}
    fields |= {"members": [member | of_member] if topics else []}
    fields |= {"current_state_timestamp": 1_000} if version >= 2 else {}
    return Group(CLASSIC, {(2, ""): group_value(2, version, **fields)})


EMPTY, MEMBERS, REMOVED = "the group was empty", "the group had members", "the group was removed"
LOST_ALL, BY_TOPIC = f"{EMPTY} and lost all its offsets", "no group in the log partition kept an offset of t"
AT_0 = f"the last commit was at {shown_time(0)}"
SIMPLE = f"the group has no protocol, and {AT_0}"
NOT_YET = f"the retention of 60 min did not end before {shown_time(HOUR_MS)}"
RUN = [f"the retention of 60 min ended at {shown_time(HOUR_MS)}", "the next expiry run deletes just these offsets"]
DUE_STAYED, OTHERS_STAYED = "offsets that were due as well stayed", "the group kept other offsets"
KEPT_OTHER, KEPT_T = "another group kept an offset of t", "the group kept an offset of t"
NO_RULE, TWO = "no known cause writes these records", "tombstones of 2 groups were written at once"
OWN_TIME = f"its commit named {shown_time(5_000)} as the time at which it expires"
OWN_LATER = f"the time that the commit named did not end before {shown_time(5_000)}"
BY_REQUEST, BY_GROUP = "deleted by an operator (OffsetDelete)", "removed with its group by an operator (DeleteGroups)"
OR_GROUP = f"or {BY_GROUP}: {LOST_ALL}"
PASSED = f"expired: {SIMPLE}, but {RUN[0]}, and expiry runs every 600 s would have deleted it before, {OR_GROUP}"
NO_TIME, SHARED = "the time of the deletion is not known", "it was a share group"


def together(facts: list[str]) -> str:
    return f"{', '.join(facts[:-1])}, and {facts[-1]}" if facts[1:] else facts[0]


@pytest.mark.parametrize(
    ("found", "cause", "facts", "candidates"),
    [
        (deletion(HOUR_MS - 1, gone=True), G, [LOST_ALL, NOT_YET, REMOVED], [G]),
        (deletion(HOUR_MS, gone=True), LIKELY, [SIMPLE, *RUN], [E, G]),
        (deletion(LATEST_MS, gone=True), LIKELY, [SIMPLE, *RUN], [E, G]),
        (deletion(LATEST_MS + 1, gone=True), "unknown", [PASSED], [E, G]),
        # a member, or an open transaction, kept it a second longer
        (deletion(LATEST_MS + 1_000, gone=True, changed_ms=HOUR_MS + 1_000), LIKELY, [SIMPLE, *RUN], [E, G]),
        (
            deletion(LATEST_MS + 1, gone=True, others={"h": True}),
            LIKELY,
            [SIMPLE, RUN[0], "a late expiry run deletes just these offsets", TWO],
            [E, G],
        ),
        # another offset of the group stays: due for less than a second
        (deletion(HOUR_MS + 5_000, HELD | {KEPT: offset(4_001)}, T), LIKELY, [SIMPLE, *RUN], [E, D]),
        # a run of several groups proves it. Each fact is told once
        (
            deletion(HOUR_MS + 5_000, HELD | {KEPT: offset(4_001)}, T, kept="t", others={"h": False}),
            *(E, [SIMPLE, *RUN, TWO, "another group lost offsets at the same time and stayed", KEPT_OTHER], [E]),
        ),
        (
            deletion(HOUR_MS + 5_000, HELD | {KEPT: offset(4_000)}, T),
            *(D, [EMPTY, DUE_STAYED, OTHERS_STAYED, KEPT_T], [D]),
        ),
        (
            deletion(HOUR_MS + 500, {T: offset(100), U: offset(100)}, T, kept="t"),
            *(D, [EMPTY, DUE_STAYED, OTHERS_STAYED, KEPT_OTHER], [D]),
        ),
        # Kafka 4.4 keeps offsets of another topic with the name
        (
            deletion(HOUR_MS - 1, {T: offset(topic_id="new"), KEPT: offset(topic_id="new")}, T),
            *(D, [EMPTY, NOT_YET, OTHERS_STAYED, KEPT_T], [D]),
        ),
        (
            deletion(HOUR_MS - 1, {T: offset(topic_id="new"), KEPT: offset(topic_id="old")}, T),
            *("unknown", [f"{BY_REQUEST}: {EMPTY}, or deleted with its topic: {BY_TOPIC}"], [D, TOPIC]),
        ),
        # commits that name their own time
        (deletion(5_000, OWN, gone=True), LIKELY, [OWN_TIME, RUN[1]], [E, G]),
        (deletion(4_999, OWN, gone=True), G, [LOST_ALL, OWN_LATER, REMOVED], [G]),
        (deletion(HOUR_MS, HELD | {KEPT: offset(0, HOUR_MS - 1_000)}, T), LIKELY, [SIMPLE, *RUN], [E, D]),
        (
            deletion(HOUR_MS, HELD | {KEPT: offset(0, HOUR_MS - 1_001)}, T, kept="t"),
            *(D, [EMPTY, DUE_STAYED, OTHERS_STAYED, KEPT_OTHER], [D]),
        ),
        # what the group was
        (
            deletion(HOUR_MS, gone=True, group=classic("consumer", version=1)),
            *(LIKELY, [f"{EMPTY}, and {AT_0}", *RUN], [E, G]),
        ),
        (
            deletion(HOUR_MS + 1_000, gone=True, group=classic("consumer")),
            LIKELY,
            [f"{EMPTY} since {shown_time(1_000)}", RUN[0].replace("00.000Z", "01.000Z"), RUN[1]],
            [E, G],
        ),
        (
            deletion(HOUR_MS, group=classic("consumer", "u")),
            *(LIKELY, [f"no member of the group subscribes to t, and {AT_0}", *RUN], [E, D, TOPIC]),
        ),
        (
            deletion(HOUR_MS - 1, group=classic("consumer", "u"), kept="t"),
            *(D, ["no member subscribes to t", NOT_YET, MEMBERS, KEPT_OTHER], [D]),
        ),
        (
            deletion(HOUR_MS, group=classic("consumer", "t")),
            *(TOPIC, [BY_TOPIC, "the group subscribes to t", MEMBERS], [TOPIC]),
        ),
        (deletion(HOUR_MS, group=classic("connect", "t")), TOPIC, [BY_TOPIC, MEMBERS], [TOPIC]),
        (
            deletion(HOUR_MS, pending={T}, kept="t"),
            *(D, [EMPTY, "an open transaction held a commit of t", "the group stayed", KEPT_OTHER], [D]),
        ),
        (
            deletion(HOUR_MS, HELD, T, U, pending={U}, gone=True),
            *(G, [LOST_ALL, "a pending commit was deleted with it", REMOVED], [G]),
        ),
        (deletion(HOUR_MS, pending={U}, gone=True), "unknown", [NO_RULE], []),
        # what the same write did to other groups
        (
            deletion(HOUR_MS - 1, others={"h": False}),
            *(TOPIC, [BY_TOPIC, NOT_YET, TWO, "another group lost offsets at the same time and stayed"], [TOPIC]),
        ),
        (
            deletion(HOUR_MS - 1, others={"h": True, "i": True}, gone=True),
            *(G, [LOST_ALL, NOT_YET, TWO.replace("2", "3"), "another group was removed at the same time"], [G]),
        ),
        (deletion(None, gone=True), G, [LOST_ALL, NO_TIME, REMOVED], [G]),
        (deletion(None, group=Group(SHARE)), TOPIC, [BY_TOPIC, NO_TIME, SHARED], [TOPIC]),
    ],
)
def test_cause_of_a_broker_with_a_known_retention(
    found: GroupDeletion, cause: str, facts: list[str], candidates: list[str]
) -> None:
    assert Causes(MODERN, KNOWN, kind=MIRRORED).of(found)[T] == Cause(cause, together(facts), candidates)


@pytest.mark.parametrize(
    ("time_ms", "cause", "facts", "candidates"),
    [
        (59_999, G, [LOST_ALL, "even a retention of 1 min did not end before 1970-01-01T00:01:00.000Z", REMOVED], [G]),
        (
            60_000,
            "unknown",
            [f"expired: {SIMPLE}, 1 min before the deletion (--retention-minutes may rule this out), {OR_GROUP}"],
            [E, G],
        ),
        (HOUR_MS, LIKELY, [SIMPLE, RUN[0].replace("retention", "assumed retention"), RUN[1]], [E, G]),
    ],
)
def test_a_retention_that_is_not_known_is_of_whole_minutes(
    time_ms: int, cause: str, facts: list[str], candidates: list[str]
) -> None:
    found = Causes(MODERN, Retention(HOUR_MS), kind=MIRRORED).of(deletion(time_ms, gone=True))
    assert found == {T: Cause(cause, together(facts), candidates)}


@pytest.mark.parametrize(
    ("found", "candidates"),
    [
        (deletion(HOUR_MS, group=classic("consumer"), gone=True), [D, G, TOPIC]),
        (deletion(HOUR_MS + 1_000, group=classic("consumer"), gone=True), [E, D, G, TOPIC]),
        (deletion(HOUR_MS + 1_000, group=classic("consumer")), []),
        (deletion(HOUR_MS, group=classic("consumer", generation=0)), [D, G, TOPIC]),
        (deletion(HOUR_MS + 1_000, group=classic("consumer", generation=0)), [E, D, G, TOPIC]),
        (deletion(HOUR_MS), [E, D, G, TOPIC]),
        (deletion(HOUR_MS, gone=True), []),
        (deletion(HOUR_MS, HELD | {U: offset(9)}, T), [E, D, TOPIC]),
        (deletion(HOUR_MS, HELD | {U: offset()}, T, gone=True), []),
        # R12: a pending commit goes without a tombstone, and does not keep its offset
        (deletion(HOUR_MS, pending={U}), [E, D, G, TOPIC]),
        (deletion(HOUR_MS, pending={KEPT}, others={"h": False}), [E, D, G, TOPIC]),
    ],
)
def test_a_classic_coordinator_removes_a_group_with_a_generation_with_its_last_offset(
    found: GroupDeletion, candidates: list[str]
) -> None:
    causes = Causes(CoordinatorSemantics.CLASSIC, KNOWN, kind=MIRRORED).of(found)
    assert causes[T].candidates == candidates


def test_offsets_that_the_tombstone_of_their_group_left_behind_went_with_it() -> None:  # R14
    found = deletion(HOUR_MS, HELD | {U: offset()}, T, KEPT, gone=True)
    found.hides_offsets = True
    left = Cause(G, "the tombstone of the group removed it, and left the offset behind", [G])
    causes = Causes(MODERN, KNOWN, kind=MIRRORED).of(found)
    assert {*causes} == {T, U}
    assert causes[U] == left
    assert Causes(MODERN, KNOWN, kind=MIRRORED).of(deletion(HOUR_MS, {U: offset()}, T)) == {}


def test_a_snapshot_tells_a_group_that_is_gone_from_one_that_stayed() -> None:
    unseen = "or deleted with its topic: a snapshot sees that the offset is gone, not why"
    for gone, said, candidates in ((True, BY_GROUP, [E, G, TOPIC]), (False, BY_REQUEST, [E, D, TOPIC])):
        found = Causes(MODERN, KNOWN, kind=SNAPSHOT).of(deletion(HOUR_MS, gone=gone))
        assert found == {T: Cause("unknown", f"expired, {said}, {unseen}", candidates)}


NOTED = "the coordinator noted it with the tombstone"


@pytest.mark.parametrize(
    ("request_name", "cause", "reason"),
    [("Expiration", E, SIMPLE), ("OffsetDelete", D, NOTED), ("DeleteGroups", G, NOTED)],
)
def test_the_coordinators_own_note_is_the_cause(request_name: str, cause: str, reason: str) -> None:
    source = f"coordinator: {request_name}"
    for group, said in ((None, reason), (Group(SHARE), NOTED)):
        found = deletion(9, HELD | {U: offset()}, T, group=group, source=source)
        assert Causes(MODERN, KNOWN, kind=OWNED).of(found) == {T: Cause(cause, said, [cause])}
    lost = LostTombstone("g", T, 5, 9, source)
    assert Causes(MODERN, KNOWN, kind=OWNED).of_lost(lost) == Cause(cause, NOTED, [cause])
    gone = "the records that could tell are no longer in the log"
    of_broker = f"expired, {BY_REQUEST}, {BY_GROUP}, or deleted with its topic: {gone}"
    assert Causes(MODERN, KNOWN, kind=MIRRORED).of_lost(lost) == Cause("unknown", of_broker, [E, D, G, TOPIC])
    ours = Cause("unknown", f"expired, {BY_REQUEST}, or {BY_GROUP}: {gone}", [E, D, G])
    assert Causes(MODERN, KNOWN, kind=OWNED).of_lost(lost._replace(source="coordinator")) == ours
    owned = Causes(MODERN, KNOWN, kind=OWNED).of(deletion(9, gone=True))
    assert owned[T].reason.endswith(f"{REMOVED}, and an owned store has no topics")
