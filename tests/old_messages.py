"""Messages of formats 0 and 1, as brokers before 0.11 wrote them."""

from __future__ import annotations

import struct
import zlib

from offsets_pipeline.kafka.record.compression import Codec, compress

LOG_APPEND_TIME = 0x08


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 1000,
    crc: int | None = None,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += sized(key) + sized(value)
    body = struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(offset: int, inner: bytes, codec: Codec, *, magic: int = 1, flags: int = 0, timestamp: int = 9000) -> bytes:
    return message(offset, None, compress(codec, inner), magic=magic, attributes=codec | flags, timestamp=timestamp)


def mixed(offset: int, magic: int, **options: int) -> bytes:
    """A wrapper of one format around two messages of the other one and one of its own, as KAFKA-4298 left them."""
    offsets = (0, 3, 5) if magic else (offset - 5, offset - 2, offset)
    magics = (1 - magic, 1 - magic, magic)
    inner = (message(at, b"%d" % at, b"v", magic=each, timestamp=77) for at, each in zip(offsets, magics, strict=True))
    return wrapper(offset, b"".join(inner), Codec.GZIP, magic=magic, **options)
