"""Known state of some groups, read from the files of the state tables, in a task or in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.semantics.answering import DEAD

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsets_pipeline.store.delta.data_file import Only

    Group = tuple[int, str]


class KnownGroups(StoredRows):
    """The rows of groups that a fold continues, in the tables that `ReplayStart.known` names; picklable."""

    def existing(self, groups: Collection[Group]) -> set[Group]:
        """Return the groups that exist (R14)."""
        if not groups:
            return set()
        found = self.newest(DESCRIBED, ["log_partition", "group_id", "state"], _only(groups))
        return groups_in(found.filter(pc.not_equal(found["state"], DEAD))).intersection(groups)

    def records(self, groups: Collection[Group]) -> pa.Table:
        """Return the rows of `group_records` of these groups.

        May return several rows of one key, and rows of groups with the same id in other log partitions.
        """
        return self.facts(RECORDS, RECORDS.columns, _only(groups)) if groups else RECORDS.row_schema().empty_table()

    def with_offsets(self, groups: Collection[Group], deleted: pa.Table) -> set[Group]:
        """Return the groups with a visible offset after the tombstones ``deleted`` (rows of OFFSETS).

        For a state of `classic` semantics.
        """
        found = self.newest(OFFSETS, ["log_partition", "group_id", "committed_offset"], _only(groups), more=deleted)
        return groups_in(found.filter(found["committed_offset"].is_valid())).intersection(groups)


def groups_in(rows: pa.Table) -> set[Group]:
    """Return the group of each row, each group once."""
    return set(zip(rows["log_partition"].to_pylist(), rows["group_id"].to_pylist(), strict=True))


def _only(groups: Collection[Group]) -> Only:
    return {
        "log_partition": sorted({log_partition for log_partition, _ in groups}),
        "group_id": sorted({group_id for _, group_id in groups}),
    }
