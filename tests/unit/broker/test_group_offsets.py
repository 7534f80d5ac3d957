"""Committed offsets of groups: requests in versions with topic names, and the errors of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from offsets_pipeline.errors import (
    BrokerUnreachable,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NoSuchGroup,
    NoSuchTopic,
    NotAuthorized,
)
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import (
    GroupListing,
    commit_group_offsets,
    commit_offsets_of_groups,
    coordinators_of_log,
    delete_group_offsets,
    delete_groups,
    describe_classic_groups,
    describe_consumer_groups,
    fetch_group_offsets,
    list_groups,
    refused_offsets,
    unstable_offsets,
)
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tests.unit.broker.fake_broker import TOPIC, VERSIONS, FakeBroker, fake_broker
from tests.unit.broker.fake_topic import FakePartition, cluster_of, fake_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMIT, FETCH, FIND = OffsetCommitRequest.API_KEY, OffsetFetchRequest.API_KEY, FindCoordinatorRequest.API_KEY
METADATA = MetadataRequest.API_KEY
NO_TOPIC, NO_ACCESS = 3, 29


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker that coordinates the groups `g` and `h`, and knows versions that name topics by their ids."""
    with fake_broker() as broker:
        broker.versions = VERSIONS | {COMMIT: (2, 10), FETCH: (1, 10), FIND: (0, 4)}
        coordinate(broker, 1)
        yield broker


def coordinate(broker: FakeBroker, node_id: int, code: int = 0) -> None:
    """Let the broker answer that it coordinates the groups `g` and `h`, with this node id; `h` with this error code."""
    node: dict[str, Any] = {"node_id": node_id, "host": "127.0.0.1", "port": broker.port, "error_message": None}
    coordinators = [
        FindCoordinatorResponse.Coordinator(key=key, error_code=error, **node) for key, error in (("g", 0), ("h", code))
    ]
    broker.answers[FIND] = lambda _: FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    options = {"request.timeout.ms": "2000", "default.api.timeout.ms": "3000", "retry.backoff.ms": "1"}
    with Cluster(KafkaOptions(broker.address, options)) as cluster:
        yield cluster


def versions_of(broker: FakeBroker, api_key: int) -> set[int]:
    return {version for key, version, _ in broker.requests if key == api_key}


def committed(codes: list[int]) -> OffsetCommitResponse:
    """An answer with an error code for each partition of the topic `t`."""
    of_topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partitions = [
        of_topic.OffsetCommitResponsePartition(partition_index=at, error_code=code) for at, code in enumerate(codes)
    ]
    return OffsetCommitResponse(throttle_time_ms=0, topics=[of_topic(name="t", partitions=partitions)])


def test_refused_partitions_have_their_errors_and_the_others_none(broker: FakeBroker, cluster: Cluster) -> None:
    offsets = {("t", at): (10 + at, "") for at in range(3)}
    broker.answers[COMMIT] = lambda _: committed([0, NO_TOPIC, NO_ACCESS])
    found = refused_offsets(cluster, "g", offsets)
    assert {at: type(error) for at, error in found.items()} == {("t", 1): NoSuchTopic, ("t", 2): NotAuthorized}
    with pytest.raises(NoSuchTopic):
        commit_group_offsets(cluster, "g", offsets)
    broker.answers[COMMIT] = lambda _: committed([0, 0, 0])
    assert refused_offsets(cluster, "g", offsets) == {}
    assert versions_of(broker, COMMIT) == {9}  # 10 has ids in place of the names


def test_a_commit_is_that_of_a_client_without_membership(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[COMMIT] = lambda _: committed([0, NO_ACCESS])
    places = [("t", 1), ("u", 0), ("t", 0)]
    offsets = [("g", place, *each) for place, each in zip(places, [(11, "m"), (5, ""), (10, "")], strict=True)]
    found = commit_offsets_of_groups(cluster, offsets)
    assert {where: str(error) for where, error in found.items()} == {
        ("g", ("t", 1)): f"{broker.address} does not allow us to commit the offset of group g for t-1 "
        "(TOPIC_AUTHORIZATION_FAILED); grant READ on the group and the topic"
    }
    asked = broker.request(OffsetCommitRequest, 0)
    assert (asked.group_id, asked.generation_id_or_member_epoch, asked.member_id, asked.group_instance_id) == (
        *("g", -1, "", None),
    )
    assert [
        (
            topic.name,
            [(each.partition_index, each.committed_offset, each.committed_metadata) for each in topic.partitions],
        )
        for topic in asked.topics
    ] == [("t", [(1, 11, "m"), (0, 10, "")]), ("u", [(0, 5, "")])]
    assert {each.committed_leader_epoch for topic in asked.topics for each in topic.partitions} == {-1}


def test_a_large_commit_is_sent_in_parts(broker: FakeBroker, cluster: Cluster) -> None:
    # a broker refuses the records of a request, together with a batch's header, above 1,048,588 bytes
    offsets = {("t", at): (at, "x" * 4096) for at in range(300)}
    broker.answers[COMMIT] = lambda number: committed([0, NO_ACCESS if number == 1 else 0])
    assert list(refused_offsets(cluster, "g", offsets)) == [("t", 1)]
    asked = [broker.request(OffsetCommitRequest, number) for number in range(broker.count(COMMIT))]
    sent = [[each for topic in request.topics for each in topic.partitions] for request in asked]
    assert [each.partition_index for part in sent for each in part] == list(range(300))
    assert [len(part) for part in sent] == [124, 124, 52]


def test_parts_before_an_error_are_committed_and_those_after_it_are_not_sent(
    broker: FakeBroker, cluster: Cluster
) -> None:
    """A member that joins between two parts: `reset-offsets` says which offsets it changed, and how to undo that."""
    offsets = [("g", ("t", at), at, "x" * 4096) for at in range(300)]
    broker.answers[COMMIT] = lambda number: committed([25 if number else 0])
    found = commit_offsets_of_groups(cluster, offsets)
    assert {where: type(error) for where, error in found.items()} == {
        ("g", ("t", at)): NonEmptyGroup for at in range(124, 300)
    }
    assert broker.count(COMMIT) == 2


def test_a_group_with_members_refuses_all_offsets_of_it(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[COMMIT] = lambda number: committed([0] if number else [0, 25])
    places = [("g", ("t", 0)), ("g", ("t", 1)), ("h", ("t", 0))]
    found = commit_offsets_of_groups(cluster, [(*each, 1, "") for each in places])
    assert {where: type(error) for where, error in found.items()} == dict.fromkeys(places[:2], NonEmptyGroup)


@pytest.mark.parametrize("code", [22, 25, 27])
def test_a_group_with_members_is_not_committed(broker: FakeBroker, cluster: Cluster, code: int) -> None:
    broker.answers[COMMIT] = lambda _: committed([code])
    with pytest.raises(NonEmptyGroup, match="of group g: it has members"):
        commit_group_offsets(cluster, "g", {("t", 0): (1, "")})


def test_a_moving_coordinator_is_asked_again(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[COMMIT] = lambda number: committed([0, 0 if number else 16])
    offsets = {("t", at): (1, "") for at in range(2)}
    assert refused_offsets(cluster, "g", offsets) == {}
    assert broker.count(COMMIT) == 2
    grown = broker.metadata()
    grown.brokers.append(MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=broker.port))
    broker.answers[METADATA] = lambda _: grown
    coordinate(broker, 2)  # a broker that was not there before
    assert commit_offsets_of_groups(cluster, [("g", at, *each) for at, each in offsets.items()]) == {}


@pytest.mark.parametrize(("highest", "version", "requests"), [(10, 9, 1), (8, 8, 1), (7, 7, 2)])
def test_offsets_of_groups_are_fetched_together_or_one_by_one(
    broker: FakeBroker, cluster: Cluster, highest: int, version: int, requests: int
) -> None:
    broker.versions[FETCH] = (1, highest)
    batched, alone = OffsetFetchResponse.OffsetFetchResponseGroup, OffsetFetchResponse.OffsetFetchResponseTopic

    def answer(number: int) -> OffsetFetchResponse:
        of_topic = batched.OffsetFetchResponseTopics if requests == 1 else alone
        of_partition = (
            of_topic.OffsetFetchResponsePartitions if requests == 1 else of_topic.OffsetFetchResponsePartition
        )
        rows = [(0, 5, 7, "m", 0), (1, 6, -1, None, 0), (2, -1, -1, "", 0), (3, 8, 1, "", NO_TOPIC)]
        names = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")
        topic = of_topic(name="t", partitions=[of_partition(**dict(zip(names, row, strict=True))) for row in rows])
        if requests == 1:
            groups = [batched(group_id="g", topics=[topic], error_code=0)]
            groups.append(batched(group_id="h", topics=[], error_code=0))
            return OffsetFetchResponse(throttle_time_ms=0, groups=groups)
        return OffsetFetchResponse(throttle_time_ms=0, topics=[] if number else [topic], error_code=0)

    broker.answers[FETCH] = answer
    found = fetch_group_offsets(cluster, ["g", "h"])
    assert found == {"g": {("t", 0): (5, 7, "m"), ("t", 1): (6, None, "")}, "h": {}}
    assert (broker.count(FETCH), versions_of(broker, FETCH)) == (requests, {version})
    assert not any(broker.request(OffsetFetchRequest, number).require_stable for number in range(requests))


def test_a_stable_read_names_the_partitions_for_which_a_transaction_holds_a_commit(
    broker: FakeBroker, cluster: Cluster
) -> None:  # R17
    of_group = OffsetFetchResponse.OffsetFetchResponseGroup
    of_topic = of_group.OffsetFetchResponseTopics
    partitions = [
        of_topic.OffsetFetchResponsePartitions(
            partition_index=at, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
        )
        for at, code in ((0, 0), (1, 88), (2, NO_TOPIC))
    ]
    topics = [of_topic(name="t", partitions=partitions)]
    broker.answers[FETCH] = lambda _: OffsetFetchResponse(
        throttle_time_ms=0, groups=[of_group(group_id="g", topics=topics, error_code=0)]
    )
    assert unstable_offsets(cluster, "g", [("t", 0), ("t", 1), ("t", 2)]) == {("t", 1)}
    asked = broker.request(OffsetFetchRequest, 0)
    assert asked.require_stable
    assert [(each.name, each.partition_indexes) for each in asked.groups[0].topics] == [("t", [0, 1, 2])]


def test_groups_are_listed_with_types_and_states_as_far_as_brokers_send_them(
    broker: FakeBroker, cluster: Cluster
) -> None:
    broker.versions[ListGroupsRequest.API_KEY] = (0, 5)
    of_group, code = ListGroupsResponse.ListedGroup, 0
    groups = [
        of_group(group_id="a", protocol_type="consumer", group_state="Stable", group_type="consumer"),
        of_group(group_id="b", protocol_type="", group_state="", group_type=""),
    ]
    broker.answers[ListGroupsRequest.API_KEY] = lambda _: ListGroupsResponse(
        throttle_time_ms=0, error_code=code, groups=groups
    )
    assert list_groups(cluster) == {
        "a": GroupListing("a", "Consumer", "consumer", "Stable"),
        "b": GroupListing("b", "Classic", "", None),
    }
    code = 31
    with pytest.raises(NotAuthorized, match=r"list the groups .*; grant DESCRIBE on the cluster or on groups"):
        list_groups(cluster)


def test_groups_that_no_longer_exist_are_left_out(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[DescribeGroupsRequest.API_KEY] = (0, 6)
    of_group = DescribeGroupsResponse.DescribedGroup
    common: dict[str, Any] = {"protocol_type": "consumer", "protocol_data": "", "members": [], "error_message": None}
    states = {"g": ("Dead", 0), "h": ("Stable", 0)}
    broker.answers[DescribeGroupsRequest.API_KEY] = lambda _: DescribeGroupsResponse(
        throttle_time_ms=0,
        groups=[
            of_group(group_id=name, group_state=state, error_code=code, **common)
            for name, (state, code) in states.items()
        ],
    )
    assert [each.group_state for each in describe_classic_groups(cluster, ["g", "h"]).values()] == ["Stable"]
    states["g"] = "", 69
    assert list(describe_classic_groups(cluster, ["g", "h"])) == ["h"]
    states["g"] = "", 30
    with pytest.raises(NotAuthorized, match=r"describe the members of group g .*; grant READ on the group"):
        describe_classic_groups(cluster, ["g", "h"])


def test_groups_that_are_not_deleted_have_their_errors(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[DeleteGroupsRequest.API_KEY] = (0, 2)
    of_group = DeleteGroupsResponse.DeletableGroupResult
    broker.answers[DeleteGroupsRequest.API_KEY] = lambda _: DeleteGroupsResponse(
        throttle_time_ms=0, results=[of_group(group_id="g", error_code=0), of_group(group_id="h", error_code=68)]
    )
    assert {name: type(error) for name, error in delete_groups(cluster, {"g": [], "h": []})[0].items()} == {
        "h": NonEmptyGroup
    }


@pytest.mark.parametrize("requests", [1, 2])
def test_coordinators_are_found_together_or_one_by_one(broker: FakeBroker, cluster: Cluster, requests: int) -> None:
    broker.versions = broker.versions | {DeleteGroupsRequest.API_KEY: (0, 2)}
    of_group = DeleteGroupsResponse.DeletableGroupResult
    broker.answers[DeleteGroupsRequest.API_KEY] = lambda _: DeleteGroupsResponse(
        throttle_time_ms=0, results=[of_group(group_id=each, error_code=0) for each in ("g", "h")]
    )
    if requests == 2:
        broker.coordinate_all()
    assert delete_groups(cluster, {"g": [], "h": []}) == ({}, set())
    found = [broker.request(FindCoordinatorRequest, number) for number in range(broker.count(FIND))]
    assert [each.key_type for each in found] == [0] * requests
    assert [each.coordinator_keys if requests == 1 else each.key for each in found] == (
        [["g", "h"]] if requests == 1 else ["g", "h"]
    )
    assert broker.request(DeleteGroupsRequest, 0).groups_names == ["g", "h"]  # one request for both


def test_a_group_whose_coordinator_is_refused_has_that_error_alone(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[DeleteGroupsRequest.API_KEY] = (0, 2)
    of_group = DeleteGroupsResponse.DeletableGroupResult
    broker.answers[DeleteGroupsRequest.API_KEY] = lambda _: DeleteGroupsResponse(
        throttle_time_ms=0, results=[of_group(group_id="g", error_code=69)]
    )
    coordinate(broker, 1, 30)
    found, _ = delete_groups(cluster, {"g": [], "h": []})
    refused = (
        "does not allow us to delete the records of group h (GROUP_AUTHORIZATION_FAILED); grant DESCRIBE on the group"
    )
    assert {name: (type(error), str(error)) for name, error in found.items()} == {
        "g": (NoSuchGroup, f"{broker.address} cannot delete the records of group g: GROUP_ID_NOT_FOUND"),
        "h": (NotAuthorized, f"{broker.address} {refused}"),
    }


def test_offsets_that_are_not_deleted_have_their_errors(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[OffsetDeleteRequest.API_KEY] = (0, 0)
    of_topic, code = OffsetDeleteResponse.OffsetDeleteResponseTopic, 0
    of_partition = of_topic.OffsetDeleteResponsePartition
    broker.answers[OffsetDeleteRequest.API_KEY] = lambda _: OffsetDeleteResponse(
        error_code=code,
        throttle_time_ms=0,
        topics=[
            of_topic(name="t", partitions=[of_partition(partition_index=at, error_code=at * 86) for at in range(2)]),
        ],
    )
    places = [("t", 1), ("u", 4), ("t", 0)]
    needs = "DELETE on the group and READ on the topic"
    found = delete_group_offsets(cluster, "g", places)
    assert {at: (type(error), str(error)) for at, error in found.items()} == {
        ("t", 1): (
            GroupSubscribedToTopic,
            f"{broker.address} cannot delete the offset of group g for t-1: GROUP_SUBSCRIBED_TO_TOPIC",
        )
    }
    assert broker.request(OffsetDeleteRequest, 0).to_dict() == {
        "group_id": "g",
        "topics": [
            {"name": name, "partitions": [{"partition_index": at} for at in partitions]}
            for name, partitions in (("t", [1, 0]), ("u", [4]))
        ],
    }
    code = 30
    refused = delete_group_offsets(cluster, "g", places)
    assert [str(refused[each]) for each in places] == 3 * [
        f"{broker.address} does not allow us to delete offsets of group g (GROUP_AUTHORIZATION_FAILED); grant {needs}"
    ]


#: A group id of which 17 tombstones are a batch.
LONG = "g" * 30_000
OF_LONG = [("t", at) for at in range(40)]


def answer_deletions(broker: FakeBroker, of_offsets: Callable[[int], int], of_group: Callable[[int], int]) -> None:
    """Let the broker delete offsets and groups, with these error codes of each partition or group of a request."""
    broker.versions = broker.versions | {OffsetDeleteRequest.API_KEY: (0, 0), DeleteGroupsRequest.API_KEY: (0, 2)}
    broker.coordinate_all()
    of_topic = OffsetDeleteResponse.OffsetDeleteResponseTopic

    def offsets(number: int) -> OffsetDeleteResponse:
        sent = broker.request(OffsetDeleteRequest, number).topics[0].partitions
        code = of_offsets(number)
        partitions = [
            of_topic.OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in sent
        ]
        return OffsetDeleteResponse(
            error_code=0, throttle_time_ms=0, topics=[of_topic(name="t", partitions=partitions)]
        )

    def groups(number: int) -> DeleteGroupsResponse:
        names, code = broker.request(DeleteGroupsRequest, number).groups_names, of_group(number)
        results = [DeleteGroupsResponse.DeletableGroupResult(group_id=each, error_code=code) for each in names]
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    broker.answers[OffsetDeleteRequest.API_KEY] = offsets
    broker.answers[DeleteGroupsRequest.API_KEY] = groups


def break_off(*_: object) -> int:
    raise ValueError  # the broker closes the connection


def test_offsets_deleted_before_no_broker_answers_have_no_error(broker: FakeBroker) -> None:
    answer_deletions(broker, lambda number: break_off() if number else 0, break_off)
    options = {"request.timeout.ms": "200", "default.api.timeout.ms": "300", "retry.backoff.ms": "1"}
    with Cluster(KafkaOptions(broker.address, options)) as cluster:
        cluster.brokers()
        find = broker.answers[FIND]
        broker.answers[FIND] = lambda number: break_off() if number else find(number)
        found = delete_group_offsets(cluster, LONG, OF_LONG)
    assert {at: type(error) for at, error in found.items()} == dict.fromkeys(OF_LONG[17:], BrokerUnreachable)


@pytest.mark.parametrize(("offsets", "requests"), [(16, 1), (17, 2)])
def test_tombstones_fill_a_batch_of_half_of_the_usual_limit(
    broker: FakeBroker, cluster: Cluster, offsets: int, requests: int
) -> None:
    answer_deletions(broker, lambda _: 0, lambda _: 0)
    group_id = "g" * (524_288 // 16 - 100 - len("t"))
    assert delete_group_offsets(cluster, group_id, [("t", at) for at in range(offsets)]) == {}
    assert broker.count(OffsetDeleteRequest.API_KEY) == requests


def test_a_group_that_is_deleted_is_not_asked_for_again_with_those_of_the_next_batch(
    broker: FakeBroker, cluster: Cluster
) -> None:
    answer_deletions(broker, lambda _: 0, lambda number: break_off() if number == 1 else 0)
    names = [letter * 30_000 for letter in "gh"]
    assert delete_groups(cluster, dict.fromkeys(names, OF_LONG[:10])) == ({}, set())
    asked = [broker.request(DeleteGroupsRequest, number).groups_names for number in range(3)]
    assert asked == [names[:1], names[1:], names[1:]]


def test_offsets_of_a_group_that_do_not_fit_are_deleted_first_also_if_the_group_gets_members(
    broker: FakeBroker, cluster: Cluster
) -> None:
    answer_deletions(broker, lambda _: 0, lambda _: 68)
    failed, deleted = delete_groups(cluster, {LONG: OF_LONG})
    assert {name: type(error) for name, error in failed.items()} == {LONG: NonEmptyGroup}
    assert deleted == {(LONG, at) for at in OF_LONG[:34]}
    assert broker.count(OffsetDeleteRequest.API_KEY) == 2


def test_a_group_that_keeps_more_offsets_than_a_batch_is_not_deleted(broker: FakeBroker, cluster: Cluster) -> None:
    """Kafka 3.9 would answer no error, and have the offsets again after its restart. It needs READ on their topics."""
    answer_deletions(broker, lambda number: NO_ACCESS if number else 0, lambda _: 0)
    failed, deleted = delete_groups(cluster, {LONG: OF_LONG, "h": []})
    assert {name: type(error) for name, error in failed.items()} == {LONG: NotAuthorized}
    assert deleted == {(LONG, at) for at in OF_LONG[:17]}
    assert broker.request(DeleteGroupsRequest, 0).groups_names == ["h"]


@pytest.mark.parametrize(
    "answers",
    [
        [("g", 0), ("h", 69)],
        # of Kafka 3.9 and 4.0: three log partitions about both groups, one of them still loading
        [("g", 0), ("h", 69), ("g", 69), ("h", 69), ("g", 14)],
        [("g", 14), ("g", 69), ("h", 69), ("g", 0), ("h", 69)],
    ],
)
def test_groups_of_kip_848_are_described_without_those_that_no_longer_exist(
    broker: FakeBroker, cluster: Cluster, answers: Sequence[tuple[str, int]]
) -> None:
    broker.versions[ConsumerGroupDescribeRequest.API_KEY] = (0, 1)
    of_group = ConsumerGroupDescribeResponse.DescribedGroup
    broker.answers[ConsumerGroupDescribeRequest.API_KEY] = lambda _: ConsumerGroupDescribeResponse(
        throttle_time_ms=0,
        groups=[
            of_group(
                error_code=code,
                error_message=None,
                group_id=name,
                group_state="" if code else "Stable",
                group_epoch=0 if code else 4,
                assignment_epoch=0 if code else 3,
                assignor_name="" if code else "uniform",
                members=[],
                authorized_operations=-(2**31),
            )
            for name, code in answers
        ],
    )
    (described,) = describe_consumer_groups(cluster, ["g", "h"]).items()
    assert (described[0], described[1].group_epoch, described[1].assignment_epoch) == ("g", 4, 3)
    asked = broker.request(ConsumerGroupDescribeRequest, 0)
    assert (asked.group_ids, asked.include_authorized_operations) == (["g", "h"], False)


def test_groups_of_a_log_partition_have_its_leader_as_coordinator() -> None:
    partitions = {at: FakePartition([], leader=leader) for at, leader in enumerate((2, 1, None, 9))}
    with fake_topic(partitions, (1, 2)) as topic, cluster_of(topic) as cluster:
        assert coordinators_of_log(cluster, TOPIC) == {
            0: f"127.0.0.1:{topic.brokers[2].port} (2)",
            1: f"127.0.0.1:{topic.brokers[1].port} (1)",
        }
