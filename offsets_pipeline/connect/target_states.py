"""Target states of connectors in an owned log: STOPPED, PAUSED, RUNNING, or DESTROYED once deleted (R32)."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from offsets_pipeline.connect.connector_config import is_deleted
from offsets_pipeline.errors import BadConnectRequest, ConnectorStopped

if TYPE_CHECKING:
    from offsets_pipeline.connect.connect_log import ConnectLog
    from offsets_pipeline.coordinator.owned_log import Record

RUNNING, PAUSED, STOPPED, DESTROYED = "RUNNING", "PAUSED", "STOPPED", "DESTROYED"
TARGET_STATE_PREFIX = b"target-state-"
_STARTED = "STARTED"  # Connect's name of the target state of a running connector
#: As a worker writes it: one before 3.5 takes a stopped connector for a paused one.
_VALUES = {
    RUNNING: {"state": _STARTED, "state.v2": _STARTED},
    PAUSED: {"state": PAUSED, "state.v2": PAUSED},
    STOPPED: {"state": PAUSED, "state.v2": STOPPED},
}
_NO_WRITES = {STOPPED: "is STOPPED; resume it", DESTROYED: "was deleted; configure it again"}


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
    """Return the target state of a connector by the records that ``log`` has read; DESTROYED if it was deleted."""
    if is_deleted(log, connector):
        return DESTROYED
    record = log.record(connector, _key(connector))
    return state_of(None if record is None or record.value is None else json.loads(record.value))


def refuse_writes(log: ConnectLog, connector: str, what: str, since: int | None = None) -> None:
    """Raise ConnectorStopped if the tasks of a connector must not write ``what``: it is STOPPED, or was deleted.

    ``since`` is `ConnectLog.stopped_at` when the task began: the first stop after that ends it, as a worker does.
    """
    state = target_state_of(log, connector)
    if state in _NO_WRITES:
        raise ConnectorStopped(f"cannot write {what}: connector {connector} {_NO_WRITES[state]}")
    if since is not None and log.stopped_at(connector) > since:
        raise ConnectorStopped(
            f"cannot write {what}: connector {connector} was stopped after this task had begun, and its offsets may "
            "have been altered; start the task again at the store's offsets"
        )


def require_stopped(connector: str, state: str | None) -> None:
    """Raise BadConnectRequest, with Connect's message, unless a connector whose offsets are to change is STOPPED."""
    if state != STOPPED:
        raise BadConnectRequest(
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
            f"specified connector by issuing a 'PUT' request to the '/connectors/{connector}/stop' endpoint"
        )


def ends_tasks(value: str | None) -> bool:
    """Whether a target state record with this value ends the tasks of its connector: a stop, or a deletion."""
    return value is None or state_of(json.loads(value)) == STOPPED


def target_state_record(log: ConnectLog, connector: str, state: str | None) -> Record:
    """Return the record that gives a connector this target state; None deletes the state."""
    value = None if state is None else json.dumps(_VALUES[state], separators=(",", ":")).encode()
    return log.new_record(connector, _key(connector), value)


def _key(connector: str) -> bytes:
    return TARGET_STATE_PREFIX + connector.encode()
