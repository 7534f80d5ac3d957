"""Warnings on stderr, warnings that do not repeat, and times of lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.common.foreign_errors import in_one_line


def warn(text: str) -> None:
    """Write a warning to stderr and flush it."""
    sys.stderr.write(f"{line_time()}offsets: warning: {text}\n")
    sys.stderr.flush()


def line_time() -> str:
    """Return the time and a space if this process runs until a signal, else nothing: a line begins with it."""
    return f"{shown_time(SystemClock().now_ms())} " if _LogLines.have_times else ""


def set_line_times(*, are_on: bool) -> None:
    """Begin each line of this process with its time, or no more; make records of Python's logging warnings."""
    _LogLines.have_times = are_on
    logging.basicConfig(handlers=[_LogLines()])


class _LogLines(logging.Handler):
    """Writes records of Python's logging as warnings, without stack traces.

    Leaves out those of Py4J: the caller of the JVM gets the exception, too.
    """

    have_times = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "py4j.clientserver" and record.module != "java_gateway":  # of Py4J
            error = record.exc_info[1] if record.exc_info else None
            warn(record.getMessage() if error is None else f"{record.getMessage()}: {in_one_line(error)}")


class Warnings:
    """Warnings about work that is tried again: the same text in a row is one warning, until the work succeeds."""

    def __init__(self, warn: Callable[[str], object], recovery: str = "") -> None:
        """``recovery`` is the text of the warning that the work succeeds again; without it there is none."""
        self._warn = warn
        self._recovery = recovery
        self._last = ""

    def warn(self, text: str) -> None:
        """Warn, unless this was the last warning."""
        if text != self._last:
            self._last = text
            self._warn(text)

    def recovered(self) -> None:
        """Note that the work has succeeded: a later warning with the same text is new."""
        failed, self._last = self._last, ""
        if failed and self._recovery:
            self._warn(self._recovery)
