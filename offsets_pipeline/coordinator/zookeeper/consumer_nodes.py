"""Nodes of Kafka's first consumers: /consumers/{group}/offsets/{topic}/{partition}, owners and ids; and dumps of them.

A broker up to 0.10 answers OffsetFetch v0 from these nodes, and reads their data as Java's Long.parseLong does.

A dump is a text with the nodes below /consumers, in three formats; each line may have another one:

    /consumers/billing/offsets/orders/0 42 1457000000000     node, data, and if known the time of its last change (ms)
    /consumers/billing/offsets/orders/0:42                   as kafka.tools.ExportZkOffsets writes it
    /consumers/billing/offsets/orders/0                      as ZooKeeper's SnapshotFormatter -d writes it: the node's
      mtime = Thu Mar 03 10:13:20 UTC 2016                   attributes follow its path, and the data are in Base64
      data = NDI=

Other nodes are passed over. A chroot before /consumers is left out of the result.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import ms_of
from offsets_pipeline.common.input_text import opened_text, shown
from offsets_pipeline.errors import InvalidGroupId, MalformedFile, UnknownTopicOrPartition, ZooKeeperFailed
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient

ROOT = "/consumers"
_NUMBER = re.compile(r"[+-]?[0-9]+")
_PARTITION = re.compile(r"[0-9]{1,10}")
_MAX_OFFSET = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_SHOWN_BYTES = 40
#: Slashes in the path of an offset.
_DEPTH_OF_OFFSETS = 5
#: Groups whose nodes are in memory together.
_GROUPS_AT_ONCE = 200
#: ZooKeeper allows neither these characters, nor these names, nor an empty name.
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/]")
_RESERVED_NAMES = {"", ".", ".."}
# a group id may have spaces and colons, a topic has none
_LINE = re.compile(
    r"(?:/\S+?)??/consumers/(?P<group>[^/]+)/(?P<kind>offsets|owners)/(?P<topic>[^/\s:]+)/(?P<partition>[^/\s:]*)"
    r"(?:[:\s](?P<data>\S*)(?:\s+(?P<modified_ms>\d{1,18}))?)?\s*"
)
_CONSUMER_ID = re.compile(r"(?:/\S+?)??/consumers/(?P<group>[^/]+)/ids/(?P<id>[^/\s]+)(?:\s.*)?")
_UNROOTED = re.compile(r"\S*?consumers/[^/]+/offsets/")
_ATTRIBUTE = re.compile(r"\s+(?P<name>\w+) ?= ?(?P<value>.*)")
_JAVA_DATE = re.compile(r"\w{3} (\w{3} \d\d \d\d:\d\d:\d\d) (\w+) (\d{4})")


class Node(NamedTuple):
    """The data of a node of ZooKeeper, and the time of its last change (ms), None if unknown."""

    data: bytes
    modified_ms: int | None


class Missing(Enum):
    """Why a request for a node failed."""

    ABSENT = "there is no such node"
    FORBIDDEN = "the node's ACL does not allow reading it"
    NOT_EMPTY = "the node has children"


class NodeOffset(NamedTuple):
    """An offset that a consumer committed to ZooKeeper, and the time of the commit (ms), None if unknown."""

    offset: int
    modified_ms: int | None


class SkippedNode(NamedTuple):
    """A node that holds no offset, and why."""

    path: str
    reason: str


@dataclass
class GroupNodes:
    """The nodes of a group. ``consumer_ids`` and ``owners`` are registrations of running consumers.

    ``unset`` are partitions whose nodes are skipped for a negative number, which a broker answers as no offset.
    """

    group_id: str
    offsets: dict[TopicPartition, NodeOffset] = field(default_factory=dict)
    skipped: list[SkippedNode] = field(default_factory=list)
    consumer_ids: list[str] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    unset: set[TopicPartition] = field(default_factory=set)

    def add(self, kind: str, topic: str, partition: str, node: Node | Missing) -> None:
        """Add the node of a partition below `owners`, or below `offsets`, or the reason why it holds no offset."""
        if kind == "owners":
            if isinstance(node, Node):
                self.owners[f"{topic}-{partition}"] = node.data.decode("utf-8", "replace")
            return
        path = f"{ROOT}/{self.group_id}/offsets/{topic}/{partition}"
        if node is Missing.ABSENT:
            return  # a consumer deleted it a moment ago
        if isinstance(node, Missing):
            self.skipped.append(SkippedNode(path, node.value))
            return
        try:
            where = TopicPartition(topic, partition_of(partition))
            offset = offset_of(node.data)
        except ValueError as error:
            self.skipped.append(SkippedNode(path, str(error)))
            return
        if offset < 0:
            self.unset.add(where)
            self.skipped.append(SkippedNode(path, f"'{offset}' is negative"))
        else:
            self.offsets[where] = NodeOffset(offset, node.modified_ms)


def partition_of(name: str) -> int:
    """Return the partition number in a node's name. Raises ValueError with the reason."""
    if _PARTITION.fullmatch(name) is None or int(name) > _MAX_PARTITION:
        raise ValueError(f"{name!r} is not a partition")
    return int(name)


def offset_of(data: bytes) -> int:
    """Return the number in a node's data, which is no offset if it is negative. Raises ValueError with the reason."""
    if not data:
        raise ValueError("the node is empty")
    shown = repr(data[:_SHOWN_BYTES])[1:] + ("..." if len(data) > _SHOWN_BYTES else "")
    text = data.decode("ascii", "replace")
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{shown} is not a number")
    if len(text) > _SHOWN_BYTES or int(text) > _MAX_OFFSET:
        raise ValueError(f"{shown} is above 2^63-1")
    return int(text)


def offsets_path(group_id: str) -> str:
    """Return the node above a group's offsets. Raises InvalidGroupId if no node can have this name."""
    if not is_node_name(group_id):
        raise InvalidGroupId(f"ZooKeeper cannot hold the group id {group_id!r}: no node can have this name")
    return f"{ROOT}/{group_id}/offsets"


def offset_path(group_id: str, where: TopicPartition) -> str:
    """Return the node of an offset. Raises InvalidGroupId, UnknownTopicOrPartition if no node can have this name."""
    if not is_node_name(where.topic):
        raise UnknownTopicOrPartition(f"ZooKeeper cannot hold the topic {where.topic!r}: no node can have this name")
    return f"{offsets_path(group_id)}/{where.topic}/{where.partition}"


def offset_paths(group_id: str, partitions: Iterable[TopicPartition]) -> list[str]:
    """Return the nodes of these offsets; leaves out those whose name no node can have."""
    if not is_node_name(group_id):
        return []
    return [offset_path(group_id, where) for where in partitions if is_node_name(where.topic)]


def is_node_name(text: str) -> bool:
    """Return whether a node can have this name."""
    return text not in _RESERVED_NAMES and _NOT_IN_NAMES.search(text) is None


def group_ids(client: ZooKeeperClient, *, must_exist: bool = False) -> list[str]:
    """Return the ids of all groups with nodes; none if there is no node /consumers.

    Raises ZooKeeperFailed if the node may not be read, or is missing and ``must_exist``.
    """
    ((_, found),) = client.children([ROOT])
    if found is Missing.FORBIDDEN:
        raise ZooKeeperFailed(f"ZooKeeper at {client.at} does not allow reading {ROOT}: set digest in [zookeeper]")
    if found is Missing.ABSENT and must_exist:
        raise ZooKeeperFailed(f"ZooKeeper at {client.at} has no node {ROOT}: add Kafka's chroot, as in HOST:PORT/kafka")
    return found if isinstance(found, list) else []


def read_groups(client: ZooKeeperClient, chosen: Iterable[str]) -> Iterator[GroupNodes]:
    """Yield the nodes of these groups, some groups at a time. Owners and ids included."""
    waiting = iter(chosen)
    while ids := list(islice(waiting, _GROUPS_AT_ONCE)):
        groups = {group_id: GroupNodes(group_id) for group_id in ids}
        _add_below(client, "offsets", groups)
        for path, names in client.children(f"{ROOT}/{group_id}/ids" for group_id in ids):
            groups[path.split("/")[2]].consumer_ids += names if isinstance(names, list) else []
        _add_below(client, "owners", groups)
        yield from groups.values()


def read_offsets(
    client: ZooKeeperClient, group_id: str, partitions: Iterable[TopicPartition] | None = None
) -> GroupNodes:
    """Return the offsets of a group, without its owners and ids: of these partitions, or all."""
    group = GroupNodes(group_id)
    if not is_node_name(group_id):
        return group
    if partitions is None:
        _add_below(client, "offsets", {group_id: group})
    else:
        _add_nodes(client, offset_paths(group_id, partitions), {group_id: group})
    return group


def consumer_ids(client: ZooKeeperClient, group_id: str) -> list[str]:
    """Return the ids of a group's running consumers. Raises ZooKeeperFailed if their node may not be read."""
    return [name for _, name in _children(client, [f"{ROOT}/{group_id}/ids"] if is_node_name(group_id) else [])]


def delete_group(client: ZooKeeperClient, group_id: str) -> int | None:
    """Delete all nodes of a group; returns the number of its offsets, None if it had no node.

    Raises ZooKeeperFailed if a node may not be read or deleted, or if one was created meanwhile.
    """
    root = f"{ROOT}/{group_id}"
    levels = [[root] if is_node_name(group_id) else []]
    offsets = deleted = 0
    while levels[-1]:
        levels.append([f"{path}/{name}" for path, name in _children(client, levels[-1])])
    for paths in reversed(levels):
        offsets += sum(path.count("/") == _DEPTH_OF_OFFSETS and path.split("/")[3] == "offsets" for path in paths)
        deleted += client.delete(paths)
    if any(names is not Missing.ABSENT for _, names in client.children(levels[0])):
        raise ZooKeeperFailed(f"ZooKeeper at {client.at} has new nodes below {root}: delete the group again")
    return offsets if deleted else None


def _children(client: ZooKeeperClient, paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names below these nodes, each with the path of its node. Raises ZooKeeperFailed."""
    found = []
    for path, names in client.children(paths):
        if names is Missing.FORBIDDEN:
            raise ZooKeeperFailed(f"ZooKeeper at {client.at} does not allow reading {path}: check its ACL")
        found += [(path, name) for name in names] if isinstance(names, list) else []
    return found


def _add_below(client: ZooKeeperClient, kind: str, groups: Mapping[str, GroupNodes]) -> None:
    topics = _below(client, (f"{ROOT}/{group_id}/{kind}" for group_id in groups), groups)
    _add_nodes(client, _below(client, topics, groups), groups)


def _add_nodes(client: ZooKeeperClient, paths: Iterable[str], groups: Mapping[str, GroupNodes]) -> None:
    for path, node in client.read(paths):
        _, _, group_id, kind, topic, partition = path.split("/")
        groups[group_id].add(kind, topic, partition, node)


def _below(client: ZooKeeperClient, paths: Iterable[str], groups: Mapping[str, GroupNodes]) -> list[str]:
    """Return the paths of the nodes below these; notes nodes that may not be read."""
    found = []
    for path, names in client.children(paths):
        if isinstance(names, list):
            found += [f"{path}/{name}" for name in names]
        elif names is Missing.FORBIDDEN:
            groups[path.split("/")[2]].skipped.append(SkippedNode(path, names.value))
    return found


# --- dumps


class _Entry(NamedTuple):
    """A node of a dump as far as it is read: its line, its path in parts, and its attributes."""

    line: int
    found: re.Match[str]
    attributes: dict[str, str]


def read_dump(path: Path) -> list[GroupNodes]:
    """Return the nodes of a dump by group, in the order of the dump.

    Raises NoSuchPath, and MalformedFile if the file is not UTF-8, names no node of a group, or has a wrong line.
    """
    groups: dict[str, GroupNodes] = {}
    for entry in _entries(path):
        group_id = entry.found["group"]
        group = groups.setdefault(group_id, GroupNodes(group_id))
        parts = entry.found.groupdict()
        if "id" in parts:
            group.consumer_ids.append(parts["id"])
        else:
            group.add(parts["kind"], parts["topic"], parts["partition"], _content(path, entry))
    if not groups:
        raise MalformedFile(f"{path} has no node below /consumers: write a line PATH VALUE for each node")
    return list(groups.values())


def _entries(path: Path) -> Iterator[_Entry]:
    entry: _Entry | None = None
    for number, line in enumerate(_lines(path), 1):
        if line.startswith("/"):
            if entry is not None:
                yield entry
            found = _LINE.fullmatch(line) or _CONSUMER_ID.fullmatch(line)
            if found is None and "/offsets/" in line and len(line.split("/offsets/")[1].split("/")) > 1:
                raise MalformedFile(
                    f"{path}, line {number}: {shown(line)} is not of the form PATH VALUE [MILLISECONDS]"
                )
            entry = None if found is None else _Entry(number, found, {})
        elif _UNROOTED.match(line):
            raise MalformedFile(
                f"{path}, line {number}: {shown(line)} has no path from the root: begin it with a slash"
            )
        elif entry is not None and (attribute := _ATTRIBUTE.fullmatch(line)) is not None:
            entry.attributes[attribute["name"]] = attribute["value"]
    if entry is not None:
        yield entry


def _lines(path: Path) -> Iterator[str]:
    with opened_text(path) as file:
        yield from (line.rstrip("\n") for line in file)


def _content(path: Path, entry: _Entry) -> Node:
    """Return the data of a node and the time of its last change, from its line or from its attributes."""
    if not entry.attributes:
        modified_ms = entry.found["modified_ms"]
        return Node((entry.found["data"] or "").encode(), None if modified_ms is None else int(modified_ms))
    if "data" not in entry.attributes and entry.attributes.get("dataLength", "0") != "0":
        raise MalformedFile(f"{path}, line {entry.line}: the node has no data; run SnapshotFormatter with -d")
    try:
        data = base64.b64decode(entry.attributes.get("data", ""), validate=True)
    except ValueError:  # also of a character that is not ASCII
        raise MalformedFile(f"{path}, line {entry.line}: the data of the node are not Base64") from None
    return Node(data, _java_date_ms(entry.attributes.get("mtime", "")))


def _java_date_ms(text: str) -> int | None:
    """Return the time that Java's Date.toString wrote, in ms; None if it is no date, or not in UTC."""
    found = _JAVA_DATE.fullmatch(text)
    if found is None or found[2] not in {"UTC", "GMT"}:
        return None
    try:
        at = datetime.strptime(f"{found[1]} {found[3]}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:  # no date, such as the 31st of June
        return None
    return ms_of(at)
