"""Logs as a legal cleaning by a broker may leave them (R16, R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.semantics.log_row import COMMIT

if TYPE_CHECKING:
    from offsets_pipeline.semantics.log_row import LogRow


def endings(rows: list[LogRow]) -> dict[int, str | None]:
    """Of each transactional record its transaction's marker: COMMIT, ABORT, or None while it is open (R11)."""
    next_marker: dict[int, str] = {}
    ended: dict[int, str | None] = {}
    for row in reversed(rows):
        if row.producer_id is None:
            continue
        if row.control_type is not None:
            next_marker[row.producer_id] = row.control_type
        else:
            ended[row.record_offset] = next_marker.get(row.producer_id)
    return ended


def cleaned(rows: list[LogRow], up_to: int) -> list[LogRow]:
    """R23: of the rows below ``up_to`` the last of each raw key, the open transactions, and all markers."""
    ended = endings(rows)
    last: dict[bytes, int] = {}
    for row in rows:
        if row.control_type is None and row.key is not None and ended.get(row.record_offset, COMMIT) == COMMIT:
            last[row.key] = row.record_offset
    return [
        row
        for row in rows
        if row.record_offset >= up_to
        or row.control_type is not None
        or (row.key is not None and last.get(row.key) == row.record_offset)
        or ended.get(row.record_offset, COMMIT) is None
    ]


def last_removals(rows: list[LogRow]) -> dict[str, int]:
    """The record offset of the last tombstone that removed each group."""
    removed: dict[str, int] = {}
    for row in rows:
        if row.control_type is None and row.value is None:
            key = decode_key(row.key)
            if key.record_type in GROUP_REMOVING_TYPES:
                removed[key.group_id] = row.record_offset
    return removed
