"""Lists the connectors of a worker and their offsets, without Spark (R30, R32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from offsets_pipeline.connect.connector_offsets import sink_answer, sink_group, source_answer
from offsets_pipeline.connect.target_states import require_stopped
from offsets_pipeline.errors import NoSuchConnector, StoreMismatch
from offsets_pipeline.fold.state.merge_on_read import CONNECT
from offsets_pipeline.fold.state.published_rows import connect_rows
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.semantics.connect_keys import ConnectRecordType
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.reader import names_in_order

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.state_reader import StateReader

#: Columns of the view `connectors`, in the order of ConnectorInfo.
_OF_VIEW = ("name", "type", "state", "worker_id", "target_state", "task_count", "group_id")


@dataclass(frozen=True)
class ConnectorInfo:
    """A connector. A field is None if no store has it.

    ``tasks`` counts the tasks with a state, ``offsets`` the source partitions with an offset; None of a sink.
    """

    name: str
    type: str | None = None
    state: str | None = None
    worker_id: str | None = None
    target_state: str | None = None
    tasks: int = 0
    group_id: str | None = None
    offsets: int | None = None


def list_connectors(readers: Sequence[StateReader]) -> list[ConnectorInfo]:
    """Return the connectors of a worker by name, from the stores of its topics.

    A store of configurations has all connectors. Without it, a connector counts if it has a state or an offset.
    """
    stores = [(reader.properties.topic_kind, reader.current.newest(CONNECT, CONNECT.columns)) for reader in readers]
    offsets = Counter(
        chain.from_iterable(connect_rows("connector_offsets", [each])["connector"].to_pylist() for each in stores)
    )
    has_offsets = any(kind in (TopicKind.CONNECT_OFFSETS, TopicKind.CONNECT) for kind, _ in stores)

    def count(row: Mapping[str, Any]) -> int | None:
        return offsets[row["name"]] if has_offsets and row["type"] != "sink" else None

    rows = connect_rows("connectors", stores).to_pylist()
    return [ConnectorInfo(*(*(row[name] for name in _OF_VIEW), count(row))) for row in rows]


def describe_connector(reader: StateReader, connector: str, configs: StateReader | None = None) -> dict[str, list[Any]]:
    """The answer to `GET /connectors/{connector}/offsets`.

    A store of a topic of Connect answers for source connectors. A store of `__consumer_offsets` answers for sink
    connectors, by the connector's group. ``configs`` reads the store of `config.storage.topic`: it has the connectors
    that were not deleted, and the group of a sink connector with `consumer.override.group.id`.

    Raises NoSuchConnector if no log has a record of the connector, or ``configs`` has no configuration of it,
    StoreMismatch for a store of another kind, and for a sink's group that is a reference.
    """
    kinds = TopicKind.CONNECT_OFFSETS, TopicKind.CONNECT, TopicKind.CONSUMER_OFFSETS
    reader.properties.require_topic_kind(reader.location, *kinds)
    config = None if configs is None else _config(configs, connector)
    if reader.properties.topic_kind is not TopicKind.CONSUMER_OFFSETS:
        return _described_source(reader, connector, config)
    group_id = sink_group(connector) if config is None else _group_of(config)
    groups = describe_groups(reader, [group_id])
    offsets = groups[group_id].offsets if group_id in groups else []
    return sink_answer({(each.topic, each.partition): each.offset for each in offsets})


def stopped_sink_group(connector: str, configs: StateReader) -> str:
    """The group of a sink connector whose offsets are to change, by the store of `config.storage.topic`.

    Raises NoSuchConnector, StoreMismatch for a source connector and a group that is a reference, BadConnectRequest if
    the connector is not STOPPED.
    """
    config = _config(configs, connector)
    group_id = _group_of(config)
    require_stopped(connector, config.target_state)
    return group_id


def _group_of(config: ConnectorInfo) -> str:
    if config.type != "sink":
        raise StoreMismatch(
            f"{config.name} is a source connector: its offsets are in offset.storage.topic, not in a consumer group"
        )
    if config.group_id is None:
        raise StoreMismatch(
            f"consumer.override.group.id of {config.name} is a reference, which only its worker resolves; name the "
            "group itself, to offsets describe or offsets reset-offsets"
        )
    return config.group_id


def _described_source(reader: StateReader, connector: str, config: ConnectorInfo | None) -> dict[str, list[Any]]:
    if config is not None and config.type == "sink":
        raise StoreMismatch(
            f"{connector} is a sink connector: its offsets are those of the group {_group_of(config)}; "
            "name the store of __consumer_offsets"
        )
    kind, only = reader.properties.topic_kind, {"connector": names_in_order([connector])}
    rows = reader.current.newest(CONNECT, CONNECT.columns, only)
    last = set(zip(rows["record_type"].to_pylist(), rows["value"].to_pylist(), strict=True))
    if kind is TopicKind.CONNECT:  # a record of any type, unless the connector was deleted
        exists = bool(last) and (str(ConnectRecordType.CONNECTOR_CONFIG), None) not in last
    else:
        exists = config is not None or str(ConnectRecordType.OFFSET) in {record_type for record_type, _ in last}
    if not exists:
        raise NoSuchConnector(
            f"Connector {connector} not found: {reader.location} has no offsets of it, or it was deleted"
        )
    offsets = connect_rows("connector_offsets", [(kind, rows)]).select(["source_partition", "source_offset"])
    return source_answer(zip(*(each.to_pylist() for each in offsets.columns), strict=True))


def _config(reader: StateReader, connector: str) -> ConnectorInfo:
    """A connector in a store of `config.storage.topic`.

    Raises NoSuchConnector, StoreMismatch for a store of another kind.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONNECT_CONFIGS)
    found = next((each for each in list_connectors([reader]) if each.name == connector), None)
    if found is None:
        raise NoSuchConnector(f"Connector {connector} not found: {reader.location} has no configuration of it")
    return found
