"""Schemas of all record types in `__consumer_offsets`, as brokers 4.0 to 4.4 write them (R5, R7, R8).

Field names are Kafka's. `MESSAGE_TYPES` maps a record type to its key schema and its value schemas.
`SHARE_MESSAGE_TYPES` does so for `__share_group_state`, as brokers 4.2 to 4.4 write it (R39).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from offsets_pipeline.kafka.record.schema import ArrayOf, Field, Schema, Sized, StructOf
from offsets_pipeline.kafka.record.wire import INT8, INT16, INT32, INT64, UINT16, UUID

NONE_SENTINEL = -1  # R7

STRING, BYTES = Sized.STRING, Sized.BYTES


class RecordType(IntEnum):
    """Record type: the first int16 of a key (R5). Kafka never released 18."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    SHARE_GROUP_PARTITION_METADATA = 9
    SHARE_GROUP_MEMBER_METADATA = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_ASSIGNMENT_METADATA = 12
    SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT = 14
    SHARE_GROUP_STATE_PARTITION_METADATA = 15
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16
    STREAMS_GROUP_METADATA = 17
    STREAMS_GROUP_MEMBER_METADATA = 19
    STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA = 20
    STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER = 21
    STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT = 22
    STREAMS_GROUP_TOPOLOGY = 23


@dataclass(frozen=True)
class MessageType:
    """Key and value of one record type.

    `values` has several schemas if brokers used one version number for different layouts (early access share groups
    of 4.0). The newest comes first. The first schema that decodes a value wins.
    """

    key: Schema
    values: tuple[Schema, ...]


_GROUP, _GROUP_ID, _MEMBER_ID = Field("group", STRING), Field("group_id", STRING), Field("member_id", STRING)
_CLIENT = (Field("client_id", STRING), Field("client_host", STRING))
_RACK_ID = Field("rack_id", STRING, nullable=True)
_MEMBER = (Field("instance_id", STRING, nullable=True), _RACK_ID, *_CLIENT)
_TOPIC_NAMES = Field("subscribed_topic_names", ArrayOf(STRING))
_TOPIC_ID, _SUBTOPOLOGY_ID = Field("topic_id", UUID), Field("subtopology_id", STRING)
_PARTITIONS = Field("partitions", ArrayOf(INT32))
_TOPIC, _NAMED_TOPIC = (_TOPIC_ID, _PARTITIONS), (_TOPIC_ID, Field("topic_name", STRING))
_TASK = (_SUBTOPOLOGY_ID, _PARTITIONS)
_KEY_VALUE = (Field("key", STRING), Field("value", STRING))
_ASSIGNMENT_EPOCHS = Field("assignment_epochs", ArrayOf(INT32), nullable=True, tag=0)  # consumer: since 4.3
_MEMBER_EPOCHS = (Field("member_epoch", INT32), Field("previous_member_epoch", INT32), Field("state", INT8))


def _array(name: str, *fields: Field, nullable: bool = False, tag: int | None = None) -> Field:
    """An array of structs with these fields."""
    return Field(name, ArrayOf(StructOf(fields)), nullable=nullable, tag=tag)


_OFFSET_COMMIT_KEY = (_GROUP, Field("topic", STRING), Field("partition", INT32))
# R7: the versions of an offset commit
_OFFSET_COMMIT_VALUE = (
    Field("offset", INT64),
    Field("leader_epoch", INT32, since=3, sentinel=NONE_SENTINEL),
    Field("metadata", STRING),
    Field("commit_timestamp", INT64),
    Field("expire_timestamp", INT64, since=1, until=1, sentinel=NONE_SENTINEL),
    Field("topic_id", UUID, since=4, tag=0),  # 4.1 and newer, and only for some clients
)

_GROUP_METADATA_VALUE = Schema(
    "GroupMetadataValue",
    (
        Field("protocol_type", STRING),
        Field("generation", INT32),
        Field("protocol", STRING, nullable=True),
        Field("leader", STRING, nullable=True),
        Field("current_state_timestamp", INT64, since=2, sentinel=NONE_SENTINEL),
        _array(
            "members",
            _MEMBER_ID,
            Field("group_instance_id", STRING, since=3, nullable=True),
            *_CLIENT,
            Field("rebalance_timeout", INT32, since=1),
            Field("session_timeout", INT32),
            Field("subscription", BYTES),
            Field("assignment", BYTES),
        ),
    ),
    max_version=4,
    flexible_since=4,
)

_CLASSIC_MEMBER_METADATA = StructOf(
    (
        Field("session_timeout_ms", INT32),
        _array("supported_protocols", Field("name", STRING), Field("metadata", BYTES)),
    )
)
_CONSUMER_GROUP_MEMBER_METADATA_VALUE = (
    *_MEMBER,
    _TOPIC_NAMES,
    Field("subscribed_topic_regex", STRING, nullable=True),
    Field("rebalance_timeout_ms", INT32),
    Field("server_assignor", STRING, nullable=True),
    # R8: written even when it is null
    Field("classic_member_metadata", _CLASSIC_MEMBER_METADATA, nullable=True, tag=0, written_when_null=True),
)

_RACKS = _array("partition_metadata", Field("partition", INT32), Field("racks", ArrayOf(STRING)))
_PARTITION_METADATA_VALUE = (_array("topics", *_NAMED_TOPIC, Field("num_partitions", INT32), _RACKS),)

_TOPIC_INFO = (
    Field("name", STRING),
    Field("partitions", INT32),
    Field("replication_factor", INT16),
    _array("topic_configs", *_KEY_VALUE),
)
_SUBTOPOLOGIES = _array(
    "subtopologies",
    _SUBTOPOLOGY_ID,
    Field("source_topics", ArrayOf(STRING)),
    Field("source_topic_regex", ArrayOf(STRING)),
    _array("state_changelog_topics", *_TOPIC_INFO),
    Field("repartition_sink_topics", ArrayOf(STRING)),
    _array("repartition_source_topics", *_TOPIC_INFO),
    _array(
        "copartition_groups",
        Field("source_topics", ArrayOf(INT16)),
        Field("source_topic_regex", ArrayOf(INT16)),
        Field("repartition_source_topics", ArrayOf(INT16)),
    ),
)

_EPOCH, _METADATA_HASH = Field("epoch", INT32), Field("metadata_hash", INT64)
_ASSIGNMENT_EPOCH = (Field("assignment_epoch", INT32), Field("assignment_timestamp", INT64, tag=0))  # tag: since 4.3
_ASSIGNMENT = (_array("topic_partitions", *_TOPIC),)
_TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")
_OF_GROUP: tuple[Field, ...] = ()
_OF_MEMBER = (_MEMBER_ID,)

#: The record types of groups that are not classic: the fields of the key behind the group id, then those of the value,
#: in each of its layouts. The value is flexible.
_RECORDS_OF_GROUPS: dict[RecordType, tuple[tuple[Field, ...], ...]] = {
    RecordType.CONSUMER_GROUP_METADATA: (_OF_GROUP, (_EPOCH, Field("metadata_hash", INT64, tag=0))),
    RecordType.CONSUMER_GROUP_PARTITION_METADATA: (_OF_GROUP, _PARTITION_METADATA_VALUE),
    RecordType.CONSUMER_GROUP_MEMBER_METADATA: (_OF_MEMBER, _CONSUMER_GROUP_MEMBER_METADATA_VALUE),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: (_OF_GROUP, _ASSIGNMENT_EPOCH),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: (_OF_MEMBER, _ASSIGNMENT),
    RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: (
        _OF_MEMBER,
        (
            *_MEMBER_EPOCHS,
            _array("assigned_partitions", *_TOPIC, _ASSIGNMENT_EPOCHS),
            _array("partitions_pending_revocation", *_TOPIC, _ASSIGNMENT_EPOCHS),
        ),
    ),
    RecordType.SHARE_GROUP_PARTITION_METADATA: (_OF_GROUP, _PARTITION_METADATA_VALUE),
    RecordType.SHARE_GROUP_MEMBER_METADATA: (_OF_MEMBER, (_RACK_ID, *_CLIENT, _TOPIC_NAMES)),
    RecordType.SHARE_GROUP_METADATA: (
        _OF_GROUP,
        (_EPOCH, _METADATA_HASH),
        (_EPOCH, Field("metadata_hash", INT64, since=1)),  # 4.0
    ),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: (_OF_GROUP, _ASSIGNMENT_EPOCH),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: (_OF_MEMBER, _ASSIGNMENT),
    RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: (
        _OF_MEMBER,
        (*_MEMBER_EPOCHS, _array("assigned_partitions", *_TOPIC)),
    ),
    RecordType.SHARE_GROUP_STATE_PARTITION_METADATA: (
        _OF_GROUP,
        *(
            (
                initializing,
                _array("initialized_topics", *_NAMED_TOPIC, _PARTITIONS),
                _array("deleting_topics", *_NAMED_TOPIC),
            )
            for initializing in (
                _array("initializing_topics", *_NAMED_TOPIC, _PARTITIONS),
                Field("initializing_topics", ArrayOf(INT32), since=1),  # 4.0 had none
            )
        ),
    ),
    RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: (
        (Field("regular_expression", STRING),),
        (Field("topics", ArrayOf(STRING)), Field("version", INT64), Field("timestamp", INT64)),
    ),
    RecordType.STREAMS_GROUP_METADATA: (
        _OF_GROUP,
        (
            _EPOCH,
            _METADATA_HASH,
            Field("validated_topology_epoch", INT32, tag=0),
            _array("last_assignment_configs", *_KEY_VALUE, nullable=True, tag=1),
            # since 4.4: what a plugin of the broker holds of the topology
            Field("stored_description_topology_epoch", INT32, tag=2),
            Field("failed_description_topology_epoch", INT32, tag=3),
        ),
    ),
    RecordType.STREAMS_GROUP_MEMBER_METADATA: (
        _OF_MEMBER,
        (
            *_MEMBER,
            Field("rebalance_timeout_ms", INT32),
            Field("topology_epoch", INT32),
            Field("process_id", STRING),
            Field("user_endpoint", StructOf((Field("host", STRING), Field("port", UINT16))), nullable=True),
            _array("client_tags", *_KEY_VALUE),
        ),
    ),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA: (_OF_GROUP, _ASSIGNMENT_EPOCH),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER: (_OF_MEMBER, tuple(_array(name, *_TASK) for name in _TASKS)),
    RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT: (
        _OF_MEMBER,
        (
            *_MEMBER_EPOCHS,
            *(_array(name, *_TASK, _ASSIGNMENT_EPOCHS) for name in _TASKS),
            *(_array(f"{name}_pending_revocation", *_TASK, _ASSIGNMENT_EPOCHS) for name in _TASKS),
        ),
    ),
    RecordType.STREAMS_GROUP_TOPOLOGY: (_OF_GROUP, (_EPOCH, _SUBTOPOLOGIES)),
}


class ShareRecordType(IntEnum):
    """Record type of `__share_group_state`: the first int16 of a key."""

    SHARE_SNAPSHOT = 0
    SHARE_UPDATE = 1


_SHARE_KEY = (_GROUP_ID, _TOPIC_ID, Field("partition", INT32))
_SNAPSHOT_EPOCH, _STATE_EPOCH = Field("snapshot_epoch", INT32), Field("state_epoch", INT32)
_SHARE_STATE = (Field("leader_epoch", INT32), Field("start_offset", INT64))
_STATE_BATCHES = (
    _array(
        "state_batches",
        Field("first_offset", INT64),
        Field("last_offset", INT64),
        Field("delivery_state", INT8),
        Field("delivery_count", INT16),
    ),
    Field("delivery_complete_count", INT32, sentinel=NONE_SENTINEL, tag=0),
)
_SHARE_TIMES = (Field("create_timestamp", INT64), Field("write_timestamp", INT64))


def _message_type(record_type: RecordType, key: tuple[Field, ...], layouts: Iterable[tuple[Field, ...]]) -> MessageType:
    name = record_type.name.title().replace("_", "")  # Kafka's
    return MessageType(
        Schema(f"{name}Key", (_GROUP_ID, *key)),
        tuple(Schema(f"{name}Value", fields, flexible_since=0) for fields in layouts),
    )


MESSAGE_TYPES: Mapping[int, MessageType] = {
    # R7: key version 0 goes with value version 0 only
    RecordType.LEGACY_OFFSET_COMMIT: MessageType(
        Schema("OffsetCommitKey", _OFFSET_COMMIT_KEY),
        (Schema("OffsetCommitValue", _OFFSET_COMMIT_VALUE, max_version=0),),
    ),
    RecordType.OFFSET_COMMIT: MessageType(
        Schema("OffsetCommitKey", _OFFSET_COMMIT_KEY),
        (Schema("OffsetCommitValue", _OFFSET_COMMIT_VALUE, max_version=4, flexible_since=4),),
    ),
    RecordType.GROUP_METADATA: MessageType(Schema("GroupMetadataKey", (_GROUP,)), (_GROUP_METADATA_VALUE,)),
    **{each: _message_type(each, key, layouts) for each, (key, *layouts) in _RECORDS_OF_GROUPS.items()},
}

SHARE_MESSAGE_TYPES: Mapping[int, MessageType] = {
    ShareRecordType.SHARE_SNAPSHOT: MessageType(
        Schema("ShareSnapshotKey", _SHARE_KEY),
        (
            Schema(
                "ShareSnapshotValue",
                (_SNAPSHOT_EPOCH, _STATE_EPOCH, *_SHARE_STATE, *_SHARE_TIMES, *_STATE_BATCHES),
                flexible_since=0,
            ),
        ),
    ),
    ShareRecordType.SHARE_UPDATE: MessageType(
        Schema("ShareUpdateKey", _SHARE_KEY),
        (Schema("ShareUpdateValue", (_SNAPSHOT_EPOCH, *_SHARE_STATE, *_STATE_BATCHES), flexible_since=0),),
    ),
}
