"""Retries with growing waits: of writes that another writer overtook, and of requests without an answer.

A request to create a file without an answer may still create the file later. So the writer puts the same file again
until the name is taken; from then on no request can create it (docs/adr/0031).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.store.delta.storage import NoAnswer, Storage

MAX_RETRIES = 10
RETRY_BACKOFF_MS = 100  # before the first retry
MAX_BACKOFF_MS = 5_000
#: A file without an answer is put again for so long, and at least once.
_UNANSWERED_SECONDS = 60.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 5.0

_Result = TypeVar("_Result")


def with_retries(write: Callable[[], _Result], what: str, sleep: Callable[[float], None] = time.sleep) -> _Result:
    """Call ``write`` until it is not overtaken.

    ``write`` must be safe to run twice. Raises WriteConflict, naming ``what``, when it was overtaken once more
    after MAX_RETRIES retries.
    """
    backoff_ms, attempts = RETRY_BACKOFF_MS, 0
    while True:
        try:
            return write()
        except WriteConflict as conflict:
            attempts += 1
            if attempts > MAX_RETRIES:
                raise WriteConflict(
                    f"cannot commit {what}: other writers committed first, {attempts} times; run it again, or with "
                    "fewer writers"
                ) from conflict
            sleep(random.uniform(0.5, 1.0) * backoff_ms / 1000)  # noqa: S311 - spreads writers, guards no secret
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)


def put_if_absent(
    storage: Storage, name: str, contents: bytes, *, durable: bool, may_retry: Callable[[], bool]
) -> bytes:
    """Create a file. Returns what the file has then: these contents, or those of the writer that has the name.

    ``may_retry`` is called before each further request; it may raise OSError.

    Raises NoAnswer if the name has no owner after a minute, or ``may_retry`` returned False: the file may still appear.
    Raises another OSError if the storage refuses the first request: the file will not appear. Raises CommitUnknown as
    `Storage.create`.
    """
    no_answer: OSError | None = None
    for _ in _attempts():
        try:
            if no_answer is not None and not may_retry():
                break
            if storage.create(name, contents, durable=durable):
                return contents
            no_answer = OSError("the storage says that the file exists, but does not return it")
        except OSError as error:
            if no_answer is None and not isinstance(error, NoAnswer):
                raise
            no_answer = error
        with suppress(OSError):
            found = storage.read(name)
            if found is not None:
                return found  # these contents, if a request of this call has created it before
    raise NoAnswer(str(no_answer)) from no_answer


def answered(request: Callable[[], bool]) -> bool:
    """Return the answer to a request that may be sent again. Raises NoAnswer after a minute, other errors at once."""
    no_answer: NoAnswer | None = None
    for _ in _attempts():
        try:
            return request()
        except NoAnswer as error:
            no_answer = error
    raise NoAnswer(str(no_answer)) from no_answer


def _attempts() -> Iterator[None]:
    """Yield until `_UNANSWERED_SECONDS` are over, but at least twice, with growing waits between."""
    until, wait = time.monotonic() + _UNANSWERED_SECONDS, _FIRST_WAIT_SECONDS
    yield
    yield
    while time.monotonic() + wait < until:
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        yield
