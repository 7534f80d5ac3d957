"""The requests to a coordinator, named as in Kafka, their validation, and the outcome that a handler returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from offsets_pipeline.common.input_text import is_utf8
from offsets_pipeline.errors import InvalidGroupId, NoSuchGroup, OffsetsError, UnknownTopicOrPartition
from offsets_pipeline.kafka.record.wire import MAX_STRING_BYTES
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.owned_log import Record

    #: Offsets to commit, by (topic, partition). A bare number is an offset without leader epoch, metadata or topic id.
    OffsetsByPartition = (
        Mapping[tuple[str, int], "OffsetAndMetadata | int"] | Mapping[TopicPartition, "OffsetAndMetadata | int"]
    )
    #: A topic and its partition; None: all of its partitions.
    Place = tuple[str, int | None]

UNKNOWN_GENERATION = -1
UNKNOWN_MEMBER = ""
DEFAULT_RETENTION_TIME = -1
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A consumer's commit for one partition: the next offset to read, and metadata of the consumer's choice.

    ``topic_id`` is in Kafka's notation. Only values of version 4 store it. ``commit_timestamp_ms`` is the time of a
    commit that was made elsewhere, in ms since 1970; None: the time of the append.
    """

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    topic_id: str | None = None
    commit_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MemberOfGroup:
    """The member that commits, with its generation or epoch (KIP-848). The defaults name no member."""

    member_id: str = UNKNOWN_MEMBER
    generation: int = UNKNOWN_GENERATION
    group_instance_id: str | None = None

    @property
    def is_no_member(self) -> bool:
        """Whether it names no member, no generation and no group instance id."""
        return self.generation < 0 and not self.member_id and self.group_instance_id is None


NO_MEMBER = MemberOfGroup()


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A request to commit offsets. They expire ``retention_time_ms`` after the commit (R19).

    If that is None or DEFAULT_RETENTION_TIME, they expire by `offsets_retention_minutes`.
    """

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member: MemberOfGroup = NO_MEMBER
    retention_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """A member of a classic group. Subscription and assignment are in the client's encoding."""

    member_id: str
    client_id: str = ""
    client_host: str = ""
    group_instance_id: str | None = None
    rebalance_timeout_ms: int = 300_000
    session_timeout_ms: int = 45_000
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The complete metadata of a classic group.

    A group with members but without ``protocol`` or ``leader`` is in a rebalance.
    """

    group_id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: tuple[ClassicMember, ...] = field(default=())


_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_Response]):
    """A handler's result: records to append, and the response to send when they are in the log.

    If the handler refused a part of the request, the call raises ``error`` after the append and returns no response.
    """

    records: list[Record]
    response: _Response
    error: OffsetsError | None = None


def as_offsets(offsets: OffsetsByPartition) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of a request with validated partitions. Raises UnknownTopicOrPartition."""
    return {
        validated_partition(where): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        for where, offset in offsets.items()
    }


def validated_partition(where: tuple[object, object]) -> TopicPartition:
    """Return a valid topic partition. Raises UnknownTopicOrPartition for an invalid topic name or partition number."""
    topic, partition = where
    if not isinstance(topic, str) or not topic or not is_utf8(topic):
        raise UnknownTopicOrPartition(f"{topic!r} is not a topic name")
    if type(partition) is not int or not 0 <= partition <= _MAX_PARTITION:
        raise UnknownTopicOrPartition(f"{partition!r} is not a partition of topic {topic!r}: partitions count from 0")
    return TopicPartition(topic, partition)


def validated_place(where: tuple[object, object]) -> Place:
    """Return a valid place. Raises as `validated_partition`."""
    topic, partition = where
    return (validated_partition((topic, 0)).topic, None) if partition is None else validated_partition(where)


def validated_group_id(group_id: object, *, may_be_empty: bool = True) -> str:
    """Return a valid group id. Raises InvalidGroupId if a record's key cannot hold it.

    Kafka accepts an empty group id except in newer APIs (``may_be_empty=False``).
    """
    if not isinstance(group_id, str):
        raise InvalidGroupId(f"{group_id!r} is not a group id: it is not text")
    if not is_utf8(group_id):
        raise InvalidGroupId(f"{group_id!r} is not a group id: it has a lone surrogate")
    if not (group_id or may_be_empty):
        raise InvalidGroupId(
            "this request does not allow an empty group id: only commits, fetches and deletions of the group do"
        )
    size = len(group_id.encode())
    if size > MAX_STRING_BYTES:
        raise InvalidGroupId(f"a group id has at most {MAX_STRING_BYTES} bytes, this one has {size}")
    return group_id


def refuse_share_group(group_id: str, kind: str) -> None:
    """Raise NoSuchGroup for a share group, which has no committed offsets."""
    if kind == SHARE:
        raise NoSuchGroup(f"group {group_id!r} is a share group, which has no committed offsets")
