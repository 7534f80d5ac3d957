"""Why offsets were deleted, as far as the log shows it.

A coordinator writes tombstones for four causes. A broker never notes which cause it was. The state of the group at that
moment rules some causes out. If one cause is left, that is the cause. A request can delete offsets that have just
expired, so it is a candidate beside retention. Then the time decides which one is likely: an expiry run deletes offsets
soon after they become due. That takes the broker's retention, which `follow` reads. Otherwise the cause is unknown, and
the reason has the evidence for each candidate. An expiry run alone writes tombstones of several groups at once and
leaves some of these groups. Only then is retention the only candidate.

The coordinator of this program notes the request in the column `source` of the log; then nothing has to be ruled out.
A snapshot store has no records of a coordinator at all: there no cause is ruled out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.semantics.group_types import CLASSIC, SHARE
from offsets_pipeline.semantics.log_row import DELETE_GROUPS, EXPIRY, OFFSET_DELETE
from offsets_pipeline.semantics.retention import (
    MS_PER_MINUTE,
    Basis,
    Expiry,
    Retention,
    RetentionInputs,
    Rule,
    forecast,
    gets_tombstone,
    outlives_its_offsets,
)
from offsets_pipeline.store.delta.properties import OWNED, SNAPSHOT

if TYPE_CHECKING:
    from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.partition_state import TopicPartition

EXPIRED, DELETED, GROUP_REMOVED, TOPIC_GONE, UNKNOWN = "expired", "deleted", "group removed", "topic gone", "unknown"
#: Follows the name of a cause that the records do not prove.
LIKELY = " (likely)"

_CAUSE_OF_REQUEST = {EXPIRY: EXPIRED, OFFSET_DELETE: DELETED, DELETE_GROUPS: GROUP_REMOVED}
_CANDIDATES = {
    EXPIRED: "expired",
    DELETED: "deleted by an operator (OffsetDelete)",
    GROUP_REMOVED: "removed with its group by an operator (DeleteGroups)",
    TOPIC_GONE: "deleted with its topic",
}
_NOTED = "the coordinator noted it with the tombstone"
#: Why R18 and R20 let an offset stay.
_NEVER_EXPIRES = {
    Rule.SUBSCRIBED: "the group subscribes to {topic}",
    Rule.ACTIVE_GROUP: "the group had members",
    Rule.PENDING: "an open transaction held a commit of {topic}",
}
#: A coordinator looks at the clock before it writes: offsets may become due in between.
_SLACK_MS = 1_000
_NEVER_MS = 2**65  # more than lies between any two times
#: An expiry run may start this much later than its interval says.
_LATE_MS = 5_000


class Cause(NamedTuple):
    """The cause of a deletion, the reason in a sentence, and all causes that could have written the records."""

    name: str
    reason: str
    candidates: list[str]


class Causes:
    """Names the causes of deletions in one log."""

    def __init__(self, semantics: CoordinatorSemantics, retention: Retention, *, kind: str) -> None:
        """``kind`` is that of the store: who wrote the log (store/delta/properties.py)."""
        self._semantics = semantics
        self._retention = retention
        self._kind = kind

    def of(self, deletion: GroupDeletion) -> dict[TopicPartition, Cause]:
        """The cause of each deletion of a visible offset."""
        visible = [where for where in deletion.deleted if where in deletion.offsets]
        found = {where: noted for where in visible if (noted := self._noted(deletion, where)) is not None}
        if len(found) < len(visible):
            ruled_out = self._ruled_out(deletion)
            found |= {where: self._inferred(deletion, where, ruled_out) for where in visible if where not in found}
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
            return Cause(noted, _NOTED, [noted])
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
        return Cause(cause, _NOTED if expiry is None or expiry.at_ms is None else _because(expiry), [cause])

    def _ruled_out(self, deletion: GroupDeletion) -> dict[str, str]:
        """The causes that did not write the tombstones, each with the fact that rules it out."""
        if self._kind == SNAPSHOT:
            of_group = deletion.removed_at is not None
            return {DELETED: "the group was removed"} if of_group else {GROUP_REMOVED: "the group stayed"}
        facts = {
            EXPIRED: self._rules_out_expiry(deletion),
            DELETED: self._rules_out_offset_delete(deletion),
            GROUP_REMOVED: self._rules_out_delete_groups(deletion),
            TOPIC_GONE: self._rules_out_deleted_topic(deletion),
        }
        return {cause: fact for cause, fact in facts.items() if fact is not None}

    def _inferred(self, deletion: GroupDeletion, where: TopicPartition, ruled_out: dict[str, str]) -> Cause:
        possible = [cause for cause in _CANDIDATES if cause not in ruled_out]
        if not possible:
            return Cause(UNKNOWN, "no known cause writes these records", [])
        if self._kind == SNAPSHOT:
            listed = _listed([_CANDIDATES[each] for each in possible])
            return Cause(UNKNOWN, f"{listed}: a snapshot sees that the offset is gone, not why", possible)
        if len(possible) == 1:
            (cause,) = possible
            return Cause(cause, _together([*self._evidence(cause, deletion, where), *ruled_out.values()]), possible)
        likely = self._likely(deletion, possible)
        if likely is None:
            evidence = {each: _together(self._evidence(each, deletion, where)) for each in possible}
            listed = _listed([f"{_CANDIDATES[each]}: {found}" for each, found in evidence.items()])
            return Cause(UNKNOWN, listed, possible)
        reasons = self._evidence(likely, deletion, where)
        if likely != EXPIRED:
            reasons.append(self._misfit(deletion, self._retention.retention_ms))
        return Cause(f"{likely}{LIKELY}", _together(reasons), possible)

    def _likely(self, deletion: GroupDeletion, possible: list[str]) -> str | None:
        """The likely one of several causes, by the time of the deletion; None if two are equally likely."""
        if EXPIRED not in possible:
            return None
        if self._run(deletion) is not None:
            return EXPIRED
        others = [each for each in possible if each != EXPIRED]
        is_due = self._fits(deletion, self._retention.retention_ms)
        return others[0] if self._retention.is_known and not is_due and len(others) == 1 else None

    def _evidence(self, cause: str, deletion: GroupDeletion, where: TopicPartition) -> list[str]:
        """What the log shows for a cause."""
        if cause == EXPIRED:
            return self._evidence_of_retention(deletion, where)
        if cause == GROUP_REMOVED:
            return ["the group was empty and lost all its offsets"]
        if cause == TOPIC_GONE:
            return [f"no group in the log partition kept an offset of {where.topic}"]
        return ["the group was empty" if deletion.group.is_empty else f"no member subscribes to {where.topic}"]

    def _evidence_of_retention(self, deletion: GroupDeletion, where: TopicPartition) -> list[str]:
        expiry, retention_ms, run = self._expiries(deletion)[where], self._retention.retention_ms, self._run(deletion)
        found = [_because(expiry)]
        if run is not None:
            if not _is_own(expiry):
                found.append(f"{self._named(retention_ms)} ended at {shown_time((expiry.at_ms or 0) + retention_ms)}")
            found.append(f"{run} deletes just these offsets")
        elif self._retention.is_known:
            found[0] += f", but {self._misfit(deletion, retention_ms)}"
        elif not _is_own(expiry):
            minutes = ((deletion.time_ms or 0) - (expiry.at_ms or 0)) // MS_PER_MINUTE
            found[0] += f", {minutes} min before the deletion (--retention-minutes may rule this out)"
        if deletion.others:
            found.append(f"tombstones of {len(deletion.others) + 1} groups were written at once")
        return found

    def _named(self, retention_ms: int) -> str:
        minutes, read_at_ms = retention_ms // MS_PER_MINUTE, self._retention.read_at_ms
        if retention_ms != self._retention.retention_ms:
            return f"even a retention of {minutes} min"
        if not self._retention.is_known:
            return f"the assumed retention of {minutes} min"
        read = "" if read_at_ms is None else f" (read from the broker at {shown_time(read_at_ms)})"
        return f"the retention of {minutes} min{read}"

    # --- retention

    def _rules_out_expiry(self, deletion: GroupDeletion) -> str | None:
        if deletion.time_ms is None:
            return "the time of the deletion is not known"
        if not deletion.deleted.keys() <= deletion.offsets.keys():
            return "a pending commit was deleted with it"  # R20
        expiries = self._expiries(deletion)
        for where in deletion.deleted:
            if not expiries[where].rule.lets_expire:
                return _NEVER_EXPIRES[expiries[where].rule].format(topic=where.topic)
        read_at_ms = self._retention.read_at_ms
        is_certain = self._retention.is_known and (read_at_ms is None or read_at_ms <= deletion.time_ms)
        if not self._fits(deletion, self._retention.retention_ms if is_certain else None):
            return self._misfit(deletion, self._retention.retention_ms if is_certain else MS_PER_MINUTE)
        if deletion.removed_at is None and outlives_its_offsets(deletion.group):
            return None
        return _unless_removed(deletion, expected=not deletion.pending and self._is_emptied(deletion))  # R21

    def _fits(self, deletion: GroupDeletion, retention_ms: int | None) -> bool:
        """Whether exactly the deleted offsets are due by a retention time; None: by any one."""
        expiries, now_ms = self._expiries(deletion), deletion.time_ms or 0
        ages = {where: now_ms - each.at_ms for where, each in expiries.items() if each.at_ms is not None}
        own = {where: age_ms for where, age_ms in ages.items() if _is_own(expiries[where])}
        if any((age_ms < 0) if where in deletion.deleted else (age_ms > _SLACK_MS) for where, age_ms in own.items()):
            return False
        ages = {at: age_ms for at, age_ms in ages.items() if at not in own and expiries[at].rule.lets_expire}
        least_deleted = min((age_ms for where, age_ms in ages.items() if where in deletion.deleted), default=_NEVER_MS)
        highest_kept = max((age_ms for where, age_ms in ages.items() if where not in deletion.deleted), default=-1)
        if highest_kept >= least_deleted:
            return False
        if retention_ms is None:
            retention_ms = least_deleted // MS_PER_MINUTE * MS_PER_MINUTE  # the highest one; brokers count minutes
        return highest_kept - _SLACK_MS < retention_ms and MS_PER_MINUTE <= retention_ms <= least_deleted

    def _run(self, deletion: GroupDeletion) -> str | None:
        """The expiry run that deletes exactly these offsets, by the retention; None if no run is likely to."""
        if not self._fits(deletion, self._retention.retention_ms):
            return None
        due_ms = self._due_ms(deletion, self._retention.retention_ms)
        if (deletion.time_ms or 0) <= due_ms + self._retention.check_interval_ms + _LATE_MS:
            return "the next expiry run"
        # the first one after a pause of the broker, or with a shorter retention, finds several groups
        return "a late expiry run" if self._retention.is_known and deletion.others else None

    def _due_ms(self, deletion: GroupDeletion, retention_ms: int) -> int:
        """When the last deleted offset expired; a member or an open transaction may have kept it beyond its time."""
        expiries = self._expiries(deletion)
        deleted = [expiries[where] for where in deletion.deleted]
        due = ((each.at_ms or 0) + (0 if _is_own(each) else retention_ms) for each in deleted)
        return max(*due, deletion.changed_ms or 0)

    def _misfit(self, deletion: GroupDeletion, retention_ms: int) -> str:
        """Why a retention time does not explain the deletion."""
        due_ms, expiries = self._due_ms(deletion, retention_ms), self._expiries(deletion)
        is_own = all(_is_own(expiries[where]) for where in deletion.deleted)
        named = "the time that the commit named" if is_own else self._named(retention_ms)
        if due_ms > (deletion.time_ms or 0):
            return f"{named} did not end before {shown_time(due_ms)}"
        if not self._fits(deletion, retention_ms):
            return "offsets that were due as well stayed"
        interval = self._retention.check_interval_ms // 1000
        return f"{named} ended at {shown_time(due_ms)}, and expiry runs every {interval} s would have deleted it before"

    def _expiries(self, deletion: GroupDeletion) -> dict[TopicPartition, Expiry]:
        """R18 and R19 for a retention time of 0: `at_ms` is where it counts from, or the time a commit names."""
        held = RetentionInputs(deletion.group_id, deletion.group, deletion.offsets, deletion.pending)
        return {each.where: each for each in forecast(held, 0, self._semantics).expiries}

    # --- requests and topics

    def _rules_out_offset_delete(self, deletion: GroupDeletion) -> str | None:
        group = deletion.group
        if group.group_type == SHARE:
            return "it was a share group"
        for topic in sorted(deletion.topics):
            if group.is_subscribed_to(topic):
                return f"the group subscribes to {topic}"  # R26
        if deletion.others and not self._semantics.is_classic:  # a classic coordinator writes group by group
            return f"tombstones of {len(deletion.others) + 1} groups were written at once"
        is_consumer = group.description.protocol_type == CONSUMER_PROTOCOL_TYPE
        if group.group_type == CLASSIC and not group.is_empty and not is_consumer:
            return "the group had members"
        return self._removal_after_offsets(deletion)

    def _rules_out_delete_groups(self, deletion: GroupDeletion) -> str | None:
        group = deletion.group
        if group.group_type == SHARE:
            return "it was a share group"
        if not group.is_empty:
            return "the group had members"
        if not self._semantics.is_classic and not all(deletion.others.values()):
            return "another group lost offsets at the same time and stayed"
        if not deletion.deleted.keys() >= self._deletable(deletion):
            return "the group kept other offsets"
        return _unless_removed(deletion, expected=not self._semantics.is_classic or self._is_emptied(deletion))

    def _rules_out_deleted_topic(self, deletion: GroupDeletion) -> str | None:
        if self._kind == OWNED:
            return "an owned store has no topics"
        for topic in sorted(deletion.topics & deletion.topics_kept):
            return f"another group kept an offset of {topic}"
        for where in self._deletable(deletion) - deletion.deleted.keys():
            topic_id = deletion.offsets[where].topic_id if where in deletion.offsets else None
            if where.topic in deletion.topics and not deletion.may_keep(where.topic, topic_id):
                return f"the group kept an offset of {where.topic}"
        if not self._semantics.is_classic and any(deletion.others.values()):
            return "another group was removed at the same time"
        return self._removal_after_offsets(deletion)

    def _removal_after_offsets(self, deletion: GroupDeletion) -> str | None:
        """What rules out a deletion of offsets alone: whether the group was removed with them.

        A classic coordinator removes an empty group with its last offset; one of Kafka 4.x does not.
        """
        return _unless_removed(deletion, expected=self._semantics.is_classic and self._is_emptied(deletion))

    def _deletable(self, deletion: GroupDeletion) -> set[TopicPartition]:
        """The identities that get a tombstone if all offsets go; `classic` drops pending ones without (R12)."""
        return set(deletion.offsets) if self._semantics.is_classic else {*deletion.offsets, *deletion.pending}

    def _is_emptied(self, deletion: GroupDeletion) -> bool:
        """Whether the group is empty, loses its last offset, and has a record that a tombstone removes."""
        group, deleted = deletion.group, deletion.deleted.keys()
        is_last = deleted >= deletion.offsets.keys() and deleted >= set(deletion.pending)
        return is_last and group.is_empty and gets_tombstone(group, self._semantics)


def _unless_removed(deletion: GroupDeletion, *, expected: bool) -> str | None:
    """None if the group was removed as expected, or stayed as expected; else what it did."""
    if (deletion.removed_at is not None) == expected:
        return None
    return "the group stayed" if expected else "the group was removed"


def _listed(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])}, or {texts[-1]}"


def _together(facts: list[str]) -> str:
    *others, last = dict.fromkeys(facts)
    return f"{', '.join(others)}, and {last}" if others else last


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
