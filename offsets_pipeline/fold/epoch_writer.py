"""Writing the state of a new epoch of the log beside that of the one before, which answers until all of it is there.

Readers take the rows of the epoch that `fold_progress` names. So what is written here is not seen until that table is
replaced, in one commit, as the last thing; then it is seen as a whole, and nothing of the older epoch any more. The
rows of that one go with the next settling (docs/adr/0014).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.fold.dataframes import described_groups
from offsets_pipeline.fold.state import FoldedState, StateWriter, combined_records
from offsets_pipeline.fold.summary import Progress
from offsets_pipeline.layers import DESCRIBED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from offsets_pipeline.fold.summary import Summary


class EpochWriter(StateWriter):
    """Writes the effects of folding the whole of an epoch."""

    def write(self, summary: Summary, state: FoldedState) -> None:
        """Write everything. ``summary`` is of the effects; ``state`` is as it was before the log was read.

        Raises WriteConflict where anybody wrote to the state meanwhile; what was written is not seen then.
        """
        self._state = state
        told = {each.log_partition: each for each in summary.progress}
        # a log partition without a record counts too: else an epoch without any could not take over
        every = (told.get(at, Progress(at, 0, 0, 0)) for at in range(self._store.properties.offsets_partitions))
        state.forget_progress()
        self._write(replace(summary, progress=tuple(every)), state)

    def _facts(self, summary: Summary) -> list[Callable[[], object]]:  # noqa: ARG002 - also what is empty is put
        offsets = self._of_kind(OFFSET)
        return [partial(self._put, OFFSETS, offsets), self._put_groups]

    def _moved(self, progress: Progress, before: Progress | None) -> Progress:  # noqa: ARG002 - there was none
        return progress

    def _put_groups(self) -> None:
        facts = self._of_kind(GROUP_RECORD).unionByName(self._of_kind(GROUP_COMMIT)).select(RECORDS.columns)
        records = combined_records(facts).persist()
        try:
            self._put(RECORDS, records)
            self._put(DESCRIBED, described_groups(records, self._store.properties.offsets_partitions))
        finally:
            records.unpersist()

    def _put(self, layered: LayeredTable, rows: DataFrame) -> None:
        """Put the rows in place of what a writer that died before the end left of this epoch."""
        rows = rows.withColumn("settled", F.lit(True)).select(layered.table.names())
        self._state.writers[layered.table.name].overwrite(rows.sortWithinPartitions(*layered.key), self._of_epoch)
