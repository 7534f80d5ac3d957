"""A real broker and the coordinator of an owned store run one script, and give equal answers after every step.

Times are not compared. Differences that docs/adr/0013 lists are marked in their step.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.compare import compare
from tests.kafka.answers import coordinator_answers
from tests.kafka.on_broker import SCRIPT_SETTINGS, OnBroker
from tests.kafka.on_store import OnStore
from tests.kafka.random_requests import random_requests
from tests.kafka.script import PLACES, RETENTION, SCRIPT, SOON, TOPICS
from tests.kafka.wire import Connection
from tests.unit.coordinator.stores import NOW_MS, opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.kafka.broker_answers import Broker
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.steps import Step

PARTITIONS = 3
MINUTE_MS = 60_000


@contextmanager
def both(kafka: KafkaJvm, folder: Path, settings: Mapping[str, object]) -> Iterator[tuple[Broker, OnBroker, OnStore]]:
    """A broker and the coordinator of an owned store, both with nothing in them."""
    OwnedStore.create(folder / "store", PARTITIONS)
    clock = FixedClock(NOW_MS)
    with (
        kafka.broker(None, PARTITIONS, {**SCRIPT_SETTINGS, **settings}) as broker,
        Connection(broker.gateway.jvm, broker.port) as wire,
        opened(folder / "store", clock, offsets_retention_minutes=1) as coordinator,
    ):
        on_broker = OnBroker(broker, wire, PARTITIONS, TOPICS)
        try:
            yield broker, on_broker, OnStore(coordinator, clock, on_broker, PARTITIONS)
        finally:
            on_broker.close()


def differences(on_broker: OnBroker, on_store: OnStore, apart: frozenset[str] = frozenset()) -> list[str]:
    """How the two answer differently about all groups."""
    theirs, ours = on_broker.groups(), on_store.groups()
    for groups in (theirs["groups"], ours["groups"]):
        for group_id in apart:
            groups.pop(group_id, None)
    found = compare(ours, theirs)
    names = sorted(set(theirs["groups"]) | set(ours["groups"]))
    for places in (PLACES, None):
        expected, got = on_broker.stable(names, places), on_store.stable(names, places)
        found += [
            f"stable {where}: broker {expected.get(where)!r}, ours {got.get(where)!r}"
            for where in sorted(expected.keys() | got.keys())
            if expected.get(where) != got.get(where)
        ]
    return found


def differences_of(step: Step, on_broker: OnBroker, on_store: OnStore) -> list[str]:
    """Run a step on both; returns the differences between their answers, and from the step's expected answer."""
    theirs, ours = step.do(on_broker), step.do(on_store)
    found = differences(on_broker, on_store, step.apart)
    if theirs != step.answer:
        found.append(f"the broker answered {theirs}, not {step.answer}")
    if ours != (step.answer if step.store is None else step.store):
        found.append(f"the store answered {ours}, not {step.answer if step.store is None else step.store}")
    return [f"{step.what}: {each}" for each in found]


def test_coordinator_does_what_a_broker_does(kafka: KafkaJvm, tmp_path: Path) -> None:
    with both(kafka, tmp_path, {}) as (_, on_broker, on_store):
        found = [each for step in SCRIPT for each in differences_of(step, on_broker, on_store)]
        answers = on_store.groups()
    assert found == []
    with opened(tmp_path / "store") as loaded:
        assert coordinator_answers(loaded, PARTITIONS) == answers


# slow: members join, and both sides answer about every group after each request
@pytest.mark.parametrize("count", [pytest.param(60, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.long)])
def test_coordinator_answers_random_requests_as_a_broker(
    kafka: KafkaJvm, tmp_path: Path, chance: random.Random, count: int
) -> None:
    with both(kafka, tmp_path, {}) as (_, on_broker, on_store):
        for step in random_requests(chance, count):
            theirs = step.do(on_broker)  # first: the store copies the group records that it writes
            assert step.do(on_store) == theirs, step.what
            assert differences(on_broker, on_store) == [], step.what


def test_every_difference_has_its_reason() -> None:
    for step in SCRIPT:
        assert bool(step.because) == (step.store is not None or bool(step.apart)), step.what


def test_coordinator_expires_what_a_broker_expires(kafka: KafkaJvm, tmp_path: Path) -> None:  # R18-R22
    with both(kafka, tmp_path, {"offsets.retention.check.interval.ms": 100}) as (broker, on_broker, on_store):
        found = [each for step in RETENTION for each in differences_of(step, on_broker, on_store)]
        assert found == []
        for step in SOON:  # not compared: the broker may have expired it already
            assert step.do(on_broker) == step.do(on_store) == step.answer
        on_store.expire(1_000)
        before = set(on_store.groups()["groups"])
        assert not before & {"a second", "emptied", "open of nothing"}
        wait_until("short retention", lambda: not differences(on_broker, on_store))
        on_store.expire(MINUTE_MS)
        left = on_store.groups()["groups"]
        assert before - set(left) == {"left", "simple"}
        broker.retain_offsets_for(1)
        wait_until("retention is over", lambda: not differences(on_broker, on_store))
    assert {
        name: sorted((each["topic"], each["partition"]) for each in group["offsets"]) for name, group in left.items()
    } == {
        "an hour": [("t", 0)],
        "active": [("t", 0)],
        "modern": [("t", 0)],
        "open": [("t", 0)],
        "only open": [],
    }
