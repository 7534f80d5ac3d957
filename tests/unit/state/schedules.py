"""Runs processes of a store in threads, one at a time: each up to its next read of a table or commit, or it is killed.

A schedule is drawn from a `random.Random`, so a seed repeats it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    import pytest

    from offsets_pipeline.store.delta.snapshot import Snapshot

_LONGEST_SECONDS = 60
_here = threading.local()


class Killed(BaseException):
    """Ends a process where it waits."""


class Process:
    """A thread that waits before each of its steps until it is called."""

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.has_ended = False
        self.waits_for = "the start"
        self._run = run
        self._is_killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; it waits before it does anything."""
        self._thread.start()
        self._await_stop()

    def call(self) -> None:
        """Let it do its next step."""
        self._go.release()
        self._await_stop()

    def kill(self) -> None:
        """End it where it waits."""
        self._is_killed = True
        self.call()
        assert self.has_ended

    def wait(self, what: str) -> None:
        """Wait in the thread until the process may do this."""
        if not self._is_killed:
            self.waits_for = what
            self._stopped.release()
            self._go.acquire()
        if self._is_killed:
            raise Killed

    def _await_stop(self) -> None:
        assert self._stopped.acquire(timeout=_LONGEST_SECONDS), f"{self.name} hangs behind {self.waits_for}"

    def _main(self) -> None:
        _here.process = self
        try:
            self.wait("the start")
            self._run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
        self.has_ended = True
        self._stopped.release()


@contextmanager
def unscheduled() -> Iterator[None]:
    """What a process does here is none of its steps."""
    process, _here.process = getattr(_here, "process", None), None
    try:
        yield
    finally:
        _here.process = process


def step(what: str) -> None:
    """Wait until the process that runs here may do this; at once outside of processes."""
    process: Process | None = getattr(_here, "process", None)
    if process is not None:
        process.wait(what)


def schedule_tables(patch: pytest.MonkeyPatch, on_commit: Callable[[str, int], None]) -> None:
    """Make each read of a table's version and each commit a step; ``on_commit`` gets the table and its new version."""
    snapshot, create_version = TableFolder.snapshot, TableFolder.create_version

    def scheduled_snapshot(self: TableFolder, version: int | None = None) -> Snapshot:
        step(f"a read of {self.table.name}")
        return snapshot(self, version)

    def scheduled_commit(self: TableFolder, version: int, *arguments: Any, **named: Any) -> bool:  # noqa: ANN401
        step(f"version {version} of {self.table.name}")
        is_committed = create_version(self, version, *arguments, **named)
        if is_committed:
            with unscheduled():
                on_commit(self.table.name, version)
        return is_committed

    patch.setattr(TableFolder, "snapshot", scheduled_snapshot)
    patch.setattr(TableFolder, "create_version", scheduled_commit)


def run(processes: Sequence[Process], chance: Random, *, kills: int) -> list[str]:
    """Run processes in a random order until all have ended, and kill up to ``kills`` of them; returns what they did.

    Raises the error of a process.
    """
    done: list[str] = []
    patience = chance.choice([0.3, 0.7, 0.9])  # how likely a process goes on
    for each in processes:
        each.start()
    current = chance.choice(processes)
    while alive := [each for each in processes if not each.has_ended]:
        if current.has_ended or chance.random() > patience:
            current = chance.choice(alive)
        is_killed = kills > 0 and chance.random() < 0.01
        done.append(f"{current.name}: {'killed before ' if is_killed else ''}{current.waits_for}")
        if is_killed:
            kills -= 1
            current.kill()
        else:
            current.call()
        if current.error is not None:
            for each in alive:
                if not each.has_ended:
                    each.kill()
            current.error.add_note("\n".join(done))
            raise current.error
    return done
