"""The view `consumer_lag`: lag of each committed offset, and of each assigned partition without one.

Spark and DuckDB run the same SQL. Its positions are the samples of the table `topic_offsets`, so its lag in seconds is
interpolated (questions/lag/position_sources.py). A status also needs the commits in the log: `offsets lag` computes it.
"""

from __future__ import annotations

#: Placeholders: the views `current_offsets` and `group_members`, the table `groups`, the data times of log partitions,
#: `steps`, and those of sql_dialects.py. Commit and log end are those of `as_of` (R37): `end_then` spreads records
#: evenly between two samples (questions/lag/position_sources.py). A commit after it has no lag, for only the log tells
#: the commit that it replaced.
CONSUMER_LAG = """
    SELECT c.group_id, c.topic, c.partition, c.committed_offset, c.log_start_offset, c.log_end_offset,
           CASE WHEN c.is_known THEN greatest(0, c.log_end_offset - c.committed_offset) END AS lag,
           CASE WHEN c.is_known THEN greatest(0, c.log_end_offset - c.position) END AS lag_available,
           CASE WHEN NOT c.is_known THEN NULL
                WHEN c.position >= c.log_end_offset THEN cast(0 AS DOUBLE)
                WHEN s.topic IS NULL
                THEN nullif(round(cast(({micros}(c.as_of) - {micros}(c.created_at)) / 1000000.0 AS DOUBLE), 3), 0)
                ELSE greatest(cast(0 AS DOUBLE), round(cast((
                    {micros}(c.as_of) - {micros}(s.sampled_at)
                    - ({micros}(s.next_at) - {micros}(s.sampled_at))
                      * (c.position - s.log_end_offset + 0.5) / (s.next_end - s.log_end_offset)
                ) / 1000000.0 AS DOUBLE), 3)) END AS lag_seconds,
           CASE WHEN NOT c.is_known THEN 'none'
                WHEN c.position >= c.log_end_offset OR s.topic IS NOT NULL THEN 'interpolated'
                WHEN c.as_of > c.created_at THEN 'at_least' ELSE 'none' END AS method,
           CASE WHEN c.committed_offset IS NULL THEN 'the group has no committed offset'
                WHEN c.created_at IS NULL THEN 'no position of the partition is known'
                WHEN c.is_newer THEN 'the group has committed since the newest sample'
                WHEN c.log_end_offset IS NULL THEN 'the log end at the data time is not known'
                WHEN c.committed_offset > c.log_end_offset THEN 'the committed offset is above the log end'
                WHEN c.position < c.log_end_offset AND s.topic IS NULL
                THEN 'the committed offset is older than the first sample' END AS reason,
           c.as_of, c.data_time, c.sampled_at
    FROM (
        SELECT b.*, b.as_of < b.data_time AND coalesce(b.commit_timestamp > b.as_of, FALSE) AS is_newer,
               b.committed_offset IS NOT NULL AND b.log_end_offset IS NOT NULL AND NOT is_newer AS is_known,
               greatest(b.committed_offset, b.log_start_offset) AS position
        FROM (
            SELECT a.*, n.created_at, e.log_start_offset,
                   CASE WHEN e.next_end IS NULL OR e.sampled_at = a.as_of THEN e.log_end_offset
                        WHEN e.next_end >= e.log_end_offset
                        THEN cast(floor(e.log_end_offset + cast(e.next_end - e.log_end_offset AS DOUBLE)
                             * ({micros}(a.as_of) - {micros}(e.sampled_at))
                             / ({micros}(e.next_at) - {micros}(e.sampled_at)) + 0.5) AS BIGINT) END AS end_then,
                   CASE WHEN a.committed_offset > end_then
                        THEN greatest(end_then, least(a.committed_offset, coalesce(e.next_end, e.log_end_offset)))
                        ELSE end_then END AS log_end_offset
            FROM (
                SELECT h.*, p.sampled_at, coalesce(d.data_time, current_timestamp) AS data_time,
                       least(coalesce(d.data_time, current_timestamp), p.sampled_at) AS as_of
                FROM (
                    SELECT group_id, topic, partition, committed_offset, commit_timestamp, log_partition
                    FROM {current_offsets} c
                    UNION ALL
                    SELECT DISTINCT m.group_id, m.topic, m.partition, cast(NULL AS BIGINT) AS committed_offset,
                           cast(NULL AS TIMESTAMP) AS commit_timestamp, g.log_partition
                    FROM {group_members} m
                    JOIN (
                        SELECT group_id, max(log_partition) AS log_partition FROM {groups} g
                        WHERE {answers} AND group_type <> 'Share' GROUP BY group_id
                    ) g ON g.group_id = m.group_id
                    WHERE m.topic IS NOT NULL AND NOT EXISTS (
                        SELECT 1 FROM {current_offsets} c
                        WHERE c.group_id = m.group_id AND c.topic = m.topic AND c.partition = m.partition
                    )
                ) h
                LEFT JOIN {data_times} d ON d.log_partition = h.log_partition
                CROSS JOIN (SELECT max(sampled_at) AS sampled_at FROM {steps} p) p
            ) a
            LEFT JOIN (
                SELECT topic, partition,
                       coalesce(max(CASE WHEN next_end < log_end_offset THEN next_at END), min(sampled_at))
                           AS created_at
                FROM {steps} p GROUP BY topic, partition
            ) n ON n.topic = a.topic AND n.partition = a.partition
            LEFT JOIN {steps} e
              ON e.topic = a.topic AND e.partition = a.partition
              AND e.sampled_at >= n.created_at AND e.sampled_at <= a.as_of AND coalesce(e.next_at > a.as_of, TRUE)
        ) b
    ) c
    LEFT JOIN {steps} s
      ON s.topic = c.topic AND s.partition = c.partition
      AND s.log_end_offset <= c.position AND s.next_end > c.position AND s.sampled_at >= c.created_at
"""

#: Data time of log partitions (R36) in Spark, which reads folded records alone. An owned log has no row here.
DATA_TIMES = """
    SELECT p.log_partition,
           CASE WHEN f.folded_to >= p.end_offset AND p.read_at IS NULL THEN m.updated_at
                WHEN f.folded_to >= p.end_offset THEN greatest(p.read_at, c.newest)
                ELSE coalesce(c.newest, f.folded_at) END AS data_time
    FROM {log_partitions} p
    JOIN {fold_progress} f ON f.log_partition = p.log_partition AND f.log_incarnation = p.log_incarnation
    LEFT JOIN (
        SELECT log_partition, max(commit_timestamp) AS newest FROM {current_offsets} GROUP BY log_partition
    ) c ON c.log_partition = p.log_partition
    CROSS JOIN (SELECT max(updated_at) AS updated_at FROM {log_partitions} q) m
    WHERE {is_mirrored}
"""

#: Each sample and the next one of its partition.
STEPS = """
    SELECT topic, partition, log_start_offset, log_end_offset, sampled_at,
           lead(log_end_offset) OVER (PARTITION BY topic, partition ORDER BY sampled_at) AS next_end,
           lead(sampled_at) OVER (PARTITION BY topic, partition ORDER BY sampled_at) AS next_at
    FROM {topic_offsets} t
"""
