"""Incomplete last batches end a segment cleanly; damage is reported, and healthy batches after it are read."""

from __future__ import annotations

import random
import struct
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record import scan
from offsets_pipeline.kafka.record.batch import examine
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.kafka.record.log_batches import empty_batch
from offsets_pipeline.kafka.record.segment import SegmentReader, read_segment
from tests.mutation import message
from tests.record_batches import BatchOptions, encode_batch

LENGTH_OFFSET, MAGIC_OFFSET, CRC_OFFSET = 8, 16, 17


def batch(base_offset: int, count: int = 3, *, codec: Codec = Codec.NONE, value: bytes = b"value") -> bytes:
    keys = pa.array([b"key%019d" % (base_offset + i) for i in range(count)], pa.binary())
    values = pa.array([value] * count, pa.binary())
    return encode_batch(keys, values, base_offset=base_offset, timestamps=1000, options=BatchOptions(codec=codec))


def read(data: bytes, max_records: int = 1_000_000) -> tuple[SegmentReader, list[int]]:
    reader = read_segment(data, source="00000000000000000000.log", max_records=max_records)
    rows: list[dict[str, Any]] = [row for columns in reader.batches() for row in columns.to_pylist()]
    for row in rows:
        assert row["key"] == b"key%019d" % row["record_offset"]
    return reader, [row["record_offset"] for row in rows]


def offsets(*bases: int, count: int = 3) -> list[int]:
    return [base + i for base in bases for i in range(count)]


def spans(reader: SegmentReader) -> list[tuple[int, int]]:
    return [(damage.position, damage.length) for damage in reader.damage]


SIZE = len(batch(0))
THREE = batch(0) + batch(3) + batch(6)


def test_a_batch_cut_short_at_any_byte_ends_the_file(subtests: pytest.Subtests) -> None:
    for cut in range(1, SIZE):
        with subtests.test(cut=cut):
            reader, found = read(THREE[: 2 * SIZE + cut])
            assert found == offsets(0, 3)
            assert reader.damage == []
            assert reader.torn_tail is not None
            assert (reader.torn_tail.position, reader.torn_tail.length) == (2 * SIZE, cut)
            assert reader.end_offset == 6


def test_a_first_batch_cut_short_at_any_byte_leaves_nothing(subtests: pytest.Subtests) -> None:
    for cut in range(1, SIZE):
        with subtests.test(cut=cut):
            reader, found = read(THREE[:cut])
            assert found == []
            assert reader.torn_tail is not None
            assert (reader.base_offset, reader.end_offset) == (None, None)


@pytest.mark.parametrize("window", [7, SIZE, scan._WINDOW_BYTES])
@pytest.mark.parametrize("zeros", [1, 16, 17, 60, 61, 5000])
def test_a_preallocated_tail_ends_the_file(zeros: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_WINDOW_BYTES", window)
    reader, found = read(THREE + bytes(zeros))
    assert found == offsets(0, 3, 6)
    assert reader.damage == []
    reason = f"{zeros} zero bytes: preallocated space without records"
    assert reader.torn_tail == scan.Damage(3 * SIZE, zeros, reason, b"")


def test_a_file_of_zeros_is_a_segment_without_batches() -> None:
    reader, found = read(bytes(4096))
    assert (found, reader.damage, reader.end_offset) == ([], [], None)
    assert reader.torn_tail is not None


def test_any_changed_byte_under_the_checksum_costs_its_batch_only(subtests: pytest.Subtests) -> None:
    for position in range(CRC_OFFSET, SIZE):
        with subtests.test(position=position):
            data = bytearray(THREE)
            data[SIZE + position] ^= 0x40
            reader, found = read(bytes(data))
            assert found == offsets(0, 6)
            assert spans(reader) == [(SIZE, SIZE)]
            assert reader.damage[0].raw == data[SIZE : 2 * SIZE]
            assert "checksum" in reader.damage[0].reason
            assert reader.end_offset == 9


def test_any_changed_bit_of_a_length_costs_its_batch_only(subtests: pytest.Subtests) -> None:
    many = THREE + b"".join(batch(base) for base in range(9, 300, 3))
    for bit in range(32):
        with subtests.test(bit=bit):
            data = bytearray(many)
            data[SIZE + LENGTH_OFFSET + bit // 8] ^= 1 << bit % 8
            reader, found = read(bytes(data))
            assert found == offsets(0, *range(6, 300, 3))
            assert sum(length for _, length in spans(reader)) == SIZE
            assert reader.damage[0].position == SIZE


@pytest.mark.parametrize("magic", [0, 1, 3, 127, 255])
def test_a_changed_magic_costs_its_batch_only(magic: int) -> None:
    data = bytearray(THREE)
    data[SIZE + MAGIC_OFFSET] = magic
    reader, found = read(bytes(data))
    assert found == offsets(0, 6)
    assert spans(reader) == [(SIZE, SIZE)]


def test_any_changed_bit_of_a_base_offset_costs_at_most_its_batch(subtests: pytest.Subtests) -> None:
    # the checksum does not cover it: a small change upwards cannot be told from a gap that compaction left
    bases = range(1_000_000, 1_000_300, 3)
    whole = b"".join(batch(base) for base in bases)
    healthy = offsets(*(base for index, base in enumerate(bases) if index != 50))
    for bit in range(64):
        with subtests.test(bit=bit):
            data = bytearray(whole)
            data[50 * SIZE + 7 - bit // 8] ^= 1 << bit % 8
            reader = read_segment(bytes(data), source="x")
            found = [offset for columns in reader.batches() for offset in columns["record_offset"].to_pylist()]
            assert set(healthy) - set(found) == set()
            assert found == sorted(found)
            assert len(found) - len(healthy) == (0 if spans(reader) else 3)
            assert spans(reader) in ([], [(50 * SIZE, SIZE)])
            assert reader.end_offset == 1_000_300


def test_garbage_between_batches_is_skipped_in_one_piece() -> None:
    garbage = random.Random(1).randbytes(10_000)
    reader, found = read(batch(0) + garbage + batch(3) + batch(6))
    assert found == offsets(0, 3, 6)
    assert spans(reader) == [(SIZE, 10_000)]


def test_a_hole_of_zeros_is_damage_where_batches_follow() -> None:
    reader, found = read(batch(0) + bytes(3000) + batch(3))
    assert found == offsets(0, 3)
    assert spans(reader) == [(SIZE, 3000)]
    assert reader.torn_tail is None


def test_two_damaged_batches_in_a_row_are_two() -> None:
    data = bytearray(THREE + batch(9))
    data[2 * SIZE - 1] ^= 1
    data[3 * SIZE - 1] ^= 1
    reader, found = read(bytes(data))
    assert found == offsets(0, 9)
    assert spans(reader) == [(SIZE, SIZE), (2 * SIZE, SIZE)]


def test_a_whole_last_batch_with_a_bad_checksum_is_damage_and_no_torn_tail() -> None:
    data = bytearray(THREE)
    data[-1] ^= 1
    reader, found = read(bytes(data))
    assert found == offsets(0, 3)
    assert spans(reader) == [(2 * SIZE, SIZE)]
    assert reader.torn_tail is None
    assert reader.end_offset == 6


def test_incomplete_last_batch_after_damage_is_still_a_torn_tail() -> None:
    data = bytearray(THREE[:-5])
    data[2 * SIZE - 1] ^= 1
    reader, found = read(bytes(data))
    assert found == offsets(0)
    assert spans(reader) == [(SIZE, SIZE)]
    assert reader.torn_tail is not None
    assert reader.torn_tail.position == 2 * SIZE


def test_damage_keeps_one_mebibyte_at_most() -> None:
    data = bytearray(batch(0) + batch(3, 2, value=bytes(scan.MAX_DAMAGE_BYTES)) + batch(5, 1))
    data[SIZE + 1000] ^= 1
    reader, found = read(bytes(data))
    assert found == [0, 1, 2, 5]
    assert len(reader.damage[0].raw) == scan.MAX_DAMAGE_BYTES < reader.damage[0].length


def test_the_search_for_the_next_batch_crosses_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_WINDOW_BYTES", 7)
    data = bytearray(batch(0) + batch(3) + batch(6))
    data[SIZE + MAGIC_OFFSET] = 9
    reader, found = read(bytes(data))
    assert found == offsets(0, 6)
    assert spans(reader) == [(SIZE, SIZE)]


def test_repeated_offsets_are_damage() -> None:
    # R2
    reader, found = read(batch(0) + batch(3) + batch(3) + batch(6))
    assert found == offsets(0, 3, 6)
    assert spans(reader) == [(2 * SIZE, SIZE)]
    assert reader.damage[0].reason == "base offset 3 is not above the last offset before it, 5"


def test_a_batch_that_joins_the_one_before_it_is_right() -> None:
    reader, found = read(batch(0) + batch(3) + batch(4) + batch(7))
    assert found == offsets(0, 3, 7)
    assert spans(reader) == [(2 * SIZE, SIZE)]


def test_a_batch_that_leaves_a_gap_and_runs_into_the_next_is_wrong() -> None:
    reader, found = read(batch(0) + batch(4) + batch(6) + batch(9))
    assert found == offsets(0, 6, 9)
    assert spans(reader) == [(SIZE, SIZE)]


def test_second_copy_of_a_batch_is_damage() -> None:
    reader, found = read(batch(0) + batch(10) + batch(10) + batch(13))
    assert found == offsets(0, 10, 13)
    assert spans(reader) == [(2 * SIZE, SIZE)]


@pytest.mark.parametrize("late", [0, 1, 4, 8])
def test_offsets_that_go_back_at_the_end_are_damage(late: int) -> None:
    reader, found = read(batch(0) + batch(3) + batch(6) + batch(late))
    assert found == offsets(0, 3, 6)
    assert spans(reader) == [(3 * SIZE, SIZE)]
    assert reader.end_offset == 9


def test_of_two_batches_that_contradict_each_other_the_next_one_decides() -> None:
    reader, found = read(batch(0) + batch(100) + batch(3) + batch(6))
    assert found == offsets(0, 3, 6)
    assert spans(reader) == [(SIZE, SIZE)]
    assert "above those of later batches" in reader.damage[0].reason
    assert reader.end_offset == 9


def test_the_next_one_decides_among_gaps_too() -> None:
    reader, found = read(batch(0) + batch(100) + batch(10) + batch(20))
    assert found == offsets(0, 10, 20)
    assert spans(reader) == [(SIZE, SIZE)]


@pytest.mark.parametrize("base", [0, 2])
def test_an_older_batch_inside_a_torn_one_does_not_count(base: int) -> None:
    torn = batch(6, value=batch(base))[:-4]
    reader, found = read(batch(0) + batch(3) + torn)
    assert found == offsets(0, 3)
    assert reader.damage == []
    assert reader.torn_tail is not None
    assert reader.torn_tail.length == len(torn)


def test_a_first_batch_with_a_wrong_offset_is_found_out_too() -> None:
    reader, found = read(batch(1 << 40) + batch(3) + batch(6))
    assert found == offsets(3, 6)
    assert spans(reader) == [(0, SIZE)]
    assert (reader.base_offset, reader.end_offset) == (3, 9)


def test_an_offset_too_far_from_the_segments_start_is_damage() -> None:
    reader, found = read(batch(0) + batch(3) + batch(2**31))
    assert found == offsets(0, 3)
    assert ["too far" in damage.reason for damage in reader.damage] == [True]
    assert reader.end_offset == 6


@pytest.mark.parametrize("waste", [scan._WASTE_BYTES, -1], ids=["batch by batch", "checksums together"])
@pytest.mark.parametrize(
    ("bases", "kept", "reasons"),
    [
        ([0, 3, 2**31 - 3], [0, 3, 2**31 - 3], []),  # R2: 2^31 - 1 is the last one that indexes can store
        ([0, 3, 2**31 - 2], [0, 3], ["last offset 2147483648 is too far from offset 0 of the segment"]),
        # the fourth and the fifth batch decide between the second and the third
        ([0, 10, 2, 5, 8], [0, 5, 8], ["offsets 10 to 12 are above those of later batches", "base offset 2 is not ab"]),
        ([0, 10, 3, 5, 8], [0, 5, 8], ["offsets 10 to 12 are above those of later batches", "base offset 3 is not ab"]),
        ([0, 10, 3, 12], [0, 3, 12], ["offsets 10 to 12 are above those of later batches"]),
        ([0, 10, 3, 13], [0, 10, 13], ["base offset 3 is not above the last offset before it, 12"]),
        ([0, 4, 5, 8], [0, 5, 8], ["offsets 4 to 6 are above those of later batches"]),
        ([0, 4, 5, 9], [0, 4, 9], ["base offset 5 is not above the last offset before it, 6"]),
        ([0, 4, 6], [0, 4], ["base offset 6 is not above the last offset before it, 6"]),
        ([4, 5, 8], [5, 8], ["offsets 4 to 6 are above those of later batches"]),
    ],
)
def test_batches_that_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch, bases: list[int], kept: list[int], reasons: list[str], waste: int
) -> None:
    monkeypatch.setattr(scan, "_WASTE_BYTES", waste)
    monkeypatch.setattr(scan, "_WASTE_READS", 2 if waste > 0 else 0)
    reader, found = read(b"".join(map(batch, bases)))
    assert found == offsets(*kept)
    assert [each.reason[: len(reason)] for each, reason in zip(reader.damage, reasons, strict=True)] == reasons
    assert (reader.base_offset, reader.end_offset) == (kept[0], kept[-1] + 3)


def test_gaps_between_batches_are_normal() -> None:
    # R2
    reader, found = read(batch(5) + batch(100) + batch(2_000_000_000))
    assert found == offsets(5, 100, 2_000_000_000)
    assert reader.damage == []


NOT_SEGMENTS = {
    "text": b"this is a text file and not a segment of a log\n" * 20,
    "short text": b"hello",
    "parquet": b"PAR1\x15\x04\x15\x10\x15\x14\x4c\x15\x02\x15\x00\x12\x00\x00" + bytes(range(200)) + b"PAR1",
    "offset index": struct.pack(">ii", 35, 4160) + struct.pack(">ii", 77, 8200) * 20 + bytes(10_000),
    "time index": struct.pack(">qi", 1795202853251, 35) * 30 + bytes(5_000),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + random.Random(2).randbytes(500),
}


@pytest.mark.parametrize("name", NOT_SEGMENTS)
def test_file_without_a_batch_is_not_a_segment(name: str) -> None:
    reader = read_segment(NOT_SEGMENTS[name], source="/data/foo.bin")
    with pytest.raises(NotASegment, match=r"/data/foo\.bin: not a Kafka log segment: .*Give \.log files") as error:
        list(reader.batches())
    assert isinstance(error.value, OffsetsError)
    assert error.value.retriable is False


def test_garbage_before_the_first_batch_is_damage() -> None:
    reader, found = read(b"x" * 100 + batch(0))
    assert found == offsets(0)
    assert spans(reader) == [(0, 100)]


def test_a_single_damaged_batch_is_damage() -> None:
    data = bytearray(batch(0))
    data[-1] ^= 1
    reader, found = read(bytes(data))
    assert (found, reader.end_offset, spans(reader)) == ([], None, [(0, SIZE)])


@pytest.mark.parametrize(
    ("position", "byte", "is_segment"),
    [
        *((0, 0, True), (0, 1, False), (21, 0, True), (21, 1, False), (22, 0x7F, True), (22, 0x80, False)),
        *((23, 0x7F, True), (23, 0x80, False), (57, 0x7F, True), (57, 0x80, False)),
    ],
)
def test_a_file_with_a_damaged_batch_alone_is_a_segment_if_its_header_is_plausible(
    position: int, byte: int, is_segment: bool
) -> None:
    """Offsets are below 2^56; unused attribute bits are zero; last offset delta and record count are not negative."""
    data = bytearray(batch(0))
    data[-1] ^= 1
    data[position] = byte
    if is_segment:
        assert spans(read(bytes(data))[0]) == [(0, SIZE)]
    else:
        with pytest.raises(NotASegment, match=f"no record batch in its {SIZE} bytes; the first ones: checksum is "):
            read(bytes(data))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_batch_is_whole_from_its_least_to_its_greatest_size(magic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes by the formats: 61 bytes of header, or 26 and 34 of a message with a null key and a null value."""
    least = {0: 26, 1: 34, 2: 61}[magic]
    data = empty_batch(7) if magic == 2 else message(7, None, None, magic=magic)
    assert len(data) == least
    view = memoryview(data)
    assert examine(view, 0) == b.Batch(0, least, magic, 7, 7, int(magic < 2), None if magic == 2 else ANY)
    assert examine(view[: least - 1], 0) == b.Incomplete(f"batch of {least} bytes cut short: {least - 1} bytes")
    assert examine(view[:17], 0) == b.Incomplete(f"batch of {least} bytes cut short: 17 bytes")
    assert examine(view[:16], 0) == b.Incomplete("batch header cut short: 16 bytes")
    places = np.array([0])
    for size, found in ((least, [0]), (least - 1, [])):
        assert b.shaped(np.frombuffer(data, np.uint8)[:size], places).tolist() == found
    for length in (least - 13, -1):
        wrong = data[:8] + struct.pack(">i", length) + data[12:]
        reason = f"batch length {length} is below the minimum {least - 12}"
        assert examine(memoryview(wrong), 0) == b.NoBatch(reason)
        assert b.shaped(np.frombuffer(wrong, np.uint8), places).tolist() == []
    monkeypatch.setattr(b, "MAX_BATCH_BYTES", least - 1)
    assert examine(view, 0) == b.NoBatch(f"batch length {least - 12} is above the maximum {least - 1}")
    assert b.shaped(np.frombuffer(data, np.uint8), places).tolist() == []
    monkeypatch.setattr(b, "MAX_BATCH_BYTES", least)
    assert isinstance(examine(view, 0), b.Batch)
    assert b.shaped(np.frombuffer(data, np.uint8), places).tolist() == [0]


shapes = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(list(Codec))), min_size=3, max_size=60)


def segment(shape: list[tuple[int, Codec]]) -> tuple[list[bytes], list[list[int]]]:
    parts, held, base = [], [], 0
    for count, codec in shape:
        parts.append(batch(base, count, codec=codec))
        held.append(offsets(base, count=count))
        base += count
    return parts, held


@given(shape=shapes, keep=st.floats(0, 1), max_records=st.sampled_from([1, 4, 1000]))
def test_cutting_anywhere_leaves_the_whole_batches_before(
    shape: list[tuple[int, Codec]], keep: float, max_records: int
) -> None:
    parts, held = segment(shape)
    data = b"".join(parts)
    cut = int(len(data) * keep)
    reader, found = read(data[:cut], max_records)
    ends = np.cumsum([len(part) for part in parts])
    whole = int(np.searchsorted(ends, cut, side="right"))
    assert found == [offset for held_offsets in held[:whole] for offset in held_offsets]
    assert reader.damage == []
    start = int(ends[whole - 1]) if whole else 0
    if cut == start:
        assert reader.torn_tail is None
    else:
        assert reader.torn_tail is not None
        assert (reader.torn_tail.position, reader.torn_tail.length) == (start, cut - start)


@given(shape=shapes, where=st.data(), max_records=st.sampled_from([1, 4, 1000]))
def test_a_flipped_bit_costs_at_most_the_batch_it_hits(
    shape: list[tuple[int, Codec]], where: st.DataObject, max_records: int
) -> None:
    parts, held = segment(shape)
    data = bytearray(b"".join(parts))
    position = where.draw(st.integers(0, len(data) - 1))
    data[position] ^= 1 << where.draw(st.integers(0, 7))
    ends = np.cumsum([len(part) for part in parts])
    hit = int(np.searchsorted(ends, position, side="right"))
    reader = read_segment(bytes(data), source="flipped", max_records=max_records)
    found = [offset for columns in reader.batches() for offset in columns["record_offset"].to_pylist()]
    assert found == sorted(set(found))
    healthy = {offset for index, held_offsets in enumerate(held) if index != hit for offset in held_offsets}
    in_base_offset = position - int(ends[hit] - len(parts[hit])) < LENGTH_OFFSET
    if in_base_offset and hit == len(parts) - 2:
        healthy -= set(held[-1])  # nothing behind the last batch tells which of the two is wrong
    assert healthy <= set(found)
    if not in_base_offset:
        assert set(found) <= healthy | set(held[hit])
        # the leader epoch is the only thing that nothing guards; it is not read
        assert set(found) == healthy | set(held[hit]) or reader.damage or reader.torn_tail


@given(data=st.binary(max_size=400), prefix=st.booleans())
def test_any_bytes_are_read_or_refused_but_never_crash(data: bytes, prefix: bool) -> None:
    reader = read_segment((THREE if prefix else b"") + data, source="noise")
    try:
        found = [offset for columns in reader.batches() for offset in columns["record_offset"].to_pylist()]
    except NotASegment:
        assert not prefix
    else:
        assert found[:9] == (offsets(0, 3, 6) if prefix else found[:9])
