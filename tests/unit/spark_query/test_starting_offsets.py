"""`starting_offsets`: JSON for Spark's option startingOffsets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import pytest
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.errors import InvalidRequest, NoSuchOffset, NoSuchStore
from offsets_pipeline.spark_query.starting_offsets import starting_offsets
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakePartition, fake_topic

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def committed(store: Path) -> Path:
    """A store with offsets of group g."""
    with Coordinator.open(store, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("orders", 0): 23, ("orders", 3): 0, ("payments", 0): 7, ("other", 0): 1})
        coordinator.commit_offsets("h", {("orders", 1): 99})
    return store


@pytest.mark.parametrize(
    ("topics", "missing", "found"),
    [
        (["payments"], "none", {"payments": {"0": 7}}),
        ("payments", "none", {"payments": {"0": 7}}),
        (["orders", "payments"], "earliest", {"orders": {"0": 23, "1": -2, "2": -2, "3": 0}, "payments": {"0": 7}}),
        ({"payments": 2, "new": 1}, "latest", {"payments": {"0": 7, "1": -1}, "new": {"0": -1}}),
        ([], "none", {}),
    ],
)
def test_offsets_are_those_of_the_group(
    committed: Path, topics: list[str] | dict[str, int], missing: Literal["earliest", "latest", "none"], found: object
) -> None:
    assert json.loads(starting_offsets(committed, "g", topics, missing)) == found


def test_partition_without_an_offset_is_named(committed: Path, place: Path) -> None:
    with pytest.raises(NoSuchOffset, match="group g has no committed offset for orders-1 in"):
        starting_offsets(committed, "g", ["orders"], "none")
    with pytest.raises(NoSuchOffset, match=r"no committed offset of topic new .*; name the topic's number of part"):
        starting_offsets(committed, "g", ["new"])
    with pytest.raises(NoSuchOffset):
        starting_offsets(committed, "unknown group", ["orders"])
    with pytest.raises(InvalidRequest, match="missing='first' is not allowed"):
        starting_offsets(committed, "g", ["orders"], "first")  # type: ignore[arg-type]
    with pytest.raises(NoSuchStore):
        starting_offsets(place / "nowhere", "g", ["orders"])


def test_offsets_of_a_group_of_brokers_are_for_all_partitions_of_the_topics() -> None:
    of_group = OffsetFetchResponse.OffsetFetchResponseGroup
    of_topic = of_group.OffsetFetchResponseTopics
    committed = [(0, 7), (1, 0)]
    with fake_topic({at: FakePartition([]) for at in range(3)}) as topic:
        (broker,) = topic.brokers.values()
        broker.versions = broker.versions | {OffsetFetchRequest.API_KEY: (1, 8)}
        broker.coordinate_all()
        broker.answers[OffsetFetchRequest.API_KEY] = lambda _: OffsetFetchResponse(
            throttle_time_ms=0,
            groups=[
                of_group(
                    group_id="g",
                    error_code=0,
                    topics=[
                        of_topic(
                            name=TOPIC,
                            partitions=[
                                of_topic.OffsetFetchResponsePartitions(
                                    partition_index=at, committed_offset=offset, metadata="", error_code=0
                                )
                                for at, offset in committed
                            ],
                        )
                    ],
                )
            ],
        )

        def found(topics: list[str] | dict[str, int]) -> object:
            return json.loads(starting_offsets(broker.address, "g", topics, options={"request.timeout.ms": "2000"}))

        assert found([TOPIC]) == {TOPIC: {"0": 7, "1": 0, "2": -2}}
        assert found({TOPIC: 4, "none": 1}) == {TOPIC: {"0": 7, "1": 0, "2": -2, "3": -2}, "none": {"0": -2}}
        committed.append((4, 9))  # of a partition that the topic has no more
        assert found({TOPIC: 1}) == {TOPIC: {"0": 7, "1": 0, "2": -2, "3": -2, "4": 9}}
