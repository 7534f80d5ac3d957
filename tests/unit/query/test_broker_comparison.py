"""Groups that change while brokers and store are asked are asked again, and count as soon as they are equal once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.exposition import generate_latest

from offsets_pipeline.kafka.broker.groups_client import GroupListing
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions import broker_comparison
from offsets_pipeline.questions.broker_comparison import MirrorSample, compare_with_brokers
from offsets_pipeline.questions.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer
from offsets_pipeline.service.metrics.exposition import registry_of
from tests.promtool import find_promtool

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER: Any = None  # the answers of its brokers are given


def by_brokers(offset: int, state: str = "Empty") -> dict[str, object]:
    offsets = {("t", 0): (offset, None, "")}
    return {"type": "Classic", "protocol type": "", "state": state, "members": [], "offsets": offsets}


def by_store(offset: int, state: str = "Empty") -> GroupAnswer:
    offsets = [OffsetAnswer("t", 0, offset, None, "")]
    return GroupAnswer("Classic", state, "", "", None, 0, misplaced=False, offsets=offsets)


def compared(
    monkeypatch: pytest.MonkeyPatch,
    brokers: list[dict[str, dict[str, object]]],
    stores: list[Mapping[str, GroupAnswer]],
) -> broker_comparison.BrokerComparison:
    """Each round asks the brokers twice and the store once. Ends after the last of these answers."""
    left = iter(brokers)
    monkeypatch.setattr(broker_comparison, "list_groups", lambda _: {})
    monkeypatch.setattr(broker_comparison, "_answers_of_brokers", lambda *_: next(left))
    answers, slept = iter(stores), list[float]()
    patience = 3600 if len(stores) > 1 else 0
    found = compare_with_brokers(lambda: next(answers), CLUSTER, patience_seconds=patience, sleep=slept.append)
    assert len(slept) == len(stores) - 1
    assert [*left, *answers] == []
    return found


def test_a_store_that_is_behind_at_first_is_equal_in_a_later_round(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"g": by_brokers(2), "h": by_brokers(1)}] * 2 + [{"g": by_brokers(2), "h": by_brokers(8)}] * 2
    found = compared(monkeypatch, answers, [{"g": by_store(1), "h": by_store(1)}, {"g": by_store(2), "h": by_store(1)}])
    assert (found.offsets, found.differences, found.changing) == ({"g": 1, "h": 1}, {}, set())


@pytest.mark.parametrize(("patience", "rounds"), [(-0.1, 1), (0.9, 1), (1, 2), (2.9, 3)])
def test_groups_are_asked_each_second_until_patience_ends(
    monkeypatch: pytest.MonkeyPatch, patience: float, rounds: int
) -> None:
    now, read = [50.0], list[float]()
    monkeypatch.setattr(broker_comparison, "list_groups", lambda _: {})
    monkeypatch.setattr(broker_comparison, "_answers_of_brokers", lambda *_: {"g": by_brokers(1), "h": by_brokers(1)})
    monkeypatch.setattr(broker_comparison, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def answers() -> Mapping[str, GroupAnswer]:
        read.append(now[0])
        return {"g": by_store(2), "h": by_store(1)}

    def sleep(seconds: float) -> None:
        now[0] += seconds

    found = compare_with_brokers(answers, CLUSTER, patience_seconds=patience, sleep=sleep)
    assert (found.offsets, [*found.differences], found.changing) == ({"h": 1}, ["g"], set())
    assert read == [50.0 + number for number in range(rounds)]


def test_facts_of_brokers_are_those_that_a_store_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """R34, R39: of streams groups no members, of share groups no offsets either."""
    types = {"classic": "Classic", "consumer": "Consumer", "streams": "Streams", "share": "Share", "gone": "Classic"}
    listed = {name: GroupListing(name, kind, "p", "Listed") for name, kind in types.items()}
    held = {("t", 0): (7, None, "")}
    member = {"client_id": "c", "client_host": "/h"}

    def described(instance: str, *names: str) -> Any:  # noqa: ANN401
        def of(_: object, asked: list[str]) -> dict[str, object]:
            assert [*asked] == [*names]
            members = [SimpleNamespace(member_id=each, **{instance: None}, **member) for each in "ba"]
            state = SimpleNamespace(group_state="Described", group_epoch=4, members=members)
            return {name: state for name in names if name != "gone"}

        return of

    def fetched(_: object, asked: list[str]) -> dict[str, object]:
        assert asked == ["classic", "consumer", "streams"]
        return dict.fromkeys(asked, held)

    for name, fake in (
        ("describe_classic_groups", described("group_instance_id", "classic", "gone")),
        ("describe_consumer_groups", described("instance_id", "consumer")),
        ("fetch_group_offsets", fetched),
    ):
        monkeypatch.setattr(broker_comparison, name, fake)
    members = [(each, None, "c", "/h") for each in "ab"]
    expected: dict[str, dict[str, object]] = {
        name: {"type": kind, "protocol type": "p", "state": "Listed", "members": [], "offsets": {}}
        for name, kind in types.items()
    }
    for name in ("classic", "consumer"):
        expected[name] |= {"state": "Described", "members": members, "offsets": held}
    expected["consumer"]["group epoch"] = 4
    expected["streams"]["offsets"] = held
    assert broker_comparison._answers_of_brokers(CLUSTER, listed) == expected
    ours = {
        name: GroupAnswer(
            *(kind, "Described" if name in ("classic", "consumer") else "Listed", "p", "", 4, 0),
            misplaced=False,
            members=[] if name == "gone" else [MemberAnswer(each, None, "c", "/h", [], None) for each in "ba"],
            offsets=[] if name == "gone" else [OffsetAnswer("t", 0, 7, None, "")],
        )
        for name, kind in types.items()
    }
    assert broker_comparison._answers_of_store(ours) == expected


def test_only_a_group_of_kip_848_that_is_answered_has_an_epoch() -> None:
    """R1: of a misplaced group a coordinator lists no more than its state and type."""
    known = replace(by_store(1), type="Consumer", group_epoch=4)
    groups = {"a": known, "b": replace(known, misplaced=True), "c": replace(known, type="Classic")}
    found = broker_comparison._answers_of_store(groups)
    assert {name: each.get("group epoch") for name, each in found.items()} == {"a": 4, "b": None, "c": None}


@pytest.mark.parametrize(
    "holds", [{}, {"offsets": {("t", 0): (1, None, "")}}, {"members": ["m"]}, {"protocol type": "c"}]
)
def test_only_a_simple_group_that_holds_nothing_need_not_be_listed(
    monkeypatch: pytest.MonkeyPatch, holds: dict[str, object]
) -> None:
    """R14: a broker of 2.8 lists a group whose only commit was aborted until it loads the log; R16: or never again."""
    found = compared(monkeypatch, [{"g": {**by_brokers(1), "offsets": {}, **holds}}] * 2, [{}])
    assert (found.offsets, [*found.differences]) == (({}, ["g"]) if holds else ({"g": 0}, []))
    found = compared(monkeypatch, [{}] * 2, [{"g": replace(by_store(1), offsets=[])}])
    assert (found.offsets, found.differences) == ({"g": 0}, {})


def test_a_group_that_changes_between_both_answers_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, [{"g": by_brokers(1)}, {"g": by_brokers(2)}], [{"g": by_store(1)}])
    assert (found.offsets, found.differences, found.changing) == ({}, {}, {"g"})


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


class Looked:
    """A sample of two groups at each look, and the warnings; the answers are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers: dict[str, dict[str, object]] = {}
        self.store: dict[str, GroupAnswer] | None = {}
        self.asked: list[set[str]] = []
        self.warnings: list[str] = []
        monkeypatch.setattr(broker_comparison, "list_groups", lambda _: dict.fromkeys(self.brokers))
        monkeypatch.setattr(broker_comparison, "_answers_of_brokers", self._answers)
        options = KafkaOptions("localhost:1", {})
        self.sample = MirrorSample(options, lambda: self.store, 2, self.warnings.append)

    def _answers(self, _: object, listed: dict[str, None]) -> dict[str, dict[str, object]]:
        self.asked.append({*listed})
        return {group_id: self.brokers[group_id] for group_id in listed}

    def differing(self) -> float | None:
        self.sample.sample()
        found = self.sample.values()["offsets_mirror_differing_groups"]
        assert not isinstance(found, Mapping)
        return found


def test_a_sample_asks_for_the_next_groups_by_name_and_begins_again_after_the_last(looked: Looked) -> None:
    looked.brokers = {name: by_brokers(1) for name in "abc"}
    looked.store = {name: by_store(1) for name in "abc"}
    assert looked.sample.values()["offsets_mirror_compared_groups_total"] is None
    assert [looked.differing() for _ in range(4)] == [0, 0, 0, 0]
    assert looked.asked == [{"a", "b"}, {"c", "a"}, {"b", "c"}, {"a", "b"}]
    assert (looked.sample.values()["offsets_mirror_compared_groups_total"], looked.warnings) == (8, [])


def test_a_group_differs_at_its_second_look_unless_its_brokers_answer_changed(looked: Looked) -> None:
    looked.brokers, looked.store = {"a": by_brokers(2)}, {"a": by_store(1)}
    assert looked.differing() == 0
    looked.brokers = {"a": by_brokers(3)}
    assert looked.differing() == 0
    assert (looked.differing(), looked.differing()) == (1, 1)
    assert len(looked.warnings) == 1
    assert looked.warnings[0].startswith("group 'a' is not as its coordinator answers: offsets: the brokers say {")
    looked.store = {"a": by_store(3)}
    assert looked.differing() == 0
    looked.brokers = {"a": by_brokers(3, "PreparingRebalance")}
    assert (looked.differing(), looked.differing()) == (0, 0)


def test_a_group_that_one_of_both_lacks_differs_until_both_lack_it(looked: Looked) -> None:
    looked.brokers, looked.store = {"a": by_brokers(2)}, {"b": by_store(1)}
    assert (looked.differing(), looked.differing()) == (0, 2)
    assert [each.rpartition(": ")[2] for each in looked.warnings] == [
        "the store does not list it",
        "the brokers do not list it",
    ]
    looked.brokers, looked.store = {}, {}
    assert looked.differing() == 0


def test_nothing_is_compared_while_the_store_is_behind(looked: Looked) -> None:
    looked.brokers, looked.store = {"a": by_brokers(2)}, {}
    assert (looked.differing(), looked.differing()) == (0, 1)
    looked.store = None
    assert (looked.differing(), len(looked.asked), len(looked.warnings)) == (0, 2, 1)
    looked.store = {"a": by_store(2)}
    assert (looked.differing(), len(looked.asked), len(looked.warnings)) == (0, 3, 1)


def test_a_group_that_differs_has_an_alert_after_two_minutes(looked: Looked, root: Path, tmp_path: Path) -> None:
    scrapes = []
    for minute in range(10):
        looked.brokers, looked.store = {"a": by_brokers(minute < 5)}, {"a": by_store(0)}
        looked.sample.sample()
        scrapes.append((60.0 * minute, generate_latest(registry_of(looked.sample.values)).decode()))
    promtool = find_promtool(root / "conf" / "prometheus" / "offsets.rules.yml", tmp_path)
    # since the second look, for two minutes; the brokers' answer is the store's from the fifth minute on
    away = {"OffsetsFollowAway": [""]}
    differs = {"OffsetsMirrorDiffers": [""]}
    promtool.assert_firing(scrapes, {2: {}, 3: differs, 4: differs, 5: away, 9: away})


def test_a_rebalance_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    rebalancing = {"g": by_brokers(1, "PreparingRebalance")}
    found = compared(monkeypatch, [rebalancing, rebalancing], [{"g": by_store(1, "Stable")}])
    assert (found.offsets, found.differences, found.changing) == ({}, {}, {"g"})


def test_what_still_differs_at_the_end_is_told_by_its_first_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"g": by_brokers(1), "h": by_brokers(1), "j": by_brokers(1)}
    store = {"g": by_store(3, "Dead"), "h": by_store(1), "i": by_store(1)}
    found = compared(monkeypatch, [answers, answers], [store])
    assert (found.offsets, found.changing) == ({"h": 1}, set())
    assert found.differences == {
        "g": "state: the brokers say Empty, the store Dead",
        "i": "the brokers do not list it",
        "j": "the store does not list it",
    }
