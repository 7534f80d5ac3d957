"""Reads the log of a store for questions about the past: incarnations, bounds, and rows in record-offset order."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from offsets_pipeline.clock import Clock, SystemClock
from offsets_pipeline.delta.data_file import ALL_ROWS
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import IN_SCHEMA, OWNED, StoreProperties
from offsets_pipeline.delta.reader import names_in_order
from offsets_pipeline.delta.schemas import (
    CONSUMER_GROUPS,
    FOLD_PROGRESS,
    GROUP_FACTS,
    LOG,
    LOG_INCARNATION,
    LOG_PARTITIONS,
    RECORD_COLUMNS,
    TOPICS,
    catalog_name,
)
from offsets_pipeline.delta.store_folder import no_store
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.history.completeness import Completeness
from offsets_pipeline.log.ordered_log import OrderedLog
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from offsets_pipeline.delta.data_file import Only
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.delta.snapshot import Snapshot

#: The columns of the log that history reads.
COLUMNS = (*RECORD_COLUMNS, "source")

_NO_ENDS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class Incarnation:
    """One incarnation of the log (docs/adr/0014).

    ``cleaned_to`` has the record offset, by log partition, before which a cleaning removed records. ``ends`` has the
    log end offsets.
    """

    number: int
    offsets_partitions: int
    cleaned_to: Mapping[int, int]
    ends: Mapping[int, int]


class LogHistory:
    """The log of the store in one folder, as of one version.

    Raises NoSuchStore if the folder is missing, NotAStore if it holds something else, StoreMismatch if the store has a
    topic of Kafka Connect, DamagedTable, UnsupportedTable.
    """

    def __init__(self, location: str, clock: Clock = SystemClock()) -> None:  # noqa: B008 - immutable
        self.location = location.rstrip("/")
        #: when the log was opened, in milliseconds since 1970
        self.opened_ms = clock.now_ms()
        self._folder = arrow_folder(self.location)
        self._in_schema = False  # the log has the same name in both
        # read the bounds first: an ingest appends records before it writes their bounds
        #: the table `log_partitions`; None in a store without it
        self.notes = self._read_notes()
        try:
            self.log = self._table(LOG)
        except NoSuchTable:
            raise no_store(self._folder) from None
        self._in_schema = IN_SCHEMA in self.log.properties
        self.properties = StoreProperties.from_table_properties(self.log.properties, self.location)
        self.properties.require_topic_kind(self.location, TopicKind.CONSUMER_OFFSETS)
        progress = self._select(FOLD_PROGRESS, "coordinator_semantics")
        self.semantics = next(
            (CoordinatorSemantics(row["coordinator_semantics"]) for row in progress),
            self.properties.coordinator_semantics,
        )
        self.incarnations = self._incarnations()

    @property
    def cluster(self) -> str:
        """The name of the store's cluster: by default the name of its folder."""
        return self.properties.cluster(self.location)

    @property
    def current(self) -> Incarnation:
        """The newest complete incarnation."""
        return self.incarnations[-1]

    @property
    def is_owned(self) -> bool:
        """Whether this program is the coordinator that wrote the log."""
        return self.properties.kind == OWNED

    def topic_names(self) -> dict[str, str]:
        """Names of topic ids that the sources had (R35)."""
        return {row["topic_id"]: row["topic"] for row in self._select(TOPICS, "topic_id", "topic")}

    def homes(self, group_ids: Collection[str] | None, incarnation: Incarnation) -> list[int] | None:
        """The log partitions that may hold records of groups (R1); None for all.

        `modern` answers only from the log partition of R1. Under `classic` a group may be anywhere. The state tells
        where if it is that of the whole incarnation.
        """
        if group_ids is None:
            return None
        homes = {partition_for(group_id, incarnation.offsets_partitions) for group_id in group_ids}
        if self.semantics.is_classic:
            if not self._is_folded(incarnation):
                return None
            only = {"group_id": names_in_order(group_ids)}
            for table in (GROUP_FACTS, CONSUMER_GROUPS):
                known = self._select(table, "log_partition", only=only)
                homes |= {row["log_partition"] for row in known}
        return sorted(homes)

    def read(
        self,
        incarnation: Incarnation,
        *,
        as_of_ms: int | None = None,
        partitions: Collection[int] | None = None,
        ends: Mapping[int, int] = _NO_ENDS,
        columns: Sequence[str] = COLUMNS,
    ) -> OrderedLog:
        """The rows of an incarnation in record-offset order. Raises as `OrderedLog`."""
        return OrderedLog(self.log, incarnation.number, as_of_ms, partitions, ends=ends, columns=columns)

    def completeness(self, incarnation: Incarnation, partition: int) -> Completeness:
        """Follows the rows of one log partition, to tell from where on its history is complete."""
        cleaned_to, end = incarnation.cleaned_to.get(partition), incarnation.ends.get(partition, 0)
        return Completeness(cleaned_to, end, is_owned=self.is_owned)

    def _incarnations(self) -> list[Incarnation]:
        noted = self._noted()
        found = []
        for number in sorted({row["log_incarnation"] for row in noted} | {LOG_INCARNATION}):
            rows = [row for row in noted if row["log_incarnation"] == number]
            followed = sum(row["is_followed"] for row in rows)
            found.append(
                Incarnation(
                    number,
                    followed or self.properties.offsets_partitions,
                    {row["log_partition"]: row["cleaned_to"] for row in rows if row["cleaned_to"] is not None},
                    {row["log_partition"]: row["end_offset"] for row in rows},
                )
            )
        return found

    def _read_notes(self) -> pa.Table | None:
        try:
            return self._table(LOG_PARTITIONS).rows()
        except NoSuchTable:
            return None

    def _noted(self) -> list[dict[str, Any]]:
        if self.notes is None:
            return []
        # no timestamp becomes a Python object: Arrow imports pandas for that
        known = self.notes.select(["log_partition", "log_incarnation", "end_offset", "cleaned_to"])
        is_followed = self.notes["complete_since"].is_valid()
        listed: list[dict[str, Any]] = known.append_column("is_followed", is_followed).to_pylist()
        return listed

    def _is_folded(self, incarnation: Incarnation) -> bool:
        """Whether the state has all records of the incarnation."""
        progress = self._select(FOLD_PROGRESS, "log_partition", "log_incarnation", "folded_to")
        folded = {
            row["log_partition"]: row["folded_to"] for row in progress if row["log_incarnation"] == incarnation.number
        }
        return bool(incarnation.ends) and all(folded.get(at, 0) >= end for at, end in incarnation.ends.items())

    def _select(self, table: Table, *columns: str, only: Only = ALL_ROWS) -> list[dict[str, Any]]:
        """Columns of rows of a table, for few rows; none if a store lacks the table."""
        try:
            rows: list[dict[str, Any]] = self._table(table).rows(columns, only).to_pylist()
        except NoSuchTable:
            return []
        return rows

    def _table(self, table: Table) -> Snapshot:
        folder = catalog_name(table.name) if self._in_schema else table.name
        return TableFolder(f"{self._folder}/{folder}", table).snapshot()
