"""`offsets connect stop`, `pause`, `resume`, `alter` and `reset`, on an owned store."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.errors import MalformedFile, NoSuchPath

if TYPE_CHECKING:
    from pathlib import Path


def set_state(store: str, connector: str, state: str) -> int:
    """Give a connector a target state; returns the exit status. Raises NoSuchConnector."""
    with ConnectLog.open(store) as log:
        OffsetManagement(log).set_target_state(connector, state)
    sys.stdout.write(f"connector {connector} is {state} in {store}\n")
    return 0


def alter(store: str, connector: str, file: Path) -> int:
    """Add and replace offsets; returns the exit status. Raises MalformedFile, NoSuchConnector, BadConnectRequest."""
    offsets = _offsets(file)
    with ConnectLog.open(store) as log:
        message = OffsetManagement(log).alter(connector, offsets)
    sys.stdout.write(f"{message}\n")
    return 0


def reset(store: str, connector: str) -> int:
    """Delete all offsets; returns the exit status. Raises NoSuchConnector, BadConnectRequest."""
    with ConnectLog.open(store) as log:
        message = OffsetManagement(log).reset(connector)
    sys.stdout.write(f"{message}\n")
    return 0


def _offsets(file: Path) -> list[dict[str, Any]]:
    """The offsets of a request; ``-`` is stdin. Raises MalformedFile, NoSuchPath."""
    name = "stdin" if str(file) == "-" else str(file)
    try:
        document = json.loads(sys.stdin.read() if name == "stdin" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoSuchPath(f"cannot read {name}: {error.strerror}; name a readable file") from None
    except (ValueError, RecursionError) as error:
        raise MalformedFile(f"{name} is not JSON: {error}") from None
    offsets = document.get("offsets") if isinstance(document, dict) else None
    if not isinstance(offsets, list) or not all(map(_is_offset, offsets)):
        raise MalformedFile(
            f'{name} does not hold offsets: write {{"offsets": [{{"partition": {{...}}, "offset": {{...}}}}]}}'
        )
    return offsets


def _is_offset(each: object) -> bool:
    if not isinstance(each, dict) or each.keys() != {"partition", "offset"}:
        return False
    return isinstance(each["partition"], dict) and isinstance(each["offset"], dict | None)
