"""A store whose log grows at random while a stream folds it, with restarts, reloads, cleaning, upkeep and expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common import periodic
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator import expiry_runs
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.stream.fold_stream import FoldStream, start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.log.clean import clean_log
from tests.property.retention_rules import FIRST_MS, RETENTION_MS, SHAPE, SPAN_MS, by_the_rules
from tests.random_logs import IN_SEGMENTS, LogWriter, random_log
from tests.replays import references
from tests.spark.segments import write_log, write_prefix
from tests.spark.stores import CLOCK, assert_as_reference, described_offsets, folded_in, log_of
from tests.unit.coordinator.stores import append_rows
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.logs import Identity
    from tests.replays import Replayed
    from tests.spark.stores import Workbench

PARTITIONS = IN_SEGMENTS.log_partitions
DEADLINE_SECONDS = 240
STEPS = 12
#: Fewer misplaced groups than others, else an ingest says that the count of log partitions is wrong.
MIRRORED_LOG = replace(IN_SEGMENTS, strays=0.1)
#: What a coordinator writes about few groups, whose times are over within four milliseconds.
OWNED_LOG = replace(SHAPE, groups=SHAPE.groups[:16], log_partitions=PARTITIONS)


class Turn:
    """A store and its stream. ``done`` has the names of the steps.

    ``written`` has all rows that ever were in the log. ``folded`` has, for each log partition, those that the state was
    folded from: a reload begins with those that a cleaning has left.
    """

    def __init__(self, bench: Workbench, store: Path, chance: random.Random, clock: FixedClock = CLOCK) -> None:
        fold = replace(bench.settings.fold, trigger_interval_ms=20)
        self.bench = replace(bench, settings=replace(bench.settings, fold=fold))
        self.store, self.chance, self.clock = store, chance, clock
        self.done: list[str] = []
        self.written: dict[tuple[int, int], LogRow] = {}
        self.folded: dict[int, list[LogRow]] = {at: [] for at in range(PARTITIONS)}
        self._stream: FoldStream | None = None

    def append(self) -> None:
        """Append some records to the log."""
        raise NotImplementedError

    def run(self) -> None:
        """Take each step and some more, in a random order, and compare at the end."""
        steps = self.steps()
        names = [*steps, *self.chance.choices(list(steps), k=STEPS - len(steps))]
        self.chance.shuffle(names)
        try:
            self.start()
            for name in ["append", *names, "append"]:
                self.done.append(name)
                steps[name]()
            self.compare()
        except BaseException as error:
            error.add_note(f"after {self.done}")
            raise
        finally:
            self.stop()

    def steps(self) -> dict[str, Callable[[], None]]:
        """The steps by name."""
        return {
            "append": self.append,
            "restart": self.restart,
            "reload": self.reload,
            "clean": self.clean,
            "upkeep": self.upkeep,
            "compare": self.compare,
        }

    def start(self) -> None:
        """Start the stream."""
        self._stream = start_fold(Folding(self.bench.open(self.store), self.bench.settings, self.clock))

    def stop(self) -> None:
        """Stop the stream, and raise its error if it failed."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.stop()
            stream.await_end()

    def restart(self) -> None:
        """Stop the stream, sometimes append meanwhile, and start another."""
        self.stop()
        if self.chance.choice([False, True]):
            self.append()
        self.start()

    def reload(self) -> None:
        """Reload one log partition, or all, while the stream folds."""
        some = self.chance.choice([None, *range(PARTITIONS)])
        reloaded = range(PARTITIONS) if some is None else (some,)
        self.bench.reload(self.store, *(() if some is None else reloaded))
        rows = log_of(self.store)
        self.folded |= {at: [row for row in rows if row.log_partition == at] for at in reloaded}

    def clean(self) -> None:
        """Remove what no replay needs from the log, while the stream folds."""
        clean_log(self.bench.open(self.store), self.bench.settings, CLOCK)

    def upkeep(self) -> None:
        """Compact and vacuum the tables."""
        maintain_store(self.bench.open(self.store), CLOCK, self.bench.settings)

    def look(self) -> list[LogRow]:
        """Take what is new in the log; returns it."""
        new = [row for row in log_of(self.store) if (row.log_partition, row.record_offset) not in self.written]
        for row in new:
            self.written[row.log_partition, row.record_offset] = row
            self.folded[row.log_partition].append(row)
        return new

    def states(self) -> list[Replayed]:
        """The replay of all that ever was in the log."""
        return list(references(self.written.values(), PARTITIONS).values())

    def compare(self) -> None:
        """Wait until the stream has folded all, and compare state and answers with the replay."""
        rows = [row for of_one in self.folded.values() for row in of_one]
        wait_until("all is folded", lambda: self._folded_records() == len(rows), DEADLINE_SECONDS)
        assert_as_reference(self.store, rows, self.written.values())  # names of topics stay (R35)
        assert described_offsets(self.store) == sorted(
            (*identity, offset.committed_offset)
            for state in self.states()
            for identity, offset in state.current.items()
            if state.answers(identity[0]) and offset.committed_offset >= 0
        )

    def _folded_records(self) -> int:
        assert self._stream is not None
        assert self._stream.query.isActive
        return folded_in(self.store)


class MirroredTurn(Turn):
    """The log is ingested from segments of anything, also of damaged records. A broker expires its offsets (R4)."""

    def __init__(self, bench: Workbench, store: Path, chance: random.Random) -> None:
        """``store`` is empty and mirrored; segments are written beside it."""
        super().__init__(bench, store, chance)
        self._segments, self._share = store.with_name("segments"), 0.0
        rows = random_log(chance, 200, MIRRORED_LOG).rows()
        self._whole = write_log(self._segments / "whole", rows, partitions=PARTITIONS)

    def append(self) -> None:
        """Ingest the segments as they were somewhat later."""
        self._share = self.chance.uniform(max(self._share, 0.4), min(1.0, self._share + 0.5))
        prefix = self._segments / f"at-{self._share}"
        self.bench.ingest(self.store, write_prefix(self._whole, prefix, self._share, self.chance))
        self.look()


class OwnedTurn(Turn):
    """The log is a coordinator's, and the stream expires its offsets."""

    def __init__(self, bench: Workbench, store: Path, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
        """Make the store. Its stream looks every millisecond of the turn's clock for offsets to expire."""
        OwnedStore.create(store, PARTITIONS)
        expiry = CoordinatorSettings(
            offsets_retention_minutes=RETENTION_MS // 60_000, offsets_retention_check_interval_ms=1
        )
        bench = replace(bench, settings=replace(bench.settings, coordinator=expiry))
        super().__init__(bench, store, chance, FixedClock(FIRST_MS + RETENTION_MS - 1))
        self.expired: set[Identity] = set()
        self._writer, self._taken, self._runs = LogWriter(OWNED_LOG, chance), dict[int, int](), 0
        self._failed: list[int] = []  # log partitions of the last run of expiry
        run = expiry_runs.expire_once

        def counted(*arguments: Any) -> expiry_runs.ExpiryRun:  # noqa: ANN401 - those of a run
            done = run(*arguments)  # in the thread of expiry: what it raises would be a warning
            self._failed = done.failed
            self._runs += 1
            return done

        patch.setattr(expiry_runs, "expire_once", counted)
        patch.setattr(periodic, "_LOOK_SECONDS", 0.02)

    def steps(self) -> dict[str, Callable[[], None]]:
        """Those of any store, and expiry."""
        return super().steps() | {"expire": self.expire}

    def append(self) -> None:
        """Append as another process does."""
        for _ in range(self.chance.randrange(5, 40)):
            self._writer.step()
        written = self._writer.log.partitions
        new = [row for at, rows in sorted(written.items()) for row in rows[self._taken.get(at, 0) :]]
        self._taken = {at: len(rows) for at, rows in written.items()}
        append_rows(self.store, new, PARTITIONS)
        assert len(self.look()) == len(new)

    def start(self) -> None:
        """Start the stream, which expires what is over by now."""
        self._expect(super().start)

    def expire(self) -> None:
        """Let some milliseconds pass."""
        self._expect(lambda: self.clock.advance_ms(self.chance.randint(1, SPAN_MS)))

    def _expect(self, begin: Callable[[], None]) -> None:
        """Expect that one run of expiry takes what the rules say of a time, and nothing else."""
        before, runs = self.states(), self._runs
        begin()
        due = by_the_rules(before, self.clock.now_ms())
        wait_until("a run of expiry", lambda: self._runs > runs, DEADLINE_SECONDS)
        assert not self._failed
        assert all(row.value is None for row in self.look())
        after = self.states()
        assert _offsets(before) - _offsets(after) == due.offsets
        assert _groups(before) - _groups(after) == due.groups
        assert self._runs == runs + 1
        self.expired |= due.offsets


def _offsets(states: list[Replayed]) -> set[Identity]:
    return {identity for state in states for identity in state.offsets}


def _groups(states: list[Replayed]) -> set[str]:
    return {group_id for state in states for group_id in state.groups if state.answers(group_id)}
