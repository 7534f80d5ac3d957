"""Costs of hostile bytes: timestamps out of range, payloads that decompress to gigabytes, huge declared lengths."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
import zlib
from functools import partial
from typing import TYPE_CHECKING

import cramjam
import crc32c
import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record import columns, scan, wire
from offsets_pipeline.kafka.record.checksums import StretchChecksums
from offsets_pipeline.kafka.record.compression import MAX_BATCH_BYTES, Codec, compress, decompress, decompress_frames
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, NotASegment
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.segment import SegmentReader, read_segment
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.mutation import message, repaired, seeds
from tests.record_batches import BatchOptions, encode_batch
from tests.unit.record.hand_worked import ID, hexed

if TYPE_CHECKING:
    from collections.abc import Callable

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MEBIBYTE = 1024 * 1024
#: 2^63 microseconds are 9,223,372,036,854,775.808 ms.
LAST_TIMESTAMP_MS = 9_223_372_036_854_775
FIRST_TIMESTAMP_MS = -LAST_TIMESTAMP_MS


def batch(base_offset: int, timestamps: list[int], **options: int) -> bytes:
    keys = pa.array([b"key"] * len(timestamps), pa.binary())
    times = np.array(timestamps, dtype=np.int64)
    return encode_batch(keys, keys, base_offset=base_offset, timestamps=times, options=BatchOptions(**options))  # type: ignore[arg-type]


def read(data: bytes) -> tuple[SegmentReader, list[tuple[int, int | None]]]:
    """Offset and timestamp in microseconds of each record that was read, as in the table `log`."""
    reader = read_segment(data, source="limits.log")
    rows = [log_columns(each, 0, "limits.log", StoreProperties(MIRRORED, 1)) for each in reader.batches()]
    found = [
        (offset, timestamp)
        for each in rows
        for offset, timestamp in zip(
            each["record_offset"].to_pylist(), each["record_timestamp"].cast(pa.int64()).to_pylist(), strict=True
        )
    ]
    return reader, found


@pytest.mark.parametrize("beyond", [LAST_TIMESTAMP_MS + 1, FIRST_TIMESTAMP_MS - 1, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_timestamp_that_no_table_holds_costs_its_record_only(beyond: int, codec: Codec) -> None:
    first = batch(0, [1000, beyond, 3000], codec=codec)
    reader, found = read(first + batch(3, [4000]))
    assert found == [(0, 1_000_000), (2, 3_000_000), (3, 4_000_000)]
    assert [(damage.position, damage.length, damage.raw) for damage in reader.damage] == [(0, len(first), first)]
    assert reader.damage[0].reason == (
        f"1 of 3 records have a timestamp that the table cannot hold, as {beyond} ms: record offsets 1"
    )
    assert reader.end_offset == 4


@pytest.mark.parametrize("timestamp", [LAST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS, 253_402_300_800_000])
def test_the_last_timestamps_that_a_table_holds_are_kept(timestamp: int) -> None:
    reader, found = read(batch(0, [timestamp]))
    assert (found, reader.damage) == ([(0, timestamp * 1000)], [])


@pytest.mark.parametrize(("count", "named"), [(5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4, ...")])
def test_a_log_append_time_that_no_table_holds_costs_all_records_of_its_batch(count: int, named: str) -> None:
    reader, found = read(batch(0, [1] * count, log_append_time_ms=2**62) + batch(count, [4000]))
    assert found == [(count, 4_000_000)]
    assert [damage.reason for damage in reader.damage] == [
        f"{count} of {count} records have a timestamp that the table cannot hold, as {2**62} ms: record offsets {named}"
    ]


def test_records_beyond_time_are_reported_for_each_batch_and_bad_batches_before_them() -> None:
    parts = [batch(0, [1, 2]), batch(2, [2**62, 3, 2**61]), batch(5, [4]), batch(6, [5, 2**60])]
    parts[0] = repaired(parts[0][:-1] + b"\2")  # the first batch counts a header that is not there
    reader, found = read(b"".join(parts))
    assert found == [(3, 3_000), (5, 4_000), (6, 5_000)]
    at = [0, len(parts[0]), sum(map(len, parts[:3]))]
    of = "records have a timestamp that the table cannot hold, as"
    assert [(damage.position, damage.reason) for damage in reader.damage] == [
        (at[0], "record header: reaches beyond its record"),
        (at[1], f"2 of 3 {of} {2**62} ms: record offsets 2, 4"),
        (at[2], f"1 of 2 {of} {2**60} ms: record offsets 7"),
    ]


def test_a_message_with_a_timestamp_that_no_table_holds_is_left_out() -> None:
    broken = bytearray(message(1, b"k", b"v", magic=1))
    struct.pack_into(">q", broken, 18, 2**62)
    inner = message(0, b"k", b"v", magic=1) + repaired(bytes(broken))
    wrapper = message(3, None, compress(Codec.GZIP, inner), magic=1, attributes=Codec.GZIP)
    reader, found = read(message(0, b"k", b"v", magic=1) + repaired(bytes(broken)) + wrapper)
    assert found == [(0, 1_000_000), (2, 1_000_000)]
    of = f"records have a timestamp that the table cannot hold, as {2**62} ms: record offsets"
    assert [damage.reason for damage in reader.damage] == [f"1 of 1 {of} 1", f"1 of 2 {of} 3"]


@pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 1])
def test_a_record_offset_without_a_next_one_is_damage(last: int) -> None:
    reader, found = read(batch(last, [1000]))
    assert found == ([(last, 1_000_000)] if last < 2**63 - 1 else [])
    assert ["is beyond" in damage.reason for damage in reader.damage] == ([] if found else [True])
    reader, found = read(message(last, b"k", b"v", magic=1))
    assert found == ([(last, 1_000_000)] if last < 2**63 - 1 else [])


# --- payloads


@pytest.mark.parametrize("codec", COMPRESSED)
def test_payload_decompresses_up_to_the_limit(codec: Codec) -> None:
    packed = compress(codec, bytes(10_000))
    assert decompress(codec, packed, limit=10_000) == bytes(10_000)
    with pytest.raises(CorruptRecord, match=f"bytes of {codec.name.lower()} decompress to more than 9999"):
        decompress(codec, packed, limit=9_999)


def test_gzip_members_become_as_much_as_they_may_together() -> None:
    packed = compress(Codec.GZIP, bytes(600)) * 2
    assert decompress(Codec.GZIP, packed, limit=1200) == bytes(1200)
    with pytest.raises(CorruptRecord, match="decompress to more than 1100"):
        decompress(Codec.GZIP, packed, limit=1100)


def test_very_many_gzip_members_are_read_in_one_go() -> None:
    packed = compress(Codec.GZIP, b"") * 100_000  # 2 MB
    began = time.process_time()
    assert decompress(Codec.GZIP, packed) == b""
    assert time.process_time() - began < 1


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_takes_no_more_memory_than_a_batch_may(codec: Codec) -> None:
    packed = compress(codec, bytes(64 * MEBIBYTE))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord, match="decompress to more than"):
            decompress(codec, packed, limit=MEBIBYTE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MEBIBYTE


def test_zstd_frames_that_become_too_much_together_are_none() -> None:
    frames = [compress(Codec.ZSTD, bytes(5000))] * 10
    assert decompress_frames(frames, 50_000) == [bytes(5000)] * 10
    assert decompress_frames(frames, 49_000) is None


def test_batch_that_decompresses_to_too_much_is_damage_and_reading_continues() -> None:
    bomb = bytearray(batch(0, [1], codec=Codec.ZSTD)[:61])
    bomb += bytes(cramjam.zstd.compress(bytes(MAX_BATCH_BYTES + 1)))
    reader, found = read(repaired(bytes(bomb)) + batch(3, [4000]))
    assert found == [(3, 4_000_000)]
    assert [f"decompress to more than {MAX_BATCH_BYTES}" in damage.reason for damage in reader.damage] == [True]


def test_wrapper_that_decompresses_to_too_much_is_damage_and_reading_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(b, "decompress", partial(decompress, limit=5000))
    bomb = message(1, None, compress(Codec.GZIP, bytes(5001)), magic=1, attributes=Codec.GZIP)
    reader, found = read(bomb + message(2, b"k", b"v", magic=1))
    assert found == [(2, 1_000_000)]
    assert ["decompress to more than 5000" in damage.reason for damage in reader.damage] == [True]


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_with_too_many_records_is_damage(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (b, columns):
        monkeypatch.setattr(module, "MAX_BATCH_RECORDS", 5)
    reader, found = read(batch(0, [1] * 6, codec=codec) + batch(6, [4000] * 5, codec=codec))
    assert [offset for offset, _ in found] == [6, 7, 8, 9, 10]
    assert [damage.reason for damage in reader.damage] == ["6 records are more than a batch may have"]
    inner = b"".join(message(at, b"k", b"v", magic=1) for at in range(6))
    reader, found = read(message(5, None, compress(Codec.GZIP, inner), magic=1, attributes=Codec.GZIP))
    assert found == []
    assert ["more than 5 messages" in damage.reason for damage in reader.damage] == [True]


@pytest.mark.parametrize(
    ("parts", "limit", "runs"),
    [
        ([batch(at, [1, 1]) for at in range(0, 12, 2)], 87, [4, 4, 4]),  # of a batch
        ([message(at, b"k", b"v" * 40, magic=1) for at in range(6)], 82, [3, 3]),  # of two keys and values
    ],
)
def test_runs_end_after_the_batch_that_starts_at_the_limit(
    parts: list[bytes], limit: int, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_MAX_RUN_BYTES", limit)
    reader = read_segment(b"".join(parts), source="x")
    found = [(len(each), reader.position) for each in reader.batches()]
    assert [rows for rows, _ in found] == runs
    size = sum(map(len, parts)) // len(runs)
    assert [position for _, position in found] == [size * at for at in range(len(runs))]


def test_messages_become_columns_before_they_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_MAX_RUN_BYTES", 10_000)
    inner = compress(Codec.GZIP, message(0, b"k", bytes(9_000), magic=1))
    data = b"".join(message(at, None, inner, magic=1, attributes=Codec.GZIP) for at in range(20))
    sizes = [len(each) for each in read_segment(data, source="x").batches()]
    assert sum(sizes) == 20
    assert max(sizes) <= 2


# --- values


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x07", b"\x90\x90\x01"])
def test_tagged_fields_that_are_not_there_are_corrupt(count: bytes) -> None:
    value = b"\0\4" + bytes(12) + b"\1" + bytes(8) + count
    with pytest.raises(CorruptRecord, match=r"tagged fields: array of [0-9]+ elements, but only 0 bytes are left"):
        decode_value(1, value)


def test_a_value_of_millions_of_elements_is_corrupt() -> None:
    fields = b"\x81\x89\x7a" + b"\x07\x00" * 2_000_001
    with pytest.raises(CorruptRecord, match="more than 1000000 elements in one record"):
        decode_value(1, b"\0\4" + bytes(12) + b"\1" + bytes(8) + fields)


@pytest.mark.parametrize(("most", "is_read"), [(3, True), (2, False)])
def test_elements_and_tagged_fields_of_a_value_count_together(
    most: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_ELEMENTS", most)
    value = hexed("0000", "02", ID, "03", "00000001", "00000002", "00", "00")  # a topic, and two partitions of it
    if is_read:
        assert decode_value(7, value).fields["topic_partitions"][0]["partitions"] == [1, 2]
    else:
        with pytest.raises(CorruptRecord, match=f"partitions: more than {most} elements in one record"):
            decode_value(7, value)


# --- headers


@pytest.mark.parametrize("checksum", [zlib.crc32, crc32c.crc32c])
def test_checksums_of_stretches_are_those_of_their_bytes(checksum: Callable[..., int]) -> None:
    data = random.Random(7).randbytes(10_000)
    choose = random.Random(8)
    bounds = [sorted(choose.sample(range(len(data) + 1), 2)) for _ in range(300)]
    bounds += [[0, len(data)], [0, 0], [1024, 2048], [1023, 1024], [len(data)] * 2]
    start, end = np.array(bounds, dtype=np.int64).T
    found = StretchChecksums(memoryview(data), checksum).of(start, end)
    assert found.tolist() == [checksum(data[first:last]) for first, last in bounds]


def header(offset: int, size: int) -> bytes:
    """The header of a batch that declares this number of bytes."""
    return struct.pack(">qiibIhiqqqhii", offset, size - 12, 0, 2, 1, 0, 0, 0, 0, -1, -1, -1, 1)


def headers_only(size: int) -> bytes:
    return b"".join(header(5 + at, size - at) for at in range(0, size - 61, 61))


def legacy_headers(size: int) -> bytes:
    return b"".join(
        struct.pack(">qiIbbqii", 5 + at, size - at - 12, 7, 1, 0, 0, -1, size - at - 34)
        for at in range(0, size - 34, 34)
    )


def between(filler: Callable[[int, int], bytes]) -> Callable[[int], bytes]:
    """Whole batches, and something between any two: by its record offset and how many bytes are left."""
    whole = batch(0, [1])[8:]  # the checksum does not cover the offset

    def build(size: int) -> bytes:
        out = bytearray()
        offset = 3
        while len(out) < size - 200:
            out += struct.pack(">q", offset) + whole
            out += filler(offset + 9, size - len(out))
            offset += 1
        return bytes(out)

    return build


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "headers to the end": headers_only,
    "messages to the end": legacy_headers,
    "batches and headers to the end": between(header),
    "batches and headers beyond the end": between(lambda offset, _: header(offset, 2**31 - 1)),
    "batches and zeros": between(lambda _offset, _rest: bytes(20) + b"\1"),
    "ones": lambda size: b"\1" * size,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_read_quickly_and_later_batches_are_found(name: str) -> None:
    size = 2_000_000
    data = batch(0, [1] * 3) + HOSTILE[name](size)
    began = time.process_time()
    _, found = read(data + batch(1_000_000_000, [1, 2]))
    took = time.process_time() - began
    assert [offset for offset, _ in found[:3]] == [0, 1, 2]
    assert [offset for offset, _ in found[-2:]] == [1_000_000_000, 1_000_000_001]
    assert took < 5  # half a second on a quiet machine; a check of each byte for a batch takes minutes


def test_damage_is_the_same_however_checksums_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [b"".join(parts) for parts in seeds()]
    choose = random.Random(11)
    for _ in range(200):
        data = bytearray(choose.choice(segments))
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(data))
            data[at : at + choose.choice((0, 1, 4))] = choose.choice((b"\0", choose.randbytes(9), data[at : at + 300]))
        found = []
        for waste in (scan._WASTE_BYTES, -1):
            monkeypatch.setattr(scan, "_WASTE_BYTES", waste)
            monkeypatch.setattr(scan, "_WASTE_READS", 0 if waste < 0 else 2)
            reader = read_segment(bytes(data), source="x")
            try:
                rows = [row for each in reader.batches() for row in each["record_offset"].to_pylist()]
            except NotASegment:
                rows = [-1]
            spans = [(damage.position, damage.length) for damage in reader.damage]
            torn = None if reader.torn_tail is None else reader.torn_tail.position
            found.append((rows, spans, torn, reader.end_offset))
        assert found[0] == found[1]
