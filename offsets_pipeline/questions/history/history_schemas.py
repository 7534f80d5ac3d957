"""The columns of the views of history. docs/history.md explains them."""

from __future__ import annotations

import pyarrow as pa

from offsets_pipeline.semantics.facts import GROUP_ID, LOG_PARTITION, RECORD_OFFSET, TOPIC_PARTITION, Column
from offsets_pipeline.store.delta.schemas import Table

_TEXT, _FLAG, _TIME = pa.string(), pa.bool_(), pa.timestamp("us", tz="UTC")
_SHORT, _INT, _LONG, _TEXTS = pa.int16(), pa.int32(), pa.int64(), pa.list_(pa.string())

_LOG_INCARNATION = Column("log_incarnation", _INT, "incarnation of the log that has the record", nullable=False)
_RECORD_TIMESTAMP = Column("record_timestamp", _TIME, "the record's own timestamp")
_BEGINS = Column(
    "begins_incarnation",
    _FLAG,
    "the first row of the group in a later log incarnation: state before it is unknown",
    nullable=False,
)
_MISPLACED = Column(
    "misplaced", _FLAG, "in another log partition than by R1: the coordinator never answers it", nullable=False
)
_PLACE = (LOG_PARTITION, _LOG_INCARNATION, RECORD_OFFSET)

LOG_RECORDS = Table(
    "log_records",
    "The log, decoded: one row per record, including control records and records that do not decode.",
    (
        *_PLACE,
        _RECORD_TIMESTAMP,
        Column("record_type", _SHORT, "R5; null for a control record, and for a key without a type"),
        Column(
            "record_name", _TEXT, "name of the record type; ControlRecord, Unknown (R6) or Corrupt (R6)", nullable=False
        ),
        Column("tombstone", _FLAG, "the record has no value", nullable=False),
        Column("group_id", _TEXT, "the group"),
        Column("topic", _TEXT, "of an offset commit: the topic"),
        Column("partition", _INT, "of an offset commit: the topic's partition"),
        Column("committed_offset", _LONG, "of an offset commit: the offset"),
        Column("leader_epoch", _INT, "of an offset commit: leader epoch of the last consumed record, if sent"),
        Column("metadata", _TEXT, "of an offset commit: the client's note"),
        Column("commit_timestamp", _TIME, "of an offset commit: when the coordinator took it"),
        Column("expire_timestamp", _TIME, "of an offset commit: when it expires, where it says so"),
        Column("topic_id", _TEXT, "of an offset commit: the topic's id, where it holds one"),
        Column("member_id", _TEXT, "of a member's record: the member; of type 16: the regular expression"),
        Column("key_json", _TEXT, "all fields of the key as JSON; bytes in base64"),
        Column(
            "value_json", _TEXT, "of any other record than a commit: all fields of the value as JSON; bytes in base64"
        ),
        Column("value_version", _SHORT, "version of the value"),
        Column("producer_id", _LONG, "of a record of a transaction and of a control record"),
        Column("producer_epoch", _SHORT, "epoch of the producer"),
        Column("control_type", _TEXT, "COMMIT or ABORT, OTHER for other control records; null for data"),
        Column("outcome", _TEXT, "of a record of a transaction: committed, aborted or open (R11); else null"),
        Column("problem", _TEXT, "why the record does not decode (R6)"),
    ),
)

OFFSET_HISTORY = Table(
    "offset_history",
    "Every offset commit that became visible, transactional ones at their marker.",
    (
        GROUP_ID,
        *TOPIC_PARTITION,
        Column("commit_timestamp", _TIME, "when the coordinator took the commit", nullable=False),
        Column("committed_offset", _LONG, "the offset", nullable=False),
        Column("previous_offset", _LONG, "the offset that was visible before; null: there was none"),
        Column("delta", _LONG, "committed_offset minus previous_offset; null if 64 bits cannot hold it"),
        Column("is_rewind", _FLAG, "the commit went back: committed_offset is below previous_offset", nullable=False),
        Column("superseded", _FLAG, "never answered: a commit with a higher record offset was visible", nullable=False),
        Column("committed_by", _TEXT, "the member to which the partition was assigned, or unknown", nullable=False),
        Column("client_id", _TEXT, "client id of this member"),
        Column("client_host", _TEXT, "host of this member"),
        Column("leader_epoch", _INT, "leader epoch of the last consumed record, if the client sent one"),
        Column("metadata", _TEXT, "the client's own note", nullable=False),
        Column("expire_timestamp", _TIME, "when it expires, where the commit says so"),
        Column("topic_id", _TEXT, "the topic's id, where the commit holds one"),
        Column("producer_id", _LONG, "of a transactional commit"),
        Column("visible_offset", _LONG, "record offset that made it visible: its own, or the marker's", nullable=False),
        Column("visible_timestamp", _TIME, "timestamp of that record"),
        _RECORD_TIMESTAMP,
        *_PLACE,
        _BEGINS,
        _MISPLACED,
    ),
)

GROUP_HISTORY = Table(
    "group_history",
    "Every change of a group by its records: members, generations, epochs, states.",
    (
        GROUP_ID,
        Column("event", _TEXT, "created, removed, joined, left, members, generation, epoch or state", nullable=False),
        _RECORD_TIMESTAMP,
        Column("group_type", _TEXT, "Classic, Consumer, Share or Streams; null after the removal"),
        Column("state", _TEXT, "the group's state after the record (R33); Dead after the removal", nullable=False),
        Column("protocol_type", _TEXT, "R34"),
        Column("protocol", _TEXT, "a classic group's protocol, a consumer group's server assignor (R34)"),
        Column("generation", _INT, "of a classic group"),
        Column("group_epoch", _INT, "of any other group"),
        Column("assignment_epoch", _INT, "of any other group"),
        Column("member_count", _INT, "number of members", nullable=False),
        Column("joined", _TEXTS, "members that were not in the group before"),
        Column("left", _TEXTS, "members that are not in the group any more"),
        Column("leader", _TEXT, "member id of a classic group's leader"),
        Column("record_type", _SHORT, "type of the record that changed the group", nullable=False),
        *_PLACE,
        _BEGINS,
        _MISPLACED,
    ),
)

DELETED_OFFSETS = Table(
    "deleted_offsets",
    "Every visible offset that a tombstone deleted, with the cause; also offsets whose commits the log no longer has.",
    (
        GROUP_ID,
        *TOPIC_PARTITION,
        Column("deleted_timestamp", _TIME, "timestamp of the tombstone"),
        Column("cause", _TEXT, "expired, deleted, group removed, topic gone; or (likely); or unknown", nullable=False),
        Column("reason", _TEXT, "the cause in a sentence; of unknown: the evidence for each candidate", nullable=False),
        Column("candidates", _TEXTS, "all causes that could have written these records", nullable=False),
        Column("committed_offset", _LONG, "the offset that was deleted; null: its commit is no longer in the log"),
        Column("commit_timestamp", _TIME, "when it was committed; null as committed_offset"),
        Column("commit_record_offset", _LONG, "record offset of its commit; null as committed_offset"),
        *_PLACE,
        _MISPLACED,
    ),
)

#: All views of history, by name.
HISTORY_VIEWS = {each.name: each for each in (LOG_RECORDS, OFFSET_HISTORY, GROUP_HISTORY, DELETED_OFFSETS)}
