"""The definitions of the views, in DuckDB's SQL. view_queries.py explains them, and has them in Spark's SQL."""

from offsets_pipeline.query.lag_view import CONSUMER_LAG

#: Placeholders are the rows of the state tables that count, and the conditions of semantics/answering.py.
VIEWS = {
    "current_offsets": """
        SELECT o.group_id, o.topic, o.partition, o.committed_offset, o.leader_epoch, o.metadata, o.commit_timestamp,
               o.expire_timestamp, o.topic_id, o.log_partition, o.record_offset
        FROM {offsets} o ANTI JOIN (SELECT * FROM {groups} WHERE {hides_offsets}) g USING (log_partition, group_id)
        WHERE o.committed_offset >= 0 AND NOT o.misplaced
    """,
    "unstable_offsets": """
        SELECT p.group_id, p.topic, p.partition, p.producer_id, p.committed_offset AS pending_offset, f.log_partition,
               p.record_offset
        FROM (SELECT log_partition, unnest(pending) AS p FROM {fold_progress}) f
        SEMI JOIN {groups} g
          ON g.group_id = p.group_id AND g.log_partition = f.log_partition AND NOT {hides_offsets}
        WHERE NOT p.misplaced
    """,
    "consumer_groups": """
        SELECT group_id, group_type, state, protocol_type, coalesce(answer.protocol, '') AS assignor,
               answer.generation, answer.group_epoch, answer.assignment_epoch, answer.leader, answer.state_timestamp,
               coalesce(len(answer.members), 0) AS member_count, answer.members, log_partition, record_offset, misplaced
        FROM (SELECT *, CASE WHEN {answers} THEN g END AS answer FROM {groups} g WHERE {is_listed})
    """,
    "group_members": """
        SELECT m.group_id, m.member.member_id, m.member.instance_id, m.member.client_id, m.member.client_host,
               m.member.session_timeout_ms, m.member.rebalance_timeout_ms, m.member.member_epoch,
               m.member.subscribed_topics, m.member.subscribed_regex,
               coalesce(a.assigned.topic, t.topic, a.assigned.topic_id) AS topic, a.assigned.partition
        FROM (SELECT group_id, unnest(members) AS member FROM {groups} WHERE {answers}) m
        LEFT JOIN unnest(m.member.assignment) a(assigned) ON TRUE
        LEFT JOIN {topics} t ON t.topic_id = a.assigned.topic_id
    """,
    "consumer_lag": CONSUMER_LAG,
}

#: As in view_queries.py: `own` are the rows that count in the store, `all` those of it and the stores beside it.
CONNECT_VIEWS = {
    "connector_offsets": """
        SELECT connector, source_partition, answer.value AS source_offset,
               source_partition::JSON::MAP(VARCHAR, VARCHAR) AS source_partition_map,
               answer.value::JSON::MAP(VARCHAR, VARCHAR) AS source_offset_map,
               raw_keys, answer.record_timestamp, answer.log_partition, answer.record_offset
        FROM (
            SELECT connector, source_partition,
                   max_by(o, (record_timestamp IS NOT NULL, record_timestamp, record_offset, log_partition)) AS answer,
                   list(DISTINCT raw_key ORDER BY raw_key) FILTER (value IS NOT NULL) AS raw_keys
            FROM {own} o WHERE record_type = 'offset' GROUP BY connector, source_partition
        )
        WHERE answer.value IS NOT NULL
    """,
    "connectors": """
        SELECT name, CASE WHEN {is_owned} THEN coalesce(nullif(target_state, 'STARTED'), 'RUNNING')
                          ELSE status ->> '$.state' END AS state,
               status ->> '$.worker_id' AS worker_id, task_count, target_state,
               CASE WHEN config IS NULL THEN CASE WHEN has_offsets THEN 'source' END
                    WHEN contains(split_part(connector_class, '.', -1), 'Source') THEN 'source'
                    WHEN contains(split_part(connector_class, '.', -1), 'Sink')
                         OR (config ->> '$.properties.topics') IS NOT NULL
                         OR (config ->> '$.properties."topics.regex"') IS NOT NULL THEN 'sink'
                    ELSE 'source' END AS type,
               CASE WHEN type = 'sink'
                    THEN coalesce(config ->> '$.properties."consumer.override.group.id"', '{prefix}' || name)
               END AS group_id, connector_class
        FROM (
            SELECT connector AS name, count_if(record_type = 'task-status') AS task_count,
                   max_by(value, age) FILTER (record_type = 'connector-config') AS config,
                   max_by(value, age) FILTER (record_type = 'connector-status') AS status,
                   max_by(value, age) FILTER (record_type = 'target-state') AS target,
                   bool_or(record_type = 'offset') AS has_offsets,
                   config ->> '$.properties."connector.class"' AS connector_class,
                   coalesce(target ->> '$."state.v2"', target ->> '$.state') AS target_state
            FROM (SELECT *, (record_timestamp IS NOT NULL, record_timestamp, record_offset) AS age FROM ({all}))
            WHERE value IS NOT NULL AND record_type IN (
                'offset', 'connector-config', 'connector-status', 'target-state', 'task-status'
            )
            GROUP BY connector
        )
        WHERE {exists}
    """,
}
