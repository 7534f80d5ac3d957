"""One behaviour on random logs, cut anywhere: stream with restarts, reload and reference agree (R15, R16)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.fold.replay_writer import FoundState
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.spark.segments import write_log, write_prefix
from tests.spark.stores import assert_as_reference, copied, log_of, state_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.logs import Identity
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

PARTITIONS = 3
GROUPS = [f"group-{number}" for number in range(12)] + ["ü-\U0001f600", ""]
GROUP_TYPES = {3: "epoch", 5: "rebalance_timeout_ms", 8: "member_epoch", 11: "epoch"}


def random_log(chosen: random.Random, log_partition: int, records: int) -> list[LogRow]:
    """Commits, tombstones, transactions, groups, corrupt records of one log partition; a few groups are misplaced."""
    log = LogPartition(log_partition)
    at_home = [group for group in GROUPS if partition_for(group, PARTITIONS) == log_partition]
    for _ in range(records):
        groups = at_home if chosen.random() < 0.95 else GROUPS
        identity: Identity = (chosen.choice(groups), chosen.choice("tu"), chosen.randrange(2))
        producer_id = chosen.choice([None, None, 7, 8])
        kind = chosen.choices(
            ["commit", "tombstone", "marker", "group", "no group", "corrupt", "gap"], [40, 10, 10, 15, 5, 5, 3]
        )[0]
        if kind == "commit":
            version = chosen.randrange(5)
            log.commit(identity, chosen.randrange(-1, 1000), producer_id, key_version=min(version, 1), version=version)
        elif kind == "tombstone":
            log.delete(identity, producer_id, key_version=chosen.randrange(2))
        elif kind == "marker":
            log.marker(chosen.choice([7, 8]), chosen.choice([COMMIT, COMMIT, ABORT]))
        elif kind == "group":
            record_type = chosen.choice(list(GROUP_TYPES))
            log.group(record_type, identity[0], chosen.choice("mn"), **{GROUP_TYPES[record_type]: chosen.randrange(4)})
        elif kind == "no group":
            log.group_tombstone(chosen.choice([2, 3, 5, 11]), identity[0], chosen.choice("mn"))
        elif kind == "corrupt":
            key, value = chosen.choice(
                [(None, b"x"), (b"\x00", b"x"), (b"\x00\x01\x00\x05ab", None), (b"\x00\x63", b"x")]
            )
            log.record(key, value)
        else:
            log.skip(chosen.randrange(1, 50))
    return log.rows


def reload_by_spark(workbench: Workbench, store: Path) -> int:
    """Where tasks cannot write the state's files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FoundState, "of", lambda _: None)
        return workbench.reload(store)


def reload_one_by_one(workbench: Workbench, store: Path) -> int:
    return sum(workbench.reload(store, partition) for partition in range(PARTITIONS))


def reload_by_files(workbench: Workbench, store: Path) -> int:
    return workbench.reload(store)


@pytest.mark.parametrize(("seed", "way"), [(11, reload_by_files), (12, reload_by_spark), (13, reload_one_by_one)])
def test_reference_stream_and_reload_agree_on_a_random_log(
    workbench: Workbench,
    in_tasks: Workbench,
    empty: Callable[[int], Path],
    tmp_path: Path,
    seed: int,
    way: Callable[[Workbench, Path], int],
) -> None:
    chosen = random.Random(seed)
    rows = [row for partition in range(PARTITIONS) for row in random_log(chosen, partition, 120)]
    whole = write_log(tmp_path / "whole", rows, partitions=PARTITIONS)
    store = copied(empty(PARTITIONS), tmp_path / "store")
    shares = sorted(chosen.uniform(0.1, 0.9) for _ in range(3))
    for step, (share, folds) in enumerate(zip([*shares, 1.0], [workbench, in_tasks] * 2, strict=True)):
        folds.ingest(store, write_prefix(whole, tmp_path / f"prefix-{step}", share, chosen))
        folds.fold(store)
        assert_as_reference(store, log_of(store))
    state = state_of(store)
    assert [row for row in log_of(store) if row.control_type is None] == [
        row for row in rows if row.control_type is None
    ]
    assert state.quarantine
    assert any(state.pending.values())
    assert any(row["misplaced"] for row in state.offsets.values())
    workbench.spark.sql(f"DELETE FROM delta.`{store}/committed_offsets` WHERE record_offset % 2 = 0")
    workbench.spark.sql(f"DELETE FROM delta.`{store}/group_records` WHERE value_offset % 2 = 0")
    assert way(workbench, store) == len(rows)
    assert_as_reference(store, rows)
