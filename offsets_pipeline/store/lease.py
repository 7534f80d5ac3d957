"""Leases of a store: which process reads its topic, folds its log or takes its snapshots. No Spark.

A second process that starts the same work waits, or ends with the name of the holder. A lease only informs: the log and
the state are safe because each commit fails on a conflict, whatever the clocks of two machines say (docs/adr/0035).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.common.clock import EPOCH, Clock, ms_of, shown_time
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import LeaseHeld, LeaseLost
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import LEASES
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings

#: The work of a lease, in the column `task`.
INGEST_TOPIC, FOLD, SNAPSHOT = "ingest-topic", "fold", "snapshot"

#: Values of the option `--if-held`.
WAIT, END = "wait", "end"

_LOOK_SECONDS = 1.0  # between two looks at the lease of another process
_RENEWALS = 3  # within the duration of a lease
_SCHEMA = LEASES.arrow_schema()
_HELD_HERE: set[str] = set()  # ids of the leases of this process

Row = dict[str, Any]


class Lease:
    """The lease of one command for some tasks of a store, renewed in a thread while it is held.

    Another process takes it over if the holder has not renewed it for the setting `lease_duration_ms`, or if the holder
    ran on the same machine and has ended. ``warn`` is called with warnings of one line.
    """

    def __init__(
        self,
        folder: str,
        command: str,
        tasks: tuple[str, ...],
        settings: Settings,
        clock: Clock,
        warn: Callable[[str], object],
    ) -> None:
        """``folder`` is the store's, as a path or as a URI of Arrow."""
        self._folder = folder
        self._table = TableFolder(f"{folder}/{LEASES.name}", LEASES)
        self._tasks = tasks
        self._clock = clock
        self._warn = warn
        self._own: Row = {
            "lease_id": uuid.uuid4().hex,
            "command": command,
            "host": socket.gethostname(),
            "process_id": os.getpid(),
            "duration_ms": settings.log.lease_duration_ms,
        }
        self._renewed: dict[str, tuple[object, float]] = {}  # by lease id: the last renewal, and when we saw it first
        self._lock = threading.Lock()
        self._lost: LeaseLost | None = None
        self._when_lost: list[Callable[[], object]] = []
        #: Whether `held` waited for another process, which may have changed the store.
        self.has_waited = False

    @contextmanager
    def held(self, if_held: str, stopped: threading.Event | None = None) -> Iterator[bool]:
        """Hold the lease within the context. Yields False, without the lease, if ``stopped`` was set while it waited.

        Raises LeaseHeld if another process holds it and ``if_held`` is END, LeaseLost at the end of the context if
        another process took it over, and the errors of `TableFolder.commit`.
        """
        self._table.create()
        _HELD_HERE.add(self._own["lease_id"])
        try:
            if not self._acquire(if_held, stopped or threading.Event()):
                yield False
                return
            with self._kept():
                yield True
        finally:
            _HELD_HERE.discard(self._own["lease_id"])
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Renew the lease within the context, and release it at the end."""
        renewals = Periodic(
            self._renew,
            self._own["duration_ms"] // _RENEWALS,
            at_once=False,
            rests=True,
            warn=self._warn,
            describe=lambda error: f"cannot renew the lease of {self._folder}: {in_one_line(error)}; trying again",
            name="lease",
        )
        renewals.start()
        try:
            yield
        except Exception as error:
            with suppress(Exception):
                self._renew()  # a conflict with the process that took it over may be seen first
            if self._lost is not None:
                raise self._lost from error
            raise
        finally:
            renewals.close()
            self._release()

    def when_lost(self, stop: Callable[[], object]) -> None:
        """Call ``stop`` once another process has taken over the lease: at once if one already has."""
        with self._lock:
            self._when_lost.append(stop)
            is_lost = self._lost is not None
        if is_lost:
            stop()

    def _acquire(self, if_held: str, stopped: threading.Event) -> bool:
        holder = None
        while not stopped.is_set():
            found = self._claim(self._has_lapsed)
            if found is None:
                return True
            if if_held == END:
                raise LeaseHeld(
                    f"cannot {self._own['command']} {self._folder}: {_said(found)}; stop that process, or wait for its "
                    f"end: --if-held {WAIT}"
                )
            if found["lease_id"] != holder:
                self._warn(f"{_said(found)}: waiting for its end; {self._folder} has one such process")
            holder, self.has_waited = found["lease_id"], True
            stopped.wait(_LOOK_SECONDS)
        return False

    def _claim(self, takes_over: Callable[[Row], bool]) -> Row | None:
        """Write the lease's rows, or return a row of another holder that ``takes_over`` refuses."""

        def claim() -> Row | None:
            seen = self._table.snapshot()
            rows: list[Row] = seen.rows().to_pylist()
            others = [row for row in rows if row["lease_id"] != self._own["lease_id"] and row["task"] in self._tasks]
            holder = next((row for row in others if not takes_over(row)), None)
            if holder is None:
                kept = [row for row in rows if row["task"] not in self._tasks]
                now = EPOCH + timedelta(milliseconds=self._clock.now_ms())
                since = next((row["since"] for row in rows if row["lease_id"] == self._own["lease_id"]), now)
                new = [self._own | {"task": task, "since": since, "renewed_at": now} for task in self._tasks]
                self._table.replace(pa.Table.from_pylist(kept + new, _SCHEMA), seen=seen)
            return holder

        return with_retries(claim, "a lease")

    def _has_lapsed(self, row: Row) -> bool:
        """Whether the holder has ended or has not renewed its lease, by its own time or since this process looks."""
        if row["host"] == self._own["host"] and not _is_held(row):
            return True
        renewed_at, first_seen = self._renewed.get(row["lease_id"], (None, 0.0))
        if renewed_at != row["renewed_at"]:
            first_seen = time.monotonic()
            self._renewed[row["lease_id"]] = row["renewed_at"], first_seen
        unchanged_ms = (time.monotonic() - first_seen) * 1000
        age_ms = self._clock.now_ms() - ms_of(row["renewed_at"])
        return max(age_ms, unchanged_ms) > int(row["duration_ms"])

    def _renew(self) -> None:
        holder = None if self._lost else self._claim(lambda _: False)
        if holder is None:
            return
        with self._lock:
            self._lost = LeaseLost(
                f"{self._own['command']} of {self._folder} ends: {_said(holder)}, for this process had not renewed its "
                f"lease for {self._own['duration_ms']} ms; start it again with --if-held {WAIT}"
            )
            stops = list(self._when_lost)
        for stop in stops:
            stop()

    def _release(self) -> None:
        def release() -> None:
            seen = self._table.snapshot()
            rows: list[Row] = seen.rows().to_pylist()
            kept = [row for row in rows if row["lease_id"] != self._own["lease_id"]]
            if len(kept) < len(rows):
                self._table.replace(pa.Table.from_pylist(kept, _SCHEMA), seen=seen)

        try:
            with_retries(release, "the end of a lease")
        except Exception as error:  # noqa: BLE001 - the work is done; the lease lapses
            self._warn(f"cannot release the lease of {self._folder}: {in_one_line(error)}; it lapses by itself")


def _said(row: Row) -> str:
    return (
        f"process {row['process_id']} on {row['host']} runs `offsets {row['command']}` on this store since "
        f"{shown_time(ms_of(row['since']))}"
    )


def _is_held(row: Row) -> bool:
    """Whether a holder on this machine still runs."""
    if row["process_id"] == os.getpid():
        return row["lease_id"] in _HELD_HERE  # else an earlier process had this id
    return is_running(row["process_id"])


def is_running(process_id: int) -> bool:
    """Whether a process of this machine runs. It does not once it has ended, even if its parent has not noticed."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # of another user
    try:  # the first process of a container may never ask for the status of a process that has ended
        state = Path(f"/proc/{process_id}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:  # no such folder outside Linux
        return True
    return state not in (b"Z", b"X")
