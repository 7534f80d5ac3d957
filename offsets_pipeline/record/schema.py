"""Message schemas as data, with one generic decoder and encoder.

A `Schema` lists fields with their versions, as Kafka's own message definitions do. `codec_for` compiles one version
into two functions. They read and write a dict of field name to value. Values are int, str, bytes, list, dict and None;
a UUID is its 22-character text.

- A field that the version does not have is None in the dict. So is an absent tagged field.
- A sentinel (-1 if Kafka means "none") is None in the dict and -1 on the wire (R7).
- Unknown tagged fields stay in the dict as `[(tag, bytes), ...]` under `UNKNOWN_TAGGED_FIELDS` (R8).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from offsets_pipeline.record import wire
from offsets_pipeline.record.corrupt import CorruptRecord, UnwritableRecord
from offsets_pipeline.record.wire import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

_TAGGED_FIELD_BYTES = 2  # at least one byte each for tag and size
UNKNOWN_TAGGED_FIELDS = "_unknown_tagged_fields"

Value = Any  # int, str, bytes, list, dict or None, as the schema says
Fields = dict[str, Any]


class Primitive(Enum):
    """Primitive types."""

    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"


@dataclass(frozen=True)
class ArrayOf:
    """An array of one type."""

    element: Primitive | StructOf


@dataclass(frozen=True)
class StructOf:
    """A nested struct."""

    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Field:
    """One field of versions `since` to `until`. With a `tag` it is a tagged field of flexible versions.

    `sentinel` is the wire value of None. `written_when_null`: the tag is written even for None (R8).
    """

    name: str
    type: Primitive | ArrayOf | StructOf
    since: int = 0
    until: int | None = None
    nullable: bool = False
    sentinel: int | None = None
    tag: int | None = None
    written_when_null: bool = False

    def in_version(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version and (self.until is None or version <= self.until)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: codecs are cached per schema
class Schema:
    """A message with versions 0 to `max_version`. `flexible_since` is the first flexible version; None: none is."""

    name: str
    fields: tuple[Field, ...]
    max_version: int = 0
    flexible_since: int | None = None

    def is_flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


@dataclass(frozen=True, slots=True)
class SchemaCodec:
    """Functions that read and write one type. Both take the field's name for errors."""

    read: Callable[[Reader, str], Value]
    write: Callable[[bytearray, Value, str], None]


def codec_for(schema: Schema, version: int) -> SchemaCodec:
    """Compile the codec of one version of a schema. It reads bytes into a dict of fields, and writes them back."""
    return _struct_codec(schema.fields, version, flexible=schema.is_flexible(version))


def _fixed(read: Callable[[Reader, str], Value], write: Callable[[bytearray, Value], None]) -> SchemaCodec:
    return SchemaCodec(read, lambda out, value, _field: write(out, value))


_FIXED = {
    Primitive.INT8: _fixed(Reader.int8, wire.write_int8),
    Primitive.INT16: _fixed(Reader.int16, wire.write_int16),
    Primitive.UINT16: _fixed(Reader.uint16, wire.write_uint16),
    Primitive.INT32: _fixed(Reader.int32, wire.write_int32),
    Primitive.INT64: _fixed(Reader.int64, wire.write_int64),
    Primitive.UUID: _fixed(Reader.uuid, wire.write_uuid),
}


def _codec(
    type_: Primitive | ArrayOf | StructOf,
    version: int,
    *,
    flexible: bool,
    nullable: bool = False,
    tagged: bool = False,
) -> SchemaCodec:
    if isinstance(type_, StructOf):
        codec = _struct_codec(type_.fields, version, flexible=flexible)
        return _nullable_struct(codec, tagged=tagged) if nullable else codec
    if isinstance(type_, ArrayOf):
        element = _codec(type_.element, version, flexible=flexible)
        return _array_codec(element, flexible=flexible, nullable=nullable)
    if type_ is Primitive.STRING:
        return _string_codec(flexible=flexible, nullable=nullable)
    if type_ is Primitive.BYTES:
        return _bytes_codec(flexible=flexible, nullable=nullable)
    return _FIXED[type_]


# STRING            int16 length, UTF-8 bytes             NULLABLE_STRING: length -1 is null
# COMPACT_STRING    uvarint length + 1, UTF-8 bytes       COMPACT_NULLABLE_STRING: uvarint 0 is null
def _string_codec(*, flexible: bool, nullable: bool) -> SchemaCodec:
    read_length = Reader.compact_length if flexible else Reader.length16
    write_length = wire.write_compact_length if flexible else wire.write_length16

    def read(reader: Reader, field: str) -> str | None:
        length = read_length(reader, field)
        if length < 0:
            if nullable:
                return None
            raise CorruptRecord(field, "non-nullable string is null")
        if length > wire.MAX_STRING_BYTES:
            raise CorruptRecord(field, f"string length {length} is above {wire.MAX_STRING_BYTES}")
        return wire.decode_utf8(reader.raw(length, field))

    def write(out: bytearray, value: Value, field: str) -> None:
        if value is None:
            if not nullable:
                raise UnwritableRecord(field, "is not nullable, but null")
            write_length(out, -1)
            return
        data = wire.encode_utf8(value)
        if len(data) > wire.MAX_STRING_BYTES:
            raise UnwritableRecord(field, f"string length {len(data)} is above {wire.MAX_STRING_BYTES}")
        write_length(out, len(data))
        out += data

    return SchemaCodec(read, write)


# BYTES             int32 length, bytes                   COMPACT_BYTES: uvarint length + 1, bytes
def _bytes_codec(*, flexible: bool, nullable: bool) -> SchemaCodec:
    read_length = Reader.compact_length if flexible else Reader.length32
    write_length = wire.write_compact_length if flexible else wire.write_length32

    def read(reader: Reader, field: str) -> bytes | None:
        length = read_length(reader, field)
        if length < 0:
            if nullable:
                return None
            raise CorruptRecord(field, "non-nullable bytes are null")
        return reader.raw(length, field)

    def write(out: bytearray, value: Value, field: str) -> None:
        if value is None:
            if not nullable:
                raise UnwritableRecord(field, "is not nullable, but null")
            write_length(out, -1)
            return
        write_length(out, len(value))
        out += value

    return SchemaCodec(read, write)


# ARRAY             int32 count, elements                 COMPACT_ARRAY: uvarint count + 1, elements
def _array_codec(element: SchemaCodec, *, flexible: bool, nullable: bool) -> SchemaCodec:
    read_length = Reader.compact_length if flexible else Reader.length32
    write_length = wire.write_compact_length if flexible else wire.write_length32

    def read(reader: Reader, field: str) -> list[Value] | None:
        count = read_length(reader, field)
        if count < 0:
            if nullable:
                return None
            raise CorruptRecord(field, "non-nullable array is null")
        reader.expect(count, 1, field)  # an element takes at least a byte; an absurd count must not reserve memory
        return [element.read(reader, field) for _ in range(count)]

    def write(out: bytearray, value: Value, field: str) -> None:
        if value is None:
            if not nullable:
                raise UnwritableRecord(field, "is not nullable, but null")
            write_length(out, -1)
            return
        write_length(out, len(value))
        for item in value:
            element.write(out, item, field)

    return SchemaCodec(read, write)


# nullable struct   int8 -1 null or 1 present, fields     in a tagged field: uvarint 0 null or 1 present, fields (R8)
def _nullable_struct(codec: SchemaCodec, *, tagged: bool) -> SchemaCodec:
    def read(reader: Reader, field: str) -> Value:
        present = reader.uvarint(field) if tagged else reader.int8(field)
        is_null = present <= 0 if tagged else present < 0
        return None if is_null else codec.read(reader, field)

    def write(out: bytearray, value: Value, field: str) -> None:
        if tagged:
            wire.write_uvarint(out, 0 if value is None else 1)
        else:
            wire.write_int8(out, -1 if value is None else 1)
        if value is not None:
            codec.write(out, value, field)

    return SchemaCodec(read, write)


def _with_sentinel(codec: SchemaCodec, sentinel: int) -> SchemaCodec:
    # R7: -1 for "none" exists on the wire only
    def read(reader: Reader, field: str) -> Value:
        value = codec.read(reader, field)
        return None if value == sentinel else value

    def write(out: bytearray, value: Value, field: str) -> None:
        codec.write(out, sentinel if value is None else value, field)

    return SchemaCodec(read, write)


def _field_codec(field: Field, version: int, *, flexible: bool) -> SchemaCodec:
    codec = _codec(field.type, version, flexible=flexible, nullable=field.nullable, tagged=field.tag is not None)
    return codec if field.sentinel is None else _with_sentinel(codec, field.sentinel)


def _struct_codec(fields: tuple[Field, ...], version: int, *, flexible: bool) -> SchemaCodec:
    present = [
        (field, _field_codec(field, version, flexible=flexible)) for field in fields if field.in_version(version)
    ]
    plain = [(field.name, codec) for field, codec in present if field.tag is None]
    tagged = {field.tag: (field, codec) for field, codec in present if field.tag is not None}
    absent = [field.name for field in fields if not field.in_version(version)]

    def read(reader: Reader, name: str) -> Fields:
        value: Fields = {}
        try:
            for field_name, codec in plain:
                value[field_name] = codec.read(reader, field_name)
            for field_name in absent:
                value[field_name] = None
            if flexible:
                _read_tagged(reader, tagged, value)
        except CorruptRecord as error:  # each level prepends its name: names are joined only on errors
            raise CorruptRecord(f"{name}.{error.field}", error.reason) from None
        return value

    def write(out: bytearray, value: Value, name: str) -> None:
        for field_name in absent:
            if value.get(field_name) is not None:
                raise UnwritableRecord(f"{name}.{field_name}", f"version {version} has no such field")
        for field_name, codec in plain:
            _write_field(codec, out, value.get(field_name), f"{name}.{field_name}")
        if flexible:
            _write_tagged(out, name, tagged, value)

    return SchemaCodec(read, write)


def _write_field(codec: SchemaCodec, out: bytearray, value: Value, path: str) -> None:
    try:
        codec.write(out, value, path)
    except (struct.error, ValueError, OverflowError, TypeError) as error:  # a number too large, no number, no UUID
        raise UnwritableRecord(path, str(error)) from error


# tagged fields     uvarint count, then per field: uvarint tag, uvarint size, bytes; ascending by tag
def _read_tagged(reader: Reader, known: dict[int, tuple[Field, SchemaCodec]], value: Fields) -> None:
    for field, _ in known.values():
        value[field.name] = None
    unknown: list[tuple[int, bytes]] = []
    count = reader.uvarint("tagged field count")
    reader.expect(count, _TAGGED_FIELD_BYTES, "tagged fields")
    for _ in range(count):
        tag = reader.uvarint("tag")
        size = reader.uvarint(f"size of tag {tag}")
        start = reader.position
        data = reader.raw(size, f"tag {tag}")
        if tag not in known:
            unknown.append((tag, data))  # R8: skip it by its size, and keep it to write it back
            continue
        field, codec = known[tag]
        reader.position = start
        value[field.name] = codec.read(reader, field.name)
        if reader.position != start + size:
            taken = reader.position - start
            raise CorruptRecord(field.name, f"tagged field of {size} bytes, but its value takes {taken}")
        if value[field.name] is None and not field.written_when_null:
            unknown.append((tag, data))  # keep an explicit null: writing None would omit the tag
    if unknown:
        value[UNKNOWN_TAGGED_FIELDS] = unknown


def _write_tagged(out: bytearray, name: str, known: dict[int, tuple[Field, SchemaCodec]], value: Fields) -> None:
    tags: list[tuple[int, bytes]] = list(value.get(UNKNOWN_TAGGED_FIELDS, ()))
    for tag, (field, codec) in known.items():
        if value.get(field.name) is not None or field.written_when_null:
            data = bytearray()
            _write_field(codec, data, value.get(field.name), f"{name}.{field.name}")
            tags.append((tag, bytes(data)))
    tags.sort()
    wire.write_uvarint(out, len(tags))
    for tag, payload in tags:
        wire.write_uvarint(out, tag)
        wire.write_uvarint(out, len(payload))
        out += payload
