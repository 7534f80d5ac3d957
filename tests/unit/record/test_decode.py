"""Records by hand-worked bytes, version by version."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue, decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, RecordType
from offsets_pipeline.kafka.record.schema import UNKNOWN_TAGGED_FIELDS
from offsets_pipeline.semantics.group_types import OFFSET_COMMIT_TYPES
from tests.unit.record.hand_worked import CLIENT, ID, ID_TEXT, OFFSET_42, TIME, commit, group, hexed, member

NO_TIME = "ffffffffffffffff"
CONSUMER = "0008636f6e73756d6572"  # "consumer"
RANGE_A = "000572616e6765" + "000161"  # "range", "a"
BLOBS = "0000000101" + "00000000"

VALUES: dict[str, tuple[int, bytes, int, dict[str, Any]]] = {
    "offset commit v0, key 0": (0, hexed("0000", OFFSET_42, "00016d", TIME), 0, commit()),
    "offset commit v0": (1, hexed("0000", OFFSET_42, "00016d", TIME), 0, commit()),
    "offset commit v1": (
        1,
        hexed("0001", OFFSET_42, "00016d", TIME, "00000000000007d0"),
        1,
        commit(expire_timestamp=2000),
    ),
    "offset commit v1 without expiry": (1, hexed("0001", OFFSET_42, "00016d", TIME, NO_TIME), 1, commit()),
    "offset commit v2": (1, hexed("0002", OFFSET_42, "0000", TIME), 2, commit(metadata="")),
    "offset commit v3": (1, hexed("0003", OFFSET_42, "00000007", "00016d", TIME), 3, commit(leader_epoch=7)),
    "offset commit v3 without epoch": (1, hexed("0003", OFFSET_42, "ffffffff", "00016d", TIME), 3, commit()),
    "offset commit v4": (1, hexed("0004", OFFSET_42, "00000000", "026d", TIME, "00"), 4, commit(leader_epoch=0)),
    "offset commit v4 with a topic id": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "026d", TIME, "01", "00", "10", ID),
        4,
        commit(topic_id=ID_TEXT),
    ),
    "offset commit v4 with unknown tags": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "026d", TIME, "03", "00", "10", ID, "05", "02", "cafe", "8001", "00"),
        4,
        commit(topic_id=ID_TEXT) | {UNKNOWN_TAGGED_FIELDS: [(5, b"\xca\xfe"), (128, b"")]},
    ),
    "group metadata v0": (
        2,
        hexed("0000", CONSUMER, "00000003", RANGE_A, "00000001", "000161", CLIENT, "00000005", BLOBS),
        0,
        group(members=[member()]),
    ),
    "group metadata v1": (
        2,
        hexed("0001", CONSUMER, "00000003", RANGE_A, "00000001", "000161", CLIENT, "00000009", "00000005", BLOBS),
        1,
        group(members=[member(rebalance_timeout=9)]),
    ),
    "group metadata v2": (
        2,
        hexed("0002", CONSUMER, "00000003", RANGE_A, TIME, "00000000"),
        2,
        group(current_state_timestamp=1000),
    ),
    "group metadata v2, empty": (
        2,
        hexed("0002", "0000", "00000000", "ffff", "ffff", NO_TIME, "00000000"),
        2,
        group(protocol_type="", generation=0, protocol=None, leader=None),
    ),
    "group metadata v3": (
        2,
        hexed("0003", CONSUMER, "00000003", RANGE_A, TIME, "00000001", "000161", "000169", CLIENT)
        + hexed("00000009", "00000005", BLOBS),
        3,
        group(current_state_timestamp=1000, members=[member(rebalance_timeout=9, group_instance_id="i")]),
    ),
    "group metadata v4": (
        2,
        hexed("0004", "09636f6e73756d6572", "00000003", "0672616e6765", "0261", NO_TIME, "02")
        + hexed("0261", "00", "0263", "032f68", "00000009", "00000005", "0201", "01", "00")
        + hexed("00"),
        4,
        group(members=[member(rebalance_timeout=9)]),
    ),
    "consumer group 4.0": (3, hexed("0000", "00000007", "00"), 0, {"epoch": 7, "metadata_hash": None}),
    "consumer group 4.2": (
        3,
        hexed("0000", "00000007", "01", "00", "08", "ffffffffffffffff"),
        0,
        {"epoch": 7, "metadata_hash": -1},
    ),
    "consumer group, hash written as zero": (
        3,
        hexed("0000", "00000007", "01", "00", "08", "0000000000000000"),
        0,
        {"epoch": 7, "metadata_hash": 0},
    ),
    "partition metadata": (
        4,
        hexed("0000", "02", ID, "0374", "31", "00000004", "02", "00000001", "02", "0272", "00", "00", "00"),
        0,
        {
            "topics": [
                {
                    "topic_id": ID_TEXT,
                    "topic_name": "t1",
                    "num_partitions": 4,
                    "partition_metadata": [{"partition": 1, "racks": ["r"]}],
                }
            ]
        },
    ),
    "consumer member": (
        5,
        hexed(
            "0000", "00", "0272", "0263", "032f68", "02", "0374", "31", "00", "00000009", "00", "01", "00", "01", "00"
        ),
        0,
        {
            "instance_id": None,
            "rack_id": "r",
            "client_id": "c",
            "client_host": "/h",
            "subscribed_topic_names": ["t1"],
            "subscribed_topic_regex": None,
            "rebalance_timeout_ms": 9,
            "server_assignor": None,
            "classic_member_metadata": None,  # R8: its tag is written all the same
        },
    ),
    "consumer member on the classic protocol": (
        5,
        hexed("0000", "0269", "00", "0263", "032f68", "01", "0272", "00000009", "0275", "01", "00", "0d")
        + hexed("01", "00000005", "02", "0272", "0301ff", "00", "00"),
        0,
        {
            "instance_id": "i",
            "rack_id": None,
            "client_id": "c",
            "client_host": "/h",
            "subscribed_topic_names": [],
            "subscribed_topic_regex": "r",
            "rebalance_timeout_ms": 9,
            "server_assignor": "u",
            "classic_member_metadata": {
                "session_timeout_ms": 5,
                "supported_protocols": [{"name": "r", "metadata": b"\x01\xff"}],
            },
        },
    ),
    "target assignment 4.0": (
        6,
        hexed("0000", "00000007", "00"),
        0,
        {"assignment_epoch": 7, "assignment_timestamp": None},
    ),
    "target assignment 4.3": (
        6,
        hexed("0000", "00000007", "01", "00", "08", TIME),
        0,
        {"assignment_epoch": 7, "assignment_timestamp": 1000},
    ),
    "target assignment of a member": (
        7,
        hexed("0000", "02", ID, "03", "00000001", "00000002", "00", "00"),
        0,
        {"topic_partitions": [{"topic_id": ID_TEXT, "partitions": [1, 2]}]},
    ),
    "current assignment 4.0": (
        8,
        hexed("0000", "00000007", "00000006", "00", "02", ID, "02", "00000001", "00", "01", "00"),
        0,
        {
            "member_epoch": 7,
            "previous_member_epoch": 6,
            "state": 0,
            "assigned_partitions": [{"topic_id": ID_TEXT, "partitions": [1], "assignment_epochs": None}],
            "partitions_pending_revocation": [],
        },
    ),
    "current assignment 4.3": (
        8,
        hexed(
            "0000", "00000007", "00000006", "ff", "01", "02", ID, "02", "00000001", "01", "00", "05", "02", "00000006"
        )
        + hexed("00"),
        0,
        {
            "member_epoch": 7,
            "previous_member_epoch": 6,
            "state": -1,
            "assigned_partitions": [],
            "partitions_pending_revocation": [{"topic_id": ID_TEXT, "partitions": [1], "assignment_epochs": [6]}],
        },
    ),
    "current assignment with an explicit null tag": (
        8,
        hexed("0000", "00000007", "00000006", "00", "02", ID, "01", "01", "00", "01", "00", "01", "00"),
        0,
        {
            "member_epoch": 7,
            "previous_member_epoch": 6,
            "state": 0,
            "assigned_partitions": [
                {
                    "topic_id": ID_TEXT,
                    "partitions": [],
                    "assignment_epochs": None,
                    UNKNOWN_TAGGED_FIELDS: [(0, b"\x00")],
                }
            ],
            "partitions_pending_revocation": [],
        },
    ),
    "regular expression": (
        16,
        hexed("0000", "02", "0374", "31", "000000000000004b", TIME, "00"),
        0,
        {"topics": ["t1"], "version": 75, "timestamp": 1000},
    ),
    "share group 4.2": (11, hexed("0000", "00000007", "0000000000000009", "00"), 0, {"epoch": 7, "metadata_hash": 9}),
    "share group 4.0": (11, hexed("0000", "00000007", "00"), 0, {"epoch": 7, "metadata_hash": None}),
    "share group member": (
        10,
        hexed("0000", "0272", "0263", "032f68", "02", "0374", "31", "00"),
        0,
        {"rack_id": "r", "client_id": "c", "client_host": "/h", "subscribed_topic_names": ["t1"]},
    ),
    "share group member without a rack": (
        10,
        hexed("0000", "00", "0263", "032f68", "01", "00"),
        0,
        {"rack_id": None, "client_id": "c", "client_host": "/h", "subscribed_topic_names": []},
    ),
    "share group state 4.2": (
        15,
        hexed("0000", "01", "02", ID, "0374", "31", "01", "00", "01", "00"),
        0,
        {
            "initializing_topics": [],
            "initialized_topics": [{"topic_id": ID_TEXT, "topic_name": "t1", "partitions": []}],
            "deleting_topics": [],
        },
    ),
    "share group state 4.0": (
        15,
        hexed("0000", "02", ID, "0374", "31", "01", "00", "01", "00"),
        0,
        {
            "initializing_topics": None,
            "initialized_topics": [{"topic_id": ID_TEXT, "topic_name": "t1", "partitions": []}],
            "deleting_topics": [],
        },
    ),
    "streams group": (
        17,
        hexed(
            "0000", "00000002", "0000000000000009", "02", "00", "04", "00000003", "01", "06", "02", "026b", "0276", "00"
        ),
        0,
        {
            "epoch": 2,
            "metadata_hash": 9,
            "validated_topology_epoch": 3,
            "last_assignment_configs": [{"key": "k", "value": "v"}],
            "stored_description_topology_epoch": None,
            "failed_description_topology_epoch": None,
        },
    ),
    "streams group 4.4": (
        17,
        hexed("0000", "00000002", "0000000000000009", "02", "02", "04", "fffffffe", "03", "04", "00000001"),
        0,
        {
            "epoch": 2,
            "metadata_hash": 9,
            "validated_topology_epoch": None,
            "last_assignment_configs": None,
            "stored_description_topology_epoch": -2,
            "failed_description_topology_epoch": 1,
        },
    ),
    "streams group with an explicit null tag": (
        17,
        hexed("0000", "00000002", "0000000000000009", "01", "01", "01", "00"),
        0,
        {
            "epoch": 2,
            "metadata_hash": 9,
            "validated_topology_epoch": None,
            "last_assignment_configs": None,
            "stored_description_topology_epoch": None,
            "failed_description_topology_epoch": None,
            UNKNOWN_TAGGED_FIELDS: [(1, b"\x00")],
        },
    ),
    "streams member with an endpoint": (
        19,
        hexed(
            "0000", "00", "00", "0263", "032f68", "00000009", "00000001", "0270", "01", "0268", "ffff", "00", "01", "00"
        ),
        0,
        {
            "instance_id": None,
            "rack_id": None,
            "client_id": "c",
            "client_host": "/h",
            "rebalance_timeout_ms": 9,
            "topology_epoch": 1,
            "process_id": "p",
            "user_endpoint": {"host": "h", "port": 65535},
            "client_tags": [],
        },
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_decode_and_come_back(name: str) -> None:
    record_type, data, version, fields = VALUES[name]
    value = decode_value(record_type, data)
    assert value == DecodedValue(version, fields, b"", value.layout)
    assert value.layout == (1 if name.startswith("share") and "4.0" in name else 0)
    assert encode_value(record_type, value) == data


@pytest.mark.parametrize(
    ("endpoint", "encoded"), [("00026800090" + "0", "01026800090" + "0"), ("ff", "ff"), ("80", "ff")]
)
def test_a_struct_is_null_if_its_first_byte_is_negative(endpoint: str, encoded: str) -> None:
    """Kafka's reader compares with 0, and its writer writes 1 or -1."""
    start, end = hexed("0000", "00", "00", "0263", "032f68", "00000009", "00000001", "0270"), hexed("01", "00")
    value = decode_value(19, start + hexed(endpoint) + end)
    assert value.fields["user_endpoint"] == ({"host": "h", "port": 9} if endpoint.startswith("0") else None)
    assert encode_value(19, value) == start + hexed(encoded) + end


# eight bytes more make the older layout of this value the newer one
@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"share group 4.0"}))
def test_trailing_bytes_are_tolerated_and_kept(name: str) -> None:
    # R8
    record_type, data, _, fields = VALUES[name]
    value = decode_value(record_type, data + b"more")
    assert (value.fields, value.trailing) == (fields, b"more")
    assert encode_value(record_type, value) == data + b"more"


# a part of the newer layout may be a whole older one
@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"share group 4.2", "share group state 4.2"}))
def test_a_value_cut_short_anywhere_is_corrupt(name: str) -> None:
    # R6
    record_type, data, _, _ = VALUES[name]
    for cut in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_value(record_type, data[:cut])


KEYS = [
    (hexed("0000", "000167", "0002", "7431", "00000005"), 0, {"group": "g", "topic": "t1", "partition": 5}),
    (hexed("0001", "0000", "0002", "7431", "ffffffff"), 1, {"group": "", "topic": "t1", "partition": -1}),
    (hexed("0002", "000167"), 2, {"group": "g"}),
    *((hexed(f"{t:04x}", "000167"), t, {"group_id": "g"}) for t in (3, 4, 6, 9, 11, 12, 15, 17, 20, 23)),
    *(
        (hexed(f"{t:04x}", "000167", "00016d"), t, {"group_id": "g", "member_id": "m"})
        for t in (5, 7, 8, 10, 13, 14, 19, 21, 22)
    ),
    (hexed("0010", "000167", "0003612e2a"), 16, {"group_id": "g", "regular_expression": "a.*"}),
]


@pytest.mark.parametrize(("data", "record_type", "fields"), KEYS)
def test_keys_decode_and_come_back(data: bytes, record_type: int, fields: dict[str, Any]) -> None:
    key = decode_key(data)
    assert key == DecodedKey(record_type, fields)
    assert key.group_id == fields.get("group", fields.get("group_id"))
    assert encode_key(key) == data
    longer = decode_key(data + b"x")
    assert (longer.fields, longer.trailing) == (fields, b"x")
    assert encode_key(longer) == data + b"x"
    for cut in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_key(data[:cut])


def test_every_record_type_has_its_key_tested() -> None:
    assert {record_type for _, record_type, _ in KEYS} == set(MESSAGE_TYPES) == set(RecordType)
    assert set(OFFSET_COMMIT_TYPES) == {RecordType.LEGACY_OFFSET_COMMIT, RecordType.OFFSET_COMMIT}


@given(name=st.sampled_from(sorted(VALUES)), tag=st.integers(40, 2**20), data=st.binary(max_size=300))
def test_any_unknown_tag_comes_back(name: str, tag: int, data: bytes) -> None:
    record_type, raw, version, _ = VALUES[name]
    schema = MESSAGE_TYPES[record_type].values[0]
    if not schema.is_flexible(version):
        return
    value = copy.deepcopy(decode_value(record_type, raw))
    value.fields[UNKNOWN_TAGGED_FIELDS] = [*value.fields.get(UNKNOWN_TAGGED_FIELDS, []), (tag, data)]
    value.fields[UNKNOWN_TAGGED_FIELDS].sort()
    assert decode_value(record_type, encode_value(record_type, value)) == value


#: The highest version of each value in Kafka 4.2; all others have version 0 alone.
HIGHEST = {RecordType.OFFSET_COMMIT: 4, RecordType.GROUP_METADATA: 4}


@pytest.mark.parametrize("record_type", MESSAGE_TYPES)
def test_versions_beyond_the_known_ones_are_refused(record_type: int) -> None:
    highest = HIGHEST.get(RecordType(record_type), 0)
    for version in (-1, highest + 1):
        with pytest.raises(CorruptRecord, match=f"unknown version {version} of record type {record_type}"):
            decode_value(record_type, version.to_bytes(2, signed=True) + bytes(100))
