"""What each record type means for the group it names (R5, R14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_pipeline.record.decode import DecodedKey

CLASSIC = "Classic"
CONSUMER = "Consumer"
SHARE = "Share"
STREAMS = "Streams"

OFFSET_COMMIT_TYPES = frozenset({0, 1})
GROUP_METADATA = 2

#: The kind of group that a value of this record type creates. Types 9 and 18 create none (R14).
GROUP_TYPE_OF_RECORD_TYPE = {
    GROUP_METADATA: CLASSIC,
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), CONSUMER),
    **dict.fromkeys((10, 11, 12, 13, 14, 15), SHARE),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), STREAMS),
}

#: A tombstone of one of these types removes the whole group (R14).
GROUP_REMOVING_TYPES = frozenset({2, 3, 11, 17})


def record_key_of(key: DecodedKey) -> str:
    """What tells apart the records of one type in a group: a member id, a regular expression, or nothing."""
    text: str = key.fields.get("member_id") or key.fields.get("regular_expression") or ""
    return text
