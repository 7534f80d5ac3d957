"""Warnings for the person or service that runs a command."""

from __future__ import annotations

import sys


def warn(text: str) -> None:
    """Write a warning to stderr, without delay."""
    sys.stderr.write(f"offsets: warning: {text}\n")
    sys.stderr.flush()
