"""Message schemas as data, with one generic decoder and encoder.

A `Schema` lists fields with their versions, as Kafka's own message definitions do. `serde_for` compiles one version
into two functions. They read and write a dict of field name to value. Values are int, str, bytes, list, dict and None;
a UUID is its 22-character text.

- A field that the version does not have is None in the dict. So is an absent tagged field.
- A sentinel (-1 if Kafka means "none") is None in the dict and -1 on the wire (R7).
- Unknown tagged fields stay in the dict as `[(tag, bytes), ...]` under `UNKNOWN_TAGGED_FIELDS` (R8).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from offsets_pipeline.kafka.record import wire
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnwritableRecord
from offsets_pipeline.kafka.record.wire import Reader, Serde

_TAGGED_FIELD_BYTES = 2  # at least one byte each for tag and size
UNKNOWN_TAGGED_FIELDS = "_unknown_tagged_fields"

Value = Any  # int, str, bytes, list, dict or None, as the schema says
Fields = dict[str, Any]


class Sized(Enum):
    """Types whose values begin with their length, which is written in another way if a version is flexible."""

    STRING = "string"
    BYTES = "bytes"


@dataclass(frozen=True)
class ArrayOf:
    """An array of one type."""

    element: Serde | Sized | StructOf


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
    type: Serde | Sized | ArrayOf | StructOf
    since: int = 0
    until: int | None = None
    nullable: bool = False
    sentinel: int | None = None
    tag: int | None = None
    written_when_null: bool = False

    def in_version(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version and (self.until is None or version <= self.until)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: serdes are cached per schema
class Schema:
    """A message with versions 0 to `max_version`. `flexible_since` is the first flexible version; None: none is."""

    name: str
    fields: tuple[Field, ...]
    max_version: int = 0
    flexible_since: int | None = None

    def is_flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


@cache
def serde_for(schema: Schema, version: int) -> Serde:
    """Compile once the serde of one version of a schema. It reads bytes into a dict of fields, and writes them back."""
    return _struct_serde(schema.fields, version, flexible=schema.is_flexible(version))


def _serde(
    type_: Serde | Sized | ArrayOf | StructOf,
    version: int,
    *,
    flexible: bool,
    nullable: bool = False,
    tagged: bool = False,
) -> Serde:
    if isinstance(type_, StructOf):
        serde = _struct_serde(type_.fields, version, flexible=flexible)
        return _nullable_struct(serde, tagged=tagged) if nullable else serde
    if isinstance(type_, ArrayOf):
        element = _serde(type_.element, version, flexible=flexible)
        return _array_serde(element, flexible=flexible, nullable=nullable)
    if isinstance(type_, Sized):
        return (_string_serde if type_ is Sized.STRING else _bytes_serde)(flexible=flexible, nullable=nullable)
    return type_


# STRING            int16 length, UTF-8 bytes             NULLABLE_STRING: length -1 is null
# COMPACT_STRING    uvarint length + 1, UTF-8 bytes       COMPACT_NULLABLE_STRING: uvarint 0 is null
def _string_serde(*, flexible: bool, nullable: bool) -> Serde:
    length = wire.COMPACT_LENGTH if flexible else wire.INT16

    def read(reader: Reader, size: int, field: str) -> str:
        if size > wire.MAX_STRING_BYTES:
            raise CorruptRecord(field, f"string length {size} is above {wire.MAX_STRING_BYTES}")
        return wire.decode_utf8(reader.raw(size, field))

    def write(out: bytearray, value: Value, field: str) -> None:
        data = wire.encode_utf8(value)
        if len(data) > wire.MAX_STRING_BYTES:
            raise UnwritableRecord(field, f"string length {len(data)} is above {wire.MAX_STRING_BYTES}")
        length.write(out, len(data), field)
        out += data

    return _null_by_length(length, read, write, None if nullable else "string is null")


# BYTES             int32 length, bytes                   COMPACT_BYTES: uvarint length + 1, bytes
def _bytes_serde(*, flexible: bool, nullable: bool) -> Serde:
    length = wire.COMPACT_LENGTH if flexible else wire.INT32

    def write(out: bytearray, value: Value, field: str) -> None:
        length.write(out, len(value), field)
        out += value

    return _null_by_length(length, Reader.raw, write, None if nullable else "bytes are null")


# ARRAY             int32 count, elements                 COMPACT_ARRAY: uvarint count + 1, elements
def _array_serde(element: Serde, *, flexible: bool, nullable: bool) -> Serde:
    length = wire.COMPACT_LENGTH if flexible else wire.INT32

    def read(reader: Reader, count: int, field: str) -> list[Value]:
        reader.expect(count, 1, field)  # an element takes at least a byte; an absurd count must not reserve memory
        return [element.read(reader, field) for _ in range(count)]

    def write(out: bytearray, value: Value, field: str) -> None:
        length.write(out, len(value), field)
        for item in value:
            element.write(out, item, field)

    return _null_by_length(length, read, write, None if nullable else "array is null")


def _null_by_length(
    length: Serde,
    read_value: Callable[[Reader, int, str], Value],
    write_value: Callable[[bytearray, Value, str], None],
    refusal: str | None,
) -> Serde:
    """The serde of a type whose negative length is null; ``refusal`` says that null is not allowed."""

    def read(reader: Reader, field: str) -> Value:
        size = length.read(reader, field)
        if size >= 0:
            return read_value(reader, size, field)
        if refusal is not None:
            raise CorruptRecord(field, f"non-nullable {refusal}")
        return None

    def write(out: bytearray, value: Value, field: str) -> None:
        if value is not None:
            write_value(out, value, field)
        elif refusal is not None:
            raise UnwritableRecord(field, "is not nullable, but null")
        else:
            length.write(out, -1, field)

    return Serde(read, write)


# nullable struct   int8 -1 null or 1 present, fields     in a tagged field: uvarint 0 null or 1 present, fields (R8)
def _nullable_struct(serde: Serde, *, tagged: bool) -> Serde:
    def read(reader: Reader, field: str) -> Value:
        present = reader.uvarint(field) if tagged else wire.INT8.read(reader, field)
        is_null = present <= 0 if tagged else present < 0
        return None if is_null else serde.read(reader, field)

    def write(out: bytearray, value: Value, field: str) -> None:
        if tagged:
            wire.write_uvarint(out, 0 if value is None else 1)
        else:
            wire.INT8.write(out, -1 if value is None else 1, field)
        if value is not None:
            serde.write(out, value, field)

    return Serde(read, write)


def _with_sentinel(serde: Serde, sentinel: int) -> Serde:
    # R7: -1 for "none" exists on the wire only
    def read(reader: Reader, field: str) -> Value:
        value = serde.read(reader, field)
        return None if value == sentinel else value

    def write(out: bytearray, value: Value, field: str) -> None:
        serde.write(out, sentinel if value is None else value, field)

    return Serde(read, write)


def _field_serde(field: Field, version: int, *, flexible: bool) -> Serde:
    serde = _serde(field.type, version, flexible=flexible, nullable=field.nullable, tagged=field.tag is not None)
    return serde if field.sentinel is None else _with_sentinel(serde, field.sentinel)


def _struct_serde(fields: tuple[Field, ...], version: int, *, flexible: bool) -> Serde:
    present = [
        (field, _field_serde(field, version, flexible=flexible)) for field in fields if field.in_version(version)
    ]
    plain = [(field.name, serde) for field, serde in present if field.tag is None]
    tagged = {field.tag: (field, serde) for field, serde in present if field.tag is not None}
    absent = [field.name for field in fields if not field.in_version(version)]

    def read(reader: Reader, name: str) -> Fields:
        value: Fields = {}
        try:
            for field_name, serde in plain:
                value[field_name] = serde.read(reader, field_name)
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
        for field_name, serde in plain:
            _write_field(serde, out, value.get(field_name), f"{name}.{field_name}")
        if flexible:
            _write_tagged(out, name, tagged, value)

    return Serde(read, write)


def _write_field(serde: Serde, out: bytearray, value: Value, path: str) -> None:
    try:
        serde.write(out, value, path)
    except (struct.error, OverflowError) as error:
        raise UnwritableRecord(path, "not a number that the field can hold") from error
    except (ValueError, TypeError) as error:  # no UUID, no text
        raise UnwritableRecord(path, str(error)) from error


# tagged fields     uvarint count, then per field: uvarint tag, uvarint size, bytes; ascending by tag
def _read_tagged(reader: Reader, known: dict[int, tuple[Field, Serde]], value: Fields) -> None:
    for field, _ in known.values():
        value[field.name] = None
    unknown: list[tuple[int, bytes]] = []
    count = reader.uvarint("tagged field count")
    reader.expect(count, _TAGGED_FIELD_BYTES, "tagged fields")
    for _ in range(count):
        tag = reader.uvarint("tag")
        size = reader.uvarint(f"size of tag {tag}")
        if tag not in known:
            unknown.append(
                (tag, reader.raw(size, f"tag {tag}"))
            )  # R8: skip it by its size, and keep it to write it back
            continue
        field, serde = known[tag]
        start = reader.position
        value[field.name] = serde.read(reader, field.name)  # R8: of a known one the size does not count
        if value[field.name] is None and not field.written_when_null:
            # keep an explicit null: writing None would omit the tag
            unknown.append((tag, reader.data[start : reader.position]))
    if unknown:
        value[UNKNOWN_TAGGED_FIELDS] = unknown


def _write_tagged(out: bytearray, name: str, known: dict[int, tuple[Field, Serde]], value: Fields) -> None:
    tags: list[tuple[int, bytes]] = list(value.get(UNKNOWN_TAGGED_FIELDS, ()))
    for tag, (field, serde) in known.items():
        if value.get(field.name) is not None or field.written_when_null:
            data = bytearray()
            _write_field(serde, data, value.get(field.name), f"{name}.{field.name}")
            tags.append((tag, bytes(data)))
    tags.sort()
    wire.write_uvarint(out, len(tags))
    for tag, payload in tags:
        wire.write_uvarint(out, tag)
        wire.write_uvarint(out, len(payload))
        out += payload
