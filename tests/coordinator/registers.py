"""A process of the test of linearizability: threads that commit, fetch and delete offsets at random until it is killed.

    python registers.py STORE NUMBER SEED

Prints "ready" first, or the error if it cannot open the store. Then a line of JSON for each call and for each answer,
with the time of a clock that all processes of a machine share. A call that fails has an error in place of an answer.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from itertools import count

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.errors import NoSuchGroup, OffsetsError
from offsets_pipeline.semantics.partition_state import TopicPartition
from tests.linearizable import COMMIT, DELETE, FETCH

THREADS = 2
GROUPS = ("a", "b")
#: Most seconds between two operations of a thread: meanwhile others write what its next one has to know.
REST_SECONDS = 0.02
#: Of the values of one process.
MOST_VALUES = 10**9


def main(store: str, number: int, seed: int) -> None:
    try:
        coordinator = Coordinator.open(store, housekeeping=False)
    except OffsetsError as error:
        sys.stdout.write(f"{error}\n")
        return
    one_line, numbers = threading.Lock(), count(MOST_VALUES * number)

    def say(of_operation: int, **told: object) -> None:
        with one_line:
            line = json.dumps({"operation": of_operation, "at_ns": time.monotonic_ns(), **told})
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def operate(chance: random.Random) -> None:
        while True:
            operation, kind = next(numbers), chance.choice([COMMIT, COMMIT, FETCH, FETCH, DELETE])
            group_id, place = chance.choice(GROUPS), TopicPartition("t", 0)
            time.sleep(chance.uniform(0, REST_SECONDS))
            say(operation, kind=kind, register=group_id)
            try:
                answer: int | None = operation
                if kind == COMMIT:
                    coordinator.commit_offsets(group_id, {place: operation})
                elif kind == FETCH:
                    answer = coordinator.fetch_offsets(group_id, [place])[place].offset
                else:
                    answer = coordinator.delete_offsets(group_id, [place])
            except NoSuchGroup:
                answer = 0
            except OffsetsError as error:
                say(operation, error=str(error))
                continue
            say(operation, answer=answer)

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # until all are ready
    threads = [threading.Thread(target=operate, args=(random.Random(f"{seed} {at}"),)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
