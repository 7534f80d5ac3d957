"""Target states of connectors in an owned log: STOPPED, PAUSED, or RUNNING (R32)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from offsets_pipeline.connect.connector_offsets import state_of, target_state
from offsets_pipeline.coordinator.owned_log import Record

if TYPE_CHECKING:
    from collections.abc import Hashable

    from offsets_pipeline.connect.connect_log import ConnectLog

RUNNING, PAUSED, STOPPED = "RUNNING", "PAUSED", "STOPPED"
_STARTED = "STARTED"  # Connect's name of the target state of a running connector
#: As a worker writes it: one before 3.5 takes a stopped connector for a paused one.
_VALUES = {
    RUNNING: {"state": _STARTED, "state.v2": _STARTED},
    PAUSED: {"state": PAUSED, "state.v2": PAUSED},
    STOPPED: {"state": PAUSED, "state.v2": STOPPED},
}


def claim_of(connector: str) -> Hashable:
    """Return the claim of requests about a connector: changes of its state and its offsets exclude each other."""
    return "connector", connector


def target_state_of(log: ConnectLog, connector: str) -> str:
    """The target state of a connector by the records that ``log`` has read; RUNNING without a record."""
    record = log.record(connector, _key(connector))
    value = None if record is None or record.value is None else json.loads(record.value)
    return state_of(target_state(value))


def target_state_record(log: ConnectLog, connector: str, state: str) -> Record:
    """The record that gives a connector this target state."""
    value = json.dumps(_VALUES[state], separators=(",", ":")).encode()
    return Record(log.store.partition_for(connector), _key(connector), value)


def _key(connector: str) -> bytes:
    return f"target-state-{connector}".encode()
