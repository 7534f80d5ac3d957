"""Whether a log holds the records that are expected: told by its first keys, before anything is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.errors import WrongRecords
from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: How many records of each log partition are looked at.
LOOK_RECORDS = 20
_TYPES_TO_COME = range(256)  # a record type that a newer coordinator may write; of text the first two bytes are more
_SHOWN_BYTES = 40


class FirstRecord(NamedTuple):
    """One of the first records of a log partition; control records are none."""

    log_partition: int
    record_offset: int
    key: bytes | None


@dataclass(frozen=True)
class RecordKind:
    """What records a log should hold: what they are called, where they are found, and which keys they have."""

    name: str
    remedy: str
    is_key: Callable[[bytes | None], bool]

    def require(self, where: str, records: Collection[FirstRecord]) -> None:
        """Raise WrongRecords where most of these records are of another kind."""
        others = [record for record in records if not self.is_key(record.key)]
        if 2 * len(others) > len(records):
            first = min(others, key=lambda record: record[:2])
            key = "no key" if first.key is None else f"the key {first.key[:_SHOWN_BYTES]!r}"
            raise WrongRecords(
                f"{where} does not hold {self.name}: {len(others)} of the {len(records)} first records are others "
                f"(record {first.record_offset} of partition {first.log_partition} has {key}); {self.remedy}"
            )


def is_offsets_key(key: bytes | None) -> bool:
    """Whether a group coordinator may have written a record with this key, perhaps a newer one (R5, R6)."""
    try:
        decode_key(key)
    except CorruptRecord:
        return False
    except UnknownRecordType as unknown:
        return unknown.record_type in _TYPES_TO_COME
    return True


OFFSETS_RECORDS = RecordKind(
    "records of a group coordinator", "name __consumer_offsets, or a copy of its log", is_offsets_key
)
