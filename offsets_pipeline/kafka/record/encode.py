"""Encode keys and values of `__consumer_offsets`: the inverse of `decode.py`.

For canonical bytes, as brokers write them, encode(decode(x)) == x. Malformed UTF-8, overlong varints and unordered tags
decode too, but are encoded in canonical form.
"""

from collections.abc import Mapping

from offsets_pipeline.kafka.record.corrupt import UnwritableRecord
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue, message_type_of
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, MessageType
from offsets_pipeline.kafka.record.schema import Fields, Schema, serde_for
from offsets_pipeline.kafka.record.wire import INT16


def encode_key(key: DecodedKey, types: Mapping[int, MessageType] = MESSAGE_TYPES) -> bytes:
    """Encode a key. Raises UnwritableRecord or UnknownRecordType."""
    schema = message_type_of(key.record_type, types).key
    return _encode(key.record_type, schema, 0, key.fields, key.trailing)


def encode_value(record_type: int, value: DecodedValue, types: Mapping[int, MessageType] = MESSAGE_TYPES) -> bytes:
    """Encode a value in version `value.version`. Raises UnwritableRecord or UnknownRecordType."""
    schema = message_type_of(record_type, types).values[value.layout]
    if not 0 <= value.version <= schema.max_version:
        raise UnwritableRecord(schema.name, f"unknown version {value.version} of record type {record_type}")
    return _encode(value.version, schema, value.version, value.fields, value.trailing)


def _encode(prefix: int, schema: Schema, version: int, fields: Fields, trailing: bytes) -> bytes:
    out = bytearray()
    INT16.write(out, prefix, schema.name)
    serde_for(schema, version).write(out, fields, schema.name)
    return bytes(out + trailing)
