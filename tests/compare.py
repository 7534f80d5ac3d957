"""Compares our description of all groups with a real broker's answers about the same log.

``export`` is the document that `offsets describe --all-groups --format json` prints; ``oracle`` is a capture's oracle
file. Offsets, and unless only these are asked for, listing, type, state, protocol type, assignor, group epoch and
members, if the broker's version has them.
"""

from __future__ import annotations

from typing import Any

Answer = dict[str, Any]
Offsets = dict[tuple[str, int], tuple[int, int | None, str]]


def compare(export: Answer, oracle: Answer, *, offsets_only: bool = False) -> list[str]:
    """Return the differences as text; an empty list means that both answers are equal."""
    return _Comparison(export["groups"], oracle, offsets_only=offsets_only).differences


def compared_offsets(oracle: Answer) -> int:
    """How many offsets a comparison with this broker is about: one of none would prove nothing."""
    return sum(len(_offsets(group)) for group in oracle["groups"].values() if _answered(group))


class _Comparison:
    def __init__(self, ours: dict[str, Answer], oracle: Answer, *, offsets_only: bool) -> None:
        self.differences: list[str] = []
        self._offsets_only = offsets_only
        theirs = oracle["groups"]
        self._topic_names = {
            topic["topic_id"]: name for name, topic in oracle.get("topics", {}).items() if topic.get("topic_id")
        }
        # the log partitions that this broker could not load
        self._failed = {group["partition_for_group"] for group in theirs.values() if not _answered(group)}
        for group_id in sorted(set(ours) | set(theirs)):
            if group_id not in theirs:
                self._ours_only(group_id, ours[group_id])
            elif _answered(theirs[group_id]):
                self._compare(group_id, theirs[group_id], ours.get(group_id))

    def _differ(self, group_id: str, what: str, expected: object, got: object) -> None:
        if expected != got:
            self.differences.append(f"{group_id!r} {what}: broker {expected!r}, ours {got!r}")

    def _ours_only(self, group_id: str, mine: Answer) -> None:
        if mine["log_partition"] in self._failed or (self._offsets_only and not mine["offsets"]):
            return
        self.differences.append(f"{group_id!r}: ours only")

    def _compare(self, group_id: str, oracle: Answer, mine: Answer | None) -> None:
        if not self._offsets_only:
            self._differ(group_id, "listed", bool(oracle["listed"]), mine is not None)
        if mine is not None and oracle["listed"]:
            self._differ(group_id, "log partition", oracle["partition_for_group"], mine["log_partition"])
            if not self._offsets_only:
                self._compare_description(group_id, oracle, mine)
        expected, got = _offsets(oracle), _offsets(mine or {})
        for key in sorted(set(expected) | set(got)):
            self._differ(group_id, f"offset of {key[0]}-{key[1]}", expected.get(key), got.get(key))

    def _compare_description(self, group_id: str, oracle: Answer, mine: Answer) -> None:
        for name, field in (("list_type", "type"), ("list_state", "state")):
            if _text(oracle.get(name)):
                self._differ(group_id, field, oracle[name], mine[field])
        if oracle.get("list_protocol_type") is not None:
            self._differ(group_id, "protocol type", _text(oracle["list_protocol_type"]), _text(mine["protocol_type"]))
        described = oracle["describe"]
        if not isinstance(described, dict):
            return
        if not _text(oracle.get("list_state")) and described.get("state"):
            self._differ(group_id, "state", described["state"], mine["state"])  # older brokers list no state
        if "error" in described:
            return
        if described.get("members"):
            self._differ(group_id, "assignor", _text(described.get("assignor")), _text(mine["assignor"]))
        if described.get("group_epoch") is not None:
            self._differ(group_id, "group epoch", described["group_epoch"], mine["group_epoch"])
        with_assignment = _text(oracle.get("list_protocol_type")) == "consumer"
        self._differ(
            group_id,
            "members",
            self._members(described.get("members") or [], with_assignment=with_assignment),
            self._members(mine["members"], with_assignment=with_assignment),
        )

    def _members(self, members: list[Answer], *, with_assignment: bool) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for member in members:
            row = tuple(member.get(name) for name in ("member_id", "instance_id", "client_id", "host"))
            rows.append((*row, self._named(member.get("assignment"))) if with_assignment else row)
        return sorted(rows, key=str)

    def _named(self, assignment: list[str] | None) -> tuple[str, ...]:
        """'<topic id>-<partition>' with an id the log cannot name becomes '<topic>-<partition>'."""
        parts = [each.rpartition("-") for each in assignment or []]
        return tuple(sorted(f"{self._topic_names.get(topic, topic)}-{partition}" for topic, _, partition in parts))


def _answered(group: Answer) -> bool:
    """Whether the broker could answer; it could not if it failed to load the log partition."""
    return isinstance(group.get("offsets") or [], list)


def _offsets(group: Answer) -> Offsets:
    return {
        (each["topic"], each["partition"]): (each["offset"], each.get("leader_epoch"), _text(each.get("metadata")))
        for each in group.get("offsets") or []
        if each["offset"] is not None and each["offset"] >= 0
    }


def _text(value: object) -> str:
    return "" if value in (None, "null") else str(value)
