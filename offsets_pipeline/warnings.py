"""Warnings on stderr."""

from __future__ import annotations

import sys


def warn(text: str) -> None:
    """Write a warning to stderr and flush it."""
    sys.stderr.write(f"offsets: warning: {text}\n")
    sys.stderr.flush()
