"""The last commits of each offset in a log, against the reference replay of every prefix."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.lag import commit_windows
from offsets_pipeline.questions.lag.commit_windows import CommitWindows, WindowColumns
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.partition_state import replay
from tests.logs import Identity, LogPartition, commit_key, commit_value, input_table
from tests.random_logs import random_log
from tests.unit.lag.windows import windows_of

if TYPE_CHECKING:
    import random

    from offsets_pipeline.semantics.log_row import LogRow

COMMITTED_MS = 1_700_000_000_000  # of tests.logs.commit_value


def windows(
    rows: list[LogRow],
    size: int,
    groups: list[str] | None = None,
    batches: int = 1,
    semantics: CoordinatorSemantics = MODERN,
) -> dict[Identity, list[int]]:
    found = CommitWindows(size, groups, 1, semantics)
    step = -(-len(rows) // batches)
    for start in range(0, len(rows), step):
        found.add(input_table(rows[start : start + step]))
    columns = found.windows()
    bounds = pairwise(columns.first.tolist())
    return {
        identity: columns.offset[start:end].tolist()
        for identity, (start, end) in zip(columns.identities, bounds, strict=True)
    }


def test_window_has_the_last_commits_in_the_order_of_the_log() -> None:
    log = LogPartition()
    for offset in range(15):
        log.commit(("g", "t", 0), offset)
        log.commit(("g", "t", 1), 100 - offset)
        log.commit(("h", "t", 0), 1)
    log.group(2, "g")
    assert windows(log.rows, 10) == {
        ("g", "t", 0): list(range(5, 15)),
        ("g", "t", 1): list(range(95, 85, -1)),
        ("h", "t", 0): [1] * 10,
    }
    assert windows(log.rows, 3, ["h", "none"]) == {("h", "t", 0): [1] * 3}


def test_keys_with_malformed_text_are_of_the_group_that_they_decode_to() -> None:
    log = LogPartition()
    key = commit_key("g?h")
    for byte in (b"\xff", b"\xfe"):
        log.record(key.replace(b"?", byte), commit_value(byte[0]))
    assert windows(log.rows, 10, ["g\ufffdh"]) == windows(log.rows, 10) == {("g\ufffdh", "t", 0): [255, 254]}


def test_both_key_versions_are_one_offset() -> None:  # R9
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 0), 2, version=0, key_version=0)
    assert windows(log.rows, 10) == {("g", "t", 0): [1, 2]}


def test_tombstone_empties_the_window() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "u", 0), 1)
    log.delete(("g", "t", 0))
    log.delete(("g", "u", 0))
    log.commit(("g", "t", 0), 2)
    assert windows(log.rows, 10) == {("g", "t", 0): [2]}


def test_only_committed_transactions_count() -> None:  # R11
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=1)
    log.commit(("g", "t", 0), 2, producer_id=2)
    log.end_abort(2)
    log.commit(("g", "t", 0), 3)
    log.end_commit(1)
    log.commit(("g", "t", 0), 4, producer_id=2)
    log.commit(("g", "t", 0), 5, producer_id=1)
    log.end_commit(1)
    # 1 became visible after 3, so nothing ever answered it (R10)
    assert windows(log.rows, 10) == {("g", "t", 0): [3, 5]}
    assert windows(log.rows, 10, batches=5) == {("g", "t", 0): [3, 5]}


def test_a_commit_that_its_own_transaction_replaced_does_not_count() -> None:  # R11
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 0), 2, producer_id=7)
    log.commit(("g", "t", 1), 2, producer_id=7)
    log.commit(("g", "t", 0), 3, producer_id=7, key_version=0)
    log.end_commit(7)
    assert windows(log.rows, 10) == {("g", "t", 0): [1, 3], ("g", "t", 1): [2]}
    assert windows(log.rows, 10, batches=4) == {("g", "t", 0): [1, 3], ("g", "t", 1): [2]}


def test_a_pending_commit_before_a_tombstone_counts_where_a_marker_brings_it_back() -> None:  # R12
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 0), 2, producer_id=7)
    log.delete(("g", "t", 0))
    log.end_commit(7)
    log.commit(("g", "t", 0), 3)
    log.commit(("g", "t", 1), 4)
    log.delete(("g", "t", 1))
    assert windows(log.rows, 10, semantics=CoordinatorSemantics.CLASSIC) == {("g", "t", 0): [2, 3]}
    assert windows(log.rows, 10) == {("g", "t", 0): [3]}


def replayed_windows(rows: list[LogRow], size: int, semantics: CoordinatorSemantics) -> dict[Identity, list[int]]:
    """The offsets that each record made visible, by the specification, since the last one that removed the offset."""
    state = replay(rows[:0], 0, 1, semantics)
    found: dict[Identity, list[tuple[int, int]]] = {}
    for row in rows:
        state.replay(row)
        visible = {
            (group_id, *where): (offset.record_offset, offset.committed_offset)
            for group_id, offsets in state.offsets.items()
            for where, offset in offsets.items()
        }
        found = {identity: commits for identity, commits in found.items() if identity in visible}
        for identity, commit in visible.items():
            if found.setdefault(identity, [])[-1:] != [commit]:
                found[identity].append(commit)
    return {identity: [offset for _, offset in commits[-size:]] for identity, commits in found.items()}


@pytest.mark.parametrize("logs", [20, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_window_has_what_each_prefix_of_a_random_log_made_visible(
    semantics: CoordinatorSemantics, logs: int, chance: random.Random
) -> None:
    for _ in range(logs):
        rows = random_log(chance, 120).rows()
        if semantics.is_classic:  # R12: it reads a tombstone in a transaction in another way; no broker writes one
            rows = [row for row in rows if row.producer_id is None or row.value is not None or row.control_type]
        expected = replayed_windows(rows, 4, semantics)
        assert windows(rows, 4, batches=chance.randint(1, 5), semantics=semantics) == expected


def test_misplaced_commits_do_not_count() -> None:  # R1: of two log partitions, b (98) belongs to 0 and c (99) to 1
    log, other = LogPartition(0), LogPartition(1)
    for partition in (log, other):
        for group, offset in (("c", 1), ("b", 2), ("d", 3), ("b", 4)):
            partition.commit((group, "t", 0), offset, commit_timestamp=COMMITTED_MS + offset)
    found = []
    for rows in (log.rows, other.rows):
        of_one = CommitWindows(10, None, 2, MODERN)
        of_one.add(input_table(rows))
        found.append([each if isinstance(each, list) else each.tolist() for each in of_one.windows()])
    ms = COMMITTED_MS
    assert found == [
        [[("b", "t", 0), ("d", "t", 0)], [0, 2, 3], [2, 4, 3], [ms + 2, ms + 4, ms + 3]],
        [[("c", "t", 0)], [0, 1], [1], [ms + 1]],
    ]


def test_windows_of_several_log_partitions_are_one_after_the_other() -> None:
    a, b, c = (("g", name, 0) for name in "abc")
    parts = [
        windows_of({a: [(1, 10), (2, 20)], b: []}),
        windows_of({}),
        windows_of({c: [(3, 30)]}),
    ]
    for given, expected in (
        (parts, ([a, b, c], [0, 2, 2, 3], [1, 2, 3], [10, 20, 30])),
        (parts[2:], ([c], [0, 1], [3], [30])),
        ([], ([], [0], [], [])),
    ):
        identities, *columns = WindowColumns.together(given)
        assert (identities, *(each.tolist() for each in columns)) == expected


def test_long_log_is_compacted_on_the_way(monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
    log = LogPartition()
    expected: dict[Identity, list[tuple[int, int]]] = {}
    for _ in range(3000):
        group, partition, offset = chance.choice("abc"), chance.randrange(4), chance.randrange(1000)
        producer_id = chance.choice([None, None, 7])
        log.commit((group, "t", partition), offset, producer_id=producer_id)
        if producer_id is None:
            expected.setdefault((group, "t", partition), []).append((log.next_offset, offset))
        else:
            log.end_commit(7)
            expected.setdefault((group, "t", partition), []).append((log.next_offset, offset))
    monkeypatch.setattr(commit_windows, "_COMPACT_ROWS", 100)
    found = windows(log.rows, 5, batches=60)
    assert found == {identity: [offset for _, offset in commits[-5:]] for identity, commits in expected.items()}
