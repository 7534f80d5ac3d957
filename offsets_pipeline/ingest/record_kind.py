"""Checks by its first keys that a source holds the expected records, before an ingest creates anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.errors import WrongRecords
from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: How many records of each log partition the check reads.
LOOK_RECORDS = 20
# A newer coordinator may write record types up to here. The first two bytes of a text key make a larger number.
_TYPES_TO_COME = range(256)
_SHOWN_BYTES = 40


class FirstRecord(NamedTuple):
    """One of the first records of a log partition; never a control record."""

    log_partition: int
    record_offset: int
    key: bytes | None


@dataclass(frozen=True)
class RecordKind:
    """The kind of records that a source should hold.

    ``name`` and ``remedy`` are parts of the error message; ``is_key`` recognises the keys of such records.
    """

    name: str
    remedy: str
    is_key: Callable[[bytes | None], bool]

    def require(self, where: str, records: Collection[FirstRecord]) -> None:
        """Raise WrongRecords if more than half of these records are of another kind."""
        others = [record for record in records if not self.is_key(record.key)]
        if 2 * len(others) > len(records):
            first = min(others, key=lambda record: record[:2])
            key = "no key" if first.key is None else f"the key {first.key[:_SHOWN_BYTES]!r}"
            raise WrongRecords(
                f"{where} does not have {self.name}: {len(others)} of the first {len(records)} records are others "
                f"(record {first.record_offset} of partition {first.log_partition} has {key}); {self.remedy}"
            )


def is_offsets_key(key: bytes | None) -> bool:
    """Whether a group coordinator of this or a newer version may have written this key (R5, R6)."""
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
