"""The state of share partitions (R39): what a record of `__share_group_state` makes of it.

A snapshot replaces the state of a share partition, an update merges into it, a tombstone deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue, decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import SHARE_MESSAGE_TYPES, ShareRecordType

#: Start offset of a state that has none yet, and of an update that leaves it as it is.
NO_START_OFFSET = -1
_NO_EPOCH = -1


class DeliveryState(IntEnum):
    """Delivery state of the records of a state batch, as Kafka numbers it."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """Records with the same delivery state and delivery count. Batches sort as Kafka sorts them."""

    first_offset: int
    last_offset: int
    delivery_count: int
    delivery_state: int

    @property
    def _rank(self) -> tuple[int, int]:
        """Of two batches with the same record, the one with the higher rank counts."""
        return self.delivery_count, self.delivery_state


class SharePartition(NamedTuple):
    """Key of a share partition."""

    group_id: str
    topic_id: str
    partition: int


class ShareState(NamedTuple):
    """State of a share partition; ``delivery_complete_count`` is None if the broker wrote none."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int | None
    create_timestamp: int
    write_timestamp: int
    state_batches: tuple[StateBatch, ...]


class ShareRecord(NamedTuple):
    """A decoded record. ``state`` is None in a tombstone. Of the state of an update `applied` takes a part."""

    share_partition: SharePartition
    state: ShareState | None
    is_update: bool

    def applied(self, before: ShareState | None) -> ShareState | None:
        """Return the state after this record."""
        if before is None or self.state is None or not self.is_update:
            return self.state
        update = self.state
        start = before.start_offset if update.start_offset == NO_START_OFFSET else update.start_offset
        return before._replace(
            start_offset=start,
            leader_epoch=before.leader_epoch if update.leader_epoch == _NO_EPOCH else update.leader_epoch,
            delivery_complete_count=update.delivery_complete_count,
            state_batches=tuple(combined([*before.state_batches, *update.state_batches], start)),
        )


def combined(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Merge batches that may overlap into batches that do not, from a start offset on, as Kafka's coordinator does.

    Of each record the batch with the higher delivery count counts, then the one with the higher delivery state. Batches
    with equal counts and states become one if they touch. As in Kafka, two of them may stay apart: a batch does not
    merge with one that was final before.
    """
    waiting = [
        each._replace(first_offset=max(each.first_offset, start_offset))
        for each in batches
        if each.last_offset >= start_offset
    ]
    heapify(waiting)
    final = []
    while waiting:
        batch = heappop(waiting)
        if not waiting or not _meet(batch, waiting[0]):
            final.append(batch)
            continue
        for each in _merged(batch, heappop(waiting)):
            heappush(waiting, each)
    return final


def _meet(one: StateBatch, other: StateBatch) -> bool:
    """Whether the second batch, which does not start earlier, overlaps the first, or continues it in the same state."""
    touches = other.first_offset == one.last_offset + 1 and one._rank == other._rank  # noqa: SLF001 - same class
    return touches or other.first_offset <= one.last_offset


def _merged(one: StateBatch, other: StateBatch) -> list[StateBatch]:
    """One to three batches in place of two that meet; the second does not sort before the first."""
    first, second = one._rank, other._rank  # noqa: SLF001 - same class
    if first == second:
        return [one._replace(last_offset=max(one.last_offset, other.last_offset))]
    if second < first:
        rest = other._replace(first_offset=one.last_offset + 1)
        return [one, rest] if rest.first_offset <= rest.last_offset else [one]
    parts = [
        one._replace(last_offset=other.first_offset - 1),
        other,
        one._replace(first_offset=other.last_offset + 1),
    ]
    return [each for each in parts if each.first_offset <= each.last_offset]


# --- records


def read_record(key: bytes | None, value: bytes | None) -> ShareRecord:
    """Decode a record. Raises CorruptRecord or UnknownRecordType (R6)."""
    decoded = decode_key(key, SHARE_MESSAGE_TYPES)
    is_update = decoded.record_type == ShareRecordType.SHARE_UPDATE
    share_partition = SharePartition._make(decoded.fields[name] for name in SharePartition._fields)
    if value is None:
        if is_update:
            raise CorruptRecord("value", "null in an update, where only a snapshot may be deleted")
        return ShareRecord(share_partition, None, is_update)
    fields = decode_value(decoded.record_type, value, SHARE_MESSAGE_TYPES).fields
    batches = tuple(StateBatch._make(each[name] for name in StateBatch._fields) for each in fields["state_batches"])
    # an update has fewer fields; without a snapshot before it, the others are 0
    known = {name: fields.get(name, 0) for name in ShareState._fields}
    return ShareRecord(share_partition, ShareState(**{**known, "state_batches": batches}), is_update)


def is_share_key(key: bytes | None) -> bool:
    """Whether a share coordinator may have written this key."""
    try:
        decoded = decode_key(key, SHARE_MESSAGE_TYPES)
    except (CorruptRecord, UnknownRecordType):
        return False
    return not decoded.trailing


def snapshot_record(share_partition: SharePartition, state: ShareState) -> tuple[bytes, bytes]:
    """Key and value of a snapshot of a state."""
    record_type = ShareRecordType.SHARE_SNAPSHOT
    batches = [each._asdict() for each in state.state_batches]
    return (
        encode_key(DecodedKey(record_type, share_partition._asdict()), SHARE_MESSAGE_TYPES),
        encode_value(record_type, DecodedValue(0, {**state._asdict(), "state_batches": batches}), SHARE_MESSAGE_TYPES),
    )
