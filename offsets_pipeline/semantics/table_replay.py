"""Replay an Arrow table of log rows: decode its offset commits together, then apply the rows one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.semantics.compaction import are_commits
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition

if TYPE_CHECKING:
    import numpy.typing as npt

#: Fewer commits than this are faster to decode one by one.
_FEW = 32


def replay_table(state: PartitionState, rows: pa.Table) -> None:
    """Replay rows of the state's log partition in record-offset order; columns are those of `LogRow`."""
    commits = are_commits(rows["key"]) & rows["control_type"].is_null().to_numpy()
    if int(commits.sum()) < _FEW:
        for row in log_rows(rows):
            state.replay(row)
        return
    decoded = _decoded(rows, np.flatnonzero(commits))
    others = [position for position in range(rows.num_rows) if position not in decoded]
    plain = dict(zip(others, log_rows(rows.take(pa.array(others, pa.int64()))), strict=True))
    for position in range(rows.num_rows):
        if position in plain:
            state.replay(plain[position])
            continue
        group_id, where, offset, record_offset, producer_id = decoded[position]
        if offset is None:
            state.replay_tombstone(record_offset, group_id, where, producer_id)
        else:
            state.replay_commit(group_id, where, offset, producer_id)


def log_rows(rows: pa.Table) -> Iterator[LogRow]:
    """The rows as `LogRow`."""
    return map(LogRow._make, zip(*(rows[name].to_pylist() for name in LogRow._fields), strict=True))


_Decoded = tuple[str, TopicPartition, CommittedOffset | None, int, int | None]


def _decoded(rows: pa.Table, positions: npt.NDArray[np.int64]) -> dict[int, _Decoded]:
    """The decoded commits and tombstones by position; positions of records that do not decode are missing (R6)."""
    rows = rows.take(pa.array(positions))
    commits = CommitColumns(rows["key"].combine_chunks(), rows["value"].combine_chunks())
    if not commits.valid.all():
        valid = np.flatnonzero(commits.valid)
        rows, positions, commits = rows.take(pa.array(valid)), positions[valid], commits.take(valid)
    places = map(TopicPartition, _texts(commits.topics()), commits.partition.tolist())
    record_offsets = rows["record_offset"].to_pylist()
    offsets = map(
        CommittedOffset,
        record_offsets,
        commits.committed_offset.tolist(),
        commits.optional(commits.leader_epoch, pa.int32()).to_pylist(),
        commits.metadata().to_pylist(),
        commits.commit_timestamp_ms.tolist(),
        commits.optional(commits.expire_timestamp_ms, pa.int64()).to_pylist(),
        commits.topic_ids().to_pylist(),
    )
    return {
        position: (group_id, where, None if tombstone else offset, record_offset, producer_id)
        for position, tombstone, group_id, where, offset, record_offset, producer_id in zip(
            positions.tolist(),
            commits.tombstone.tolist(),
            _texts(commits.group_ids()),
            places,
            offsets,
            record_offsets,
            rows["producer_id"].to_pylist(),
            strict=True,
        )
    }


def _texts(column: pa.Array) -> Iterator[str]:
    """The texts; equal texts are one object, because many commits name few groups and topics."""
    encoded = column.dictionary_encode()
    texts: list[str] = encoded.dictionary.to_pylist()
    indices: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return map(texts.__getitem__, indices.tolist())
