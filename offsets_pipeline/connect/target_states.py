"""Target states of connectors in an owned log: STOPPED, PAUSED, or RUNNING (R32)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from offsets_pipeline.connect.connect_log import ConnectLog
    from offsets_pipeline.coordinator.owned_log import Record

RUNNING, PAUSED, STOPPED = "RUNNING", "PAUSED", "STOPPED"
_STARTED = "STARTED"  # Connect's name of the target state of a running connector
#: As a worker writes it: one before 3.5 takes a stopped connector for a paused one.
_VALUES = {
    RUNNING: {"state": _STARTED, "state.v2": _STARTED},
    PAUSED: {"state": PAUSED, "state.v2": PAUSED},
    STOPPED: {"state": PAUSED, "state.v2": STOPPED},
}


def claim_of(connector: str) -> tuple[str, Hashable]:
    """Return the claim of requests about a connector: changes of its state and its offsets exclude each other."""
    return "connector", connector


def state_of(value: Mapping[str, str | None] | None) -> str:
    """Return the state that the value of a target state record names; RUNNING without a record.

    Workers before 3.5 know no STOPPED. So a worker writes PAUSED for them, and its own state as ``state.v2``.
    """
    state = None if value is None else value.get("state.v2") or value.get("state")
    return RUNNING if state in (None, _STARTED) else state


def target_state_of(log: ConnectLog, connector: str) -> str:
    """Return the target state of a connector by the records that ``log`` has read."""
    record = log.record(connector, _key(connector))
    return state_of(None if record is None or record.value is None else json.loads(record.value))


def target_state_record(log: ConnectLog, connector: str, state: str) -> Record:
    """Return the record that gives a connector this target state."""
    return log.new_record(connector, _key(connector), json.dumps(_VALUES[state], separators=(",", ":")).encode())


def _key(connector: str) -> bytes:
    return f"target-state-{connector}".encode()
