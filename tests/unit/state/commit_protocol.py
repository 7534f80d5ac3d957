"""The commit protocol of the state as a small machine, and a search through all of its interleavings (docs/adr/0037).

A `World` has the tables of a store as values. A program is a function of the world and of what its process has read so
far; each call does one read of a table or one commit. `explore` visits each world and each place in the programs that
any order of these calls reaches. A process that is killed is one that is never called again, so each visited world is
also one in which any of the processes have died.

The log has one log partition and keys instead of offsets. One key is a group: while it is gone its offsets are not
answered, and so not published, but they answer again when the group gets a commit (R14). What an actual fold,
publishing or reload does beyond that is left to test_schedules.py, which runs them.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

#: The records: a key, and whether it gets a value or a tombstone.
LOG = (
    *(("a", True), ("b", True)),
    *(("a", False), ("c", True), ("group", False)),
    *(("c", False), ("a", True), ("d", True)),
)
#: The log has these records at first, folded and published. Two appends each delete a key and give one a value; the
#: first removes the group of `b`, the second commits another offset of it.
FIRST_END, APPENDS = 2, (5, 8)
#: The group of keys. A value of these is a commit: the group exists.
GROUP_OF = {"b": "group", "d": "group"}
KEYS = frozenset(key for key, _ in LOG)


class Row(NamedTuple):
    """A fact, or with a value a published row."""

    key: str
    record_offset: int
    is_value: bool


Rows = frozenset[Row]


class File(NamedTuple):
    """A file of facts: of one fold, reload or publishing."""

    number: int
    incarnation: int
    folded_to: int
    rows: Rows


class Published(NamedTuple):
    """A version of the published table."""

    incarnation: int
    rows: Rows


class Progress(NamedTuple):
    """A version of `fold_progress`. ``named`` is the version of the published table that belongs to it."""

    version: int
    incarnation: int
    folded_to: int
    published_to: int
    named: int


class Derived(NamedTuple):
    """A version of a table that is written as a whole: `unstable_offsets`, `published_as_of`. It is as of ``end``."""

    version: int
    end: int


class World(NamedTuple):
    """All tables. ``published`` has each version. ``reserved`` is the last incarnation that a reload reserved."""

    log_end: int
    progress: Progress
    facts: frozenset[File]
    published: tuple[Published, ...]
    unstable: Derived
    as_of: Derived
    reserved: int


class Memory(NamedTuple):
    """What a process has read and made so far; ``at`` is its place in its program.

    ``seen`` and ``known`` are versions of the published table, ``version`` the one that the process has committed.
    ``conflicts`` counts what a reload has lost.
    """

    at: int = 0
    progress: Progress | None = None
    facts: frozenset[File] = frozenset()
    seen: int = -1
    known: int = -1
    version: int = -1
    unstable: int = -1
    as_of: int = -1
    incarnation: int = 0
    end: int = 0
    published_to: int = 0
    conflicts: int = 0


#: A world, and the memory of the process that was called; None if it has ended.
Step = tuple[World, Memory | None]


class Violated(AssertionError):
    """An invariant that does not hold."""


# --- what is specified


@cache
def state(end: int) -> Rows:
    """The last value of each key that is answered, of the records before an end."""
    return values(changes(0, end))


@cache
def changes(start: int, end: int) -> Rows:
    """The last record of each key, of the records between, and what they say of the group."""
    last: dict[str, Row] = {}
    for place in range(start, end):
        key, is_value = LOG[place]
        last[key] = Row(key, place, is_value)
        if is_value and key in GROUP_OF:
            last[GROUP_OF[key]] = Row(GROUP_OF[key], place, is_value)
    return frozenset(last.values())


def newest(facts: Iterable[Row], published: Iterable[Row]) -> Rows:
    """The record of each key with the highest record offset."""
    found: dict[str, Row] = {}
    for row in (*published, *facts):
        if row.key not in found or found[row.key].record_offset <= row.record_offset:
            found[row.key] = row
    return frozenset(found.values())


def ends_between(first: int, last: int) -> list[int]:
    """The ends that the log has had between two."""
    return [end for end in (FIRST_END, *APPENDS) if first <= end <= last]


def values(rows: Rows) -> Rows:
    """The rows that are answered, of the newest rows of all keys: a group that is gone hides its offsets."""
    gone = {row.key for row in rows if not row.is_value}
    return frozenset(row for row in rows if row.is_value and GROUP_OF.get(row.key) not in gone)


def rows_of(facts: Iterable[File], incarnation: int, end: int = len(LOG)) -> list[Row]:
    """The facts of an incarnation, of folds up to an end."""
    return [row for file in facts if file.incarnation == incarnation and file.folded_to <= end for row in file.rows]


def belonging(world: World, progress: Progress) -> int:
    """The newest version of the published table with rows of the incarnation of a progress."""
    later = range(progress.named + 1, len(world.published))
    return max(
        (each for each in later if world.published[each].incarnation == progress.incarnation), default=progress.named
    )


# --- commits


def added(world: World, incarnation: int, folded_to: int, rows: Rows) -> World:
    """Append facts."""
    if not rows:
        return world
    number = max((file.number for file in world.facts), default=0) + 1
    return world._replace(facts=world.facts | {File(number, incarnation, folded_to, rows)})


# --- the programs


class Program:
    """A process that writes or reads the state: the names of its steps, in order."""

    steps: tuple[str, ...] = ()

    def __init__(self, *steps: str) -> None:
        self.steps = steps or self.steps

    def __call__(self, world: World, memory: Memory) -> Step:
        """Do the next step."""
        found: Step = getattr(self, self.steps[memory.at])(world, memory)
        world, after = found
        return found if after is None or after.at < len(self.steps) else (world, None)

    def skip(self, world: World, memory: Memory) -> Step:
        """Do the step after this one, which has nothing to read or to commit."""
        return self(world, memory._replace(at=memory.at + 1))

    def from_step(self, name: str, memory: Memory) -> Memory:
        """The memory of a process that goes on with this step."""
        return memory._replace(at=self.steps.index(name))

    def read_progress(self, world: World, memory: Memory) -> Step:
        return world, memory._replace(at=memory.at + 1, progress=world.progress)

    def read_facts(self, world: World, memory: Memory) -> Step:
        return world, memory._replace(at=memory.at + 1, facts=world.facts)

    def read_known(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        return world, memory._replace(at=memory.at + 1, known=belonging(world, memory.progress))

    def fence(self, world: World, memory: Memory) -> Step:
        """If a reload has written rows and may still name them: from now on it cannot swap the progress."""
        progress = memory.progress
        assert progress is not None
        if memory.seen == memory.version or world.published[memory.seen].incarnation <= progress.incarnation:
            return self.skip(world, memory)
        if world.progress.version != progress.version:
            return world, self.conflict(memory)
        world = replaced(world, progress)
        return world, memory._replace(at=memory.at + 1, progress=world.progress)

    def conflict(self, memory: Memory) -> Memory | None:
        """The memory of a process that another one has overtaken; None if it gives up."""
        raise NotImplementedError


class Append(Program):
    """The source of the log appends up to one end after the other."""

    steps: tuple[str, ...] = ("append",)

    def __init__(self, *ends: int) -> None:
        super().__init__()
        self._ends = ends

    def append(self, world: World, memory: Memory) -> Step:
        world = world._replace(log_end=self._ends[memory.end])
        return world, memory._replace(end=memory.end + 1) if memory.end + 1 < len(self._ends) else None


class Fold(Program):
    """`fold_log`: until the log has no records that are not folded."""

    steps: tuple[str, ...] = ("read_progress", "read_log", "append", "swap")

    def read_log(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        is_done = world.log_end == memory.progress.folded_to
        return world, None if is_done else memory._replace(at=memory.at + 1, end=world.log_end)

    def append(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        rows = changes(memory.progress.folded_to, memory.end)
        return added(world, memory.progress.incarnation, memory.end, rows), memory._replace(at=memory.at + 1)

    def swap(self, world: World, memory: Memory) -> Step:
        """`FoldProgress.swap`: a publishing is not in the way."""
        known, found = memory.progress, world.progress
        assert known is not None
        if (found.incarnation, found.folded_to) != (known.incarnation, known.folded_to):
            return world, Memory()  # another fold came first
        return replaced(world, found._replace(folded_to=memory.end)), None


class LookingFold(Fold):
    """A fold that looks up the known state of the groups of its records.

    It does not look up offsets of a group that may be gone: only folds of `classic` semantics look up offsets, and
    there offsets that a group tombstone left behind make a group.
    """

    looks_up = frozenset({"a", "c", "group"})
    steps: tuple[str, ...] = ("read_progress", "read_facts", "read_known", "read_log", "append", "swap")

    def swap(self, world: World, memory: Memory) -> Step:
        after, memory_after = super().swap(world, memory)
        if memory_after is None:
            assert memory.progress is not None
            known = world.published[memory.known].rows
            facts = rows_of(memory.facts, memory.progress.incarnation)
            check_answer("a fold knows", facts, known, memory, world, self.looks_up)
        return after, memory_after


class Publishing(Program):
    """`publish`."""

    steps: tuple[str, ...] = (
        *("look", "read_progress", "read_facts", "read_known"),
        *("fence", "keep", "write_rows", "write_unstable", "note", "drop", "write_as_of"),
    )

    def look(self, world: World, memory: Memory) -> Step:
        """What a later commit of this publishing must find unchanged."""
        rows, unstable, as_of = newest_version(world), world.unstable.version, world.as_of.version
        return world, memory._replace(at=memory.at + 1, seen=rows, unstable=unstable, as_of=as_of)

    def conflict(self, memory: Memory) -> None:  # noqa: ARG002
        return None

    def keep(self, world: World, memory: Memory) -> Step:
        """`Covered.keep`: facts that stay, among them rows that leave the published table and are nowhere else."""
        progress = memory.progress
        assert progress is not None
        if self._has_nothing_to_do(memory):
            return self.skip(world, memory)
        rows = self._counting(world, memory)
        world = added(world, progress.incarnation, progress.folded_to, rows - values(rows))
        for file in sorted(memory.facts):
            if file.incarnation == progress.incarnation and file.folded_to > progress.folded_to:
                world = added(world, progress.incarnation, file.folded_to, file.rows)
        return world, memory._replace(at=memory.at + 1)

    def write_rows(self, world: World, memory: Memory) -> Step:
        progress = memory.progress
        assert progress is not None
        if self._has_nothing_to_do(memory):
            return self.skip(world, memory)
        if newest_version(world) != memory.seen:
            return world, None  # a conflict
        rows = values(self._counting(world, memory))
        world = world._replace(published=(*world.published, Published(progress.incarnation, rows)))
        return world, memory._replace(at=memory.at + 1, version=newest_version(world))

    def write_unstable(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        end = memory.progress.folded_to
        if world.unstable.end == end:
            return world, memory._replace(at=memory.at + 1)
        if world.unstable.version != memory.unstable:
            return world, None
        return world._replace(unstable=Derived(memory.unstable + 1, end)), memory._replace(at=memory.at + 1)

    def note(self, world: World, memory: Memory) -> Step:
        """`FoldProgress.note_published`: reads the progress again if a fold is in the way."""
        known, found = memory.progress, world.progress
        assert known is not None
        if self._did_nothing(memory):
            return world, memory._replace(at=memory.at + 1)
        if found.incarnation != known.incarnation:
            return world, Memory()  # a reload came first: publish again
        noted = found._replace(
            published_to=max(found.published_to, known.folded_to), named=max(found.named, memory.version)
        )
        return replaced(world, noted), memory._replace(at=memory.at + 1)

    def drop(self, world: World, memory: Memory) -> Step:
        progress = memory.progress
        assert progress is not None
        gone = {file for file in memory.facts if file.incarnation == progress.incarnation}
        if self._did_nothing(memory):
            return world, memory._replace(at=memory.at + 1)
        if not gone <= world.facts:
            return world, None  # a conflict
        return world._replace(facts=world.facts - gone), memory._replace(at=memory.at + 1)

    def write_as_of(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        if world.as_of.version != memory.as_of:
            return world, None
        end = memory.progress.folded_to
        return world._replace(as_of=Derived(memory.as_of + 1, end)), memory._replace(at=memory.at + 1)

    @staticmethod
    def _counting(world: World, memory: Memory) -> Rows:
        """The rows that count as of the progress."""
        assert memory.progress is not None
        facts = rows_of(memory.facts, memory.progress.incarnation, memory.progress.folded_to)
        return newest(facts, world.published[memory.known].rows)

    @staticmethod
    def _has_nothing_to_do(memory: Memory) -> bool:
        assert memory.progress is not None
        return memory.known == memory.seen and memory.progress.published_to == memory.progress.folded_to

    @staticmethod
    def _did_nothing(memory: Memory) -> bool:
        return memory.version < 0


class Reload(Program):
    """`reload_partitions` of the whole log. It gives up after three conflicts: the real one after more, but two reloads
    that fence each other would never end."""

    steps: tuple[str, ...] = (
        *("read_progress", "reserve", "read_log", "append"),
        *("look", "read_progress_again", "catch_up", "keep", "fence", "write_rows", "swap"),
    )

    def conflict(self, memory: Memory) -> Memory | None:
        if memory.conflicts == 2:
            return None
        return self.from_step("look", memory._replace(conflicts=memory.conflicts + 1))

    def reserve(self, world: World, memory: Memory) -> Step:
        number = world.reserved + 1
        return world._replace(reserved=number), memory._replace(at=memory.at + 1, incarnation=number)

    def read_log(self, world: World, memory: Memory) -> Step:
        return world, memory._replace(at=memory.at + 1, end=world.log_end, published_to=world.log_end)

    def append(self, world: World, memory: Memory) -> Step:
        """What is not answered."""
        rows = changes(0, memory.end) - state(memory.end)
        return added(world, memory.incarnation, memory.end, rows), memory._replace(at=memory.at + 1)

    def look(self, world: World, memory: Memory) -> Step:
        return world, memory._replace(at=memory.at + 1, seen=newest_version(world))

    def read_progress_again(self, world: World, memory: Memory) -> Step:
        if world.progress.incarnation > memory.incarnation:
            return world, None  # another reload ended first: an error
        return self.read_progress(world, memory)

    def catch_up(self, world: World, memory: Memory) -> Step:
        """Append what was folded since it read the log."""
        assert memory.progress is not None
        if memory.progress.folded_to > memory.end:
            rows = changes(memory.end, world.log_end)
            world = added(world, memory.incarnation, world.log_end, rows)
            memory = memory._replace(end=world.log_end)
        return world, memory._replace(at=memory.at + 1)

    def keep(self, world: World, memory: Memory) -> Step:
        """Append what is not answered of what it caught up, if its rows are to be merged with that.

        So no earlier rows replace later ones.
        """
        assert memory.progress is not None
        if memory.seen == memory.version or memory.progress.folded_to <= memory.published_to:
            return self.skip(world, memory)
        world = added(world, memory.incarnation, memory.end, changes(0, memory.end) - state(memory.end))
        return world, memory._replace(at=memory.at + 1, published_to=memory.end)

    def write_rows(self, world: World, memory: Memory) -> Step:
        """Put its rows in place of all, or if they are there, the same again: a publishing that looked conflicts."""
        assert memory.progress is not None
        if newest_version(world) != memory.seen:
            return world, self.conflict(memory)
        rows = Published(memory.incarnation, state(memory.published_to))
        world = world._replace(published=(*world.published, rows))
        return world, memory._replace(at=memory.at + 1, version=newest_version(world))

    def swap(self, world: World, memory: Memory) -> Step:
        known = memory.progress
        assert known is not None
        if world.progress.version != known.version:
            return world, self.conflict(memory)
        end = max(known.folded_to, memory.end)
        progress = Progress(known.version, memory.incarnation, end, memory.published_to, memory.version)
        return replaced(world, progress), None


class Drop(Program):
    """`drop_replaced`: removes facts of incarnations that newer ones have replaced."""

    steps: tuple[str, ...] = ("read_progress", "drop")

    def drop(self, world: World, memory: Memory) -> Step:
        assert memory.progress is not None
        gone = {file for file in world.facts if file.incarnation < memory.progress.incarnation}
        return world._replace(facts=world.facts - gone), None


class StateRead(Program):
    """`StateReader`: it begins again if the progress names another incarnation or another end at the end."""

    steps: tuple[str, ...] = ("read_progress", "read_facts", "answer")

    def answer(self, world: World, memory: Memory) -> Step:
        progress, found = memory.progress, world.progress
        assert progress is not None
        if (progress.incarnation, progress.published_to) != (found.incarnation, found.published_to):
            return world, Memory()
        known = world.published[progress.named].rows
        check_answer("a reader answers", rows_of(memory.facts, progress.incarnation), known, memory, world)
        return world, None


class SparkRead(Program):
    """A query in Spark over a view: each table as of the moment at which the query resolves it."""

    keys = KEYS
    steps: tuple[str, ...] = ("read_progress", "read_facts", "read_published", "answer")

    def __call__(self, world: World, memory: Memory) -> Step:
        if memory.at == 0:
            memory = memory._replace(end=world.progress.folded_to)
        return super().__call__(world, memory)

    def read_published(self, world: World, memory: Memory) -> Step:
        return world, memory._replace(at=memory.at + 1, known=newest_version(world))

    def answer(self, world: World, memory: Memory) -> Step:
        """As `StateTable.newest_in_spark`. A key is answered as at some time of the query, each key for itself."""
        assert memory.progress is not None
        published_to = memory.progress.published_to
        facts, rows = rows_of(memory.facts, memory.progress.incarnation), world.published[memory.known].rows
        counting = [
            fact
            for fact in newest(facts, ())
            if fact.record_offset >= published_to
            or not any(row.key == fact.key and row.record_offset > fact.record_offset for row in rows)
        ]
        answers = [fact for fact in counting if fact.is_value]
        answers += [
            row
            for row in rows
            if not any(
                fact.key == row.key and (fact.record_offset >= published_to or fact.record_offset >= row.record_offset)
                for fact in facts
            )
        ]
        gone = {fact.key for fact in counting if not fact.is_value}
        answers = [row for row in answers if GROUP_OF.get(row.key) not in gone]
        keys = [row.key for row in answers]
        if len(set(keys)) != len(keys):
            raise Violated(f"a query returns a key twice: {shown(answers)}")
        states = [state(end) for end in ends_between(memory.end, world.log_end)]
        for key in self.keys:
            allowed = [next((row for row in each if row.key == key), None) for each in states]
            found = next((row for row in answers if row.key == key), None)
            if found not in allowed:
                raise Violated(f"a query answers {found} for {key}, which never was the state meanwhile: {allowed}")
        return world, None


def check_answer(
    who: str, facts: Iterable[Row], rows: Rows, memory: Memory, world: World, keys: Collection[str] = KEYS
) -> None:
    """Raise Violated unless facts and published rows of keys are a state that was there since the progress was read."""
    assert memory.progress is not None
    found = {row for row in values(newest(facts, rows)) if row.key in keys}
    ends = ends_between(memory.progress.folded_to, world.log_end)
    if not any(found == {row for row in state(end) if row.key in keys} for end in ends):
        raise Violated(f"{who} {shown(found)}, which is the state at none of {ends}")


def newest_version(world: World) -> int:
    """The newest version of the published table."""
    return len(world.published) - 1


def replaced(world: World, progress: Progress) -> World:
    """The world with the next version of the progress."""
    return world._replace(progress=progress._replace(version=world.progress.version + 1))


def shown(rows: Iterable[Row]) -> str:
    """Rows, for messages."""
    return ", ".join(f"{row.key}@{row.record_offset}" for row in sorted(rows)) or "nothing"


# --- the search


START = World(
    FIRST_END,
    Progress(0, 1, FIRST_END, FIRST_END, 0),
    frozenset(),
    (Published(1, state(FIRST_END)),),
    Derived(0, FIRST_END),
    Derived(0, FIRST_END),
    1,
)


class Exploration(NamedTuple):
    """How much was visited."""

    states: int
    worlds: int


def explore(programs: Sequence[Program], start: World = START) -> Exploration:
    """Visit every state that these processes reach, each called at any time or never again.

    Raises Violated, with the calls that lead there.
    """
    worlds: dict[World, int] = {start: 0}
    memories: dict[Memory | None, int] = {None: 0, Memory(): 1}
    of_world, of_memory = list(worlds), list(memories)
    kinds = list(dict.fromkeys(map(id, programs)))
    kind_of = [kinds.index(id(each)) for each in programs]
    assert kind_of == sorted(kind_of), "equal programs are beside each other"
    is_alone = [kind_of.count(kind) == 1 for kind in kind_of]
    calls: dict[tuple[int, int, int], tuple[int, int]] = {}
    first = (0, *(1 for _ in programs))
    came_from: dict[tuple[int, ...], tuple[tuple[int, ...], int] | None] = {first: None}
    queue = deque([first])
    last = (first, 0)
    try:
        check(start)
        while queue:
            here = queue.popleft()
            for place, kind in enumerate(kind_of):
                memory = here[place + 1]
                if not memory or (place and kind_of[place - 1] == kind and here[place] == memory):
                    continue  # it has ended, or the same process in the same place was called just now
                call = (kind, here[0], memory)
                if call not in calls:
                    last = (here, place)
                    world, after = programs[place](of_world[here[0]], cast("Memory", of_memory[memory]))
                    if world not in worlds:
                        check(world)
                        worlds[world] = len(worlds)
                        of_world.append(world)
                    if after not in memories:
                        memories[after] = len(memories)
                        of_memory.append(after)
                    calls[call] = worlds[world], memories[after]
                found = list(here)
                found[0], found[place + 1] = calls[call]
                there = tuple(found) if is_alone[place] else _in_order(found, kind_of)
                if there not in came_from:
                    came_from[there] = (here, place)
                    queue.append(there)
    except Violated as violated:
        steps = [last]
        while (before := came_from[steps[-1][0]]) is not None:
            steps.append(before)
        path = [
            f"{type(programs[place]).__name__}.{programs[place].steps[cast('Memory', of_memory[here[place + 1]]).at]}"
            for here, place in reversed(steps)
        ]
        raise Violated(f"{violated}, after {', '.join(path)}") from None
    return Exploration(len(came_from), len(worlds))


def _in_order(found: list[int], kind_of: Sequence[int]) -> tuple[int, ...]:
    """The state with the memories of equal programs in order: it does not matter which of them is where."""
    memories = sorted(zip(kind_of, found[1:], strict=True))
    return (found[0], *(memory for _, memory in memories))


def check(world: World) -> None:
    """Raise Violated unless the published rows are a state, and all is right after one more fold and publishing."""
    rows = world.published[-1].rows
    ends = ends_between(world.as_of.end, world.log_end)
    if not any(rows == state(end) for end in ends):
        raise Violated(f"published are {shown(rows)}, which is the state at none of {ends}")
    for program in (Fold(), Publishing(), StateRead()):
        memory: Memory | None = Memory()
        while memory is not None:
            world, memory = program(world, memory)
    end, progress = world.log_end, world.progress
    wrong = {
        "the published rows": (world.published[-1].rows, state(end)),
        "the rows that the progress names": (world.published[progress.named].rows, state(end)),
        "the end of the fold": (progress.folded_to, end),
        "the end of the publishing": (progress.published_to, end),
        "unstable_offsets": (world.unstable.end, end),
        "published_as_of": (world.as_of.end, end),
    }
    for what, (found, expected) in wrong.items():
        if found != expected:
            raise Violated(f"after one more fold and publishing {what}: {found} instead of {expected}")
