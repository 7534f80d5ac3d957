"""Rows of the published tables from rows that count: what is answered, in the columns of the views."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.delta.schemas import CONSUMER_GROUPS, CURRENT_OFFSETS, GROUP_MEMBERS
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.state.merge_on_read import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from offsets_pipeline.delta.data_file import DataFile
    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.state.merge_on_read import StateTable

#: Groups by log partition and group id.
Groups = frozenset[tuple[int, str]]

_FILE_ROWS = 1_000_000
#: Columns of a group that a misplaced one does not answer (R1).
_ANSWERS = (
    *("assignor", "generation", "group_epoch", "assignment_epoch", "leader", "state_timestamp", "members"),
    "member_count",
)


def hiding(groups: pa.Table) -> Groups:
    """The groups among rows of `group_facts` that hide their offsets (R14)."""
    hides = pc.or_(pc.equal(groups["state"], DEAD), pc.fill_null(pc.equal(groups["group_type"], SHARE), False))  # noqa: FBT003
    found = groups.filter(hides)
    return frozenset(zip(found["log_partition"].to_pylist(), found["group_id"].to_pylist(), strict=True))


def divided(table: StateTable, rows: pa.Table, hidden: AbstractSet[tuple[int, str]]) -> tuple[pa.Table, pa.Table]:
    """The rows of the published table, and the rows that stay facts, of rows of each key once.

    A fact that says more than its published row stays as well: the position of an offset (R10c), a misplaced group's
    description, and that a group hides its offsets.
    """
    if table is OFFSETS:
        is_answered = pc.and_not(pc.fill_null(pc.greater_equal(rows["committed_offset"], 0), False), rows["misplaced"])  # noqa: FBT003
        if hidden:
            is_answered = pc.and_not(is_answered, _of_groups(rows, hidden))
        stays = pc.or_(pc.invert(is_answered), pc.not_equal(rows["position"], rows["record_offset"]))
        published = rows.select(CURRENT_OFFSETS.names())
        if not pc.all(is_answered).as_py():
            published = published.filter(is_answered)
        return published.cast(CURRENT_OFFSETS.arrow_schema()), rows.filter(stays)
    is_answered = pc.not_equal(rows["state"], DEAD)
    hides = pc.fill_null(pc.equal(rows["group_type"], SHARE), False)  # noqa: FBT003
    stays = pc.or_(pc.or_(pc.invert(is_answered), rows["misplaced"]), hides)
    return _published_groups(rows.filter(is_answered)), rows.filter(stays)


def _published_groups(rows: pa.Table) -> pa.Table:
    """Rows of `consumer_groups` from rows of `group_facts`."""
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    columns["assignor"] = columns.pop("protocol")
    columns["member_count"] = pc.fill_null(pc.list_value_length(columns["members"]), 0)
    if pc.any(columns["misplaced"]).as_py():
        places = pa.array(np.arange(rows.num_rows), mask=columns["misplaced"].to_numpy(zero_copy_only=False))
        columns |= {name: columns[name].take(places) for name in _ANSWERS}
        columns["member_count"] = pc.fill_null(columns["member_count"], 0)
    columns["assignor"] = pc.fill_null(columns["assignor"], "")
    schema = CONSUMER_GROUPS.arrow_schema()
    return pa.Table.from_arrays([columns[each.name].cast(each.type) for each in schema], schema=schema)


def published_members(groups: pa.Table, topics: Mapping[str, str]) -> pa.Table:
    """Rows of `group_members` from the columns group_id and members of `consumer_groups`; ``topics`` are names of ids.

    One row per member and assigned partition, and one for a member without an assignment.
    """
    members = groups["members"].combine_chunks()
    member = members.flatten()
    of_group = pc.list_parent_indices(members)
    assignment = member.field("assignment")
    assigned = assignment.flatten()
    of_member = pc.list_parent_indices(assignment)
    count = pc.fill_null(pc.list_value_length(assignment), 0).to_numpy(zero_copy_only=False)
    without = pa.array(np.flatnonzero(count == 0), pa.int64())
    rows = pa.concat_arrays([of_member.cast(pa.int64()), without])
    ids = assigned.field("topic_id")
    names = pa.array([topics.get(each) for each in ids.to_pylist()], pa.string())
    nothing = pa.nulls(len(without))
    found = {name: member.field(name).take(rows) for name in GROUP_MEMBERS.names() if name in _names_of(member.type)}
    found["group_id"] = groups["group_id"].combine_chunks().take(of_group).take(rows)
    found["topic"] = pa.concat_arrays([pc.coalesce(assigned.field("topic"), names, ids), nothing.cast(pa.string())])
    found["partition"] = pa.concat_arrays([assigned.field("partition"), nothing.cast(pa.int32())])
    schema = GROUP_MEMBERS.arrow_schema()
    rows_of = pa.Table.from_arrays([found[each.name].cast(each.type) for each in schema], schema=schema)
    order = [(name, "ascending") for name in ("group_id", "member_id", "topic", "partition")]
    return rows_of.sort_by(order)


def write_published(folder: TableFolder, rows: pa.Table) -> list[DataFile]:
    """Write published rows, sorted by their key, to files of whole log partitions; a large one has several."""
    return [folder.write_file(each) for each in _shares(rows)]


def write_facts(folder: TableFolder, facts: pa.Table, incarnation: int) -> list[DataFile]:
    """Write facts, sorted by their key, to files of one incarnation; none for no rows."""
    partition = {"incarnation": str(incarnation)}
    return [
        folder.write_file(facts.slice(start, _FILE_ROWS), partition) for start in range(0, facts.num_rows, _FILE_ROWS)
    ]


def ended(rows: pa.Table, ends: Mapping[int, int]) -> pa.Array:
    """The ends of the log partitions of rows."""
    of_partition = np.zeros(max(ends, default=-1) + 1, dtype=np.int64)
    of_partition[list(ends)] = list(ends.values())
    return pa.array(of_partition[rows["log_partition"].to_numpy()])


def _shares(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in shares of about a million, cut between log partitions; a larger log partition has several."""
    partitions = rows["log_partition"].to_numpy()
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    ends = np.append(starts[1:], rows.num_rows)
    share = rows.num_rows / max(1, round(rows.num_rows / _FILE_ROWS))
    first_of_share = np.diff((starts + ends) / 2 // share, prepend=-1) > 0
    for start, end in pairwise([*starts[first_of_share].tolist(), rows.num_rows]):
        most = end - start if end - start < 2 * _FILE_ROWS else _FILE_ROWS
        for part in range(start, end, most):
            yield rows.slice(part, min(most, end - part))


def _of_groups(rows: pa.Table, groups: AbstractSet[tuple[int, str]]) -> pa.Array:
    """Whether a row is of one of these groups."""
    may_be = pc.is_in(rows["group_id"], pa.array(sorted({group_id for _, group_id in groups}), pa.string()))
    at = np.flatnonzero(may_be.to_numpy())
    some = rows.take(pa.array(at)).select(["log_partition", "group_id"])
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    of_some = zip(some["log_partition"].to_pylist(), some["group_id"].to_pylist(), strict=True)
    found[at] = [group in groups for group in of_some]
    return pa.array(found)


def _names_of(struct: pa.StructType) -> set[str]:
    return {each.name for each in struct}
