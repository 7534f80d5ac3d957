"""Why offsets were deleted, as far as the log shows it.

A coordinator writes tombstones for four causes. A broker never notes which cause it was. The state of the group at that
moment rules some causes out. If one cause is left, that is the cause. Otherwise the cause is unknown, and the reason
has the evidence for each candidate. A request can delete offsets that have just expired, so it is a candidate
beside retention. An expiry run alone writes tombstones of several groups at once and leaves some of these groups. Only
then is retention the only candidate.

The coordinator of this program notes the request in the column `source` of the log; then nothing has to be ruled out.
A snapshot store has no records of a coordinator at all: there no cause is ruled out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.semantics.group_types import CLASSIC, SHARE
from offsets_pipeline.semantics.log_row import DELETE_GROUPS, EXPIRY, OFFSET_DELETE
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Basis, Expiry, RetentionInputs, Rule, forecast
from offsets_pipeline.store.delta.properties import OWNED, SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.group import Group
    from offsets_pipeline.semantics.partition_state import TopicPartition

EXPIRED, DELETED, GROUP_REMOVED, TOPIC_GONE, UNKNOWN = "expired", "deleted", "group removed", "topic gone", "unknown"

_CAUSE_OF_REQUEST = {EXPIRY: EXPIRED, OFFSET_DELETE: DELETED, DELETE_GROUPS: GROUP_REMOVED}
_NAMES = {
    EXPIRED: "retention",
    DELETED: "a request that deletes offsets (OffsetDelete)",
    GROUP_REMOVED: "a request that removes the group (DeleteGroups)",
    TOPIC_GONE: "the deletion of the topic",
}
_CANDIDATES = {
    EXPIRED: "expired",
    DELETED: "deleted by an operator (OffsetDelete)",
    GROUP_REMOVED: "removed with its group by an operator (DeleteGroups)",
    TOPIC_GONE: "deleted with its topic",
}
#: A coordinator looks at the clock before it writes: offsets may become due in between.
_SLACK_MS = 1_000
#: An expiry run may start this much later than its interval says.
_LATE_MS = 5_000


@dataclass(frozen=True)
class Retention:
    """The coordinator's `offsets.retention.minutes` and `offsets.retention.check.interval.ms`, in milliseconds.

    The defaults are Kafka's. A broker's log does not contain them. If they are not known for sure (``is_known``), a
    deletion that fits them is an expiry, and one that does not fit may still be one.
    """

    retention_ms: int = 10_080 * MS_PER_MINUTE
    check_interval_ms: int = 600_000
    is_known: bool = False


class Cause(NamedTuple):
    """The cause of a deletion, the reason in a sentence, and all causes that could have written the records."""

    name: str
    reason: str
    candidates: list[str]


class Causes:
    """Names the causes of deletions in one log."""

    def __init__(self, semantics: CoordinatorSemantics, retention: Retention, *, kind: str) -> None:
        """``kind`` is that of the store: who wrote the log (delta/properties.py)."""
        self._semantics = semantics
        self._retention = retention
        self._kind = kind

    def of(self, deletion: GroupDeletion) -> dict[TopicPartition, Cause]:
        """The cause of each deletion of a visible offset."""
        visible = [where for where in deletion.deleted if where in deletion.offsets]
        found = {where: noted for where in visible if (noted := self._noted(deletion, where)) is not None}
        if len(found) < len(visible):
            possible = self._possible(deletion)
            found |= {where: self._inferred(deletion, where, possible) for where in visible if where not in found}
        if deletion.hides_offsets:
            left = Cause(
                GROUP_REMOVED, "the tombstone of the group removed it, and left the offset behind", [GROUP_REMOVED]
            )
            found |= dict.fromkeys((where for where in deletion.offsets if where not in deletion.deleted), left)
        return found

    def of_lost(self, lost: LostTombstone) -> Cause:
        """The cause of a deletion whose commit is no longer in the log: only the coordinator's note names one."""
        noted = self._note(lost.source)
        if noted is not None:
            return Cause(noted, f"the coordinator noted {_NAMES[noted]}", [noted])
        possible = [each for each in _CANDIDATES if each != TOPIC_GONE or self._kind != OWNED]
        listed = _listed([_CANDIDATES[each] for each in possible])
        return Cause(UNKNOWN, f"{listed}: the records that could tell are no longer in the log", possible)

    def _note(self, source: str) -> str | None:
        return _CAUSE_OF_REQUEST.get(source.rpartition(" ")[2]) if self._kind == OWNED else None

    def _noted(self, deletion: GroupDeletion, where: TopicPartition) -> Cause | None:
        """The cause that our coordinator noted with a tombstone; None without a note."""
        cause = self._note(deletion.sources[where])
        if cause is None:
            return None
        expiry = self._expiries(deletion).get(where) if cause == EXPIRED else None
        is_known = expiry is not None and expiry.at_ms is not None
        reason = _because(expiry) if expiry is not None and is_known else f"the coordinator noted {_NAMES[cause]}"
        return Cause(cause, reason, [cause])

    def _possible(self, deletion: GroupDeletion) -> list[str]:
        if self._kind == SNAPSHOT:
            return [EXPIRED, GROUP_REMOVED if deletion.removed_at is not None else DELETED, TOPIC_GONE]
        conditions = (
            (EXPIRED, self._may_expire),
            (DELETED, self._may_be_offset_delete),
            (GROUP_REMOVED, self._may_be_delete_groups),
            (TOPIC_GONE, self._may_be_deleted_topic),
        )
        return [cause for cause, may_be in conditions if may_be(deletion)]

    def _inferred(self, deletion: GroupDeletion, where: TopicPartition, possible: list[str]) -> Cause:
        if not possible:
            return Cause(UNKNOWN, "no known cause writes these records", [])
        if self._kind == SNAPSHOT:
            listed = _listed([_CANDIDATES[each] for each in possible])
            return Cause(UNKNOWN, f"{listed}: a snapshot sees that the offset is gone, not why", possible)
        if len(possible) > 1:
            listed = _listed([f"{_CANDIDATES[each]}: {self._evidence(each, deletion, where)}" for each in possible])
            return Cause(UNKNOWN, listed, possible)
        (cause,) = possible
        if cause == EXPIRED:
            return Cause(cause, self._evidence(cause, deletion, where), possible)
        return Cause(cause, f"{_NAMES[cause]} is the only cause that writes these records", possible)

    def _evidence(self, cause: str, deletion: GroupDeletion, where: TopicPartition) -> str:
        """What the log shows for a cause."""
        if cause == EXPIRED:
            return self._evidence_of_retention(deletion, where)
        if cause == GROUP_REMOVED:
            return "the group was empty and lost all its offsets"
        if cause == TOPIC_GONE:
            return f"no group in the log partition kept an offset of {where.topic}"
        return "the group was empty" if deletion.group.is_empty else f"no member subscribes to {where.topic}"

    def _evidence_of_retention(self, deletion: GroupDeletion, where: TopicPartition) -> str:
        expiry, time_ms = self._expiries(deletion)[where], deletion.time_ms or 0
        because = _because(expiry)
        if _is_own(expiry):
            return because
        minutes, retention_ms = (time_ms - (expiry.at_ms or 0)) // MS_PER_MINUTE, self._retention.retention_ms
        if self._is_run(deletion):
            return f"{because}, and a run by a retention of {retention_ms // MS_PER_MINUTE} min deletes just these"
        if self._retention.is_known:
            return (
                f"{because}, {minutes} minutes before the deletion; with a retention of "
                f"{retention_ms // MS_PER_MINUTE} min it was due"
            )
        return f"{because}, {minutes} minutes before the deletion; --retention-minutes may rule this out"

    # --- retention

    def _may_expire(self, deletion: GroupDeletion) -> bool:
        now_ms = deletion.time_ms
        if now_ms is None or not deletion.deleted or not deletion.deleted.keys() <= deletion.offsets.keys():
            return False  # R20: pending commits do not expire
        expiries = self._expiries(deletion)
        if not all(expiries[where].rule.lets_expire for where in deletion.deleted):
            return False
        known = self._retention.retention_ms if self._retention.is_known else None
        if not self._fits(deletion, expiries, now_ms, known):
            return False
        emptied = (
            deletion.deleted.keys() >= deletion.offsets.keys() and not deletion.pending and deletion.group.is_empty
        )
        gets_tombstone = emptied and not (self._semantics.is_classic and self._has_no_generation(deletion.group))
        return gets_tombstone == (deletion.removed_at is not None)  # R21

    def _fits(
        self,
        deletion: GroupDeletion,
        expiries: Mapping[TopicPartition, Expiry],
        now_ms: int,
        retention_ms: int | None,
    ) -> bool:
        """Whether exactly the deleted offsets are due by a retention time; None: by any one."""
        own = [
            (where, now_ms - each.at_ms) for where, each in expiries.items() if _is_own(each) and each.at_ms is not None
        ]
        if any((age_ms < 0) if where in deletion.deleted else (age_ms > _SLACK_MS) for where, age_ms in own):
            return False
        ages = {
            where: now_ms - each.at_ms
            for where, each in expiries.items()
            if each.at_ms is not None and each.rule.lets_expire and not _is_own(each)
        }
        least_deleted = min((age_ms for where, age_ms in ages.items() if where in deletion.deleted), default=None)
        highest_kept = max((age_ms for where, age_ms in ages.items() if where not in deletion.deleted), default=-1)
        if least_deleted is not None and highest_kept >= least_deleted:
            return False
        if retention_ms is None:
            if least_deleted is None:
                return True
            retention_ms = least_deleted // MS_PER_MINUTE * MS_PER_MINUTE  # the highest one; brokers count minutes
        return highest_kept - _SLACK_MS < retention_ms and MS_PER_MINUTE <= retention_ms <= (
            retention_ms if least_deleted is None else least_deleted
        )

    def _is_run(self, deletion: GroupDeletion) -> bool:
        """Whether the deleted offsets are exactly those due, and the newest one became due since the run before."""
        expiries, now_ms, retention_ms = self._expiries(deletion), deletion.time_ms or 0, self._retention.retention_ms
        if not self._fits(deletion, expiries, now_ms, retention_ms):
            return False
        known = [expiries[where] for where in deletion.deleted]
        due = max((each.at_ms or 0) + (0 if _is_own(each) else retention_ms) for each in known)
        return now_ms - due <= self._retention.check_interval_ms + _LATE_MS

    def _expiries(self, deletion: GroupDeletion) -> dict[TopicPartition, Expiry]:
        """R18 and R19 for a retention time of 0: `at_ms` is where it counts from, or the time a commit names."""
        held = RetentionInputs(deletion.group_id, deletion.group, deletion.offsets, deletion.pending)
        return {each.where: each for each in forecast(held, 0, self._semantics).expiries}

    # --- requests and topics

    def _may_be_offset_delete(self, deletion: GroupDeletion) -> bool:
        group = deletion.group
        if group.group_type == SHARE or any(map(group.is_subscribed_to, deletion.topics)):
            return False  # R26
        if deletion.others and not self._semantics.is_classic:
            return False  # a request names one group; a classic coordinator writes group by group whatever the cause
        if group.group_type == CLASSIC and not group.is_empty and not self._has_consumer_protocol(group):
            return False
        return bool(deletion.deleted) and self._removal_follows(deletion)

    def _may_be_delete_groups(self, deletion: GroupDeletion) -> bool:
        group = deletion.group
        if not group.is_empty or group.group_type == SHARE:
            return False
        if not self._semantics.is_classic and not all(deletion.others.values()):
            return False
        if not deletion.deleted.keys() >= self._deletable(deletion):
            return False
        is_removed = deletion.removed_at is not None
        return is_removed == self._is_emptied(deletion) if self._semantics.is_classic else is_removed

    def _may_be_deleted_topic(self, deletion: GroupDeletion) -> bool:
        topics = deletion.topics
        held = {where for where in self._deletable(deletion) if where.topic in topics}
        if self._kind == OWNED or not deletion.deleted or topics & deletion.topics_kept:
            return False
        if held - deletion.deleted.keys() or (not self._semantics.is_classic and any(deletion.others.values())):
            return False
        return self._removal_follows(deletion)

    def _removal_follows(self, deletion: GroupDeletion) -> bool:
        """Whether the group's tombstone is there or not, as after a deletion of offsets alone.

        A classic coordinator removes an empty group with its last offset; one of Kafka 4.x does not.
        """
        is_removed = deletion.removed_at is not None
        return is_removed == (self._semantics.is_classic and self._is_emptied(deletion))

    def _deletable(self, deletion: GroupDeletion) -> set[TopicPartition]:
        """The identities that get a tombstone if all offsets go; `classic` drops pending ones without (R12)."""
        return set(deletion.offsets) if self._semantics.is_classic else {*deletion.offsets, *deletion.pending}

    def _is_emptied(self, deletion: GroupDeletion) -> bool:
        """`classic`: whether the group is empty, loses its last offset, and has a record that a tombstone removes."""
        group, deleted = deletion.group, deletion.deleted.keys()
        is_last = deleted >= deletion.offsets.keys() and deleted >= set(deletion.pending)
        return is_last and group.is_empty and not self._has_no_generation(group)

    def _has_no_generation(self, group: Group) -> bool:
        return group.group_type == CLASSIC and not group.description.generation

    def _has_consumer_protocol(self, group: Group) -> bool:
        return group.description.protocol_type == CONSUMER_PROTOCOL_TYPE


def _listed(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])}, or {texts[-1]}"


def _is_own(expiry: Expiry) -> bool:
    return expiry.basis is Basis.OWN


def _because(expiry: Expiry) -> str:
    """Why retention deleted the offset."""
    since = shown_time(expiry.at_ms or 0)
    if _is_own(expiry):
        return f"its commit named {since} as the time at which it expires"
    if expiry.basis is Basis.EMPTIED:
        return f"the group was empty since {since}"
    committed = f"the last commit was at {since}"
    if expiry.rule is Rule.SIMPLE_GROUP:
        return f"the group has no protocol, and {committed}"
    if expiry.rule is Rule.EMPTY_GROUP:
        return f"the group was empty, and {committed}"
    return f"no member of the group subscribes to {expiry.where.topic}, and {committed}"
