"""`offsets status` and `check`: each kind of problem, and no row for a group that is well."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import SystemClock, parse_time_ms, shown_time
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.questions import status as status_module
from offsets_pipeline.questions.history.deletion_causes import LIKELY
from offsets_pipeline.questions.lag.consumer_status import GroupStatus
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups
from offsets_pipeline.questions.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer
from offsets_pipeline.questions.status import Problem, StatusLimits, _trend, problems_of, worst_first
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.logs import CAPTURES, LogPartition, capture_partitions, capture_semantics, oracle
from tests.member_bytes import assignment, subscription
from tests.unit.history.test_deletion_causes import TRUE_CAUSES
from tests.unit.lag.stores import TimedRow, folded_segments, folded_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings

START_MS = 1_795_000_000_000
MINUTE_MS = 60_000
NOW_MS = START_MS + 10 * MINUTE_MS
CAUSES = ("4.2.0-classic", "4.2.0-kip848")
OF_LAG = ("status", "problem", "trend", "lag", "until")


class TimedLog:
    """A log of one log partition in which each record has a time."""

    def __init__(self) -> None:
        self.log = LogPartition()
        self.rows: list[TimedRow] = []
        self._at_ms = 0

    def at(self, at_ms: int) -> LogPartition:
        """The log, to append records of this time to."""
        self.rows += [TimedRow(row, self._at_ms) for row in self.log.rows[len(self.rows) :]]
        self._at_ms = at_ms
        return self.log

    def commit(self, group: str, topic: str, offset: int, at_ms: int) -> None:
        self.at(at_ms).commit((group, topic, 0), offset, commit_timestamp=at_ms)

    def members(self, group: str, generation: int, members: str, at_ms: int) -> None:
        """The record that a coordinator writes at the end of a rebalance of a classic group."""
        listed = [
            {
                "member_id": member,
                "group_instance_id": None,
                "client_id": member,
                "client_host": "/10.0.0.1",
                "rebalance_timeout": 60_000,
                "session_timeout": 45_000,
                "subscription": subscription("t"),
                "assignment": assignment("t", number),
            }
            for number, member in enumerate(members)
        ]
        self.at(at_ms).group(
            *(2, group),
            version=3,
            protocol_type="consumer",
            generation=generation,
            protocol="range",
            current_state_timestamp=at_ms,
            members=listed,
        )

    def store(self, to: Path, settings: Settings) -> Path:
        self.at(0)
        return folded_store(self.rows, to, 1, settings)


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS)


def sampled(store: Path, ends: dict[str, list[tuple[int, int]]]) -> Path:
    """Samples of the log ends of partition 0 of topics, each with its minute after the start."""
    writer = SampleWriter(table_of(str(store)), "a test")
    for minute in sorted({minute for of_topic in ends.values() for minute, _ in of_topic}):
        known = {
            (topic, 0): (0, dict(of_topic)[minute]) for topic, of_topic in ends.items() if minute in dict(of_topic)
        }
        writer.write(known, START_MS + minute * MINUTE_MS)
    return store


def problems(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> dict[Any, dict[str, Any]]:
    capsys.readouterr()
    assert main(["status", "--store", str(store), "--format", "json", *arguments]) == 0
    done = capsys.readouterr()
    rows = json.loads(done.out)["problems"]
    assert [row["status"] for row in rows] == sorted(row["status"] for row in rows)  # ERR before WARN
    return {(row["group"], row["problem"]): row for row in rows}


def checked(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["check", "--store", str(store), *arguments])
    done = capsys.readouterr()
    assert done.out.count("\n") == 1
    return status, done.out


@pytest.fixture
def lagging(tmp_path: Path, settings: Settings) -> Path:
    """Ten commits a minute apart of each group; `t` grows by 100 records a minute, `big` has 10,000 since long ago."""
    log = TimedLog()
    for minute in range(10):
        at_ms = START_MS + minute * MINUTE_MS
        for group, topic, offset in (
            ("ok", "t", 100 * minute + (100 if minute == 5 else 90)),
            ("slow", "t", 50 * minute),
            ("stuck", "t", 5),
            ("back", "t", 100 * (minute if minute < 9 else 3)),
            ("catching-up", "big", 500 * minute),
        ):
            log.commit(group, topic, offset, at_ms)
    log.commit("gone", "t", 50, START_MS)
    log.commit("gone", "t", 100, START_MS + 1_000)
    ends = {"t": [(minute, 100 + 100 * minute) for minute in range(-1, 11)]}
    return sampled(log.store(tmp_path / "lagging", settings), ends | {"big": [(-30, 0), (-20, 10_000), (10, 10_000)]})


@pytest.mark.parametrize(
    ("sampled_at", "seconds"),
    [(9, None), (-1, 660)],  # at least a minute, which is not late, or at least eleven minutes
)
def test_a_partition_that_is_a_little_late_does_not_hide_a_stopped_one_of_unknown_age(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], sampled_at: int, seconds: int | None
) -> None:
    log = TimedLog()
    for group in ("alone", "both"):
        log.commit(group, "old", 35, START_MS)  # 50 records were there before the first sample
    log.commit("both", "new", 10, START_MS)
    ends = {"old": [(sampled_at, 50), (10, 1_000_000)], "new": [(-1, 10), (9, 10), (10, 11)]}
    store = sampled(log.store(tmp_path / "store", settings), ends)
    found = problems(capsys, store)
    assert found.keys() == {("alone", "stopped"), ("both", "stopped")}
    # all records of `old` that the groups have not read may be older: they are behind since the commit, or before it
    since_ms = START_MS if seconds is None else START_MS - MINUTE_MS
    for row, lag in zip(found.values(), (999_966, 999_965), strict=True):
        assert (row["lag"], row["lag_seconds"], row["since"]) == (lag, seconds, shown_time(since_ms))
        assert str(row["detail"]).endswith("; maybe for longer: the samples begin later")
    assert main(["lag", "--store", str(store), "--summary", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    shown = "" if seconds is None else str(float(seconds))
    assert [(each["group"], each["max_lag_seconds"]) for each in rows] == [("alone", shown), ("both", shown)]
    assert {each["method"] for each in rows} == {"none" if seconds is None else "at_least"}
    assert main(["report", "--store", str(store), "--html", "-"]) == 0
    assert ("at least 11 min" in capsys.readouterr().out) is (seconds is not None)


def test_groups_that_are_behind_have_a_trend_and_a_time_of_catching_up(
    lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = problems(capsys, lagging)
    assert {key: tuple(row[name] for name in OF_LAG) for key, row in found.items()} == {
        ("back", "rewound"): ("ERR", "rewound", "growing", 800, None),
        ("gone", "stopped"): ("ERR", "stopped", "growing", 1000, None),
        ("stuck", "stalled"): ("ERR", "stalled", "growing", 1095, None),
        ("slow", "slow"): ("WARN", "slow", "growing", 650, None),
        # 10,000 records behind ten minutes ago, 5,500 now: 733 seconds more
        ("catching-up", "behind"): ("WARN", "behind", "shrinking", 5500, shown_time(NOW_MS + 733_333)),
    }
    # record 4,500 of `big` came between the samples 30 and 20 minutes before the start
    since_ms = parse_time_ms(found["catching-up", "behind"]["since"])
    assert abs(since_ms - (START_MS - 30 * MINUTE_MS + 4_500 * MINUTE_MS // 1_000)) < 100
    assert found["slow", "slow"]["detail"] == "t-0; no members"
    assert checked(capsys, lagging)[0] == 2
    assert checked(capsys, lagging, "--group", "slow")[0] == 1
    assert checked(capsys, lagging, "--group", "catching-up", "--behind", "PT1H") == (
        *(0, f"OK: 0 errors, 0 warnings, as of {shown_time(NOW_MS)}\n"),
    )


def test_a_group_is_behind_after_a_time_and_its_worst_partitions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of lag are given: lag, lag in seconds, status, and records a second by which the lag grows."""
    data: dict[str, list[tuple[int | None, float | None, str | None, float | None]]] = {
        "behind": [(5, 600.001, "OK", None)],
        "just-committed": [(7, None, "STOP", None)],
        "late": [(5, 60.001, "STOP", 0.5)],
        "mixed": [
            *((3, 100.5, "WARN", -0.25), (4, 90.0, "REWIND", -0.25), (2, 70.0, "OK", 0.0), (0, 0.0, "OK", None)),
            *((1, None, "REWIND", 0.0), (None, None, "UNKNOWN", None)),
        ],
        "no-time": [(7, None, "STALL", 1 / 60)],
        "of-now": [(7, None, "OK", None)],
        "on-time": [(5, 600.0, "OK", None)],
        "share": [(7, 700.0, None, None)],
        "soon-late": [(5, 60.0, "STOP", None)],
    }
    rows, rates = list[LagRow](), dict[tuple[str, str, int], float]()
    for name, of_group in data.items():
        for number, (lag, seconds, of_row, rate) in enumerate(of_group):
            at = shown_time(NOW_MS)
            no_reason = (None, lag, at, at, at)
            rows.append(LagRow(name, "t", number, 0, 0, lag, lag, seconds, "exact", of_row, *no_reason))
            rates |= {} if rate is None else {(name, "t", number): rate}

    def lags(*_: object, rates: dict[tuple[str, str, int], float], given: object = rates) -> list[LagRow]:
        rates.update(given)  # type: ignore[call-overload]
        return rows

    monkeypatch.setattr(status_module, "lag_of_groups", lags)
    any_: Any = None
    member = MemberAnswer("m", None, "", "", [], None)
    held = [OffsetAnswer("t", 0, 0, None, "", committed_ms=START_MS)]
    just_now = [replace(held[0], committed_ms=NOW_MS - MINUTE_MS)]
    groups = {
        name: GroupAnswer(
            *("Share" if name == "share" else "Classic", "", "", "", None, 0),
            misplaced=False,
            members=[member] * 2 if name == "mixed" else [],
            offsets=just_now if name == "just-committed" else held,
        )
        for name in data
    }
    reader: Any = SimpleNamespace(properties=SimpleNamespace(topic_kind=SimpleNamespace(has_groups=False)))
    err, warn = GroupStatus.ERR, GroupStatus.WARN

    def found(behind_ms: int) -> list[Problem]:
        limits = StatusLimits(behind_ms, 0, 0, 0, any_, 10)
        return problems_of(StoreGroups(reader, groups, any_), any_, limits)

    def since(seconds: float) -> str:
        return shown_time(NOW_MS - round(seconds * 1000))

    expected = [
        Problem(warn, "behind", "behind", since(600.001), None, 5, 600.001, None, "t-0; no members"),
        Problem(err, "stopped", "late", since(60.001), None, 5, 60.001, "growing", "t-0; no members"),
        Problem(
            *(err, "rewound", "mixed", since(100.5), shown_time(NOW_MS + 16_000), 10, 100.5, "shrinking"),
            "t-1, t-4; 2 members",
        ),
        Problem(err, "stalled", "no-time", shown_time(START_MS), None, 7, None, "steady", "t-0; no members"),
        Problem(warn, "behind", "share", since(700), None, 7, 700.0, None, "t-0"),
    ]
    assert found(600_000) == expected
    soon = {each.group: each.problem for each in found(59_999)}
    more = {"on-time": "behind", "soon-late": "stopped", "just-committed": "stopped"}
    assert soon == {each.group: each.problem for each in expected} | more


def test_group_that_is_well_has_no_row(lagging: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--store", str(lagging), "--group", "ok"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["status", "--store", str(lagging), "--group", "s*"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["STATUS", "PROBLEM", "GROUP"]
    assert [row.split()[:3] for row in rows] == [["ERR", "stalled", "stuck"], ["WARN", "slow", "slow"]]


def test_check_is_an_error_if_the_group_or_the_store_is_missing(
    lagging: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = checked(capsys, lagging, "--group", "ok", "--group", "no-such")
    assert (status, line.split(";")[1]) == (
        *(2, f" no-such missing: no group 'no-such' in {lagging} (GROUP_ID_NOT_FOUND)\n"),
    )
    status, line = checked(capsys, tmp_path / "nothing")
    assert (status, line.split("nothing")[0]) == (2, f"ERR: no store at {tmp_path}/")


def test_check_is_an_error_if_its_settings_are_wrong(
    lagging: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("log.offsets_partitions = 0", encoding="utf-8")
    of_store = ("--store", str(lagging), "--config", str(tmp_path / "wrong.toml"))
    assert main(["check", *of_store]) == 2  # for Nagios 1 is a warning
    assert main(["status", *of_store]) == 1
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [" error", " error"]


def test_a_store_into_which_nothing_was_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A `follow` that died right after it had created the store."""
    create_tables(str(tmp_path / "new"), StoreProperties(MIRRORED, 2))
    status, line = checked(capsys, tmp_path / "new")
    assert (status, line.split("; ")[1]) == (
        2,
        f"new mirror behind: nothing was read into {tmp_path}/new yet: run `offsets follow`, or the ingest again\n",
    )


@pytest.mark.parametrize(
    ("a_minute", "trend"), [(-1.01, "shrinking"), (-1, "steady"), (0, "steady"), (1, "steady"), (1.01, "growing")]
)
def test_a_lag_that_changes_by_a_record_a_minute_is_steady(a_minute: float, trend: str) -> None:
    assert _trend(a_minute / 60) == trend


def test_errors_come_first_and_those_of_the_data_then_the_longest_lag_then_the_oldest_problem() -> None:
    err, warn = GroupStatus.ERR, GroupStatus.WARN
    expected = [
        Problem(err, "away", None, since="3"),
        Problem(err, "behind", "z", since="9", lag=1, lag_seconds=7.5),
        Problem(err, "behind", "y", since="9", lag=8, lag_seconds=2.0),
        Problem(err, "behind", "x", since="9", lag=3, lag_seconds=2.0),
        Problem(err, "stopped", "w", since="9", lag=4),
        Problem(err, "rebalance loop", "v", since="4"),
        Problem(warn, "old", None, since="3"),
        Problem(warn, "behind", "u", since="9", lag=9, lag_seconds=9.0),
        Problem(warn, "left", "b", since="3"),
        Problem(warn, "expires", "a", until="5"),
        Problem(warn, "expires", "b", until="5"),
        Problem(warn, "left", "a", since="6", until="1"),
    ]
    assert sorted([*reversed(expected)], key=worst_first) == expected


def test_members_that_left_and_rebalances_without_end(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log = TimedLog()
    for group in ("well", "fewer", "none", "restarted", "looping", "busy", "removed", "long-ago"):
        log.members(group, 1, "ab", START_MS - 60 * MINUTE_MS)
    log.members("long-ago", 2, "a", NOW_MS - 60 * MINUTE_MS - 1)
    log.members("an-hour-ago", 1, "ab", START_MS - 61 * MINUTE_MS)
    log.members("an-hour-ago", 2, "a", NOW_MS - 60 * MINUTE_MS)
    log.members("fewer", 2, "a", START_MS)
    log.members("none", 2, "", START_MS + 1)
    log.members("restarted", 2, "a", START_MS + 2)
    log.members("restarted", 3, "ac", START_MS + 3)
    for generation in range(2, 12):
        log.members("looping", generation, "ab", START_MS + generation * 30_000)
    for generation in range(2, 11):  # not often enough
        log.members("busy", generation, "ab", START_MS + generation * 30_000)
    log.members("border", 1, "a", NOW_MS - 11 * MINUTE_MS)
    for generation in range(1, 11):  # nor if the first record in the ten minutes has the generation before them
        log.members("border", generation, "ab", START_MS + generation * 30_000)
    for number in range(10):  # the group is removed after each second rebalance
        if number % 2 == 0:
            log.at(START_MS + number * 30_000).group_tombstone(2, "removed")
        log.members("removed", 1 + number % 2, "ab", START_MS + number * 30_000)
    log.members("idle", 1, "a", START_MS + 300_000)
    log.members("idle", 2, "", START_MS + 300_001)
    found = problems(capsys, sampled(log.store(tmp_path / "store", settings), {"t": [(10, 1)]}))
    assert {key: (row["since"], row["detail"]) for key, row in found.items()} == {
        ("idle", "left"): (shown_time(START_MS + 300_001), "a left; no members"),
        ("fewer", "left"): (shown_time(START_MS), "b left; 1 member"),
        ("none", "left"): (shown_time(START_MS + 1), "a, b left; no members"),
        ("an-hour-ago", "left"): (shown_time(NOW_MS - 60 * MINUTE_MS), "b left; 1 member"),
        ("looping", "rebalance loop"): (shown_time(START_MS + 60_000), "10 rebalances in 10 minutes"),
        ("removed", "rebalance loop"): (shown_time(START_MS), "10 rebalances in 10 minutes"),
    }


@pytest.mark.parametrize("capture", CAUSES)
def test_deletions_have_the_causes_that_the_administrator_knows(
    capture: str,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: oracle(capture)["wall_clock_ms"])
    store = folded_segments(
        CAPTURES / capture / "segments",
        tmp_path / "s",
        capture_partitions(capture),
        settings,
        capture_semantics(capture),
    )
    found = problems(capsys, store)
    causes = {group: row["detail"].split(": ")[1] for (group, what), row in found.items() if what == "deleted"}
    assert causes.keys() == TRUE_CAUSES[capture].keys()
    for group, cause in causes.items():
        assert cause.removesuffix(LIKELY) in {*TRUE_CAUSES[capture][group].split(", "), "unknown"}, group
    # offsets of a removed group are looked up by its name
    gone = next(group for group, true in TRUE_CAUSES[capture].items() if true == "group removed")
    assert {what for _, what in problems(capsys, store, "--group", gone)} <= {"deleted", "missing", "expires", "left"}


def test_offset_that_is_committed_again_is_no_problem(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log, hour_ms = TimedLog(), 60 * MINUTE_MS
    for group in ("an-hour-ago", "long-ago"):
        log.commit(group, "t", 1, NOW_MS - hour_ms - MINUTE_MS)
    for group, at_ms in (("long-ago", NOW_MS - hour_ms - 1), ("an-hour-ago", NOW_MS - hour_ms)):
        log.at(at_ms).delete((group, "t", 0))
    for group in ("restored", "gone"):
        for topic in "tuvwx":
            log.commit(group, topic, 1, NOW_MS - 3 * MINUTE_MS)
    for group, topics in (("restored", "t"), ("gone", "tvwx")):
        for topic in topics:
            log.at(NOW_MS - 2 * MINUTE_MS).delete((group, topic, 0))
    log.commit("restored", "t", 1, NOW_MS - MINUTE_MS)
    found = problems(capsys, sampled(log.store(tmp_path / "store", settings), {"t": [(10, 1)], "u": [(10, 1)]}))
    assert found["gone", "deleted"]["since"] == shown_time(NOW_MS - 2 * MINUTE_MS)
    assert {key: row["detail"].split(":")[0] for key, row in found.items()} == {
        ("gone", "deleted"): "t-0, v-0, w-0 and 1 more",
        ("an-hour-ago", "deleted"): "t-0",
    }


def test_offsets_that_expire_within_a_day(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    day_ms = 24 * 60 * MINUTE_MS
    log = TimedLog()
    for group, age_days in (("soon", 6.5), ("in a day", 6), ("later", 6 - 1 / day_ms), ("due", 8)):
        log.commit(group, "t", 1, NOW_MS - int(age_days * day_ms))
    store = sampled(log.store(tmp_path / "store", settings), {"t": [(10, 1)]})
    found = problems(capsys, store)
    assert {key: row["until"] for key, row in found.items()} == {
        ("soon", "expires"): shown_time(NOW_MS + day_ms // 2),
        ("in a day", "expires"): shown_time(NOW_MS + day_ms),
        ("due", "expires"): shown_time(NOW_MS - day_ms),
    }
    assert found["soon", "expires"]["detail"] == "t-0 first: its group has no protocol"
    assert {group for group, _ in problems(capsys, store, "--within", "72")} == {"soon", "in a day", "later", "due"}
    assert problems(capsys, store, "--retention-minutes", "100000") == {}


def test_transaction_that_stays_open(tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    log, limit_ms = TimedLog(), 15 * MINUTE_MS
    for group, producer_id, age_ms in (("hanging", 7, limit_ms), ("running", 8, limit_ms - 1), ("ended", 9, limit_ms)):
        at_ms = NOW_MS - age_ms
        log.commit(group, "t", 1, at_ms)
        log.at(at_ms).commit((group, "t", 0), 2, producer_id, commit_timestamp=at_ms)
    first_ms = NOW_MS - limit_ms - 1
    log.at(NOW_MS).commit(("hanging", "u", 0), 2, 7, commit_timestamp=first_ms)
    log.at(NOW_MS).end_commit(9)
    found = problems(capsys, sampled(log.store(tmp_path / "store", settings), {"t": [(10, 1)]}))
    assert {key: (row["since"], row["detail"]) for key, row in found.items()} == {
        ("hanging", "open transaction"): (*(shown_time(first_ms), "commits of producer 7 have no marker: t-0, u-0"),)
    }


def test_open_transactions_of_two_producers_are_two_problems(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log, at_ms = TimedLog(), NOW_MS - 15 * MINUTE_MS
    for topic, producer_id in (("t", 7), ("t", 8), ("u", 8)):
        log.at(at_ms).commit(("", topic, 0), 2, producer_id, commit_timestamp=at_ms)
    log.commit("", "t", 1, NOW_MS)
    store = sampled(log.store(tmp_path / "store", settings), {"t": [(10, 1)]})
    assert main(["status", "--store", str(store), "--format", "json"]) == 0
    assert {row["detail"] for row in json.loads(capsys.readouterr().out)["problems"]} == {
        "commits of producer 7 have no marker: t-0",
        "commits of producer 8 have no marker: t-0, u-0",
    }
    assert "'' open transaction: commits of producer" in checked(capsys, store)[1]


def test_broker_that_is_away_is_an_error_and_the_newest_samples_answer(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = problems(capsys, lagging, "--bootstrap-server", "localhost:1", "--option", "request.timeout.ms=100")
    away = found.pop((None, "broker away"))
    assert (away["status"], "no broker answers at localhost:1" in away["detail"]) == ("ERR", True)
    assert found.keys() == problems(capsys, lagging).keys()
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS + 2 * MINUTE_MS)
    old = problems(capsys, lagging)[None, "old positions"]
    assert f"are of {shown_time(NOW_MS)}; lag is as of then" in old["detail"]
