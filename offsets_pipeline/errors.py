"""Every error this package raises on purpose.

Each takes one message that says what is wrong, where, and what would be right; the command line prints it as
`offsets: error: <message>` and ends with status 1. Errors that a Kafka coordinator answers with carry Kafka's name.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OffsetsError(Exception):
    """The root of this package's errors."""

    retriable: ClassVar[bool] = False
    """Whether the same call, made again unchanged, may succeed."""

    kafka_name: ClassVar[str | None] = None
    """Kafka's name for the error, where it has one (R24)."""


class ConfigError(OffsetsError):
    """A setting has a wrong name, type or value."""


class JavaMissing(OffsetsError):
    """Java is not installed, or is older than Spark needs."""


class NoSuchStore(OffsetsError):
    """There is nothing at the store's path."""


class NoSuchCheckpoint(OffsetsError):
    """There is no checkpoint of a stream at the path."""


class NotAStore(OffsetsError):
    """What is at the store's path is something else, or a store that was only half created."""


class StoreMismatch(OffsetsError):
    """The store was created with other properties than those asked for."""


class NoSuchPath(OffsetsError):
    """A path to read from does not exist."""


class TargetNotEmpty(OffsetsError):
    """The place to write to holds something already, or is no folder."""


class UnsupportedTable(OffsetsError):
    """A table requires of its readers or writers a Delta feature that this program does not support."""


class DamagedTable(OffsetsError):
    """A file of a table is missing or corrupt; the message names it and says how to recover."""


class NoSuchTable(OffsetsError):
    """There is no Delta table at the path."""


class StorageFailed(OffsetsError):
    """The storage of a table could not be read or written; the message has the storage's reason."""

    retriable = True


class CommitUnknown(StorageFailed):
    """The storage failed during a commit, so the commit may be there."""

    retriable = False


class OptionNeedsAnother(OffsetsError):
    """An option of a command does something only beside another one."""


class InvalidTime(OffsetsError):
    """A point in time is not written as one."""


class MalformedFile(OffsetsError):
    """A file that was given to a command has a line that cannot be read."""


class InvalidReset(OffsetsError):
    """A reset of offsets leaves open what is to be reset, or to what."""


class ClientMissing(OffsetsError):
    """What talks to a broker is not installed."""


class NoSegments(OffsetsError):
    """A path to read from holds no log segments."""


class NoSuchGroup(OffsetsError):
    """The store knows no group of that name."""

    kafka_name = "GROUP_ID_NOT_FOUND"


class WrongRecords(OffsetsError):
    """A topic or log holds records of another kind than expected."""


class ConflictingLog(OffsetsError):
    """The same record offset holds two different records: these are not segments of one log."""


class WriteConflict(OffsetsError):
    """Another writer committed to the table first, as often as was retried."""

    retriable = True


class LogMovedOn(OffsetsError):
    """What is new in the log cannot be followed commit by commit: old ones are gone, or records were deleted."""


class InvalidPartitionCount(OffsetsError):
    """The number of log partitions is missing, impossible, or not the one that the log was written with (R1)."""


class CannotClean(OffsetsError):
    """The log table cannot be cleaned where it lies, or as its owner changed it."""


class StateDiffers(OffsetsError):
    """The state tables are not what a replay of the log gives."""


class UndecodableRecord(OffsetsError):
    """A record of the log does not decode, and the settings say to stop there (R6)."""


class CatalogMissing(OffsetsError):
    """The session has no catalog that outlives it."""


class QueryFailed(OffsetsError):
    """Spark could not parse or run a query."""


class TaskFailed(OffsetsError):
    """A task met an error that is not one of this program's own; the message says where it was."""


class StreamFailed(OffsetsError):
    """The fold stopped for a reason that is not one of this program's own."""


class ConnectorMissing(OffsetsError):
    """Spark has no Kafka connector on its class path."""


class BrokerUnreachable(OffsetsError):
    """No broker answers at the address, or not in time, or it refuses to."""

    retriable = True


class AuthenticationFailed(OffsetsError):
    """The broker refused who we say we are, or cannot be trusted itself."""


class NotAuthorized(OffsetsError):
    """The broker does not allow what is asked of it."""


class KafkaFailed(OffsetsError):
    """A broker answered with another error, or a client could not be made."""


class NoSuchTopic(OffsetsError):
    """The cluster has no topic of that name."""

    kafka_name = "UNKNOWN_TOPIC_OR_PARTITION"


class MetricsUnavailable(OffsetsError):
    """Metrics cannot be written or told where they were asked for."""


class TopicStopped(OffsetsError):
    """The query that reads a topic stopped for a reason that is not one of this program's own."""


class NotCoordinator(OffsetsError):
    """The group's log partition is not loaded here, or the log belongs to a broker (R4, R28)."""

    retriable = True
    kafka_name = "NOT_COORDINATOR"


class StoreReplaced(NotCoordinator):
    """The store was deleted, restored or created anew while a coordinator had it open."""

    retriable = False


class CoordinatorLoadInProgress(OffsetsError):
    """The group's log partition is being loaded (R28)."""

    retriable = True
    kafka_name = "COORDINATOR_LOAD_IN_PROGRESS"


class CoordinatorNotAvailable(OffsetsError):
    """The coordinator is closed, or could not append to its log: nothing was written."""

    retriable = True
    kafka_name = "COORDINATOR_NOT_AVAILABLE"


class RequestTimedOut(OffsetsError):
    """The time for a request ran out; the message says whether it may yet be carried out."""

    retriable = True
    kafka_name = "REQUEST_TIMED_OUT"


class InvalidRequiredAcks(OffsetsError):
    """A commit is to wait for what there is not."""

    kafka_name = "INVALID_REQUIRED_ACKS"


class InvalidRequest(OffsetsError):
    """A request has a field with a value that is not allowed."""

    kafka_name = "INVALID_REQUEST"


class InvalidGroupId(OffsetsError):
    """A group id is no text, or none that a record's key can hold."""

    kafka_name = "INVALID_GROUP_ID"


class UnknownTopicOrPartition(OffsetsError):
    """What is named is no partition of a topic."""

    kafka_name = "UNKNOWN_TOPIC_OR_PARTITION"


class UnknownMemberId(OffsetsError):
    """The group has no such member."""

    kafka_name = "UNKNOWN_MEMBER_ID"


class IllegalGeneration(OffsetsError):
    """The group is in another generation than the member says."""

    kafka_name = "ILLEGAL_GENERATION"


class FencedInstanceId(OffsetsError):
    """Another member took the static member's place."""

    kafka_name = "FENCED_INSTANCE_ID"


class StaleMemberEpoch(OffsetsError):
    """The member is in another epoch than it says."""

    kafka_name = "STALE_MEMBER_EPOCH"


class RebalanceInProgress(OffsetsError):
    """The group's members have not agreed on who reads what."""

    kafka_name = "REBALANCE_IN_PROGRESS"


class NonEmptyGroup(OffsetsError):
    """The group has members."""

    kafka_name = "NON_EMPTY_GROUP"


class GroupSubscribedToTopic(OffsetsError):
    """The group subscribes to the topic."""

    kafka_name = "GROUP_SUBSCRIBED_TO_TOPIC"


class OffsetMetadataTooLarge(OffsetsError):
    """The note of a commit is longer than allowed."""

    kafka_name = "OFFSET_METADATA_TOO_LARGE"


class UnstableOffsetCommit(OffsetsError):
    """An open transaction holds a commit for the partition (R17)."""

    retriable = True
    kafka_name = "UNSTABLE_OFFSET_COMMIT"


class InvalidCommitOffsetSize(OffsetsError):
    """The records of a request do not fit into the log."""

    kafka_name = "INVALID_COMMIT_OFFSET_SIZE"


class OffsetOutOfRange(OffsetsError):
    """A committed offset is no position in a topic's partition."""

    kafka_name = "OFFSET_OUT_OF_RANGE"


class InvalidProducerEpoch(OffsetsError):
    """A newer producer took this one's place."""

    kafka_name = "INVALID_PRODUCER_EPOCH"


class ConcurrentTransactions(OffsetsError):
    """The producer's transaction is open, or about to end."""

    retriable = True
    kafka_name = "CONCURRENT_TRANSACTIONS"


class InvalidTxnState(OffsetsError):
    """The producer has no open transaction."""

    kafka_name = "INVALID_TXN_STATE"


class InvalidTransactionTimeout(OffsetsError):
    """A transaction's timeout is not allowed."""

    kafka_name = "INVALID_TRANSACTION_TIMEOUT"


class UnsafeStorage(OffsetsError):
    """The storage has no atomic put-if-absent, so commits of two writers could overwrite each other."""


class UnexpectedActiveGroup(OffsetsError):
    """The log removed a group that the coordinator holds as an active one."""


def first_line(error: Exception) -> str:
    """The first line of what an exception of somebody else's says; of one that says nothing its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def in_one_line(error: Exception) -> str:
    """What an exception says, in one line: of one of this package its message, of any other its kind too."""
    ours = error if isinstance(error, OffsetsError) else raised_on_executor(error)
    if ours is not None:
        return str(ours)
    lines = str(error).strip().splitlines() or [""]
    # Py4J puts its own words before those of what failed in the JVM
    said = next((line for line in lines if line.startswith(": ")), lines[0]).removeprefix(": ")
    return f"{type(error).__name__}: {said}"


@contextmanager
def working_on(place: Callable[[], str]) -> Iterator[None]:
    """Name the place, a file and position or a log partition and record offset, in what a task raises.

    Raises TaskFailed, caused by the error, for any error that is not one of this package.
    """
    try:
        yield
    except OffsetsError:
        raise
    except Exception as error:
        raise TaskFailed(f"a task failed at {place()}: {type(error).__name__}: {first_line(error)}") from error


def raised_on_executor(error: Exception) -> OffsetsError | None:
    """The error of this package that was raised here, or by a task, out of Spark's report; None for any other."""
    if isinstance(error, OffsetsError):
        return error
    found = re.findall(r"^offsets_pipeline(?:\.\w+)*\.(\w+): (.*)$", str(error), re.MULTILINE)
    kinds = {kind.__name__: kind for kind in _with_subclasses(OffsetsError)}
    for name, message in reversed(found):
        if name in kinds:
            ours = kinds[name].__new__(kinds[name])
            ours.args = (message,)
            return ours
    return None


def _with_subclasses(kind: type[OffsetsError]) -> list[type[OffsetsError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _with_subclasses(sub))]
