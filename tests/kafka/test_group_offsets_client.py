"""Commits and fetches of a group's offsets by our client, compared with the broker's own answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import NonEmptyGroup, NoSuchTopic
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import (
    commit_group_offsets,
    delete_group_offsets,
    delete_groups,
    fetch_group_offsets,
)
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.kafka.live import live_broker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker


def answered(broker: LiveBroker, group: str) -> dict[tuple[str, int], tuple[int, int | None, str]]:
    return {
        (each["topic"], each["partition"]): (each["offset"], each["leader_epoch"], each["metadata"])
        for each in broker.answers.offsets([group])[group]
    }


def test_group_without_members_is_committed_and_fetched(kafka: KafkaJvm, tmp_path: Path) -> None:
    with (
        live_broker(kafka, tmp_path / "broker", more="offset.metadata.max.bytes=30000\n") as broker,
        Cluster(KafkaOptions(broker.address, {})) as cluster,
    ):
        broker.create_topic("t", 2)
        broker.create_topic("u", 1)
        offsets = {("t", 0): (5, "{}"), ("t", 1): (2**40, ""), ("u", 0): (0, "é")}
        for group in ("g", "h"):  # of two log partitions
            commit_group_offsets(cluster, group, offsets)
            assert answered(broker, group) == {at: (offset, None, text) for at, (offset, text) in offsets.items()}
        broker.consumer("with an epoch").commit({("t", 0): 1})
        groups = ["g", "h", "with an epoch", "unknown"]
        assert fetch_group_offsets(cluster, groups) == {each: answered(broker, each) for each in groups}

        with pytest.raises(NoSuchTopic):
            commit_group_offsets(cluster, "g", {("missing", 0): (1, ""), ("t", 0): (6, "")})
        assert answered(broker, "g")["t", 0] == (6, None, "")

        for protocol in ("classic", "consumer"):
            consumer = broker.consumer(protocol, ["u"], group_protocol=protocol)
            consumer.join()
            with pytest.raises(NonEmptyGroup, match=f"of group {protocol}: it has members"):
                commit_group_offsets(cluster, protocol, {("u", 0): (9, "")})
            assert answered(broker, protocol) == {}

        # a broker appends the records of one request as one batch, of message.max.bytes at most: 1,048,588
        broker.create_topic("wide", 40)
        wide = {("wide", at): (at, "x" * 30_000) for at in range(40)}
        commit_group_offsets(cluster, "of much metadata", wide)
        assert fetch_group_offsets(cluster, ["of much metadata"])["of much metadata"] == {
            at: (offset, None, metadata) for at, (offset, metadata) in wide.items()
        }

        # so it does with tombstones, which have the group id; of more it answers UNKNOWN_SERVER_ERROR
        long = [letter * 30_000 for letter in "abcd"]
        offsets = {("wide", at): (at, "") for at in range(40)}
        for group in long:
            commit_group_offsets(cluster, group, offsets)
        assert delete_group_offsets(cluster, long[0], offsets) == {}
        assert fetch_group_offsets(cluster, long) == {
            each: {} if each == long[0] else answered(broker, each) for each in long
        }
        assert delete_groups(cluster, dict.fromkeys(long, offsets))[0] == {}
        assert not set(long) & broker.answers.groups()["groups"].keys()
