"""Which of the rows of a group answers, and whether it answers its offsets (R1, R14)."""

from __future__ import annotations

from offsets_pipeline.semantics.answering import answering_rows, answers_offsets
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE

#: State of a group by log partition. The hash of "a" is 97, so of 4 log partitions those of R1 are 1, 2, 3 and 0.
STATES = {
    "a": {0: "Empty", 1: "Stable", 2: "Empty"},
    "b": {0: "Dead", 1: "Empty", 2: "Dead", 3: "Stable"},
    "c": {0: "Empty", 1: "Stable", 3: "Dead"},
    "d": {0: "Dead", 2: "Dead"},
}


def test_row_in_the_log_partition_of_r1_answers_else_that_of_the_lowest() -> None:  # R1
    rows = [
        {"log_partition": at, "group_id": group_id, "state": state}
        for group_id, states in STATES.items()
        for at, state in states.items()
    ]
    for each in (rows, rows[::-1]):
        found = [(name, row["group_id"], row["log_partition"]) for name, row in answering_rows(each, 4).items()]
        assert found == [("a", "a", 1), ("b", "b", 1), ("c", "c", 0)]


def test_misplaced_groups_and_share_groups_answer_no_offsets() -> None:  # R1, R14
    assert [answers_offsets(each, misplaced=False) for each in (CLASSIC, CONSUMER, SHARE)] == [True, True, False]
    assert not answers_offsets(CLASSIC, misplaced=True)
