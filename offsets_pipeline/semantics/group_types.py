"""The group types, the record types of each (R5, R14), and which of these a coordinator knows (R6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offsets_pipeline.kafka.record.corrupt import UnknownRecordType
from offsets_pipeline.kafka.record.decode import VERSION_BYTES, DecodedKey, decode_key

if TYPE_CHECKING:
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

CLASSIC = "Classic"
CONSUMER = "Consumer"
SHARE = "Share"
STREAMS = "Streams"

OFFSET_COMMIT_TYPES = frozenset({0, 1})
GROUP_METADATA = 2

#: The type of the group that a value of this record type creates. Types 9 and 18 create none (R14).
GROUP_TYPE_OF_RECORD_TYPE = {
    GROUP_METADATA: CLASSIC,
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), CONSUMER),
    **dict.fromkeys((10, 11, 12, 13, 14, 15), SHARE),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), STREAMS),
}

#: A tombstone of one of these types removes the whole group (R14).
GROUP_REMOVING_TYPES = frozenset({2, 3, 11, 17})


def decode_known_key(key: bytes | None, semantics: CoordinatorSemantics) -> DecodedKey:
    """Decode a key. Raises CorruptRecord, or UnknownRecordType, under `classic` also for type 3 and higher types."""
    if semantics.is_classic and key is not None and len(key) >= VERSION_BYTES:
        record_type = int.from_bytes(key[:VERSION_BYTES], "big", signed=True)
        if record_type > GROUP_METADATA:
            raise UnknownRecordType(record_type)
    return decode_key(key)


def record_key_of(key: DecodedKey) -> str:
    """The part of a key that is unique for its group and type: the member id, the regular expression or ""."""
    text: str = key.fields.get("member_id") or key.fields.get("regular_expression") or ""
    return text


#: The lists of a group record's value that name topic ids, by record type (R35).
_NAMING_LISTS = {4: ("topics",), 15: ("initializing_topics", "initialized_topics", "deleting_topics")}


def named_topics(record_type: int, value: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The (topic id, topic name) pairs in a value of a group's record; none in a tombstone (R35)."""
    if value is None:
        return
    for name in _NAMING_LISTS.get(record_type, ()):
        for topic in value.get(name) or ():
            yield topic["topic_id"], topic["topic_name"]
