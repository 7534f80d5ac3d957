"""The five codecs of Kafka's log, as its Java client frames them."""

import secrets
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum

import cramjam

from offsets_pipeline.record.corrupt import CorruptRecord

CODEC_MASK = 0x07  # attributes bits 0-2


class Codec(IntEnum):
    """Attribute bits 0-2 of a batch or message."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_WBITS = 31  # zlib's way of asking for a gzip frame; for small batches it is four times as fast as cramjam
_INT32 = struct.Struct(">i")

_MARK_BYTES = 16

# xerial snappy:    "\x82SNAPPY\0", int32 version, int32 compatible version, then chunks of int32 length, snappy block
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 * 1024
_SNAPPY_MAX_RATIO = 22  # a copy of 64 bytes takes 3

# lz4 frame:        magic, FLG, BD, [int64 content size], HC, blocks; HC = second byte of xxh32 over FLG up to HC
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_FLAG = 0x08
_LZ4_DESCRIPTOR_BYTES = 2
_LZ4_CONTENT_SIZE_BYTES = 8
_MASK_32 = 0xFFFF_FFFF
_XXH_PRIME_2, _XXH_PRIME_3, _XXH_PRIME_5 = 0x85EB_CA77, 0xC2B2_AE3D, 0x1656_67B1
_XXH_PRIME_1, _XXH_PRIME_4 = 0x9E37_79B1, 0x27D4_EB2F


def decompress(codec: int, data: bytes, *, legacy_lz4: bool = False) -> bytes:
    """The bytes of a compressed payload.

    `legacy_lz4`: message format 0, whose lz4 frames carry a wrong header checksum (Kafka computed it over the magic
    too); it is ignored there, as brokers do. Raises CorruptRecord.
    """
    try:
        if codec == Codec.GZIP:
            return _decompress_gzip(data)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data)
        if codec == Codec.LZ4:
            return bytes(cramjam.lz4.decompress(_with_lz4_header_checksum(data) if legacy_lz4 else data))
        if codec == Codec.ZSTD:
            return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise CorruptRecord("payload", f"does not decompress as {Codec(codec).name.lower()}: {error}") from error
    raise CorruptRecord("payload", f"unknown compression codec {codec}")


def decompress_frames(frames: Sequence[bytes | memoryview]) -> list[bytes] | None:
    """The bytes of zstd payloads, many in one call; None where one of them does not decompress.

    For small payloads that is some ten times as fast: a decoder takes longer to set up than to run. Frames may follow
    one another in zstd, but then nothing tells where one ends: a frame of random bytes between them does.
    """
    mark = secrets.token_bytes(_MARK_BYTES)
    framed_mark = bytes(cramjam.zstd.compress(mark))
    try:
        parts = bytes(cramjam.zstd.decompress(framed_mark.join(frames))).split(mark)
    except cramjam.DecompressionError:
        return None
    return parts if len(parts) == len(frames) else None  # one that is cut short swallows the mark behind it


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress a payload as Kafka's Java client frames it."""
    return data if codec is Codec.NONE else _COMPRESS[codec](data)


def _decompress_gzip(data: bytes) -> bytes:
    parts = []
    while data:  # members may follow one another
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        parts.append(member.decompress(data))
        if not member.eof:
            raise ValueError("cut short")
        data = member.unused_data
    return b"".join(parts)


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data)
    parts = []
    position = 0
    while position < len(data):
        if data.startswith(_XERIAL_MAGIC, position):  # streams may follow one another
            position += len(_XERIAL_HEADER)
            continue
        if position + _INT32.size > len(data):
            raise ValueError(f"chunk length cut short at position {position}")
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 <= size <= len(data) - position:
            raise ValueError(f"chunk of {size} bytes at position {position}, {len(data) - position} are left")
        parts.append(_decompress_snappy_block(data[position : position + size]))
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: bytes) -> bytes:
    # the block says how long it gets, and that much is reserved at once: a mad length would end the process
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_MAX_RATIO:
        raise ValueError(f"block of {len(block)} bytes that claims to become {size}")
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_snappy(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_CHUNK_BYTES]))
        out += _INT32.pack(len(block)) + block
    return bytes(out)


def _with_lz4_header_checksum(data: bytes) -> bytes:
    size = _LZ4_DESCRIPTOR_BYTES
    start = len(_LZ4_MAGIC)
    if not data.startswith(_LZ4_MAGIC) or len(data) < start + size:
        raise ValueError("no lz4 frame")
    if data[start] & _LZ4_CONTENT_SIZE_FLAG:
        size += _LZ4_CONTENT_SIZE_BYTES
    end = start + size
    checksum = _xxh32_short(data[start:end]) >> 8 & 0xFF
    return data[:end] + bytes([checksum]) + data[end + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxh32 with seed 0 of fewer than 16 bytes: all that an lz4 frame header needs."""
    value = _XXH_PRIME_5 + len(data)
    position = 0
    while position + 4 <= len(data):
        value = value + int.from_bytes(data[position : position + 4], "little") * _XXH_PRIME_3 & _MASK_32
        value = (value << 17 | value >> 15) * _XXH_PRIME_4 & _MASK_32
        position += 4
    for byte in data[position:]:
        value = value + byte * _XXH_PRIME_5 & _MASK_32
        value = (value << 11 | value >> 21) * _XXH_PRIME_1 & _MASK_32
    value = (value ^ value >> 15) * _XXH_PRIME_2 & _MASK_32
    value = (value ^ value >> 13) * _XXH_PRIME_3 & _MASK_32
    return value ^ value >> 16


_COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: lambda data: zlib.compress(data, wbits=_GZIP_WBITS),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}
