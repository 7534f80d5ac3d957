"""A process of the kill test: two threads commit until they are killed or have made COMMITS commits.

    python writer.py STORE NAME COMMITS ACKS

Thread k commits offsets 1, 2, 3 ... for group NAME-k, each in one commit for two partitions, and prints
"NAME-k 17" when commit 17 is acknowledged. With ACKS 0 it prints the line before it sends the commit.

Prints "ready" first, or the error if it cannot open the store.
"""

from __future__ import annotations

import sys
import threading

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.core import ACKS_NONE
from offsets_pipeline.errors import CoordinatorNotAvailable, OffsetsError, RequestTimedOut

THREADS = 2


def main(store: str, name: str, commits: int, acks: int) -> None:
    try:
        opened = Coordinator.open(store, housekeeping=False)
    except OffsetsError as error:
        sys.stdout.write(f"{error}\n")
        return
    with opened as coordinator:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()  # until all are ready

        one_line = threading.Lock()

        def say(group_id: str, offset: int) -> None:
            with one_line:
                sys.stdout.write(f"{group_id} {offset}\n")
                sys.stdout.flush()

        def write(number: int) -> None:
            group_id = f"{name}-{number}"
            for offset in range(1, commits + 1):
                if acks == ACKS_NONE:
                    say(group_id, offset)
                offsets = {("t", 0): offset, ("t", 1): offset}
                try:
                    coordinator.commit_offsets(group_id, offsets, acks=acks, timeout_ms=60_000)
                except (CoordinatorNotAvailable, RequestTimedOut):
                    continue
                if acks != ACKS_NONE:
                    say(group_id, offset)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(THREADS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
