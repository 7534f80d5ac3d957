"""Where the reading of a topic goes on, and when it starts again from the beginning."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds, TopicDescription
from offsets_pipeline.ingest.topic.topic_plan import (
    CompleteReads,
    KnownLog,
    Reading,
    Unfinished,
    check_topic,
    plan_reading,
)
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC = TopicDescription("cluster", "id", 2)
BOUNDS = {0: LogPartitionBounds(0, 30, 30), 1: LogPartitionBounds(5, 40, 42)}
DAY_MS = 86_400_000
NOW_MS = 10 * DAY_MS
FOLLOWED = KnownLog(2, 0, {0: {0: 20}}, {0: 25, 1: 12}, {0: 3, 1: 4}, CompleteReads(DAY_MS, NOW_MS - DAY_MS))


def plan(
    known: KnownLog,
    topic_id: str | None = "id",
    bounds: dict[int, LogPartitionBounds] = BOUNDS,
    epoch_ends: Mapping[int, int] = MappingProxyType({}),
) -> Reading:
    return plan_reading(known, topic_id, TOPIC, bounds, epoch_ends, DAY_MS, NOW_MS)


def test_a_new_store_reads_from_the_start_and_counts_at_once() -> None:
    assert plan(KnownLog(2)) == Reading(0, {0: 0, 1: 5}, CompleteReads(NOW_MS))


def test_reading_resumes_at_the_end_of_the_log_or_of_the_progress_whichever_is_higher() -> None:
    known = replace(FOLLOWED, ends={0: {0: 29}})
    assert plan(known) == Reading(0, {0: 29, 1: 12}, CompleteReads(DAY_MS, NOW_MS - DAY_MS))
    never_read = replace(FOLLOWED, ends={}, read_to={1: 12})
    assert plan(never_read).starts == {0: 0, 1: 12}


def test_a_first_reading_that_was_interrupted_goes_on_unless_it_began_too_long_ago() -> None:
    begun = replace(FOLLOWED, complete=CompleteReads(NOW_MS - DAY_MS))
    assert plan(begun) == Reading(0, {0: 25, 1: 12}, CompleteReads(NOW_MS - DAY_MS))
    late = plan(replace(begun, complete=CompleteReads(NOW_MS - DAY_MS - 1)))
    assert late.log_incarnation == 1
    assert "its first reading began at 1970-01-09T23:59:59.999Z and did not reach its end" in str(late.anew)


def test_just_as_long_as_tombstones_are_kept_is_not_too_long() -> None:
    assert plan(FOLLOWED).anew is None
    late = plan(replace(FOLLOWED, complete=CompleteReads(DAY_MS, NOW_MS - DAY_MS - 1)))
    assert (late.log_incarnation, late.starts) == (1, {0: 0, 1: 5})
    assert late.complete == CompleteReads(NOW_MS)
    assert "longer ago than the topic keeps tombstones (delete.retention.ms 86400000)" in str(late.anew)


def test_a_clock_that_was_set_back_does_not_hide_a_gap() -> None:
    differing = replace(FOLLOWED, complete=CompleteReads(DAY_MS, NOW_MS + 600_000))  # clocks of two machines
    assert plan(differing).anew is None
    ahead = plan(replace(FOLLOWED, complete=CompleteReads(DAY_MS, NOW_MS + 600_001)))
    assert (ahead.log_incarnation, ahead.starts) == (1, {0: 0, 1: 5})
    assert "ahead of this machine's clock, which was set back" in str(ahead.anew)


def test_another_topic_of_the_name_is_read_again_also_into_a_log_without_records() -> None:
    assert "created again (its id was old, it is id)" in str(plan(FOLLOWED, "old").anew)
    assert plan(KnownLog(2), "old").log_incarnation == 1
    assert plan(FOLLOWED, None).anew is None  # a store that was never told


def test_topic_with_another_number_of_partitions_is_read_again() -> None:  # R1
    found = plan(replace(FOLLOWED, partitions=1))
    assert (found.log_incarnation, found.starts) == (1, {0: 0, 1: 5})
    assert found.anew == "the topic has 2 partitions, the log has 1"
    assert plan(KnownLog(1)).log_incarnation == 1  # a store that was created for another number


@pytest.mark.parametrize(
    ("known", "bounds", "why"),
    [
        (replace(FOLLOWED, ends={0: {0: 20}, 1: {0: 3}}), BOUNDS, "did not reach the end"),
        (KnownLog(2, 0, {0: {0: 20}}), BOUNDS, "has no progress in this log"),
        (
            FOLLOWED,
            {0: LogPartitionBounds(26, 30, 30), 1: BOUNDS[1]},
            "log partition 0 now starts at 26, but",
        ),
        (
            FOLLOWED,
            {0: LogPartitionBounds(0, 24, 24), 1: BOUNDS[1]},
            "log partition 0 now ends at 24, but was read up to 25",
        ),
    ],
)
def test_log_that_may_lack_records_is_read_again_from_its_beginning(
    known: KnownLog, bounds: dict[int, LogPartitionBounds], why: str
) -> None:
    found = plan(known, bounds=bounds)
    assert why in str(found.anew)
    assert found.log_incarnation == max(known.ends) + 1


def test_records_that_a_new_leader_lacks_are_read_again_also_if_its_log_has_grown_since() -> None:
    found = plan(FOLLOWED, epoch_ends={0: 24, 1: 12})
    assert found.log_incarnation == 1
    assert found.anew == (
        "a new leader of log partition 0 has the records of leader epoch 3 only up to 24, but it was read up to 25"
    )
    assert plan(FOLLOWED, epoch_ends={0: 25, 1: 40}).anew is None


def test_another_log_incarnation_is_above_all_that_the_log_holds() -> None:
    assert plan(replace(FOLLOWED, log_incarnation=3, ends={3: {0: 1}, 5: {0: 1}})).log_incarnation == 6


BEGUN = Unfinished(TOPIC, Reading(1, {0: 0, 1: 5}, CompleteReads(NOW_MS - DAY_MS), "a reason"))


def resumed(
    known: KnownLog,
    unfinished: Unfinished = BEGUN,
    bounds: dict[int, LogPartitionBounds] = BOUNDS,
    now_ms: int = NOW_MS,
) -> Reading:
    return plan_reading(known, "id", TOPIC, bounds, {}, DAY_MS, now_ms, unfinished)


def test_an_interrupted_reading_from_the_beginning_goes_on_in_the_same_process() -> None:
    known = replace(FOLLOWED, ends={0: {0: 20}, 1: {0: 17}})
    found = resumed(known)
    assert found == Reading(1, {0: 17, 1: 5}, CompleteReads(NOW_MS - DAY_MS), "a reason")
    assert resumed(FOLLOWED).starts == {0: 0, 1: 5}  # nothing of it had landed
    assert resumed(known, Unfinished(TOPIC, found)) == found


@pytest.mark.parametrize(
    ("known", "unfinished", "bounds", "now_ms", "log_incarnation"),
    [
        (FOLLOWED, BEGUN, BOUNDS, NOW_MS + 1, 1),  # tombstones may have come and gone meanwhile
        (FOLLOWED, replace(BEGUN, topic=TopicDescription("cluster", "before", 2)), BOUNDS, NOW_MS, 0),
        (
            FOLLOWED,
            BEGUN,
            {0: LogPartitionBounds(1, 30, 30), 1: BOUNDS[1]},
            NOW_MS,
            0,
        ),  # its start moved over unread records
        (replace(FOLLOWED, ends={1: {0: 31}}), BEGUN, BOUNDS, NOW_MS, 2),  # what landed is not of this topic
        (replace(FOLLOWED, ends={2: {0: 3}}), BEGUN, BOUNDS, NOW_MS, 3),  # another process reads it anew, too
        (replace(FOLLOWED, log_incarnation=1), BEGUN, BOUNDS, NOW_MS, 1),  # another process was faster
    ],
)
def test_other_readings_are_planned_as_usual(
    known: KnownLog, unfinished: Unfinished, bounds: dict[int, LogPartitionBounds], now_ms: int, log_incarnation: int
) -> None:
    found = resumed(known, unfinished, bounds, now_ms)
    assert found == plan_reading(known, "id", TOPIC, bounds, {}, DAY_MS, now_ms)
    assert found.log_incarnation == log_incarnation
    assert found.anew != "a reason"


def test_another_cluster_is_refused() -> None:
    with pytest.raises(StoreMismatch, match="store mirrors cluster other, not cluster; check"):
        check_topic("store", "t", StoreProperties(MIRRORED, 2, "other", None), TOPIC)
    check_topic("store", "t", StoreProperties(MIRRORED, 2, None, None), TOPIC)
    check_topic("store", "t", StoreProperties(MIRRORED, 2, "cluster", "old"), TOPIC)  # the plan says what that means
    check_topic("store", "t", StoreProperties(MIRRORED, 2, "other", None), TopicDescription(None, None, 2))  # untold


def test_a_topic_of_another_name_is_refused_whatever_its_id() -> None:
    named = StoreProperties(MIRRORED, 2, "cluster", "id", "t")
    check_topic("store", "t", named, TOPIC)
    check_topic("store", "t", replace(named, topic_id="old"), TOPIC)
    with pytest.raises(StoreMismatch, match="store mirrors topic t, not typo; check --topic"):
        check_topic("store", "typo", named, TOPIC)


def test_the_topics_name_is_kept_as_a_property_if_the_source_gave_one() -> None:
    properties = StoreProperties(MIRRORED, 2, "cluster", "id", "t")
    kept = properties.as_table_properties()
    assert kept["offsets.topic.name"] == "t"
    assert StoreProperties.from_table_properties(kept, "store") == properties
    unnamed = replace(properties, topic_name=None)
    assert StoreProperties.from_table_properties(unnamed.as_table_properties(), "store") == unnamed
