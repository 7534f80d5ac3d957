"""The columns of facts about the state, which replays give out and which the tables of a store have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

STRING, BINARY, BOOLEAN, TIMESTAMP = pa.string(), pa.binary(), pa.bool_(), pa.timestamp("us", tz="UTC")
SHORT, INT, LONG = pa.int16(), pa.int32(), pa.int64()


@dataclass(frozen=True)
class Column:
    """A column: its name, type, meaning, and whether it may be null."""

    name: str
    type: pa.DataType
    comment: str
    nullable: bool = True


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of columns."""
    return pa.schema([pa.field(each.name, each.type, each.nullable) for each in columns])


LOG_PARTITION = Column("log_partition", INT, "partition of the log", nullable=False)
RECORD_OFFSET = Column("record_offset", LONG, "position of the record in its log partition", nullable=False)
GROUP_ID = Column("group_id", STRING, "the group", nullable=False)
MISPLACED = Column(
    "misplaced", BOOLEAN, "in another log partition than by R1; readers do not return it", nullable=False
)
#: A topic-partition that offsets are of.
TOPIC_PARTITION = (
    Column("topic", STRING, "the topic", nullable=False),
    Column("partition", INT, "the topic's partition", nullable=False),
)

COMMIT_VALUE = (
    Column("committed_offset", LONG, "what the consumer stored; null: deleted by a tombstone"),
    Column("leader_epoch", INT, "leader epoch of the last consumed record, if the client sent one"),
    Column("metadata", STRING, "the client's own note"),
    Column("commit_timestamp", TIMESTAMP, "when the coordinator took the commit"),
    Column("expire_timestamp", TIMESTAMP, "when it expires, where the commit says so (value version 1)"),
    Column("topic_id", STRING, "id of the topic, where the commit holds one (value version 4)"),
)

#: A row of `offset_facts`.
OFFSET_COLUMNS = (
    LOG_PARTITION,
    GROUP_ID,
    *TOPIC_PARTITION,
    *COMMIT_VALUE,
    RECORD_OFFSET,
    Column(
        "position",
        LONG,
        "rows of one offset compare by it: the record offset, but under classic the tombstone that a later marker "
        "overruled (R10c)",
        nullable=False,
    ),
    MISPLACED,
)
#: A row of `group_records`.
GROUP_RECORD_COLUMNS = (
    LOG_PARTITION,
    GROUP_ID,
    Column("record_type", SHORT, "R5", nullable=False),
    Column("record_key", STRING, 'member id or regular expression, else ""', nullable=False),
    Column("value_offset", LONG, "record offset of the last value"),
    Column("value", BINARY, "the last value, raw"),
    Column("tombstone_offset", LONG, "record offset of the last tombstone"),
)

MEMBER_COLUMNS = (
    Column("member_id", STRING, "the member"),
    Column("instance_id", STRING, "group.instance.id of a static member"),
    Column("rack_id", STRING, "client.rack"),
    Column("client_id", STRING, "client.id"),
    Column("client_host", STRING, "the client's address"),
    Column("session_timeout_ms", INT, "session timeout in milliseconds"),
    Column("rebalance_timeout_ms", INT, "rebalance timeout in milliseconds"),
    Column("member_epoch", INT, "epoch of a member of any but a classic group"),
    Column("subscribed_topics", pa.list_(STRING), "topics that the member subscribes"),
    Column("subscribed_regex", STRING, "regular expression of topics that the member subscribes"),
)
_ASSIGNMENT = pa.list_(pa.struct([("topic", STRING), ("topic_id", STRING), ("partition", INT)]))
MEMBERS = Column(
    "members",
    pa.list_(pa.struct([*((each.name, each.type) for each in MEMBER_COLUMNS), ("assignment", _ASSIGNMENT)])),
    "its members, by member id",
)
#: Columns of a described group, in facts and in the published table.
GROUP_DESCRIPTION = (
    Column("generation", INT, "of a classic group"),
    Column("group_epoch", INT, "of any other group"),
    Column("assignment_epoch", INT, "of any other group"),
    Column("leader", STRING, "member id of a classic group's leader"),
    Column("state_timestamp", TIMESTAMP, "since when a classic group is in its state, if the log has it"),
)
NEWEST_RECORD = Column("record_offset", LONG, "the newest record that this row was made from", nullable=False)

#: A row of `group_facts`.
GROUP_COLUMNS = (
    LOG_PARTITION,
    GROUP_ID,
    Column("group_type", STRING, "Classic, Consumer, Share or Streams; null for a dead group"),
    Column("state", STRING, "as the coordinator derives it (R33); Dead: there is no such group", nullable=False),
    Column("protocol_type", STRING, "R34"),
    Column("protocol", STRING, "a classic group's protocol, a consumer group's server assignor (R34)"),
    *GROUP_DESCRIPTION,
    MEMBERS,
    NEWEST_RECORD,
    MISPLACED,
)
#: A row of `connect_records`.
CONNECT_COLUMNS = (
    LOG_PARTITION,
    Column("raw_key", STRING, "the record's key as the worker wrote it", nullable=False),
    Column("record_type", STRING, "offset, connector-status, task-status, connector-config, ...", nullable=False),
    Column("connector", STRING, 'the connector; "" for records of the whole worker', nullable=False),
    Column("source_partition", STRING, "of an offset: its source partition as JSON with sorted members"),
    Column("task", INT, "of a task's record: the number of the task"),
    Column("value", STRING, "the record's value, JSON; null: deleted by a tombstone"),
    Column("record_timestamp", TIMESTAMP, "the record's own timestamp"),
    RECORD_OFFSET,
)

_STATE_BATCH = pa.struct(
    [("first_offset", LONG), ("last_offset", LONG), ("delivery_state", STRING), ("delivery_count", SHORT)]
)
SHARE_PARTITION = (
    GROUP_ID,
    Column("topic_id", STRING, "the topic's id, in Kafka's notation", nullable=False),
    Column("partition", INT, "the topic's partition", nullable=False),
)
SHARE_STATE = (
    Column("state_epoch", INT, "counts initialisations of the state"),
    Column("leader_epoch", INT, "of the partition's leader that wrote the state; -1: of none yet"),
    Column("snapshot_epoch", INT, "counts snapshots of the state"),
    Column("start_offset", LONG, "the first record whose delivery is not complete; -1: not known yet"),
    Column("delivery_complete_count", INT, "records from the start offset on whose delivery is complete"),
    Column("state_batches", pa.list_(_STATE_BATCH), "delivery state and delivery count of records"),
    Column("create_timestamp", TIMESTAMP, "when the state was created"),
    Column("write_timestamp", TIMESTAMP, "when its last snapshot was written"),
    Column("record_timestamp", TIMESTAMP, "timestamp of its last record"),
)

#: A row of `share_partition_facts`.
SHARE_COLUMNS = (LOG_PARTITION, *SHARE_PARTITION, *SHARE_STATE, RECORD_OFFSET)
