"""Groups that change while brokers and store are asked are asked again, and count as soon as they are equal once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.questions import broker_comparison
from offsets_pipeline.questions.broker_comparison import compare_with_brokers
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

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
    monkeypatch.setattr(broker_comparison, "answers_of_brokers", lambda _: next(left))
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


def test_a_group_that_changes_between_both_answers_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, [{"g": by_brokers(1)}, {"g": by_brokers(2)}], [{"g": by_store(1)}])
    assert (found.offsets, found.differences, found.changing) == ({}, {}, {"g"})


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
