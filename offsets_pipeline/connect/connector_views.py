"""The views `connector_offsets` and `connectors` (R30), for Spark and DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from offsets_pipeline.connect.connector_offsets import SINK_GROUP_PREFIX
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED, StoreProperties, beside


class _HasProperties(Protocol):
    """A store, or a reader of one."""

    @property
    def properties(self) -> StoreProperties: ...


_Store = TypeVar("_Store", bound=_HasProperties)

#: Whether a setting is a reference such as ${env:GROUP}, which only the worker resolves. Spark would substitute `${`.
_IS_REFERENCE = "coalesce(settings['consumer.override.group.id'] LIKE ('%$' || '{{%:%}}%'), FALSE)"

_OFFSETS = """
    SELECT connector, source_partition, answer.value AS source_offset,
           from_json(source_partition, '{texts}') AS source_partition_map,
           from_json(answer.value, '{texts}') AS source_offset_map,
           raw_keys, answer.record_timestamp, answer.log_partition, answer.record_offset
    FROM (
        SELECT connector, source_partition,
               max_by({struct}(value, record_timestamp, log_partition, record_offset),
                      {row}({age}, log_partition))
                   AS answer,
               array_sort(array_agg(DISTINCT raw_key) FILTER (WHERE value IS NOT NULL)) AS raw_keys
        FROM {own} o WHERE record_type = 'offset' GROUP BY connector, source_partition
    ) i
    WHERE answer.value IS NOT NULL
"""
#: `own` are the rows of `connect_records` that count in the store, `all` those of it and the stores beside it. Other
#: placeholders: those of `connect_conditions` and sql_dialects.py.
CONNECT_VIEWS = {
    "connector_offsets": _OFFSETS,
    "connectors": """
        SELECT name,
               CASE WHEN {is_owned} THEN coalesce(nullif(target_state, 'STARTED'), 'RUNNING')
                    ELSE {json_text}(status, '$.state') END AS state,
               {json_text}(status, '$.worker_id') AS worker_id, task_count, target_state,
               CASE WHEN config IS NULL THEN CASE WHEN has_offsets THEN 'source' END
                    WHEN contains(class_name, 'Source') OR class_name LIKE 'MirrorCheckpoint%'
                         OR class_name LIKE 'MirrorHeartbeat%' THEN 'source'
                    WHEN contains(class_name, 'Sink')
                         OR settings['topics'] IS NOT NULL OR settings['topics.regex'] IS NOT NULL THEN 'sink'
                    ELSE 'source' END AS type,
               CASE WHEN type = 'sink' AND NOT {is_reference}
                    THEN coalesce(nullif(settings['consumer.override.group.id'], ''), '{prefix}' || name)
               END AS group_id,
               connector_class
        FROM (
            SELECT *, from_json({json_object}(config, '$.properties'), '{texts}') AS settings,
                   settings['connector.class'] AS connector_class,
                   split_part(connector_class, '.', -1) AS class_name,
                   from_json(target, '{texts}') AS targets,
                   coalesce(targets['state.v2'], targets['state'], CASE WHEN config IS NOT NULL THEN 'STARTED' END)
                       AS target_state
            FROM (
                SELECT connector AS name, count_if(record_type = 'task-status') AS task_count,
                       max_by(value, age) FILTER (WHERE record_type = 'connector-config' AND value IS NOT NULL)
                           AS config,
                       max_by(value, age) FILTER (WHERE record_type = 'connector-status') AS status,
                       max_by(value, age) FILTER (WHERE record_type = 'target-state') AS target,
                       bool_or(record_type = 'offset') AS has_offsets,
                       bool_or(record_type = 'connector-config' AND value IS NULL) AS is_deleted
                FROM (
                    SELECT *, {row}({age}) AS age
                    FROM (
                        SELECT connector, record_type, value, record_timestamp, record_offset FROM ({all}) a
                        WHERE record_type = 'connector-config' OR value IS NOT NULL AND record_type IN (
                            'connector-status', 'target-state', 'task-status'
                        )
                        UNION ALL
                        SELECT connector, 'offset' AS record_type, source_offset AS value, record_timestamp,
                               record_offset
                        FROM ({offsets}) o
                    ) k
                ) r
                GROUP BY connector
            ) c
            WHERE {exists}
        ) t
    """.replace("{offsets}", _OFFSETS.replace("{own}", "({all})")).replace("{is_reference}", _IS_REFERENCE),
}


def stores_beside(location: str, properties: StoreProperties, find: Callable[[str], _Store | None]) -> list[_Store]:
    """The stores of a worker's other topics beside a store: those that exist, and are of the right kind.

    An owned store has none: its own log has all kinds of records. ``find`` opens a store, or returns None.
    """
    if properties.kind == OWNED or not properties.topic_kind.is_connect:
        return []
    kinds = TopicKind.CONNECT_STATUS, TopicKind.CONNECT_CONFIGS
    found = ((find(other), kind) for other, kind in zip(beside(location), kinds, strict=True))
    return [store for store, kind in found if store is not None and store.properties.topic_kind is kind]


def connect_conditions(kinds: Sequence[TopicKind]) -> dict[str, str]:
    """Values of the placeholders of CONNECT_VIEWS that name no table.

    ``kinds`` are the kinds of topic of the store and of the stores beside it.

    A topic of configurations has all connectors. Without it a connector counts if it has a state or an offset. An owned
    store has no worker: a connector's target state is its state, and it exists from its first record to its deletion.
    Record timestamps order the records of a worker's topics, record offsets those of an owned store (R30).
    """
    is_owned = TopicKind.CONNECT in kinds
    exists = "status IS NOT NULL OR has_offsets"
    if is_owned:
        exists = "NOT is_deleted"
    elif TopicKind.CONNECT_CONFIGS in kinds:
        exists = "config IS NOT NULL"
    age = "record_offset" if is_owned else "record_timestamp IS NOT NULL, record_timestamp, record_offset"
    return {"exists": exists, "prefix": SINK_GROUP_PREFIX, "is_owned": str(is_owned), "age": age}
