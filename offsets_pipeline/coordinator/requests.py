"""What is asked of a coordinator, in Kafka's words, and what a handler makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from offsets_pipeline.errors import InvalidGroupId, NoSuchGroup, OffsetsError, UnknownTopicOrPartition
from offsets_pipeline.record.wire import MAX_STRING_BYTES
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.coordinator.owned_log import Record

    #: What is committed, by (topic, partition); a bare number is an offset without anything more.
    OffsetsByPartition = (
        Mapping[tuple[str, int], "OffsetAndMetadata | int"] | Mapping[TopicPartition, "OffsetAndMetadata | int"]
    )

UNKNOWN_GENERATION = -1
UNKNOWN_MEMBER = ""
DEFAULT_RETENTION_TIME = -1
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a consumer commits for one partition: the next offset to read, and a note of its own.

    ``topic_id`` is written where the value's version has room for it (4), in Kafka's notation.
    """

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberOfGroup:
    """Who commits: a member of a generation (of an epoch, KIP-848); or nobody in particular."""

    member_id: str = UNKNOWN_MEMBER
    generation: int = UNKNOWN_GENERATION
    group_instance_id: str | None = None

    @property
    def is_nobody(self) -> bool:
        """Whether it names nothing at all."""
        return self.generation < 0 and not self.member_id and self.group_instance_id is None


NOBODY = MemberOfGroup()


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A request to commit offsets; ``retention_time_ms`` makes them expire so long after the commit (R19).

    Without it, or with DEFAULT_RETENTION_TIME, they expire by `offsets_retention_minutes`.
    """

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member: MemberOfGroup = NOBODY
    retention_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """A member of a classic group. Timeouts in milliseconds; subscription and assignment as the members sent them."""

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
    """A classic group as it is stored, whole. With members but without ``protocol`` or ``leader``: being rebalanced."""

    group_id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: tuple[ClassicMember, ...] = field(default=())


_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_Response]):
    """What a handler makes of a request: records to append, the answer once they are in the log.

    ``error`` is raised instead of the answer, after the records were appended: a part of the request was refused.
    """

    records: list[Record]
    response: _Response
    error: OffsetsError | None = None


def as_offsets(offsets: OffsetsByPartition) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets of a request, checked; a bare number is an offset. Raises UnknownTopicOrPartition."""
    return {
        validated_partition(where): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        for where, offset in offsets.items()
    }


def validated_partition(where: tuple[object, object]) -> TopicPartition:
    """The partition of a topic. Raises UnknownTopicOrPartition for what is none."""
    topic, partition = where
    if not isinstance(topic, str) or not topic or not _is_utf8(topic):
        raise UnknownTopicOrPartition(f"{topic!r} is no name of a topic")
    if not isinstance(partition, int) or not 0 <= partition <= _MAX_PARTITION:
        raise UnknownTopicOrPartition(f"{partition!r} is no partition of topic {topic!r}: partitions count from 0")
    return TopicPartition(topic, partition)


def validated_group_id(group_id: object, *, may_be_empty: bool = True) -> str:
    """The group id. Raises InvalidGroupId for what no key can hold.

    As in Kafka an empty one is as good as any, but where an API is younger than group ids that may not be empty.
    """
    if not isinstance(group_id, str):
        raise InvalidGroupId(f"{group_id!r} is no group id: it has to be text")
    if not _is_utf8(group_id):
        raise InvalidGroupId(f"{group_id!r} is no group id: it holds half a character")
    if not (group_id or may_be_empty):
        raise InvalidGroupId("an empty group id is only for plain commits, fetches and deleting the group")
    size = len(group_id.encode())
    if size > MAX_STRING_BYTES:
        raise InvalidGroupId(f"a group id has {MAX_STRING_BYTES} bytes at the most, this one has {size}")
    return group_id


def refuse_share_group(group_id: str, kind: str) -> None:
    """Raise NoSuchGroup for a share group: where it stands is no committed offset."""
    if kind == SHARE:
        raise NoSuchGroup(f"group {group_id!r} is a share group, which has no committed offsets")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
