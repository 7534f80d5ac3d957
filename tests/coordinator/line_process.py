"""Base class of the processes that a test starts, lets begin together, reads line by line, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class LineProcess:
    """A process of a Python program that prints "ready", waits for a line of stdin, and prints lines until its end.

    ``patience_seconds`` bounds the wait for its end.
    """

    patience_seconds: ClassVar[float]

    def __init__(self, start: Sequence[str], program: Path, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [*start, str(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(program.parents[2])},
        )
        self._reader = threading.Thread(target=self._read)

    def first_line(self) -> str:
        """Why it cannot open the store, or "ready"; nothing if it was killed before."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._reader.start()

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end and its last line; returns the exit status."""
        status = self._process.wait(self.patience_seconds)
        if self._reader.ident is not None:  # it was told to go
            self._reader.join(self.patience_seconds)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return status

    def on_line(self, line: str) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # killed in the midst of a line, it said nothing
                self.on_line(line)
