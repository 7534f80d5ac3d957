"""Text dumps of the nodes below /consumers.

Three formats; each line may have another one:

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
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import ms_of
from offsets_pipeline.common.input_text import opened_text, shown
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes, Node
from offsets_pipeline.errors import MalformedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# a group id may have spaces and colons, a topic has none
_LINE = re.compile(
    r"(?:/\S+?)??/consumers/(?P<group>[^/]+)/(?P<kind>offsets|owners)/(?P<topic>[^/\s:]+)/(?P<partition>[^/\s:]*)"
    r"(?:[:\s](?P<data>\S*)(?:\s+(?P<modified_ms>\d{1,18}))?)?\s*"
)
_CONSUMER_ID = re.compile(r"(?:/\S+?)??/consumers/(?P<group>[^/]+)/ids/(?P<id>[^/\s]+)(?:\s.*)?")
_UNROOTED = re.compile(r"\S*?consumers/[^/]+/offsets/")
_ATTRIBUTE = re.compile(r"\s+(?P<name>\w+) ?= ?(?P<value>.*)")
_JAVA_DATE = re.compile(r"\w{3} (\w{3} \d\d \d\d:\d\d:\d\d) (\w+) (\d{4})")


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
