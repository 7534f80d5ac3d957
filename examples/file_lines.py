r"""Lines of a file and their positions, as Kafka Connect's FileStreamSource reads and counts them.

A line ends with \n, \r or \r\n; an incomplete last line waits. The position after a line is the number of UTF-16 code
units before it, terminators included: Java's characters. In a file of ASCII these are bytes. Malformed UTF-8 is
replaced, and counts as U+FFFD. FileStreamSource resumes at that number of bytes; readers here resume at the same
character, also in a file that is not ASCII.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import OffsetsError, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 4 * 1024 * 1024
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[\x00-\xff]))", re.DOTALL)  # \r at the end: \n may follow


class SourceFileTruncated(OffsetsError):
    """A source file is shorter than the position up to which it was read."""


class Mark(NamedTuple):
    """A place in a file: its position as Connect counts it, and its byte offset."""

    position: int = 0
    byte: int = 0


class Line(NamedTuple):
    """A line without its terminator, and the position after it."""

    text: str
    position: int


class Chunk(NamedTuple):
    """Complete lines as they are in the file, from ``start`` to ``end``."""

    raw: bytes
    start: Mark
    end: Mark

    def line_count(self) -> int:
        """The number of lines."""
        if b"\r" not in self.raw:
            return self.raw.count(b"\n")
        return sum(1 for _ in _raw_lines(self.raw))


def chunks(file: str, start: Mark = Mark(), end_byte: int | None = None) -> Iterator[Chunk]:  # noqa: B008 - a tuple
    """The complete lines from a place on, some MiB at a time; ``end_byte`` is the end of a line.

    Yields nothing if there is no such file. Raises SourceFileTruncated if the file ends before ``start`` or
    ``end_byte``, StorageFailed if it cannot be read.
    """
    try:
        with open(file, "rb") as source:  # noqa: PTH123 - a name as Connect has it
            size = source.seek(0, 2)
            if size < max(start.byte, end_byte or 0):
                raise truncated(file, start.position, size)
            source.seek(start.byte)
            left, wanted = b"", _CHUNK_BYTES
            while True:
                most = wanted if end_byte is None else min(wanted, end_byte - start.byte - len(left))
                more = source.read(most)
                raw = left + more
                until = _end_of_lines(raw)
                if end_byte is not None and start.byte + len(raw) == end_byte:
                    until = len(raw)  # a \r there is a whole terminator
                if until:
                    end = Mark(start.position + _units(raw[:until]), start.byte + until)
                    yield Chunk(raw[:until], start, end)
                    start = end
                if not more:
                    return
                left = raw[until:]
                wanted = _CHUNK_BYTES if until else 2 * wanted  # a long line is not searched again and again
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageFailed(
            f"cannot read the source file {file}: {first_line(error)}; check its permissions"
        ) from error


def lines(chunk: Chunk) -> Iterator[Line]:
    """The lines of a chunk."""
    position = chunk.start.position
    for raw in _raw_lines(chunk.raw):
        position += _units(raw)
        yield Line(raw.rstrip(b"\r\n").decode("utf-8", "replace"), position)


def mark_of(file: str, position: int) -> Mark | None:
    """The place of a position; None if there is no such file. Reads the file up to there.

    Raises SourceFileTruncated if the file ends before the position, StorageFailed.
    """
    at = Mark()
    for chunk in chunks(file):
        if chunk.end.position >= position:
            return _within(chunk.raw, chunk.start, position)
        at = chunk.end
    try:
        with open(file, "rb") as source:  # noqa: PTH123
            source.seek(at.byte)
            rest = source.read()
    except FileNotFoundError:
        return None
    found = _within(rest, at, position)  # in the incomplete line
    if found.position < position:
        raise truncated(file, position, found.byte)
    return found


def after_lines(chunk: Chunk, count: int, end_byte: int) -> tuple[Mark, int]:
    """The place after the first ``count`` lines of a chunk that end up to a byte, and how many these are."""
    (position, byte), found = chunk.start, 0
    for raw in _raw_lines(chunk.raw):
        if found == count or byte + len(raw) > end_byte:
            break
        position, byte, found = position + _units(raw), byte + len(raw), found + 1
    return Mark(position, byte), found


def truncated(file: str, position: int, size: int) -> SourceFileTruncated:
    """The error about a file that is shorter than the part of it that was read."""
    return SourceFileTruncated(
        f"cannot read {file} on from position {position}: it was truncated to {size} bytes; put the file back, or "
        "reset its offset"
    )


def _end_of_lines(raw: bytes) -> int:
    """Return the end of the last complete line."""
    last = max(raw.rfind(b"\n"), raw.rfind(b"\r", 0, max(len(raw) - 1, 0)))
    return last + 1


def _raw_lines(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        found = _LINE.match(raw, at)
        end = len(raw) if found is None else found.end()  # the last terminator of a chunk may be \r
        yield raw[at:end]
        at = end


def _units(raw: bytes) -> int:
    """UTF-16 code units of these bytes, decoded as Java decodes UTF-8."""
    if raw.isascii():
        return len(raw)
    text = raw.decode("utf-8", "replace")
    return len(text) + sum(character > "\uffff" for character in text)


def _within(raw: bytes, start: Mark, position: int) -> Mark:
    """The last place up to a position in bytes that begin at ``start``."""
    low, high = 0, len(raw)  # the units of a prefix grow with it
    while low < high:
        middle = (low + high + 1) // 2
        if start.position + _units(raw[:middle]) <= position:
            low = middle
        else:
            high = middle - 1
    return Mark(start.position + _units(raw[:low]), start.byte + low)
