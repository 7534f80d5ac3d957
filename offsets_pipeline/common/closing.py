"""Base class of objects that end with their `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """An object that `close` ends; a `with` block calls it."""

    def close(self) -> object:
        """End the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
