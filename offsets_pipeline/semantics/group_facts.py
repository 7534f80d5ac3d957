"""The facts that decide whether a group exists and what it is (R14).

Each key of a group's records has two facts: its last value and its last tombstone. The commits of a group have one:
their highest record offset. All are maxima, so facts of overlapping batches merge in any order.

Under `classic` the offsets of a group have two facts: the end of the last batch that left it a visible or pending
offset, and the end of the last batch that may have left it none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, RECORD_SCHEMA
from offsets_pipeline.semantics.group_types import GROUP_TYPE_OF_RECORD_TYPE, named_topics, record_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.record.decode import DecodedKey

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class GroupRecordKey(NamedTuple):
    """Key of a group's record in one log partition.

    ``record_key``: the member id or the regular expression in the record's key; "" if the key has neither.
    """

    log_partition: int
    group_id: str
    record_type: int
    record_key: str


class GroupRecordFact(NamedTuple):
    """The last value of a key, and its last tombstone, with their record offsets."""

    value_offset: int | None = None
    value: bytes | None = None
    tombstone_offset: int | None = None


class GroupFacts:
    """Collects the facts of some records."""

    def __init__(self) -> None:
        #: Pairs of topic id and topic name, also of aborted and overwritten commits (R35).
        self.topics: set[tuple[str, str]] = set()
        self._records: dict[GroupRecordKey, GroupRecordFact] = {}
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
        name = GroupRecordKey(log_partition, key.group_id, key.record_type, record_key_of(key))
        fact = self._records.get(name, GroupRecordFact())
        if value is None:
            if fact.tombstone_offset is None or record_offset > fact.tombstone_offset:
                self._records[name] = fact._replace(tombstone_offset=record_offset)
        elif fact.value_offset is None or record_offset > fact.value_offset:
            self._records[name] = fact._replace(value_offset=record_offset, value=value)
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
        named |= {(key.log_partition, key.group_id) for key in self._records}
        self._without_offsets = {group: ends[group[0]] - 1 for group in named - self._commits.keys()}

    def records(self) -> pa.Table:
        """The facts about records of groups, in RECORD_SCHEMA."""
        rows = [key._asdict() | fact._asdict() for key, fact in self._records.items()]
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
    encoded = group_id.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    if record_offset is None:
        record_offset = np.zeros(len(indices), dtype=np.int64)
    for partition in np.unique(log_partition).tolist():
        here = log_partition == partition
        highest = np.full(len(names), -1, dtype=np.int64)
        np.maximum.at(highest, indices[here], record_offset[here])
        for index in np.flatnonzero(highest >= 0).tolist():
            yield (partition, names[index]), int(highest[index])
