"""The report of a store, against brokers' answers and the reference replay."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata, MemberOfGroup
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.questions.lag.commit_windows import WindowColumns
from offsets_pipeline.questions.lag.lag_rows import lag_rows
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.report.collect import (
    ReportOptions,
    _by_time,
    _urgency,
    collect_report,
    expiring_offsets,
    group_rows,
    reported_state,
    stale_groups,
)
from offsets_pipeline.questions.report.model import ExpiringGroup, GroupRow, StaleGroup, StaleGroups
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Retention, holdings_of
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import StoreProperties
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.store import Store
from tests.logs import CAPTURES, LogPartition, capture_partitions, capture_rows, oracle
from tests.member_bytes import assignment, subscription
from tests.simulated import END_MS, PRODUCED, START_MS, STEP_MS, STEPS, simulate_day
from tests.unit.history.history_stores import table_of as log_rows
from tests.unit.lag.stores import folded_store as timed_store
from tests.unit.lag.stores import timed_segment_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.questions.report.model import Report
    from offsets_pipeline.semantics.log_row import LogRow

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
OPTIONS = ReportOptions(rows=1_000, hours=1, stale_hours=1, expiry_hours=1, retention=Retention(MS_PER_MINUTE))


def commits_of(log_partition: int, rows: list[LogRow]) -> Iterator[tuple[str, str, int]]:
    """Group, topic and time in ms of the committed offsets of a log partition, by the reference replay."""
    state = partition_state.replay(rows, log_partition, capture_partitions("4.2.0-expiry-after"))
    for group in state.groups:
        for where, offset in state.offsets_of(group).items():
            yield group, where.topic, offset.commit_timestamp_ms


def report_of(store: Path, now_ms: int, options: ReportOptions = OPTIONS, *, is_past: bool = False) -> Report:
    reader = StateReader(str(store))
    positions = SampledPositions(read_samples(table_of(str(store))), now_ms)
    of, inputs = reported_state(reader, HOUR_MS, now_ms if is_past else None)
    return collect_report(of, inputs, "store", options, positions)


@pytest.mark.parametrize("name", ["4.2.0-kip848", "4.2.0-classic", "4.2.0-share"])
def test_groups_are_those_of_the_broker(capture: Callable[[str], Path], name: str) -> None:
    answers = {group: each for group, each in oracle(name)["groups"].items() if each["listed"]}
    found = report_of(capture(name), oracle(name)["wall_clock_ms"])
    assert {row.group: (row.type, row.state, row.offsets) for row in found.groups.rows} == {
        group: (each["list_type"], each["list_state"], len(each.get("offsets", ()))) for group, each in answers.items()
    }
    assert found.groups.total == len(answers)
    assert sum(found.states.values()) == len(answers)
    assert found.offsets == sum(len(each.get("offsets", ())) for each in answers.values())


def test_last_commit_is_the_newest_of_the_committed_offsets(capture: Callable[[str], Path]) -> None:
    name = "4.2.0-kip848"
    states = [partition_state.replay(rows, at, capture_partitions(name)) for at, rows in capture_rows(name).items()]
    expected = {
        group: max(each.commit_timestamp_ms for each in offsets.values())
        for state in states
        for group in state.groups
        if (offsets := state.offsets_of(group))
    }
    now_ms = max(expected.values()) + HOUR_MS
    found = report_of(capture(name), now_ms)
    assert {row.group: row.last_commit_ms for row in found.groups.rows if row.offsets} == expected
    assert found.last_commit_ms == max(expected.values())
    # stale are all but the last one to commit, the longest first
    assert [row.group for row in found.stale.rows] == sorted(expected, key=lambda group: (expected[group], group))
    assert {row.group: row.idle_ms for row in found.stale.rows} == {
        group: now_ms - at for group, at in expected.items()
    }


def test_report_of_a_past_time_is_what_the_report_was_then(
    capture: Callable[[str], Path], tmp_path: Path, settings: Settings
) -> None:
    """A broker's log before its offsets expired, and the log after that."""
    at_ms, later_ms = (oracle(f"4.2.0-expiry-{when}")["wall_clock_ms"] for when in ("before", "after"))
    name = "4.2.0-expiry-after"
    rows = timed_segment_rows(CAPTURES / name / "segments")
    later = timed_store(rows, tmp_path / "later", capture_partitions(name), settings)
    lost = {"e-empty", "e-pending", "e-retdef"}

    def told(report: Report) -> tuple[list[object], list[object], list[object]]:
        tables = (report.groups.rows, report.stale.rows, report.expiring.rows)
        return tuple(sorted((row for row in table if row.group in lost), key=str) for table in tables)  # type: ignore[return-value]

    then = told(report_of(capture("4.2.0-expiry-before"), at_ms))
    assert {row.group for row in then[0]} == lost  # type: ignore[attr-defined]
    assert told(report_of(later, at_ms, is_past=True)) == then
    assert not any(row.offsets for row in told(report_of(later, later_ms))[0])  # type: ignore[attr-defined]
    assert report_of(later, later_ms, is_past=True).groups == report_of(later, later_ms).groups


def test_what_expires_soon_is_what_the_broker_expired(capture: Callable[[str], Path]) -> None:
    """The log before the retention of one minute, forecast to the time of the answers after it."""
    before, after = oracle("4.2.0-expiry-before"), oracle("4.2.0-expiry-after")
    now_ms = before["wall_clock_ms"]
    found = report_of(capture("4.2.0-expiry-before"), now_ms)

    def offsets(answers: dict[str, dict[str, list[dict[str, object]]]], group: str) -> int:
        return len(answers.get(group, {}).get("offsets", ()))

    active = {
        group
        for at, rows in capture_rows("4.2.0-expiry-after").items()
        for group, _, commit_ms in commits_of(at, rows)
        if commit_ms > now_ms
    }
    groups = before["groups"].keys() - active
    lost = {group: offsets(before["groups"], group) - offsets(after["groups"], group) for group in groups}
    due = {
        row.group: row.offsets
        for row in found.expiring.rows
        if row.group in groups and not row.held and row.last_ms <= after["wall_clock_ms"]
    }
    assert due == {group: count for group, count in lost.items() if count}
    assert len(due) > 5
    assert sum(point.value or 0 for point in found.expiring.by_time.points) == sum(
        row.offsets for row in found.expiring.rows if not row.held
    )


def test_tables_are_limited_and_say_so(capture: Callable[[str], Path]) -> None:
    options = ReportOptions(rows=3, hours=1, stale_hours=0, expiry_hours=1_000, retention=Retention(MS_PER_MINUTE))
    found = report_of(capture("4.2.0-classic"), oracle("4.2.0-classic")["wall_clock_ms"], options)
    for section in (found.stale, found.expiring):
        assert len(section.rows) == 3 < section.total
    assert (len(found.groups.parts), len(found.groups.rows)) == (3, found.groups.total)


def test_command_writes_the_page_of_a_store(
    capture: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, html = capture("4.2.0-kip848"), tmp_path / "a report.html"
    line = ["report", "--store", str(store), "--html", str(html), "--at", "2026-11-20T19:10:00Z"]
    assert main(line) == 0
    assert capsys.readouterr() == (f"report of {store} written to {html}\n", "")
    assert [each.name for each in tmp_path.iterdir()] == [html.name]
    text = html.read_text(encoding="utf-8")
    assert ">k-stable<" in text
    assert "as of <time" in text
    assert main([*line, "--html", "-", "--group", "nobody", "--group", "k-stable"]) == 1  # as `describe`
    out, err = capsys.readouterr()
    assert err == f"offsets: error: no group 'nobody' in {store} (GROUP_ID_NOT_FOUND)\n"
    page = unescape(out)
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert f"No group 'nobody' in {store}" in page
    assert "o group 'k-stable'" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--html", "{folder}/none/a.html"],
            "cannot write the report to {folder}/none/a.html: No such file or directory",
        ),
        (["--html", "{folder}/a"], "cannot write the report to {folder}/a: Is a directory; name another file"),
    ],
)
def test_command_that_fails_says_why_and_leaves_nothing(
    capture: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    (tmp_path / "a").mkdir()
    given = [each.format(folder=tmp_path) for each in options]
    assert main(["report", "--store", str(capture("4.2.0-kip848")), *given]) == 1
    out, err = capsys.readouterr()
    assert (out, err[:16], len(err.splitlines())) == ("", "offsets: error: ", 1)
    assert message.format(folder=tmp_path) in err
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_report_of_a_time_before_the_first_commit_has_no_group(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "4.2.0-kip848"
    rows = timed_segment_rows(CAPTURES / name / "segments")
    store = timed_store(rows, tmp_path / "store", capture_partitions(name), settings)
    for more, has_group in ((["--at", "2020-01-01"], False), ([], True)):
        assert main(["report", "--store", str(store), "--html", "-", *more]) == 0
        out, err = capsys.readouterr()
        assert (out[:15], "error" in err, "k-stable" in out) == ("<!DOCTYPE html>", False, has_group)


def test_store_of_connect_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_tables(str(tmp_path / "store"), StoreProperties("owned", 1, topic_kind=TopicKind.CONNECT))
    assert main(["report", "--store", str(tmp_path / "store"), "--html", str(tmp_path / "a.html")]) == 1
    assert "this command needs" in capsys.readouterr().err
    assert json.dumps([each.name for each in tmp_path.iterdir()]) == '["store"]'


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day") / "store"
    simulate_day(folder)
    return folder


def test_a_simulated_day_has_the_lag_that_was_simulated(day: Path) -> None:
    found = report_of(day, END_MS, replace(OPTIONS, hours=24, retention=Retention()))
    end = STEPS * PRODUCED
    assert {row.group: row.lag for row in found.groups.rows} == {
        "stopped": end // 2,
        "slow": end - end * 9 // 10,
        "steady": 100,
        "rewound": 0,
    }
    assert [row.group for row in found.groups.rows] == ["stopped", "slow", "steady", "rewound"]
    assert {row.group: row.status for row in found.groups.rows} == {
        "stopped": "ERR",
        "slow": "WARN",
        "steady": "WARN",
        "rewound": "OK",
    }
    chosen = report_of(day, END_MS, replace(OPTIONS, rows=2, groups=("stead*", "rewound"))).groups
    assert [part.group for part in chosen.parts] == ["steady", "rewound"]
    assert [row.group for row in chosen.rows] == ["steady", "rewound", "stopped", "slow"]
    (rewind,) = found.rewinds.rows
    assert [part.rewinds for part in found.groups.parts] == [[], [], [], [rewind]]
    assert [(part.lag and part.lag.name, part.commits and part.commits.name) for part in found.groups.parts] == [
        (row.group, row.group) for row in found.groups.rows
    ]
    assert (found.as_of_ms, found.until_ms, found.groups.missing) == (END_MS, END_MS, None)
    turn = STEPS * 2 // 3
    assert (rewind.group, rewind.from_offset, rewind.to_offset, rewind.at_ms) == (
        "rewound",
        (turn - 1) * PRODUCED,
        turn * PRODUCED - 20_000,
        START_MS + turn * STEP_MS,
    )
    lines = {line.name: {point.at_ms: point.value for point in line.points} for line in found.lag_over_time.series}
    # of the times of the chart: the log end lies between two samples, the commit is that of the last step
    first_ms = START_MS + STEP_MS
    assert [min(lines["slow"]), max(lines["slow"])] == [(first_ms - 1) // 60_000 * 60_000, END_MS]
    for at_ms in sorted(lines["steady"])[1:]:
        produced, step = (at_ms - START_MS) * PRODUCED / STEP_MS, (at_ms - START_MS) // STEP_MS
        assert lines["steady"][at_ms] == pytest.approx(produced - step * PRODUCED + 100, abs=1)
        assert lines["slow"][at_ms] == pytest.approx(produced - step * PRODUCED * 9 // 10, abs=1)
        assert lines["stopped"][at_ms] == pytest.approx(produced - min(step * PRODUCED, end // 2), abs=1)
    assert max(value or 0 for value in lines["rewound"].values()) == pytest.approx(20_500, abs=500)
    assert {line.name for line in found.commit_rates.series} == {"steady", "slow", "stopped", "rewound"}


def test_committed_offsets_without_a_known_lag_are_counted() -> None:
    offsets = [OffsetAnswer("t", partition, 5, None, "", committed_ms=END_MS) for partition in (0, 1)]
    group = GroupAnswer("Classic", "Empty", "", "", None, 0, misplaced=False, offsets=offsets)
    samples = rows_of([(("t", 0), Sample(0, 8, END_MS))], "a test")
    positions = SampledPositions(PositionSamples(samples), END_MS)
    rows = lag_rows({"g": group}, positions, {0: END_MS}, lambda *_: WindowColumns.together([]))
    (found,) = group_rows({"g": group}, rows)
    said = "no position of the partition is known"
    assert found == GroupRow(
        "g", "Empty", "Classic", 0, 2, END_MS, 3, None, 1, said, found.status, found.lag_as_of, "none"
    )
    # a partition that a member has and no offset is committed for is no offset without a lag
    assigned = [row._replace(partition=2) if row.lag is None else row for row in rows]
    assert group_rows({"g": group}, assigned)[0].lag_unknown == 0


def test_offsets_that_expire_are_counted_in_24_parts_of_the_time() -> None:
    points = _by_time([-5, 0, 9, 10, 239, 240, 500], 0, 240).points
    assert [point.at_ms for point in points] == list(range(0, 240, 10))
    assert [point.value for point in points] == [3, 1, *[0] * 21, 3]
    assert [point.value for point in _by_time([7], 7, 0).points] == [1, *[0] * 23]


def test_a_group_is_stale_as_soon_as_its_newest_commit_has_the_age() -> None:
    ages = {"a": HOUR_MS, "b": HOUR_MS - 1, "d": HOUR_MS + 5, "c": HOUR_MS + 5, "none": None}
    commits = {name: END_MS - age for name, age in ages.items() if age is not None}
    groups = {
        name: GroupAnswer(
            "Classic", "Empty", "", "", None, 0, misplaced=False, offsets=[OffsetAnswer("t", 0, 5, 1, "")]
        )
        for name in ages
    }
    found = stale_groups(groups, commits, END_MS, replace(OPTIONS, rows=2))
    rows = [StaleGroup(name, "Empty", 1, END_MS - HOUR_MS - 5, HOUR_MS + 5) for name in "cd"]
    assert found == StaleGroups(3, None, HOUR_MS, rows)


def test_offsets_that_expire_within_the_time_are_told_by_group_and_rule() -> None:
    """Hand-worked, with a retention of a minute: what is held has no column, and what expires later is left out."""
    log, held_ms = LogPartition(), END_MS - 2 * MINUTE_MS
    for group, topic, partition, at_ms in (
        *(("h", "t", 0, END_MS), ("g", "t", 0, END_MS), ("g", "t", 1, held_ms), ("g", "t", 2, END_MS + 59 * MINUTE_MS)),
        *(("g", "t", 3, END_MS + 59 * MINUTE_MS + 1), ("g", "u", 0, held_ms)),
    ):
        log.commit((group, topic, partition), 1, commit_timestamp=at_ms)
    log.commit(("g", "u", 0), 2, 7)
    state = partition_state.replay(log.rows, 0, 1)
    inputs = [each for group in state.groups if (each := holdings_of(state, group)) is not None]
    found = expiring_offsets(inputs, MODERN, END_MS, OPTIONS)
    last_ms, due_ms, next_ms = END_MS + HOUR_MS, END_MS - MINUTE_MS, END_MS + MINUTE_MS
    said = "its group has no protocol"
    pending = "an open transaction holds a commit for it"
    assert found.rows == [
        ExpiringGroup("g", 3, due_ms, last_ms, "R18c", said, held=False),
        ExpiringGroup("h", 1, next_ms, next_ms, "R18c", said, held=False),
        ExpiringGroup("g", 1, due_ms, due_ms, "R20", pending, held=True),
    ]
    assert (found.total, found.missing, found.within_ms) == (3, None, HOUR_MS)
    assert [each.value for each in found.by_time.points] == [3, *[0] * 22, 1]


def test_groups_are_in_the_order_of_status_lag_and_last_commit() -> None:
    def row(group: str, status: str | None, seconds: float | None, lag: int | None, at_ms: int | None) -> GroupRow:
        return GroupRow(group, "Empty", "Classic", 0, 1, at_ms, lag, seconds, status=status)

    expected = [
        row("z", "ERR", None, 1, 1),
        row("y", "WARN", 9.0, 1, 1),
        row("x", "WARN", 8.0, 2, 1),
        row("w", "WARN", 8.0, 1, 2),
        row("v", "WARN", 8.0, 1, 1),
        row("u", "OK", 5.0, 1, 1),
        row("t", "UNKNOWN", None, 3, 1),
        row("r", None, None, None, 5),
        row("s", "OK", 0.0, 0, 1),
        row("p", None, None, None, None),
        row("q", None, None, None, None),
    ]
    assert sorted([*reversed(expected)], key=_urgency) == expected


@pytest.mark.parametrize(("sampled_ms", "steps"), [(END_MS, STEPS), (END_MS - 1, STEPS - 1)])
def test_positions_of_a_file_give_the_lag(day: Path, tmp_path: Path, sampled_ms: int, steps: int) -> None:
    """R37: the commit is the one that counted at the time of the positions."""
    (tmp_path / "positions.csv").write_text(
        f"topic,partition,log_start_offset,log_end_offset,sampled_at\norders,0,0,200000,{sampled_ms}\n"
    )
    html = tmp_path / "report.html"
    line = ["report", "--store", str(day), "--html", str(html), "--at", str(END_MS)]
    assert main([*line, "--positions", str(tmp_path / "positions.csv")]) == 0
    text = html.read_text(encoding="utf-8")
    assert f">{200_000 - steps * PRODUCED + 100:,}<" in text


def test_a_rewind_names_the_member_that_had_the_partition(tmp_path: Path) -> None:
    store, clock = tmp_path / "store", FixedClock(START_MS)
    opened = OwnedStore.create(store, 1)
    held = ClassicMember("m", subscription=subscription("t"), assignment=assignment("t", 0))
    member = MemberOfGroup("m", 3)
    with Coordinator.open(opened, clock=clock, housekeeping=False) as coordinator:
        coordinator.store_group(GroupMetadata("g", "consumer", 3, "range", "m", (held,)))
        for offset in (50, 20, 60):
            clock.advance_ms(1_000)
            coordinator.commit_offsets("g", {("t", 0): offset, ("t", 1): offset}, member=member)
    fold_log(Store(cast("SparkSession", None), str(store), opened.properties), Settings(), clock)
    found = report_of(store, clock.now_ms())
    assert [(each.partition, each.from_offset, each.to_offset, each.by) for each in found.rewinds.rows] == [
        (0, 50, 20, "m"),
        (1, 50, 20, None),  # no member has partition 1
    ]


def test_a_part_has_the_ten_latest_rewinds_and_deletions(tmp_path: Path) -> None:
    store, clock = tmp_path / "store", FixedClock(START_MS)
    opened = OwnedStore.create(store, 1)
    places = [("t", partition) for partition in range(11)]
    with Coordinator.open(opened, clock=clock, housekeeping=False) as coordinator:
        for offset in (50, 20):
            coordinator.commit_offsets("g", dict.fromkeys(places, offset))
            coordinator.commit_offsets("h", {("t", 0): offset})
        coordinator.delete_offsets("g", places)
    fold_log(Store(cast("SparkSession", None), str(store), opened.properties), Settings(), clock)
    found = report_of(store, clock.now_ms(), replace(OPTIONS, rows=5))
    assert [each.partition for each in found.rewinds.rows] == [*range(5)]
    assert (found.rewinds.total, found.groups.missing) == (12, "The lag is not known: no positions of the topics are.")
    assert {
        part.group: ([each.partition for each in part.rewinds], [each.partition for each in part.deletions])
        for part in found.groups.parts
    } == {"g": ([*range(10)], [*range(10, 0, -1)]), "h": ([0], [])}
    assert [(part.lag, part.commits and part.commits.name) for part in found.groups.parts] == [(None, "h"), (None, "g")]


def test_commits_before_a_deletion_count(tmp_path: Path) -> None:
    store, clock = tmp_path / "store", FixedClock(START_MS)
    opened = OwnedStore.create(store, 1)
    with Coordinator.open(opened, clock=clock, housekeeping=False) as coordinator:
        for offset in (1, 2, 3):
            coordinator.commit_offsets("g", {("t", 0): offset})
            coordinator.delete_offsets("g", [("t", 0)])
        coordinator.commit_offsets("g", {("t", 0): 4})
    fold_log(Store(cast("SparkSession", None), str(store), opened.properties), Settings(), clock)
    found = report_of(store, clock.now_ms())
    (part,) = found.groups.parts
    assert [(each.offset, each.cause) for each in part.deletions] == [(3, "deleted"), (2, "deleted"), (1, "deleted")]
    (line,) = found.commit_rates.series
    assert sum(point.value or 0 for point in line.points) == 4  # of one minute


def test_an_offset_that_a_later_incarnation_of_the_log_lacks_has_no_lag_from_its_first_reading_on(
    tmp_path: Path,
) -> None:
    """R37: the first incarnation has partitions 0 and 1, ten records behind each; the second one lacks 1."""
    begin_ms, again_ms, now_ms = START_MS, START_MS + 20 * MINUTE_MS, START_MS + 40 * MINUTE_MS
    log, again = LogPartition(0), LogPartition(0)
    for partition in (0, 1):
        log.commit(("g", "t", partition), 90, commit_timestamp=begin_ms)
    again.commit(("g", "t", 0), 90, commit_timestamp=begin_ms)
    store, properties = tmp_path / "store", StoreProperties("mirrored", 1)
    create_tables(str(store), properties)
    for number, rows in enumerate((log.rows, again.rows)):
        times = dict.fromkeys(((0, 0), (0, 1)), begin_ms)
        write_deltalake(store / "log", log_rows(rows, times, log_incarnation=number), mode="append")
    row = {"log_partition": 0, "log_incarnation": 1, "start_offset": 0, "end_offset": 1, "updated_at": 0}
    read = {"complete_since": again_ms * 1000, "read_at": now_ms * 1000}
    notes = pa.Table.from_pylist([row | read], LOG_PARTITIONS.arrow_schema())
    write_deltalake(store / "log_partitions", notes, mode="append")
    fold_log(Store(cast("SparkSession", None), str(store), properties), Settings(), FixedClock(now_ms))
    samples = rows_of([(("t", at), Sample(0, 100, ms)) for at in (0, 1) for ms in (begin_ms, now_ms)], "a test")
    reader = StateReader(str(store))
    positions = SampledPositions(PositionSamples(samples), now_ms)
    found = collect_report(*reported_state(reader, HOUR_MS), "store", OPTIONS, positions)
    assert [(row.group, row.offsets) for row in found.groups.rows] == [("g", 1)]
    (line,) = found.lag_over_time.series
    assert {point.at_ms < again_ms: point.value for point in line.points} == {True: 20, False: 10}
