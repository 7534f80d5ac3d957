"""The tables of a store: their columns, comments, constraints and properties.

=================  ==================================================================================================
log                the raw records as they were read; all other tables can be made from it again
log_partitions     start and end of each log partition
offset_facts       facts about offsets that are not published yet, or that are not answered (R10, R15)
group_facts        the same for groups, described from their records (R33, R34)
group_records      the last value and the last tombstone of each key of a group's records (R14)
connect_records    in place of the three above: the last record of each key of a topic of Kafka Connect (R30)
share_partition_facts  likewise: the state of each share partition of `__share_group_state` (R39)
topics             names of topic ids that the sources had (R35)
quarantine         records that did not decode, with the reason and the raw bytes (R6)
topic_offsets      positions of topics at many times, from which lag is computed; made with the first sample
fold_progress      how far each log partition is folded, its transactional commits without a marker (R11), and which
                   version of each table belongs to it
leases             which process works on the store; made with the first lease
=================  ==================================================================================================

The published tables have one row a key, and any reader of Delta tables may read them (docs/adr/0037):
`current_offsets`, `consumer_groups`, `group_members` and `unstable_offsets`; in a store with a topic of Kafka Connect
`connector_offsets` and `connectors`; with `__share_group_state` `share_partitions`. `published_as_of` says how far each
reaches. The tables of facts are merged with them on read (fold/state/merge_on_read.py): query them through the views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from offsets_pipeline.semantics import facts
from offsets_pipeline.semantics.facts import BINARY, BOOLEAN, INT, LONG, SHORT, STRING, TIMESTAMP, Column, schema_of
from offsets_pipeline.semantics.topic_kind import TopicKind

#: Incarnation of a log that was never recreated or resynchronised (docs/adr/0014).
LOG_INCARNATION = 0
#: Property of a table: the columns that files keep statistics of, separated by commas.
_STATISTICS = "delta.dataSkippingStatsColumns"
_ORDERED = (pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp)


@dataclass(frozen=True)
class Table:
    """A table of a store."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    properties: dict[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The schema of columns, by default all, for Arrow, and so for a Parquet file of the table."""
        schema = schema_of(self.columns)
        return schema if names is None else pa.schema([schema.field(name) for name in names])

    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]

    @cached_property
    def bounded(self) -> list[str]:
        """The columns that files keep statistics of: numbers, texts and times without nulls."""
        listed = self.properties.get(_STATISTICS)
        names = None if listed is None else set(listed.split(","))
        return [
            column.name
            for column in self.columns
            if not column.nullable
            and column.name not in self.partitioned_by
            and (column.name in names if names is not None else any(is_of(column.type) for is_of in _ORDERED))
        ]


#: Each batch of a stream leaves files and commits behind, which no reader needs for long.
_RETENTION = {
    # for VACUUM of other engines; a checkpoint lists the removed files of this time. Upkeep keeps them for less.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 hours",  # Delta takes no less
}

_STATE_PROPERTIES = _RETENTION | {
    # They make a merge's write smaller and its reads slower: measured slower in all for small changes.
    "delta.enableDeletionVectors": "false",
    # A reader that opens the table reads at most this many small commits; Delta's 10 costs every tenth batch a second.
    "delta.checkpointInterval": "50",
}

_LOG_INCARNATION = Column(
    "log_incarnation", INT, "incarnation of the log: how often a mirrored topic was read again", nullable=False
)
#: What a fact says about itself: a replay from the start writes a new incarnation of the state of its log partitions.
_OF_FACT = (
    Column("folded_to", LONG, "end of its log partition for the fold that wrote the row", nullable=False),
    Column(
        "incarnation",
        INT,
        "state incarnation; a row counts if fold_progress names it for the log partition",
        nullable=False,
    ),
)
_BY_INCARNATION = ("incarnation",)

#: The columns of `log` that are the record itself; the others describe its origin.
RECORD_COLUMNS = (
    "log_partition",
    "record_offset",
    "record_timestamp",
    "key",
    "value",
    "producer_id",
    "producer_epoch",
    "control_type",
)

LOG = Table(
    "log",
    "The __consumer_offsets log, raw, as its source delivered it. Only appended to, and cleaned when asked for.",
    (
        facts.LOG_PARTITION,
        facts.RECORD_OFFSET,
        Column("record_timestamp", TIMESTAMP, "the record's own timestamp"),
        Column("key", BINARY, "the record's key; null is corrupt (R3)"),
        Column("value", BINARY, "the record's value; null is a tombstone"),
        Column("producer_id", LONG, "of a record of a transaction and of a control record; else null"),
        Column("producer_epoch", SHORT, "epoch of the producer"),
        Column("control_type", STRING, "COMMIT or ABORT, OTHER for other control records; null for data"),
        Column("source", STRING, "where the record was read from", nullable=False),
        Column("appended_at", TIMESTAMP, "when it was appended to this table", nullable=False),
        _LOG_INCARNATION,
        Column(
            "backfill", BOOLEAN, "appended behind records of its log partition: fold it from the start", nullable=False
        ),
    ),
    {
        **_RETENTION,
        "delta.enableDeletionVectors": "false",
        # statistics for skipping files: position and time, never the raw bytes
        "delta.dataSkippingStatsColumns": "log_partition,record_offset,log_incarnation,appended_at",
        "delta.constraints.a_record_lies_in_a_log_partition": "log_partition >= 0 AND record_offset >= 0",
        "delta.constraints.control_type_is_known": "coalesce(control_type, 'OTHER') IN ('COMMIT', 'ABORT', 'OTHER')",
        "delta.appendOnly": "false",  # cleaning deletes
    },
)

LOG_PARTITIONS = Table(
    "log_partitions",
    "Log start and log end of each log partition in its source. One commit adds all log partitions of a log "
    "incarnation, which counts from then on.",
    (
        facts.LOG_PARTITION,
        _LOG_INCARNATION,
        Column(
            "start_offset", LONG, "log start offset: the first record has this offset or a higher one", nullable=False
        ),
        Column(
            "end_offset",
            LONG,
            "log end offset: last record offset plus one; for a topic, the first offset that was not read",
            nullable=False,
        ),
        Column("updated_at", TIMESTAMP, "time of the last change of this row", nullable=False),
        Column("cleaned_to", LONG, "a cleaning may have removed records before this offset"),
        Column(
            "complete_since", TIMESTAMP, "for a topic: since then the ingest missed no record that decides an answer"
        ),
        Column("read_at", TIMESTAMP, "for a topic: last time at which the log had all records"),
        Column("stable_offset", LONG, "for a topic: last stable offset; an open transaction has records from here on"),
        Column("topic_end_offset", LONG, "for a topic: its end offset at the last look"),
        Column("open_since", TIMESTAMP, "for a topic: since when a transaction is open; else null"),
        Column("leader_epoch", INT, "for a topic: epoch of the leader that had all records before end_offset"),
        Column("open_producer_id", LONG, "for a topic: producer id of the oldest open transaction, if known"),
        Column("open_transactional_id", STRING, "for a topic: transactional id of this transaction, if known"),
    ),
    _STATE_PROPERTIES | {"delta.constraints.start_is_not_behind_end": "start_offset <= end_offset"},
)

OFFSET_FACTS = Table(
    "offset_facts",
    "Visible records of (group, topic, partition): changes since the last publishing, and what is not answered, such "
    "as tombstones. The record with the highest record offset counts.",
    (*facts.OFFSET_COLUMNS, *_OF_FACT),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition,group_id,record_offset"},
    partitioned_by=_BY_INCARNATION,
)

GROUP_RECORDS = Table(
    "group_records",
    "The last value and the last tombstone of each key of a group's records; of type 1, a commit: it exists.",
    (*facts.GROUP_RECORD_COLUMNS, *_OF_FACT),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition,group_id"},
    partitioned_by=_BY_INCARNATION,
)

GROUP_FACTS = Table(
    "group_facts",
    "Groups as their coordinator describes them: changes since the last publishing, and what is not answered, such as "
    "removed groups, which stay as Dead. The row with the highest record offset counts.",
    (*facts.GROUP_COLUMNS, *_OF_FACT),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition,group_id,state"},
    partitioned_by=_BY_INCARNATION,
)

TOPICS = Table(
    "topics",
    "Names of topic ids.",
    (
        Column("topic_id", STRING, "in Kafka's notation", nullable=False),
        Column("topic", STRING, "its name", nullable=False),
    ),
    _STATE_PROPERTIES,
)

QUARANTINE = Table(
    "quarantine",
    "What did not decode: records, and stretches of segment files or of a topic's record batches.",
    (
        facts.LOG_PARTITION,
        _LOG_INCARNATION,
        Column("record_offset", LONG, "of a record; null for a stretch of a file"),
        Column("source", STRING, "file of a stretch, in its log partition's folder, or topic; null for a record"),
        Column("position", LONG, "byte position of a stretch in its file; of a topic, a record offset"),
        Column("length", LONG, "length of a stretch in bytes"),
        Column("reason", STRING, "what was expected and what was found", nullable=False),
        Column("key", BINARY, "a record's key, raw"),
        Column("value", BINARY, "a record's value, or a stretch's bytes (at most the first MiB), raw"),
        Column("quarantined_at", TIMESTAMP, "when it was found", nullable=False),
    ),
    _STATE_PROPERTIES,
)

_NOT_PENDING = ("log_partition", "expire_timestamp", "topic_id")
_PENDING = pa.struct(
    [
        ("producer_id", LONG),
        *((each.name, each.type) for each in facts.OFFSET_COLUMNS if each.name not in _NOT_PENDING),
        ("key", BINARY),
        ("value", BINARY),
    ]
)

CONNECT_RECORDS = Table(
    "connect_records",
    "The visible record with the highest record offset of each raw key, tombstones included (R30).",
    (*facts.CONNECT_COLUMNS, *_OF_FACT),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition,connector,record_offset"},
    partitioned_by=_BY_INCARNATION,
)

SHARE_PARTITION_FACTS = Table(
    "share_partition_facts",
    "The state of each share partition after its last record of a fold (R39); a null state_epoch: deleted.",
    (*facts.SHARE_COLUMNS, *_OF_FACT),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition,group_id,record_offset"},
    partitioned_by=_BY_INCARNATION,
)

SHARE_PARTITIONS = Table(
    "share_partitions",
    "Each share partition, once, as of published_as_of (R39).",
    (*facts.SHARE_PARTITION, *facts.SHARE_STATE, facts.LOG_PARTITION, facts.RECORD_OFFSET),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "group_id,log_partition"},
)

CURRENT_OFFSETS = Table(
    "current_offsets",
    "Each committed offset that a fetch answers, once, as of published_as_of.",
    (
        facts.GROUP_ID,
        *facts.TOPIC_PARTITION,
        Column("committed_offset", LONG, "what the consumer stored", nullable=False),
        *facts.COMMIT_VALUE[1:],
        facts.LOG_PARTITION,
        facts.RECORD_OFFSET,
    ),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "group_id,log_partition,record_offset"},
)

CONSUMER_GROUPS = Table(
    "consumer_groups",
    "Each group that a coordinator lists, once, as of published_as_of. A misplaced group has few columns (R1).",
    (
        facts.GROUP_ID,
        Column("group_type", STRING, "Classic, Consumer, Share or Streams"),
        Column("state", STRING, "as the coordinator derives it (R33)", nullable=False),
        Column("protocol_type", STRING, "R34"),
        Column("assignor", STRING, "a classic group's protocol, a consumer group's server assignor, or empty (R34)"),
        *facts.GROUP_DESCRIPTION,
        Column("member_count", INT, "number of its members", nullable=False),
        facts.MEMBERS,
        facts.LOG_PARTITION,
        facts.NEWEST_RECORD,
        facts.MISPLACED,
    ),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "group_id,state,log_partition"},
)

GROUP_MEMBERS = Table(
    "group_members",
    "One row per member and assigned partition, as of published_as_of; null topic if a member has no assignment.",
    (
        facts.GROUP_ID,
        *(each for each in facts.MEMBER_COLUMNS if each.name != "rack_id"),
        Column("topic", STRING, "an assigned topic; its id if the name is not known (R35)"),
        Column("partition", INT, "the assigned partition of this topic"),
    ),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "group_id"},
)

UNSTABLE_OFFSETS = Table(
    "unstable_offsets",
    "Pending commits that a read of stable offsets has to wait for (R17), as of published_as_of.",
    (
        facts.GROUP_ID,
        *facts.TOPIC_PARTITION,
        Column("producer_id", LONG, "producer of the open transaction", nullable=False),
        Column("pending_offset", LONG, "the offset that its commit would make current"),
        facts.LOG_PARTITION,
        facts.RECORD_OFFSET,
    ),
    _STATE_PROPERTIES,
)

_TEXTS = pa.map_(STRING, STRING)

CONNECTOR_OFFSETS = Table(
    "connector_offsets",
    "Each source partition with an offset, once, as of published_as_of (R30).",
    (
        Column("connector", STRING, "the connector"),
        Column("source_partition", STRING, "the source partition as JSON with sorted members"),
        Column("source_offset", STRING, "its offset as JSON"),
        Column("source_partition_map", _TEXTS, "the source partition's members as texts"),
        Column("source_offset_map", _TEXTS, "the offset's members as texts"),
        Column("raw_keys", pa.list_(STRING), "keys of the records that hold an offset of it"),
        Column("record_timestamp", TIMESTAMP, "timestamp of the record that answers"),
        facts.LOG_PARTITION,
        facts.RECORD_OFFSET,
    ),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "log_partition"},
)

CONNECTORS = Table(
    "connectors",
    "Each connector, once, as of published_as_of. Its state is null without the store of states beside this one, its "
    "type and group without that of configurations (R30).",
    (
        Column("name", STRING, "the connector", nullable=False),
        Column("state", STRING, "its state"),
        Column("worker_id", STRING, "the worker that told the state"),
        Column("task_count", LONG, "number of tasks with a state", nullable=False),
        Column("target_state", STRING, "the state that was asked for"),
        Column("type", STRING, "source or sink"),
        Column("group_id", STRING, "the consumer group of a sink"),
        Column("connector_class", STRING, "its class"),
    ),
    _STATE_PROPERTIES,
)

PUBLISHED_AS_OF = Table(
    "published_as_of",
    "How far each published table reaches in each log partition, and as of when.",
    (
        Column("table_name", STRING, "the published table", nullable=False),
        facts.LOG_PARTITION,
        Column("record_offset", LONG, "it has all records before this one", nullable=False),
        Column("data_time", TIMESTAMP, "time up to which it has all records (R36); null before the first one"),
        Column("published_at", TIMESTAMP, "when it was published", nullable=False),
    ),
    _STATE_PROPERTIES,
)

#: Tables of facts and published tables of a log of groups, of Kafka Connect, of share partitions. Offsets come first.
_GROUPS = (
    (OFFSET_FACTS, GROUP_FACTS, GROUP_RECORDS),
    (CURRENT_OFFSETS, CONSUMER_GROUPS, GROUP_MEMBERS, UNSTABLE_OFFSETS),
)
_CONNECT = (CONNECT_RECORDS,), (CONNECTOR_OFFSETS, CONNECTORS)
_SHARES = (SHARE_PARTITION_FACTS,), (SHARE_PARTITIONS,)
_PUBLISHED = {each.name for _, published in (_GROUPS, _CONNECT, _SHARES) for each in published}
_VERSIONS = pa.struct([(each.name, LONG) for each in (*_GROUPS[0], *_CONNECT[0], *_GROUPS[1], *_CONNECT[1])])
_SHARE_VERSIONS = pa.struct([(each.name, LONG) for each in (*_SHARES[0], *_SHARES[1])])
#: Columns of `fold_progress`: two, for a struct with more fields would be another type to programs before.
VERSIONS = ("versions", "share_versions")

FOLD_PROGRESS = Table(
    "fold_progress",
    "How far each log partition is folded, and its open transactions: one commit changes both.",
    (
        facts.LOG_PARTITION,
        _LOG_INCARNATION,
        Column("incarnation", INT, "incarnation of the state of this log partition", nullable=False),
        Column("coordinator_semantics", STRING, "modern or classic: how the state was replayed", nullable=False),
        Column("folded_to", LONG, "the first record offset that is not folded yet", nullable=False),
        Column("published_to", LONG, "the published tables have all records before this one", nullable=False),
        Column("records", LONG, "records folded", nullable=False),
        Column("unknown_records", LONG, "of these, records of unknown types (R6)", nullable=False),
        Column("pending", pa.list_(_PENDING), "transactional commits without a marker (R11)"),
        Column("folded_at", TIMESTAMP, "when", nullable=False),
        Column("log_commit", STRING, "hash of the last commit of the table log that is folded"),
        Column("versions", _VERSIONS, "the version of each table of the state that belongs to this progress"),
        Column("share_versions", _SHARE_VERSIONS, "the same of the tables of `__share_group_state`"),
    ),
    _STATE_PROPERTIES,
)

TOPIC_OFFSETS = Table(
    "topic_offsets",
    "Log start and log end of topics' partitions at the times at which they were sampled. A sample without a row for a "
    "partition found what the partition's last row says.",
    (
        *facts.TOPIC_PARTITION,
        Column("log_start_offset", LONG, "offset of the first record", nullable=False),
        Column("log_end_offset", LONG, "offset of the next record: the high watermark", nullable=False),
        Column("sampled_at", TIMESTAMP, "when the partition had these offsets", nullable=False),
        Column("source", STRING, "broker or file that the sample came from", nullable=False),
    ),
    _STATE_PROPERTIES | {"delta.dataSkippingStatsColumns": "topic,partition,sampled_at"},
)

LEASES = Table(
    "leases",
    "Which process reads the topic of the store, folds its log or takes its snapshots.",
    (
        Column("task", STRING, "ingest-topic, fold or snapshot", nullable=False),
        Column("lease_id", STRING, "id of the lease, new with each start of the command", nullable=False),
        Column("command", STRING, "the command that holds it: follow holds ingest-topic and fold", nullable=False),
        Column("host", STRING, "name of the holder's machine", nullable=False),
        Column("process_id", INT, "id of the holder's process", nullable=False),
        Column("since", TIMESTAMP, "since when, by the holder's clock", nullable=False),
        Column("renewed_at", TIMESTAMP, "last renewal, by the holder's clock", nullable=False),
        Column("duration_ms", LONG, "milliseconds after which a lease that was not renewed lapses", nullable=False),
    ),
    _STATE_PROPERTIES,
)


#: Tables that a store gets when they are first written.
LATER_TABLES = (TOPIC_OFFSETS, LEASES)
#: What a reload makes again from the log.
STATE = frozenset({*_VERSIONS.names, *_SHARE_VERSIONS.names, PUBLISHED_AS_OF.name, FOLD_PROGRESS.name})


def tables_of(kind: TopicKind) -> tuple[Table, ...]:
    """The tables of a store with a topic of this kind, in the order in which the store creates them: the log last."""
    of_facts, published = _state_of(kind)
    return (LOG_PARTITIONS, *of_facts, *published, PUBLISHED_AS_OF, TOPICS, QUARANTINE, FOLD_PROGRESS, LOG)


def published_tables_of(kind: TopicKind) -> tuple[Table, ...]:
    """The published tables of a store with a topic of this kind."""
    return _state_of(kind)[1]


def _state_of(kind: TopicKind) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    if kind.has_groups:
        return _GROUPS
    return _CONNECT if kind.is_connect else _SHARES


def later_tables_of(kind: TopicKind) -> tuple[Table, ...]:
    """The tables that a store with a topic of this kind gets when they are first written."""
    return (LEASES,) if kind.is_connect else LATER_TABLES


TABLES = tables_of(TopicKind.CONSUMER_OFFSETS)
#: The tables of stores of every kind.
TABLE_BY_NAME = {table.name: table for kind in TopicKind for table in tables_of(kind)}
TABLE_BY_NAME |= {table.name: table for table in LATER_TABLES}


def catalog_name(name: str) -> str:
    """The name of a table in a schema of a catalog, where the views have the names of the published tables."""
    return f"published_{name}" if name in _PUBLISHED else name
