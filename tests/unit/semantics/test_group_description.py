"""The description of a group from its records: type, existence, state, members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.kafka.record.consumer_protocol import ASSIGNMENT, SUBSCRIPTION
from offsets_pipeline.kafka.record.schema import Schema, serde_for
from offsets_pipeline.semantics.group_description import (
    AssignedPartition,
    GroupDescription,
    Member,
    describe_group,
)
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE, STREAMS
from tests.logs import group_value

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
Values = dict[tuple[int, str], bytes]


def blob(schema: Schema, version: int, **fields: object) -> bytes:
    """A member's subscription or assignment as a client sends it."""
    out = bytearray(version.to_bytes(2, "big"))
    serde_for(schema, version).write(out, fields, schema.name)
    return bytes(out)


def classic_member(member_id: str = "m", **fields: object) -> dict[str, Any]:
    plain = {
        "member_id": member_id,
        "client_id": f"client-{member_id}",
        "client_host": "/10.0.0.1",
        "session_timeout": 45_000,
        "rebalance_timeout": 300_000,
        "subscription": b"",
        "assignment": b"",
    }
    return plain | fields


def classic(version: int = 3, **fields: object) -> GroupDescription:
    return describe_group(CLASSIC, {(2, ""): group_value(2, version, **fields)})


# --- R33, R34: classic


def test_simple_group_is_empty_and_has_no_protocol_type() -> None:  # R14, R34
    assert describe_group(CLASSIC, {}) == GroupDescription(CLASSIC, "Empty", "")


def test_classic_group_without_members_is_empty() -> None:  # R33
    found = classic(protocol_type="consumer", generation=4, protocol=None, leader=None, current_state_timestamp=99)
    assert found == GroupDescription(CLASSIC, "Empty", "consumer", generation=4, state_timestamp_ms=99)
    assert found.group_epoch is None  # R34: none for classic


def test_classic_group_with_members_is_stable() -> None:  # R33, R34
    found = classic(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        members=[
            classic_member("n", group_instance_id="static"),
            classic_member(
                "m",
                subscription=blob(SUBSCRIPTION, 3, topics=["t"], owned_partitions=[], generation_id=1, rack_id="r"),
                assignment=blob(ASSIGNMENT, 1, assigned_partitions=[{"topic": "t", "partitions": [2, 0]}]),
            ),
        ],
    )
    assert (found.state, found.protocol, found.generation, found.leader) == ("Stable", "range", 7, "m")
    assert found.state_timestamp_ms is None  # R7: -1 on the wire
    first, second = found.members
    assert first == Member(
        member_id="m",
        instance_id=None,
        rack_id="r",
        client_id="client-m",
        client_host="/10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        subscribed_topics=["t"],
        assignment=[AssignedPartition("t", None, 2), AssignedPartition("t", None, 0)],
    )
    assert (second.member_id, second.instance_id, second.assignment) == ("n", "static", [])


def test_other_protocol_type_keeps_its_blobs_opaque() -> None:  # R34
    assignment = blob(ASSIGNMENT, 1, assigned_partitions=[{"topic": "t", "partitions": [0]}])
    found = classic(protocol_type="connect", protocol="sessioned", members=[classic_member(assignment=assignment)])
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "connect", "sessioned")
    assert (found.members[0].assignment, found.members[0].subscribed_topics) == ([], None)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_classic_group_is_described(version: int) -> None:  # R34
    member = classic_member() if version else classic_member(rebalance_timeout=None)
    found = classic(version, protocol_type="consumer", protocol="range", members=[member])
    assert found.members[0].rebalance_timeout_ms == (300_000 if version else 45_000)
    assert (found.members[0].client_id, found.members[0].session_timeout_ms) == ("client-m", 45_000)


def test_missing_rebalance_timeout_is_the_session_timeout() -> None:
    found = classic(protocol_type="consumer", members=[classic_member(rebalance_timeout=-1)])
    assert found.members[0].rebalance_timeout_ms == 45_000


# --- R33, R34: consumer, share, streams

GROUP, MEMBER, TARGET, CURRENT = (
    {CONSUMER: 3, SHARE: 11, STREAMS: 17},
    {CONSUMER: 5, SHARE: 10, STREAMS: 19},
    {CONSUMER: 6, SHARE: 12, STREAMS: 20},
    {CONSUMER: 8, SHARE: 14, STREAMS: 22},
)
STABLE_STATE = {CONSUMER: 0, STREAMS: 1, SHARE: 0}


def modern(
    kind: str,
    *,
    epoch: int | None = 5,
    assignment_epoch: int | None = 5,
    members: Mapping[str, tuple[int, int] | None],
    topology: int | None = 1,
    validated: int | None = 1,
) -> Values:
    """Records of a group; ``members`` maps to member state and member epoch, None for a member without type 8."""
    values: Values = {}
    if epoch is not None:
        fields: dict[str, Any] = {"validated_topology_epoch": validated} if kind == STREAMS else {}
        values[GROUP[kind], ""] = group_value(GROUP[kind], epoch=epoch, **fields)
    if assignment_epoch is not None:
        values[TARGET[kind], ""] = group_value(TARGET[kind], assignment_epoch=assignment_epoch)
    if kind == STREAMS and topology is not None:
        values[23, ""] = group_value(23, epoch=topology)
    for member_id, current in members.items():
        values[MEMBER[kind], member_id] = group_value(MEMBER[kind], client_id=member_id)
        if current is not None:
            values[CURRENT[kind], member_id] = group_value(CURRENT[kind], state=current[0], member_epoch=current[1])
    return values


MODERN = pytest.mark.parametrize("kind", [CONSUMER, STREAMS])


@pytest.mark.parametrize("kind", [CONSUMER, STREAMS, SHARE])
def test_group_without_members_is_empty_whatever_its_epochs(kind: str) -> None:  # R33
    values = modern(kind, epoch=9, assignment_epoch=2, members={}, topology=None)
    found = describe_group(kind, values)
    assert (found.state, found.group_type, found.protocol_type) == ("Empty", kind, kind.lower())
    assert (found.group_epoch, found.assignment_epoch, found.generation) == (9, 2, None)


@MODERN
@pytest.mark.parametrize("assignment_epoch", [4, None])
def test_group_epoch_above_the_assignment_epoch_is_assigning(kind: str, assignment_epoch: int | None) -> None:  # R33
    stable = (STABLE_STATE[kind], 4)
    found = describe_group(kind, modern(kind, assignment_epoch=assignment_epoch, members={"m": stable}))
    assert found.state == "Assigning"
    assert found.assignment_epoch == (0 if assignment_epoch is None else 4)


@MODERN
@pytest.mark.parametrize("second", ["other state", "older epoch", "newer epoch", "none"])
def test_group_with_a_member_that_is_not_there_yet_is_reconciling(kind: str, second: str) -> None:  # R33
    stable = STABLE_STATE[kind]
    current = {"other state": (2, 5), "older epoch": (stable, 4), "newer epoch": (stable, 6), "none": None}[second]
    found = describe_group(kind, modern(kind, members={"m": (stable, 5), "n": current}))
    assert found.state == "Reconciling"


@MODERN
def test_group_whose_members_all_hold_the_assignment_is_stable(kind: str) -> None:  # R33
    stable = (STABLE_STATE[kind], 5)
    assert describe_group(kind, modern(kind, members={"m": stable, "n": stable})).state == "Stable"
    swapped = (1 - STABLE_STATE[kind], 5)
    assert describe_group(kind, modern(kind, members={"m": stable, "n": swapped})).state == "Reconciling"


@pytest.mark.parametrize(
    ("topology", "validated", "state"),
    [(1, 1, "Stable"), (1, 0, "NotReady"), (1, None, "NotReady"), (None, None, "NotReady"), (-1, None, "Stable")],
)
def test_streams_group_without_a_validated_topology_is_not_ready(
    topology: int | None, validated: int | None, state: str
) -> None:  # R33
    values = modern(STREAMS, members={"m": (1, 5)}, topology=topology, validated=validated)
    assert describe_group(STREAMS, values).state == state


def test_not_ready_comes_before_assigning() -> None:  # R33
    values = modern(STREAMS, epoch=9, members={"m": (1, 5)}, validated=0)
    assert describe_group(STREAMS, values).state == "NotReady"


def test_share_group_with_members_is_stable() -> None:  # R33
    assert describe_group(SHARE, modern(SHARE, epoch=9, assignment_epoch=2, members={"m": None})).state == "Stable"


def test_group_that_began_with_its_member_has_no_epoch_yet() -> None:  # R14: type 5 comes before type 3
    found = describe_group(CONSUMER, {(5, "m"): group_value(5)})
    assert (found.state, found.group_epoch, found.assignment_epoch) == ("Stable", 0, 0)


@pytest.mark.parametrize(
    ("assignors", "expected"),
    [
        ([], "uniform"),
        ([None, ""], "uniform"),
        (["range"], "range"),
        (["range", "uniform", "uniform"], "uniform"),
        (["uniform", "range"], "uniform"),  # as a broker of 4.2 and one of 3.9 answered, whichever joined first
        (["range", "uniform"], "uniform"),
        (["org.acme.Assignor1", "org.acme.Assignor2"], "org.acme.Assignor2"),  # the order of Kafka's TimelineHashMap
        (["range", "org.acme.Assignor2"], "org.acme.Assignor2"),
        ([None, None, "range"], "range"),
    ],
)
def test_assignor_is_the_one_most_members_name(assignors: list[str | None], expected: str) -> None:  # R34
    values = {(5, f"m{at}"): group_value(5, server_assignor=assignor) for at, assignor in enumerate(assignors)}
    assert describe_group(CONSUMER, values).protocol == expected


@pytest.mark.parametrize("kind", [STREAMS, SHARE])
def test_other_kinds_have_no_assignor(kind: str) -> None:  # R34
    assert describe_group(kind, modern(kind, members={"m": None})).protocol is None


def test_consumer_member_is_described() -> None:  # R34, R35
    values = {
        (5, "n"): group_value(5, subscribed_topic_regex="t.*"),
        (5, "m"): group_value(
            5,
            instance_id="static",
            rack_id="r",
            client_id="client",
            client_host="/10.0.0.1",
            subscribed_topic_names=["t"],
            subscribed_topic_regex="",
            rebalance_timeout_ms=300_000,
            classic_member_metadata={"session_timeout_ms": 45_000, "supported_protocols": []},
        ),
        (7, "m"): group_value(7, topic_partitions=[{"topic_id": TOPIC_ID, "partitions": [9]}]),  # the target: not held
        (8, "m"): group_value(8, member_epoch=4, assigned_partitions=[{"topic_id": TOPIC_ID, "partitions": [1, 0]}]),
        (8, "gone"): group_value(8, member_epoch=4),
    }
    first, second = describe_group(CONSUMER, values).members
    assert first == Member(
        member_id="m",
        instance_id="static",
        rack_id="r",
        client_id="client",
        client_host="/10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_epoch=4,
        subscribed_topics=["t"],
        subscribed_regex=None,
        assignment=[AssignedPartition(None, TOPIC_ID, 1), AssignedPartition(None, TOPIC_ID, 0)],
    )
    assert (second.member_id, second.subscribed_regex, second.session_timeout_ms) == ("n", "t.*", None)
    assert (second.member_epoch, second.assignment) == (0, [])


def test_member_with_a_regular_expression_subscribes_to_the_topics_that_match() -> None:  # R18
    values = {
        (5, "m"): group_value(5, subscribed_topic_names=["u"], subscribed_topic_regex="t.*"),
        (5, "n"): group_value(5, subscribed_topic_names=[], subscribed_topic_regex="x.*"),
        (16, "t.*"): group_value(16, topics=["t1", "t2"]),
        (16, "y.*"): group_value(16, topics=["y1"]),
    }
    assert [each.subscribed_topics for each in describe_group(CONSUMER, values).members] == [["t1", "t2", "u"], []]


def test_share_member_is_described() -> None:  # R34
    held = [{"topic_id": TOPIC_ID, "partitions": [1]}]
    values = {
        (10, "m"): group_value(10, client_id="c", client_host="/h", rack_id="r", subscribed_topic_names=["t"]),
        (14, "m"): group_value(14, member_epoch=2, assigned_partitions=held),
    }
    (member,) = describe_group(SHARE, values).members
    assert (member.client_id, member.client_host, member.rack_id, member.member_epoch) == ("c", "/h", "r", 2)
    assert (member.subscribed_topics, member.assignment) == (["t"], [AssignedPartition(None, TOPIC_ID, 1)])


def test_streams_member_is_described() -> None:  # R34
    member_value = group_value(19, client_id="c", client_host="/h", instance_id="i", rebalance_timeout_ms=9)
    values = {(19, "m"): member_value, (22, "m"): group_value(22, member_epoch=3)}
    (member,) = describe_group(STREAMS, values).members
    assert (member.client_id, member.client_host, member.instance_id) == ("c", "/h", "i")
    assert (member.rebalance_timeout_ms, member.member_epoch, member.subscribed_topics) == (9, 3, None)
    assert member.assignment == []


def tasks(**partitions: list[int]) -> list[dict[str, object]]:
    """Tasks by subtopology; names of subtopologies begin with `_`."""
    return [{"subtopology_id": name[1:], "partitions": each} for name, each in partitions.items()]


def test_streams_member_is_assigned_the_source_partitions_of_its_active_tasks() -> None:  # R34
    again = {"name": "again", "partitions": 2, "replication_factor": -1, "topic_configs": []}
    changelog = {**again, "name": "changelog"}
    lists = ("source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "copartition_groups")
    empty: dict[str, object] = {name: [] for name in lists}
    subtopologies = [
        {**empty, "subtopology_id": "0", "source_topics": ["t", "u"], "repartition_source_topics": []},
        {
            **empty,
            "subtopology_id": "1",
            "source_topics": [],
            "repartition_source_topics": [again],
            "state_changelog_topics": [changelog],
        },
    ]
    values = {
        (19, "m"): group_value(19, client_id="c"),
        (21, "m"): group_value(21, active_tasks=tasks(_0=[9])),  # the target: not held
        (22, "m"): group_value(
            22,
            active_tasks=tasks(_0=[1], _1=[0, 2], _7=[0]),  # the topology has no subtopology 7
            standby_tasks=tasks(_1=[1]),
            active_tasks_pending_revocation=tasks(_0=[0]),
        ),
        (23, ""): group_value(23, subtopologies=subtopologies),
    }
    (member,) = describe_group(STREAMS, values).members
    assert [(each.topic, each.topic_id, each.partition) for each in member.assignment] == [
        ("t", None, 1),
        ("u", None, 1),
        ("again", None, 0),
        ("again", None, 2),
    ]
