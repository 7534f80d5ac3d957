"""Runs two stores for a while with all that users run on them, and plots memory, files and times of answers.

    .venv/bin/python -m benchmarks.soak [--minutes 20] [--plot docs/soak.svg]

`offsets follow` mirrors a live broker, whose groups commit, are deleted and expire; the broker compacts its topic. A
process with a coordinator does the same to an owned store, which `offsets fold` folds. Beside both run in turn
`maintain`, `clean-log`, `reload` and `verify`, and every ten seconds `check --group audit`. This group is deleted every
five minutes, and commits again a minute later: the alert has to come and to go. At the end the answers of broker and
coordinator, and replays, have to equal the state. The exit status is 1 if a program failed or an answer was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.admin import DeleteGroupsRequest

from benchmarks.background import beside
from benchmarks.broker import Broker, ended_by_sigterm
from benchmarks.follow import Committer, files_in, running
from benchmarks.processes import OFFSETS, ProcessTree
from benchmarks.table import markdown
from offsets_pipeline import Coordinator, OwnedStore
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.questions.report.charts import line_chart
from offsets_pipeline.questions.report.model import Point, TimeSeries
from offsets_pipeline.questions.report.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

    Look = Callable[[], float]

_LOG_PARTITIONS = 10
_GROUPS, _PARTITIONS = 100, 20
_SECONDS_A_COMMIT = 0.1  # of all offsets of a group: 200 offsets a second
_LOOK_SECONDS, _CHECK_SECONDS, _COMMAND_SECONDS = 5, 10, 15
_DELETE_SECONDS = 300
_GONE_SECONDS = 60  # until the group commits again
_SEEN_SECONDS = 20  # after which `check` has to know
_ERRORS = 2  # exit status of `check`
_PATIENCE_SECONDS = 120
_MIRROR, _OWNED = "mirror", "owned"
_AUDIT = "audit"  # the group that is deleted now and then
_RETENTION = """
offsets.retention.minutes=2
offsets.retention.check.interval.ms=10000
offsets.topic.segment.bytes=1048576
log.cleaner.backoff.ms=5000
log.cleaner.min.cleanable.ratio=0.1
"""
_CONFIG = """
[log]
delete_retention_ms = 60_000

[coordinator]
offsets_retention_minutes = 2
offsets_retention_check_interval_ms = 10_000

[spark]
driver_memory = "1g"
"""
_COMMANDS = (("maintain",), ("clean-log", "--older-than", "0"), ("reload",), ("verify",))
_TITLE, _LEGEND, _CHART_HEIGHT, _WIDTH = 18, 20, 250, 760


class Ran(NamedTuple):
    """A command that ended: its second since the start, its name with its store, its duration and exit status."""

    at: float
    name: str
    seconds: float
    status: int
    said: str


class Committing:
    """Commits of one store, the same for a broker and a coordinator, until `ended` is set.

    100 groups commit in turn. A new group each second commits once, so it expires. The group `audit` commits each
    second; it is deleted every five minutes, and commits again a minute later.
    """

    def __init__(self, commit: Callable[[str, int], object], delete: Callable[[str], object]) -> None:
        self._commit, self._delete = commit, delete
        self.committed: dict[str, int] = {}

    def run(self, ended: threading.Event | Event, deleted: Callable[[], object]) -> None:
        """Commit until the event is set; calls ``deleted`` before each deletion."""
        began = time.monotonic()
        gone_until, deletions = 0.0, 0
        for turn in itertools.count(1):
            if ended.wait(max(0.0, began + turn * _SECONDS_A_COMMIT - time.monotonic())):
                return
            now = time.monotonic() - began
            group_id = f"group-{turn % _GROUPS}"
            self._commit(group_id, turn)
            self.committed[group_id] = turn
            if turn % round(1 / _SECONDS_A_COMMIT) == 0:
                self._commit(f"once-{turn}", turn)
                if now > gone_until:
                    self._commit(_AUDIT, turn)
            if now > (deletions + 1) * _DELETE_SECONDS:
                deletions += 1
                gone_until = now + _GONE_SECONDS
                deleted()
                self._delete(_AUDIT)


class Follower(Committer):
    """Commits to the broker, and deletes groups there."""

    def delete(self, group_id: str) -> None:
        """Delete a group."""
        answer = self._send(DeleteGroupsRequest(groups_names=[group_id]))
        codes = {each.error_code for each in answer.results}
        if codes != {0}:
            sys.exit(f"soak: error: the broker did not delete {group_id}: error codes {sorted(codes)}")


def commit_owned(folder: str, config: str, ended: Event, deleted: Event, answers: Connection) -> None:
    """Commit to an owned store; sends the coordinator's answer for each group that commits, and what it committed."""
    with Coordinator.open(folder, load_settings(Path(config))) as coordinator:

        def commit(group_id: str, offset: int) -> None:
            coordinator.commit_offsets(group_id, {("orders", at): offset for at in range(_PARTITIONS)})

        committing = Committing(commit, lambda group_id: coordinator.delete_groups([group_id]))
        committing.run(ended, deleted.set)
        fetched = {
            group_id: {each.offset for each in coordinator.fetch_offsets(group_id).values()}
            for group_id in committing.committed
        }
        answers.send((committing.committed, fetched))


class Soak:
    """Two stores below a folder, and what was seen of them: by name, a value for each look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "soak.toml"
        self.config.write_text(_CONFIG, encoding="utf-8")
        self.began = time.monotonic()
        self.at: list[float] = []
        self.seen: dict[str, list[float]] = {}
        self.ran: list[Ran] = []
        self.deleted: dict[str, list[float]] = {_MIRROR: [], _OWNED: []}

    def second(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def store(self, name: str) -> str:
        """Location of a store."""
        return str(self.folder / name)

    def run(self, command: Sequence[str], store: str) -> Ran:
        """Run a command on a store, and keep how it ended."""
        at = self.second()
        arguments = [str(OFFSETS), command[0], "--store", self.store(store), "--config", str(self.config), *command[1:]]
        ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        said = (ran.stderr or ran.stdout).strip().splitlines()
        self.ran.append(Ran(at, f"{command[0]} {store}", self.second() - at, ran.returncode, said[-1] if said else ""))
        return self.ran[-1]

    def commands(self, ended: threading.Event) -> None:
        """Run the commands in turn on both stores, one every 15 seconds."""
        turns = itertools.cycle([(command, store) for command in _COMMANDS for store in (_MIRROR, _OWNED)])
        while not ended.wait(_COMMAND_SECONDS):
            self.run(*next(turns))

    def checks(self, ended: threading.Event) -> None:
        """Ask every ten seconds whether the group that is deleted is well, in one store, then in the other."""
        for store in itertools.cycle((_MIRROR, _OWNED)):
            if ended.wait(_CHECK_SECONDS):
                return
            self.check(store)

    def check(self, store: str) -> Ran:
        """Ask whether the group that is deleted is well."""
        return self.run(("check", "--group", _AUDIT), store)

    def look(self, watched: dict[str, Look], seconds: float) -> None:
        """Keep the watched values every five seconds, for so long."""
        while (now := self.second()) < seconds:
            self.at.append(now)
            for name, value in watched.items():
                self.seen.setdefault(name, []).append(value())
            time.sleep(max(0.0, now + _LOOK_SECONDS - self.second()))

    def faults(self) -> list[str]:
        """Return what went wrong: a command that failed, or an alert that is missing or false."""
        found = [
            f"{each.name} ended with {each.status}: {each.said}"
            for each in self.ran
            if each.status and "check" not in each.name
        ]
        for store, deleted in self.deleted.items():
            checks = [each for each in self.ran if each.name == f"check {store}"]
            for each in checks:
                gone = [each.at - at for at in deleted if -each.seconds < each.at - at < _GONE_SECONDS + _SEEN_SECONDS]
                alerts = each.status == _ERRORS
                missing = any(_SEEN_SECONDS < at < _GONE_SECONDS - each.seconds for at in gone) and not alerts
                if missing or (alerts and not gone):
                    found.append(f"{each.name} ended with {each.status} at {each.at:.0f} s: {each.said}")
            if deleted and not any(each.status == _ERRORS for each in checks):
                found.append(f"check {store} never told of a deletion")
        return found


def disk_mib(store: str) -> float:
    """Return the MiB of a store's files."""
    return sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file()) / 2**20


def soak(run: Soak, seconds: float) -> list[str]:
    """Run everything for so many seconds; returns what went wrong."""
    stores = (_MIRROR, _OWNED)
    processes = multiprocessing.get_context("spawn")
    broker = Broker(run.folder, _LOG_PARTITIONS, _RETENTION)
    broker.format()
    OwnedStore.create(run.store(_OWNED), _LOG_PARTITIONS)
    ended, deleted = processes.Event(), processes.Event()
    received, sent = processes.Pipe(duplex=False)
    with ExitStack() as stack:
        address = stack.enter_context(broker.serving())
        follower = Follower(address, _PARTITIONS)
        config = ("--config", str(run.config))
        kafka = ("--bootstrap-server", address)
        follow = running(run.folder, "follow", "--store", run.store(_MIRROR), *config, *kafka, "--sample", "20")
        followed = stack.enter_context(follow)
        folded = stack.enter_context(running(run.folder, "fold", "--store", run.store(_OWNED), *config))
        owner = processes.Process(
            target=commit_owned, args=(run.store(_OWNED), str(run.config), ended, deleted, sent), daemon=True
        )
        owner.start()
        mirrored, over = Committing(follower.commit_all, follower.delete), threading.Event()
        stack.enter_context(
            beside(lambda: mirrored.run(ended, lambda: run.deleted[_MIRROR].append(run.second())), ended.set)
        )
        stack.enter_context(beside(lambda: note(deleted, run, over), over.set))
        wait_until(lambda: all(run.check(store).status != _ERRORS for store in stores))
        run.ran.clear()
        run.began = time.monotonic()
        stack.enter_context(beside(lambda: run.commands(over), over.set))
        stack.enter_context(beside(lambda: run.checks(over), over.set))
        run.look(
            {
                "memory of follow, MiB": ProcessTree(followed.pid).memory_mib,
                "memory of fold, MiB": ProcessTree(folded.pid).memory_mib,
                "memory of the coordinator, MiB": ProcessTree(owner.pid or 0).memory_mib,
                **{f"files, {store} store": partial(files_in, run.store(store)) for store in stores},
                **{f"disk, {store} store, MiB": partial(disk_mib, run.store(store)) for store in stores},
            },
            seconds,
        )
        over.set()
        ended.set()
        faults = run.faults()
        faults += [name for name, process in (("follow", followed), ("fold", folded)) if process.poll() is not None]
        committed, fetched = received.recv() if received.poll(_PATIENCE_SECONDS) else ({}, {})
        owner.join()
        if fetched != {group_id: {offset} for group_id, offset in committed.items()} or not committed:
            faults.append("the coordinator answers other offsets than were committed")
        for store, expected in ((_MIRROR, mirrored.committed), (_OWNED, committed)):
            if not shown_within(run, store, expected):
                faults.append(f"sql --store {store} shows other offsets than were committed")
        for command, store in (
            (("verify", "--against", address), _MIRROR),
            (("verify",), _OWNED),
            (("verify",), _MIRROR),
        ):
            ran = run.run(command, store)
            faults += [f"{ran.name} ended with {ran.status}: {ran.said}"] if ran.status else []
        return faults


def wait_until(done: Callable[[], bool]) -> None:
    """Wait until something is so; ends the program after two minutes."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            sys.exit("soak: error: no group is in the stores")
        time.sleep(1)


def note(deleted: Event, run: Soak, over: threading.Event) -> None:
    """Keep the times at which the other process deletes its group."""
    while not over.is_set():
        if deleted.wait(1):
            deleted.clear()
            run.deleted[_OWNED].append(run.second())


def shown_within(run: Soak, store: str, committed: dict[str, int]) -> bool:
    """Whether SQL shows these offsets within two minutes."""
    query = "SELECT group_id, min(committed_offset), max(committed_offset) FROM current_offsets GROUP BY ALL"
    asked = [str(OFFSETS), "sql", "--store", run.store(store), "--config", str(run.config), "--format", "csv", query]
    wanted = {f"{group_id},{offset},{offset}" for group_id, offset in committed.items()}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        ran = subprocess.run(asked, capture_output=True, text=True, check=True)
        if wanted <= set(ran.stdout.split()):
            return True
    return False


def plot(charts: Sequence[tuple[str, list[TimeSeries], list[Point]]], seconds: float) -> str:
    """Return an SVG of charts below each other, each with its title and the names of its lines."""
    parts, top = [], 0
    for number, (title, series, marks) in enumerate(charts):
        parts.append(f'<text x="8" y="{top + _TITLE}" class="title">{escape(title)}</text>')
        for place, line in enumerate(series):
            x = 60 + place * 230
            parts.append(
                f'<g class="s{place}"><path class="line" d="M{x} {top + _TITLE + 14}h30"/></g>'
                f'<text x="{x + 36}" y="{top + _TITLE + 18}">{escape(line.name)}</text>'
            )
        chart = line_chart(f"c{number}", title, title, series, (0, int(seconds * 1000)), range(len(series)), marks)
        top += _TITLE + _LEGEND
        parts.append(chart.replace("<svg ", f'<svg y="{top}" width="{_WIDTH}" height="240" ', 1))
        top += _CHART_HEIGHT
    style = STYLE + "text{font:12px sans-serif;fill:var(--text)}.title{font-weight:600}svg{background:var(--page)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">'
        f'<style>{escape(style, quote=False)}</style><rect width="100%" height="100%" style="fill:var(--page)"/>'
        f"{''.join(parts)}</svg>\n"
    )


def charts_of(run: Soak) -> list[tuple[str, list[TimeSeries], list[Point]]]:
    """Return the charts of what was seen; triangles are checks that found the deleted group missing."""

    def series(start: str) -> list[TimeSeries]:
        return [
            TimeSeries(name, [Point(int(at * 1000), value) for at, value in zip(run.at, values, strict=True)])
            for name, values in run.seen.items()
            if name.startswith(start)
        ]

    checks = [
        TimeSeries(name, [Point(int(each.at * 1000), each.seconds) for each in run.ran if each.name == name])
        for name in (f"check {_MIRROR}", f"check {_OWNED}")
    ]
    alerts = [Point(int(each.at * 1000), each.seconds) for each in run.ran if "check" in each.name and each.status > 1]
    return [
        ("Memory of the processes that go on, MiB", series("memory"), []),
        ("Files on disk", series("files"), []),
        ("Bytes on disk, MiB", series("disk"), []),
        ("Seconds until check answers; a triangle: the group is missing", checks, alerts),
    ]


def summary(run: Soak) -> str:
    """Return a table: the largest value of each quarter of the time, and the commands with their median seconds."""
    size = max(1, len(run.at) // 4)
    rows = [["what", *(f"quarter {number}" for number in range(1, 5))]]
    for name, values in run.seen.items():
        rows.append([f"{name}, at most", *(f"{max(values[at * size : (at + 1) * size]):,.0f}" for at in range(4))])
    for name in dict.fromkeys(each.name for each in run.ran):
        ran = [each.seconds for each in run.ran if each.name == name]
        rows.append(
            [f"seconds of {name}", f"{statistics.median(ran):.2f}", f"{max(ran):.2f} at most", f"{len(ran)} times", ""]
        )
    return markdown(rows)


def main() -> None:
    """Soak, print the table, and write the plot."""
    parser = argparse.ArgumentParser(
        description="Run two stores with all that users run on them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="how long")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where the plot is written")
    options = parser.parse_args()
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="offsets-soak-") as folder:
        run = Soak(Path(folder))
        faults = soak(run, options.minutes * 60)
        print(summary(run))
        if options.plot:
            options.plot.write_text(plot(charts_of(run), options.minutes * 60), encoding="utf-8")
        if faults:
            sys.exit("\n".join(f"soak: error: {each}" for each in faults))


if __name__ == "__main__":
    main()
