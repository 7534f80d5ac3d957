"""A second specification of the rules, written from `docs/semantics.md` alone: tables, and few functions over them.

The first specification, `offsets_pipeline/semantics/partition_state.py`, replays row by row as a broker does. This one
looks at the whole log: it ranks the records of an identity (R10, R10c) and searches the marker of a record (R11). Only
groups are built in the order of the log (R14). It decodes bytes by its own tables. From the program it takes only
`LogRow` and `CoordinatorSemantics`. Where the rules say nothing it follows the first; a comment says so.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
NO_TOPIC_ID = "A" * 22
MAX_ELEMENTS = 1_000_000  # R6

Identity = tuple[str, str, int]
Fields = dict[str, Any]


class RecordRule(NamedTuple):
    """What a record type is (R5), and what it does to its group (R14).

    ``group_type`` is the type of group that a value creates. ``names`` are the arrays of the value that tell names of
    topic ids (R35).
    """

    key: str
    group_type: str | None = None
    removes_group: bool = False
    names: tuple[str, ...] = ()
    max_version: int = 0
    flexible_since: int = 0


_OFFSET_KEY = "group:s topic:s partition:i"
_GROUP, _MEMBER = "group_id:s", "group_id:s member_id:s"
RULES: dict[int, RecordRule] = {
    0: RecordRule(_OFFSET_KEY, flexible_since=9),  # R7: value version 0 only
    1: RecordRule(_OFFSET_KEY, max_version=4, flexible_since=4),
    2: RecordRule("group:s", CLASSIC, removes_group=True, max_version=4, flexible_since=4),
    3: RecordRule(_GROUP, CONSUMER, removes_group=True),
    4: RecordRule(_GROUP, CONSUMER, names=("topics",)),
    6: RecordRule(_GROUP, CONSUMER),
    **dict.fromkeys((5, 7, 8), RecordRule(_MEMBER, CONSUMER)),
    9: RecordRule(_GROUP),  # R14 does not name it: it creates no group
    11: RecordRule(_GROUP, SHARE, removes_group=True),
    12: RecordRule(_GROUP, SHARE),
    **dict.fromkeys((10, 13, 14), RecordRule(_MEMBER, SHARE)),
    15: RecordRule(_GROUP, SHARE, names=("initializing_topics", "initialized_topics", "deleting_topics")),
    16: RecordRule("group_id:s regular_expression:s", CONSUMER),
    17: RecordRule(_GROUP, STREAMS, removes_group=True),
    **dict.fromkeys((19, 21, 22), RecordRule(_MEMBER, STREAMS)),
    **dict.fromkeys((20, 23), RecordRule(_GROUP, STREAMS)),
}

#: Record types and the layouts of their values (R5, R7). Of several, with | between, the first that decodes counts.
#: A field is `name:type`. Types: b, h, i, l integers of 1, 2, 4, 8 bytes; H unsigned of 2; u UUID; s string; y bytes;
#: [..] array; (..) struct. Behind the type: ? nullable, ^since-until versions, @tag. A $name is a part from below.
VALUES = """
0,1 offset:l leader_epoch:i^3 metadata:s commit_timestamp:l expire_timestamp:l^1-1 topic_id:u^4@0
2 protocol_type:s generation:i protocol:s? leader:s? current_state_timestamp:l^2
  members:[member_id:s group_instance_id:s?^3 client_id:s client_host:s rebalance_timeout:i^1 session_timeout:i
  subscription:y assignment:y]
3 epoch:i metadata_hash:l@0
4,9 topics:[topic_id:u topic_name:s num_partitions:i partition_metadata:[partition:i racks:[s]]]
5 instance_id:s? rack_id:s? client_id:s client_host:s subscribed_topic_names:[s] subscribed_topic_regex:s?
  rebalance_timeout_ms:i server_assignor:s?
  classic_member_metadata:?@0 (session_timeout_ms:i supported_protocols:[name:s metadata:y])
6,12,20 assignment_epoch:i assignment_timestamp:l@0
7,13 topic_partitions:[topic_id:u partitions:[i]]
8 $epochs assigned_partitions:[topic_id:u $by_epoch] partitions_pending_revocation:[topic_id:u $by_epoch]
10 rack_id:s? client_id:s client_host:s subscribed_topic_names:[s]
11 epoch:i metadata_hash:l | epoch:i metadata_hash:l^1
14 $epochs assigned_partitions:[topic_id:u partitions:[i]]
15 initializing_topics:[topic_id:u topic_name:s partitions:[i]] $share_topics | initializing_topics:^1 [i] $share_topics
16 topics:[s] version:l timestamp:l
17 epoch:i metadata_hash:l validated_topology_epoch:i@0 last_assignment_configs:?@1 [key:s value:s]
  stored_description_topology_epoch:i@2 failed_description_topology_epoch:i@3
19 instance_id:s? rack_id:s? client_id:s client_host:s rebalance_timeout_ms:i topology_epoch:i process_id:s
  user_endpoint:? (host:s port:H) client_tags:[key:s value:s]
21 active_tasks:[$tasks partitions:[i]] standby_tasks:[$tasks partitions:[i]] warmup_tasks:[$tasks partitions:[i]]
22 $epochs active_tasks:[$tasks $by_epoch] standby_tasks:[$tasks $by_epoch] warmup_tasks:[$tasks $by_epoch]
  active_tasks_pending_revocation:[$tasks $by_epoch] standby_tasks_pending_revocation:[$tasks $by_epoch]
  warmup_tasks_pending_revocation:[$tasks $by_epoch]
23 epoch:i subtopologies:[$tasks source_topics:[s] source_topic_regex:[s] state_changelog_topics:[$topic_info]
  repartition_sink_topics:[s] repartition_source_topics:[$topic_info]
  copartition_groups:[source_topics:[h] source_topic_regex:[h] repartition_source_topics:[h]]]
"""
_PARTS = {
    "$epochs": "member_epoch:i previous_member_epoch:i state:b",
    "$by_epoch": "partitions:[i] assignment_epochs:?@0 [i]",
    "$tasks": "subtopology_id:s",
    "$topic_info": "name:s partitions:i replication_factor:h topic_configs:[key:s value:s]",
    "$share_topics": "initialized_topics:[topic_id:u topic_name:s partitions:[i]]"
    " deleting_topics:[topic_id:u topic_name:s]",
}
#: R6: the types that the coordinator knows.
KNOWN = {CoordinatorSemantics.MODERN: set(RULES), CoordinatorSemantics.CLASSIC: {0, 1, 2}}
OFFSET_TYPES = {0, 1}
#: R7: fields whose -1 is NULL.
SENTINELS = {"leader_epoch", "expire_timestamp", "current_state_timestamp"}
#: The record types that describe a group (R33, R34), and the state of a stable member.
DESCRIPTIONS: dict[str, dict[str, int]] = {
    CONSUMER: {"epoch": 3, "member": 5, "target": 6, "current": 8, "stable": 0},
    SHARE: {"epoch": 11, "member": 10, "target": 12, "current": 14},
    STREAMS: {"epoch": 17, "member": 19, "target": 20, "current": 22, "stable": 1},
}


class Corrupt(Exception):
    """The bytes do not decode (R6)."""


class LayoutField(NamedTuple):
    """A field of a layout. The element of an array that holds no structs is a field without a name."""

    name: str
    kind: str
    inner: tuple[LayoutField, ...]
    nullable: bool
    since: int
    until: int
    tag: int | None


@cache
def layout(text: str) -> tuple[LayoutField, ...]:
    """The fields of a layout."""
    return _parsed(re.findall(r"[\[\]()]|[^\s\[\]()]+", text))


def _parsed(tokens: list[str]) -> tuple[LayoutField, ...]:
    fields: list[LayoutField] = []
    while tokens and tokens[0] not in "])":
        match = re.fullmatch(r"(?:(\w+):)?([bhHilusy]?)(\??)(?:\^(\d)(?:-(\d))?)?(?:@(\d))?", tokens.pop(0))
        assert match is not None
        name, kind, nullable, since, until, tag = match.groups()
        inner: tuple[LayoutField, ...] = ()
        if not kind:
            kind, inner = tokens.pop(0), _parsed(tokens)
            tokens.pop(0)
        versions = (int(since or 0), int(until or 99))
        fields.append(LayoutField(name or "", kind, inner, bool(nullable), *versions, int(tag) if tag else None))
    return tuple(fields)


@cache
def layouts() -> dict[int, list[tuple[LayoutField, ...]]]:
    """The layouts of the values by record type."""
    by_type: dict[int, list[tuple[LayoutField, ...]]] = {}
    for line in re.split(r"\n(?=\d)", VALUES.strip()):
        types, text = line.split(maxsplit=1)
        for part, meaning in _PARTS.items():
            text = text.replace(part, meaning)
        by_type |= {int(each): [layout(one) for one in text.split("|")] for each in types.split(",")}
    return by_type


class Bytes:
    """Bytes that are read in order (R5, R7, R8)."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at, self.elements = data, at, 0

    def check(self, holds: bool) -> None:
        """Raises Corrupt if this does not hold."""
        if not holds:
            raise Corrupt

    def take(self, size: int) -> bytes:
        """The next bytes."""
        self.check(0 <= size <= len(self.data) - self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> int:
        """An integer of fixed width."""
        code, size = {"b": (">b", 1), "i": (">i", 4), "l": (">q", 8), "h": (">h", 2), "H": (">H", 2)}[kind]
        return int(struct.unpack(code, self.take(size))[0])

    def varint(self) -> int:
        """An unsigned varint, in 32 bits with a sign as Java holds it."""
        value = 0
        for group in range(5):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                return (value + 2**31) % 2**32 - 2**31
        raise Corrupt

    def count(self, size: int) -> int:
        """A number of elements, at least one byte each."""
        self.elements += max(size, 0)
        self.check(size <= len(self.data) - self.at and self.elements <= MAX_ELEMENTS)
        return size

    def fields(self, of: Sequence[LayoutField], version: int, flexible: bool) -> Fields:
        """The fields of a struct; those that the version or the bytes do not have are None."""
        here = [each for each in of if each.since <= version <= each.until]
        found: Fields = {each.name: None for each in of}
        found |= {each.name: self.value(each, version, flexible) for each in here if each.tag is None}
        tagged = {each.tag: each for each in here}
        for _ in range(self.count(self.varint()) if flexible else 0):
            tag, size = self.varint(), self.varint()
            if tag in tagged:  # R8: others are skipped
                found[tagged[tag].name] = self.value(tagged[tag], version, flexible)
            else:
                self.take(size)
        return found

    def value(self, of: LayoutField, version: int, flexible: bool) -> Any:  # noqa: ANN401 - what the bytes say
        """The value of a field."""
        if of.kind == "u":
            return base64.urlsafe_b64encode(self.take(16)).decode()[:22]
        if of.kind == "(":  # R8: how a nullable struct begins
            present = 0 if not of.nullable else self.number("b") if of.tag is None else self.varint() - 1
            return None if present < 0 else self.fields(of.inner, version, flexible)
        if of.kind not in "sy[":
            number = self.number(of.kind)
            return None if number == -1 and of.name in SENTINELS else number
        size = self.varint() - 1 if flexible else self.number("h" if of.kind == "s" else "i")
        self.check(size >= 0 or of.nullable)
        if size < 0:
            return None
        if of.kind != "[":
            self.check(of.kind == "y" or size < 2**15)
            return self.take(size) if of.kind == "y" else self.take(size).decode("utf-8", "replace")
        one = of.inner[0]
        return [
            self.fields(of.inner, version, flexible) if one.name else self.value(one, version, flexible)
            for _ in range(self.count(size))
        ]


def decoded_value(record_type: int, value: bytes) -> Fields:
    """The fields of a value. Raises Corrupt."""
    rule, version = RULES[record_type], Bytes(value).number("h")
    if 0 <= version <= rule.max_version:  # R8
        for fields in layouts()[record_type]:
            with suppress(Corrupt):
                return Bytes(value, at=2).fields(fields, version, flexible=version >= rule.flexible_since)
    raise Corrupt


class Record(NamedTuple):
    """A record that decodes. ``name`` is the rest of its key; ``value`` is None in a tombstone (R3)."""

    at: int
    record_type: int
    group_id: str
    name: tuple[Any, ...]
    value: Fields | None
    producer_id: int | None

    @property
    def identity(self) -> Identity:
        """The identity of an offset (R9)."""
        return (self.group_id, *self.name)


Offsets = dict[Identity, Record]


class Description(NamedTuple):
    """A described group (R33, R34). A member has client, host and assignment: a blob, or partitions of topics."""

    state: str
    protocol_type: str
    epoch: int | None
    assignment_epoch: int | None
    assignor: str | None
    members: dict[str, tuple[str, str, Any]]


@dataclass
class Group:
    """A group, with the last value of each of its records by record type and name."""

    group_type: str
    records: dict[tuple[int, str], Fields] = field(default_factory=dict)

    def of_type(self, record_type: int) -> dict[str, Fields]:
        """The values of one record type by name."""
        return {name: value for (of, name), value in self.records.items() if of == record_type}

    def _by_topic_id(self, current: Fields) -> Iterator[tuple[str, int]]:
        for each in current.get("assigned_partitions") or []:
            yield from ((each["topic_id"], partition) for partition in each["partitions"])

    def _by_task(self, current: Fields) -> Iterator[tuple[str, int]]:
        """Names of topics: a topology has no ids."""
        for task in current.get("active_tasks") or []:
            for each in self.of_type(23).get("", {}).get("subtopologies", []):
                if each["subtopology_id"] == task["subtopology_id"]:
                    names = each["source_topics"] + [topic["name"] for topic in each["repartition_source_topics"]]
                    yield from ((name, partition) for name in names for partition in task["partitions"])

    def number(self, record_type: int, name: str) -> int | None:
        """A number of a record that a group has once."""
        return self.of_type(record_type).get("", {}).get(name)

    def describe(self) -> Description:
        """The description of the group."""
        if self.group_type == CLASSIC:
            value = self.records.get((2, ""), {"protocol_type": "", "members": [], "protocol": None})
            of_classic = {
                each["member_id"]: (each["client_id"], each["client_host"], each["assignment"])
                for each in value["members"]
            }
            state = "Stable" if of_classic else "Empty"
            return Description(state, value["protocol_type"], None, None, value["protocol"], of_classic)
        rule = DESCRIPTIONS[self.group_type]
        sent = self.of_type(rule["member"])
        new = {"state": rule.get("stable"), "member_epoch": 0}
        current = {name: self.of_type(rule["current"]).get(name, new) for name in sent}
        partitions = {name: [*self._by_topic_id(each), *self._by_task(each)] for name, each in current.items()}
        members = {name: (each["client_id"], each["client_host"], partitions[name]) for name, each in sent.items()}
        epoch = self.number(rule["epoch"], "epoch") or 0  # the rules do not say what it is without a record
        assigned = self.number(rule["target"], "assignment_epoch") or 0
        state = self._state(rule, epoch, assigned, current)
        return Description(state, self.group_type, epoch, assigned, self._assignor(), members)

    def _state(self, rule: dict[str, int], epoch: int, assigned: int, current: dict[str, Fields]) -> str:
        """State of a group that is not classic (R33)."""
        validated = self.number(rule["epoch"], "validated_topology_epoch")
        as_assigned = (rule.get("stable"), assigned)
        if not current:
            return "Empty"
        if self.group_type == SHARE:
            return "Stable"
        if self.group_type == STREAMS and self.number(23, "epoch") != (-1 if validated is None else validated):
            return "NotReady"
        if epoch > assigned:
            return "Assigning"
        is_stable = all((each["state"], each["member_epoch"]) == as_assigned for each in current.values())
        return "Stable" if is_stable else "Reconciling"

    def _assignor(self) -> str | None:
        if self.group_type != CONSUMER:
            return None
        named = Counter(each["server_assignor"] for each in self.of_type(5).values() if each["server_assignor"])
        return min(named, key=lambda name: (-named[name], name != "uniform", name), default="uniform")  # R34


@dataclass(frozen=True)
class State:
    """What the log of one log partition says.

    ``offsets`` are the last visible ones (R10); ``answered`` and ``unstable`` are those that questions get (R1, R14,
    R17, R38). An offset is its record.
    """

    offsets: Offsets
    answered: Offsets
    pending: dict[int, Offsets]
    unstable: set[Identity]
    groups: dict[str, Group]
    misplaced: set[str]
    quarantined: set[int]
    unknown_records: int
    topic_names: dict[str, str]


def state_of(
    rows: Iterable[LogRow], log_partition: int, offsets_partitions: int, semantics: CoordinatorSemantics
) -> State:
    """The state of a log partition after these rows."""
    log = [row for _, row in sorted({row.record_offset: row for row in rows}.items())]  # R2, R15
    records, quarantined, unknown = _decoded(log, KNOWN[semantics])
    markers = defaultdict(list)
    for row in log:
        if row.control_type in (COMMIT, ABORT):
            markers[row.producer_id].append((row.record_offset, row.control_type))
    offsets, pending = _offsets(records, markers, classic=semantics.is_classic)
    held = {identity for of_producer in pending.values() for identity in of_producer}
    groups = _groups(records)
    if semantics.is_classic:  # R14
        groups = {name: group for name, group in groups.items() if group.records}
        groups |= {name: Group(CLASSIC) for name, _, _ in {*offsets, *held} if name not in groups}
    away = {name for name in groups if home_of(name, offsets_partitions) != log_partition}
    misplaced = set() if semantics.is_classic else away  # R1
    answering = {name for name, group in groups.items() if group.group_type != SHARE} - misplaced  # R14
    answered = {at: each for at, each in offsets.items() if at[0] in answering}
    answered = {at: each for at, each in answered.items() if each.value and each.value["offset"] >= 0}  # R38
    unstable = {identity for identity in held if identity[0] in answering}
    names = _topic_names(records)
    return State(offsets, answered, pending, unstable, groups, misplaced, quarantined, unknown, names)


def home_of(group_id: str, offsets_partitions: int) -> int:
    """The log partition of a group (R1)."""
    java_hash = 0
    for (unit,) in struct.iter_unpack(">H", group_id.encode("utf-16-be", "surrogatepass")):
        java_hash = (31 * java_hash + unit) % 2**32
    distance = min(java_hash, 2**32 - java_hash)
    return (0 if distance == 2**31 else distance) % offsets_partitions


def _decoded(log: list[LogRow], known: set[int]) -> tuple[list[Record], set[int], int]:
    """The records that decode, the record offsets of corrupt ones, and the number of unknown ones (R6)."""
    records, corrupt, unknown = [], set(), 0
    for row in log:
        if row.control_type is not None:
            continue
        try:
            data = Bytes(row.key or b"")  # R3: no key is corrupt
            record_type = data.number("h")
            if record_type not in known:
                unknown += 1
                continue
            group_id, *name = data.fields(layout(RULES[record_type].key), 0, flexible=False).values()
            value = None if row.value is None else decoded_value(record_type, row.value)
            records.append(Record(row.record_offset, record_type, group_id, tuple(name), value, row.producer_id))
        except Corrupt:
            corrupt.add(row.record_offset)
    return records, corrupt, unknown


def _offsets(
    records: list[Record], markers: Mapping[int | None, list[tuple[int, str]]], *, classic: bool
) -> tuple[Offsets, dict[int, Offsets]]:
    """The visible and the pending offsets (R10 to R12)."""
    best: dict[Identity, tuple[tuple[int, int], Record]] = {}
    pending: dict[int, Offsets] = {}
    commits = [record for record in records if record.record_type in OFFSET_TYPES]
    tombstones = defaultdict(list)
    for record in commits:
        if record.value is None:
            tombstones[record.identity].append(record)
    for record in commits:
        producer_id, rank = record.producer_id, (record.at, record.at)
        if record.value is None:
            if classic and producer_id is not None:
                continue  # R12: it removes pending commits of its own transaction, see below
            rank = (record.at, -1)
        elif producer_id is not None:
            after = [each for each in markers.get(producer_id, []) if each[0] > record.at]
            end, ended = after[0] if after else (math.inf, None)  # R11
            removing = [each for each in tombstones[record.identity] if record.at < each.at < end]
            # R12: the tombstones that remove this commit while it is pending
            if any(not classic or each.producer_id == producer_id for each in removing):
                continue
            if ended is None:
                pending.setdefault(producer_id, {})[record.identity] = record
            if ended != COMMIT:
                continue
            rank = (max([record.at, *(each.at for each in removing if each.producer_id is None)]), record.at)  # R10c
        if record.identity not in best or best[record.identity][0] < rank:
            best[record.identity] = (rank, record)
    return {identity: record for identity, (_, record) in best.items() if record.value is not None}, pending


def _groups(records: list[Record]) -> dict[str, Group]:
    """The groups that commits and values create and tombstones remove (R14)."""
    groups: dict[str, Group] = {}
    for record in records:
        rule, group = RULES[record.record_type], groups.get(record.group_id)
        name = (record.record_type, str(record.name[0]) if record.name else "")
        if record.record_type in OFFSET_TYPES:
            if group is None and record.value is not None:
                groups[record.group_id] = Group(CLASSIC)
        elif record.value is None:
            if rule.removes_group:
                groups.pop(record.group_id, None)
            elif group is not None:  # R13
                group.records.pop(name, None)
        elif rule.group_type is not None:
            # R14 names simple groups only. Rules do not say what replaces others; the first lets the newer type win.
            if group is None or group.group_type != rule.group_type:
                group = groups[record.group_id] = Group(rule.group_type)
            group.records[name] = record.value
    return groups


def _topic_names(records: list[Record]) -> dict[str, str]:
    """Names of topic ids (R35)."""
    told: set[tuple[str, str]] = set()
    for record in records:
        value = record.value or {}
        if record.record_type in OFFSET_TYPES and value.get("topic_id") not in (None, NO_TOPIC_ID):
            told.add((value["topic_id"], record.name[0]))
        for name in RULES[record.record_type].names:
            told.update((each["topic_id"], each["topic_name"]) for each in value.get(name) or [])
    return dict(sorted(told, reverse=True))
