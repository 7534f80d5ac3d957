"""`offsets lag`, `fetch` and `sample-topic-offsets` on stores, with positions from files and from the store."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from tests.logs import LogPartition, commit_key, commit_value
from tests.unit.lag.stores import TimedRow, folded_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings

FIELDS = [
    *("group", "topic", "partition", "current_offset", "log_start_offset", "log_end_offset", "lag", "lag_seconds"),
    *("method", "status", "reason", "lag_available", "as_of", "data_time", "sampled_at"),
]
START_MS = 1_795_000_000_000
MINUTE_MS = 60_000


@pytest.fixture
def store(tmp_path: Path, settings: Settings) -> Path:
    """A store with ten commits a minute apart of each group.

    The topic `t` grows by 100 records a minute. `ok` reads all but 10, `slow` half, `stuck` none, `back` rewinds.
    """
    log = LogPartition()
    rows = []
    for minute in range(10):
        at_ms = START_MS + minute * MINUTE_MS
        rewound = minute if minute < 9 else 3
        for group, offset in (
            ("ok", 100 * minute + (100 if minute == 5 else 90)),
            ("slow", 50 * minute),
            ("stuck", 5),
            ("back", 100 * rewound),
        ):
            log.record(commit_key(group), commit_value(offset, commit_timestamp=at_ms))
            rows.append(TimedRow(log.rows[-1], at_ms))
    return folded_store(rows, tmp_path / "store", 1, settings)


@pytest.fixture
def positions(tmp_path: Path) -> Path:
    """Samples each half minute: the log end is 100 records a minute, and 100 at the start."""
    lines = ["topic,partition,log_start_offset,log_end_offset,sampled_at"]
    lines += [f"t,0,0,{100 + 50 * half},{START_MS + half * MINUTE_MS // 2}" for half in range(-4, 24)]
    path = tmp_path / "positions.csv"
    path.write_text("\n".join(lines).replace("-100", "0").replace("-50", "0") + "\n", encoding="utf-8")
    return path


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert main([str(each) for each in [*arguments, "--format", "json"]]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {row["group"]: row for row in rows}


def test_rows_have_lag_seconds_and_status(store: Path, positions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_ms = START_MS + 10 * MINUTE_MS  # a minute after the last commits
    found = rows_of(capsys, "lag", "--store", store, "--positions", positions, "--at", shown_time(at_ms))
    assert [*found] == ["back", "ok", "slow", "stuck"]
    assert all([*row] == [*FIELDS, "stale"] for row in found.values())
    assert {group: row["status"] for group, row in found.items()} == {
        "ok": "OK",
        "slow": "WARN",
        "stuck": "STALL",
        "back": "REWIND",
    }
    assert {group: row["lag"] for group, row in found.items()} == {"ok": 110, "slow": 650, "stuck": 1095, "back": 800}
    # record n was appended at minute (n - 100) / 100, so a group at n is behind by 10 - (n - 100) / 100 minutes
    for group, row in found.items():
        if group == "stuck":
            continue
        true = 600 - (int(str(row["current_offset"])) - 100) * 0.6
        assert abs(float(str(row["lag_seconds"])) - true) <= 30, row
        assert row["method"] == "interpolated"
    stopped = rows_of(
        capsys, "lag", "--store", store, "--positions", positions, "--at", START_MS + 20 * MINUTE_MS, "--group", "slow"
    )
    assert stopped["slow"]["status"] == "STOP"


def test_status_of_commits_at_both_ends_of_64_bits(
    tmp_path: Path, settings: Settings, positions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative offset lies before all records, and a commit of all times before one of now."""
    log = LogPartition()
    rows = []
    for group, offset, at_ms in (
        ("low", -(2**63), START_MS),
        ("low", 10, START_MS + MINUTE_MS),
        ("early", 10, -(2**63)),
        ("early", 10, START_MS),
    ):
        log.record(commit_key(group), commit_value(offset, commit_timestamp=at_ms))
        rows.append(TimedRow(log.rows[-1], START_MS))
    to = folded_store(rows, tmp_path / "ends", 1, settings)
    at = ["--at", START_MS + 2 * MINUTE_MS - 1]
    found = rows_of(capsys, "lag", "--store", to, "--positions", positions, *at)
    # 110 records were there at the first commit of `low`; the log end at the first one of `early` is not known
    assert {group: row["status"] for group, row in found.items()} == {"low": "WARN", "early": "UNKNOWN"}


def test_status_is_that_of_the_time_asked_for(store: Path, positions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def at(minute: float) -> dict[str, object]:
        at_ms = START_MS + int(minute * MINUTE_MS)
        found = rows_of(capsys, "lag", "--store", store, "--positions", positions, "--at", at_ms, "--group", "back")
        return found["back"]

    assert (at(8.5)["status"], at(8.5)["current_offset"]) == ("WARN", 800)
    assert (at(9.5)["status"], at(9.5)["current_offset"]) == ("REWIND", 300)


def test_positions_of_the_store_answer_without_a_broker(
    store: Path, positions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--at", str(START_MS + 10 * MINUTE_MS)]
    by_file = rows_of(capsys, "lag", "--store", store, "--positions", positions, *at)
    before = rows_of(capsys, "lag", "--store", store, *at)
    assert {row["reason"] for row in before.values()} == {"no position of the partition is known"}
    assert {row["lag"] for row in before.values()} == {None}
    assert main(["sample-topic-offsets", "--store", str(store), "--positions", str(positions)]) == 0
    assert capsys.readouterr().out.endswith(f"28 positions added to {store}\n")
    assert rows_of(capsys, "lag", "--store", store, *at) == by_file
    by_table = rows_of(capsys, "lag", "--store", store, "--positions", store / "topic_offsets", *at)
    assert by_table == by_file


def test_old_and_missing_positions_of_the_store_are_warned_of(
    store: Path, positions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(location: Path, at_ms: int) -> str:
        capsys.readouterr()
        assert main(["lag", "--store", str(location), "--at", str(at_ms)]) == 0
        return capsys.readouterr().err

    newest_ms = START_MS + 23 * MINUTE_MS // 2
    assert "has no positions of these topics; add --bootstrap-server" in warned(store, newest_ms)
    assert main(["sample-topic-offsets", "--store", str(store), "--positions", str(positions)]) == 0
    assert warned(store, newest_ms) == warned(store, newest_ms + 90_000) == ""  # three intervals of 30 s
    old = f"offsets: warning: the newest positions in {store} are of {shown_time(newest_ms)}; lag is as of then\n"
    assert warned(store, newest_ms + 90_001) == old
    no_groups = tmp_path / "no groups"
    assert main(["create", "--store", str(no_groups)]) == 0
    assert warned(no_groups, newest_ms) == ""


def test_present_has_the_offsets_of_the_state(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "now.csv"
    path.write_text("topic,partition,earliest,latest\nt,0,0,990\n", encoding="utf-8")
    found = rows_of(capsys, "lag", "--store", store, "--positions", path)
    assert {group: (row["lag"], row["status"]) for group, row in found.items()} == {
        "back": (690, "STOP"),
        "ok": (0, "OK"),
        "slow": (540, "STOP"),
        "stuck": (985, "STOP"),
    }
    assert found["ok"]["lag_seconds"] == 0
    assert found["slow"]["lag_seconds"] is None
    assert str(found["slow"]["reason"]).startswith("record 450 is older than the first sample, of ")


def test_groups_has_the_lag_of_a_group_that_commits_seldom_and_has_committed_since_the_newest_sample(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # R37: as `lag` has it
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: START_MS + 31 * MINUTE_MS)
    log, rows = LogPartition(), []
    for minute, group in ((0, "seldom"), (25, "often"), (29, "often"), (30, "seldom"), (30, "often")):
        at_ms = START_MS + minute * MINUTE_MS
        log.commit((group, "t", 0), 10 * minute + 5, commit_timestamp=at_ms)
        rows.append(TimedRow(log.rows[-1], at_ms))
    to = folded_store(rows, tmp_path / "store", 1, settings)
    writer = SampleWriter(table_of(str(to)), "a test")
    for minute in (-1, 29):
        writer.write({("t", 0): (0, 10 * minute + 10)}, START_MS + minute * MINUTE_MS + MINUTE_MS // 2)
    of_lag = {group: row["lag"] for group, row in rows_of(capsys, "lag", "--store", to).items()}
    assert main(["groups", "--store", str(to), "--format", "json"]) == 0
    listed = {row["group"]: row["lag"] for row in json.loads(capsys.readouterr().out)["groups"]}
    assert listed == of_lag == {"seldom": 295, "often": 5}


def test_status_that_depends_on_an_unknown_log_end_is_unknown(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "now.csv"
    path.write_text("topic,partition,earliest,latest\nt,0,0,2000\n", encoding="utf-8")
    at_ms = START_MS + 10 * MINUTE_MS
    found = rows_of(capsys, "lag", "--store", store, "--positions", path, "--at", at_ms, "--group", "stuck")
    assert found["stuck"]["status"] == "UNKNOWN"
    assert "no status: the commits of the window, or the log end at the time of one, are not known" in str(
        found["stuck"]["reason"]
    )


def test_summary_has_a_row_a_group(store: Path, positions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = str(START_MS + 10 * MINUTE_MS)
    found = rows_of(capsys, "lag", "--store", store, "--positions", positions, "--at", at, "--summary")
    assert {group: row["status"] for group, row in found.items()} == {
        "ok": "OK",
        "slow": "WARN",
        "stuck": "ERR",
        "back": "ERR",
    }
    assert (found["slow"]["state"], found["slow"]["members"], found["slow"]["lag"]) == ("Empty", 0, 650)


def test_several_stores_answer_with_their_clusters(
    store: Path, tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogPartition()
    log.commit(("elsewhere", "t", 0), 7)
    other = folded_store([TimedRow(log.rows[0], START_MS)], tmp_path / "other", 1, settings)
    stores = ("--store", str(store), "--store", str(other))
    assert main(["lag", *stores, "--group", "ok", "--group", "else*", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(row) for row in rows] == [[*FIELDS, "cluster", "stale"]] * 2
    assert [(row["group"], row["cluster"]) for row in rows] == [("ok", "store"), ("elsewhere", "other")]
    assert main(["lag", *stores, "--group", "ok", "--group", "none"]) == 1
    assert f"no group 'none' in {store}, {other}" in capsys.readouterr().err
    assert main(["lag", *stores, "--bootstrap-server", "localhost:1"]) == 2
    assert "give --store once" in capsys.readouterr().err


def test_groups_are_named_or_match_patterns(store: Path, positions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, then_ms = ["lag", "--store", store, "--positions", positions], START_MS + 10 * MINUTE_MS
    for when, then in (([], ""), (["--at", then_ms], f" as of {shown_time(then_ms)}")):
        assert [*rows_of(capsys, *at, *when, "--group", "s*", "--group", "ok")] == ["ok", "slow", "stuck"]
        assert main([str(each) for each in [*at, *when, "--group", "x*"]]) == 1
        error = f"offsets: error: no group 'x*' in {store}{then} (GROUP_ID_NOT_FOUND)"
        assert capsys.readouterr().err.splitlines()[-1] == error


def test_missing_group_is_one_line(store: Path, positions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", str(store), "--positions", str(positions)]
    assert main(["lag", *at, "--group", "ok", "--group", "none"]) == 1
    out, err = capsys.readouterr()
    assert re.findall(r"^(ok|none) ", out, re.MULTILINE) == ["ok"]
    assert err.splitlines()[-1] == f"offsets: error: no group 'none' in {store} (GROUP_ID_NOT_FOUND)"
    assert main(["lag", *at, "--bootstrap-server", "localhost:1"]) == 2


def test_fetch_shows_where_a_consumer_would_start(
    store: Path, positions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["fetch", "--store", store, "--topic", "t", "--positions", positions]
    (held,) = rows_of(capsys, *at, "--group", "slow").values()
    assert (held["offset"], held["committed_offset"], held["strategy"]) == (450, 450, "committed")
    (new,) = rows_of(capsys, *at, "--group", "new", "--reset", "earliest").values()
    assert (new["offset"], new["committed_offset"], new["strategy"]) == (0, None, "earliest")
    assert new["reason"] == "the group has no committed offset, and earliest is the log start"
    nowhere = ["fetch", "--store", str(store), "--group", "new", "--topic", "u"]
    assert main(nowhere) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"offsets: error: {store} has no partition of topic 'u'")
    (unknown,) = rows_of(capsys, *nowhere, "--partition", "3").values()
    assert (unknown["offset"], unknown["partition"]) == (None, 3)


@pytest.mark.parametrize(
    ("sampled_ms", "offset", "strategy"), [(-1, 20, "committed"), (0, 3, "earliest"), (1, 3, "earliest")]
)
def test_a_commit_after_the_newest_sample_is_not_above_the_log_end(
    tmp_path: Path,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    sampled_ms: int,
    offset: int,
    strategy: str,
) -> None:
    """R37: the records before it were there. By a later sample the log was truncated."""
    log = LogPartition()
    log.commit(("g", "t", 0), 20, commit_timestamp=START_MS)
    store = folded_store([TimedRow(row, START_MS) for row in log.rows], tmp_path / "store", 1, settings)
    header = "topic,partition,log_start_offset,log_end_offset,sampled_at"
    (tmp_path / "sampled.csv").write_text(f"{header}\nt,0,3,5,{START_MS + sampled_ms}\n", encoding="utf-8")
    at = ["fetch", "--store", store, "--topic", "t", "--positions", tmp_path / "sampled.csv", "--group", "g"]
    (found,) = rows_of(capsys, *at, "--reset", "earliest").values()
    assert (found["offset"], found["strategy"]) == (offset, strategy)


@pytest.mark.parametrize(("ends", "offset"), [((40, 45, 50), 40), ((40, 5, 50), 3), ((900, 1_000, 5), 3)])
def test_a_duration_does_not_reach_into_an_earlier_incarnation_of_the_topic(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], ends: tuple[int, ...], offset: int
) -> None:
    """The log end fell after that time: each record that is there now is of later."""
    log = LogPartition()
    log.commit(("g", "t", 0), 20)
    store = folded_store([TimedRow(row, START_MS) for row in log.rows], tmp_path / "store", 1, settings)
    now_ms = SystemClock().now_ms()
    times = [now_ms - minutes * 60_000 for minutes in (120, 30, 1)]
    lines = [f"t,0,3,{end},{at_ms}" for end, at_ms in zip(ends, times, strict=True)]
    header = "topic,partition,log_start_offset,log_end_offset,sampled_at"
    (tmp_path / "sampled.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    at = ["fetch", "--store", store, "--topic", "t", "--positions", tmp_path / "sampled.csv", "--group", "new"]
    (found,) = rows_of(capsys, *at, "--reset", "by_duration:PT1H").values()
    assert found["offset"] == offset


def test_fetch_says_that_a_consumer_waits_for_a_transaction(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:  # R17
    log = LogPartition()
    log.commit(("g", "t", 0), 7)
    for partition in (0, 1):
        log.commit(("g", "t", partition), 9, producer_id=1)
    log.commit(("g", "t", 2), 5)
    store = folded_store([TimedRow(row, START_MS) for row in log.rows], tmp_path / "store", 1, settings)
    assert main(["fetch", "--store", str(store), "--group", "g", "--topic", "t", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["partition"], row["committed_offset"], row["strategy"]) for row in found] == [
        (0, 7, "committed"),
        (1, None, "latest"),
        (2, 5, "committed"),
    ]
    waits = ["(UNSTABLE_OFFSET_COMMIT)" in row["reason"] for row in found]
    assert waits == [True, True, False]


def test_fetch_asks_several_stores(
    store: Path, tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogPartition()
    log.commit(("ok", "u", 0), 7)
    other = folded_store([TimedRow(log.rows[0], START_MS)], tmp_path / "other", 1, settings)
    at = ["fetch", "--store", str(store), "--store", str(other), "--group", "ok"]
    for topic, found in (("u", [(7, "other")]), ("t", [(990, "store")])):
        capsys.readouterr()
        assert main([*at, "--topic", topic, "--format", "json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["offset"], row["cluster"]) for row in rows] == found
        assert all([*row][-3:] == ["cluster", "as_of", "stale"] for row in rows)
    assert main([*at, "--topic", "v"]) == 1
    message = f"offsets: error: {store}, {other} has no partition of topic 'v'; "
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
