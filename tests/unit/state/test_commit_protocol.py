"""The commit protocol in all interleavings of its processes, killed anywhere; orders that are wrong are found out.

test_schedules.py runs the program itself under random schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.state.commit_protocol import (
    APPENDS,
    GROUP_OF,
    KEYS,
    Append,
    Drop,
    Fold,
    LookingFold,
    Memory,
    Program,
    Publishing,
    Reload,
    SparkRead,
    StateRead,
    Step,
    Violated,
    World,
    explore,
    newest_version,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLD, LOOKING_FOLD, PUBLISHING, RELOAD = Fold(), LookingFold(), Publishing(), Reload()
STATE_READ, SPARK_READ, DROP = StateRead(), SparkRead(), Drop()
TWO_APPENDS, ONE_APPEND = Append(*APPENDS), Append(APPENDS[-1])


class ReadsWhatNoGroupHides(SparkRead):
    """A query for keys that are answered whether or not their group is gone."""

    keys = KEYS - GROUP_OF.keys()


def name_of(processes: Sequence[Program]) -> str:
    return " ".join(type(each).__name__ for each in processes)


def long(*processes: Program) -> object:
    """For test-long: a minute or more."""
    return pytest.param(processes, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "processes",
    [
        (TWO_APPENDS, FOLD, FOLD, PUBLISHING, STATE_READ),
        (TWO_APPENDS, FOLD, PUBLISHING, PUBLISHING, STATE_READ),
        (TWO_APPENDS, FOLD, PUBLISHING, PUBLISHING, SPARK_READ),
        (TWO_APPENDS, FOLD, FOLD, PUBLISHING, PUBLISHING),
        (TWO_APPENDS, FOLD, FOLD, RELOAD, STATE_READ),
        (ONE_APPEND, FOLD, RELOAD, PUBLISHING, STATE_READ),
        (ONE_APPEND, FOLD, RELOAD, PUBLISHING, SPARK_READ),
        (ONE_APPEND, RELOAD, PUBLISHING, DROP, STATE_READ),
        (ONE_APPEND, FOLD, RELOAD, RELOAD),
        (TWO_APPENDS, LOOKING_FOLD, RELOAD, PUBLISHING),
        (TWO_APPENDS, LOOKING_FOLD, FOLD, PUBLISHING, PUBLISHING),
        long(TWO_APPENDS, FOLD, RELOAD, PUBLISHING, STATE_READ),
        long(TWO_APPENDS, FOLD, RELOAD, PUBLISHING, ReadsWhatNoGroupHides()),
        long(TWO_APPENDS, FOLD, FOLD, PUBLISHING, PUBLISHING, STATE_READ),
        long(TWO_APPENDS, FOLD, FOLD, RELOAD, PUBLISHING),
        long(TWO_APPENDS, FOLD, RELOAD, PUBLISHING, PUBLISHING),
        long(ONE_APPEND, FOLD, FOLD, RELOAD, PUBLISHING),
        long(ONE_APPEND, RELOAD, RELOAD, PUBLISHING),
        long(ONE_APPEND, FOLD, RELOAD, RELOAD, STATE_READ),
    ],
    ids=name_of,
)
def test_every_interleaving_keeps_what_is_specified(processes: Sequence[Program]) -> None:
    found = explore(processes)
    assert found.worlds > 50
    assert found.states > 2_000


class NotesFirst(Publishing):
    """Says in the progress what is published before it is."""

    steps = (*Publishing.steps[:4], "keep", "note_first", "write_rows", "write_unstable", "drop", "write_as_of")

    def note_first(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        if world.progress.incarnation != memory.progress.incarnation:
            return world, None
        noted = world.progress._replace(published_to=memory.progress.folded_to)
        return replaced(world, noted), memory._replace(at=memory.at + 1)


class NamesTheLast(Publishing):
    """Names its own version, also if a later publishing has named a later one."""

    def note(self, world: World, memory: Memory) -> Step:
        named = world.progress.named
        after, memory_after = super().note(world, memory)
        if after.progress.named == max(named, memory.version):
            after = after._replace(progress=after.progress._replace(named=memory.version))
        return after, memory_after


class SwapsFirst(Reload):
    """Names its incarnation before the rows of it are there."""

    steps = (*Reload.steps[:-2], "swap_first", "write_rows")

    def swap_first(self, world: World, memory: Memory) -> Step:
        swapped, _ = self.swap(world, memory._replace(version=memory.seen))
        return swapped, self.conflict(memory) if swapped is world else memory._replace(at=memory.at + 1)


class PutsOlderRows(Reload):
    """Puts rows as of its start in place of later ones."""

    def keep(self, world: World, memory: Memory) -> Step:
        return self.skip(world, memory)


class KnowsNamedRows(LookingFold):
    """Takes the published rows that the progress names."""

    def read_known(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        return world, memory._replace(at=memory.at + 1, known=memory.progress.named)


class KnowsHiddenOffsets(LookingFold):
    """Looks up offsets of a group that may be gone."""

    looks_up = KEYS


class ReadsNewestRows(StateRead):
    """Takes the newest published rows."""

    steps = ("read_progress", "read_facts", "read_newest", "answer")

    def read_newest(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        named = memory.progress._replace(named=newest_version(world))
        return world, memory._replace(at=memory.at + 1, progress=named)


class LooksOnce(StateRead):
    """Does not read the progress again."""

    def answer(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        known = {"incarnation": memory.progress.incarnation, "published_to": memory.progress.published_to}
        return super().answer(world._replace(progress=world.progress._replace(**known)), memory)


def without(program: type[Program], step: str) -> Program:
    return program(*(each for each in program.steps if each != step))


def in_order(program: type[Program], *steps: str) -> Program:
    """The program with these steps first."""
    return program(*steps, *(each for each in program.steps if each not in steps))


@pytest.mark.parametrize(
    ("processes", "what"),
    [
        # the order of the decision's table, and others
        ((FOLD, RELOAD, in_order(Publishing, *Publishing.steps[:7], "drop", "note"), STATE_READ), "a reader answers"),
        ((FOLD, FOLD, in_order(Publishing, *Publishing.steps[:5], "write_rows", "keep")), "after one more|a reader"),
        ((FOLD, NotesFirst()), "after one more fold and publishing"),
        ((FOLD, SwapsFirst(), STATE_READ), "a reader answers"),
        ((FOLD, RELOAD, in_order(SparkRead, "read_facts", "read_progress")), "a query answers"),
        ((FOLD, PUBLISHING, in_order(SparkRead, "read_progress", "read_published")), "a query answers"),
        ((FOLD, PUBLISHING, in_order(SparkRead, "read_published")), "a query answers"),
        # two publishings
        ((FOLD, FOLD, *[in_order(Publishing, "read_progress", "look")] * 2), "published are|after one more"),
        (
            (FOLD, FOLD, *[in_order(Publishing, "read_progress", "read_facts", "look")] * 2),
            "published are|after one more",
        ),
        ((FOLD, FOLD, *[NamesTheLast()] * 2), "after one more|a reader"),
        # a publishing and a reload
        ((FOLD, RELOAD, without(Publishing, "fence"), SPARK_READ), "a query answers"),
        ((RELOAD, without(Reload, "fence"), PUBLISHING), "published are"),
        ((FOLD, PutsOlderRows(), PUBLISHING), "published are"),
        # readers
        ((FOLD, FOLD, PUBLISHING, ReadsNewestRows()), "a reader answers"),
        ((FOLD, PUBLISHING, LooksOnce()), "a reader answers"),
        ((FOLD, KnowsNamedRows(), PUBLISHING), "a fold knows"),
        # limits: no query lasts so long, a lease keeps two folds apart, and no fold looks up what a group hides
        ((FOLD, RELOAD, DROP, SPARK_READ), "a query answers"),
        # a fold swaps while a reload writes its rows, and a group that they lack has come back: a limit of the ADR
        ((FOLD, RELOAD, SPARK_READ), "a query answers None for b"),
        ((FOLD, FOLD, PUBLISHING, SPARK_READ), "a query answers"),
        ((FOLD, KnowsHiddenOffsets(), PUBLISHING), "a fold knows"),
    ],
)
def test_wrong_orders_are_found_out(processes: Sequence[Program], what: str) -> None:
    with pytest.raises(Violated, match=what):
        explore((TWO_APPENDS, *processes))
