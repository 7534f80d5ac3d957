"""The definitions of the views, in DuckDB's SQL. view_queries.py explains them, and has them in Spark's SQL."""

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
}
