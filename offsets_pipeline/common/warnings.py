"""Warnings on stderr, and warnings that do not repeat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def warn(text: str) -> None:
    """Write a warning to stderr and flush it."""
    sys.stderr.write(f"offsets: warning: {text}\n")
    sys.stderr.flush()


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
