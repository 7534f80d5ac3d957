"""Offsets and states of connectors of an owned store, in the shape of KIP-875 (R32)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from offsets_pipeline.connect.connect_log import TIMEOUT_MS, Answer, ConnectLog
from offsets_pipeline.connect.connector_config import SOURCE, config_of, config_record, validated_config
from offsets_pipeline.connect.connector_offsets import source_answer
from offsets_pipeline.connect.target_states import (
    DESTROYED,
    STOPPED,
    claim_of,
    require_stopped,
    target_state_of,
    target_state_record,
)
from offsets_pipeline.coordinator.appender import EXCLUSIVE
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import BadConnectRequest, ConnectorExists, NoSuchConnector, StoreMismatch
from offsets_pipeline.semantics.connect_keys import ConnectRecordType, canonical_json, offset_key, offset_value

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.owned_log import Record

ALTERED = "The offsets for this connector have been altered successfully"
RESET = "The offsets for this connector have been reset successfully"
NOTHING_GIVEN = "Partitions / offsets need to be provided for an alter offsets request"


class OffsetManagement:
    """Requests about connectors; a connector exists from its first record on, a deleted one from its configuration on.

    Each method raises NoSuchConnector for an unknown connector, RequestTimedOut, CoordinatorNotAvailable. A request
    waits up to ``timeout_ms`` for its append.
    """

    def __init__(self, log: ConnectLog, timeout_ms: float = TIMEOUT_MS) -> None:
        self._log = log
        self._timeout_ms = timeout_ms

    def target_states(self) -> dict[str, str]:
        """The target state of each connector, by name."""

        def found() -> dict[str, str]:
            states = {name: target_state_of(self._log, name) for name in self._log.connectors()}
            return {name: state for name, state in states.items() if state != DESTROYED}

        return self._log.read(found)

    def offsets(self, connector: str) -> dict[str, Any]:
        """The answer to `GET /connectors/{connector}/offsets`, in any state."""
        offsets = self._read(connector, lambda: self._log.offsets(connector))
        return source_answer((each.source_partition, each.source_offset) for each in offsets)

    def info(self, connector: str) -> dict[str, Any]:
        """The answer to `GET /connectors/{connector}`. No tasks run here."""
        return _info(connector, self._read(connector, lambda: config_of(self._log, connector)))

    def status(self, connector: str, worker_id: str) -> dict[str, Any]:
        """The answer to `GET /connectors/{connector}/status`: the target state, with this worker's address."""
        otherwise = f"No status found for connector {connector}"
        state = self._read(connector, lambda: target_state_of(self._log, connector), otherwise)
        connector_state = {"state": state, "worker_id": worker_id}
        return {"name": connector, "connector": connector_state, "tasks": [], "type": SOURCE}

    def put_config(
        self,
        connector: str,
        settings: Mapping[str, str | None],
        target_state: str | None = None,
        *,
        allow_replace: bool = True,
    ) -> tuple[bool, dict[str, Any]]:
        """Create or configure a connector, as `PUT /connectors/{connector}/config`, or as `POST /connectors`.

        Returns whether this is its first configuration, and the answer. Idempotent. A ``target_state`` other than None
        is set, too.

        Raises BadConnectRequest for wrong settings, and for secrets in clear text; ConnectorExists if the connector has
        a configuration and ``allow_replace`` is false.
        """
        config = validated_config(connector, settings)

        def handler(_: int) -> Outcome[bool]:
            known = config_of(self._log, connector)
            if known is not None and not allow_replace:
                raise ConnectorExists(f"Connector {connector} already exists")
            records = [] if target_state is None else [target_state_record(self._log, connector, target_state)]
            if known != config:
                records.append(config_record(self._log, connector, config))
            return Outcome(records, known is None)

        created = bool(self._call(f"the configuration of connector {connector}", connector, handler))
        return created, _info(connector, config)

    def set_target_state(self, connector: str, state: str) -> None:
        """Set the target state of a connector: RUNNING, PAUSED or STOPPED. Idempotent."""

        def handler(_: int) -> Outcome[None]:
            self._require(connector, f"Unknown connector {connector}")
            is_new = target_state_of(self._log, connector) != state
            return Outcome([target_state_record(self._log, connector, state)] if is_new else [], None)

        self._call(f"the state {state} of connector {connector}", connector, handler)

    def delete(self, connector: str) -> None:
        """Delete configuration and target state of a connector, as `DELETE /connectors/{connector}`.

        Its offsets stay: a connector that is created with the same name resumes at them. Its tasks write no more.
        """

        def handler(_: int) -> Outcome[None]:
            self._require(connector)
            deleted = config_record(self._log, connector, None), target_state_record(self._log, connector, None)
            return Outcome(list(deleted), None)

        self._call(f"the deletion of connector {connector}", connector, handler)

    def alter(self, connector: str, offsets: Iterable[Mapping[str, Any]], *, creates: bool = False) -> str:
        """Add and replace offsets as `PATCH` does; returns Connect's message. An offset of None deletes one.

        ``offsets`` are pairs of ``partition`` and ``offset``. Offsets of other source partitions stay. With ``creates``
        an unknown connector is created.

        Raises BadConnectRequest if there are no offsets, or the connector is not STOPPED.
        """
        wanted = {canonical_json(each["partition"]): each["offset"] for each in offsets}

        def handler(_: int) -> Outcome[str]:
            if not wanted:
                raise BadConnectRequest(NOTHING_GIVEN)
            records: list[Record] = []
            if not (creates and self._is_new(connector)):
                self._require_stopped(connector)
                records = [self._stopped_again(connector)]
            known = {each.source_partition: each for each in self._log.offsets(connector)}
            for partition, offset in wanted.items():
                own = offset_key(connector, json.loads(partition))
                others = {key.encode() for key in known[partition].raw_keys} - {own} if partition in known else ()
                records += [self._log.new_record(connector, key, None) for key in others]
                records.append(self._log.new_record(connector, own, offset_value(offset)))
            return Outcome(records, ALTERED)

        return str(self._call(f"an alteration of offsets of connector {connector}", connector, handler))

    def reset(self, connector: str) -> str:
        """Delete all offsets as `DELETE` does; returns Connect's message. Idempotent.

        Raises BadConnectRequest if the connector is not STOPPED.
        """

        def handler(_: int) -> Outcome[str]:
            self._require_stopped(connector)
            records = []
            for raw_key, each in self._log.records(connector):
                if each.value is not None and each.key.record_type is ConnectRecordType.OFFSET:
                    records.append(self._log.new_record(connector, raw_key.encode(), None))
                elif each.value is not None and each.key.record_type is ConnectRecordType.TASK_FLUSH:
                    note = canonical_json({**json.loads(each.value), "reset": True})
                    records.append(self._log.new_record(connector, raw_key.encode(), note.encode()))
            return Outcome([self._stopped_again(connector), *records] if records else [], RESET)

        return str(self._call(f"a reset of offsets of connector {connector}", connector, handler))

    def _read(self, connector: str, answer: Callable[[], Answer], otherwise: str | None = None) -> Answer:
        def found() -> Answer:
            self._require(connector, otherwise)
            return answer()

        return self._log.read(found)

    def _call(self, what: str, connector: str, handler: Callable[[int], Outcome[Any]]) -> Any:  # noqa: ANN401
        return self._log.submit(what, handler, {claim_of(connector): EXCLUSIVE}, self._timeout_ms).result()

    def _is_new(self, connector: str) -> bool:
        return next(self._log.records(connector), None) is None

    def _require(self, connector: str, otherwise: str | None = None) -> None:
        if self._is_new(connector) or target_state_of(self._log, connector) == DESTROYED:
            raise NoSuchConnector(otherwise or f"Connector {connector} not found")

    def _require_stopped(self, connector: str) -> None:
        self._require(connector)
        require_stopped(connector, target_state_of(self._log, connector))

    def _stopped_again(self, connector: str) -> Record:
        """The state of a STOPPED connector once more: it ends tasks that began after the stop."""
        return target_state_record(self._log, connector, STOPPED)


def _info(connector: str, config: dict[str, str] | None) -> dict[str, Any]:
    return {"name": connector, "config": config or {"name": connector}, "tasks": [], "type": SOURCE}


class OffsetManagementClient:
    """Offsets by cluster and group; a source connector's group has the connector's name.

    A store belongs to one cluster. Each method raises StoreMismatch for another.
    """

    def __init__(self, log: ConnectLog) -> None:
        self._log = log
        self._management = OffsetManagement(log)

    def get_offsets(self, cluster_id: str, group_id: str) -> list[dict[str, Any]]:
        """The offsets of a group, as pairs of ``partition`` and ``offset``. Raises NoSuchConnector."""
        self._require(cluster_id)
        return list(self._management.offsets(group_id)["offsets"])

    def commit_offsets(self, cluster_id: str, group_id: str, offsets: Iterable[Mapping[str, Any]]) -> None:
        """Commit offsets of a group, as `OffsetManagement.alter`; those of an unknown group create it."""
        self._require(cluster_id)
        self._management.alter(group_id, offsets, creates=True)

    def _require(self, cluster_id: str) -> None:
        known = self._log.store.properties.cluster_id
        if cluster_id != known:
            raise StoreMismatch(
                f"{self._log.store.location} has the offsets of cluster {known}, not of {cluster_id}; name its store"
            )
