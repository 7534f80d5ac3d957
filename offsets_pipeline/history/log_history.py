"""Reads the log of a store for questions about the past: incarnations, bounds, and rows in record-offset order."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from offsets_pipeline.clock import Clock, SystemClock
from offsets_pipeline.delta.data_file import ALL_ROWS
from offsets_pipeline.delta.properties import OWNED
from offsets_pipeline.delta.reader import names_in_order
from offsets_pipeline.delta.schemas import CONSUMER_GROUPS, FOLD_PROGRESS, GROUP_FACTS, LOG, RECORD_COLUMNS, TOPICS
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.history.completeness import Completeness
from offsets_pipeline.log.ordered_log import OrderedLog
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from offsets_pipeline.delta.data_file import Only
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store_snapshot import LogIncarnation

#: The columns of the log that history reads.
COLUMNS = (*RECORD_COLUMNS, "source")

_NO_ENDS: Mapping[int, int] = MappingProxyType({})


class LogHistory(StoreSnapshot):
    """A snapshot of a store, for questions about the past of its log.

    Raises StoreMismatch if the store has a topic of Kafka Connect, and as `StoreSnapshot`.
    """

    def __init__(self, store: str | StoreSnapshot, clock: Clock = SystemClock()) -> None:  # noqa: B008 - immutable
        super().__init__(store, clock)
        self.properties.require_topic_kind(self.location, TopicKind.CONSUMER_OFFSETS)
        self.log = self.table(LOG.name)
        self.semantics = self.coordinator_semantics

    @property
    def is_owned(self) -> bool:
        """Whether this program is the coordinator that wrote the log."""
        return self.properties.kind == OWNED

    def topic_names(self) -> dict[str, str]:
        """Names of topic ids that the sources had (R35)."""
        return {row["topic_id"]: row["topic"] for row in self._select(TOPICS, "topic_id", "topic")}

    def homes(self, group_ids: Collection[str] | None, incarnation: LogIncarnation) -> list[int] | None:
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
        incarnation: LogIncarnation,
        *,
        as_of_ms: int | None = None,
        partitions: Collection[int] | None = None,
        ends: Mapping[int, int] = _NO_ENDS,
        columns: Sequence[str] = COLUMNS,
    ) -> OrderedLog:
        """The rows of an incarnation in record-offset order. Raises as `OrderedLog`."""
        return OrderedLog(self.log, incarnation.number, as_of_ms, partitions, ends=ends, columns=columns)

    def completeness(self, incarnation: LogIncarnation, partition: int) -> Completeness:
        """Follows the rows of one log partition, to tell from where on its history is complete."""
        cleaned_to, end = incarnation.cleaned_to.get(partition), incarnation.ends.get(partition, 0)
        return Completeness(cleaned_to, end, is_owned=self.is_owned)

    def _is_folded(self, incarnation: LogIncarnation) -> bool:
        """Whether the state has all records of the incarnation."""
        progress = self._select(FOLD_PROGRESS, "log_partition", "log_incarnation", "folded_to")
        folded = {
            row["log_partition"]: row["folded_to"] for row in progress if row["log_incarnation"] == incarnation.number
        }
        return bool(incarnation.ends) and all(folded.get(at, 0) >= end for at, end in incarnation.ends.items())

    def _select(self, table: Table, *columns: str, only: Only = ALL_ROWS) -> list[dict[str, Any]]:
        """Columns of rows of a table, for few rows; none if a store lacks the table."""
        try:
            rows: list[dict[str, Any]] = self.table(table.name).rows(columns, only).to_pylist()
        except NoSuchTable:
            return []
        return rows
