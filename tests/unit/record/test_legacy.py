"""Message formats 0 and 1: plain, wrapped and damaged messages."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import cramjam
import pyarrow as pa
import pytest

from offsets_pipeline.kafka.record.compression import Codec, _xxh32_short
from offsets_pipeline.kafka.record.segment import SegmentReader, read_segment
from tests.old_messages import LOG_APPEND_TIME, message, mixed, sized, wrapper
from tests.record_batches import encode_batches

if TYPE_CHECKING:
    from pathlib import Path

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def read(data: bytes) -> tuple[SegmentReader, list[tuple[Any, ...]]]:
    reader = read_segment(data, source="old.log")
    rows = [row for columns in reader.batches() for row in columns.to_pylist()]
    for row in rows:
        assert row["producer_id"] is None
        assert row["producer_epoch"] is None
        assert row["is_transactional"] is False
        assert row["control_type"] is None
    return reader, [(row["record_offset"], milliseconds(row), row["key"], row["value"]) for row in rows]


def milliseconds(row: dict[str, Any]) -> int | None:
    return None if row["record_timestamp"] is None else round(row["record_timestamp"].timestamp() * 1000)


def test_format_0_has_no_timestamps() -> None:
    reader, rows = read(message(4, b"k", b"v", magic=0) + message(6, None, None, magic=0))
    assert rows == [(4, None, b"k", b"v"), (6, None, None, None)]
    assert (reader.base_offset, reader.end_offset, reader.damage) == (4, 7, [])


def test_format_1_has_timestamps_and_minus_one_is_none() -> None:
    _, rows = read(message(4, b"", b"v", timestamp=77) + message(5, b"k", b"", timestamp=-1))
    assert rows == [(4, 77, b"", b"v"), (5, None, b"k", b"")]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_format_0_wrapper_holds_absolute_offsets(codec: Codec) -> None:
    inner = message(10, b"a", b"1", magic=0) + message(13, b"b", None, magic=0)
    reader, rows = read(wrapper(13, inner, codec, magic=0))
    assert rows == [(10, None, b"a", b"1"), (13, None, b"b", None)]
    assert (reader.base_offset, reader.end_offset) == (10, 14)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_format_1_wrapper_holds_relative_offsets(codec: Codec) -> None:
    # offset of the wrapper is that of the last message inside; compaction left a gap behind the first
    inner = message(0, b"a", b"1", timestamp=5) + message(3, b"b", b"2", timestamp=6)
    reader, rows = read(wrapper(103, inner, codec))
    assert rows == [(100, 5, b"a", b"1"), (103, 6, b"b", b"2")]
    assert (reader.base_offset, reader.end_offset) == (100, 104)


def test_a_format_1_wrapper_may_hold_absolute_offsets_too() -> None:
    inner = message(100, b"a", b"1") + message(103, b"b", b"2")
    _, rows = read(wrapper(103, inner, Codec.GZIP))
    assert [offset for offset, *_ in rows] == [100, 103]


def test_log_append_time_of_the_wrapper_is_that_of_all_inside() -> None:
    inner = message(0, b"a", b"1", timestamp=5) + message(1, b"b", b"2", timestamp=6)
    _, rows = read(wrapper(1, inner, Codec.GZIP, flags=LOG_APPEND_TIME, timestamp=9000))
    assert [time for _, time, *_ in rows] == [9000, 9000]


def legacy_lz4(data: bytes) -> bytes:
    """As Kafka 0.8 and 0.9 framed it: the header checksum runs over the magic too."""
    frame = bytes(cramjam.lz4.compress(data))
    content_size = 8 if frame[4] & 0x08 else 0
    end = 6 + content_size
    wrong = _xxh32_short(frame[:end]) >> 8 & 0xFF
    assert wrong != frame[end]
    return frame[:end] + bytes([wrong]) + frame[end + 1 :]


def test_the_wrong_lz4_header_checksum_of_format_0_is_tolerated() -> None:
    inner = message(10, b"a", b"1" * 100, magic=0)
    _, rows = read(message(10, None, legacy_lz4(inner), magic=0, attributes=Codec.LZ4))
    assert rows == [(10, None, b"a", b"1" * 100)]


def test_it_is_damage_in_format_1() -> None:
    inner = message(0, b"a", b"1" * 100)
    reader, rows = read(message(10, None, legacy_lz4(inner), attributes=Codec.LZ4) + message(11, b"k", b"v"))
    assert [offset for offset, *_ in rows] == [11]
    assert len(reader.damage) == 1


@pytest.mark.parametrize(
    ("data", "checksum"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)]
)
def test_short_xxh32_gives_the_published_values(data: bytes, checksum: int) -> None:
    assert _xxh32_short(data) == checksum


def test_the_header_checksum_is_that_of_kafkas_own_frames(captures: Path) -> None:
    segment = next(captures.glob("4.2.0-old-codec3/segments/__consumer_offsets-0/*.log")).read_bytes()
    frame = segment[segment.index(b"\x04\x22\x4d\x18") :]
    assert _xxh32_short(frame[4:6]) >> 8 & 0xFF == frame[6]


@pytest.mark.parametrize(
    ("data", "times"),
    [
        (mixed(25, 1), [None, None, 77]),
        (mixed(25, 0), [77, 77, None]),
        (mixed(25, 1, flags=LOG_APPEND_TIME, timestamp=9000), [None, None, 9000]),
        (mixed(25, 0, flags=LOG_APPEND_TIME), [77, 77, None]),  # format 0 has no time of an append
    ],
    ids=["format 1", "format 0", "format 1 with its time", "format 0 with a flag"],
)
def test_messages_of_another_format_than_their_wrapper_are_read(data: bytes, times: list[int | None]) -> None:
    reader, rows = read(message(10, b"k", b"v") + data + message(26, b"k", b"v"))
    assert [(offset, time) for offset, time, *_ in rows[1:-1]] == list(zip((20, 23, 25), times, strict=True))
    assert ([rows[0][0], rows[-1][0]], reader.damage) == ([10, 26], [])


@pytest.mark.parametrize("cut", [1, 5, 12, 17, 18, 21])
def test_an_inner_message_that_is_cut_short_behind_others_is_not_there(cut: int) -> None:
    reader, rows = read(wrapper(4, INNER + message(1, b"b", b"2")[:cut], Codec.GZIP) + message(5, b"k", b"v"))
    assert ([offset for offset, *_ in rows], reader.damage) == ([4, 5], [])


@pytest.mark.parametrize("magic", [0, 1])
def test_a_segment_spans_more_than_its_indexes_can_tell(magic: int) -> None:
    """KAFKA-5413: cleaners of brokers before 0.11 merged such segments."""
    offsets = (5, 2**31 - 1, 2**31 + 52, 2**32 + 51)
    reader, rows = read(b"".join(message(offset, b"k", b"v", magic=magic) for offset in offsets))
    assert ([offset for offset, *_ in rows], reader.damage) == ([*offsets], [])
    reader, rows = read(b"".join(message(offset, b"k", b"v", magic=magic) for offset in (*offsets, 2**32 + 2**31 + 51)))
    assert [offset for offset, *_ in rows] == [*offsets]
    assert [each.reason for each in reader.damage] == [
        f"last offset {2**32 + 2**31 + 51} is too far from offset {2**32 + 51} of the segment"
    ]


INNER = message(0, b"a", b"1")
BAD = {
    "compressed without a value": (message(1, None, None, attributes=1), "has no value"),
    "wraps nothing": (wrapper(1, b"", Codec.GZIP), "holds no messages"),
    "inner message cut short": (wrapper(1, INNER[:-1], Codec.GZIP), "inner message: length"),
    "inner header cut short": (wrapper(1, INNER[:5], Codec.GZIP), "header cut short"),
    "inner message of an unknown magic": (wrapper(1, message(0, b"a", b"1", magic=2), Codec.GZIP), "magic 2, codec 0"),
    "compressed in compressed": (wrapper(1, wrapper(0, INNER, Codec.GZIP), Codec.GZIP), "magic 1, codec 1"),
    "a wrong length behind a message": (wrapper(1, INNER + INNER[:11] + b"\1" + INNER[12:], Codec.GZIP), "length 1"),
    "a wrong length behind a message, cut short": (
        wrapper(1, INNER + INNER[:11] + b"\x0d" + INNER[12:20], Codec.GZIP),
        "length 13, but only 8 bytes",  # no message has fewer than 14
    ),
    "inner checksum": (wrapper(1, message(0, b"a", b"1", crc=1), Codec.GZIP), "checksum is not 0x00000001"),
    "offsets that stand still": (wrapper(1, INNER + INNER, Codec.GZIP), "do not increase"),
    "offset too small for what it wraps": (wrapper(1, INNER + message(2, b"", b""), Codec.GZIP), "do not increase"),
    "not compressed at all": (message(1, None, b"plain", attributes=1), "does not decompress as gzip"),
    "unknown codec": (message(1, None, b"plain", attributes=7), "unknown compression codec 7"),
    "checksum": (message(1, b"k", b"v", crc=5), "0x00000005 expected"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_damage_and_the_next_one_is_read(name: str) -> None:
    broken, reason = BAD[name]
    reader, rows = read(message(0, b"k", b"v") + broken + message(7, b"k", b"v"))
    assert [offset for offset, *_ in rows] == [0, 7]
    assert [damage.length for damage in reader.damage] == [len(broken)]
    assert reason in reader.damage[0].reason
    assert reader.end_offset == 8


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("key", "value"), [(None, None), (None, b"value"), (b"key", None), (b"key", b"value")])
def test_a_message_behind_a_wrong_length_is_found(magic: int, key: bytes | None, value: bytes | None) -> None:
    first, broken = message(0, b"k", b"v", magic=magic), bytearray(message(1, b"k", b"v", magic=magic))
    broken[11] += 8  # the last byte of the length: it now reaches into the next message
    reader, rows = read(first + broken + message(2, key, value, magic=magic) + message(3, b"k", b"v", magic=magic))
    assert [(offset, *rest) for offset, _, *rest in rows] == [(0, b"k", b"v"), (2, key, value), (3, b"k", b"v")]
    assert [(damage.position, damage.length) for damage in reader.damage] == [(len(first), len(broken))]


def test_bytes_after_the_value_are_damage() -> None:
    body = struct.pack(">bbq", 1, 0, 0) + sized(b"k") + sized(b"v") + b"more"
    broken = struct.pack(">qiI", 1, len(body) + 4, zlib.crc32(body)) + body
    reader, rows = read(message(0, b"k", b"v") + broken)
    assert [offset for offset, *_ in rows] == [0]
    assert ["4 bytes after the value" in damage.reason for damage in reader.damage] == [True]


@pytest.mark.parametrize("key_size", [5, -7, 2**31 - 1])
def test_sizes_that_do_not_add_up_are_damage(key_size: int) -> None:
    body = struct.pack(">bbq", 1, 0, 0) + struct.pack(">i", key_size) + b"k" + sized(b"v")
    broken = struct.pack(">qiI", 1, len(body) + 4, zlib.crc32(body)) + body
    reader, rows = read(message(0, b"k", b"v") + broken + message(7, b"k", b"v"))
    assert [offset for offset, *_ in rows] == [0, 7]
    assert len(reader.damage) == 1


def test_formats_may_follow_one_another() -> None:
    keys = pa.array([b"k", b"k"], pa.binary())
    data = message(0, b"k", b"v", magic=0) + message(1, b"k", b"v")
    data += encode_batches(keys, keys, records_per_batch=1, base_offset=2)
    data += message(4, b"k", b"v") + encode_batches(keys, keys, records_per_batch=2, base_offset=5)
    reader, rows = read(data)
    assert [offset for offset, *_ in rows] == list(range(7))
    assert (reader.base_offset, reader.end_offset, reader.damage) == (0, 7, [])
    runs = read_segment(data, source="old.log").runs()
    assert [len(run.positions) for run, _ in runs] == [2, 2, 1, 1]
