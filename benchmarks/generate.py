"""Makes an offsets log of any size: segment files in folders as a broker keeps them, the same for the same seed.

    python benchmarks/generate.py FOLDER --commits 5000000 --records-per-batch 3

The log is one of consumers that commit: a batch holds offsets of one group, and a batch follows the last one by a
millisecond. The broker was upgraded after a quarter of the log: it wrote values of version 3, then of version 4, with
the topic's id for groups whose clients send it. Metadata is empty except for some groups.

`log_content` draws what is in the log, `log_bytes` writes it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

import numpy as np

from benchmarks.log_bytes import SegmentWriter, Templates, encode
from benchmarks.log_content import Names, Shape, draw_batches, final_state
from offsets_pipeline.kafka.record.compression import Codec

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BATCHES = 100_000


@dataclass(frozen=True)
class GeneratedLog:
    """A log on disk. ``records`` counts markers too; ``state`` is the state of a broker that has loaded the log.

    ``state`` has a row for each identity with a visible commit that no tombstone removed, by the generator's own
    reckoning: the columns of `current_offsets` that such a log fills, timestamps in milliseconds.
    """

    shape: Shape
    folder: Path
    records: int
    segment_bytes: int
    state: pa.Table

    @property
    def bytes_per_record(self) -> float:
        """Bytes of segment files for each record."""
        return self.segment_bytes / self.records

    @property
    def description(self) -> str:
        """Numbers of records and sizes, for the table of a benchmark."""
        return (
            f"{self.records:,} records, {self.shape.records_per_batch} a batch, {self.bytes_per_record:.0f} bytes each"
        )


def generate(shape: Shape, folder: Path) -> GeneratedLog:
    """Write a log below ``folder``: a folder for each log partition, segment files of 100 MB in it."""
    random = np.random.default_rng(shape.seed)
    names = Names(shape, random)
    batches = draw_batches(shape, names, random)
    segment_bytes = 0
    for log_partition in range(shape.offsets_partitions):
        writer = SegmentWriter(folder / f"__consumer_offsets-{log_partition}")
        first, last = np.searchsorted(batches.log_partition, [log_partition, log_partition + 1]).tolist()
        templates = Templates(shape, names, np.unique(batches.group[first:last]))
        for start in range(first, last, _BLOCK_BATCHES):
            block = batches.take(slice(start, min(start + _BLOCK_BATCHES, last)))
            writer.write(*encode(block, templates, names, shape), block.base_offset)
        segment_bytes += writer.close()
    return GeneratedLog(shape, folder, int(batches.count.sum()), segment_bytes, final_state(batches, names, shape))


def add_shape_options(parser: argparse.ArgumentParser, default: Shape) -> None:
    """Add the options of a Shape; `shape_of` reads them."""
    for each in fields(Shape):
        option = f"--{each.name.replace('_', '-')}"
        value = getattr(default, each.name)
        if each.name == "codec":
            parser.add_argument(option, choices=[codec.name.lower() for codec in Codec], default=value.name.lower())
        else:
            parser.add_argument(option, type=type(value), default=value, metavar="N")


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the Shape of the options."""
    given = {each.name: getattr(options, each.name) for each in fields(Shape)}
    return Shape(**given | {"codec": Codec[given["codec"].upper()]})


def main() -> None:
    """Write a log to the folder of the command line."""
    parser = argparse.ArgumentParser(
        description="Write a log of consumers' commits, as segment files.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a folder that is not there yet, or empty")
    add_shape_options(parser, Shape())
    options = parser.parse_args()
    log = generate(shape_of(options), options.folder)
    print(
        f"{log.records} records in {log.segment_bytes} bytes ({log.bytes_per_record:.1f} bytes a record), "
        f"{log.state.num_rows} committed offsets, {log.shape.offsets_partitions} log partitions: {log.folder}"
    )


if __name__ == "__main__":
    main()
