"""Whether a followed store answers as its brokers do: some groups at each look, in turn."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import list_groups
from offsets_pipeline.questions.broker_comparison import (
    answers_of_brokers,
    answers_of_store,
    first_difference,
    is_changing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.questions.broker_comparison import Facts
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.service.metrics.exposition import Values


class MirrorSample:
    """Compares some groups with the brokers at each `sample`: the next ones by name, then from the first one on.

    The store may be behind. So a group that was not equal is compared at the next look, too. It differs if it is still
    not equal, although the brokers' answer has not changed.
    """

    def __init__(
        self,
        options: KafkaOptions,
        read: Callable[[], Mapping[str, GroupAnswer]],
        size: int,
        warn: Callable[[str], object],
    ) -> None:
        """``read`` answers from the newest version of the store; ``size`` groups are compared at each look."""
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
        ours, listed = answers_of_store(self._read()), list_groups(self._cluster)
        chosen = self._unequal.keys() | self._next(ours.keys() | listed.keys())
        theirs = answers_of_brokers(self._cluster, {at: each for at, each in listed.items() if at in chosen})
        unequal: dict[str, Facts | None] = {}
        differences: dict[str, str] = {}
        for group_id in sorted(chosen):
            answer = theirs.get(group_id)
            difference = first_difference(answer, ours.get(group_id))
            if difference is not None:
                unequal[group_id] = answer
                if group_id in self._unequal and not is_changing(self._unequal[group_id], answer):
                    differences[group_id] = difference
        for group_id in sorted(differences.keys() - self._differing):
            self._warn(f"group {group_id!r} is not as its coordinator answers: {differences[group_id]}")
        self._unequal, self._differing = unequal, set(differences)
        self._compared = (self._compared or 0) + len(chosen)

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
