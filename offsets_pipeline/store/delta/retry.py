"""Retries writes that another writer overtook, with a growing wait, a bounded number of times."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from offsets_pipeline.errors import WriteConflict

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_RETRIES = 10
RETRY_BACKOFF_MS = 100  # before the first retry
MAX_BACKOFF_MS = 5_000

_Result = TypeVar("_Result")


def with_retries(write: Callable[[], _Result], what: str, sleep: Callable[[float], None] = time.sleep) -> _Result:
    """Call ``write`` until it is not overtaken.

    ``write`` must be safe to run twice. Raises WriteConflict, naming ``what``, when it was overtaken once more
    after MAX_RETRIES retries.
    """
    backoff_ms = RETRY_BACKOFF_MS
    for attempt in range(MAX_RETRIES + 1):
        try:
            return write()
        except WriteConflict as conflict:
            if attempt == MAX_RETRIES:
                raise WriteConflict(
                    f"cannot commit {what}: other writers committed first, {attempt + 1} times; run it again, or with "
                    "fewer writers"
                ) from conflict
            sleep(random.uniform(0.5, 1.0) * backoff_ms / 1000)  # noqa: S311 - spreads writers, guards no secret
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)
    raise AssertionError("unreachable")
