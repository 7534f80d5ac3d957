"""Text of clients, such as group ids and metadata, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape each character that is not printable, such as NUL or a change of direction, as Python does."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
