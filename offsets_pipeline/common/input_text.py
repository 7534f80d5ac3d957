"""Texts of users and clients: their files, numbers, JSON and names of topics in them, and how they are shown.

The texts come from options, files, requests and records. A text that is too large is refused at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from offsets_pipeline.errors import InvalidTopic, MalformedFile, NoSuchPath

if TYPE_CHECKING:
    from pathlib import Path

#: Names of topics by Kafka's rule, as a regular expression. Such a name is safe as part of the name of a folder, too.
TOPIC_NAME = r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}"
#: The highest offset and the highest time.
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
#: Digits of a number in JSON: as many as the JSON library of Kafka takes. Python's own error would name a function.
_MAX_DIGITS = 1_000
#: Levels of arrays and objects in JSON. Python's own limit differs between its versions, and depends on the caller.
_MOST_LEVELS = 500
_SHOWN_CHARACTERS = 40
_LONG_WORD = re.compile(r"\S{301,}")
_NUMBER = re.compile(r"-?[0-9]+")
_TOPIC_NAME = re.compile(TOPIC_NAME)
_NAMES = {INT64_MAX: "2^63-1", INT32_MAX: "2^31-1"}


@contextmanager
def opened_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file for reading: UTF-8, with or without a BOM. ``newline`` as of `open`.

    Raises NoSuchPath, MalformedFile, also while the block reads.
    """
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except FileNotFoundError:
        raise NoSuchPath(f"no such file: {path}") from None
    except OSError as error:
        raise MalformedFile(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MalformedFile(f"cannot read {path}: it is not UTF-8") from None


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold a text: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: str) -> str:
    """Return a text in quotes for a message, cut if it is long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def printable(text: str) -> str:
    """Escape each character that is not printable, such as NUL or a change of direction, as Python does."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def with_short_words(text: str) -> str:
    """Return a message with words of more than 300 characters cut: names of users in it may have 32,767."""
    return _LONG_WORD.sub(lambda word: f"{word[0][:_SHOWN_CHARACTERS]}...{word[0][-1:]}", text)


def first_ones(texts: Sequence[str], most: int) -> str:
    """Return the first texts, separated by commas, and the number of others."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def counted(number: int, thing: str) -> str:
    """Return a number of things: 1 offset, 2 offsets. ``thing`` has a plural that ends with s."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def whole_number(text: str, highest: int = INT64_MAX) -> int:
    """Return the number, 0 or more, that a text writes. Raises ValueError with the reason."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{shown(text)} is not a whole number")
    digits = text.removeprefix("-").lstrip("0")
    if digits and text.startswith("-"):
        raise ValueError(f"{shown(text)[1:-1]} is negative")
    if len(digits) > len(str(highest)) or int(digits or "0") > highest:
        raise ValueError(f"{shown(text)[1:-1]} is above {_NAMES.get(highest, highest)}")
    return int(digits or "0")


def validated_topic(name: str) -> str:
    """Return the name of a topic. Raises InvalidTopic if Kafka does not allow it."""
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(
            f"{shown(name)} is not a topic name: it has 1 to 249 letters, digits, dots, _ and -, and is not . or .."
        )
    return name


def parse_json(text: str, *, numbers_as_text: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text that can be written again; of equal names in an object the last one counts.

    Raises ValueError for a text that is not JSON, is nested too deeply, or has a number or a character that JSON or
    UTF-8 cannot hold, such as 1e400 or a single surrogate.
    """
    as_text = str if numbers_as_text else None
    too_deep = ValueError("it has too many levels of arrays and objects")
    try:
        found = json.loads(text, parse_constant=_refuse, parse_int=as_text or _whole, parse_float=as_text or _finite)
        text.encode()
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # an escaped single surrogate
    except RecursionError:
        raise too_deep from None
    if text.count("[") + text.count("{") > _MOST_LEVELS and is_deeper(found, _MOST_LEVELS):
        raise too_deep
    return found


def is_deeper(document: object, levels: int) -> bool:
    """Return whether a JSON value has more than this number of levels of arrays and objects."""
    level: list[Any] = [document]
    for _ in range(levels + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def _whole(number: str) -> int:
    if len(number) > _MAX_DIGITS:
        raise ValueError(f"the number {number[:_SHOWN_CHARACTERS]}... has more than {_MAX_DIGITS} digits")
    return int(number)


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise ValueError(f"the number {number[:_SHOWN_CHARACTERS]} is too large")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
