"""A script of operations on groups, and the interface that the broker and the store implement for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from offsets_pipeline.coordinator.requests import NO_MEMBER, MemberOfGroup, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.kafka.answers import Answer

#: Kafka's names of the errors that a request was answered with; none if it went well.
Errors = tuple[str, ...]
Place = tuple[str, int]
Offsets = dict[Place, OffsetAndMetadata]
#: By group and place what a fetch of stable offsets gets: offset, leader epoch, metadata; or an error's name (R17).
Stable = dict[tuple[str, str, int], tuple[int, int | None, str] | str]


def commits(topic: str, *given: int | OffsetAndMetadata) -> Offsets:
    """Offsets of the first partitions of a topic."""
    return {
        (topic, partition): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
        for partition, each in enumerate(given)
    }


@dataclass(frozen=True)
class Joining:
    """A consumer that joins a group; static with an instance id."""

    name: str
    topics: tuple[str, ...]
    instance_id: str | None = None


@dataclass(frozen=True)
class Who:
    """Committing member: a consumer of the script or none, with changed fields. ``later`` adds to the generation."""

    consumer: str | None = None
    later: int = 0
    generation: int | None = None
    member_id: str | None = None
    instance_id: str | None = None

    def of(self, members: Mapping[str, MemberOfGroup]) -> MemberOfGroup:
        """The member as the group has it, with the changed fields."""
        member = NO_MEMBER if self.consumer is None else members[self.consumer]
        return replace(
            member,
            generation=member.generation + self.later if self.generation is None else self.generation,
            member_id=member.member_id if self.member_id is None else self.member_id,
            group_instance_id=member.group_instance_id if self.instance_id is None else self.instance_id,
        )


ANYBODY = Who()


class Side(Protocol):
    """A broker, or a coordinator of an owned store."""

    def groups(self) -> Answer: ...

    def stable(self, group_ids: Iterable[str], places: Iterable[Place] | None) -> Stable:
        """The groups' offsets of these partitions, or all their offsets."""

    def describe(self, group_id: str) -> Errors: ...

    def fetch(self, group_id: str, who: Who = ANYBODY) -> Errors: ...

    def commit(
        self, group_id: str, offsets: Offsets, who: Who = ANYBODY, *, retention_time_ms: int | None = None
    ) -> Errors: ...

    def alter(self, group_id: str, offsets: Offsets) -> Errors:
        """Commit as the Admin client does."""

    def commit_alone(self, group_id: str, offsets: Offsets) -> Errors:
        """Commit as a consumer does that is assigned its partitions by hand."""

    def commit_sync(self, consumer: str, offsets: Offsets) -> Errors:
        """Commit as a consumer does that has joined."""

    def delete_group(self, group_id: str) -> Errors: ...

    def delete_offsets(self, group_id: str, places: Iterable[Place]) -> Errors: ...

    def join(self, group_id: str, *consumers: Joining, protocol: str = "classic") -> Errors:
        """Have consumers join, and wait until all members agree."""

    def share(self, group_id: str, topics: tuple[str, ...]) -> Errors:
        """Have a member join a share group, and leave it."""

    def leave(self, group_id: str, consumer: str) -> Errors:
        """Have a consumer leave, and wait until the others agree."""

    def half_join(self, group_id: str, consumer: str, protocol_type: str, topics: tuple[str, ...]) -> Errors:
        """Let a single member join, without an assignment yet."""

    def sync(self, group_id: str, consumer: str) -> Errors:
        """Let that member send its assignment."""

    def start(
        self, producer: str, transactional_id: str, *, timeout_ms: int = 600_000, by_hand: bool = False
    ) -> Errors:
        """Start a producer, in place of the one before of that id, and its first transaction."""

    def begin(self, producer: str) -> Errors:
        """Begin its next transaction."""

    def send(self, producer: str, group_id: str, offsets: Offsets, who: Who = ANYBODY) -> Errors:
        """Commit offsets as part of it."""

    def end(self, producer: str, *, commit: bool) -> Errors:
        """End it, and wait until its markers are written."""

    def wait_for_abort(self, producer: str) -> Errors:
        """Wait until its transaction is aborted since it takes too long."""

    def expire(self, later_ms: int) -> Errors:
        """Let this time pass, then expire the offsets that are due."""


@dataclass(frozen=True)
class Step:
    """An operation, and the answers of both sides.

    If they differ, ``store`` is the store's answer, ``because`` the reason, and ``apart`` names groups that are not
    compared after the step.
    """

    what: str
    do: Callable[[Side], Errors]
    answer: Errors = ()
    store: Errors | None = None
    because: str = ""
    apart: frozenset[str] = frozenset()
