"""Reads of stable and of other offsets answer as the broker's while transactions are open (R14, R17).

A mirrored store has no OffsetFetch of its own: only a live broker tells what one would answer at this moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.query.describe import describe_groups, state_of
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.following import answers_of, caught_up, following, viewed
from tests.kafka.live import live_broker, wait_until
from tests.kafka.wire import NONE, Connection

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

UNSTABLE = "UNSTABLE_OFFSET_COMMIT"
PARTITIONS = range(2)
Place = tuple[str, str, int]
#: By group, topic and partition: a committed offset, None without one, or the name of an error.
Fetched = dict[Place, int | str | None]


def fetched_from(broker: LiveBroker, connection: Connection, *, require_stable: bool) -> Fetched:
    """The broker's answer to an OffsetFetch of these partitions of all groups."""
    topics = [{"name": "t", "partitionIndexes": list(PARTITIONS)}]
    groups = [
        {"groupId": each, "memberId": None, "memberEpoch": -1, "topics": topics}
        for each in broker.answers.groups()["groups"]
    ]
    answer = connection.ask("OFFSET_FETCH", 9, {"groups": groups, "requireStable": require_stable})
    found: Fetched = {}
    for group in answer["groups"]:
        for each in group["topics"][0]["partitions"]:
            error = connection.name_of(each["errorCode"])
            offset = None if each["committedOffset"] < 0 else each["committedOffset"]
            found[group["groupId"], "t", each["partitionIndex"]] = offset if error == NONE else error
    return found


def fetched_from_store(store: Path, *, require_stable: bool) -> Fetched:
    """The same of a store, by what it knows of pending commits."""
    reader = StateReader(str(store), at_most=0)
    groups, pending = describe_groups(reader), state_of(reader).pending
    found: Fetched = {}
    for group_id, group in groups.items():
        offsets = {(each.topic, each.partition): each for each in group.offsets}
        unstable = {*pending.get((group.log_partition, group_id), ())}
        assert {place for place, each in offsets.items() if each.pending} == unstable & offsets.keys()
        for at in PARTITIONS:
            each = offsets.get(("t", at))
            is_unstable = require_stable and ("t", at) in unstable
            found[group_id, "t", at] = UNSTABLE if is_unstable else None if each is None else each.offset
    return found


def test_reads_of_stable_and_other_offsets_answer_as_the_broker_while_transactions_are_open(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store = tmp_path / "store"

    def unstable_offsets() -> set[Place]:
        return viewed(store, "SELECT group_id, topic, partition FROM unstable_offsets")

    with live_broker(kafka, tmp_path / "broker", 2) as broker, Connection(kafka.gateway.jvm, broker.port) as connection:

        def differing() -> dict[Place, tuple[object, object]]:
            """Where the answers differ: the broker's and ours."""
            return {
                place: (theirs[place], ours.get(place, "no group"))
                for require_stable in (False, True)
                for theirs in [fetched_from(broker, connection, require_stable=require_stable)]
                for ours in [fetched_from_store(store, require_stable=require_stable)]
                for place in theirs
                if theirs[place] != ours.get(place, "no group")
            }

        broker.create_topic("t", 2)
        broker.commit("both", {("t", 0): 1, ("t", 1): 1})
        broker.commit("aborted-above", {("t", 0): 1})
        broker.commit("in-two", {("t", 0): 1})
        first, second, third = (broker.transaction(name) for name in ("first", "second", "third"))
        third.begin("aborted-above", {("t", 0): 2})
        third.abort()
        third.begin("only-aborted", {("t", 0): 2})
        third.abort()
        third.begin("committed", {("t", 0): 3})
        third.commit()
        first.begin("only-pending", {("t", 0): 4})
        second.begin("in-two", {("t", 0): 5, ("t", 1): 5})
        third.begin("both", {("t", 0): 6})
        other = broker.transaction("deletes")
        other.begin("deleted", {("t", 0): 7, ("t", 1): 7})
        broker.commit("deleted", {("t", 1): 1})
        broker.delete_offsets("deleted", [("t", 1)])  # R12: it removes the pending commit, too
        with following(workbench, store, broker, quick):
            caught_up(store, broker)
            wait_until(lambda: not differing(), "fetches differ", say=lambda: str(differing()))
            stable = fetched_from(broker, connection, require_stable=True)
            unstable = {place for place, answer in stable.items() if answer == UNSTABLE}
            assert unstable_offsets() == unstable
            assert {(group, at) for group, _, at in unstable} == {
                *(("only-pending", 0), ("in-two", 0), ("in-two", 1), ("both", 0), ("deleted", 0))
            }
            assert answers_of(store)["only-aborted"] == answers_of(store)["only-pending"] == {}
            first.commit()
            second.abort()
            third.commit()
            other.abort()
            broker.wait_for_markers()
            caught_up(store, broker)
            wait_until(lambda: not differing(), "fetches differ", say=lambda: str(differing()))
            assert unstable_offsets() == set()
    assert answers_of(store)["both"] == {("t", 0): 6, ("t", 1): 1}
    assert answers_of(store)["in-two"] == {("t", 0): 1}
    assert workbench.verify(store).equal
