"""The layers of a state table.

The settled layer holds each key once. On top lie the rows that folds appended since, of a key maybe several; they are
newer than what is settled. So a fold costs what it brings, not what there is, and reading costs one look into a small
table more (docs/adr/0008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, GROUP_RECORDS, GROUPS, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
        from pyspark.sql.types import StructType  # noqa: PLC0415 - answers without Spark

        return StructType([field for field in self.table.schema() if field.name != "settled"])

    def latest(self, name: str, where: str = "TRUE") -> str:
        """SQL, Spark's and DataFusion's, for the newest row of each key; `columns`.

        ``name`` is how SQL names the table; ``where`` is a condition on columns of the key and the log epoch. Rows of
        different epochs are about different logs: each epoch has its newest (docs/adr/0014).
        """
        key = ", ".join(self._identity)
        return f"""
            {self._newest_on_top(name, where)}
            UNION ALL
            SELECT {self._listed()} FROM (SELECT * FROM {name} WHERE settled AND {where}) b
            LEFT ANTI JOIN (SELECT {key} FROM {name} WHERE NOT settled AND {where}) r
            ON {" AND ".join(f"b.{each} = r.{each}" for each in self._identity)}
        """

    def latest_in_spark(self, name: str, where: str = "TRUE") -> str:
        """The same, for Spark alone; ``where`` is a condition on the log epoch.

        It looks each settled row up by a hash of its key, one number, which takes a third less time than several
        columns with strings among them. What is found has the same key, told by comparisons of which Spark makes no
        columns to look up by.
        """
        key = ", ".join(self._identity)
        same = " AND ".join(f"b.{each} >= r.{each} AND b.{each} <= r.{each}" for each in self._identity)
        return f"""
            {self._newest_on_top(name, where)}
            UNION ALL
            SELECT /*+ BROADCAST(r) */ {self._listed()}
            FROM (SELECT *, xxhash64({key}) AS key_hash FROM {name} WHERE settled AND {where}) b
            LEFT ANTI JOIN (SELECT {key}, xxhash64({key}) AS key_hash FROM {name} WHERE NOT settled AND {where}) r
            ON b.key_hash = r.key_hash AND {same}
        """

    @property
    def _identity(self) -> tuple[str, ...]:
        return ("log_epoch", *self.key)

    def _listed(self) -> str:
        return ", ".join(self.columns)

    def _newest_on_top(self, name: str, where: str) -> str:
        return f"""
            SELECT {self._listed()} FROM (
                SELECT {self._listed()}, row_number() OVER (
                    PARTITION BY {", ".join(self._identity)} ORDER BY {self.order} DESC
                ) AS newest
                FROM {name} WHERE NOT settled AND {where}
            ) f WHERE newest = 1
        """


OFFSETS = LayeredTable(COMMITTED_OFFSETS, ("log_partition", "group_id", "topic", "partition"), "record_offset")
RECORDS = LayeredTable(
    GROUP_RECORDS,
    ("log_partition", "group_id", "record_type", "record_key"),
    "greatest(coalesce(value_offset, -1), coalesce(tombstone_offset, -1))",
)
DESCRIBED = LayeredTable(GROUPS, ("log_partition", "group_id"), "record_offset")

LAYERED = (OFFSETS, RECORDS, DESCRIBED)
