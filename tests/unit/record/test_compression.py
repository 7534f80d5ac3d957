"""The codecs, also as other clients frame them."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.kafka.record.compression import Codec, compress, decompress, decompress_frames
from offsets_pipeline.kafka.record.corrupt import CorruptRecord

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@given(data=st.binary(max_size=5000), codec=st.sampled_from(COMPRESSED))
def test_what_is_compressed_is_decompressed(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_more_than_one_block_is_decompressed(codec: Codec) -> None:
    data = random.Random(3).randbytes(300_000)
    compressed = compress(codec, data)
    assert (compressed if codec is Codec.NONE else decompress(codec, compressed)) == data


def test_none_leaves_the_bytes_alone() -> None:
    assert compress(Codec.NONE, b"abc") == b"abc"


def test_snappy_is_framed_as_xerial_does() -> None:
    data = b"x" * 40_000
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(XERIAL_HEADER)
    first = struct.unpack_from(">i", framed, 16)[0]
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first])) == data[:32768]


def test_snappy_without_a_frame_is_one_block() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 50))) == b"abc" * 50


def test_snappy_streams_may_follow_one_another() -> None:
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"ab") + compress(Codec.SNAPPY, b"cd")) == b"abcd"


def test_gzip_members_may_follow_one_another() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd")) == b"abcd"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_frame_cut_short_is_corrupt(codec: Codec) -> None:
    compressed = compress(codec, random.Random(4).randbytes(1000))
    with pytest.raises(CorruptRecord, match=f"payload: does not decompress as {codec.name.lower()}"):
        decompress(codec, compressed[:-500])


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (b"\x00", "chunk length cut short at position 16"),
        (struct.pack(">i", -1), "chunk of -1 bytes at position 20, 0 are left"),
        (struct.pack(">i", 1000) + b"abc", "chunk of 1000 bytes at position 20, 3 are left"),
        (struct.pack(">i", 0), "snappy: "),  # of the library, as the next ones
        (struct.pack(">i", 3) + b"\xff\xff\xff", "snappy: "),
    ],
)
def test_a_bad_snappy_chunk_is_corrupt(chunk: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecord) as corrupt:
        decompress(Codec.SNAPPY, XERIAL_HEADER + chunk)
    assert str(corrupt.value).startswith(f"payload: does not decompress as snappy: {reason}")


def test_a_snappy_block_cannot_claim_more_than_its_bytes_can_hold() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(1_000_000)))) == bytes(1_000_000)
    for declared, size in ((b"\xff\xff\xff\xff\x0f", 2**32 - 1), (b"\xb1\x01", 177)):  # 22 bytes for each of 8
        with pytest.raises(CorruptRecord, match=f"block of 8 bytes declares {size} uncompressed bytes"):
            decompress(Codec.SNAPPY, declared.ljust(8, b"\x00"))
    with pytest.raises(CorruptRecord, match="does not decompress as snappy: snappy: "):
        decompress(Codec.SNAPPY, b"\xb0\x01".ljust(8, b"\x00"))


def test_blocks_of_an_lz4_frame_do_not_depend_on_each_other() -> None:
    """Kafka's client says "Dependent block stream is unsupported"; bit 5 of the flags says that they do not."""
    assert compress(Codec.LZ4, bytes(200_000))[4] & 0x20


def test_a_legacy_lz4_frame_may_tell_the_size_of_its_content() -> None:
    """The library refuses the frame unless the checksum of the header is right."""
    content = bytes(range(256)) * 3
    frame = compress(Codec.LZ4, content)
    flags, block_size = frame[4] | 0x08, frame[5]  # the flag "content size", and its 8 bytes
    sized = frame[:4] + bytes([flags, block_size]) + len(content).to_bytes(8, "little") + b"\0" + frame[7:]
    with pytest.raises(CorruptRecord):
        decompress(Codec.LZ4, sized)
    assert decompress(Codec.LZ4, sized, legacy_lz4=True) == content


@pytest.mark.parametrize("data", [b"", b"\x04\x22\x4d\x18", b"no frame at all"])
def test_bad_legacy_lz4_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="lz4"):
        decompress(Codec.LZ4, data, legacy_lz4=True)


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_other_codecs_are_corrupt(codec: int) -> None:
    with pytest.raises(CorruptRecord, match=f"unknown compression codec {codec}"):
        decompress(codec, b"")


def _without_size(data: bytes) -> bytes:
    """A frame without the uncompressed size in its header, as a stream writes it."""
    compressor = cramjam.zstd.Compressor()
    for start in range(0, len(data), 10):
        compressor.compress(data[start : start + 10])
    return bytes(compressor.finish())


@given(payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=30), sized=st.booleans())
def test_zstd_frames_are_decompressed_together(payloads: list[bytes], *, sized: bool) -> None:
    frames = [compress(Codec.ZSTD, each) if sized else _without_size(each) for each in payloads]
    assert decompress_frames([memoryview(each) for each in frames]) == payloads


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("sized", [True, False])
def test_zstd_frames_of_which_one_is_broken_are_none(at: int, sized: bool) -> None:
    payload = random.Random(5).randbytes(50) * 3
    frame = compress(Codec.ZSTD, payload) if sized else _without_size(payload)
    for broken in (b"no frame at all", b"\xff" + frame, *(frame[:length] for length in range(1, len(frame)))):
        frames = [frame] * 3
        frames[at] = broken
        assert decompress_frames(frames) is None
