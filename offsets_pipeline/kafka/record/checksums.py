"""Checksums of many stretches of one buffer. Stretches may overlap.

Thousands of stretches may each reach to the end of the file. Checksums one by one would read the file thousands of
times. But the checksum of a stretch follows from two checksums: of all bytes before its start, and of all bytes before
its end, as in zlib's `crc32_combine`. So the buffer is read once. Each stretch then costs the logarithm of its length.
"""

import zlib
from collections.abc import Callable
from functools import cache

import crc32c as crc32c_module
import numpy as np
import numpy.typing as npt

from offsets_pipeline.kafka.record.records import Int64s

Checksums = npt.NDArray[np.uint32]
Checksum = Callable[[memoryview, int], int]

_STEP_BYTES = 1024  # the checksum of all bytes before is kept at every multiple of this
_LENGTH_BITS = 31
_POLYNOMIALS: dict[Checksum, int] = {zlib.crc32: 0xEDB8_8320, crc32c_module.crc32c: 0x82F6_3B78}  # bits reversed


class StretchChecksums:
    """Checksums of stretches of ``data`` by ``checksum``: `zlib.crc32` or `crc32c.crc32c`."""

    def __init__(self, data: memoryview, checksum: Checksum) -> None:
        self._data = data
        self._checksum = checksum
        self._shifts = _shifts(_POLYNOMIALS[checksum])
        self._steps = [0]
        for start in range(0, len(data) - _STEP_BYTES + 1, _STEP_BYTES):
            self._steps.append(checksum(data[start : start + _STEP_BYTES], self._steps[-1]))

    def of(self, start: Int64s, end: Int64s) -> Checksums:
        """The checksum of each stretch."""
        return self._before(end) ^ self._shifted(self._before(start), end - start)

    def _before(self, position: Int64s) -> Checksums:
        data, checksum, steps = self._data, self._checksum, self._steps
        return np.fromiter(
            (
                checksum(data[at // _STEP_BYTES * _STEP_BYTES : at], steps[at // _STEP_BYTES])
                for at in position.tolist()
            ),
            np.uint32,
            len(position),
        )

    def _shifted(self, checksums: Checksums, zeros: Int64s) -> Checksums:
        """Shift each checksum over ``zeros`` bytes. XOR with the checksum of the next bytes then appends them."""
        shifted = checksums.copy()
        for bit in range(int(zeros.max(initial=0)).bit_length()):
            rows = np.flatnonzero(zeros >> bit & 1)
            shifted[rows] = _product(self._shifts[bit], shifted[rows])
        return shifted


@cache
def _shifts(polynomial: int) -> tuple[Checksums, ...]:
    """Matrices that shift a checksum by 1, 2, 4, ... bytes; each as four lookup tables, one a checksum byte."""
    table: Checksums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(polynomial)
    unit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    columns: Checksums = (unit >> 8) ^ table[unit & 0xFF]
    shifts = []
    for _ in range(_LENGTH_BITS):
        shifts.append(_by_byte(columns))
        columns = _product(shifts[-1], columns)
    return tuple(shifts)


def _by_byte(columns: Checksums) -> Checksums:
    tables = np.zeros((4, 256), dtype=np.uint32)
    value = np.arange(256)
    for bit, column in enumerate(columns):
        tables[bit // 8] ^= np.where(value >> bit % 8 & 1, column, np.uint32(0))
    return tables


def _product(tables: Checksums, checksums: Checksums) -> Checksums:
    product: Checksums = tables[0][checksums & 0xFF]
    for byte in range(1, 4):
        product ^= tables[byte][checksums >> 8 * byte & 0xFF]
    return product
