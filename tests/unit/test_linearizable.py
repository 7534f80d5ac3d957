"""The checker of histories, on histories that were worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.linearizable import COMMIT, DELETE, FETCH, NEVER, Operation, is_linearizable

if TYPE_CHECKING:
    import random

ONE_BY_ONE = [
    Operation(0, 1, FETCH, None),
    Operation(2, 3, COMMIT, 1),
    Operation(4, 5, FETCH, 1),
    Operation(6, 7, DELETE, 1),
    Operation(8, 9, DELETE, 0),
    Operation(10, 11, FETCH, None),
]
HISTORIES = {
    "nothing": ([], True),
    "one by one": (ONE_BY_ONE, True),
    "a fetch beside a commit reads the old value": ([Operation(0, 9, COMMIT, 1), Operation(1, 2, FETCH, None)], True),
    "a fetch beside a commit reads the new value": ([Operation(0, 9, COMMIT, 1), Operation(1, 2, FETCH, 1)], True),
    "a fetch after a commit reads the old value": ([Operation(0, 1, COMMIT, 1), Operation(2, 3, FETCH, None)], False),
    "a value that nobody committed": ([Operation(0, 1, COMMIT, 1), Operation(2, 3, FETCH, 2)], False),
    "new, then old again": (
        [Operation(0, 9, COMMIT, 1), Operation(1, 2, FETCH, 1), Operation(3, 4, FETCH, None)],
        False,
    ),
    "two fetches see two commits in two orders": (
        [
            Operation(0, 9, COMMIT, 1),
            Operation(0, 9, COMMIT, 2),
            Operation(1, 2, FETCH, 1),
            Operation(3, 4, FETCH, 2),
            Operation(5, 6, FETCH, 1),
        ],
        False,
    ),
    "two deletions remove one value": (
        [Operation(0, 1, COMMIT, 1), Operation(2, 9, DELETE, 1), Operation(3, 9, DELETE, 1)],
        False,
    ),
    "a commit between the two deletions": (
        [
            Operation(0, 1, COMMIT, 1),
            Operation(2, 9, DELETE, 1),
            Operation(3, 9, DELETE, 1),
            Operation(2, 9, COMMIT, 2),
        ],
        True,
    ),
    "a commit without an answer is read later": ([Operation(0, NEVER, COMMIT, 1), Operation(5, 6, FETCH, 1)], True),
    "a commit without an answer never came": ([Operation(0, NEVER, COMMIT, 1), Operation(5, 6, FETCH, None)], True),
    "it came, and went": (
        [Operation(0, NEVER, COMMIT, 1), Operation(5, 6, FETCH, 1), Operation(7, 8, FETCH, None)],
        False,
    ),
    "it came twice": (
        [Operation(0, NEVER, COMMIT, 1), Operation(1, 2, DELETE, 1), Operation(3, 4, DELETE, 1)],
        False,
    ),
    "a deletion without an answer": (
        [Operation(0, 1, COMMIT, 1), Operation(2, NEVER, DELETE, None), Operation(8, 9, FETCH, None)],
        True,
    ),
    "a fetch without an answer says nothing": ([Operation(0, NEVER, FETCH, 7)], True),
}


@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES.keys())
def test_histories(history: list[Operation], expected: bool) -> None:
    assert is_linearizable(history) is expected


def test_a_long_history_of_a_real_register_is_linearizable_until_one_answer_is_changed(chance: random.Random) -> None:
    """Each operation takes effect at a time of its own, between a call and an answer that are moved apart at random."""
    history, value = [], None
    for at in range(3_000):
        span = at - chance.uniform(0, 6), at + chance.uniform(0, 6)
        kind = chance.choice([COMMIT, FETCH, DELETE])
        if kind == COMMIT:
            value = at
        history.append(Operation(*span, kind, int(value is not None) if kind == DELETE else value))
        if kind == DELETE:
            value = None
    assert is_linearizable(history)
    fetches = [at for at, each in enumerate(history) if each.kind == FETCH and each.value is not None]
    wrong = history[fetches[chance.randrange(len(fetches))]]
    history[history.index(wrong)] = wrong._replace(value=-1)
    assert not is_linearizable(history)
