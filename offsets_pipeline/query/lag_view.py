"""The view `consumer_lag`, in Spark SQL: lag of each committed offset, and of each assigned partition without one.

Its positions are the samples of the table `topic_offsets`, so its lag in seconds is interpolated (lag/time_lag.py).
A status takes the log, too: `offsets lag` computes it.
"""

from __future__ import annotations

#: `topic_offsets` of a store that has no samples.
NO_SAMPLES = """
    SELECT cast(NULL AS STRING) AS topic, cast(NULL AS INT) AS partition, cast(NULL AS BIGINT) AS log_start_offset,
           cast(NULL AS BIGINT) AS log_end_offset, cast(NULL AS TIMESTAMP) AS sampled_at,
           cast(NULL AS STRING) AS source
    WHERE FALSE
"""

#: Placeholders: the views `current_offsets` and `group_members`, the tables `groups` and `topic_offsets`.
CONSUMER_LAG = """
    SELECT h.group_id, h.topic, h.partition, h.committed_offset, n.log_start_offset, n.log_end_offset,
           CASE WHEN h.committed_offset >= n.log_end_offset THEN 0 ELSE n.log_end_offset - h.committed_offset END
               AS lag,
           CASE WHEN h.committed_offset IS NULL OR n.topic IS NULL THEN NULL
                WHEN greatest(h.committed_offset, n.log_start_offset) >= n.log_end_offset THEN 0
                ELSE n.log_end_offset - greatest(h.committed_offset, n.log_start_offset) END AS lag_available,
           CASE WHEN h.committed_offset IS NULL OR n.topic IS NULL THEN NULL
                WHEN greatest(h.committed_offset, n.log_start_offset) >= n.log_end_offset THEN cast(0 AS DOUBLE)
                WHEN s.topic IS NULL THEN NULL
                ELSE greatest(cast(0 AS DOUBLE), round(cast((
                    unix_micros(current_timestamp()) - unix_micros(s.sampled_at)
                    - (unix_micros(s.next_at) - unix_micros(s.sampled_at))
                      * (greatest(h.committed_offset, n.log_start_offset) - s.log_end_offset + 0.5)
                      / (s.next_end - s.log_end_offset)
                ) / 1000000.0 AS DOUBLE), 3)) END AS lag_seconds,
           CASE WHEN h.committed_offset IS NULL OR n.topic IS NULL THEN 'none'
                WHEN greatest(h.committed_offset, n.log_start_offset) >= n.log_end_offset OR s.topic IS NOT NULL
                THEN 'interpolated' ELSE 'none' END AS method,
           CASE WHEN h.committed_offset IS NULL THEN 'the group has no committed offset'
                WHEN n.topic IS NULL THEN 'no position of the partition is known'
                WHEN h.committed_offset > n.log_end_offset THEN 'the committed offset is above the log end'
                WHEN greatest(h.committed_offset, n.log_start_offset) < n.log_end_offset AND s.topic IS NULL
                THEN 'the committed offset is older than the first sample' END AS reason,
           n.sampled_at
    FROM (
        SELECT group_id, topic, partition, committed_offset FROM {current_offsets} c
        UNION ALL
        SELECT DISTINCT m.group_id, m.topic, m.partition, cast(NULL AS BIGINT) AS committed_offset
        FROM {group_members} m
        LEFT SEMI JOIN (SELECT group_id FROM {groups} g WHERE {answers} AND group_type <> 'Share') g
          ON g.group_id = m.group_id
        LEFT ANTI JOIN {current_offsets} c
          ON c.group_id = m.group_id AND c.topic = m.topic AND c.partition = m.partition
        WHERE m.topic IS NOT NULL
    ) h
    LEFT JOIN (
        SELECT topic, partition, max_by(log_start_offset, sampled_at) AS log_start_offset,
               max_by(log_end_offset, sampled_at) AS log_end_offset, max(sampled_at) AS sampled_at,
               max(CASE WHEN next_end < log_end_offset THEN next_at END) AS created_at
        FROM {steps} p GROUP BY topic, partition
    ) n ON n.topic = h.topic AND n.partition = h.partition
    LEFT JOIN {steps} s
      ON s.topic = h.topic AND s.partition = h.partition
      AND s.log_end_offset <= greatest(h.committed_offset, n.log_start_offset)
      AND s.next_end > greatest(h.committed_offset, n.log_start_offset)
      AND s.sampled_at >= coalesce(n.created_at, s.sampled_at)
"""

#: Each sample and the next one of its partition.
STEPS = """
    SELECT topic, partition, log_start_offset, log_end_offset, sampled_at,
           lead(log_end_offset) OVER (PARTITION BY topic, partition ORDER BY sampled_at) AS next_end,
           lead(sampled_at) OVER (PARTITION BY topic, partition ORDER BY sampled_at) AS next_at
    FROM {topic_offsets} t
"""
