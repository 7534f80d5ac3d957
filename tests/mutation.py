"""Mutated segments with right checksums, as a hostile or broken writer could write them (seeded)."""

from __future__ import annotations

import random
import resource
import struct
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record import wire
from offsets_pipeline.kafka.record.batch import BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD, MAGIC_2
from offsets_pipeline.kafka.record.columns import BATCH_HEADER
from offsets_pipeline.kafka.record.compression import Codec, compress, decompress
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from tests.logs import CAPTURES
from tests.record_batches import BatchOptions, encode_batch, read_varint, write_varint, write_varlong

if TYPE_CHECKING:
    from collections.abc import Iterator

LEGACY_HEADER = struct.Struct(">qiIbb")
OLD_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
SECONDS = 1.0  # of the processor, for one input of some kilobytes
PARTS = 6  # batches of one mutated segment, at most
MOST_BYTES = 60_000  # of a segment that is mutated
EXTREMES = (0, 1, -1, -2, 127, 128, 2**15 - 1, 2**15, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**53)
FIELDS = {
    # of a batch's header: which of its integers, and how wide it is; length, magic and checksum aside
    "base_offset": (0, 8),
    "partition_leader_epoch": (12, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "record_count": (57, 4),
}


def seeds() -> list[list[bytes]]:
    """Segments as lists of batches: brokers' own, and the same records in every format and with every codec."""
    found = []
    for path in sorted(CAPTURES.glob("*/segments/__consumer_offsets-*/*.log")):
        parts = list(split(path.read_bytes()))
        found += [parts[start : start + PARTS] for start in range(0, len(parts), PARTS)]
    few = [parts for parts in found if sum(map(len, parts)) < MOST_BYTES]
    return few + [list(parts) for parts in generated(few)]


def split(data: bytes) -> Iterator[bytes]:
    """The batches or messages of a whole segment."""
    position = 0
    while position < len(data):
        size = LOG_OVERHEAD + struct.unpack_from(">i", data, position + 8)[0]
        yield data[position : position + size]
        position += size


def generated(captured: list[list[bytes]]) -> Iterator[list[bytes]]:
    """Some captured batches with every codec, and as messages of formats 0 and 1, plain and wrapped."""
    plain = [part for parts in captured for part in parts if part[16] == MAGIC_2 and not part[22] & 0x27]
    for start, codec in zip(range(0, len(plain), 40), list(Codec) * 8, strict=False):
        yield [_recoded(part, codec) for part in plain[start : start + 3]]
    for magic in (0, 1):
        for old_codec in (None, *OLD_CODECS):
            inner = [
                message(
                    at, b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\1" + bytes(10) + struct.pack(">qq", 1000, 2000), magic=magic
                )
                for at in range(3)
            ]
            yield (
                inner
                if old_codec is None
                else [message(2, None, compress(old_codec, b"".join(inner)), magic=magic, attributes=old_codec)]
            )
    keys = pa.array([b"\0\1\0\1g\0\1t" + struct.pack(">i", at) for at in range(60)], pa.binary())
    for codec in Codec:
        yield [
            encode_batch(
                keys[at : at + 1],
                pa.array([b"\0\3" + struct.pack(">qihq", at, 0, 0, 1000)], pa.binary()),
                base_offset=at,
                timestamps=np.array([1_700_000_000_000 + at]),
                options=BatchOptions(codec=codec, producer_id=at % 3, is_transactional=at % 2 == 0),
            )
            for at in range(60)  # enough for records to be read in lock step
        ]


def message(offset: int, key: bytes | None, value: bytes | None, *, magic: int, attributes: int = 0) -> bytes:
    """A message of format 0 or 1."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 1000) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return repaired(struct.pack(">qiI", offset, 0, 0) + body)


def _recoded(part: bytes, codec: Codec) -> bytes:
    header = bytearray(part[:BATCH_HEADER_BYTES])
    header[22] |= codec
    return repaired(bytes(header) + compress(codec, part[BATCH_HEADER_BYTES:]))


def repaired(part: bytes) -> bytes:
    """The batch or message with its right length and checksum."""
    data = bytearray(part)
    struct.pack_into(">i", data, 8, len(data) - LOG_OVERHEAD)
    if len(data) > CRC_START and data[16] == MAGIC_2:
        struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[CRC_START:])))
    elif len(data) >= LEGACY_HEADER.size:
        struct.pack_into(">I", data, 12, zlib.crc32(bytes(data[16:])))
    return bytes(data)


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@contextmanager
def soon(what: str) -> Iterator[list[float]]:
    """Measure the time of the block; fails with the input's name on an exception or after too long."""
    took: list[float] = []
    began = time.process_time()
    try:
        yield took
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    took.append(time.process_time() - began)
    assert took[0] < SECONDS, f"{what} took {took[0]:.1f} s"


def changed_bytes(data: bytes, choose: random.Random) -> bytes:
    """Flipped, set, cut out, doubled or inserted bytes."""
    changed = bytearray(data)
    if not changed:
        return choose.randbytes(choose.randrange(4))
    at = choose.randrange(len(changed))
    size = choose.choice((1, 1, 2, 4, 8, 30))
    what = choose.randrange(6)
    if what == 0:
        changed[at] ^= 1 << choose.randrange(8)
    elif what == 1:
        changed[at : at + size] = choose.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * len(changed[at : at + size])
    elif what == 2:
        del changed[at : at + size]
    elif what == 3:
        changed[at:at] = changed[at : at + size]
    elif what == 4:
        changed[at:at] = choose.randbytes(size)
    else:
        changed[at : at + size] = choose.randbytes(len(changed[at : at + size]))
    return bytes(changed)


class Mutator:
    """Makes segments out of others, the same ones for the same seed."""

    def __init__(self, seed: int, segments: list[list[bytes]]) -> None:
        self._random = random.Random(seed)
        self._segments = segments
        self.changes = 0

    def segment(self) -> bytes:
        """A segment with one to three changes; checksums are right but for one in eight."""
        choose = self._random
        parts = list(choose.choice(self._segments))
        for _ in range(choose.randint(1, 3)):
            self.changes += 1
            at = choose.randrange(len(parts))
            part = self._batch(parts[at]) if parts[at][16] == MAGIC_2 else self._message(parts[at])
            parts[at] = part
        data = b"".join(parts)
        return data if choose.random() < 7 / 8 else changed_bytes(data, self._random)

    def _batch(self, part: bytes) -> bytes:
        choose = self._random
        if len(part) < BATCH_HEADER_BYTES:
            return repaired(changed_bytes(part, self._random))
        header, payload = bytearray(part[:BATCH_HEADER_BYTES]), part[BATCH_HEADER_BYTES:]
        codec = header[22] & 7
        what = choose.random()
        if what < 0.3:
            self._field(header)
        elif what < 0.4 and codec:
            payload = changed_bytes(payload, self._random)  # the compressed bytes themselves
        elif what < 0.5:
            payload = self._bomb(codec)
        else:
            payload = self._payload(payload, codec)
        return repaired(bytes(header) + payload)

    def _field(self, header: bytearray) -> None:
        at, width = FIELDS[self._random.choice(list(FIELDS))]
        value = self._random.choice((*EXTREMES, self._random.getrandbits(64)))
        header[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")

    def _payload(self, payload: bytes, codec: int) -> bytes:
        try:
            records = decompress(codec, payload) if codec else payload
        except CorruptRecord:
            return changed_bytes(payload, self._random)
        whole = len(records) < MOST_BYTES and self._random.random() < 0.5
        changed = self._record(records) if whole else changed_bytes(records, self._random)
        return compress(Codec(codec), changed) if codec else changed

    def _bomb(self, codec: int) -> bytes:
        """Bytes that compress well: zeros, sometimes more than a batch may have."""
        size = self._random.choice((1000, 1_000_000, 1_000_000, 20_000_000)) if self._random.random() < 0.1 else 5000
        return compress(Codec(codec), bytes(size)) if 0 < codec < 5 else bytes(min(size, 5000))

    def _record(self, records: bytes) -> bytes:
        """Rebuild a record around a changed key, value or delta, with right lengths."""
        reader = wire.Reader(records)
        starts = []
        try:
            while reader.position < reader.end:
                starts.append(reader.position)
                reader.raw(read_varint(reader), "record")
        except CorruptRecord:
            return changed_bytes(records, self._random)
        if not starts:
            return changed_bytes(records, self._random)
        index = self._random.randrange(len(starts))
        start, end = starts[index], (*starts[1:], len(records))[index]
        reader = wire.Reader(records[start:end])
        try:
            read_varint(reader)
            attributes = reader.raw(1, "attributes")
            timestamp, offset = read_varint(reader), read_varint(reader)
            key, value = (self._sized(reader) for _ in range(2))
        except CorruptRecord:
            return changed_bytes(records, self._random)
        what = self._random.randrange(5)
        if what == 0:
            timestamp = self._random.choice(EXTREMES)
        elif what == 1:
            offset = self._random.choice(EXTREMES) % 2**31
        elif what == 2:
            key = self._content(key)
        else:
            value = self._content(value)
        body = bytearray(attributes)
        write_varlong(body, max(min(timestamp, 2**63 - 1), -(2**63)))
        write_varint(body, offset)
        for content in (key, value):
            write_varint(body, -1 if content is None else len(content))
            body += content or b""
        write_varint(body, 0)
        record = bytearray()
        write_varint(record, len(body))
        return records[:start] + bytes(record + body) + records[end:]

    @staticmethod
    def _sized(reader: wire.Reader) -> bytes | None:
        size = read_varint(reader)
        return None if size < 0 else reader.raw(size, "bytes")

    def _content(self, content: bytes | None) -> bytes | None:
        choose = self._random
        if content is None or choose.random() < 0.05:
            return choose.choice((None, b"", b"\0", choose.randbytes(choose.randrange(40))))
        if choose.random() < 0.05:  # many elements of hardly any bytes
            return content[: choose.randrange(len(content) + 1)] + choose.choice((b"\1", b"\0", b"\1\0")) * 2000
        data = bytearray(changed_bytes(content, self._random))
        if len(data) > 2 and choose.random() < 0.3:
            data[1] = choose.randrange(24)  # a record type, or a version
        if len(data) > 8 and choose.random() < 0.4:  # an integer within
            width = choose.choice((2, 4, 8))
            at = choose.randrange(len(data) - width + 1)
            value = choose.choice(EXTREMES) % (1 << 8 * width)
            data[at : at + width] = value.to_bytes(width, "big")
        return bytes(data)

    def _message(self, part: bytes) -> bytes:
        """A message of format 0 or 1, or those that it wraps."""
        choose = self._random
        if len(part) < LEGACY_HEADER.size:  # an earlier change cut it
            return repaired(changed_bytes(part, choose))
        codec = part[17] & 7
        start = LEGACY_HEADER.size + (8 if part[16] == 1 else 0) + 8  # behind a null key and the value's length
        if codec and choose.random() < 0.7:
            try:
                inner = list(split(decompress(codec, part[start:])))
            except (CorruptRecord, struct.error, IndexError):
                return repaired(changed_bytes(part, self._random))
            if inner:
                at = choose.randrange(len(inner))
                inner[at] = self._message(inner[at])
            value = compress(Codec(codec), b"".join(inner)) if choose.random() < 0.95 else self._bomb(codec)
            return repaired(part[: start - 4] + struct.pack(">i", len(value)) + value)
        data = bytearray(part)
        what = choose.random()
        if what < 0.3:  # the offset, or the timestamp
            at = 0 if choose.random() < 0.5 or part[16] != 1 else LEGACY_HEADER.size
            if at + 8 <= len(data):
                struct.pack_into(">Q", data, at, choose.choice(EXTREMES) % 2**64)
        elif what < 0.4 and len(data) > 17:
            data[16:18] = bytes((choose.randrange(3), choose.randrange(256)))
        else:
            data[16:] = changed_bytes(bytes(data[16:]), self._random)
        return repaired(bytes(data))


assert BATCH_HEADER.itemsize == BATCH_HEADER_BYTES  # what FIELDS counts on
