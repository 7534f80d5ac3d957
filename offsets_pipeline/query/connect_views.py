"""The views of a store with a topic of Kafka Connect (R30).

=================  ==================================================================================================
connector_offsets  one row per source partition with an offset, as JSON and as maps of texts
connectors         one row per connector. Its state is null without the store of `status.storage.topic` beside this
                   one, its type and group without that of `config.storage.topic`
=================  ==================================================================================================
"""

from __future__ import annotations

from offsets_pipeline.connect.connector_offsets import SINK_GROUP_PREFIX
from offsets_pipeline.delta.properties import beside
from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.state.merge_on_read import CONNECT, compacted_to_by, named_by
from offsets_pipeline.store import Store

_VIEWS = {
    "connector_offsets": """
        SELECT connector, source_partition, answer.value AS source_offset,
               from_json(source_partition, 'map<string,string>') AS source_partition_map,
               from_json(answer.value, 'map<string,string>') AS source_offset_map,
               raw_keys, answer.record_timestamp, answer.log_partition, answer.record_offset
        FROM (
            SELECT connector, source_partition,
                   max_by(struct(value, record_timestamp, log_partition, record_offset),
                          struct(record_timestamp, record_offset, log_partition)) AS answer,
                   sort_array(collect_set(raw_key) FILTER (WHERE value IS NOT NULL)) AS raw_keys
            FROM {own} o WHERE record_type = 'offset' GROUP BY connector, source_partition
        ) i
        WHERE answer.value IS NOT NULL
    """,
    "connectors": """
        SELECT name, state, worker_id, task_count, target_state, type,
               CASE WHEN type = 'sink' THEN
                   coalesce(get_json_object(config, "$.properties['consumer.override.group.id']"), '{prefix}' || name)
               END AS group_id, connector_class
        FROM (
            SELECT connector AS name, config,
                   get_json_object(status, '$.state') AS state, get_json_object(status, '$.worker_id') AS worker_id,
                   task_count,
                   coalesce(get_json_object(target, "$['state.v2']"), get_json_object(target, '$.state'))
                       AS target_state,
                   connector_class,
                   CASE WHEN config IS NULL THEN CASE WHEN has_offsets THEN 'source' END
                        WHEN contains(substring_index(connector_class, '.', -1), 'Source') THEN 'source'
                        WHEN contains(substring_index(connector_class, '.', -1), 'Sink')
                             OR get_json_object(config, '$.properties.topics') IS NOT NULL
                             OR get_json_object(config, "$.properties['topics.regex']") IS NOT NULL THEN 'sink'
                        ELSE 'source' END AS type
            FROM (
                SELECT connector,
                       max_by(value, record_timestamp) FILTER (WHERE record_type = 'connector-config') AS config,
                       max_by(value, record_timestamp) FILTER (WHERE record_type = 'connector-status') AS status,
                       max_by(value, record_timestamp) FILTER (WHERE record_type = 'target-state') AS target,
                       count_if(record_type = 'task-status') AS task_count,
                       coalesce(bool_or(record_type = 'offset'), FALSE) AS has_offsets,
                       get_json_object(
                           max_by(value, record_timestamp) FILTER (WHERE record_type = 'connector-config'),
                           "$.properties['connector.class']"
                       ) AS connector_class
                FROM ({all}) a WHERE value IS NOT NULL AND connector <> '' GROUP BY connector
            ) c
            WHERE {exists}
        ) t
    """,
}
#: A topic of configurations says which connectors there are. Without it those count that have a state or an offset.
_EXISTS = {True: "config IS NOT NULL", False: "status IS NOT NULL OR has_offsets OR config IS NOT NULL"}


def connect_views(store: Store) -> dict[str, str]:
    """The queries of the views by name; views read the stores beside this one that exist now."""
    others = [Store.find(store.spark, location) for location in beside(store.location)]
    stores = [store, *(each for each in others if each is not None and each.properties.topic_kind.is_connect)]
    knows_configs = any(each.properties.topic_kind is TopicKind.CONNECT_CONFIGS for each in stores)
    names = {
        "own": f"({_rows(store)})",
        "all": " UNION ALL ".join(f"SELECT * FROM ({_rows(each)})" for each in stores),
        "exists": _EXISTS[knows_configs],
        "prefix": SINK_GROUP_PREFIX,
    }
    return {name: query.format(**names) for name, query in _VIEWS.items()}


def _rows(store: Store) -> str:
    """SQL of the rows of `connect_records` that count."""
    progress = store.table_name(FOLD_PROGRESS.name)
    return CONNECT.newest_in_spark(
        store.table_name(CONNECT.name), named_by(progress), compacted_to_by(progress, CONNECT)
    )
