"""Format-2 segments: written batches of every shape are read back."""

from __future__ import annotations

import mmap
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.kafka.record import columns
from offsets_pipeline.kafka.record.batch import BATCH_HEADER_BYTES
from offsets_pipeline.kafka.record.compression import Codec, compress
from offsets_pipeline.kafka.record.log_batches import empty_batch, frame_batches
from offsets_pipeline.kafka.record.segment import SEGMENT_SCHEMA, SegmentReader, read_segment
from tests.record_batches import BatchOptions, encode_batch, encode_batches, encode_control_batch, write_varint

if TYPE_CHECKING:
    from pathlib import Path

CODECS = list(Codec)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def read(data: bytes, max_records: int = 1_000_000) -> tuple[SegmentReader, list[dict[str, Any]]]:
    reader = read_segment(data, source="test.log", max_records=max_records)
    batches = list(reader.batches())
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(SEGMENT_SCHEMA)
        assert len(batch) <= max_records
    return reader, [row for batch in batches for row in batch.to_pylist()]


def numbered(count: int) -> tuple[pa.Array, pa.Array]:
    return binary(*(b"key%d" % i for i in range(count))), binary(*(b"value%d" % i for i in range(count)))


def milliseconds(row: dict[str, Any]) -> int | None:
    return None if row["record_timestamp"] is None else round(row["record_timestamp"].timestamp() * 1000)


def test_a_batch_written_by_hand_is_read() -> None:
    # lengths and deltas are zigzag: 2n for n, 1 for -1
    record = bytes.fromhex(
        "14"  # 10 bytes follow
        "00"  # attributes
        "0a"  # timestamp delta 5
        "00"  # offset delta 0
        "026b"  # key "k"
        "01"  # value null
        "02"  # one header
        "0268"  # its key "h"
        "01"  # its value null
    )
    checked = struct.pack(">hiqqqhii", 0, 0, 1000, 1005, 3, 4, -1, 1) + record
    data = struct.pack(">qiibI", 7, 9 + len(checked), 0, 2, crc32c.crc32c(checked)) + checked
    reader, rows = read(data)
    assert [(row["record_offset"], milliseconds(row), row["key"], row["value"]) for row in rows] == [
        (7, 1005, b"k", None)
    ]
    assert (rows[0]["producer_id"], rows[0]["producer_epoch"], rows[0]["is_transactional"]) == (3, 4, False)
    assert (reader.base_offset, reader.end_offset, reader.damage, reader.torn_tail) == (7, 8, [], None)


def test_a_batch_is_written_as_by_hand() -> None:
    record = bytes.fromhex("10000000026b027600")
    checked = struct.pack(">hiqqqhii", 0x10, 0, 1000, 1000, 3, 4, 6, 1) + record
    options = BatchOptions(
        producer_id=3, producer_epoch=4, base_sequence=6, is_transactional=True, partition_leader_epoch=9
    )
    written = encode_batch(binary(b"k"), binary(b"v"), base_offset=7, timestamps=1000, options=options)
    assert written == struct.pack(">qiibI", 7, 9 + len(checked), 9, 2, crc32c.crc32c(checked)) + checked


maybe_bytes = st.none() | st.binary(max_size=200)
records = st.lists(st.tuples(maybe_bytes, maybe_bytes, st.integers(0, 2**45)), min_size=1, max_size=150)


@given(records=records, records_per_batch=st.integers(1, 60), codec=st.sampled_from(CODECS), base=st.integers(0, 2**60))
def test_what_is_written_is_read(
    records: list[tuple[bytes | None, bytes | None, int]], records_per_batch: int, codec: Codec, base: int
) -> None:
    keys, values, timestamps = zip(*records, strict=True)
    data = encode_batches(
        binary(*keys),
        binary(*values),
        records_per_batch=records_per_batch,
        base_offset=base,
        timestamps=np.array(timestamps, dtype=np.int64),
        options=BatchOptions(codec=codec),
    )
    reader, rows = read(data)
    assert [(row["key"], row["value"], milliseconds(row)) for row in rows] == records
    assert [row["record_offset"] for row in rows] == list(range(base, base + len(records)))
    assert (reader.base_offset, reader.end_offset) == (base, base + len(records))
    assert (reader.damage, reader.torn_tail) == ([], None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records_per_batch", [1, 3, 100, 3000])
def test_lock_step_and_plain_loop_read_the_same(codec: Codec, records_per_batch: int) -> None:
    # below 40 batches the plain loop reads, above it the lock step; 3000 records a batch leaves few, 1 leaves many
    keys, values = numbered(6001)
    data = encode_batches(keys, values, records_per_batch=records_per_batch, options=BatchOptions(codec=codec))
    reader, rows = read(data)
    assert [row["key"] for row in rows] == keys.to_pylist()
    assert [row["value"] for row in rows] == values.to_pylist()
    assert reader.end_offset == 6001


def test_batches_of_very_different_sizes_keep_their_order() -> None:
    parts, offset = [], 0
    for index in range(200):
        count = (index * 7919) % 23 + 1
        keys, values = numbered(count)
        codec = CODECS[index % 5]
        parts.append(encode_batch(keys, values, base_offset=offset, options=BatchOptions(codec=codec)))
        offset += count
    reader, rows = read(b"".join(parts))
    assert [row["record_offset"] for row in rows] == list(range(offset))
    assert reader.damage == []


def test_compressed_batches_become_columns_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_PART_BYTES", 45)
    unpacked, sizes = columns._unpacked, list[int]()

    def measured(first: int, headers: Any, payloads: Any, reason: Any) -> Any:  # noqa: ANN401 - the original's
        sizes.append(sum(map(len, payloads)))
        return unpacked(first, headers, payloads, reason)

    monkeypatch.setattr(columns, "_unpacked", measured)
    parts = [batch_of(GOOD, 1, base_offset=i, codec=Codec.GZIP if i % 2 else Codec.NONE) for i in range(100)]
    parts[70] = batch_of(GOOD, 3, base_offset=70)
    reader, rows = read(b"".join(parts))
    assert [row["record_offset"] for row in rows] == [i for i in range(100) if i != 70]
    assert [damage.position for damage in reader.damage] == [sum(map(len, parts[:70]))]
    assert sizes == [45] * 19 + [36]  # of 99 payloads of 9 bytes


@pytest.mark.parametrize("max_records", [1, 7, 100])
def test_arrow_batches_are_no_larger_than_asked(max_records: int) -> None:
    keys, values = numbered(250)
    _, rows = read(encode_batches(keys, values, records_per_batch=20), max_records)
    assert [row["key"] for row in rows] == keys.to_pylist()


def test_position_is_that_of_the_batches_being_read() -> None:
    parts = [encode_batch(*numbered(count), base_offset=offset) for offset, count in ((0, 3), (3, 1), (4, 2))]
    reader = read_segment(b"".join(parts), source="test.log", max_records=1)
    positions = [(batch["record_offset"][0].as_py(), reader.position) for batch in reader.batches()]
    starts = [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    assert positions == [(0, 0), (1, 0), (2, 0), (3, starts[1]), (4, starts[2]), (5, starts[2])]


def test_long_values_and_long_varints_survive() -> None:
    values = binary(*(bytes([i % 251]) * (2**i) for i in range(18)))
    timestamps = np.array([i * 2**40 for i in range(18)], dtype=np.int64)
    data = encode_batches(values, values, records_per_batch=18, timestamps=timestamps)
    many = b"".join(encode_batch(values, values, base_offset=18 * i, timestamps=timestamps) for i in range(50))
    assert many.startswith(data)
    _, rows = read(many)
    assert [row["value"] for row in rows] == values.to_pylist() * 50
    assert [milliseconds(row) for row in rows] == timestamps.tolist() * 50


@pytest.mark.parametrize("batches", [1, 100])
def test_numbers_at_the_edges_of_their_bytes_survive(batches: int) -> None:
    edges = [
        number for bits in (6, 13, 20, 27, 34, 41) for number in (2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1)
    ]
    times = np.array([0, *edges], dtype=np.int64)  # deltas whose last byte is 0x7e or 0x7f, or that need one more
    nulls = pa.nulls(len(times), pa.binary())
    data = b"".join(encode_batch(nulls, nulls, base_offset=len(times) * at, timestamps=times) for at in range(batches))
    assert [row["record_timestamp"] for row in read(data)[1]] == [
        None if each == -1 else EPOCH + timedelta(milliseconds=int(each)) for each in times
    ] * batches


def test_no_timestamp_is_null() -> None:
    _, rows = read(encode_batches(*numbered(2), records_per_batch=2, timestamps=-1))
    assert [row["record_timestamp"] for row in rows] == [None, None]


def test_log_append_time_replaces_each_records_own_time() -> None:
    options = BatchOptions(log_append_time_ms=5000)
    data = encode_batches(*numbered(2), records_per_batch=2, timestamps=np.array([1, 2]), options=options)
    _, rows = read(data)
    assert [milliseconds(row) for row in rows] == [5000, 5000]


def test_a_delete_horizon_in_the_base_timestamp_leaves_record_times_alone() -> None:
    options = BatchOptions(delete_horizon_ms=99_000)
    data = encode_batch(*numbered(2), base_offset=0, timestamps=np.array([1000, 2000]), options=options)
    assert np.frombuffer(data, columns.BATCH_HEADER, 1)["base_timestamp"] == 99_000
    _, rows = read(data)
    assert [milliseconds(row) for row in rows] == [1000, 2000]


def test_a_compacted_batch_has_gaps_and_a_later_last_offset() -> None:
    keys, values = numbered(3)
    data = encode_batch(keys, values, base_offset=10, offsets=np.array([11, 14, 17]), last_offset=19)
    reader, rows = read(data)
    assert [row["record_offset"] for row in rows] == [11, 14, 17]
    assert (reader.base_offset, reader.end_offset) == (10, 20)


@pytest.mark.parametrize("codec", CODECS)
def test_an_emptied_batch_still_moves_the_log_end(codec: Codec) -> None:
    options = BatchOptions(codec=codec, producer_id=5, producer_epoch=0)
    empty = encode_batch(binary(), binary(), base_offset=4, last_offset=9, options=options)
    empty_without_payload = empty[:BATCH_HEADER_BYTES] if codec is Codec.NONE else empty
    reader, rows = read(encode_batches(*numbered(3), records_per_batch=3) + empty_without_payload)
    assert [row["record_offset"] for row in rows] == [0, 1, 2]
    assert (reader.base_offset, reader.end_offset, reader.damage) == (0, 10, [])


def test_an_empty_batch_of_the_export_is_written_as_any_other() -> None:
    assert empty_batch(9) == encode_batch(binary(), binary(), base_offset=9)
    reader, rows = read(empty_batch(9))
    assert (rows, reader.base_offset, reader.end_offset, reader.damage) == ([], 9, 10, [])


def test_an_empty_file_is_an_empty_segment() -> None:
    reader, rows = read(b"")
    assert rows == []
    assert (reader.base_offset, reader.end_offset, reader.damage, reader.torn_tail) == (None, None, [], None)
    assert [field.name for field in SEGMENT_SCHEMA if not field.nullable] == ["record_offset", "is_transactional"]


def test_markers_are_control_records_of_their_producer() -> None:
    options = BatchOptions(producer_id=7, producer_epoch=1, base_sequence=0, is_transactional=True)
    data = encode_batches(*numbered(1), records_per_batch=1, options=options)
    data += encode_control_batch(offset=1, commit=True, producer_id=7, producer_epoch=2)
    data += encode_control_batch(offset=2, commit=False, producer_id=8)
    _, rows = read(data)
    names = ("producer_id", "producer_epoch", "is_transactional", "control_type")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (7, 1, True, None),
        (7, 2, True, "COMMIT"),
        (8, 0, True, "ABORT"),
    ]


@pytest.mark.parametrize("control_type", [2, 3, 4, 5, 6, 256, 257, 32767])
def test_other_control_records_are_other(control_type: int) -> None:
    keys = binary(struct.pack(">hh", 0, control_type))
    _, rows = read(encode_batch(keys, binary(b""), base_offset=0, options=BatchOptions(is_control=True)))
    assert [row["control_type"] for row in rows] == ["OTHER"]


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00"])
def test_a_control_key_without_a_type_is_damage(key: bytes | None) -> None:
    reader, rows = read(encode_batch(binary(key), binary(b""), base_offset=0, options=BatchOptions(is_control=True)))
    assert rows == []
    assert ["control record" in damage.reason for damage in reader.damage] == [True]


def test_an_idempotent_producers_batch_is_not_transactional() -> None:
    _, rows = read(encode_batches(*numbered(1), records_per_batch=1, options=BatchOptions(producer_id=9)))
    assert [(row["producer_id"], row["producer_epoch"], row["is_transactional"]) for row in rows] == [(9, None, False)]


def record_with_headers(
    offset_delta: int, headers: list[tuple[bytes, bytes | None]], *, count: int | None = None
) -> bytes:
    body = bytearray(1)
    for number in (0, offset_delta):
        write_varint(body, number)
    for data in (b"k", b"v"):
        write_varint(body, len(data))
        body += data
    write_varint(body, len(headers) if count is None else count)
    for key, value in headers:
        write_varint(body, len(key))
        body += key
        write_varint(body, -1 if value is None else len(value))
        body += value or b""
    record = bytearray()
    write_varint(record, len(body))
    return bytes(record + body)


def batch_of(payload: bytes, count: int, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytes:
    headers = np.zeros(1, columns.BATCH_HEADER)
    headers["base_offset"], headers["last_offset_delta"] = base_offset, max(count - 1, 0)
    headers["attributes"], headers["record_count"] = codec, count
    return bytes(frame_batches(headers, [compress(codec, payload)])[0])


def with_field(batch: bytes, layout: str, position: int, number: int) -> bytes:
    """The batch with another number in its header, and the checksum of that."""
    data = bytearray(batch)
    struct.pack_into(layout, data, position, number)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


HEADERS: list[tuple[bytes, bytes | None]] = [(b"h", b"x" * 300), (b"", None), (b"long" * 40, b"")]


@pytest.mark.parametrize("batches", [1, 100])
def test_headers_are_skipped(batches: int) -> None:
    payload = record_with_headers(0, HEADERS) + record_with_headers(1, []) + record_with_headers(2, HEADERS[:1])
    reader, rows = read(b"".join(batch_of(payload, 3, base_offset=3 * i) for i in range(batches)))
    assert [(row["record_offset"], row["key"], row["value"]) for row in rows] == [
        (i, b"k", b"v") for i in range(3 * batches)
    ]
    assert reader.damage == []


@pytest.mark.parametrize("batches", [1, 100])
def test_varints_may_be_longer_than_need_be(batches: int) -> None:
    """As Java reads them: of five bytes the bits beyond 32 are dropped, and of ten those beyond 64."""
    record = bytes.fromhex(
        "aa00"  # 21 bytes follow
        "00"  # attributes
        "8a80808080808080807e"  # timestamp delta 5
        "8080808070"  # offset delta 0
        "8200"  # key length 1
        "6b"
        "01"  # value null
        "00"  # no headers
    )
    reader, rows = read(b"".join(batch_of(record, 1, base_offset=at) for at in range(batches)))
    found = [(row["record_offset"], milliseconds(row), row["key"], row["value"]) for row in rows]
    assert found == [(at, 5, b"k", None) for at in range(batches)]
    assert reader.damage == []


GOOD = record_with_headers(0, [])
UNDECODABLE = {
    "record length beyond the batch": (bytes([100]) + GOOD[1:], 1, "expected 50 bytes, found 8"),
    "negative record length": (bytes([1]) + GOOD[1:], 1, "expected -1 bytes"),
    "record length too short": (bytes([GOOD[0] - 2]) + GOOD[1:], 1, "by its length"),
    "bytes behind the headers": (bytes([GOOD[0] + 2]) + GOOD[1:] + b"\x00", 1, "by its length"),
    "key beyond the record": (GOOD[:4] + bytes([60]) + GOOD[5:], 1, "reaches beyond its batch"),
    "fewer records than counted": (GOOD, 3, "3 records do not fit into 9 bytes"),
    "more records than counted": (GOOD + GOOD, 1, "after its 1 records"),
    "negative header count": (record_with_headers(0, [], count=-1), 1, "-1 headers"),
    "headers that are not there": (record_with_headers(0, [(b"h", b"v")], count=2), 1, "reaches beyond its record"),
    "varint of six bytes": (bytes([26, 0, 0]) + b"\x80" * 5 + GOOD[3:], 1, "varint at byte 3 is longer than 5 bytes"),
    "varint without an end": (bytes([28, 0]) + b"\xff" * 13, 1, "longer than 10 bytes"),
    "offsets that stand still": (GOOD + GOOD, 2, "do not increase"),
    "offsets beyond the last": (GOOD + record_with_headers(7, []), 2, "do not increase"),
    "negative offsets": (record_with_headers(-1, []), 1, "do not increase"),
}


@pytest.mark.parametrize("name", UNDECODABLE)
@pytest.mark.parametrize("healthy", [1, 100])
def test_a_batch_with_a_good_checksum_that_does_not_decode_is_damage(name: str, healthy: int) -> None:
    payload, count, reason = UNDECODABLE[name]
    before = b"".join(batch_of(GOOD, 1, base_offset=i) for i in range(healthy))
    broken = batch_of(payload, count, base_offset=healthy)
    after = batch_of(GOOD, 1, base_offset=healthy + 10)
    reader, rows = read(before + broken + after)
    assert [row["record_offset"] for row in rows] == [*range(healthy), healthy + 10]
    assert [(damage.position, damage.length, damage.raw) for damage in reader.damage] == [
        (len(before), len(broken), broken)
    ]
    assert reason in reader.damage[0].reason
    assert reader.end_offset == healthy + 11


@pytest.mark.parametrize("healthy", [1, 100])
@pytest.mark.parametrize("position", [23, 57], ids=["last offset delta", "record count"])
def test_a_batch_with_a_negative_number_and_a_good_checksum_is_damage(position: int, healthy: int) -> None:
    before = b"".join(batch_of(GOOD, 1, base_offset=i) for i in range(healthy))
    broken = with_field(batch_of(GOOD, 1, base_offset=healthy), ">i", position, -1)
    reader, rows = read(before + broken + batch_of(GOOD, 1, base_offset=healthy + 10))
    assert [row["record_offset"] for row in rows] == [*range(healthy), healthy + 10]
    assert [(damage.position, damage.raw) for damage in reader.damage] == [(len(before), broken)]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "payload", [b"", b"garbage that is no frame", b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff"]
)
def test_a_payload_that_does_not_decompress_is_damage(codec: Codec, payload: bytes) -> None:
    broken = _frame_compressed(payload, codec)
    reader, rows = read(broken + batch_of(GOOD, 1, base_offset=5))
    assert [row["record_offset"] for row in rows] == [5]
    assert len(reader.damage) == 1


def test_a_zstd_payload_that_does_not_decompress_costs_its_batch_only() -> None:
    healthy = [batch_of(GOOD, 1, base_offset=at, codec=Codec.ZSTD if at % 2 else Codec.NONE) for at in range(1, 9)]
    reader, rows = read(_frame_compressed(compress(Codec.ZSTD, GOOD)[:-1], Codec.ZSTD) + b"".join(healthy))
    assert [row["record_offset"] for row in rows] == list(range(1, 9))
    assert len(reader.damage) == 1


def test_an_unknown_codec_is_damage() -> None:
    reader, rows = read(_frame_compressed(GOOD, 5) + batch_of(GOOD, 1, base_offset=5))
    assert [row["record_offset"] for row in rows] == [5]
    assert ["unknown compression codec 5" in damage.reason for damage in reader.damage] == [True]


def _frame_compressed(payload: bytes, codec: int) -> bytes:
    """A batch of one record that claims a codec over bytes as they are."""
    return with_field(batch_of(payload, 1), ">h", 21, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_do_not_decode_after_decompression_are_damage(codec: Codec) -> None:
    payload, count, reason = UNDECODABLE["record length too short"]
    reader, rows = read(batch_of(payload, count, codec=codec) + batch_of(GOOD, 1, base_offset=5, codec=codec))
    assert [row["record_offset"] for row in rows] == [5]
    assert [reason in damage.reason for damage in reader.damage] == [True]
    assert compress(codec, payload) in reader.damage[0].raw


def test_a_memory_mapped_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(encode_batches(*numbered(1000), records_per_batch=10))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        reader = read_segment(mapped, source=str(path))
        rows = sum(len(batch) for batch in reader.batches())
        del reader  # it exports the map, which could not be closed otherwise
    assert rows == 1000
