"""The groups and offsets that a store answers with, for every reader of the state tables (R1, R14).

A group that exists is listed with type, state and protocol type. A misplaced group answers nothing else: a broker takes
every other question to the log partition of R1, where the group does not exist. A share group has no committed offsets;
offsets of a simple group that it replaced are not answered.

The constants are SQL conditions, for Spark and DuckDB, on the columns of a row of `groups`. The functions decide the
same for rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    GroupRow = Mapping[str, Any]

#: State of a group that does not exist.
DEAD = "Dead"

#: Whether the group is listed.
IS_LISTED = f"state <> '{DEAD}'"

#: Whether it answers questions about itself.
ANSWERS = f"{IS_LISTED} AND NOT misplaced"

#: Whether the offsets of the group in its log partition are hidden. A dead group has no type.
HIDES_OFFSETS = f"(state = '{DEAD}' OR group_type = '{SHARE}')"


def answering_rows(rows: Iterable[GroupRow], offsets_partitions: int) -> dict[str, GroupRow]:
    """Return the row of `groups` that answers for each listed group, in the order of group ids.

    A group may have rows in several log partitions. The row in the log partition of R1 answers, else that of the lowest
    log partition.

    Args:
        rows: rows with log_partition, group_id and state.
        offsets_partitions: R1's n.
    """
    found: dict[str, GroupRow] = {}
    for row in sorted(rows, key=itemgetter("group_id", "log_partition")):
        group_id = row["group_id"]
        is_chosen = group_id not in found or row["log_partition"] == partition_for(group_id, offsets_partitions)
        if row["state"] != DEAD and is_chosen:
            found[group_id] = row
    return found


def answers_offsets(group_type: str, *, misplaced: bool) -> bool:
    """Return whether a listed group answers its offsets: ANSWERS, and not HIDES_OFFSETS."""
    return not misplaced and group_type != SHARE
