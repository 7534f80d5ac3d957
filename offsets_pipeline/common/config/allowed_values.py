"""Allowed types and values of settings, and the check of a section."""

from __future__ import annotations

import re
from dataclasses import field, fields
from typing import Any, Protocol, TypeVar, cast

from offsets_pipeline.common.input_text import INT64_MAX
from offsets_pipeline.errors import ConfigError

_SHOWN_CHARACTERS = 200


class Validator(Protocol):
    """The allowed values of a setting."""

    allowed: str
    """Text for error messages: "a whole number from 1 to 10"."""

    def accepts(self, value: object) -> bool:
        """Whether `value` has the right type and lies in the allowed range."""
        ...


class WholeNumber:
    """A whole number from ``lowest`` to ``highest``."""

    def __init__(self, lowest: int, highest: int) -> None:
        self._range = range(lowest, highest + 1)
        self.allowed = f"a whole number from {lowest} to {highest}"

    def accepts(self, value: object) -> bool:
        """See Validator."""
        # Python's True is an int; TOML's true is not a number.
        return isinstance(value, int) and not isinstance(value, bool) and value in self._range


class TrueOrFalse:
    """True or false."""

    allowed = "true or false"

    def accepts(self, value: object) -> bool:
        """See Validator."""
        return isinstance(value, bool)


class OneOf:
    """One of several texts."""

    def __init__(self, *choices: str) -> None:
        self._choices = choices
        self.allowed = " or ".join(f'"{choice}"' for choice in choices)

    def accepts(self, value: object) -> bool:
        """See Validator."""
        return isinstance(value, str) and value in self._choices


class Text:
    """Text that a regular expression matches; ``allowed`` describes it."""

    def __init__(self, pattern: str, allowed: str) -> None:
        self._pattern = re.compile(pattern)
        self.allowed = allowed

    def accepts(self, value: object) -> bool:
        """See Validator."""
        return isinstance(value, str) and self._pattern.fullmatch(value) is not None


class AnyText:
    """Any text."""

    allowed = "text"

    def accepts(self, value: object) -> bool:
        """See Validator."""
        return isinstance(value, str)


class Pattern:
    """A regular expression."""

    allowed = "a regular expression"

    def accepts(self, value: object) -> bool:
        """See Validator."""
        try:
            return isinstance(value, str) and re.compile(value) is not None
        except re.error:
            return False


_Value = TypeVar("_Value")


def setting(default: _Value, rule: Validator) -> _Value:
    """A dataclass field with its default and its rule."""
    return field(default=default, metadata={"rule": rule})


class Section:
    """Base of the sections. Raises ConfigError for a value that breaks its setting's rule."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            rule: Validator = each.metadata["rule"]
            value = getattr(self, each.name)
            if not rule.accepts(value):
                raise ConfigError(f"{each.name}: {as_toml(value)} is not allowed; it takes {rule.allowed}")


def as_toml(value: object) -> str:
    """The value in TOML, close enough to find it in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return "a number of more than 64 bits"  # Python does not write all of them
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
