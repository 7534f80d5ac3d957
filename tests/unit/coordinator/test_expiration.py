"""Retention on both sides of each of its boundaries (R18-R21)."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.questions.query.retention_forecast import (
    HELD,
    LATER,
    NOW,
    forecast_rows,
    next_expiries,
    retention_inputs,
)
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.retention import Basis, Expiry, GroupForecast, Rule, forecast, holdings_of
from tests.folded_stores import new_store
from tests.logs import LogPartition, capture_partitions, capture_rows, group_key, group_value
from tests.member_bytes import subscription
from tests.spark.stores import appended
from tests.unit.coordinator.broker_expiry import PAIRS, RETENTION_MINUTES, assert_as_the_broker_did, wall_clock_ms
from tests.unit.coordinator.states import at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.semantics.partition_state import PartitionState
    from offsets_pipeline.semantics.retention import ExpiredGroup

COMMITTED_MS, EMPTIED_MS, RETENTION_MS = 1_000, 5_000, 60_000
TOPIC = ("g", "t", 0)


def state_of(*steps: Callable[[LogPartition], object]) -> PartitionState:
    log = LogPartition()
    for step in steps:
        step(log)
    return partition_state.replay(log.rows, 0, 1)


def expiries(state: PartitionState, group_id: str = "g") -> list[Expiry]:
    held = holdings_of(state, group_id)
    return [] if held is None else forecast(held, RETENTION_MS).expiries


def expired(state: PartitionState, now_ms: int) -> list[ExpiredGroup]:
    """Offsets that a run expires, by group."""
    held = (holdings_of(state, group_id) for group_id in state.groups)
    found = (forecast(each, RETENTION_MS).expired(now_ms) for each in held if each is not None)
    return [each for each in found if each is not None]


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

EXPIRING: dict[str, tuple[list[Callable[[LogPartition], object]], Rule, Basis, int, bool]] = {
    "a: empty, in its state since": (
        [classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS), commit],
        Rule.EMPTY_GROUP,
        Basis.EMPTIED,
        EMPTIED_MS + RETENTION_MS,
        True,
    ),
    "a: empty, since when is not known": (
        [classic(protocol_type="connect", current_state_timestamp=None), commit],
        Rule.EMPTY_GROUP,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "b: stable, not subscribed": (
        [classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS, **SUBSCRIBED), commit],
        Rule.NOT_SUBSCRIBED_CLASSIC,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "c: simple": ([commit], Rule.SIMPLE_GROUP, Basis.COMMIT, COMMITTED_MS + RETENTION_MS, True),
    "d: consumer, not subscribed": (
        [consumer("u"), commit],
        Rule.NOT_SUBSCRIBED,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "d: consumer, regular expression of other topics": (
        [consumer(regex="u.*"), lambda log: log.group(16, "g", "u.*", topics=["u"]), commit],
        Rule.NOT_SUBSCRIBED,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "d: consumer, empty": (
        [lambda log: log.group(3, "g", epoch=1), commit],
        Rule.NOT_SUBSCRIBED,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "d: streams, not its source": (
        [streams("u"), commit],
        Rule.NOT_SUBSCRIBED,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        False,
    ),
    "d: streams, empty": (
        [streams("t", has_member=False), commit],
        Rule.NOT_SUBSCRIBED,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "b: stable, not subscribed, its own time": (
        [
            classic(protocol_type="consumer", **SUBSCRIBED),
            lambda log: commit(log, version=1, expire_timestamp=2_000),
        ],
        Rule.NOT_SUBSCRIBED_CLASSIC,
        Basis.OWN,
        2_000,
        False,
    ),
    "c: stored without a protocol, in its state since": (  # as it is before its first member has joined
        [classic(protocol_type="", current_state_timestamp=EMPTIED_MS), commit],
        Rule.SIMPLE_GROUP,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "a: emptied before the commit": (
        [classic(protocol_type="consumer", current_state_timestamp=COMMITTED_MS - 1), commit],
        Rule.EMPTY_GROUP,
        Basis.EMPTIED,
        COMMITTED_MS - 1 + RETENTION_MS,
        True,
    ),
    "its own time, later than the retention": (
        [lambda log: commit(log, version=1, expire_timestamp=COMMITTED_MS + 10 * RETENTION_MS)],
        Rule.SIMPLE_GROUP,
        Basis.OWN,
        COMMITTED_MS + 10 * RETENTION_MS,
        True,
    ),
    "of version 1, without a time of its own": (
        [lambda log: commit(log, version=1)],
        Rule.SIMPLE_GROUP,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "its transaction has ended": (
        [lambda log: commit(log, 7), lambda log: log.end_commit(7)],
        Rule.SIMPLE_GROUP,
        Basis.COMMIT,
        COMMITTED_MS + RETENTION_MS,
        True,
    ),
    "its own time": (
        [lambda log: commit(log, version=1, expire_timestamp=2_000)],
        Rule.SIMPLE_GROUP,
        Basis.OWN,
        2_000,
        True,
    ),
    "its own time, in an empty group": (
        [
            classic(protocol_type="consumer", current_state_timestamp=EMPTIED_MS),
            lambda log: commit(log, version=1, expire_timestamp=2_000),
        ],
        Rule.EMPTY_GROUP,
        Basis.OWN,
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
    "b: stable, subscribed, whatever its own time": (
        [
            classic(protocol_type="consumer", **(SUBSCRIBED | {"members": [member(subscription("u", "t"))]})),
            lambda log: commit(log, version=1, expire_timestamp=2_000),
        ],
        Rule.SUBSCRIBED,
    ),
    "b: one of its members is subscribed": (
        [
            classic(
                protocol_type="consumer",
                **(
                    SUBSCRIBED
                    | {"members": [member(subscription("u")), member(subscription("t")) | {"member_id": "n"}]}
                ),
            ),
            commit,
        ],
        Rule.SUBSCRIBED,
    ),
    "b: being rebalanced": (
        [classic(protocol_type="consumer", **(SUBSCRIBED | {"protocol": None, "leader": None})), commit],
        Rule.SUBSCRIBED,
    ),
    "of a share group": ([lambda log: log.group(11, "g", epoch=1), commit], Rule.ACTIVE_GROUP),
    "subscribed, whatever its own time": (
        [consumer("t"), lambda log: commit(log, version=1, expire_timestamp=2_000)],
        Rule.SUBSCRIBED,
    ),
}


@pytest.mark.parametrize("case", EXPIRING)
def test_offsets_expire_exactly_when_their_retention_ends(case: str) -> None:  # R18, R19, R21
    steps, rule, basis, at_ms, is_removed = EXPIRING[case]
    state = state_of(*steps)
    expiry = Expiry("g", at(), at_ms, rule, basis)
    assert expiries(state) == [expiry]
    assert expired(state, at_ms - 1) == []
    (found,) = expired(state, at_ms)
    assert (found.group_id, found.expired, found.is_removed) == ("g", [expiry], is_removed)


@pytest.mark.parametrize("case", STAYING)
def test_anything_else_never_expires(case: str) -> None:  # R18, R20
    steps, rule = STAYING[case]
    state = state_of(*steps)
    assert expiries(state) == [Expiry("g", at(), None, rule, None)]
    assert expired(state, 2**62) == []


def test_offset_with_a_commit_in_an_open_transaction_does_not_expire() -> None:  # R20
    state = state_of(commit, lambda log: commit(log, 7))
    (expiry,) = expiries(state)
    assert expiry == Expiry("g", at(), COMMITTED_MS + RETENTION_MS, Rule.PENDING, Basis.COMMIT)
    assert (expiry.is_over(expiry.at_ms or 0), expiry.is_due(2**62)) == (True, False)
    assert expired(state, 2**62) == []
    for end in (LogPartition.end_commit, LogPartition.end_abort):
        state = state_of(commit, lambda log: commit(log, 7), partial(end, producer_id=7))
        (found,) = expired(state, COMMITTED_MS + RETENTION_MS)
        assert found.is_removed


def test_offsets_without_a_group_do_not_expire() -> None:  # R1, R14
    state = state_of(commit, lambda log: log.group_tombstone(2, "g"))
    assert set(state.offsets) == {"g"}
    assert expiries(state) == []
    assert expired(state, 2**62) == []
    log = LogPartition()
    commit(log)
    astray = partition_state.replay(log.rows, 0, 50)  # where it does not belong
    assert set(astray.groups) == {"g"}
    assert expiries(astray) == []
    assert expired(astray, 2**62) == []


def test_open_transaction_keeps_its_group_but_not_its_other_offsets() -> None:  # R20
    state = state_of(commit, lambda log: log.commit(("g", "t", 1), 1, 7, commit_timestamp=COMMITTED_MS))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS)
    assert ([each.where for each in found.expired], found.is_removed) == ([at()], False)
    state = state_of(commit, lambda log: commit(log, 7), lambda log: log.end_abort(7))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS)
    assert found.is_removed


def test_empty_group_that_holds_nothing_goes_at_once() -> None:  # R21
    state = state_of(commit, lambda log: log.delete(TOPIC))
    (found,) = expired(state, 0)
    assert (found.expired, found.is_removed) == ([], True)
    state = state_of(lambda log: log.commit(TOPIC, 1, 7))  # but one with an open transaction
    assert expired(state, 2**62) == []
    state = state_of(lambda log: log.commit(TOPIC, 1, 7), lambda log: log.delete(TOPIC))  # an offset of it is left
    (found,) = expired(state, 0)
    assert found.is_removed
    state = state_of(classic(protocol_type="connect", **SUBSCRIBED))  # or with members
    assert expired(state, 2**62) == []
    state = state_of(lambda log: log.group(11, "g"))  # what a share group holds is not in this log
    assert expired(state, 2**62) == []


def test_group_stays_while_one_of_its_offsets_does() -> None:
    state = state_of(commit, lambda log: log.commit(("g", "t", 1), 1, commit_timestamp=COMMITTED_MS + 1))
    (found,) = expired(state, COMMITTED_MS + RETENTION_MS)
    assert (len(found.expired), found.is_removed) == (1, False)


def test_forecast_has_first_what_expires_now_then_later_by_time_then_what_is_held() -> None:
    def group(name: str, *times_ms: int, rule: Rule = Rule.SIMPLE_GROUP, is_open: bool = False) -> GroupForecast:
        found = [Expiry(name, at("t", number), each, rule, Basis.COMMIT) for number, each in enumerate(times_ms)]
        return GroupForecast(name, found, may_go=True, has_open_transaction=is_open)

    forecasts = [
        *(group("a", 12), group("b", 11, 11), group("c", 13), group("d", 10, 9), group("e")),
        *(group("f", 5, rule=Rule.PENDING, is_open=True), group("g", is_open=True)),
    ]
    last, alone = "the group is removed with its last offset", "the group has no offsets"
    said = "its group has no protocol; retention counts from its commit"
    expected = [
        *((NOW, 10, "d", "t", 0, "R18c", said), (NOW, 9, "d", "t", 1, "R18c", said)),
        *((NOW, 10, "d", None, None, "R21", last), (NOW, None, "e", None, None, "R21", alone)),
        *((LATER, 11, "b", "t", 0, "R18c", said), (LATER, 11, "b", "t", 1, "R18c", said)),
        (LATER, 11, "b", None, None, "R21", last),
        *((LATER, 12, "a", "t", 0, "R18c", said), (LATER, 12, "a", None, None, "R21", last)),
        (HELD, 5, "f", "t", 0, "R20", "an open transaction holds a commit for it; retention counts from its commit"),
        (HELD, None, "g", None, None, "R20", "the group has an open transaction"),
    ]
    found = forecast_rows(forecasts, 10, 12)
    assert found == [(when, shown_time(at_ms), *rest) for when, at_ms, *rest in expected]


def test_a_store_has_the_offsets_and_pending_commits_of_each_group_that_exists(tmp_path: Path) -> None:
    """As the specification replays them. `d` and `h` have no offsets; only `b` and `e` have pending commits.

    R1: the offset of the group `astray` and the ones elsewhere are misplaced. R14: `f` and its offsets were removed.
    """
    logs = {log_partition: LogPartition(log_partition) for log_partition in range(2)}
    homes = {name: partition_for(name, 2) for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "astray")}
    assert [*homes.values()].count(0) > 2 < [*homes.values()].count(1)
    for name, home in homes.items():
        log = logs[1 - home if name == "astray" else home]
        if name in "dh":
            log.group(2, name, protocol_type="connect")  # without offsets
            continue
        log.commit((name, "t", 1), 5, commit_timestamp=COMMITTED_MS + 1)
        log.commit((name, "t", 0), 5, version=1, commit_timestamp=COMMITTED_MS, expire_timestamp=2_000)
        log.commit((name, "u", 0), 5, commit_timestamp=COMMITTED_MS + 2)
        log.delete((name, "u", 0))
        if name in "be":
            log.commit((name, "t", 0), 6, 7)
            log.commit((name, "new", 0), 6, 7)
        if name == "f":
            log.group(2, name)
            log.group_tombstone(2, name)
    logs[1 - homes["a"]].commit(("a", "t", 9), 5)
    appended(new_store(tmp_path / "store").location, [row for log in logs.values() for row in log.rows])
    reader = StateReader(str(tmp_path / "store"))
    states = [partition_state.replay(log.rows, log_partition, 2) for log_partition, log in logs.items()]
    expected = [held for state in states for name in sorted(state.groups) if (held := holdings_of(state, name))]
    found = list(retention_inputs(reader))
    of_group = attrgetter("group_id", "group.group_type", "pending")
    times = attrgetter("commit_timestamp_ms", "expire_timestamp_ms")
    told = [
        [(of_group(each), {where: times(one) for where, one in each.offsets.items()}) for each in inputs]
        for inputs in (found, expected)
    ]
    assert told[0] == told[1]
    assert {each.group_id for each in found} == {*"abcdeghi"}
    first, later_ms = at("t", 0), COMMITTED_MS + 1 + RETENTION_MS
    assert next_expiries(reader, RETENTION_MS) == {
        **{name: Expiry(name, first, 2_000, Rule.SIMPLE_GROUP, Basis.OWN) for name in "acgi"},
        **{name: Expiry(name, at("t", 1), later_ms, Rule.SIMPLE_GROUP, Basis.COMMIT) for name in "be"},  # R20
    }


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
def test_a_broker_expired_what_the_forecast_says(earlier: str, later: str) -> None:  # R18-R21
    n, now_ms = capture_partitions(earlier), wall_clock_ms(later)
    states = [partition_state.replay(rows, partition, n) for partition, rows in capture_rows(earlier).items()]
    held = [holdings_of(state, group_id) for state in states for group_id in state.groups]
    forecasts = [forecast(each, RETENTION_MINUTES * 60_000) for each in held if each is not None]
    assert_as_the_broker_did(forecast_rows(forecasts, now_ms, now_ms), earlier, later)
