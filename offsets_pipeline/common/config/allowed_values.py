"""Allowed types and values of settings, and the check of a section."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from offsets_pipeline.common.input_text import INT64_MAX
from offsets_pipeline.errors import ConfigError

_SHOWN_CHARACTERS = 200


class Allowed(NamedTuple):
    """The allowed values of a setting, in words such as "a whole number from 1 to 10", and the check of a value."""

    words: str
    accepts: Callable[[object], bool]


def whole_number(lowest: int, highest: int) -> Allowed:
    """A whole number from ``lowest`` to ``highest``."""
    numbers = range(lowest, highest + 1)
    # Python's True is an int; TOML's true is not a number.
    return Allowed(
        f"a whole number from {lowest} to {highest}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value in numbers,
    )


def one_of(*choices: str) -> Allowed:
    """One of several texts."""
    return Allowed(" or ".join(f'"{choice}"' for choice in choices), lambda value: value in choices)


def matching(pattern: str, words: str) -> Allowed:
    """Text that a regular expression matches; ``words`` describe it."""
    found = re.compile(pattern)
    return Allowed(words, lambda value: isinstance(value, str) and found.fullmatch(value) is not None)


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


TRUE_OR_FALSE = Allowed("true or false", lambda value: isinstance(value, bool))
ANY_TEXT = Allowed("text", lambda value: isinstance(value, str))
PATTERN = Allowed("a regular expression", _is_pattern)

_Value = TypeVar("_Value")


def setting(default: _Value, allowed: Allowed, *, is_secret: bool = False) -> _Value:
    """A dataclass field with its default and its allowed values."""
    return field(default=default, repr=not is_secret, metadata={"allowed": allowed})


class Section:
    """Base of the sections. Raises ConfigError for a value that its setting does not take.

    Attributes:
        other_names: Kafka's name of a setting that has another name here.
    """

    __slots__ = ()

    other_names: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            allowed: Allowed = each.metadata["allowed"]
            value = getattr(self, each.name)
            if not allowed.accepts(value):
                raise ConfigError(f"{each.name}: {as_toml(value)} is not allowed; it takes {allowed.words}")

    @classmethod
    def of_document(cls, values: Mapping[str, object]) -> Self:
        """Read the section from a TOML document. Raises ConfigError also for a setting that does not exist."""
        names = [each.name for each in fields(cast("Any", cls))]
        named: dict[str, object] = {}
        for dotted, value in leaves(values):
            written = dotted.replace(".", "_")
            name = cls.other_names.get(written, written)
            if name not in names:
                raise ConfigError(f"{written} is not a setting; {known_names(written, names)}")
            if name in named and named[name] != value:
                raise ConfigError(f"{name}: {as_toml(named[name])} and {as_toml(value)} differ; give one of them")
            named[name] = value
        return cls(**named)


def leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested tables by their dotted names: in TOML `a.b = 1` makes a table within a table."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def known_names(wrong: str, names: Iterable[str]) -> str:
    """The names that exist, and first the nearest one to a wrong name."""
    names = list(names)
    near = difflib.get_close_matches(wrong, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}known are {', '.join(names)}"


def as_toml(value: object) -> str:
    """The value in TOML, close enough to find it in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return "a number of more than 64 bits"  # Python does not write all of them
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
