"""Decode the records of `__consumer_offsets` (R5-R8).

`decode_key` reads the record type, and `decode_value` needs it. A null value is a tombstone (R3): do not decode it.
Unknown tagged fields and trailing bytes are kept, so that `encode.py` can write the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, MessageType
from offsets_pipeline.kafka.record.schema import Fields, serde_for
from offsets_pipeline.kafka.record.wire import INT16, Reader

VERSION_BYTES = 2


@dataclass(frozen=True)
class DecodedKey:
    """A record's key: its type, its fields by Kafka's names, and the bytes after them (tolerated, R8)."""

    record_type: int
    fields: Fields
    trailing: bytes = b""

    @property
    def group_id(self) -> str:
        """Group id; Kafka calls the field `group` in types 0-2 and `group_id` in all others."""
        group_id: str = self.fields["group"] if "group" in self.fields else self.fields["group_id"]
        return group_id


@dataclass(frozen=True)
class DecodedValue:
    """A record's value: version, fields by Kafka's names, and the bytes after them (tolerated, R8).

    A field that the version does not have is None. `layout` is the index of the schema that decoded the value: 1 for
    share groups of 4.0, else 0.
    """

    version: int
    fields: Fields = dataclass_field(default_factory=dict)
    trailing: bytes = b""
    layout: int = 0


# key       int16 record type, fields (never flexible)
# value     int16 version, fields, in flexible versions tagged fields
def decode_key(key: bytes | None, types: Mapping[int, MessageType] = MESSAGE_TYPES) -> DecodedKey:
    """Decode a key of one of these types. Raises CorruptRecord (also for None: R3) or UnknownRecordType (R6)."""
    if key is None:
        raise CorruptRecord("key", "record has no key")
    if len(key) < VERSION_BYTES:
        raise CorruptRecord("key", f"cannot read the record type: expected {VERSION_BYTES} bytes, found {len(key)}")
    reader = Reader(key)
    record_type = INT16.read(reader, "record type")
    schema = message_type_of(record_type, types).key
    fields: Fields = serde_for(schema, 0).read(reader, schema.name)
    return DecodedKey(record_type, fields, key[reader.position :])


def decode_value(record_type: int, value: bytes, types: Mapping[int, MessageType] = MESSAGE_TYPES) -> DecodedValue:
    """Decode a value that is not null. Raises CorruptRecord or UnknownRecordType (R6)."""
    message_type = message_type_of(record_type, types)
    name = message_type.values[0].name
    if len(value) < VERSION_BYTES:
        raise CorruptRecord(name, f"cannot read the version: expected {VERSION_BYTES} bytes, found {len(value)}")
    reader = Reader(value)
    version = INT16.read(reader, name)
    if not 0 <= version <= message_type.values[0].max_version:
        raise CorruptRecord(name, f"unknown version {version} of record type {record_type}")
    first_error: CorruptRecord | None = None
    for layout, schema in enumerate(message_type.values):
        reader.position = VERSION_BYTES
        try:
            fields: Fields = serde_for(schema, version).read(reader, schema.name)
        except CorruptRecord as error:
            first_error = first_error or error
        else:
            return DecodedValue(version, fields, value[reader.position :], layout)
    raise first_error or CorruptRecord(name, "has no layout")


def message_type_of(record_type: int, types: Mapping[int, MessageType] = MESSAGE_TYPES) -> MessageType:
    """Schemas of a record type. Raises UnknownRecordType (R6)."""
    message_type = types.get(record_type)
    if message_type is None:
        raise UnknownRecordType(record_type)
    return message_type
