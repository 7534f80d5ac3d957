"""`offsets connect config`, `stop`, `pause`, `resume`, `alter` and `reset`, on an owned store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import write_json
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.connect.request_bodies import offsets_of, settings_of
from offsets_pipeline.errors import BadConnectRequest, NoSuchPath

if TYPE_CHECKING:
    from pathlib import Path


def set_state(store: str, connector: str, state: str) -> int:
    """Set the target state of a connector; returns the exit status. Raises NoSuchConnector."""
    with ConnectLog.open(store) as log:
        OffsetManagement(log).set_target_state(connector, state)
    sys.stdout.write(f"connector {connector} is {state} in {store}\n")
    return 0


def alter(store: str, connector: str, file: Path) -> int:
    """Add and replace offsets; returns the exit status. Raises NoSuchConnector, BadConnectRequest, NoSuchPath."""
    offsets = offsets_of(*_read(file))
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


def configure(store: str, connector: str, file: Path | None) -> int:
    """Configure a connector, or without a file show its configuration; returns the exit status.

    Raises NoSuchConnector, BadConnectRequest, NoSuchPath.
    """
    settings = None if file is None else settings_of(*_read(file))
    with ConnectLog.open(store) as log:
        management = OffsetManagement(log)
        if settings is None:
            write_json(management.info(connector)["config"])
        else:
            created, _ = management.put_config(connector, settings)
            sys.stdout.write(f"connector {connector} is {'created' if created else 'configured'} in {store}\n")
    return 0


def _read(file: Path) -> tuple[str, str]:
    """The text of a file, and its name for errors; ``-`` is stdin. Raises NoSuchPath, BadConnectRequest."""
    name = "stdin" if str(file) == "-" else str(file)
    try:
        return sys.stdin.read() if name == "stdin" else file.read_text(encoding="utf-8"), name
    except OSError as error:
        raise NoSuchPath(f"cannot read {name}: {error.strerror}; name a readable file") from None
    except UnicodeDecodeError as error:
        raise BadConnectRequest(f"{name} is not JSON: not UTF-8 at position {error.start}") from None
