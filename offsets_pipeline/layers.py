"""The layers of a state table.

The settled layer holds each key once. On top lie the rows that folds appended since, of a key maybe several; they are
newer than what is settled. So a fold costs what it brings, not what there is, and reading costs one look into a small
table more (docs/adr/0008).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from offsets_pipeline.tables import COMMITTED_OFFSETS, GROUP_RECORDS, GROUPS, Table


@dataclass(frozen=True)
class LayeredTable:
    """A state table in two layers: what a row is about, and which of several rows about the same is the newest."""

    table: Table
    key: tuple[str, ...]
    order: str

    @property
    def columns(self) -> list[str]:
        """All columns but the one that names the layer."""
        return [name for name in self.table.names() if name != "settled"]

    def schema(self) -> StructType:
        """The Spark schema of `columns`."""
        return StructType([field for field in self.table.schema() if field.name != "settled"])

    def latest(self, name: str, where: str = "TRUE") -> str:
        """SQL, Spark's and DataFusion's, for the newest row of each key; `columns`.

        ``name`` is how SQL names the table; ``where`` is a condition on columns of the key.
        """
        columns, key = ", ".join(self.columns), ", ".join(self.key)
        same = " AND ".join(f"b.{each} = r.{each}" for each in self.key)
        return f"""
            SELECT {columns} FROM (
                SELECT {columns}, row_number() OVER (PARTITION BY {key} ORDER BY {self.order} DESC) AS newest
                FROM {name} WHERE NOT settled AND {where}
            ) f WHERE newest = 1
            UNION ALL
            SELECT /*+ BROADCAST(r) */ {columns} FROM (SELECT * FROM {name} WHERE settled AND {where}) b
            LEFT ANTI JOIN (SELECT {key} FROM {name} WHERE NOT settled AND {where}) r ON {same}
        """  # noqa: S608 - names of the program's own


OFFSETS = LayeredTable(COMMITTED_OFFSETS, ("log_partition", "group_id", "topic", "partition"), "record_offset")
RECORDS = LayeredTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    "greatest(coalesce(value_offset, -1), coalesce(tombstone_offset, -1))",
)
DESCRIBED = LayeredTable(GROUPS, ("log_partition", "group_id"), "record_offset")

LAYERED = (OFFSETS, RECORDS, DESCRIBED)
