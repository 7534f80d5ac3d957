"""`starting_offsets`: JSON for Spark's option startingOffsets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import pytest

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.errors import InvalidRequest, NoSuchOffset, NoSuchStore
from offsets_pipeline.spark_query.starting_offsets import starting_offsets

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
