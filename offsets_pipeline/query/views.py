"""The views for users. Each is one SELECT over the state tables. connect_views.py has those of Kafka Connect.

==================  =================================================================================================
current_offsets     one row per committed offset that a fetch answers (R10, R14)
unstable_offsets    one row per pending commit that a read of stable offsets has to wait for (R17)
consumer_groups     one row per listed group (R33, R34); a misplaced group has few columns (R1)
group_members       one row per member and assigned partition; null topic if a member has no assignment
consumer_lag        one row per committed offset, and per assigned partition without one (lag_view.py)
log_records, ...    history_views.py: in a session only, not in a catalog
==================  =================================================================================================
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import FOLD_PROGRESS, TABLES, TOPIC_OFFSETS
from offsets_pipeline.errors import NoSuchStore
from offsets_pipeline.query.connect_views import connect_views
from offsets_pipeline.query.history_views import history_views
from offsets_pipeline.query.lag_view import CONSUMER_LAG, NO_SAMPLES, STEPS
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS, IS_LISTED
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS, compacted_to_by, named_by
from offsets_pipeline.store import Store, sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEWS = {
    # R14: a fetch does not answer the offsets of a dead group, nor a negative committed offset. coalesce keeps this
    # filter out of the Parquet reader, in which it takes as long as all the rest of an aggregate.
    "current_offsets": """
        SELECT /*+ BROADCAST(g) */ o.group_id, o.topic, o.partition, o.committed_offset, o.leader_epoch, o.metadata,
               o.commit_timestamp, o.expire_timestamp, o.topic_id, o.log_partition, o.record_offset
        FROM {committed_offsets} o
        LEFT ANTI JOIN (
            SELECT /*+ BROADCAST(h) */ log_partition, group_id FROM {all_groups}
            LEFT SEMI JOIN (SELECT log_partition, group_id FROM {all_groups} WHERE {named} AND {hides_offsets}) h
              USING (log_partition, group_id)
            WHERE {named} GROUP BY log_partition, group_id HAVING max_by({hides_offsets}, record_offset)
        ) g ON g.group_id = o.group_id AND g.log_partition = o.log_partition
        WHERE coalesce(o.committed_offset, -1) >= 0 AND NOT coalesce(o.misplaced, FALSE)
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
               coalesce(size(answer.members), 0) AS member_count, log_partition, record_offset, misplaced
        FROM (
            SELECT *, CASE WHEN {answers} THEN struct(
                protocol, generation, group_epoch, assignment_epoch, leader, state_timestamp, members
            ) END AS answer
            FROM {groups} g
            WHERE {is_listed}
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


def register_views(spark: SparkSession, store: str) -> None:
    """Register the views and the tables of a store in this session; ``store`` is a folder or schema:NAME.

    Raises NoSuchStore or NotAStore.
    """
    opened = Store.open(spark, store)
    for table in opened.tables:
        opened.read(table.name).createOrReplaceTempView(table.name)
    if not opened.properties.topic_kind.is_connect:
        spark.sql(f"SELECT * FROM {_samples(opened)} t").createOrReplaceTempView(TOPIC_OFFSETS.name)
    for name, query in _queries(opened).items():
        spark.sql(query).createOrReplaceTempView(name)
    if not opened.properties.topic_kind.is_connect:
        for name, rows in history_views(opened).items():
            rows.createOrReplaceTempView(name)


def create_views(spark: SparkSession, store: str, schema: str) -> list[str]:
    """Create the views in a schema of the session's catalog, for every session that uses this catalog.

    Leaves out the views of history: Python computes them.

    Returns their names. The views contain the store's folder or schema: create them again after you move the store.

    Raises NoSuchStore or NotAStore. Raises NoSuchStore also if ``schema`` is not a valid name.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", schema):
        raise NoSuchStore(f"{schema!r} is not a valid name of a schema: use letters, digits, _ and dots")
    queries = _queries(Store.open(spark, store))
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for name, query in queries.items():
        spark.sql(f"CREATE OR REPLACE VIEW {schema}.{name} AS {query}")
    return list(queries)


def _queries(store: Store) -> dict[str, str]:
    if store.properties.topic_kind.is_connect:
        return connect_views(store)
    names = {table.name: store.table_name(table.name) for table in TABLES}
    progress = names[FOLD_PROGRESS.name]
    named = named_by(progress)
    names |= {"named": named, "all_groups": names[DESCRIBED.name]}
    for table in (OFFSETS, DESCRIBED):
        newest = table.newest_in_spark(names[table.name], named, compacted_to_by(progress, table))
        names[table.name] = f"({newest})"
    names |= {"is_listed": IS_LISTED, "answers": ANSWERS, "hides_offsets": HIDES_OFFSETS}
    queries = {name: query.format(**names) for name, query in _VIEWS.items()}
    names |= {name: f"({queries[name]})" for name in ("current_offsets", "group_members")}
    names["steps"] = f"({STEPS.format(topic_offsets=_samples(store))})"
    return queries | {"consumer_lag": CONSUMER_LAG.format(**names)}


def _samples(store: Store) -> str:
    """The table `topic_offsets` in SQL; without it, an empty one."""
    return sql_name(store.folder(), TOPIC_OFFSETS.name) if store.has_later(TOPIC_OFFSETS) else f"({NO_SAMPLES})"
