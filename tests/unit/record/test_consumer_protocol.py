"""Subscriptions and assignments that classic consumers embed in group metadata."""

from __future__ import annotations

import pytest

from offsets_pipeline.kafka.record.consumer_protocol import decode_assignment, decode_subscription
from offsets_pipeline.kafka.record.decode import DecodedValue

TOPICS = "00000002" + "00027431" + "00027432"  # t1, t2
USER_DATA = "00000002cafe"
NULL_BYTES = "ffffffff"
OWNED = "00000001" + "00027431" + "00000002" + "00000000" + "00000003"  # t1: 0, 3

SUBSCRIPTIONS = [
    ("0000" + TOPICS + USER_DATA, 0, b"\xca\xfe", None, None, None),
    ("0001" + TOPICS + NULL_BYTES + OWNED, 1, None, [("t1", [0, 3])], None, None),
    ("0002" + TOPICS + NULL_BYTES + "00000000" + "00000007", 2, None, [], 7, None),
    ("0003" + TOPICS + NULL_BYTES + OWNED + "ffffffff" + "000272" + "31", 3, None, [("t1", [0, 3])], -1, "r1"),
    ("0003" + TOPICS + "00000000" + "00000000" + "00000001" + "ffff", 3, b"", [], 1, None),
]


@pytest.mark.parametrize(("data", "version", "user_data", "owned", "generation_id", "rack_id"), SUBSCRIPTIONS)
def test_subscriptions_of_every_version(
    data: str,
    version: int,
    user_data: bytes | None,
    owned: list[tuple[str, list[int]]] | None,
    generation_id: int | None,
    rack_id: str | None,
) -> None:
    owned_partitions = None if owned is None else [{"topic": topic, "partitions": ids} for topic, ids in owned]
    assert decode_subscription("consumer", bytes.fromhex(data)) == DecodedValue(
        version,
        {
            "topics": ["t1", "t2"],
            "user_data": user_data,
            "owned_partitions": owned_partitions,
            "generation_id": generation_id,
            "rack_id": rack_id,
        },
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_assignments_of_every_version(version: int) -> None:
    assert decode_assignment("consumer", bytes.fromhex(f"{version:04x}" + OWNED + USER_DATA)) == DecodedValue(
        version,
        {"assigned_partitions": [{"topic": "t1", "partitions": [0, 3]}], "user_data": b"\xca\xfe"},
    )


def test_a_newer_version_is_read_as_the_highest_known() -> None:
    newest = decode_subscription("consumer", bytes.fromhex("0064" + SUBSCRIPTIONS[3][0][4:] + "beef"))
    assert newest is not None
    assert (newest.version, newest.fields["rack_id"], newest.trailing) == (100, "r1", b"\xbe\xef")


@pytest.mark.parametrize("protocol_type", ["", "connect", "Consumer", None])
def test_other_protocols_stay_opaque(protocol_type: str | None) -> None:
    assert decode_subscription(protocol_type, bytes.fromhex(SUBSCRIPTIONS[0][0])) is None
    assert decode_assignment(protocol_type, bytes.fromhex("0000" + OWNED + USER_DATA)) is None


@pytest.mark.parametrize(
    "version_and_more", [("ffff", ""), ("0001", ""), ("0001", "0000"), ("0002", OWNED), ("0003", OWNED + "00000007")]
)
def test_topics_are_known_if_the_fields_of_version_0_decode(version_and_more: tuple[str, str]) -> None:
    """Brokers of 3.9 and 4.2 expired offsets of topics that such a subscription does not name (R18)."""
    version, more = version_and_more
    found = decode_subscription("consumer", bytes.fromhex(version + TOPICS + NULL_BYTES + more))
    assert found is not None
    assert (found.fields["topics"], found.fields["user_data"]) == (["t1", "t2"], None)
    assert found.fields.get("rack_id") is None
    assert found.trailing.hex() == more


@pytest.mark.parametrize("blob", ["", "00", "0000" + TOPICS, "0001" + TOPICS, "ffff0000"])
def test_what_does_not_decode_stays_opaque(blob: str) -> None:
    assert decode_subscription("consumer", bytes.fromhex(blob)) is None
    assert decode_assignment("consumer", bytes.fromhex("0000ffffffff")) is None
