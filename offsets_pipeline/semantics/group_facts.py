"""The facts that decide whether a group exists and what it is (R14), and the rows of the table `groups` from them.

Each key of a group's records has two facts: its last value and its last tombstone. The commits of a group have one:
their highest record offset. All are maxima, so facts of overlapping batches merge in any order.

Under `classic` the offsets of a group have two facts: the end of the last batch that left it a visible or pending
offset, and the end of the last batch that may have left it none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.compaction import replaced
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, RECORD_SCHEMA, within_bounds
from offsets_pipeline.semantics.facts import GROUP_COLUMNS, schema_of
from offsets_pipeline.semantics.group_description import GroupDescription, GroupRecordRow, describe_group, live_records
from offsets_pipeline.semantics.group_types import CLASSIC, GROUP_TYPE_OF_RECORD_TYPE, named_topics, record_key_of
from offsets_pipeline.semantics.log_row import codes_of
from offsets_pipeline.semantics.partitioning import are_misplaced

if TYPE_CHECKING:
    import numpy.typing as npt

    from offsets_pipeline.kafka.record.decode import DecodedKey
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

GROUP_SCHEMA = schema_of(GROUP_COLUMNS)

_BATCH_ROWS = 2_000
_STATE_COLUMNS = (
    *("group_type", "state", "protocol_type", "protocol"),
    *("generation", "group_epoch", "assignment_epoch", "leader"),
)


class GroupFacts:
    """Collects the facts of some records."""

    def __init__(self) -> None:
        #: Pairs of topic id and topic name, also of aborted and overwritten commits (R35).
        self.topics: set[tuple[str, str]] = set()
        self._records: dict[tuple[int, str, int, str], GroupRecordRow] = {}
        self._commits: dict[tuple[int, str], int] = {}
        self._without_offsets: dict[tuple[int, str], int] = {}

    def add(
        self,
        log_partition: int,
        record_offset: int,
        key: DecodedKey,
        value: bytes | None,
        fields: dict[str, Any] | None,
    ) -> None:
        """Add a record that decodes. ``fields`` are the fields of its value; None for a tombstone."""
        if key.record_type not in GROUP_TYPE_OF_RECORD_TYPE:
            return
        record_key = record_key_of(key)
        at = log_partition, key.group_id, key.record_type, record_key
        row = self._records.get(at) or GroupRecordRow(key.record_type, record_key, None, None, None)
        if value is None:
            if row.tombstone_offset is None or record_offset > row.tombstone_offset:
                self._records[at] = row._replace(tombstone_offset=record_offset)
        elif row.value_offset is None or record_offset > row.value_offset:
            self._records[at] = row._replace(value_offset=record_offset, value=value)
        self.topics.update(named_topics(key.record_type, fields))

    def add_commits(self, log_partition: npt.NDArray[np.int32], group_id: pa.Array, record_offset: Int64s) -> None:
        """Add the groups of commits; pending and aborted commits count, too (R14)."""
        for group, offset in _highest_of_groups(log_partition, group_id, record_offset):
            self._commits[group] = max(self._commits.get(group, -1), offset)

    def add_holders(
        self, log_partition: npt.NDArray[np.int32], group_id: pa.Array, holds: Bools, ends: Mapping[int, int]
    ) -> None:
        """Add the groups that hold a visible or pending commit (R14, `classic`).

        ``holds`` selects these commits. Call it once, after all records of groups. ``ends`` has the end of each log
        partition.
        """
        self._commits = {
            group: ends[group[0]] - 1
            for group, _ in _highest_of_groups(log_partition[holds], group_id.filter(pa.array(holds)))
        }
        named = {group for group, _ in _highest_of_groups(log_partition, group_id)}
        named |= {(partition, name) for partition, name, *_ in self._records}
        self._without_offsets = {group: ends[group[0]] - 1 for group in named - self._commits.keys()}

    def records(self) -> pa.Table:
        """The facts about records of groups, in RECORD_SCHEMA."""
        rows = [
            {"log_partition": log_partition, "group_id": group_id} | row._asdict()
            for (log_partition, group_id, *_), row in self._records.items()
        ]
        return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)

    def commits(self) -> pa.Table:
        """The facts about offsets of groups, in RECORD_SCHEMA."""
        groups = [*self._commits, *self._without_offsets]
        value_offset = pa.array(list(self._commits.values()), pa.int64())
        tombstone_offset = pa.array(list(self._without_offsets.values()), pa.int64())
        columns = {
            "log_partition": pa.array([partition for partition, _ in groups], pa.int32()),
            "group_id": pa.array([group_id for _, group_id in groups], pa.string()),
            "record_type": pa.repeat(pa.scalar(COMMIT_RECORD_TYPE, pa.int16()), len(groups)),
            "record_key": pa.repeat(pa.scalar(""), len(groups)),
            "value_offset": pa.concat_arrays([value_offset, pa.nulls(len(tombstone_offset), pa.int64())]),
            "value": pa.nulls(len(groups), pa.binary()),
            "tombstone_offset": pa.concat_arrays([pa.nulls(len(value_offset), pa.int64()), tombstone_offset]),
        }
        return pa.table(columns, schema=RECORD_SCHEMA)


def _highest_of_groups(
    log_partition: npt.NDArray[np.int32], group_id: pa.Array, record_offset: Int64s | None = None
) -> Iterator[tuple[tuple[int, str], int]]:
    """Log partition and name of each group, and the highest of its record offsets."""
    offsets = np.zeros(len(group_id), dtype=np.int64) if record_offset is None else record_offset
    rows = pa.table([log_partition, group_id, offsets], ["log_partition", "group_id", "offset"])
    highest = rows.group_by(["log_partition", "group_id"], use_threads=False).aggregate([("offset", "max")])
    groups = zip(highest["log_partition"].to_pylist(), highest["group_id"].to_pylist(), strict=True)
    return zip(groups, highest["offset_max"].to_pylist(), strict=True)


def described(records: pa.Table, offsets_partitions: int, semantics: CoordinatorSemantics) -> pa.Table:
    """Rows of GROUP_SCHEMA, one for each group; a group that does not exist is Dead.

    ``records`` are rows of `group_records`, the rows of each group together.
    """
    starts = np.ones(records.num_rows + 1, dtype=np.bool_)  # of a group, and behind the last one
    starts[1:-1] = np.diff(codes_of(records["group_id"])) | np.diff(records["log_partition"].to_numpy())
    is_commit = pc.and_(pc.equal(records["record_type"], COMMIT_RECORD_TYPE), records["tombstone_offset"].is_null())
    is_simple = starts[:-1] & starts[1:] & is_commit.to_numpy().astype(np.bool_)
    others = records.filter(pa.array(~is_simple))
    rows = pa.concat_tables([_simple_groups(records.filter(pa.array(is_simple))), *_described_groups(others)])
    in_order = np.concatenate([np.flatnonzero(is_simple), np.flatnonzero(starts[:-1] & ~is_simple)])
    rows = rows.take(pa.array(np.argsort(in_order)))
    group_ids = rows["group_id"].combine_chunks()
    return replaced(rows, "misplaced", are_misplaced(group_ids, rows["log_partition"], offsets_partitions, semantics))


def _simple_groups(commits: pa.Table) -> pa.Table:
    """Groups with nothing but commits (R14): usually most groups, and all described alike."""
    alike = described_columns(describe_group(CLASSIC, {}))
    first = pa.array(np.zeros(commits.num_rows, dtype=np.int64))
    columns = {each.name: pa.array([alike.get(each.name)], each.type).take(first) for each in GROUP_SCHEMA}
    columns |= {name: commits[name] for name in ("log_partition", "group_id")}
    columns["record_offset"] = commits["value_offset"]
    return pa.table(columns, schema=GROUP_SCHEMA)


def _described_groups(records: pa.Table) -> Iterator[pa.Table]:
    done: list[dict[str, object]] = []
    rows = (row for batch in records.to_batches(_BATCH_ROWS) for row in batch.to_pylist())
    for (log_partition, group_id), of_group in groupby(rows, itemgetter("log_partition", "group_id")):
        of_records = [GroupRecordRow._make(row[name] for name in GroupRecordRow._fields) for row in of_group]
        done.append(_described(log_partition, group_id, of_records))
        if len(done) >= _BATCH_ROWS:
            yield pa.Table.from_pylist(done, schema=GROUP_SCHEMA)
            done = []
    yield pa.Table.from_pylist(done, schema=GROUP_SCHEMA)


def _described(log_partition: int, group_id: str, records: list[GroupRecordRow]) -> dict[str, object]:
    newest = max(offset for row in records for offset in (row.value_offset, row.tombstone_offset) if offset is not None)
    common = {"log_partition": log_partition, "group_id": group_id, "record_offset": newest}
    with working_on(lambda: f"group {group_id!r} of log partition {log_partition}, up to record offset {newest}"):
        live = live_records(records)
        description = None if live is None else describe_group(*live)
    return common | ({"state": DEAD} if description is None else described_columns(description))


def state_columns(description: GroupDescription) -> dict[str, object]:
    """State, protocol, epochs and leader of a group that exists, as columns of `groups` and of `group_history`."""
    return {name: getattr(description, name) for name in _STATE_COLUMNS}


def described_columns(description: GroupDescription) -> dict[str, object]:
    """The columns of a row of `groups` that describe a group which exists."""
    since = description.state_timestamp_ms
    return {
        **state_columns(description),
        "state_timestamp": None if since is None else within_bounds(since) * 1000,
        "members": [
            {**vars(member), "assignment": [vars(partition) for partition in member.assignment]}
            for member in description.members
        ],
    }
