"""The definitions of the views. Each is one SELECT over the rows of the state tables that count, for Spark and DuckDB.

questions/query/views.py fills them in for Spark, questions/query/local_sql.py for DuckDB. Publishing makes rows by
them, too.

==================  =================================================================================================
current_offsets     one row per committed offset that a fetch answers (R10, R14)
unstable_offsets    one row per pending commit that a read of stable offsets has to wait for (R17)
consumer_groups     one row per listed group (R33, R34); a misplaced group has few columns (R1)
group_members       one row per member and assigned partition; null topic if a member has no assignment
consumer_lag        one row per committed offset, and per assigned partition without one (questions/query/lag_view.py)
==================  =================================================================================================

In a store with a topic of Kafka Connect (connect/connector_views.py, R30):

=================  ==================================================================================================
connector_offsets  one row per source partition with an offset, as JSON and as maps of texts
connectors         one row per connector. Its state is null without the store of `status.storage.topic` beside this
                   one, its type and group without that of `config.storage.topic`
=================  ==================================================================================================

In a store with `__share_group_state` (R39) `share_partitions` has one row per share partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS
from offsets_pipeline.store.delta.schemas import Table, later_tables_of, published_tables_of, tables_of

if TYPE_CHECKING:
    from offsets_pipeline.semantics.topic_kind import TopicKind

#: Placeholders: `offsets` and `groups` that are answered or listed, groups that hide their offsets, tables, CONDITIONS,
#: and those of sql_dialects.py.
VIEWS = {
    # R14: a fetch does not answer the offsets of a dead group, nor a negative committed offset.
    "current_offsets": """
        SELECT /*+ BROADCAST(g) */ o.group_id, o.topic, o.partition, o.committed_offset, o.leader_epoch, o.metadata,
               o.commit_timestamp, o.expire_timestamp, o.topic_id, o.log_partition, o.record_offset
        FROM {offsets} o
        ANTI JOIN {hiding_groups} g ON g.group_id = o.group_id AND g.log_partition = o.log_partition
    """,
    "unstable_offsets": """
        SELECT p.group_id, p.topic, p.partition, p.producer_id, p.committed_offset AS pending_offset, f.log_partition,
               p.record_offset
        FROM (SELECT log_partition, {explode}(pending) AS p FROM {fold_progress}) f
        SEMI JOIN {groups} g
          ON g.group_id = p.group_id AND g.log_partition = f.log_partition AND NOT {hides_offsets}
        WHERE NOT p.misplaced
    """,
    "consumer_groups": """
        SELECT group_id, group_type, state, protocol_type, coalesce(answer.protocol, '') AS assignor,
               answer.generation, answer.group_epoch, answer.assignment_epoch, answer.leader, answer.state_timestamp,
               coalesce({size}(answer.members), 0) AS member_count, answer.members, log_partition, record_offset,
               misplaced
        FROM (
            SELECT *, CASE WHEN {answers} THEN {struct}(
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
            SELECT group_id, member,
                   {explode}(CASE WHEN {size}(member.assignment) > 0 THEN member.assignment ELSE {array}(NULL) END)
                       AS assigned
            FROM (SELECT group_id, {explode}(members) AS member FROM {groups} g WHERE {answers}) e
        ) m
        LEFT JOIN {topics} t ON t.topic_id = m.assigned.topic_id
    """,
}
#: Of a store with `__share_group_state` (R39). `share_partitions` are the facts that count.
SHARE_VIEWS = {
    "share_partitions": """
        SELECT group_id, topic_id, partition, state_epoch, leader_epoch, snapshot_epoch, start_offset,
               delivery_complete_count, state_batches, create_timestamp, write_timestamp, record_timestamp,
               log_partition, record_offset
        FROM {share_partitions} s
        WHERE state_epoch IS NOT NULL
    """,
}
CONDITIONS = {"answers": ANSWERS, "hides_offsets": HIDES_OFFSETS}


def tables_without_view(kind: TopicKind) -> list[Table]:
    """Return the tables of a store without a view of the same name. Tables that the store may lack come last."""
    return [each for each in (*tables_of(kind), *later_tables_of(kind)) if each not in published_tables_of(kind)]
