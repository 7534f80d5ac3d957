"""An offsets log that a broker finds when it starts, with records older than the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export.segment_export import export_segments
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.unit.history.history_stores import random_store

if TYPE_CHECKING:
    from pathlib import Path


class PastLog:
    """Records by their age. Those of a log partition are appended from the oldest on."""

    def __init__(self, now_ms: int, offsets_partitions: int) -> None:
        self._now_ms = now_ms
        self._logs = {at: LogPartition(at) for at in range(offsets_partitions)}
        self._times: dict[tuple[int, int], int | None] = {}

    def commit(
        self, group: str, topic: str, partition: int, age_ms: int, offset: int = 7, producer_id: int | None = None
    ) -> None:
        """A commit of this age, of a transaction that stays open if it has a producer."""
        at = partition_for(group, len(self._logs))
        committed_ms = self._now_ms - age_ms
        place = self._logs[at].commit((group, topic, partition), offset, producer_id, commit_timestamp=committed_ms)
        self._times[at, place] = committed_ms

    def leave(self, group: str, age_ms: int) -> None:
        """The last member leaves a classic group."""
        at, since_ms = partition_for(group, len(self._logs)), self._now_ms - age_ms
        place = self._logs[at].group(
            2, group, version=3, protocol_type="consumer", generation=3, current_state_timestamp=since_ms
        )
        self._times[at, place] = since_ms

    def segments(self, folder: Path) -> Path:
        """Segment files with the records."""
        rows = {at: log.rows for at, log in self._logs.items()}
        store = random_store(folder / "past", rows, self._times, len(self._logs))
        export_segments(StateReader(store), folder / "segments")
        return folder / "segments"
