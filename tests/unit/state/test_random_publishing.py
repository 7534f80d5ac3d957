"""Random logs, in random batches, with folds, publishings, reloads and kills between: what the published tables have.

deltalake reads them, and the row-wise replay specifies them. test_schedules.py has several processes at a time.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.folded_stores import new_store, opened
from tests.logs import in_batches
from tests.places import remove_place, rounds
from tests.published import Specification, assert_published, read, read_as_of
from tests.random_logs import ANY, IN_SEGMENTS, LEGAL, NARROW, random_log, several
from tests.spark.stores import CLOCK, appended, assert_as_reference
from tests.unit.state.state_files import progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.store.store import Store

SETTINGS = Settings()
SHAPES = (ANY, LEGAL, NARROW, several(2), several(5), IN_SEGMENTS)
MERGED = ("consumer_groups", "current_offsets")


class Killed(BaseException):
    """Ends a process at a commit."""


def killed_at(patch: pytest.MonkeyPatch, commits: int, *, after: bool) -> None:
    """Kill the process before or after so many more commits."""
    left = commits
    whole = TableFolder.create_version

    def create_version(self: TableFolder, *arguments: Any, **named: Any) -> bool:  # noqa: ANN401
        nonlocal left
        left -= 1
        if not left and not after:
            raise Killed
        found = whole(self, *arguments, **named)
        if not left:
            raise Killed
        return found

    patch.setattr(TableFolder, "create_version", create_version)


def restarted(folder: Path, act: Callable[[Store], object], chance: random.Random) -> None:
    """Run a process on a store, maybe killed at one of its commits."""
    with pytest.MonkeyPatch.context() as patch:
        if chance.random() < 0.4:
            killed_at(patch, chance.randrange(1, 12), after=chance.random() < 0.5)
        with contextlib.suppress(Killed):
            act(opened(folder))


def keep_small(store: Store) -> None:
    progress = progress_of(store)
    compact_facts(store, progress)
    drop_replaced(store, progress)


def a_process(chance: random.Random, log_partitions: int) -> Callable[[Store], object]:
    """A random process of a store."""
    some = chance.choice([None, [chance.randrange(log_partitions)]])
    processes: list[tuple[int, Callable[[Store], object]]] = [
        (5, lambda store: fold_log(store, SETTINGS, CLOCK)),
        (4, lambda store: publish(store, CLOCK)),
        (2, lambda store: reload_partitions(store, some, SETTINGS, CLOCK)),
        (1, keep_small),
    ]
    ((_, chosen),) = chance.choices(processes, [weight for weight, _ in processes])
    return chosen


def assert_as_of_some_end(folder: Path, specified: Specification, ends: Sequence[dict[int, int]]) -> None:
    """Each log partition of a published table is as of one of these ends, no earlier than `published_as_of` says."""
    as_of = read_as_of(folder)
    for name in MERGED:
        rows = read(folder, name)
        for at in ends[0]:
            first = as_of.get(name, {}).get(at, 0)
            allowed = [specified.of_partition(name, at, end) for end in {each[at] for each in ends} if end >= first]
            assert [row for row in rows if row["log_partition"] == at] in allowed, f"{name} of log partition {at}"


def assert_random_log_is_published(folder: Path, seed: int, semantics: CoordinatorSemantics) -> None:
    chance = random.Random(f"{seed} {semantics}")
    shape = SHAPES[seed % len(SHAPES)]
    rows = random_log(chance, chance.choice([20, 60, 150]), shape).rows()
    specified = Specification(rows, shape.log_partitions, semantics)
    new_store(folder, shape.log_partitions, semantics)
    ends = [dict.fromkeys(range(shape.log_partitions), 0)]
    done: list[LogRow] = []
    for batch in in_batches(rows, chance.randrange(1, 6)):
        if batch:
            appended(folder, batch)
            done += batch
            ends.append(ends[-1] | {row.log_partition: row.record_offset + 1 for row in batch})
        for _ in range(chance.randrange(1, 4)):
            restarted(folder, a_process(chance, shape.log_partitions), chance)
            assert_as_of_some_end(folder, specified, ends)
        if progress_of(opened(folder)).partitions and chance.random() < 0.5:
            assert publish(opened(folder), CLOCK)
            assert_published(folder, done, shape.log_partitions, semantics)
    fold_log(opened(folder), SETTINGS, CLOCK)
    assert publish(opened(folder), CLOCK)
    assert_published(folder, rows, shape.log_partitions, semantics)
    last = {at: specified.end(at) for at in range(shape.log_partitions)}
    assert all(of_table == last for of_table in read_as_of(folder).values())
    assert_as_reference(folder, rows)


@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_random_logs_are_published_as_the_replay_specifies(
    place: Path, semantics: CoordinatorSemantics, run_seed: int
) -> None:
    for seed in range(6):
        assert_random_log_is_published(place / str(seed), seed + run_seed, semantics)


@pytest.mark.long
@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_hundreds_of_random_logs_are_published_as_specified(
    place: Path, semantics: CoordinatorSemantics, run_seed: int
) -> None:
    for seed in rounds(place, 250):
        assert_random_log_is_published(place / "store", seed + run_seed, semantics)
        remove_place(place / "store")
