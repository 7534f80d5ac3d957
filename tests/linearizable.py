"""Checks whether operations on a register took effect one by one, each between its call and its answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMMIT, FETCH, DELETE = "commit", "fetch", "delete"
#: The end of an operation without an answer: it may take effect at any later time, or never.
NEVER = math.inf


class Operation(NamedTuple):
    """An operation, and the times of its call and its answer.

    ``value`` is what COMMIT wrote, or what FETCH read (None: nothing was there), or how many values DELETE removed:
    0 or 1, or None without an answer.
    """

    begin: float
    end: float
    kind: str
    value: int | None


def is_linearizable(history: Iterable[Operation]) -> bool:
    """Return whether an order explains all answers to operations on one register, which is empty at first.

    Tries all orders that the times allow, each combination of operations done and present value once (the algorithm of
    Wing and Gong with Lowe's memory). Its time grows with 2 to the number of operations without an answer.
    """
    told = [each for each in history if each.end != NEVER or each.kind != FETCH]
    operations = sorted(told, key=lambda each: each.begin)
    answered = sum(1 << at for at, each in enumerate(operations) if each.end != NEVER)
    steps: list[tuple[int, int | None]] = [(0, None)]
    seen = set(steps)
    while steps:
        done, value = steps.pop()
        if done & answered == answered:
            return True
        for at in _next(operations, done):
            operation = operations[at]
            if _explains(operation, value):
                step = done | 1 << at, operation.value if operation.kind == COMMIT else _after(operation, value)
                if step not in seen:
                    seen.add(step)
                    steps.append(step)
    return False


def _next(operations: list[Operation], done: int) -> Iterator[int]:
    """The operations that may come next: called before any other one that is not done was answered."""
    waiting = []
    until = NEVER
    for at in range(_lowest_zero(done), len(operations)):
        if operations[at].begin > until:
            break
        if not done >> at & 1:
            waiting.append(at)
            until = min(until, operations[at].end)
    return (at for at in waiting if operations[at].begin <= until)


def _lowest_zero(number: int) -> int:
    return (~number & (number + 1)).bit_length() - 1


def _explains(operation: Operation, value: int | None) -> bool:
    if operation.kind == FETCH:
        return operation.value == value
    return operation.kind == COMMIT or operation.value is None or operation.value == (value is not None)


def _after(operation: Operation, value: int | None) -> int | None:
    return None if operation.kind == DELETE else value
