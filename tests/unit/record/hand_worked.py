"""Bytes of fields, worked by hand from Kafka's schemas, and the decoded fields that tests compare with."""

from __future__ import annotations

from typing import Any

ID = "000102030405060708090a0b0c0d0e0f"
ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"
TIME = "00000000000003e8"  # 1000
OFFSET_42 = "000000000000002a"
# client_id "c", client_host "/h"
CLIENT = "000163" + "00022f68"


def hexed(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


def commit(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 (field values)
    """Fields of an offset commit's value."""
    defaults = {"leader_epoch": None, "expire_timestamp": None, "topic_id": None, "commit_timestamp": 1000}
    return {**defaults, "metadata": "m", "offset": 42, **fields}


def group(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 (field values)
    """Fields of a classic group's value."""
    defaults = {"protocol_type": "consumer", "generation": 3, "protocol": "range", "leader": "a"}
    return {**defaults, "current_state_timestamp": None, "members": [], **fields}


def member(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 (field values)
    """Fields of a classic group's member."""
    defaults = {"member_id": "a", "client_id": "c", "client_host": "/h", "session_timeout": 5}
    blobs = {"subscription": b"\x01", "assignment": b""}
    return {**defaults, **blobs, "rebalance_timeout": None, "group_instance_id": None, **fields}
