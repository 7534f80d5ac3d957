"""Every record of every capture against the decode of Kafka's own dump tool (`dump.txt`)."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER
from offsets_pipeline.kafka.record.compression import CODEC_MASK, Codec
from offsets_pipeline.kafka.record.consumer_protocol import (
    ASSIGNMENT,
    SUBSCRIPTION,
    decode_assignment,
    decode_subscription,
)
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue, decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, NONE_SENTINEL
from offsets_pipeline.kafka.record.schema import ArrayOf, Field, Schema, StructOf
from offsets_pipeline.kafka.record.segment import read_segment
from tests.record_batches import DELETE_HORIZON

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
CAPTURE_NAMES = sorted(path.parent.name for path in CAPTURES.glob("*/dump.txt"))
MALFORMED = "4.2.0-inject-malformed"
OFFSETS_TOPIC = "__consumer_offsets-"
DELETE = "<DELETE>"

_NUMBER = re.compile(r"(\w+): (-?\d+)")
_WORD = re.compile(r"(\w+): (\w+)")


@dataclass
class Line:
    """A batch or record line: its numbers and words by Kafka's names in lower case, and its key and payload."""

    numbers: dict[str, int]
    words: dict[str, str]
    key: str | None = None
    payload: str | None = None
    records: list[Line] = field(default_factory=list)
    delete_horizon_ms: int | None = None


def parse_line(text: str) -> Line:
    fields, _, rest = text.partition(" key: ")
    key, _, payload = rest.partition(" payload: ")
    horizon = re.search(r"OptionalLong\[(\d+)]", fields)
    return Line(
        {name.lower(): int(number) for name, number in _NUMBER.findall(fields)},
        {name.lower(): word for name, word in _WORD.findall(fields)},
        key or None,
        payload or None,
        delete_horizon_ms=int(horizon[1]) if horizon else None,
    )


def parse_dump(capture: str) -> dict[str, list[Line]]:
    """Batch lines by segment. The oldest tool prints one line a message, which is then its own record."""
    segments: dict[str, list[Line]] = {}
    batches: list[Line] = []
    for text in (CAPTURES / capture / "dump.txt").read_text("utf-8").split("\n"):
        if text.startswith("### "):
            batches = segments.setdefault(text.removeprefix("### "), [])
        elif text.startswith("| "):
            batches[-1].records.append(parse_line(text))
        elif text.startswith(("baseOffset: ", "offset: ")):
            batches.append(parse_line(text))
            if " payloadsize: " in text:
                batches[-1].records.append(batches[-1])
    return segments


DUMPS = {name: parse_dump(name) for name in CAPTURE_NAMES}


def read(capture: str, segment: str) -> list[dict[str, Any]]:
    reader = read_segment((CAPTURES / capture / segment).read_bytes(), source=segment)
    rows = [row for columns in reader.batches() for row in columns.to_pylist()]
    assert reader.damage == []
    assert reader.torn_tail is None
    return rows


def batches_of(data: bytes) -> list[b.Batch]:
    view = memoryview(data)
    found = []
    position = 0
    while position < len(view):
        verdict = b.examine(view, position)
        assert isinstance(verdict, b.Batch)
        found.append(verdict)
        position = verdict.end
    return found


def milliseconds(row: dict[str, Any]) -> int:
    return -1 if row["record_timestamp"] is None else round(row["record_timestamp"].timestamp() * 1000)


@pytest.mark.parametrize("capture", CAPTURE_NAMES)
def test_batches_are_at_the_positions_of_the_dump(capture: str) -> None:
    for segment, lines in DUMPS[capture].items():
        data = (CAPTURES / capture / segment).read_bytes()
        found = batches_of(data)
        assert len(found) == len(lines), segment
        for batch, line in zip(found, lines, strict=True):
            numbers, words = line.numbers, line.words
            assert batch.position == numbers["position"]
            assert batch.magic == numbers["magic"]
            assert words["isvalid"] == "true"
            if "size" in numbers:  # the 0.10 tool prints the size of the payload instead
                assert batch.end - batch.position == numbers["size"]
            if batch.magic == b.MAGIC_2:
                compare_batch_header(data, batch, line)
            else:
                assert batch.last_offset == numbers["offset"]
                crc, _, attributes = struct.unpack_from(">Ibb", data, batch.position + b.LOG_OVERHEAD)
                assert crc == numbers["crc"]
                assert Codec(attributes & CODEC_MASK).name == words["compresscodec"]


def compare_batch_header(data: bytes, batch: b.Batch, line: Line) -> None:
    header = np.frombuffer(data, BATCH_HEADER, 1, batch.position)[0].tolist()
    base, _, leader_epoch, _, crc, attributes, delta, base_timestamp, max_timestamp, *producer, sequence, count = header
    numbers, words = line.numbers, line.words
    assert (base, base + delta, count) == (numbers["baseoffset"], numbers["lastoffset"], numbers["count"])
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (base, base + delta, count)
    assert producer == [numbers["producerid"], numbers["producerepoch"]]
    assert (leader_epoch, crc) == (numbers["partitionleaderepoch"], numbers["crc"])
    assert sequence == numbers["basesequence"]
    assert numbers["lastsequence"] == (-1 if sequence == -1 else sequence + delta)
    assert max_timestamp == numbers["createtime"]
    assert Codec(attributes & CODEC_MASK).name == words["compresscodec"].upper()
    assert bool(attributes & b.ATTRIBUTE_TRANSACTIONAL) == (words["istransactional"] == "true")
    assert bool(attributes & b.ATTRIBUTE_CONTROL) == (words["iscontrol"] == "true")
    horizon = base_timestamp if attributes & DELETE_HORIZON else None
    assert line.delete_horizon_ms == horizon


@pytest.mark.parametrize("capture", CAPTURE_NAMES)
def test_records_have_the_offsets_sizes_times_and_producers_of_the_dump(capture: str) -> None:
    for segment, lines in DUMPS[capture].items():
        rows = read(capture, segment)
        expected = [(line, record) for line in lines for record in line.records]
        assert len(rows) == len(expected), segment
        for row, (line, record) in zip(rows, expected, strict=True):
            assert row["record_offset"] == record.numbers["offset"]
            assert milliseconds(row) == record.numbers.get("createtime", -1)
            assert len(row["key"]) == record.numbers["keysize"]
            value_size = record.numbers.get("valuesize", record.numbers.get("payloadsize"))
            assert (-1 if row["value"] is None else len(row["value"])) == value_size
            producer_id = line.numbers.get("producerid", -1)
            assert row["producer_id"] == (None if producer_id == -1 else producer_id)
            producer_epoch = line.numbers.get("producerepoch", -1)
            assert row["producer_epoch"] == (None if producer_epoch == -1 else producer_epoch)
            assert row["is_transactional"] == (line.words.get("istransactional") == "true")
            assert row["control_type"] == record.words.get("endtxnmarker")
            if row["control_type"] is not None:
                assert struct.unpack(">hi", row["value"]) == (0, record.numbers["coordinatorepoch"])
            if line.numbers["magic"] < b.MAGIC_2:
                assert message_crc(line.numbers["magic"], row) == record.numbers["crc"]


def message_crc(magic: int, row: dict[str, Any]) -> int:
    """The checksum of the message that this row must have been; the dump shows it for wrapped ones too."""
    value = row["value"]
    message = struct.pack(">bb", magic, 0) + (struct.pack(">q", milliseconds(row)) if magic else b"")
    message += struct.pack(">i", len(row["key"])) + row["key"]
    message += struct.pack(">i", -1 if value is None else len(value)) + (value or b"")
    return zlib.crc32(message)


def records_of(capture: str) -> list[tuple[dict[str, Any], Line]]:
    """Data records of the offsets topic with their dump lines."""
    pairs: list[tuple[dict[str, Any], Line]] = []
    for segment, lines in DUMPS[capture].items():
        if OFFSETS_TOPIC in segment:
            records = [record for line in lines for record in line.records]
            pairs += zip(read(capture, segment), records, strict=True)
    return [(row, line) for row, line in pairs if row["control_type"] is None]


@pytest.mark.parametrize("capture", CAPTURE_NAMES)
def test_every_record_decodes_as_the_dump_shows_it(capture: str) -> None:
    compared = 0
    for row, line in records_of(capture):
        if line.key is None:  # the 0.10 tool shows nothing of a tombstone
            assert row["value"] is None
            decode_key(row["key"])
        elif line.key.startswith("{"):
            compare_json(row, line)
        elif line.key.startswith("Unknown record type"):
            with pytest.raises(UnknownRecordType):
                decode_key(row["key"])
        elif line.key.startswith("Error at offset"):
            assert capture == MALFORMED
            with pytest.raises(CorruptRecord):
                decode_value(decode_key(row["key"]).record_type, row["value"])
        else:
            compare_old(row, line)
        compared += 1
    assert compared > 0


def test_the_malformed_capture_has_each_error_the_dump_names() -> None:
    reasons = []
    for row, line in records_of(MALFORMED):
        if "Error at offset" in str(line.key):
            with pytest.raises(CorruptRecord) as error:
                decode_value(decode_key(row["key"]).record_type, row["value"])
            reasons.append(str(error.value))
    assert sorted(reasons) == [
        "OffsetCommitValue.leader_epoch: expected 4 bytes at position 10, found 0",
        "OffsetCommitValue: cannot read the version: expected 2 bytes, found 0",
        "OffsetCommitValue: unknown version 1 of record type 0",
        "OffsetCommitValue: unknown version 9 of record type 1",
        "key: cannot read the record type: expected 2 bytes, found 1",
    ]


def compare_json(row: dict[str, Any], line: Line) -> None:
    key = decode_key(row["key"])
    shown_key = json.loads(line.key or "")
    assert shown_key == {"type": str(key.record_type), "data": as_dumped(MESSAGE_TYPES[key.record_type].key, 0, key)}
    if row["value"] is None:
        assert line.payload == DELETE
        return
    value = decode_value(key.record_type, row["value"])
    data = as_dumped(MESSAGE_TYPES[key.record_type].values[value.layout], value.version, value)
    if key.record_type == 2:
        for member, decoded in zip(data["members"], value.fields["members"], strict=True):
            embed_consumer_protocol(member, decoded, value.fields["protocol_type"])
    assert json.loads(line.payload or "") == {"version": str(value.version), "data": data}


def embed_consumer_protocol(member: dict[str, Any], decoded: dict[str, Any], protocol_type: str) -> None:
    # The dump replaces the blobs by what is in them, for protocol type "consumer" only.
    subscription = decode_subscription(protocol_type, decoded["subscription"])
    if subscription is not None:
        member["subscription"] = as_dumped(SUBSCRIPTION, subscription.version, subscription)
    assignment = decode_assignment(protocol_type, decoded["assignment"])
    if assignment is not None:
        member["assignment"] = as_dumped(ASSIGNMENT, assignment.version, assignment)


def as_dumped(schema: Schema, version: int, decoded: DecodedKey | DecodedValue) -> Any:  # noqa: ANN401 (JSON)
    return {
        camel(f.name): json_value(f, f.type, version, decoded.fields[f.name])
        for f in schema.fields
        if is_shown(f, version, decoded.fields[f.name])
    }


def is_shown(f: Field, version: int, value: Any) -> bool:  # noqa: ANN401 (JSON)
    # The dump leaves out fields the version does not have, and tags that were not written; the tag of type 5 is
    # always written (R8), so it is always shown.
    return f.in_version(version) and (f.tag is None or value is not None or f.written_when_null)


def json_value(f: Field, type_: object, version: int, value: Any) -> Any:  # noqa: ANN401 (JSON)
    if value is None:
        # sentinels are shown as they are on the wire; a null string or null bytes as null, empty ones as ""
        return NONE_SENTINEL if f.sentinel is not None else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(type_, ArrayOf):
        return [json_value(f, type_.element, version, item) for item in value]
    if isinstance(type_, StructOf):
        return {
            camel(inner.name): json_value(inner, inner.type, version, value[inner.name])
            for inner in type_.fields
            if is_shown(inner, version, value[inner.name])
        }
    return value


def camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def compare_old(row: dict[str, Any], line: Line) -> None:
    """2.4 prints `offset_commit::group=g,partition=t-0`, 0.10 `offset::g:t:0`; the group's member lists differ too."""
    key = decode_key(row["key"])
    value = None if row["value"] is None else decode_value(key.record_type, row["value"])
    kind, _, shown = (line.key or "").partition("::")
    fields = key.fields
    if kind == "offset_commit":
        assert shown == f"group={fields['group']},partition={fields['topic']}-{fields['partition']}"
        assert line.payload == (DELETE if value is None else commit_24(value))
    elif kind == "offset":
        assert shown == f"{fields['group']}:{fields['topic']}:{fields['partition']}"
        assert value is not None
        metadata = value.fields["metadata"]
        assert line.payload == str(value.fields["offset"]) + (f":{metadata}" if metadata else "")
    elif kind == "group_metadata":
        assert shown == f"group={fields['group']}"
        assert (line.payload if value is None else json.loads(line.payload or "")) == (
            DELETE if value is None else group_24(value)
        )
    else:
        assert (kind, shown) == ("metadata", fields["group"])
        assert value is not None
        group = group_24(value)
        # The 0.10 tool shows a null protocol as "null", and no protocol type for a group without members although its
        # record has one: the bytes say "consumer", as the 2.4 tool shows for the same group in the other captures.
        protocol = "null" if group["protocol"] is None else group["protocol"]
        protocol_type = group["protocolType"] if value.fields["members"] else ""
        assert group["protocolType"] == "consumer"
        assert line.payload == f"{protocol_type}:{protocol}:{group['generationId']}:{group['assignment']}"


def commit_24(value: DecodedValue) -> str:
    metadata = value.fields["metadata"]
    return f"offset={value.fields['offset']}" + (f",metadata={metadata}" if metadata else "")


def group_24(value: DecodedValue) -> dict[str, Any]:
    members = []
    for member in value.fields["members"]:
        assignment = decode_assignment("consumer", member["assignment"])
        assert assignment is not None
        partitions = ", ".join(
            f"{topic['topic']}-{partition}"
            for topic in assignment.fields["assigned_partitions"]
            for partition in topic["partitions"]
        )
        members.append(f"{member['member_id']}=[{partitions}]")
    return {
        "protocolType": value.fields["protocol_type"],
        "protocol": value.fields["protocol"],
        "generationId": value.fields["generation"],
        "assignment": "{" + ",".join(members) + "}",
    }


@pytest.mark.parametrize("capture", CAPTURE_NAMES)
def test_every_record_is_written_back_byte_for_byte(capture: str) -> None:
    for row, line in records_of(capture):
        if "Error at offset" in str(line.key) or "Unknown record type" in str(line.key):
            continue
        key = decode_key(row["key"])
        assert encode_key(key) == row["key"]
        if row["value"] is not None:
            assert encode_value(key.record_type, decode_value(key.record_type, row["value"])) == row["value"]


def test_the_captures_hold_every_type_version_magic_and_codec() -> None:
    versions: set[tuple[int, int]] = set()
    magics: set[int] = set()
    codecs: set[str] = set()
    for capture in CAPTURE_NAMES:
        for line in (line for lines in DUMPS[capture].values() for line in lines):
            magics.add(line.numbers["magic"])
            codecs.add(line.words["compresscodec"].upper())
        for row, line in records_of(capture):
            if row["value"] is not None and "rror at" not in str(line.key) and "Unknown" not in str(line.key):
                record_type = decode_key(row["key"]).record_type
                versions.add((record_type, decode_value(record_type, row["value"]).version))
    assert magics == {0, 1, 2}
    assert codecs == {"NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD"}
    assert versions >= {(0, 0), *((1, v) for v in range(5)), *((2, v) for v in range(4))}
    assert {record_type for record_type, _ in versions} == set(range(24)) - {9, 18}
