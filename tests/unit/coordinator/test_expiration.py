"""Retention on both sides of each of its boundaries (R18-R22)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.clock import FixedClock
from offsets_pipeline.coordinator.expiration import Expiry, Rule, expired, forecast
from offsets_pipeline.errors import CoordinatorNotAvailable
from offsets_pipeline.fold.reference import replay
from offsets_pipeline.record.decode import decode_key
from tests.logs import LogPartition, capture_partitions, capture_rows, group_key, group_value, oracle
from tests.unit.coordinator.groups import stable, subscription
from tests.unit.coordinator.states import as_reference, at, of_reference, replayed
from tests.unit.coordinator.stores import NOW_MS, log_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.coordinator.log import PreparedAppend
    from offsets_pipeline.coordinator.state import PartitionState

COMMITTED_MS, EMPTIED_MS, RETENTION_MS = 1_000, 5_000, 60_000
TOPIC = ("g", "t", 0)


def state_of(*steps: Callable[[LogPartition], object]) -> PartitionState:
    log = LogPartition()
    for step in steps:
        step(log)
    return replayed(log.rows, 0, 1)


def commit(log: LogPartition, producer_id: int | None = None, **fields: int) -> None:
    log.commit(TOPIC, 1, producer_id, commit_timestamp=COMMITTED_MS, **fields)


def classic(**fields: object) -> Callable[[LogPartition], object]:
    return lambda log: log.record(group_key(2, "g"), group_value(2, 3, **fields))


def member(blob: bytes) -> dict[str, Any]:
    return {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "",
        "client_host": "",
        "rebalance_timeout": 1,
        "session_timeout": 1,
        "subscription": blob,
        "assignment": b"",
    }


def consumer(*topics: str, regex: str | None = None) -> Callable[[LogPartition], object]:
    def step(log: LogPartition) -> None:
        log.group(5, "g", "m", subscribed_topic_names=list(topics), subscribed_topic_regex=regex)
        log.group(3, "g", epoch=1)

    return step


def streams(*topics: str, has_member: bool = True) -> Callable[[LogPartition], object]:
    def step(log: LogPartition) -> None:
        part = {
            "subtopology_id": "1",
            "source_topics": list(topics),
            "source_topic_regex": [],
            "state_changelog_topics": [],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
        log.group(17, "g", epoch=1)
        log.group(23, "g", epoch=1, subtopologies=[part])
        if has_member:
            log.group(19, "g", "m")

    return step


SUBSCRIBED = {"protocol": "range", "leader": "m", "generation": 1, "members": [member(subscription("u"))]}

EXPIRING: dict[str, tuple[list[Callable[[LogPartition], object]], Rule, int, bool]] = {
    "a: empty, in its state since": (
        [classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS), commit],
        Rule.EMPTY_GROUP,
        EMPTIED_MS + RETENTION_MS,
        True,
    ),
    "a: empty, since when is not known": (
        [classic(protocol_type="connect", current_state_timestamp=None), commit],
        Rule.EMPTY_GROUP,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "b: stable, not subscribed": (
        [classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS, **SUBSCRIBED), commit],
        Rule.NOT_SUBSCRIBED_CLASSIC,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "c: simple": ([commit], Rule.SIMPLE_GROUP, COMMITTED_MS + RETENTION_MS, True),
    "d: consumer, not subscribed": (
        [consumer("u"), commit],
        Rule.NOT_SUBSCRIBED,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "d: consumer, regular expression of other topics": (
        [consumer(regex="u.*"), lambda log: log.group(16, "g", "u.*", topics=["u"]), commit],
        Rule.NOT_SUBSCRIBED,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "d: consumer, empty": (
        [lambda log: log.group(3, "g", epoch=1), commit],
        Rule.NOT_SUBSCRIBED,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "d: streams, not its source": ([streams("u"), commit], Rule.NOT_SUBSCRIBED, COMMITTED_MS + RETENTION_MS, False),
    "d: streams, empty": (
        [streams("t", has_member=False), commit],
        Rule.NOT_SUBSCRIBED,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "its own time": (
        [lambda log: commit(log, version=1, expire_timestamp=2_000)],
        Rule.SIMPLE_GROUP,
        2_000,
        True,
    ),
    "its own time, in an empty group": (
        [
            classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS),
            lambda log: commit(log, version=1, expire_timestamp=2_000),
        ],
        Rule.EMPTY_GROUP,
        2_000,
        True,
    ),
}

STAYING: dict[str, tuple[list[Callable[[LogPartition], object]], Rule]] = {
    "b: stable, subscribed": (
        [
            classic(protocol_type="consumer", **(SUBSCRIBED | {"members": [member(subscription("t"))]})),
            commit,
        ],
        Rule.SUBSCRIBED,
    ),
    "b: stable, subscription not known": (
        [classic(protocol_type="consumer", **(SUBSCRIBED | {"members": [member(b"?")]})), commit],
        Rule.SUBSCRIBED,
    ),
    "active, of another protocol": ([classic(protocol_type="connect", **SUBSCRIBED), commit], Rule.ACTIVE_GROUP),
    "d: consumer, subscribed": ([consumer("t"), commit], Rule.SUBSCRIBED),
    "d: consumer, regular expression": (
        [consumer(regex="t.*"), lambda log: log.group(16, "g", "t.*", topics=["t"]), commit],
        Rule.SUBSCRIBED,
    ),
    "d: streams, its source": ([streams("t"), commit], Rule.SUBSCRIBED),
    "pending": ([commit, lambda log: commit(log, 7)], Rule.PENDING),
    "subscribed, whatever its own time": (
        [consumer("t"), lambda log: commit(log, version=1, expire_timestamp=2_000)],
        Rule.SUBSCRIBED,
    ),
}


@pytest.mark.parametrize("case", EXPIRING)
def test_what_may_expire_does_so_when_its_time_is_over_and_not_before(case: str) -> None:  # R18, R19, R21
    steps, rule, at_ms, is_removed = EXPIRING[case]
    state = state_of(*steps)
    expiry = Expiry("g", at(), at_ms, rule)
    assert list(forecast(state, "g", RETENTION_MS)) == [expiry]
    assert list(expired(state, at_ms - 1, RETENTION_MS)) == []
    (found,) = expired(state, at_ms, RETENTION_MS)
    assert (found.group_id, found.expired, found.is_removed) == ("g", [expiry], is_removed)


@pytest.mark.parametrize("case", STAYING)
def test_anything_else_never_expires(case: str) -> None:  # R18, R20
    steps, rule = STAYING[case]
    state = state_of(*steps)
    assert list(forecast(state, "g", RETENTION_MS)) == [Expiry("g", at(), None, rule)]
    assert list(expired(state, 2**62, RETENTION_MS)) == []


def test_open_transaction_keeps_its_group_but_not_its_other_offsets() -> None:  # R20
    state = state_of(commit, lambda log: log.commit(("g", "t", 1), 1, 7, commit_timestamp=COMMITTED_MS))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS, RETENTION_MS)
    assert ([each.where for each in found.expired], found.is_removed) == ([at()], False)
    state = state_of(commit, lambda log: commit(log, 7), lambda log: log.end_abort(7))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS, RETENTION_MS)
    assert found.is_removed


def test_empty_group_that_holds_nothing_goes_at_once() -> None:  # R21
    state = state_of(commit, lambda log: log.delete(TOPIC))
    (found,) = expired(state, 0, RETENTION_MS)
    assert (found.expired, found.is_removed) == ([], True)
    state = state_of(lambda log: log.commit(TOPIC, 1, 7))  # but one with an open transaction
    assert list(expired(state, 2**62, RETENTION_MS)) == []
    state = state_of(lambda log: log.commit(TOPIC, 1, 7), lambda log: log.delete(TOPIC))  # of which something is left
    (found,) = expired(state, 0, RETENTION_MS)
    assert found.is_removed
    state = state_of(classic(protocol_type="connect", **SUBSCRIBED))  # or with members
    assert list(expired(state, 2**62, RETENTION_MS)) == []
    state = state_of(lambda log: log.group(11, "g"))  # what a share group holds is not in this log
    assert list(expired(state, 2**62, RETENTION_MS)) == []


def test_group_stays_while_one_of_its_offsets_does() -> None:
    state = state_of(commit, lambda log: log.commit(("g", "t", 1), 1, commit_timestamp=COMMITTED_MS + 1))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS, RETENTION_MS)
    assert (len(found.expired), found.is_removed) == (1, False)


def test_a_broker_expired_what_the_forecast_says() -> None:
    """4.2.0-expiry-after holds the same groups as -before, when their time was over (retention one minute)."""
    before, after = "4.2.0-expiry-before", "4.2.0-expiry-after"
    n = capture_partitions(before)
    now_ms = oracle(after)["wall_clock_ms"]
    left = {
        group_id: {(each["topic"], each["partition"]) for each in answer["offsets"] if each["offset"] >= 0}
        for group_id, answer in oracle(after)["groups"].items()
        if answer["listed"] and answer.get("offsets")
    }
    compared = 0
    for partition, rows in capture_rows(after).items():
        state = replayed(rows, partition, n)
        for group_id in state.groups:
            for expiry in forecast(state, group_id, 60_000):
                # what the broker still holds, it may not have expired for longer than it takes to look (10 s)
                assert expiry.at_ms is None or now_ms < expiry.at_ms + 20_000, expiry
                assert tuple(expiry.where) in left[group_id]
                compared += 1
    assert compared
    gone = 0
    for partition, rows in capture_rows(before).items():
        state = replayed(rows, partition, n)
        for group_id in state.groups:
            for expiry in forecast(state, group_id, 60_000):
                if tuple(expiry.where) not in left.get(group_id, set()):
                    later = replayed(capture_rows(after)[partition], partition, n)
                    assert expiry.at_ms is not None or later.group(group_id) != state.group(group_id), expiry
                    gone += 1
    assert gone


def test_expiry_appends_tombstones_and_the_group_s_own(store: Path) -> None:  # R21, R22
    clock = FixedClock(NOW_MS)
    with opened(store, clock, offsets_retention_minutes=1) as coordinator:
        partition = coordinator.partition_for("g")
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})
        coordinator.store_group(stable("active"))
        clock.advance_ms(59_999)
        assert coordinator.expire(partition) == []
        assert [each.at_ms for each in coordinator.forecast("g")] == [NOW_MS + 60_000] * 2
        clock.advance_ms(1)
        (found,) = coordinator.expire(partition)
        assert (len(found.expired), found.is_removed) == (2, True)
        assert coordinator.expire(partition) == []
        assert coordinator.get_group("g") is None
        assert (coordinator.gauges().expired_offsets, coordinator.gauges().expired_groups) == (2, 1)
        rows = log_of(store)[partition]
        assert [(decode_key(row.key).record_type, row.value) for row in rows[-3:]] == [(1, None), (1, None), (2, None)]
        state = coordinator._partitions.state(partition)
        assert as_reference(state) == of_reference(replay(rows, partition, 3))


def test_now_may_be_said(store: Path) -> None:
    with opened(store, offsets_retention_minutes=1) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        assert coordinator.expire(coordinator.partition_for("g"), NOW_MS + 59_999) == []
        (found,) = coordinator.expire(coordinator.partition_for("g"), NOW_MS + 60_000)
        assert found.is_removed


def test_partition_that_fails_is_reported_and_tried_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R22
    with opened(store, offsets_retention_minutes=1) as coordinator:
        for group_id in ("a", "b", "c"):
            coordinator.commit_offsets(group_id, {("t", 0): 1})
        write = coordinator._log.write

        def failing(append: PreparedAppend, now_ms: int, *, durable: bool) -> None:
            if 1 in append.ends:
                raise OSError("disk full")
            write(append, now_ms, durable=durable)

        monkeypatch.setattr(coordinator._log, "write", failing)
        reports = coordinator.expire_loaded(NOW_MS + 60_000)
        assert [(each.log_partition, len(each.groups), type(each.error)) for each in reports] == [
            (0, 1, type(None)),
            (1, 0, CoordinatorNotAvailable),
            (2, 1, type(None)),
        ]
        assert len(coordinator.list_groups()) == 1
        monkeypatch.undo()
        assert sum(len(each.groups) for each in coordinator.expire_loaded(NOW_MS + 60_000)) == 1
        assert coordinator.list_groups() == []
