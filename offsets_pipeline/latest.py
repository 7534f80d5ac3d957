"""The latest record of each identity: what `committed_offsets` says.

The table has two layers. The settled one holds each identity once. On top lie the facts that folds appended since,
of an identity maybe several; they are newer than what is settled. So a fold costs what it brings, not what there is,
and reading costs one look into a small table more (docs/adr/0008).
"""

from __future__ import annotations

from offsets_pipeline.tables import COMMITTED_OFFSETS

IDENTITY = ("log_partition", "group_id", "topic", "partition")

#: What `latest_offsets` gives: all columns but the one that names the layer.
LATEST_COLUMNS = [name for name in COMMITTED_OFFSETS.names() if name != "settled"]


def latest_offsets(table: str, where: str = "TRUE") -> str:
    """SQL, Spark's and DataFusion's, for the latest row of each identity, tombstones included; LATEST_COLUMNS.

    ``table`` is how SQL names `committed_offsets`; ``where`` is a condition on columns of the identity.
    """
    columns, identity = ", ".join(LATEST_COLUMNS), ", ".join(IDENTITY)
    same = " AND ".join(f"b.{name} = r.{name}" for name in IDENTITY)
    return f"""
        SELECT {columns} FROM (
            SELECT {columns}, row_number() OVER (
                PARTITION BY {identity} ORDER BY log_epoch DESC, record_offset DESC
            ) AS newest
            FROM {table} WHERE NOT settled AND {where}
        ) f WHERE newest = 1
        UNION ALL
        SELECT /*+ BROADCAST(r) */ {columns} FROM (SELECT * FROM {table} WHERE settled AND {where}) b
        LEFT ANTI JOIN (SELECT {identity} FROM {table} WHERE NOT settled AND {where}) r ON {same}
    """  # noqa: S608 - names of the program's own
