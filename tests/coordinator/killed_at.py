"""Runs a command of `offsets`, and kills it with SIGKILL at one of its calls into the system or into Delta's library.

    python killed_at.py POINT COMMAND ARGUMENT...

The points are the begins and ends of such calls, numbered from 1. Writes the name of each one to stderr when it comes
there. With POINT 0 it runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli import main

if TYPE_CHECKING:
    from types import FrameType

POINT = "point "
#: Functions of the system that write, or that others wait for. All of Delta's library count.
OF_SYSTEM = {"close", "fsync", "flock", "link", "mkdir", "open", "rename", "replace", "rmdir", "unlink", "write"}
OF_FILE = {"BufferedWriter.write", "BufferedWriter.flush", "BufferedWriter.__exit__"}


def name_of(function: Any) -> str | None:  # noqa: ANN401 - any function of C
    """The name of a function at whose calls there are points."""
    module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    name = function.__qualname__
    if module in {"posix", "fcntl"}:
        return name if name in OF_SYSTEM else None
    if module == "_io":
        return name if name in OF_FILE else None
    return name if module.startswith("deltalake") else None


def run(point: int, words: list[str]) -> int:
    numbers = count(1)

    def look(_: FrameType, event: str, function: Any) -> None:  # noqa: ANN401
        if event not in {"c_call", "c_return"} or (name := name_of(function)) is None:
            return
        number = next(numbers)
        os.write(2, f"{POINT}{number} {'before' if event == 'c_call' else 'after'} {name}\n".encode())
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(look)
    sys.setprofile(look)
    return main(words)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
