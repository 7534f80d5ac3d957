"""The definitions of the views, in Spark SQL. Each is one SELECT over the rows of the state tables that count.

views.py and connect_views.py fill them in. state/duckdb_views.py has them in DuckDB's SQL.

==================  =================================================================================================
current_offsets     one row per committed offset that a fetch answers (R10, R14)
unstable_offsets    one row per pending commit that a read of stable offsets has to wait for (R17)
consumer_groups     one row per listed group (R33, R34); a misplaced group has few columns (R1)
group_members       one row per member and assigned partition; null topic if a member has no assignment
consumer_lag        one row per committed offset, and per assigned partition without one (lag_view.py)
==================  =================================================================================================

In a store with a topic of Kafka Connect (R30):

=================  ==================================================================================================
connector_offsets  one row per source partition with an offset, as JSON and as maps of texts
connectors         one row per connector. Its state is null without the store of `status.storage.topic` beside this
                   one, its type and group without that of `config.storage.topic`
=================  ==================================================================================================
"""

#: Placeholders: `offsets` and `groups` that are answered or listed, groups that hide their offsets, tables, and the
#: conditions of semantics/answering.py.
VIEWS = {
    # R14: a fetch does not answer the offsets of a dead group, nor a negative committed offset.
    "current_offsets": """
        SELECT /*+ BROADCAST(g) */ o.group_id, o.topic, o.partition, o.committed_offset, o.leader_epoch, o.metadata,
               o.commit_timestamp, o.expire_timestamp, o.topic_id, o.log_partition, o.record_offset
        FROM {offsets} o
        LEFT ANTI JOIN {hiding_groups} g ON g.group_id = o.group_id AND g.log_partition = o.log_partition
    """,
    "unstable_offsets": """
        SELECT p.group_id, p.topic, p.partition, p.producer_id, p.committed_offset AS pending_offset, f.log_partition,
               p.record_offset
        FROM (SELECT log_partition, explode(pending) AS p FROM {fold_progress}) f
        LEFT SEMI JOIN {groups} g
          ON g.group_id = p.group_id AND g.log_partition = f.log_partition AND NOT {hides_offsets}
        WHERE NOT p.misplaced
    """,
    "consumer_groups": """
        SELECT group_id, group_type, state, protocol_type, coalesce(answer.protocol, '') AS assignor,
               answer.generation, answer.group_epoch, answer.assignment_epoch, answer.leader, answer.state_timestamp,
               coalesce(size(answer.members), 0) AS member_count, answer.members, log_partition, record_offset,
               misplaced
        FROM (
            SELECT *, CASE WHEN {answers} THEN struct(
                protocol, generation, group_epoch, assignment_epoch, leader, state_timestamp, members
            ) END AS answer
            FROM {groups} g
        ) l
    """,
    "group_members": """
        SELECT m.group_id, m.member.member_id, m.member.instance_id, m.member.client_id, m.member.client_host,
               m.member.session_timeout_ms, m.member.rebalance_timeout_ms, m.member.member_epoch,
               m.member.subscribed_topics, m.member.subscribed_regex,
               coalesce(m.assigned.topic, t.topic, m.assigned.topic_id) AS topic, m.assigned.partition
        FROM (
            SELECT group_id, member, assigned
            FROM {groups} g LATERAL VIEW explode(members) AS member
            LATERAL VIEW OUTER explode(member.assignment) AS assigned
            WHERE {answers}
        ) m
        LEFT JOIN {topics} t ON t.topic_id = m.assigned.topic_id
    """,
}

#: `own` are the rows of `connect_records` that count in the store, `all` those of it and the stores beside it.
CONNECT_VIEWS = {
    "connector_offsets": """
        SELECT connector, source_partition, answer.value AS source_offset,
               from_json(source_partition, 'map<string,string>') AS source_partition_map,
               from_json(answer.value, 'map<string,string>') AS source_offset_map,
               raw_keys, answer.record_timestamp, answer.log_partition, answer.record_offset
        FROM (
            SELECT connector, source_partition,
                   max_by(struct(value, record_timestamp, log_partition, record_offset),
                          struct(record_timestamp IS NOT NULL, record_timestamp, record_offset, log_partition))
                       AS answer,
                   sort_array(collect_set(CASE WHEN value IS NOT NULL THEN raw_key END)) AS raw_keys
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
                   coalesce(get_json_object(target, "$['state.v2']"), get_json_object(target, '$.state'))
                       AS target_state,
                   CASE WHEN {is_owned} THEN coalesce(nullif(target_state, 'STARTED'), 'RUNNING')
                        ELSE get_json_object(status, '$.state') END AS state,
                   get_json_object(status, '$.worker_id') AS worker_id, task_count,
                   connector_class,
                   CASE WHEN config IS NULL THEN CASE WHEN has_offsets THEN 'source' END
                        WHEN contains(substring_index(connector_class, '.', -1), 'Source') THEN 'source'
                        WHEN contains(substring_index(connector_class, '.', -1), 'Sink')
                             OR get_json_object(config, '$.properties.topics') IS NOT NULL
                             OR get_json_object(config, "$.properties['topics.regex']") IS NOT NULL THEN 'sink'
                        ELSE 'source' END AS type
            FROM (
                SELECT connector,
                       max_by(value, age) FILTER (WHERE record_type = 'connector-config') AS config,
                       max_by(value, age) FILTER (WHERE record_type = 'connector-status') AS status,
                       max_by(value, age) FILTER (WHERE record_type = 'target-state') AS target,
                       count_if(record_type = 'task-status') AS task_count,
                       coalesce(bool_or(record_type = 'offset'), FALSE) AS has_offsets,
                       get_json_object(
                           max_by(value, age) FILTER (WHERE record_type = 'connector-config'),
                           "$.properties['connector.class']"
                       ) AS connector_class
                FROM (
                    SELECT *, struct(record_timestamp IS NOT NULL, record_timestamp, record_offset) AS age
                    FROM ({all}) a
                    WHERE value IS NOT NULL
                          AND record_type IN ('offset', 'connector-config', 'connector-status', 'target-state',
                                              'task-status')
                ) r
                GROUP BY connector
            ) c
            WHERE {exists}
        ) t
    """,
}
