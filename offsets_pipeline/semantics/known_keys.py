"""Keys as a group coordinator reads them: which record types it knows (R6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.record.corrupt import UnknownRecordType
from offsets_pipeline.record.decode import VERSION_BYTES, decode_key
from offsets_pipeline.semantics.group_types import GROUP_METADATA

if TYPE_CHECKING:
    from offsets_pipeline.record.decode import DecodedKey
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


def decode_known_key(key: bytes | None, semantics: CoordinatorSemantics) -> DecodedKey:
    """Decode a key. Raises CorruptRecord, or UnknownRecordType, under `classic` also for type 3 and higher types."""
    if semantics.is_classic and key is not None and len(key) >= VERSION_BYTES:
        record_type = int.from_bytes(key[:VERSION_BYTES], "big", signed=True)
        if record_type > GROUP_METADATA:
            raise UnknownRecordType(record_type)
    return decode_key(key)
