"""JSON that can be written again: what Python accepts beyond the standard is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_SHOWN_CHARACTERS = 20


def parse_json(text: str, *, numbers_as_text: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a JSON text; of equal names in an object the last one counts.

    Raises ValueError for a text that is not JSON, is nested too deeply, or has a number or a character that JSON or
    UTF-8 cannot hold, such as 1e400 or a single surrogate.
    """
    numbers = str if numbers_as_text else None
    try:
        found = json.loads(text, parse_constant=_refuse, parse_int=numbers, parse_float=numbers or _finite)
        text.encode()
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # an escaped single surrogate
    except RecursionError:
        raise ValueError("it has too many levels of arrays and objects") from None
    return found


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise ValueError(f"the number {number[:_SHOWN_CHARACTERS]} is too large")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
