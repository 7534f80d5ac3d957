"""Folds, reloads, publishings and readers of one store at the same time, by random schedules, killed anywhere.

test_commit_protocol.py explores the protocol; this runs the program. After each commit the published tables, read by
deltalake alone, are compared with the row-wise replay.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.config import Settings
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.group_description import describe_group
from offsets_pipeline.store.delta import retry
from tests.folded_stores import new_store, opened
from tests.logs import in_batches
from tests.parameters import crossed
from tests.places import place_of, remove_place, rounds
from tests.published import Specification, assert_published, read, read_as_of
from tests.random_logs import Shape, random_log, several
from tests.spark.stores import CLOCK, appended, assert_as_reference
from tests.unit.state.schedules import Process, run, schedule_tables, step, unscheduled
from tests.unit.state.state_files import answered_in_spark, progress_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import PartitionState

PARTITIONS = 2
SETTINGS = Settings()
#: Few offsets, so that each append changes and deletes what is there.
FEW = Shape(
    steps={"commit": 10, "tombstone": 4, "marker": 4, "classic": 2, "remove": 2, "consumer": 2, "share": 1},
    groups=("g", "h"),
    topics=("t",),
    producers=(7, 8),
    log_partitions=PARTITIONS,
)
MERGED = ("consumer_groups", "current_offsets")


class Run:
    """A store, its log in several appends, and processes that work on it."""

    def __init__(self, folder: Path, seed: int, semantics: CoordinatorSemantics) -> None:
        self.chance = random.Random(f"{seed} {semantics}")
        shape = FEW if seed % 3 else several(PARTITIONS)
        rows = random_log(self.chance, 60, shape).rows()
        self.semantics = semantics
        self.location = str(folder)
        self.specified = Specification(rows, PARTITIONS, semantics)
        self.batches = [batch for batch in in_batches(rows, 5) if batch]
        self.appended: list[LogRow] = []
        self.ends = [dict.fromkeys(range(PARTITIONS), 0)]
        new_store(folder, PARTITIONS, semantics)

    def append(self) -> None:
        """Append the next part of the log."""
        if self.batches:
            batch = self.batches.pop(0)
            appended(self.location, batch)
            self.appended += batch
            ends = {row.log_partition: row.record_offset + 1 for row in batch}  # in the order of the log
            self.ends.append(self.ends[-1] | ends)

    # --- the processes

    def append_all(self) -> None:
        while self.batches:
            step("an append to the log")
            self.append()

    def fold(self) -> None:
        store = opened(place_of(self.location))
        for _ in range(3):
            fold_log(store, SETTINGS, CLOCK)

    def publish(self) -> None:
        store = opened(place_of(self.location))
        for _ in range(2):
            publish(store, CLOCK)

    def reload(self, partitions: list[int] | None) -> None:
        try:
            reload_partitions(opened(place_of(self.location)), partitions, SETTINGS, CLOCK)
        except WriteConflict as conflict:
            assert "beside" in str(conflict) or "other writers" in str(conflict)  # noqa: PT017

    def keep_small(self) -> None:
        store = opened(place_of(self.location))
        progress = progress_of(store)
        compact_facts(store, progress)
        drop_replaced(store, progress)

    def read_states(self) -> None:
        for at_most in (0, 1_000_000, 0):
            self.read_state(at_most)

    def read_state(self, at_most: int) -> None:
        """A reader of the program: each table as of one end of the log since it began."""
        first = self._end_of_fold() if at_most == 0 else self.ends[-1]
        reader = StateReader(self.location, at_most)
        for table, found_in, specified in ((OFFSETS, offsets_in, offsets_of), (DESCRIBED, groups_in, groups_of)):
            rows = reader.current.newest(table, table.columns).to_pylist()
            for at in range(PARTITIONS):
                found = found_in(row for row in rows if row["log_partition"] == at)
                allowed = [specified(self.specified.state(at, end)) for end in self._ends_since(first, at)]
                assert found in allowed, f"{table.name} of log partition {at} as of no end since {first[at]}"

    def query(self) -> None:
        """A query in Spark: each table as of the time at which it is resolved, each key as of some time since."""
        first = self._end_of_fold()
        store = opened(place_of(self.location))
        progress = progress_of(store).partitions
        facts, published = (store.table(name).snapshot() for name in OFFSETS.names)
        with unscheduled():
            of_facts = facts.rows()
            rows = answered_in_spark(OFFSETS, of_facts, published.rows(), progress)
        found = offsets_in(rows.to_pylist())
        assert len(found) == rows.num_rows, "a key is there twice"
        for at in range(PARTITIONS):
            states = [answered(self.specified.state(at, end)) for end in self._ends_since(first, at)]
            for key in {key for state in states for key in state} | {key for key in found if key[0] == at}:
                assert found.get(key) in [state.get(key) for state in states], f"{key} as of no end since {first[at]}"

    # --- what is checked after each commit

    def check(self, name: str, version: int) -> None:
        """Assert that the published tables have each key once, as of one end no earlier than they say."""
        as_of = read_as_of(self.location) if name in (*MERGED, "published_as_of") else {}
        for table in MERGED if name == "published_as_of" else {name} & {*MERGED}:
            rows = read(self.location, table, version if table == name else None)
            for at in range(PARTITIONS):
                found = [row for row in rows if row["log_partition"] == at]
                ends = self._ends_since({at: as_of.get(table, {}).get(at, 0)}, at)
                allowed = [self.specified.of_partition(table, at, end) for end in ends]
                assert found in allowed, f"{table} of log partition {at} as of none of {ends}"

    def finish(self) -> None:
        """Fold and publish the rest, and assert that all is as specified."""
        self.append_all()
        store = opened(place_of(self.location))
        fold_log(store, SETTINGS, CLOCK)
        assert publish(store, CLOCK)
        assert_as_reference(self.location, self.appended)
        assert_published(self.location, self.appended, PARTITIONS, self.semantics)
        ends = {at: self.specified.end(at) for at in range(PARTITIONS)}
        assert all(of_table == ends for of_table in read_as_of(self.location).values())

    def _end_of_fold(self) -> Mapping[int, int]:
        with unscheduled():
            return dict.fromkeys(range(PARTITIONS), 0) | progress_of(opened(place_of(self.location))).folded_to

    def _ends_since(self, first: Mapping[int, int], at: int) -> list[int]:
        return sorted({ends[at] for ends in self.ends if ends[at] >= first[at]})


Offsets = dict[tuple[Any, ...], tuple[int, int]]
Groups = dict[str, tuple[str | None, str]]


def offsets_in(rows: Iterable[dict[str, Any]]) -> Offsets:
    """Record offset and committed offset of visible offsets, by key."""
    return {
        tuple(row[name] for name in OFFSETS.key): (row["record_offset"], row["committed_offset"])
        for row in rows
        if row["committed_offset"] is not None
    }


def offsets_of(state: PartitionState) -> Offsets:
    return {
        (state.log_partition, group_id, *where): (offset.record_offset, offset.committed_offset)
        for group_id, offsets in state.offsets.items()
        for where, offset in offsets.items()
    }


def answered(state: PartitionState) -> Offsets:
    """Those that are neither negative nor misplaced."""
    return {
        key: offset for key, offset in offsets_of(state).items() if offset[1] >= 0 and not state.is_misplaced(key[1])
    }


def groups_in(rows: Iterable[dict[str, Any]]) -> Groups:
    """Type and state of groups that exist."""
    return {row["group_id"]: (row["group_type"], row["state"]) for row in rows if row["state"] != "Dead"}


def groups_of(state: PartitionState) -> Groups:
    found = {name: describe_group(group.group_type, group.records) for name, group in state.groups.items()}
    return {name: (each.group_type, each.state) for name, each in found.items()}


def run_schedule(folder: Path, seed: int, semantics: CoordinatorSemantics) -> list[str]:
    """Run a schedule of this seed; returns what was done."""
    whole = Run(folder, seed, semantics)
    chance = whole.chance
    for _ in range(chance.randrange(3)):
        whole.append()
    if chance.random() < 0.8:
        store = opened(folder)
        fold_log(store, SETTINGS, CLOCK)
        if chance.random() < 0.8:
            whole.append()
            fold_log(store, SETTINGS, CLOCK)
            assert publish(store, CLOCK)
    folds = chance.choice([1, 1, 2])
    reloads = [chance.choice([None, [0], [1]]) for _ in range(chance.choice([0, 1, 1, 2]))]
    processes = [
        Process("append", whole.append_all),
        *(Process(f"fold {number}", whole.fold) for number in range(folds)),
        *(Process(f"reload {number}", partial(whole.reload, each)) for number, each in enumerate(reloads)),
        *(Process(f"publishing {number}", whole.publish) for number in range(chance.choice([1, 2]))),
        Process("reader", whole.read_states),  # one: of `StateReader.current` Python 3.11 computes one at a time
    ]
    if chance.random() < 0.3:
        processes.append(Process("upkeep", whole.keep_small))
    elif folds == 1:  # docs/adr/0037: else a query is not exact
        processes.append(Process("query", whole.query))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "MAX_BACKOFF_MS", 1)
        patch.setattr(retry, "RETRY_BACKOFF_MS", 1)
        schedule_tables(patch, whole.check)
        done = run(processes, chance, kills=chance.choice([0, 1, 3]))
    whole.finish()
    return done


@pytest.mark.parametrize(("seed", "semantics"), crossed(range(8), list(CoordinatorSemantics)))
def test_any_schedule_keeps_what_is_specified(
    place: Path, seed: int, semantics: CoordinatorSemantics, run_seed: int
) -> None:
    done = run_schedule(place / "store", seed + run_seed, semantics)
    assert len(done) > 30


@pytest.mark.long
@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_hundreds_of_schedules_keep_what_is_specified(
    place: Path, semantics: CoordinatorSemantics, run_seed: int
) -> None:
    for seed in rounds(place, 250):
        run_schedule(place / "store", 1_000 + seed + run_seed, semantics)
        remove_place(place / "store")
