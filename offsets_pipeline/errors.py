"""The errors of this package.

Each has one message: what failed, why, and what to do. The command line prints it as `offsets: error: <message>` and
ends with status 1. Errors that Kafka's coordinator returns too have Kafka's name. Exceptions of other libraries:
foreign_errors.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar


class OffsetsError(Exception):
    """Base class of this package's errors.

    >>> from offsets_pipeline import OffsetsError, OwnedStore
    >>> try:
    ...     OwnedStore.open("nothing")
    ... except OffsetsError as error:
    ...     print(type(error).__name__, error.retriable)
    NoSuchStore False
    """

    #: Whether a retry of the same call may succeed.
    retriable: ClassVar[bool] = False
    #: Kafka's name of the error; None if Kafka has no such error (R24).
    kafka_name: ClassVar[str | None] = None

    def __init_subclass__(cls, *, retriable: bool | None = None, kafka_name: str | None = None) -> None:
        """Set the attributes of an error that differ from those of its base class."""
        cls.retriable = cls.retriable if retriable is None else retriable
        cls.kafka_name = kafka_name or cls.kafka_name


class KafkaError(OffsetsError):
    """Base class of the errors whose class has Kafka's name, which Kafka writes as NOT_COORDINATOR."""

    def __init_subclass__(cls, *, retriable: bool | None = None) -> None:
        """Set Kafka's name of an error; the subclasses of an error keep it."""
        named = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper() if KafkaError in cls.__bases__ else None
        super().__init_subclass__(retriable=retriable, kafka_name=named)


class ConfigError(OffsetsError):
    """A setting has a wrong name, type or value."""


class DependencyMissing(OffsetsError):
    """Java is missing or too old, Spark lacks a set of JARs, or a Python package is not installed."""


class NotOnConnect(OffsetsError):
    """A Spark Connect server cannot run this."""


class NoSuchStore(OffsetsError):
    """The path of the store does not exist."""


class NoSuchCheckpoint(OffsetsError):
    """There is no checkpoint of a stream at the path."""


class NotAStore(OffsetsError):
    """There is no complete store of this format version at the path."""


class StoreMismatch(OffsetsError):
    """The store exists with other properties."""


class LeaseHeld(OffsetsError):
    """Another process follows, folds or takes snapshots of the store."""


class LeaseLost(OffsetsError):
    """Another process took over the lease, because this one did not renew it in time."""


class NoSuchPath(OffsetsError):
    """An input file or folder does not exist."""


class TargetNotWritable(OffsetsError):
    """The output file or folder cannot be written, or the folder has other content."""


class UnsupportedTable(OffsetsError):
    """A table requires a Delta feature that this program does not support."""


class DamagedTable(OffsetsError):
    """A file of a table is missing or corrupt; the message names it and says how to recover."""


class NoSuchTable(OffsetsError):
    """There is no Delta table at the path."""


class StorageFailed(OffsetsError, retriable=True):
    """The storage of a table could not be read or written; the message gives the storage's reason."""


class StorageRefused(StorageFailed, retriable=False):
    """The storage refuses access or lacks the bucket: a retry fails, too, until a person has changed that."""


class CommitUnknown(StorageFailed, retriable=False):
    """A commit got no answer, or is not durable: the table may have it, get it or lose it. Its files stay."""


class OptionNeedsAnother(OffsetsError):
    """An option of a command requires another option."""


class ServiceUnavailable(OffsetsError):
    """A service cannot start: its address cannot be bound, or a file of its token or of TLS cannot be used."""


class InvalidTime(OffsetsError):
    """A text is not a point in time or a duration."""


class MalformedFile(OffsetsError):
    """A line of an input file cannot be read."""


class InvalidReset(OffsetsError):
    """A reset does not determine its groups, partitions or new offsets."""


class NoSegments(OffsetsError):
    """An input path has no log segments."""


class NoSuchGroup(OffsetsError, kafka_name="GROUP_ID_NOT_FOUND"):
    """The store has no group with this id."""

    @classmethod
    def of(cls, group_ids: Sequence[str], where: str) -> NoSuchGroup:
        """The error for groups that do not exist in the store ``where``."""
        named = f"group{'s' if len(group_ids) > 1 else ''} {', '.join(map(repr, group_ids))}"
        return cls(f"no {named} in {where} (GROUP_ID_NOT_FOUND)")


class NoSuchConnector(OffsetsError):
    """The log has no record of a connector, or the connector was deleted."""


class ConnectorExists(OffsetsError):
    """A connector that is to be created has a configuration already."""


class BadConnectRequest(OffsetsError):
    """A request about a connector that Connect refuses with the status 400; the message is Connect's."""


class ConnectorStopped(OffsetsError):
    """A task writes offsets of a connector that is STOPPED or deleted."""


class TaskFenced(OffsetsError, kafka_name="PRODUCER_FENCED"):
    """A newer instance of the source task has started, with a higher epoch."""


class OffsetsLost(OffsetsError):
    """A target table has rows of a flush, but their source offsets are lost."""


class FlushInProgress(OffsetsError):
    """A flush of offsets began before the last flush of the same writer had ended (R31)."""


class NoSuchOffset(OffsetsError):
    """A source partition has no offset, and the task does not say where to start."""


class WrongRecords(OffsetsError):
    """A topic or log has records of another kind than expected."""


class ConflictingLog(OffsetsError):
    """Two different records have the same record offset: the segments belong to different logs."""


class WriteConflict(OffsetsError, retriable=True):
    """Another writer committed first, in each retry."""


class LogMovedOn(OffsetsError):
    """The log cannot be read commit by commit: old commits are gone, or records were deleted."""


class InvalidPartitionCount(OffsetsError):
    """The number of log partitions is missing, impossible, or differs from the log's number (R1)."""


class CannotClean(OffsetsError):
    """The table log cannot be cleaned: its storage or its properties do not allow it."""


class StateDiffers(OffsetsError):
    """The state tables differ from a replay of the log, or answers from those of the brokers."""


class UndecodableRecord(OffsetsError):
    """A record of the log does not decode, and the settings say to stop (R6)."""


class CatalogMissing(OffsetsError):
    """The session has no persistent catalog."""


class QueryFailed(OffsetsError):
    """Spark could not parse or run a query."""


class TaskFailed(OffsetsError):
    """A task failed with an exception of another library; the message names its place in the log."""


class StreamFailed(OffsetsError):
    """The fold, or the query that reads a topic, stopped with an exception of another library."""


class LogTruncated(OffsetsError):
    """A partition's new leader lacks records that were read from the old one."""


class BrokerUnreachable(OffsetsError, retriable=True):
    """No broker answered at the address in time."""


class AuthenticationFailed(OffsetsError):
    """The broker rejected the credentials, or its certificate is not trusted."""


class NotAuthorized(OffsetsError):
    """The broker does not allow a request."""


class KafkaFailed(OffsetsError):
    """A broker answered with another error, or a Kafka client could not start."""


class ZooKeeperFailed(OffsetsError, retriable=True, kafka_name="UNKNOWN_SERVER_ERROR"):
    """ZooKeeper did not answer in time, or refused a request."""


class NoSuchTopic(OffsetsError, kafka_name="UNKNOWN_TOPIC_OR_PARTITION"):
    """The cluster has no topic with this name."""


class NotCoordinator(KafkaError, retriable=True):
    """The group's log partition is not loaded here, or the log belongs to a broker (R4, R28)."""


class StoreReplaced(NotCoordinator, retriable=False):
    """The store was deleted, restored or created again while a coordinator had it open."""


class CoordinatorLoadInProgress(KafkaError, retriable=True):
    """The coordinator is loading the group's log partition (R28)."""


class CoordinatorNotAvailable(KafkaError, retriable=True):
    """The coordinator is closed, or could not append to its log; nothing was written."""


class RequestTimedOut(KafkaError, retriable=True):
    """A request timed out; the message says whether it may still succeed."""


class InvalidRequiredAcks(KafkaError):
    """A commit has an unsupported value of acks."""


class InvalidRequest(KafkaError):
    """A field of a request has a value that is not allowed."""


class InvalidGroupId(KafkaError):
    """A group id is not text, or is too long for the key of a record."""


class InvalidTopic(OffsetsError, kafka_name="INVALID_TOPIC_EXCEPTION"):
    """Kafka does not allow a topic of this name."""


class UnknownTopicOrPartition(KafkaError):
    """The topic or partition does not exist, or its name is not allowed."""


class UnknownMemberId(KafkaError):
    """The group has no member with this id."""


class IllegalGeneration(KafkaError):
    """The generation of the request differs from the group's."""


class FencedInstanceId(KafkaError):
    """Another member replaced the static member."""


class StaleMemberEpoch(KafkaError):
    """The epoch of the request differs from the member's."""


class RebalanceInProgress(KafkaError):
    """The group is rebalancing."""


class NonEmptyGroup(KafkaError):
    """The group has members."""


class GroupSubscribedToTopic(KafkaError):
    """The group subscribes to the topic."""


class OffsetMetadataTooLarge(KafkaError):
    """The metadata of a commit is too long."""


class UnstableOffsetCommit(KafkaError, retriable=True):
    """An open transaction has a commit for the partition (R17)."""


class InvalidCommitOffsetSize(KafkaError):
    """The records of a request are too large for the log."""


class OffsetOutOfRange(KafkaError):
    """A committed offset is negative, or larger than 2^63-1."""


class InvalidProducerEpoch(KafkaError):
    """A newer producer fenced this producer."""


class ConcurrentTransactions(KafkaError, retriable=True):
    """The producer's transaction is open or ending."""


class InvalidTxnState(KafkaError):
    """The producer has no open transaction."""


class InvalidTransactionTimeout(KafkaError):
    """The timeout of a transaction is not allowed."""


class UnsafeStorage(OffsetsError):
    """The storage has no atomic put-if-absent, so commits of two writers could overwrite each other."""


class UnexpectedActiveGroup(OffsetsError):
    """The log deleted a group that has members in the coordinator."""
