"""Errors of the wire format."""

from offsets_pipeline.errors import OffsetsError


class _OfField(OffsetsError):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[type["_OfField"], tuple[str, str]]:
        return type(self), (self.field, self.reason)


class CorruptRecord(_OfField):
    """A record of a known type does not decode (R6)."""


class UnknownRecordType(OffsetsError):
    """The record type is unknown. Such a record is counted, kept and skipped (R6)."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"unknown record type {record_type}")
        self.record_type = record_type

    def __reduce__(self) -> tuple[type["UnknownRecordType"], tuple[int]]:
        return type(self), (self.record_type,)


class UnwritableRecord(_OfField):
    """A value cannot be written in the requested version."""


class NotASegment(OffsetsError):
    """The file is not a Kafka log segment."""
