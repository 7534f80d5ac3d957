"""How the log of a store is replayed, by the kind of its topic. No Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, StateTable, state_tables_of
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.compaction import compact_early, gathered
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.semantics.share_replay import compact_shares, replay_shares
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA, compact_topic, replay_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsets_pipeline.fold.state.fold_progress import PartitionProgress
    from offsets_pipeline.semantics.effects import Effects

_ADD_ROWS = 250_000  # rows that the replay takes at once


@dataclass(frozen=True)
class ReplayStart:
    """Start of a replay: R1's n, semantics, first unfolded record offsets, and pending commits as `schema`; picklable.

    ``kind`` is that of the log's topic. A topic without groups is of Kafka Connect, or of the share coordinator.
    """

    offsets_partitions: int
    semantics: CoordinatorSemantics = MODERN
    folded_to: Mapping[int, int] = field(default_factory=dict)
    pending: pa.Table = field(default_factory=INPUT_SCHEMA.empty_table)
    kind: TopicKind = TopicKind.CONSUMER_OFFSETS

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows to replay."""
        return INPUT_SCHEMA if self.kind.has_groups else CONNECT_INPUT_SCHEMA

    @property
    def tables(self) -> tuple[StateTable, ...]:
        """The tables of facts that the replay changes."""
        return state_tables_of(self.kind)

    @property
    def known(self) -> list[str]:
        """The names of the tables that a fold looks up groups in."""
        tables = (RECORDS, DESCRIBED, *((OFFSETS,) if self.semantics.is_classic else ()))
        return [name for each in tables if self.kind.has_groups for name in each.names]

    def compact(self, table: pa.Table) -> pa.Table:
        """The rows that `compact_early`, `compact_topic` or `compact_shares` leaves."""
        if self.kind.has_groups:
            return compact_early(table, self.folded_to, self.semantics)
        if self.kind is TopicKind.SHARE_STATE:
            return compact_shares(table, self.folded_to)
        return compact_topic(table, self.kind, self.folded_to)

    def replay(self, tables: Iterable[pa.Table]) -> Effects:
        """The effects of rows of `schema`; they hold all unfolded rows of their log partitions."""
        if self.kind is TopicKind.SHARE_STATE:
            return replay_shares([*tables, self.pending], self.folded_to)
        if not self.kind.has_groups:
            return replay_topic([*tables, self.pending], self.kind, self.folded_to)
        replay = Replay(self.offsets_partitions, self.folded_to, self.semantics)
        for table in gathered(tables, _ADD_ROWS):
            with working_on(partial(place_of, table)):
                replay.add(table)
        replay.add(self.pending)  # of log partitions without new rows nothing changes
        with working_on(lambda: f"the end of {replay.place()}"):
            return replay.effects()

    def continued(self, progress: Mapping[int, PartitionProgress]) -> ReplayStart:
        """The start of a replay that continues these log partitions."""
        folded_to = {at: each.folded_to for at, each in progress.items()}
        return replace(self, folded_to=folded_to, pending=pending_rows(progress, self.schema))


def pending_rows(partitions: Mapping[int, PartitionProgress], schema: pa.Schema = INPUT_SCHEMA) -> pa.Table:
    """The pending commits of these log partitions as rows that a replay takes in again (R11).

    The tombstone that gives a commit its position (R10c) comes in again, too. ``schema`` is that of the replay.
    """
    rows = []
    for at, each in partitions.items():
        for commit in each.pending:
            row = {
                "log_partition": at,
                "record_offset": commit["record_offset"],
                "key": commit["key"],
                "value": commit["value"],
                "producer_id": commit["producer_id"],
                "record_timestamp": commit["commit_timestamp"],
                "records": 0,
            }
            rows.append(row)
            if commit["position"] != commit["record_offset"]:
                rows.append(row | {"record_offset": commit["position"], "value": None, "producer_id": None})
    return pa.Table.from_pylist(rows, schema=schema)
