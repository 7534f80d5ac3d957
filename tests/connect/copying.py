"""A source task of the kill test, which copies the lines of a file until it is killed.

    python copying.py exactly-once|committer STORE FILE SINK

For each line "LINES" on standard input the program forks: the child is the task, and polls up to LINES lines at a time.
The program prints the child's process id, and its status at the end. A child ends by itself at the end of the file.

exactly-once: SINK is a Delta table; each poll is one commit of `ExactlyOnceTask`.
committer: SINK is a folder; each child appends lines to a file of its own there, and an `OffsetCommitter` flushes after
LINES lines.
"""

from __future__ import annotations

import os
import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from examples.file_lines import chunks, lines, mark_of
from offsets_pipeline.connect.exactly_once import ExactlyOnceTask
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageReader, OffsetStorageWriter
from offsets_pipeline.connect.offset_committer import FlushSettings, OffsetCommitter, initialize_offsets
from offsets_pipeline.connect.target_table import TargetTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.file_lines import Line

CONNECTOR = "copy"
SCHEMA = pa.schema([pa.field("position", pa.int64(), nullable=False), ("line", pa.string())])


def polls(store: OffsetBackingStore, file: str, count: int) -> Iterator[list[Line]]:
    """The lines after the last flush, up to ``count`` at a time."""
    reader = OffsetStorageReader(store, CONNECTOR)
    (start,) = initialize_offsets(reader, [{"filename": file}], {"position": 0})
    mark = mark_of(file, start["position"] if start else 0)
    assert mark is not None
    left = chain.from_iterable(lines(chunk) for chunk in chunks(file, mark))
    while polled := list(islice(left, count)):
        yield polled


def exactly_once(location: str, file: str, sink: str, count: int) -> None:
    """Copy with transactions."""
    with OffsetBackingStore(location) as store, ExactlyOnceTask(store, CONNECTOR, TargetTable(sink, SCHEMA)) as task:
        for polled in polls(store, file, count):
            task.offset({"filename": file}, {"position": polled[-1].position})
            columns = [[line.position for line in polled], [line.text for line in polled]]
            task.commit(pa.table(columns, schema=SCHEMA))


def committer(location: str, file: str, sink: str, count: int) -> None:
    """Copy at least once."""
    copied = os.open(f"{sink}/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with OffsetBackingStore(location) as store:
        settings = FlushSettings(offset_flush_records=count)
        with OffsetCommitter(OffsetStorageWriter(store, CONNECTOR), settings) as flushing:
            for line in chain.from_iterable(polls(store, file, count)):
                os.write(copied, f"{line.position} {line.text}\n".encode())
                flushing.record({"filename": file}, {"position": line.position})


def main(mode: str, location: str, file: str, sink: str) -> None:
    """Fork a task for each line of standard input."""
    run = {"exactly-once": exactly_once, "committer": committer}[mode]
    for count in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            run(location, file, sink, int(count))
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    Path(sys.argv[4]).mkdir(exist_ok=True) if sys.argv[1] == "committer" else None
    main(*sys.argv[1:])
