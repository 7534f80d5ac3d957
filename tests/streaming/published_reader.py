"""A reader of published tables, as any other program: it knows nothing of this project.

    python published_reader.py STORE

Reads until its standard input ends, and checks each read: no key twice; the two partitions of a group, which are
committed together, have the same offset; no offset, reach or data time is older than in an earlier read. Prints
"reads N groups M" at its end, or the first fault, with exit status 1.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from deltalake import DeltaTable

Key = tuple[Any, ...]


class Reader:
    def __init__(self, store: str) -> None:
        self._store = store
        self._offsets: dict[Key, int] = {}
        self._reached: dict[Key, tuple[int, Any]] = {}
        self.reads = 0

    @property
    def groups(self) -> int:
        return len({group_id for group_id, *_ in self._offsets})

    def read(self) -> None:
        for row in self._rows("published_as_of"):
            where = row["table_name"], row["log_partition"]
            reached, data_time = self._reached.get(where, (0, None))
            assert row["record_offset"] >= reached, f"{where} steps back from {reached} to {row['record_offset']}"
            assert data_time is None or row["data_time"] >= data_time, f"{where} steps back in time"
            self._reached[where] = row["record_offset"], row["data_time"]
        rows = self._rows("current_offsets")
        offsets = {(row["group_id"], row["topic"], row["partition"]): row["committed_offset"] for row in rows}
        assert len(offsets) == len(rows), "a key twice"
        for key, offset in self._offsets.items():
            assert offsets.get(key, -1) >= offset, f"{key} steps back from {offset} to {offsets.get(key)}"
        for (group_id, topic, partition), offset in offsets.items():
            other = offsets.get((group_id, topic, 1 - partition))
            assert other == offset, f"half of a commit: {group_id} has {offset} and {other}"
        self._offsets = offsets
        groups = self._rows("consumer_groups")
        assert len({row["group_id"] for row in groups}) == len(groups), "a group twice"
        self.reads += 1

    def _rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(f"{self._store}/{table}").to_pyarrow_table().to_pylist()
        return found


def main(store: str) -> int:
    reader, ended = Reader(store), threading.Event()

    def end_with_stdin() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=end_with_stdin, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        while not ended.wait(0.2):
            reader.read()
    except AssertionError as fault:
        sys.stdout.write(f"{fault}\n")
        return 1
    sys.stdout.write(f"reads {reader.reads} groups {reader.groups}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
