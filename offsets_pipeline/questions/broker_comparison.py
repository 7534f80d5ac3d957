"""Whether a store answers as the brokers of its cluster do, while consumers go on to commit.

A mirror is always a little behind. So the brokers are asked before and after the store: a group is compared if both of
their answers are equal. What differs then, or has changed, is asked again in the next round.
`compare_with_brokers` compares all groups once, and `MirrorSample` some at each look, in turn.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import (
    describe_classic_groups,
    describe_consumer_groups,
    fetch_group_offsets,
    list_groups,
)
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, STREAMS

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.groups_client import GroupListing
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.service.metrics.exposition import Values

    #: What both answer about a group, by name.
    Facts = dict[str, object]

_ROUND_SECONDS = 1.0
_REBALANCING = ("PreparingRebalance", "CompletingRebalance")  # which no log says


@dataclass
class BrokerComparison:
    """Groups that were equal, with their offsets; differences by group, in words; groups that never stood still."""

    offsets: dict[str, int] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)


def compare_with_brokers(
    read: Callable[[], Mapping[str, GroupAnswer]],
    cluster: Cluster,
    *,
    patience_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> BrokerComparison:
    """Compare each group until it was equal once, for so long at most.

    ``read`` answers from the newest version of the store. Raises the errors of `Cluster`, and those of ``read``.
    """
    found = BrokerComparison()
    until = time.monotonic() + patience_seconds
    while True:
        before = _answers_of_brokers(cluster, list_groups(cluster))
        ours = _answers_of_store(read())
        after = _answers_of_brokers(cluster, list_groups(cluster))
        group_ids = (before.keys() | ours.keys() | after.keys()) - found.offsets.keys()
        found.changing = {each for each in group_ids if _is_changing(before.get(each), after.get(each))}
        found.differences = {}
        for group_id in sorted(group_ids - found.changing):
            difference = _first_difference(after.get(group_id), ours.get(group_id))
            if difference is None:
                found.offsets[group_id] = len((ours.get(group_id) or after[group_id])["offsets"])  # type: ignore[arg-type]
            else:
                found.differences[group_id] = difference
        if not (found.differences or found.changing) or time.monotonic() + _ROUND_SECONDS > until:
            return found
        sleep(_ROUND_SECONDS)


def _answers_of_brokers(cluster: Cluster, listed: Mapping[str, GroupListing]) -> dict[str, Facts]:
    """What the coordinators of a cluster say about these groups. Raises the errors of `Cluster`."""
    classic = describe_classic_groups(cluster, [at for at, each in listed.items() if each.group_type == CLASSIC])
    consumer = describe_consumer_groups(cluster, [at for at, each in listed.items() if each.group_type == CONSUMER])
    streams = [at for at, each in listed.items() if each.group_type == STREAMS]
    offsets = fetch_group_offsets(cluster, [*classic, *consumer, *streams])
    found: dict[str, Facts] = {}
    for group_id, group in listed.items():
        described = classic.get(group_id, consumer.get(group_id))
        instance_id = "group_instance_id" if group_id in classic else "instance_id"
        found[group_id] = {
            "type": group.group_type,
            "protocol type": group.protocol_type,
            "state": group.state if described is None else described.group_state,
            "members": sorted(
                (each.member_id, getattr(each, instance_id), each.client_id, each.client_host)
                for each in (() if described is None else described.members)
            ),
            "offsets": offsets.get(group_id, {}),
            **({"group epoch": consumer[group_id].group_epoch} if group_id in consumer else {}),
        }
    return found


def _answers_of_store(groups: Mapping[str, GroupAnswer]) -> dict[str, Facts]:
    """What a store says about each group: of streams groups no members, of share groups no offsets either."""
    found: dict[str, Facts] = {}
    for group_id, group in groups.items():
        is_shown = group.type in {CLASSIC, CONSUMER}
        has_offsets = is_shown or group.type == STREAMS
        found[group_id] = {
            "type": group.type,
            "protocol type": group.protocol_type,
            "state": group.state,
            "members": sorted(
                (each.member_id, each.instance_id, each.client_id, each.host) for each in group.members if is_shown
            ),
            "offsets": {
                (each.topic, each.partition): (each.offset, each.leader_epoch, each.metadata)
                for each in group.offsets
                if has_offsets
            },
            **({"group epoch": group.group_epoch} if group.type == CONSUMER and not group.misplaced else {}),
        }
    return found


def _is_changing(before: Facts | None, after: Facts | None) -> bool:
    """Whether two answers of brokers are not the same, or the second one is that of a rebalance."""
    return before != after or (after is not None and after["state"] in _REBALANCING)


def _first_difference(of_brokers: Facts | None, ours: Facts | None) -> str | None:
    """The first fact that differs, in words; None if all are equal, or neither lists the group.

    A simple group that holds nothing need not be listed: whether a coordinator knows it depends on what was compacted
    away before it loaded the log (R16), and up to 3.9 on whether it has loaded since (R14).
    """
    if of_brokers is None or ours is None:
        one = of_brokers or ours
        if one is None or (one["type"] == CLASSIC and not (one["protocol type"] or one["members"] or one["offsets"])):
            return None
        return "the brokers do not list it" if of_brokers is None else "the store does not list it"
    for name, theirs in of_brokers.items():
        if theirs != ours.get(name):
            return f"{name}: the brokers say {theirs}, the store {ours.get(name)}"
    return None


class MirrorSample:
    """Compares some groups with the brokers at each `sample`: the next ones by name, then from the first one on.

    The store may be behind. So a group that was not equal is compared at the next look, too. It differs if it is still
    not equal, although the brokers' answer has not changed.
    """

    def __init__(
        self,
        options: KafkaOptions,
        read: Callable[[], Mapping[str, GroupAnswer] | None],
        size: int,
        warn: Callable[[str], object],
    ) -> None:
        """``size`` groups are compared at each look.

        ``read`` answers from the newest version of the store; None while it is behind, when most groups would differ.
        """
        self._cluster = Cluster(options)
        self._read = read
        self._size = size
        self._warn = warn
        self._last = ""  # the last group of the last look
        self._unequal: dict[str, Facts | None] = {}  # what the brokers said of groups that were not equal then
        self._differing: set[str] = set()
        self._compared: int | None = None

    def sample(self) -> None:
        """Compare the next groups, and warn of each that has begun to differ.

        Raises the errors of `Cluster`, and those of ``read``.
        """
        groups = self._read()
        self._compared = self._compared or 0
        if groups is None:
            self._unequal, self._differing = {}, set()
            return
        ours, listed = _answers_of_store(groups), list_groups(self._cluster)
        chosen = self._unequal.keys() | self._next(ours.keys() | listed.keys())
        theirs = _answers_of_brokers(self._cluster, {at: each for at, each in listed.items() if at in chosen})
        unequal: dict[str, Facts | None] = {}
        differences: dict[str, str] = {}
        for group_id in sorted(chosen):
            answer = theirs.get(group_id)
            difference = _first_difference(answer, ours.get(group_id))
            if difference is not None:
                unequal[group_id] = answer
                if group_id in self._unequal and not _is_changing(self._unequal[group_id], answer):
                    differences[group_id] = difference
        for group_id in sorted(differences.keys() - self._differing):
            self._warn(f"group {group_id!r} is not as its coordinator answers: {differences[group_id]}")
        self._unequal, self._differing = unequal, set(differences)
        self._compared += len(chosen)

    def _next(self, group_ids: Collection[str]) -> set[str]:
        names = sorted(group_ids)
        first = bisect_right(names, self._last)
        found = [*names[first:], *names[:first]][: self._size]
        self._last = found[-1] if found else ""
        return set(found)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def values(self) -> Values:
        """Return the number of comparisons, and of groups that differ; none before the first look."""
        return {
            "offsets_mirror_compared_groups_total": self._compared,
            "offsets_mirror_differing_groups": None if self._compared is None else len(self._differing),
        }
