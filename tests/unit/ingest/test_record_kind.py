"""Whether the first records of a log are from a group coordinator."""

from __future__ import annotations

import pytest

from offsets_pipeline.errors import WrongRecords
from offsets_pipeline.ingest.record_kind import RECORD_KINDS, RecordKey, topic_kind_of
from offsets_pipeline.semantics.topic_kind import TopicKind
from tests.log_tables import capture_records
from tests.logs import CAPTURE_NAMES, commit_key

COMMIT = commit_key("g", "t", 0)
# the first bytes of what producers' serializers make: texts, JSON, integers, long integers, UUIDs
OTHERS = (
    None,
    b"",
    b"7",
    b"user-17",
    "größe".encode(),
    b'["orders",{"file":"/a"}]',
    b'{"id":1}',
    (5).to_bytes(4, "big"),
    (65_536).to_bytes(4, "big"),
    (5).to_bytes(8, "big"),
    (2**40 + 3).to_bytes(8, "big"),
    bytes.fromhex("8c0e5f7e4a1b4f0e9d5e0d3f2a6b7c8d"),
)


GROUPS = RECORD_KINDS[TopicKind.CONSUMER_OFFSETS]


def records(*keys: bytes | None) -> list[RecordKey]:
    return [RecordKey(0, number, key) for number, key in enumerate(keys, 7)]


def look(*keys: bytes | None) -> None:
    GROUPS.require("topic t", records(*keys))


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_first_records_of_brokers_are_taken(name: str) -> None:
    for rows in capture_records(name).values():
        keys = rows.filter(rows["control_type"].is_null())["key"].slice(0, 20).to_pylist()
        assert GROUPS.matches(records(*keys))


@pytest.mark.parametrize("key", OTHERS)
def test_records_of_another_topic_are_refused(key: bytes | None) -> None:
    with pytest.raises(WrongRecords, match="topic t does not have records of a group coordinator: 1 of the first 1"):
        look(key)


def test_majority_of_the_first_records_decides() -> None:
    assert GROUPS.matches([])
    assert GROUPS.matches(records(COMMIT, b"user-17"))
    with pytest.raises(WrongRecords) as refused:
        look(COMMIT, b"user-17", None)
    assert str(refused.value) == (
        "topic t does not have records of a group coordinator: 2 of the first 3 records are others (record 8 of "
        "partition 0 has the key b'user-17'); name __consumer_offsets, or a copy of its log"
    )


def test_records_of_a_newer_coordinator_are_taken() -> None:  # R6
    assert GROUPS.matches(records(b"\x00\x63any", b"\x00\x18\x00\x01g", b"\x00\xffg"))
    assert not GROUPS.matches(records(b"\x01\x00g"))


KEYS_OF_KIND = {
    TopicKind.CONSUMER_OFFSETS: COMMIT,
    TopicKind.CONNECT_OFFSETS: b'["files",{"filename":"/a"}]',
    TopicKind.CONNECT_STATUS: b"status-connector-files",
    TopicKind.CONNECT_CONFIGS: b"connector-files",
}


@pytest.mark.parametrize("kind", KEYS_OF_KIND)
def test_first_records_tell_the_kind_of_a_topic_and_another_kind_is_refused(kind: TopicKind) -> None:
    records = [RecordKey(0, 0, KEYS_OF_KIND[kind]), RecordKey(0, 1, b"\xff")]
    assert topic_kind_of("topic t", "t", records) is kind
    for other in KEYS_OF_KIND:
        if other is not kind:
            with pytest.raises(WrongRecords, match=RECORD_KINDS[other].name):
                topic_kind_of("topic t", "t", records, other)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("connect-status", TopicKind.CONNECT_STATUS),
        ("cdc_status", TopicKind.CONNECT_STATUS),
        ("connect-cluster-offsets", TopicKind.CONNECT_OFFSETS),
        ("worker-offset", TopicKind.CONNECT_OFFSETS),
        ("status-board-connect-configs", TopicKind.CONNECT_CONFIGS),
        ("debezium_configs", TopicKind.CONNECT_CONFIGS),
        ("cdc-config", TopicKind.CONNECT_CONFIGS),
        ("connect.__consumer_offsets", TopicKind.CONSUMER_OFFSETS),
        ("copy.__share_group_state", TopicKind.SHARE_STATE),
    ],
)
def test_end_of_a_name_tells_the_kind_of_a_topic_without_records(topic: str, kind: TopicKind) -> None:
    assert topic_kind_of("topic t", topic, []) is kind


def test_topic_without_records_and_with_another_name_is_refused() -> None:
    for topic in ("t", "connect-offsets-copy", "connect"):
        with pytest.raises(WrongRecords, match="topic t has no records, and the end of its name is not offsets"):
            topic_kind_of("topic t", topic, [])
    assert topic_kind_of("topic t", "t", [], TopicKind.CONNECT_CONFIGS) is TopicKind.CONNECT_CONFIGS
    with pytest.raises(WrongRecords, match="topic t does not have records of a group coordinator"):
        topic_kind_of("topic t", "connect-status", [RecordKey(0, 0, b"user-17")])
