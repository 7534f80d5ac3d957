"""Encode the records that a coordinator appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.owned_log import Record
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.log_batches import CONTROL_KEYS, CONTROL_VALUE
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, RecordType
from offsets_pipeline.semantics.group_types import GROUP_METADATA, GROUP_REMOVING_TYPES, GROUP_TYPE_OF_RECORD_TYPE

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.requests import GroupMetadata, OffsetAndMetadata
    from offsets_pipeline.kafka.record.schema import Fields
    from offsets_pipeline.semantics.partition_state import Group, TopicPartition

#: The only version of a commit's value with an expire timestamp (R7).
_EXPIRING_VERSION = 1
_LEADER_EPOCH_SINCE, _TOPIC_ID_SINCE = 3, 4
_GROUP_METADATA_VERSION = 3  # as brokers write it
_GROUP_FIELDS = ("protocol_type", "generation", "protocol", "leader")
_MEMBER_FIELDS = (
    *("member_id", "group_instance_id", "client_id", "client_host", "rebalance_timeout_ms", "session_timeout_ms"),
    *("subscription", "assignment"),
)

#: By group type, the record type whose tombstone removes the group (R14). That tombstone comes last.
_REMOVING_TYPE = {GROUP_TYPE_OF_RECORD_TYPE[each]: each for each in GROUP_REMOVING_TYPES}


def commit_record(
    log_partition: int,
    group_id: str,
    where: TopicPartition,
    offset: OffsetAndMetadata,
    now_ms: int,
    *,
    version: int,
    expire_timestamp_ms: int | None = None,
    producer: tuple[int, int] | None = None,
) -> Record:
    """Return the record of an offset commit, without the fields that the value's version lacks.

    An expire timestamp overrides ``version``. ``producer`` is the id and epoch of a transaction's producer.

    Raises UnwritableRecord.
    """
    if expire_timestamp_ms is not None:
        version = _EXPIRING_VERSION
    commit_timestamp_ms = now_ms if offset.commit_timestamp_ms is None else offset.commit_timestamp_ms
    fields: Fields = {"offset": offset.offset, "metadata": offset.metadata, "commit_timestamp": commit_timestamp_ms}
    if version == _EXPIRING_VERSION:
        fields["expire_timestamp"] = expire_timestamp_ms
    if version >= _LEADER_EPOCH_SINCE:
        fields["leader_epoch"] = offset.leader_epoch
    if version >= _TOPIC_ID_SINCE:
        fields["topic_id"] = offset.topic_id
    value = encode_value(RecordType.OFFSET_COMMIT, DecodedValue(version, fields))
    producer_id, producer_epoch = (None, None) if producer is None else producer
    return Record(log_partition, _commit_key(group_id, where), value, producer_id, producer_epoch)


def offset_tombstone(log_partition: int, group_id: str, where: TopicPartition, request: str | None = None) -> Record:
    """Return the tombstone of an offset; ``request`` is as in `Record`."""
    return Record(log_partition, _commit_key(group_id, where), None, request=request)


def group_record(log_partition: int, group: GroupMetadata, now_ms: int) -> Record:
    """Return the record with the metadata of a classic group. Raises UnwritableRecord."""
    # `GroupMetadata` has the names of the record, but the record names its timeouts without their unit
    members = [{name.removesuffix("_ms"): getattr(each, name) for name in _MEMBER_FIELDS} for each in group.members]
    fields: Fields = {name: getattr(group, name) for name in _GROUP_FIELDS}
    fields |= {"current_state_timestamp": now_ms, "members": members}
    value = encode_value(GROUP_METADATA, DecodedValue(_GROUP_METADATA_VERSION, fields))
    return Record(log_partition, group_key(GROUP_METADATA, group.group_id, ""), value)


def group_tombstones(log_partition: int, group_id: str, group: Group, request: str | None = None) -> list[Record]:
    """Return tombstones for all records of a group, the group's own tombstone last; ``request`` is as in `Record`.

    A simple group has no record, and gets the tombstone all the same (R21).
    """
    removing = _REMOVING_TYPE[group.group_type]
    names = sorted((name for name in group.records if name[0] != removing), reverse=True)
    return [
        Record(log_partition, group_key(name[0], group_id, name[1]), None, request=request)
        for name in [*names, (removing, "")]
    ]


def marker(log_partition: int, producer_id: int, producer_epoch: int, control_type: str) -> Record:
    """Return the control record that ends a transaction in a log partition (R11)."""
    return Record(log_partition, CONTROL_KEYS[control_type], CONTROL_VALUE, producer_id, producer_epoch, control_type)


def _commit_key(group_id: str, where: TopicPartition) -> bytes:
    # always version 1 (R7): cleaning compares raw keys, so a commit and its tombstone need the same key (R23)
    fields: Fields = {"group": group_id, "topic": where.topic, "partition": where.partition}
    return encode_key(DecodedKey(RecordType.OFFSET_COMMIT, fields))


def group_key(record_type: int, group_id: str, name: str) -> bytes:
    """Return the key of a group's record. ``name`` is the member's id; empty for a record of the whole group."""
    schema = MESSAGE_TYPES[record_type].key
    fields: Fields = {field.name: name for field in schema.fields}
    fields |= {field.name: group_id for field in schema.fields if field.name in {"group", "group_id"}}
    return encode_key(DecodedKey(record_type, fields))
