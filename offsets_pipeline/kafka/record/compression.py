"""The five codecs of Kafka's log, as its Java client frames them.

A few bytes can claim to decompress to gigabytes. So decompression stops at a limit. It reserves memory by the size of
the payload, and more only when the output needs it.
"""

import secrets
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import ModuleType

import cramjam
import numpy as np

from offsets_pipeline.kafka.record.corrupt import CorruptRecord

CODEC_MASK = 0x07  # attributes bits 0-2


class Codec(IntEnum):
    """Attribute bits 0-2 of a batch or message."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


#: Maximum size of a batch in bytes, also decompressed. Real batches are far smaller. By default brokers cap a
#: compressed batch at 1 MiB (`message.max.bytes`), and a whole segment of the offsets topic at 100 MiB.
MAX_BATCH_BYTES = 128 * 1024 * 1024  # R6

_GZIP_WBITS = 31  # selects a gzip frame; for small batches zlib is four times as fast as cramjam
_INT32 = struct.Struct(">i")

_MARK_BYTES = 16
_LEAST_ROOM_BYTES = 4096
_USUAL_RATIO = 8  # enough for most payloads; the buffer grows for the others
_FULL = "failed to write whole buffer"  # cramjam's error for a full buffer

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


def decompress(codec: int, data: bytes, *, limit: int = MAX_BATCH_BYTES, legacy_lz4: bool = False) -> bytes:
    """Decompress a payload.

    `legacy_lz4`: the payload is of message format 0. Its lz4 frames have a wrong header checksum, because Kafka
    included the magic. The checksum is ignored there, as brokers do.

    Raises CorruptRecord, also if the output exceeds ``limit`` bytes.
    """
    try:
        if codec == Codec.GZIP:
            return _decompress_gzip(data, limit)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        if codec == Codec.LZ4:
            return _decompress_into(cramjam.lz4, _with_lz4_header_checksum(data) if legacy_lz4 else data, limit)
        if codec == Codec.ZSTD:
            return _decompress_into(cramjam.zstd, data, limit)
    except _TooLargeError as error:
        raise CorruptRecord(
            "payload", f"{len(data)} bytes of {Codec(codec).name.lower()} decompress to more than {limit}"
        ) from error
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise CorruptRecord("payload", f"does not decompress as {Codec(codec).name.lower()}: {error}") from error
    raise CorruptRecord("payload", f"unknown compression codec {codec}")


def decompress_frames(frames: Sequence[bytes | memoryview], limit: int = MAX_BATCH_BYTES) -> list[bytes] | None:
    """Decompress many zstd payloads in one call. Returns None if one is broken, or all together exceed ``limit`` bytes.

    This is faster for small payloads: a decoder takes longer to set up than to run. zstd frames may follow one another,
    but the output does not show where one ends. So a frame of random bytes separates them.
    """
    mark = secrets.token_bytes(_MARK_BYTES)
    framed_mark = bytes(cramjam.zstd.compress(mark))
    try:
        joined = _decompress_into(cramjam.zstd, framed_mark.join(frames), limit + len(frames) * _MARK_BYTES)
    except (cramjam.DecompressionError, _TooLargeError):
        return None
    parts = joined.split(mark)
    return parts if len(parts) == len(frames) else None  # a truncated frame swallows the mark after it


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress a payload as Kafka's Java client frames it."""
    return data if codec is Codec.NONE else _COMPRESS[codec](data)


class _TooLargeError(Exception):
    """A payload decompresses to more bytes than the limit."""


def _decompress_into(codec: ModuleType, data: bytes, limit: int) -> bytes:
    """Decompress with a module of cramjam. Raises _TooLargeError if the output exceeds the limit."""
    room = min(limit, max(_LEAST_ROOM_BYTES, _USUAL_RATIO * len(data)))
    while True:
        out = np.empty(room, dtype=np.uint8)
        try:
            return out[: codec.decompress_into(data, out)].tobytes()
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise
            if room == limit:
                raise _TooLargeError from error
        room = min(limit, room * _USUAL_RATIO)


def _decompress_gzip(data: bytes, limit: int) -> bytes:
    member = zlib.decompressobj(wbits=_GZIP_WBITS)
    first = member.decompress(data, limit + 1)
    if len(first) > limit:
        raise _TooLargeError
    if not member.eof:
        raise ValueError("cut short")
    # gzip members may follow one another; zlib would copy the rest of the data for each
    return (
        first + _decompress_into(cramjam.gzip, member.unused_data, limit - len(first)) if member.unused_data else first
    )


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data, limit)
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
        parts.append(_decompress_snappy_block(data[position : position + size], limit))
        limit -= len(parts[-1])
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: bytes, limit: int) -> bytes:
    # cramjam reserves the claimed length at once: an absurd one would exhaust memory and end the process
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_MAX_RATIO:
        raise ValueError(f"block of {len(block)} bytes declares {size} uncompressed bytes")
    if size > limit:
        raise _TooLargeError
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_snappy(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_CHUNK_BYTES]))
        out += _INT32.pack(len(block)) + block
    return bytes(out)


def _compress_lz4(data: bytes) -> bytes:
    frame = cramjam.lz4.Compressor(block_linked=False)  # Kafka's client refuses blocks that depend on earlier ones
    frame.compress(data)
    return bytes(frame.finish())


def _with_lz4_header_checksum(data: bytes) -> bytes:
    size = _LZ4_DESCRIPTOR_BYTES
    start = len(_LZ4_MAGIC)
    if not data.startswith(_LZ4_MAGIC) or len(data) < start + size:
        raise ValueError("not an lz4 frame")
    if data[start] & _LZ4_CONTENT_SIZE_FLAG:
        size += _LZ4_CONTENT_SIZE_BYTES
    end = start + size
    checksum = _xxh32_short(data[start:end]) >> 8 & 0xFF
    return data[:end] + bytes([checksum]) + data[end + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxh32 with seed 0 of fewer than 16 bytes, which is enough for an lz4 frame header."""
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
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}
