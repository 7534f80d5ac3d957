"""The member that may have committed an offset, by the assignment in the log."""

from __future__ import annotations

from offsets_pipeline.questions.history.observed_partition import UNKNOWN, PartitionOwners
from offsets_pipeline.semantics.group_types import CONSUMER, STREAMS
from offsets_pipeline.semantics.partition_state import Group, TopicPartition
from tests.logs import group_value

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def owner(group: Group, topic: str, partition: int) -> str:
    member_id, _, _ = PartitionOwners({TOPIC_ID: "t"}).of("g", group, TopicPartition(topic, partition), None)
    return member_id


def test_owner_of_a_partition_of_a_consumer_group_holds_it_or_has_to_revoke_it() -> None:
    held, revoked = ([{"topic_id": TOPIC_ID, "partitions": [at]}] for at in (0, 1))
    group = Group(CONSUMER, {(5, "m"): group_value(5), (5, "n"): group_value(5)})
    group.put((8, "m"), group_value(8, assigned_partitions=held, partitions_pending_revocation=revoked))
    assert [owner(group, "t", at) for at in (0, 1, 2)] == ["m", "m", UNKNOWN]
    group.put((8, "n"), group_value(8, assigned_partitions=revoked))
    assert [owner(group, "t", at) for at in (0, 1)] == ["m", UNKNOWN]


def test_owner_of_a_partition_of_a_streams_group_has_its_task_or_has_to_revoke_it() -> None:
    lists = ("source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics")
    subtopology = {
        "subtopology_id": "0",
        "source_topics": ["t"],
        "copartition_groups": [],
        **{name: [] for name in lists},
    }
    held, revoked, standby = ([{"subtopology_id": "0", "partitions": [at]}] for at in (0, 1, 2))
    group = Group(STREAMS, {(19, "m"): group_value(19), (23, ""): group_value(23, subtopologies=[subtopology])})
    current = group_value(22, active_tasks=held, active_tasks_pending_revocation=revoked, standby_tasks=standby)
    group.put((22, "m"), current)
    assert [owner(group, "t", at) for at in (0, 1, 2)] == ["m", "m", UNKNOWN]
    assert owner(group, "u", 0) == UNKNOWN
