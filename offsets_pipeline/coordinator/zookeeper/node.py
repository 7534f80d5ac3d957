"""A node of ZooKeeper."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Node(NamedTuple):
    """The data of a node, and the time of its last change (ms)."""

    data: bytes
    modified_ms: int


class Missing(Enum):
    """Why a request for a node failed."""

    ABSENT = "there is no such node"
    FORBIDDEN = "the node's ACL does not allow reading it"
    NOT_EMPTY = "the node has children"
