"""Scan a segment batch by batch, and find the next batch after damage.

Checksums do not cover a batch's offset and length. So the scanner checks them against the neighbours: offsets increase
(R2), and offsets in one segment span at most an int32. When two neighbours contradict each other, the batch after them
decides which one is wrong. So the scanner yields a batch only after it has checked the next one.

Damaged bytes may look like the headers of many batches with great lengths. The scanner computes their checksums one
by one until this has cost as much as reading the file a few times. Then it computes them together, window by window
(checksums.py). So damage of any kind slows a scan only by a limited factor.
"""

import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import crc32c
import numpy as np

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.batch import (
    MAX_OFFSET,
    Batch,
    Broken,
    Incomplete,
    LegacyRecord,
    NoBatch,
    examine,
    shaped,
)
from offsets_pipeline.kafka.record.checksums import StretchChecksums
from offsets_pipeline.kafka.record.compression import MAX_BATCH_BYTES
from offsets_pipeline.kafka.record.corrupt import NotASegment

MAX_DAMAGE_BYTES = 1024 * 1024
_MAX_OFFSET_SPAN = 2**31 - 1  # the indexes of a segment store offsets relative to its base as int32
_MAX_RUN_BYTES = 256 * 1024 * 1024
_WINDOW_BYTES = 1024 * 1024
# compute checksums together once those in vain covered 16 MiB plus twice the size of the file
_WASTE_BYTES, _WASTE_READS = 16 * 1024 * 1024, 2


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the segment that could not be read; `raw` holds at most their first 1 MiB, of a torn tail none."""

    position: int
    length: int
    reason: str
    raw: bytes


@dataclass(slots=True)
class Run:
    """Consecutive batches of one kind: positions of format-2 batches, or positions and records of formats 0 and 1."""

    positions: list[int] = field(default_factory=list)
    messages: list[list[LegacyRecord]] = field(default_factory=list)
    records: int = 0
    start: int = 0
    message_bytes: int = 0


class Scanner:
    """One scan of a segment: `runs()` yields the whole batches; `damage` and `torn_tail` list the other bytes.

    `first_offset` and `last_offset` cover the batches accepted so far. `good_at` is the position of a batch whose
    checksum is known to be good.
    """

    def __init__(self, data: memoryview, source: str, good_at: int | None = None) -> None:
        self.damage: list[Damage] = []
        self.torn_tail: Damage | None = None  # incomplete bytes at the end, left by an unfinished write
        self.first_offset: int | None = None
        self._data = data
        self._source = source
        self._good_at = good_at
        self._run = Run()
        self._latest: Batch | None = None  # accepted, but the next batch may still show that its offset is wrong
        self._confirmed_offset: int | None = None  # last offset of the batch before the latest
        self._next_batch: int | None = None  # position that the last search after damage found
        self._nothing_from: int | None = None  # no batch starts at this position or later
        self._waste = 0  # bytes of checksums computed in vain
        self._likely: tuple[int, list[int]] = (-1, [])  # a window, and the positions in it where batches may start
        self._good: dict[int, list[int]] = {}  # by window: positions of batches with good checksums

    @property
    def last_offset(self) -> int | None:
        """Last offset of the last batch."""
        return self._latest.last_offset if self._latest else self._confirmed_offset

    def runs(self, max_records: int) -> Iterator[Run]:
        """Yield runs of about `max_records` records. Raises NotASegment."""
        position = 0
        while position < len(self._data):
            position, full = self._walk(position, max_records)
            if full:
                yield self._take_run(position)
                continue
            if position == len(self._data):
                break
            verdict = self._examine(position)
            if not isinstance(verdict, Batch):
                position = self._pass_damage(position, verdict)
            elif (misfit := self._misfit(verdict)) is not None:
                self._add_damage(position, verdict.end, misfit)
                position = verdict.end
            else:
                if self._changes_run(verdict, max_records):
                    yield self._take_run(position)
                self._accept(verdict)
                position = verdict.end
        yield self._run

    def _walk(self, position: int, max_records: int) -> tuple[int, bool]:
        """Accept format-2 batches up to the first problem. Returns the next position, and whether the run is full.

        This is the hot loop. It repeats the checks of `examine` and `_accept` without creating an object per batch.
        """
        data, run, good_at = self._data, self._run, self._good_at
        if run.messages or self._is_wasteful:
            return position, False
        unpack, crc, end_of_data = b.WALK_HEADER.unpack_from, crc32c.crc32c, len(data)
        latest = self._latest
        last = latest.last_offset if latest else self._confirmed_offset
        first = self.first_offset
        if last is None or first is None:
            return position, False
        confirmed, limit = self._confirmed_offset, min(first + _MAX_OFFSET_SPAN, MAX_OFFSET)
        longest = MAX_BATCH_BYTES - b.LOG_OVERHEAD
        positions, records = run.positions, run.records
        start = position
        full = False
        while position + b.BATCH_HEADER_BYTES <= end_of_data:
            base, length, magic, checksum, _, delta, count = unpack(data, position)
            end = position + b.LOG_OVERHEAD + length
            if (
                magic != b.MAGIC_2
                or length < b.BATCH_MIN_LENGTH
                or end > end_of_data
                or base <= last
                or length > longest
                or base + delta > limit
                or delta < 0
                or count < 0
                or (position != good_at and crc(data[position + b.CRC_START : end]) != checksum)
            ):
                break
            if records >= max_records or position - run.start > _MAX_RUN_BYTES:
                full = True
                break
            positions.append(position)
            records += count
            confirmed, last = last, base + delta
            start, position = position, end
        run.records = records
        if positions and position != start:
            base, _, magic, _, _, delta, count = unpack(data, start)
            self._latest = Batch(start, position, magic, base, base + delta, count, None)
            self._confirmed_offset = confirmed
        return position, full

    def _accept(self, found: Batch) -> None:
        self._confirmed_offset = self.last_offset
        self._latest = found
        if self.first_offset is None:
            self.first_offset = found.base_offset
        self._run.records += found.record_count
        self._run.positions.append(found.position)
        if found.records is not None:
            self._run.messages.append(found.records)
            self._run.message_bytes += sum(len(each.key or b"") + len(each.value or b"") for each in found.records)

    def _changes_run(self, found: Batch, max_records: int) -> bool:
        run = self._run
        if not run.positions:
            return False
        size = run.message_bytes if run.messages else found.position - run.start
        return bool(run.messages) != (found.records is not None) or run.records >= max_records or size > _MAX_RUN_BYTES

    def _take_run(self, position: int) -> Run:
        run, self._run = self._run, Run(start=position)
        return run

    def _misfit(self, found: Batch) -> str | None:
        """Why a batch's offsets do not follow the accepted ones (R2); None if they do.

        Withdraws the latest accepted batch if its offsets prove wrong.
        """
        last, latest = self.last_offset, self._latest
        # segments of brokers before 0.11 may span more than their indexes can tell (KAFKA-5413)
        origin = self.first_offset if found.magic == b.MAGIC_2 else last
        is_far = origin is not None and found.last_offset - origin > _MAX_OFFSET_SPAN
        if last is None or found.base_offset > last:
            if not is_far:
                return None
            return f"last offset {found.last_offset} is too far from offset {origin} of the segment"
        if is_far or latest is None or not self._is_wrong(latest, found):
            return f"base offset {found.base_offset} is not above the last offset before it, {last}"
        self._withdraw(latest)
        return None

    def _is_wrong(self, latest: Batch, found: Batch) -> bool:
        """Whether the latest accepted batch has wrong offsets, if `found` contradicts it.

        The batch after both decides. Without such a batch, `found` is wrong.
        """
        confirmed = self._confirmed_offset
        if confirmed is not None and found.base_offset <= confirmed:
            return False
        witness = self._examine(found.end)
        if not isinstance(witness, Batch) or witness.base_offset <= found.last_offset:
            return False
        if witness.base_offset <= latest.last_offset:
            return True
        # its offsets are above both: the batch that leaves a gap is wrong
        leaves_gap = confirmed is None or latest.base_offset != confirmed + 1
        is_repeated = self._data[latest.position : latest.end] == self._data[found.position : found.end]
        return leaves_gap and witness.base_offset == found.last_offset + 1 and not is_repeated

    def _withdraw(self, latest: Batch) -> None:
        run = self._run
        run.records -= latest.record_count
        run.positions.pop()
        if latest.records is not None:
            run.messages.pop()
        if self._confirmed_offset is None:
            self.first_offset = None
        self._latest = None
        reason = f"offsets {latest.base_offset} to {latest.last_offset} are above those of later batches"
        self._add_damage(latest.position, latest.end, reason)

    def _pass_damage(self, position: int, verdict: Incomplete | Broken | NoBatch) -> int:
        """Report bytes that are no whole batch. Returns the position where the scan continues."""
        if position >= self._zeros_from:
            reason = f"{len(self._data) - position} zero bytes: preallocated space without records"
            return self._end_torn(position, reason)
        if isinstance(verdict, Broken) and verdict.is_certain:
            self._add_damage(position, verdict.end, verdict.reason)
            return verdict.end
        found = self._find_batch(position + 1)
        if found is None and self.last_offset is None and not self._may_be_segment(verdict):
            raise NotASegment(
                f"{self._source}: not a Kafka log segment: no record batch in its {len(self._data)} bytes; "
                f"the first ones: {verdict.reason}. Give .log files from a folder of the topic's partition."
            )
        if found is None and isinstance(verdict, Incomplete):
            return self._end_torn(position, verdict.reason)
        end = len(self._data) if found is None else found
        if isinstance(verdict, Broken) and verdict.end <= end:
            end = verdict.end
        self._add_damage(position, end, verdict.reason)
        return end

    def _may_be_segment(self, verdict: Incomplete | Broken | NoBatch) -> bool:
        """Whether a file without a whole batch may still be a damaged segment."""
        # every real offset starts with a zero byte
        if self._data[0] != 0 or isinstance(verdict, NoBatch):
            return False
        return isinstance(verdict, Incomplete) or self._likely_in(0)[:1] == [0]

    def _end_torn(self, position: int, reason: str) -> int:
        self.torn_tail = Damage(position, len(self._data) - position, reason, b"")
        return len(self._data)

    def _add_damage(self, position: int, end: int, reason: str) -> None:
        raw = bytes(self._data[position : min(end, position + MAX_DAMAGE_BYTES)])
        self.damage.append(Damage(position, end - position, reason, raw))

    @cached_property
    def _zeros_from(self) -> int:
        """Position after the last byte that is not zero."""
        raw = np.frombuffer(self._data, dtype=np.uint8)
        for end in range(len(raw), 0, -_WINDOW_BYTES):
            start = max(0, end - _WINDOW_BYTES)
            written = np.flatnonzero(raw[start:end])
            if len(written):
                return start + int(written[-1]) + 1
        return 0

    # --- where batches start

    @property
    def _is_wasteful(self) -> bool:
        return self._waste > _WASTE_BYTES + _WASTE_READS * len(self._data)

    def _examine(self, position: int) -> Batch | Incomplete | Broken | NoBatch:
        """Call `examine`, and count the bytes of checksums computed in vain.

        Once these are too many, a batch with implausible fields counts as a batch with a wrong checksum.
        """
        is_good = True if position == self._good_at else None
        if self._is_wasteful and not self._is_good(position):
            is_good = False
        verdict = examine(self._data, position, is_good=is_good)
        if isinstance(verdict, Broken) and not verdict.is_certain:
            self._waste += verdict.end - position
        return verdict

    def _find_batch(self, position: int) -> int | None:
        """Position of the first batch, from `position` on, with a good checksum and an offset above the confirmed ones.

        Returns None if there is none.
        """
        if self._next_batch is not None and self._next_batch >= position:
            return self._next_batch
        if self._nothing_from is not None and position >= self._nothing_from:
            return None
        confirmed = -1 if self._confirmed_offset is None else self._confirmed_offset
        for window in range(position // _WINDOW_BYTES, len(self._data) // _WINDOW_BYTES + 1):
            found = self._find_in_window(window, position, confirmed)
            if found is not None:
                self._next_batch = found
                return found
        self._nothing_from = position
        return None

    def _find_in_window(self, window: int, position: int, confirmed: int) -> int | None:
        candidates = self._good_in(window) if self._is_wasteful else self._likely_in(window)
        for index in range(bisect_left(candidates, position), len(candidates)):
            candidate = candidates[index]
            if b.offset_of(self._data, candidate) > confirmed:
                verdict = self._examine(candidate)
                if isinstance(verdict, Batch) or (isinstance(verdict, Broken) and verdict.is_certain):
                    return candidate
        return None

    def _is_good(self, position: int) -> bool:
        good = self._good_in(position // _WINDOW_BYTES)
        index = bisect_left(good, position)
        return index < len(good) and good[index] == position

    def _likely_in(self, window: int) -> list[int]:
        """Positions in a window where batches may start, by tests that are cheaper than a checksum."""
        if self._likely[0] != window:
            raw = np.frombuffer(self._data, dtype=np.uint8)
            first = window * _WINDOW_BYTES
            start = np.arange(first, max(first, min(first + _WINDOW_BYTES, len(raw) - b.MAGIC_OFFSET)))
            self._likely = window, shaped(raw, start).tolist()
        return self._likely[1]

    def _good_in(self, window: int) -> list[int]:
        """Positions in a window where batches with good checksums start."""
        if window not in self._good:
            likely = self._likely_in(window)
            stretches = np.array([b.checked_stretch(self._data, each) for each in likely], dtype=np.int64)
            magic, checksum, start, end = stretches.reshape(-1, 4).T
            good = np.zeros(len(likely), dtype=np.bool_)
            for checksums, rows in (
                (self._crc32, np.flatnonzero(magic != b.MAGIC_2)),
                (self._crc32c, np.flatnonzero(magic == b.MAGIC_2)),
            ):
                good[rows] = checksums.of(start[rows], end[rows]) == checksum[rows]
            self._good[window] = np.array(likely, dtype=np.int64)[good].tolist()
        return self._good[window]

    @cached_property
    def _crc32(self) -> StretchChecksums:
        return StretchChecksums(self._data, zlib.crc32)

    @cached_property
    def _crc32c(self) -> StretchChecksums:
        return StretchChecksums(self._data, crc32c.crc32c)
