"""Mutated records, each beside the reader of Kafka 4.2's coordinator: both refuse it, or both read the same fields."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES, RecordType
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.connect_keys import offset_key, offset_value
from tests.logs import CAPTURE_NAMES, NO_TOPIC_ID, capture_rows
from tests.old_messages import LOG_APPEND_TIME, message, mixed, wrapper

if TYPE_CHECKING:
    import random

    from tests.kafka.brokers import KafkaJvm

#: What one of the two does with a record.
FIELDS, CORRUPT, UNKNOWN = "reads it", "calls it corrupt", "does not know its type"
#: The program also reads what other releases wrote (R5): 4.2 refuses or does not know what previews in 4.0 and 4.1 did.
OF_OTHER_RELEASES = {
    (RecordType.SHARE_GROUP_METADATA, CORRUPT, FIELDS),
    (RecordType.SHARE_GROUP_STATE_PARTITION_METADATA, CORRUPT, FIELDS),
    (RecordType.SHARE_GROUP_PARTITION_METADATA, UNKNOWN, FIELDS),
    (RecordType.SHARE_GROUP_PARTITION_METADATA, UNKNOWN, CORRUPT),
}
#: Types to which 4.3 and 4.4 added tagged fields: 4.2 skips them by their size, whatever they hold.
WITH_NEWER_FIELDS = {6, 8, 12, 17, 20, 22}
NEWER_FIELDS = {
    *("assignmentepochs", "assignmenttimestamp"),
    *("storeddescriptiontopologyepoch", "faileddescriptiontopologyepoch"),
}


class Reader:
    """Kafka's reader of records."""

    def __init__(self, kafka: KafkaJvm) -> None:
        self._jvm = kafka.gateway.jvm
        self._package = self._jvm.org.apache.kafka.coordinator.group
        self._serde = self._package.GroupCoordinatorRecordSerde()

    def read(self, key: bytes, value: bytes) -> tuple[str, Any]:
        wrap = self._jvm.java.nio.ByteBuffer.wrap
        try:
            found = self._serde.deserialize(wrap(key), wrap(value)).value()
        except Py4JJavaError as error:
            is_unknown = "UnknownRecordType" in error.java_exception.getClass().getName()
            return (UNKNOWN if is_unknown else CORRUPT), None
        message, version = found.message(), found.version()
        to_json = getattr(self._package.generated, f"{message.getClass().getSimpleName()}JsonConverter")
        return FIELDS, json.loads(to_json.write(message, version).toString())


def read_here(key: bytes, value: bytes) -> tuple[str, Any]:
    try:
        return FIELDS, decode_value(decode_key(key).record_type, value).fields
    except UnknownRecordType:
        return UNKNOWN, None
    except CorruptRecord:
        return CORRUPT, None


def are_same(ours: Any, theirs: Any) -> bool:  # noqa: ANN401 - parts of decoded values
    """Compare fields; Kafka's JSON has sentinels for NULL, bytes in Base64, and names in camel case."""
    if ours is None:
        return theirs in (None, -1, NO_TOPIC_ID)
    if isinstance(ours, dict):
        here = {re.sub("_", "", name): each for name, each in ours.items() if not name.startswith("_")}
        there = {name.lower(): each for name, each in theirs.items() if not name.startswith("_")}
        left = {name for name, each in here.items() if each not in (None, [])} - there.keys() - NEWER_FIELDS
        return not left and here.keys() >= there.keys() and all(are_same(here[name], there[name]) for name in there)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(are_same, ours, theirs))
    if isinstance(ours, bytes):
        return ours == base64.b64decode(theirs)
    return bool(ours == theirs)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes are flipped, replaced, added or removed."""
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at = chance.randrange(len(found)) if found else 0
        match chance.randrange(5):
            case 0 if found:
                found[at] ^= 1 << chance.randrange(8)
            case 1 if found:
                found[at] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
            case 2:
                del found[at:]
            case 3:
                found[at:at] = chance.randbytes(chance.randrange(1, 4))
            case _:
                del found[at : at + chance.randrange(1, 4)]
    return bytes(found)


@pytest.mark.parametrize("count", [600, pytest.param(50_000, marks=pytest.mark.long)])
def test_mutated_records_are_read_as_kafka_reads_them(kafka: KafkaJvm, chance: random.Random, count: int) -> None:
    reader = Reader(kafka)
    records = {
        (row.key, row.value)
        for name in CAPTURE_NAMES
        for rows in capture_rows(name).values()
        for row in rows
        if row.key is not None and row.value is not None and row.control_type is None
    }
    by_type: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in sorted(records):
        by_type.setdefault(int.from_bytes(key[:2], "big"), []).append((key, value))
    assert by_type.keys() >= MESSAGE_TYPES.keys() - {0, 4, 9}
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        key, value = chance.choice(by_type[chance.choice(sorted(by_type))])
        if chance.random() < 0.15:
            key = mutated(key, chance)
        else:
            value = mutated(value, chance)
        (by_kafka, theirs), (here, ours) = reader.read(key, value), read_here(key, value)
        outcomes[here] += 1
        if by_kafka != here:
            record_type = int.from_bytes(key[:2], "big")
            is_newer = record_type in WITH_NEWER_FIELDS and {by_kafka, here} == {FIELDS, CORRUPT}
            assert is_newer or (record_type, by_kafka, here) in OF_OTHER_RELEASES, (key.hex(), value.hex())
        elif here is FIELDS:
            assert are_same(ours, theirs), (key.hex(), value.hex(), ours, theirs)
    assert min(outcomes[each] for each in (FIELDS, CORRUPT, UNKNOWN)) > count / 200, outcomes


FAR = (5, 2**31 - 1, 2**31 + 52, 2**32)
OLD_MESSAGES = {
    "format 0 in format 1": mixed(25, 1),
    "format 1 in format 0": mixed(25, 0),
    "with the time of the append": mixed(25, 1, flags=LOG_APPEND_TIME, timestamp=9000),
    "the last one is cut short": wrapper(4, message(0, b"a", b"1") + message(1, b"b", b"2")[:20], Codec.GZIP),
    "far apart in format 0": b"".join(message(offset, b"k", b"v", magic=0) for offset in FAR),
    "far apart in format 1": b"".join(message(offset, b"k", b"v") for offset in FAR),
}


@pytest.mark.parametrize("name", OLD_MESSAGES)
def test_what_old_brokers_left_in_their_logs_is_read_as_kafka_reads_it(kafka: KafkaJvm, name: str) -> None:
    """KAFKA-4298 and KAFKA-5413: no broker of the tests writes these any more."""
    data = OLD_MESSAGES[name]
    jvm = kafka.gateway.jvm
    records = jvm.org.apache.kafka.common.record.MemoryRecords.readableRecords(jvm.java.nio.ByteBuffer.wrap(data))
    found, theirs = records.records().iterator(), []
    while found.hasNext():
        record = found.next()
        theirs.append((record.offset(), record.timestamp()))
    rows = [row for columns in read_segment(data, source="old.log").batches() for row in columns.to_pylist()]
    times = [-1 if (at := row["record_timestamp"]) is None else round(at.timestamp() * 1000) for row in rows]
    assert list(zip((row["record_offset"] for row in rows), times, strict=True)) == theirs


@pytest.mark.parametrize(("members", "is_refused"), [({"p": 1}, False), ({1: "p"}, True), ({True: 1}, True)])
def test_connect_takes_texts_alone_as_names_of_a_source_partition_and_a_source_offset(
    kafka: KafkaJvm, members: dict[object, object], is_refused: bool
) -> None:
    validate = kafka.gateway.jvm.org.apache.kafka.connect.storage.OffsetUtils.validateFormat
    for write in (validate, offset_value, lambda given: offset_key("c", given)):
        if is_refused:
            with pytest.raises((CorruptRecord, Py4JJavaError), match=r"texts as names|may only use String keys"):
                write(members)
        else:
            write(members)
