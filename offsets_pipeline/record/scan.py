"""Walks over a segment from batch to batch, and finds its way again behind damage.

Checksums do not cover a batch's offset and length, so these are checked against their neighbours: offsets increase
(R2), and within one segment they never span more than an int32. When two neighbours contradict each other, the batch
behind them says which one is wrong. So a batch is handed on only after the next one has been seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import crc32c
import numpy as np

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.batch import Broken, Found, Incomplete, NoBatch, examine, has_batch_shape
from offsets_pipeline.record.corrupt import NotASegment
from offsets_pipeline.record.legacy import LegacyRecord

MAX_DAMAGE_BYTES = 1024 * 1024
_MAX_OFFSET_SPAN = 2**31 - 1  # the indexes of a segment store offsets relative to its base as int32
_MAX_RUN_BYTES = 256 * 1024 * 1024
_WINDOW_BYTES = 1024 * 1024
_MIN_MESSAGE_LENGTH = 14


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the segment that were not read; `raw` holds the first 1 MiB of them."""

    position: int
    length: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class TornTail:
    """What the last, unfinished write left at the end of the segment."""

    position: int
    length: int
    reason: str


@dataclass(slots=True)
class Run:
    """Consecutive batches of one kind: positions of format 2, or the records of formats 0 and 1."""

    positions: list[int] = field(default_factory=list)
    messages: list[list[LegacyRecord]] = field(default_factory=list)
    records: int = 0
    start: int = 0


class Scanner:
    """One walk over a segment: `runs()` yields what is whole; `damage` and `torn_tail` tell the rest.

    `first_offset` and `last_offset` are those of the batches accepted so far.
    """

    def __init__(self, data: memoryview, source: str) -> None:
        self.damage: list[Damage] = []
        self.torn_tail: TornTail | None = None
        self._data = data
        self._source = source
        self._run = Run()
        self._latest: Found | None = None  # accepted, but the next batch may still show that its offset is wrong
        self._first_offset: int | None = None
        self._confirmed_offset: int | None = None  # last offset of the batch before the latest
        self._next_found: Found | None = None  # what the last search behind damage found
        self._nothing_from: int | None = None  # no batch stands from here on

    @property
    def first_offset(self) -> int | None:
        """Base offset of the first batch."""
        return self._first_offset

    @property
    def last_offset(self) -> int | None:
        """Last offset of the last batch."""
        return self._latest.last_offset if self._latest else self._confirmed_offset

    def runs(self, max_records: int) -> Iterator[Run]:
        """Runs of about `max_records` records. Raises NotASegment."""
        position = 0
        while position < len(self._data):
            position, full = self._walk(position, max_records)
            if full:
                yield self._take_run(position)
                continue
            if position == len(self._data):
                break
            verdict = examine(self._data, position)
            if not isinstance(verdict, Found):
                position = self._pass_damage(position, verdict)
            elif not self._fits(verdict):
                self._add_damage(position, verdict.end, self._misfit_reason(verdict))
                position = verdict.end
            else:
                if self._changes_run(verdict, max_records):
                    yield self._take_run(position)
                self._accept(verdict)
                position = verdict.end
        self.damage.sort(key=lambda damage: damage.position)
        yield self._run

    def _walk(self, position: int, max_records: int) -> tuple[int, bool]:
        """Accept format-2 batches as long as all is well. Returns where it stopped, and whether the run is full.

        The hot loop: it repeats what `examine` and `_accept` do, without an object a batch.
        """
        data, run = self._data, self._run
        if run.messages:
            return position, False
        unpack, crc, end_of_data = b.WALK_HEADER.unpack_from, crc32c.crc32c, len(data)
        latest = self._latest
        last = latest.last_offset if latest else self._confirmed_offset
        first = self._first_offset
        if last is None or first is None:
            return position, False
        confirmed, limit = self._confirmed_offset, first + _MAX_OFFSET_SPAN
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
                or base + delta > limit
                or delta < 0
                or count < 0
                or crc(data[position + b.CRC_START : end]) != checksum
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
            self._latest = Found(start, position, magic, base, base + delta, count, None)
            self._confirmed_offset = confirmed
        return position, full

    def _accept(self, found: Found) -> None:
        self._confirmed_offset = self.last_offset
        self._latest = found
        if self._first_offset is None:
            self._first_offset = found.base_offset
        self._run.records += found.record_count
        if found.records is None:
            self._run.positions.append(found.position)
        else:
            self._run.messages.append(found.records)

    def _changes_run(self, found: Found, max_records: int) -> bool:
        run = self._run
        other_kind = run.positions if found.records is not None else run.messages
        return bool(other_kind) or run.records >= max_records

    def _take_run(self, position: int) -> Run:
        run, self._run = self._run, Run(start=position)
        return run

    def _fits(self, found: Found) -> bool:
        """Whether a batch's offsets follow on what was accepted (R2); withdraws the latest batch if that is wrong."""
        if self._first_offset is not None and found.last_offset - self._first_offset > _MAX_OFFSET_SPAN:
            return False
        last = self.last_offset
        if last is None or found.base_offset > last:
            return True
        if not self._latest_is_wrong(found):
            return False
        self._withdraw_latest()
        return True

    def _latest_is_wrong(self, found: Found) -> bool:
        """Of two batches that contradict each other, the one behind both decides; without it the later is wrong."""
        latest, confirmed = self._latest, self._confirmed_offset
        if latest is None or (confirmed is not None and found.base_offset <= confirmed):
            return False
        witness = examine(self._data, found.end)
        if not isinstance(witness, Found) or witness.base_offset <= found.last_offset:
            return False
        if witness.base_offset <= latest.last_offset:
            return True
        # it stands above both: wrong is the one that leaves a gap
        leaves_gap = confirmed is None or latest.base_offset != confirmed + 1
        is_repeated = self._data[latest.position : latest.end] == self._data[found.position : found.end]
        return leaves_gap and witness.base_offset == found.last_offset + 1 and not is_repeated

    def _withdraw_latest(self) -> None:
        latest = self._latest
        if latest is None:
            return
        run = self._run
        run.records -= latest.record_count
        if latest.records is None:
            run.positions.pop()
        else:
            run.messages.pop()
        if self._confirmed_offset is None:
            self._first_offset = None
        self._latest = None
        reason = f"offsets {latest.base_offset} to {latest.last_offset} are above those of the batches behind it"
        self._add_damage(latest.position, latest.end, reason)

    def _misfit_reason(self, found: Found) -> str:
        last = self.last_offset
        if last is not None and found.base_offset <= last:
            return f"base offset {found.base_offset} is not above {last}, the last offset before it"
        return f"last offset {found.last_offset} is too far from {self._first_offset}, where the segment starts"

    def _pass_damage(self, position: int, verdict: Incomplete | Broken | NoBatch) -> int:
        """Report what is no whole batch, and return where reading goes on."""
        data = self._data
        if (
            not any(data[position : position + b.MAGIC_END])
            and not np.frombuffer(data, dtype=np.uint8)[position:].any()
        ):
            return self._end_torn(position, f"{len(data) - position} zero bytes: space that was never written")
        found = self._find_batch(position + 1)
        if found is None and self.last_offset is None and not self._may_be_segment(verdict):
            self._refuse(verdict.reason)
        if found is None and isinstance(verdict, Incomplete):
            return self._end_torn(position, verdict.reason)
        end = found.position if found else len(data)
        if isinstance(verdict, Broken) and verdict.end <= end:
            end = verdict.end
        self._add_damage(position, end, verdict.reason)
        return end

    def _may_be_segment(self, verdict: Incomplete | Broken | NoBatch) -> bool:
        """Whether a file without a whole batch is a damaged segment rather than something else."""
        # every real offset starts with a zero byte
        if self._data[0] != 0 or isinstance(verdict, NoBatch):
            return False
        return isinstance(verdict, Incomplete) or has_batch_shape(self._data, 0)

    def _end_torn(self, position: int, reason: str) -> int:
        self.torn_tail = TornTail(position, len(self._data) - position, reason)
        return len(self._data)

    def _refuse(self, reason: str) -> None:
        raise NotASegment(
            f"{self._source}: not a Kafka log segment: no record batch in its {len(self._data)} bytes; "
            f"the first ones: {reason}. Give .log files from a folder of the topic's partition."
        )

    def _add_damage(self, position: int, end: int, reason: str) -> None:
        raw = bytes(self._data[position : min(end, position + MAX_DAMAGE_BYTES)])
        self.damage.append(Damage(position, end - position, reason, raw))

    def _find_batch(self, position: int) -> Found | None:
        """The first whole batch from a position on whose offsets are above the last confirmed ones."""
        if self._next_found is not None and self._next_found.position >= position:
            return self._next_found
        if self._nothing_from is not None and position >= self._nothing_from:
            return None
        confirmed = -1 if self._confirmed_offset is None else self._confirmed_offset
        raw = np.frombuffer(self._data, dtype=np.uint8)
        for window in range(position, len(raw) - b.MAGIC_OFFSET, _WINDOW_BYTES):
            # cheap tests for the whole window at once: magic 0 to 2, offset not negative, length within the file
            magic = raw[window + b.MAGIC_OFFSET : window + b.MAGIC_OFFSET + _WINDOW_BYTES]
            start = window + np.flatnonzero(magic <= b.MAGIC_2)
            start = start[raw[start] <= 0x7F]
            length = sum(raw[start + 8 + byte].astype(np.int64) << (24 - 8 * byte) for byte in range(4))
            fits = (length >= _MIN_MESSAGE_LENGTH) & (start + b.LOG_OVERHEAD + length <= len(raw))
            for candidate in start[fits].tolist():
                # the shape is cheaper to check than the checksum over what is no batch
                found = examine(self._data, candidate) if has_batch_shape(self._data, candidate) else None
                if isinstance(found, Found) and found.base_offset > confirmed:
                    self._next_found = found
                    return found
        self._nothing_from = position
        return None
