"""Group commit: one thread of each coordinator appends the queued requests, many in one append.

Each round catches up with the log's end. The handlers of the waiting requests validate against it, and the round
appends their records in one commit. If another writer committed first, the append goes behind that commit if the two
are of different log partitions; otherwise the next round validates all requests again.

Each handler validates against the log alone. So requests of one round must not depend on each other: a dependent
request waits for the next round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from offsets_pipeline.coordinator.owned_log import CHECKPOINT_COMMITS, OwnedLog, PreparedAppend
from offsets_pipeline.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotAStore,
    OffsetsError,
    RequestTimedOut,
    StorageFailed,
    StoreReplaced,
    UnsupportedTable,
    WriteConflict,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.coordinator.gauges import Counts
    from offsets_pipeline.coordinator.requests import Outcome
    from offsets_pipeline.store.delta.snapshot import Commit

    #: Validates a request at a time (ms), and returns the records to append. Raises OffsetsError to refuse it.
    Handler = Callable[[int], Outcome[Any]]
    #: The resources that a request depends on or changes, kind and name, each claimed as SHARED or EXCLUSIVE.
    Claims = Mapping[tuple[str, Hashable], bool]

_LOG = logging.getLogger(__name__)
_Response = TypeVar("_Response")

#: Capacity of the queue. `submit` blocks while the queue is full.
_MAX_WAITING = 10_000
#: Records after which no further request joins an append. The other requests wait for the next one.
_MAX_RECORDS = 20_000

SHARED, EXCLUSIVE = False, True
#: Kinds of resources that are in one log partition.
PARTITION, GROUP = "partition", "group"


class Answer(Future[_Response]):
    """The answer to a request. ``thread`` calls its callbacks, and answers the other requests.

    So in a callback `result` and `exception` raise InvalidRequest if the answer is still to come, in place of waiting
    for themselves.
    """

    def __init__(self, thread: threading.Thread | None) -> None:
        super().__init__()
        self.thread = thread

    def result(self, timeout: float | None = None) -> _Response:
        """As `Future.result`."""
        self._refuse_in_callback()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future.exception`."""
        self._refuse_in_callback()
        return super().exception(timeout)

    def _refuse_in_callback(self) -> None:
        if threading.current_thread() is self.thread and not self.done():
            raise InvalidRequest(
                "a callback of a request cannot wait for another one: it would wait for itself; add a callback to that"
            )


@dataclass(eq=False)
class Request:
    """A request that waits for its append.

    ``claims`` returns the resources that the request depends on or changes, as of the current state. Several requests
    of an append may claim a resource as SHARED. An EXCLUSIVE claim keeps other claims on it out of the append.
    """

    what: str
    handler: Handler
    claims: Callable[[], Claims]
    deadline_ns: int
    durable: bool
    thread: threading.Thread
    is_running: bool = False
    done: Answer[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.done = Answer(self.thread)

    def starts(self) -> bool:
        """Mark the request as running, so that it cannot be cancelled. Returns False if it was cancelled before."""
        if not self.is_running:
            self.is_running = self.done.set_running_or_notify_cancel()
        return self.is_running

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; 0 after it."""
        return max(0, self.deadline_ns - time.monotonic_ns()) / 1e9

    def result(self) -> Any:  # noqa: ANN401 - any response
        """Wait for the response. Raises the request's error, or RequestTimedOut at the deadline.

        Raises InvalidRequest in a callback of another request, which ``thread`` calls: it would wait for itself.
        """
        return self.result_of(self.done, self.thread)

    def result_of(self, done: Future[_Response], thread: threading.Thread | None) -> _Response:
        """Wait for what follows the response: as `result`, for callbacks that ``thread`` calls."""
        if threading.current_thread() is thread and not done.done():
            written = "it was not written" if self.done.cancel() else "it may still be written"
            raise InvalidRequest(
                f"{self.what}: a callback of a request cannot wait for another one; {written}; use the asynchronous "
                "method there"
            )
        try:
            return done.result(self.seconds_left())
        except FutureTimeoutError:
            if self.done.cancel():
                raise RequestTimedOut(f"{self.what}: timed out; it was not written") from None
            if done.done():
                return done.result()
            raise RequestTimedOut(f"{self.what}: timed out; it may still be written") from None


@dataclass
class _Round:
    """The accepted and the refused requests of one append. The thread answers them without holding the lock."""

    taken: list[tuple[Request, Outcome[Any]]] = field(default_factory=list)
    is_of_its_partitions: bool = True  # no request depends on anything else than its groups and log partitions
    refused: list[tuple[Request, Exception]] = field(default_factory=list)

    def refuse(self) -> None:
        """Answer the refused requests."""
        for request, error in self.refused:
            _answer(request, error=error)
        self.refused = []

    def finish(self) -> None:
        """Answer the accepted requests, whose records are in the log."""
        for request, outcome in self.taken:
            _answer(request, outcome.response, outcome.error)


def _answer(request: Request, response: object = None, error: Exception | None = None) -> None:
    """Answer a request with an error or a response. Logs an exit of its callbacks (SystemExit): the thread goes on."""
    try:
        if error is None:
            request.done.set_result(response)
        else:
            request.done.set_exception(error)
    except BaseException:  # noqa: BLE001 - concurrent.futures catches the others
        _LOG.exception("%s: a callback of the request failed; the request was answered", request.what)


class Appender:
    """The thread that appends. ``lock`` guards the log and the states; the thread does not hold it while it writes.

    ``catch_up`` applies the log's new rows to the states, ``replay`` the rows of an append. The thread holds the lock
    when it calls them. It counts its appends in ``counts``.
    """

    def __init__(
        self,
        log: OwnedLog,
        lock: threading.RLock,
        clock: Clock,
        catch_up: Callable[[], None],
        replay: Callable[[pa.Table], None],
        counts: Counts,
    ) -> None:
        self._log = log
        self._lock = lock
        self._clock = clock
        self._catch_up = catch_up
        self._replay = replay
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="offsets-appender", daemon=True)
        self._checkpoint: threading.Thread | None = None
        self._counts = counts

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Append the waiting requests, then end the thread. Later requests are refused.

        In a callback, which the thread calls, it returns at once: the thread appends them after the callback.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive() and not self.is_in_callback():
            self._thread.join()
        self.await_checkpoint()

    def is_in_callback(self) -> bool:
        """Whether the thread calls this, in a callback of a request."""
        return self._thread is threading.current_thread()

    def await_checkpoint(self) -> None:
        """Wait until a running checkpoint is written."""
        if self._checkpoint is not None:
            self._checkpoint.join()

    def submit(
        self,
        what: str,
        handler: Handler,
        claims: Callable[[], Claims],
        timeout_ms: float,
        *,
        durable: bool = True,
    ) -> Request:
        """Queue a request. It fails with RequestTimedOut if its append has not begun in ``timeout_ms``.

        Raises CoordinatorNotAvailable if closed, RequestTimedOut if the queue stays full.
        """
        deadline_ns = time.monotonic_ns() + int(timeout_ms * 1_000_000)
        request = Request(what, handler, claims, deadline_ns, durable, self._thread)
        with self._changed:
            while len(self._waiting) >= _MAX_WAITING and not self._closing:
                if not self._changed.wait(request.seconds_left()):
                    raise RequestTimedOut(
                        f"{what}: rejected, because {_MAX_WAITING} requests are waiting; it was not written"
                    )
            if self._closing:
                raise CoordinatorNotAvailable(f"{what}: the coordinator is closed; open another one")
            self._waiting.append(request)
            self._changed.notify_all()
        return request

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
            self._append_once()

    def _append_once(self) -> None:
        """Run one round."""
        round_ = _Round()
        try:
            with self._log.turn(self._follow):
                written = self._append(round_)
        except WriteConflict:
            self._counts.conflicts += 1
            with self._changed:
                self._waiting.extendleft(request for request, _ in reversed(round_.taken))
        except Exception as error:  # noqa: BLE001 - the waiting requests get the error, and the next round may succeed
            round_.refuse()
            self._fail([request for request, _ in round_.taken], error)
        else:
            if written is not None:
                self._accept(*written)
            round_.finish()

    def _follow(self) -> None:
        """Catch up during another process's turn, so that this process's turn is shorter."""
        with self._lock:
            self._catch_up()

    def _append(self, round_: _Round) -> tuple[PreparedAppend, list[Commit]] | None:
        """Append the records of a round. Returns the append, and the commits up to its own; None without records."""
        append: PreparedAppend | None = None
        with self._lock:
            self._catch_up()
            now_ms = self._clock.now_ms()
            self._take(round_, now_ms)
            records = [record for _, outcome in round_.taken for record in outcome.records]
            if records:
                append = self._log.prepare(records, now_ms, is_of_its_partitions=round_.is_of_its_partitions)
        round_.refuse()
        if append is None:
            return None
        return append, self._log.write(append, durable=any(request.durable for request, _ in round_.taken))

    def _accept(self, append: PreparedAppend, commits: list[Commit]) -> None:
        """Apply a committed append to the states. Logs errors and raises none, because the commit succeeded."""
        version = append.known.number + len(commits)
        try:
            with self._lock:
                for rows in self._log.accept(append, commits):
                    self._replay(rows)
        except StorageFailed as error:
            _LOG.warning("%s; the next request reads again what precedes version %s", error, version)
        except Exception:  # noqa: BLE001 - a defect; opening the coordinator again repairs the state
            _LOG.exception(
                "cannot replay version %s of the log, which was written; open the coordinator again", version
            )
        self._counts.appends += 1
        self._counts.appended_records += append.rows.num_rows
        if version % CHECKPOINT_COMMITS == 0:
            self.await_checkpoint()
            self._checkpoint = threading.Thread(target=self._log.checkpoint, name="offsets-checkpoint", daemon=True)
            self._checkpoint.start()

    def _take(self, round_: _Round, now_ms: int) -> None:
        """Validate queued requests, and add those that fit into one append to the round."""
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
        left: list[Request] = []
        claimed: dict[tuple[str, Hashable], bool] = {}
        records = 0
        for request in waiting:
            if not request.starts():
                continue
            if time.monotonic_ns() >= request.deadline_ns:
                late = RequestTimedOut(f"{request.what}: timed out; it was not written")
                round_.refused.append((request, late))
                continue
            if records >= _MAX_RECORDS:
                left.append(request)
                continue
            try:
                claims = request.claims()
                if any(claims[key] or claimed[key] for key in claims.keys() & claimed.keys()):
                    left.append(request)
                    claimed.update(dict.fromkeys(claims, EXCLUSIVE))  # keeps later requests behind it
                    continue
                outcome = request.handler(now_ms)
            except Exception as error:  # noqa: BLE001 - this request's own fault
                round_.refused.append((request, error))
                continue
            claimed.update(claims)
            round_.is_of_its_partitions &= all(kind in {PARTITION, GROUP} for kind, _ in claims)
            round_.taken.append((request, outcome))
            records += len(outcome.records)
        with self._changed:
            self._waiting.extendleft(reversed(left))
            self._changed.notify_all()

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Answer the requests of a failed round with an error; without any, all waiting requests."""
        if not requests:  # the round failed before it took requests: no waiting request can run
            with self._changed:
                requests = [each for each in self._waiting if each.starts()]
                self._waiting.clear()
                self._changed.notify_all()
        kind = (
            type(error) if isinstance(error, (NotAStore, StoreReplaced, UnsupportedTable)) else CoordinatorNotAvailable
        )
        for request in requests:
            if isinstance(error, CommitUnknown):
                failed: OffsetsError = RequestTimedOut(f"{request.what}: {error}; it may have been written")
            else:
                failed = kind(f"{request.what}: {error}; it was not written")
            failed.__cause__ = error
            _answer(request, error=failed)
