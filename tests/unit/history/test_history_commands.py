"""`offsets as-of`, `history` and `why`, in every format, without Spark."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.opened import retention_of
from offsets_pipeline.common.clock import SystemClock, parse_time_ms
from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.query.parse_tree import Filters
from offsets_pipeline.questions.query.views import _condition
from offsets_pipeline.questions.report.collect import read_commits
from offsets_pipeline.semantics.retention import Retention
from tests.compare import compare
from tests.logs import LogPartition, capture_partitions, oracle
from tests.unit.history.history_stores import START_MS, capture_store, random_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow

CAPTURE = "4.2.0-classic"
AT_END = "2100-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return capture_store(tmp_path_factory.mktemp("history") / "store", CAPTURE)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, *arguments, "--format", "json"))
    return found


def test_as_of_the_end_is_what_the_broker_answers(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "as-of", "--store", store, "--time", AT_END)
    assert compare(found, oracle(CAPTURE)) == []
    assert found["complete"] is True
    assert found["complete_since"] is None
    assert len(found["log_partitions"]) == capture_partitions(CAPTURE)


def test_as_of_takes_patterns_of_groups(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("as-of", "--store", store, "--time", AT_END)
    every = json_of(capsys, *at)["groups"]
    chosen = json_of(capsys, *at, "--group", "g-st*", "--group", "g-deloff")["groups"]
    assert chosen == {name: group for name, group in every.items() if name.startswith("g-st") or name == "g-deloff"}
    assert len(chosen) > 1
    assert main([*at, "--group", "g-st*", "--group", "x*"]) == 1
    found = capsys.readouterr()
    assert "g-stable" in found.out
    assert found.err.startswith("offsets: error: no group 'x*' in ")


def test_no_answer_of_an_owned_log_is_as_of_a_time_to_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(tmp_path / "owned")
    OwnedStore.create(location, 1)
    assert main(["commit", "--store", location, "--group", "g", "t:0=7"]) == 0
    capsys.readouterr()
    found = json_of(capsys, "as-of", "--store", location, "--time", AT_END)
    assert START_MS < parse_time_ms(found["as_of"]) <= SystemClock().now_ms()


def test_as_of_before_a_deletion_has_the_offset(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = json_of(capsys, "as-of", "--store", store, "--position", "2:17", "--group", "g-deleted")
    assert [(each["topic"], each["offset"]) for each in before["groups"]["g-deleted"]["offsets"]] == [("t1", 13)]
    assert main(["as-of", "--store", store, "--position", "2:19", "--group", "g-deleted"]) == 1
    assert "no group 'g-deleted'" in capsys.readouterr().err


def test_groups_that_existed_are_shown_before_the_error_about_the_others(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    as_of = ["as-of", "--store", store, "--time", AT_END, "--group", "no-such-group"]
    assert main([*as_of, "--group", "g-stable"]) == 1
    shown = capsys.readouterr()
    assert "g-stable" in shown.out
    assert "no group 'no-such-group'" in shown.err
    assert main([*as_of, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["groups"] == {}
    assert main([*as_of, "--group", "nor-this"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no groups 'no-such-group', 'nor-this' in" in shown.err


def test_table_and_csv_are_those_of_describe(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["as-of", "--store", store, "--time", AT_END, "--group", "g-stable"]
    (header, first, *_) = csv.reader(io.StringIO(answer(capsys, *at, "--format", "csv")))
    row = dict(zip(header, first, strict=True))
    assert (row["group"], row["type"], row["state"], row["topic"]) == ("g-stable", "Classic", "Stable", "t1")
    assert answer(capsys, *at, "--members").startswith("GROUP")


def test_history_of_a_group_is_in_the_order_of_the_log(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "history", "--store", store, "--group", "g-reset")
    assert list(found) == ["group", "cluster", "as_of", "stale", "complete_since", "history"]
    assert (found["group"], found["complete_since"]) == ("g-reset", None)
    events = [event["event"] for event in found["history"]]
    assert events[:3] == ["group created", "group joined", "commit"]
    assert events.count("rewind") == 4
    places = [event["record_offset"] for event in found["history"]]
    assert places == sorted(places)


def test_history_is_cut_by_topic_partition_and_time(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    of_offset = ["history", "--store", store, "--group", "g-reset", "--topic", "t1", "--partition", "0"]
    events = json_of(capsys, *of_offset)["history"]
    assert [event["event"] for event in events] == ["commit", "rewind"]
    later = json_of(capsys, *of_offset, "--since", events[1]["time"])["history"]
    earlier = json_of(capsys, *of_offset, "--until", events[0]["time"])["history"]
    assert [*earlier, *later] == events


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        (Filters(), "TRUE"),
        (Filters(log_partitions=[3, 0]), "log_incarnation = 0 AND log_partition IN (0, 3)"),
        (Filters(log_partitions=[]), "log_incarnation = 0 AND log_partition IN (NULL)"),
        (Filters(group_ids=["a"]), "log_incarnation = 0 AND log_partition IN (2)"),  # R1: 97 % 5
    ],
)
def test_views_of_history_read_the_log_partitions_that_a_query_needs(
    store: str, filters: Filters, condition: str
) -> None:
    assert _condition(LogHistory(store), filters) == condition


def test_a_group_of_which_the_log_has_only_tombstones_is_told_from_an_unknown_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker's compaction removes the records of a group and keeps its tombstone, for `delete.retention.ms`."""
    log = LogPartition()
    log.group_tombstone(2, "gone")
    log.commit(("other", "t", 0), 1, producer_id=7)
    log.end_commit(7)  # a marker, which belongs to no group
    location = random_store(
        tmp_path / "store", {0: log.rows}, {(0, row.record_offset): START_MS for row in log.rows}, 1
    )
    for command in (["history"], ["why", "--topic", "t", "--partition", "0"]):
        for group, said in (
            ("gone", "no commit and no state of group 'gone', only tombstones or records that do not decode"),
            ("nobody", "no record of group 'nobody'"),
        ):
            assert main([*command, "--store", location, "--group", group]) == 1
            assert f"offsets: error: the log of {location} has {said} (G" in capsys.readouterr().err


def test_why_tells_the_deletion_in_a_sentence(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["why", "--store", store, "--group", "g-deloff", "--topic", "t2", "--partition", "1"]
    found = json_of(capsys, *asked)
    assert (found["status"], found["cause"], found["committed_offset"]) == ("deleted", "deleted", 2)
    assert len(found["deletions"]) == 1
    line = answer(capsys, *asked)
    assert line.startswith("g-deloff t2-1: committed 2 at ")
    assert "by a request that deletes offsets" in line
    assert answer(capsys, *asked, "--format", "csv").splitlines()[0].startswith("group,topic,partition,status,text")


def test_an_unknown_group_and_a_wrong_time_are_one_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--store", store, "--group", "nobody"]) == 1
    assert "no record of group 'nobody'" in capsys.readouterr().err
    for wrong in ("3", "a:1", "1:2,1:3", ""):
        assert main(["as-of", "--store", store, "--position", wrong]) == 2
        assert "LOGPARTITION:OFFSET" in capsys.readouterr().err
    assert main(["as-of", "--store", store]) == 2
    assert "--time, --position" in capsys.readouterr().err
    assert main(["history", "--store", store, "--group", "g", "--since", AT_END, "--until", "2026-01-01"]) == 2
    assert "--since is later than --until" in capsys.readouterr().err


def test_a_position_that_the_log_does_not_reach_is_told(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    (at_end,) = json_of(capsys, "as-of", "--store", store, "--position", "2:19")["log_partitions"]
    assert main(["as-of", "--store", store, "--position", "2:99999", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    (beyond,) = json.loads(out)["log_partitions"]
    assert at_end["complete"]
    assert not beyond["complete"]
    assert f"log partition 2 of {store} ends at {beyond['end']}, before position 99999" in err


def test_a_cleaned_log_says_since_when_it_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogPartition(start=3)  # three records are gone
    for offset in (10, 20, 30):
        log.commit(("g", "t", 0), offset)
    rows: dict[int, list[LogRow]] = {0: log.rows}
    times = {(0, row.record_offset): START_MS + 1000 * row.record_offset for row in log.rows}
    location = random_store(tmp_path / "store", rows, dict(times), 1, cleaned_to={0: 4})
    since = "2026-11-18T11:06:43.000Z"
    found = json_of(capsys, "history", "--store", location, "--group", "g")
    assert found["complete_since"] == since
    asked = ["why", "--store", location, "--group", "gone", "--topic", "t", "--partition", "0"]
    assert main(asked) == 1  # its records may have been cleaned away
    gone = f"the log of {location} has no record of group 'gone', and is complete since {since} (GROUP_ID_NOT_FOUND)"
    assert capsys.readouterr().err == f"offsets: error: {gone}\n"
    assert main(["as-of", "--store", location, "--position", "0:3"]) == 0
    assert f"answers are complete since {since}" in capsys.readouterr().err
    assert main(["as-of", "--store", location, "--time", since]) == 0
    assert capsys.readouterr().err == ""


def test_several_logs_answer_with_their_clusters(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogPartition()
    log.commit(("g-stable", "elsewhere", 0), 7, commit_timestamp=START_MS)
    log.commit(("only-there", "t", 0), 7, commit_timestamp=START_MS)
    other = random_store(tmp_path / "other", {0: log.rows}, {(0, 0): START_MS, (0, 1): START_MS}, 1)
    both = ("--store", store, "--store", other, "--group", "g-stable")
    clusters = json_of(capsys, "as-of", *both, "--time", AT_END)["clusters"]
    assert [each["cluster"] for each in clusters] == ["store", "other"]
    assert [each["topic"] for each in clusters[1]["groups"]["g-stable"]["offsets"]] == ["elsewhere"]
    rows = list(csv.DictReader(io.StringIO(answer(capsys, "as-of", *both, "--time", AT_END, "--format", "csv"))))
    assert {(row["topic"], row["cluster"]) for row in rows} == {
        ("t1", "store"),
        ("t2", "store"),
        ("elsewhere", "other"),
    }

    assert [each["cluster"] for each in json_of(capsys, "history", *both)["clusters"]] == ["store", "other"]
    rows = list(csv.DictReader(io.StringIO(answer(capsys, "history", *both, "--format", "csv"))))
    events = [(row["event"], row["offset"]) for row in rows if row["cluster"] == "other"]
    assert events == [("commit", "7"), ("group created", "")]
    assert len([row for row in rows if row["cluster"] == "store"]) > 1

    asked = ("why", *both, "--topic", "elsewhere", "--partition", "0")
    found = json_of(capsys, *asked)["clusters"]
    assert [(each["cluster"], each["status"]) for each in found] == [
        ("store", "never committed"),
        ("other", "committed"),
    ]
    first, second = answer(capsys, *asked).splitlines()
    assert first.startswith("g-stable elsewhere-0 in store: the log has no visible commit ")
    assert second.startswith("g-stable elsewhere-0 in other: committed 7 at ")
    rows = list(csv.DictReader(io.StringIO(answer(capsys, *asked, "--format", "csv"))))
    assert [(row["cluster"], row["committed_offset"]) for row in rows] == [("store", ""), ("other", "7")]
    assert main(["as-of", *both[:-1], "nobody", "--time", AT_END]) == 1
    assert f"no group 'nobody' in {store}, {other} as of 2100-01-01T00:00:00.000Z" in capsys.readouterr().err
    of_nobody = (*both[:-1], "nobody", "--topic", "elsewhere", "--partition", "0")
    for command in (("history", *both[:-1], "nobody"), ("history", *of_nobody), ("why", *of_nobody)):
        assert main([*command]) == 1
        no_record = f"the log of {store}, {other} has no record of group 'nobody' (GROUP_ID_NOT_FOUND)"
        assert capsys.readouterr().err.splitlines()[-1] == f"offsets: error: {no_record}"
    # the other store alone knows the group
    found = json_of(capsys, "why", *both[:-1], "only-there", "--topic", "elsewhere", "--partition", "0")["clusters"]
    assert [each["status"] for each in found] == ["unknown group", "never committed"]


def test_a_group_id_that_controls_terminals_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogPartition()
    log.commit(("g\x1b[2J", "t", 0), 7, commit_timestamp=START_MS)
    location = random_store(tmp_path / "store", {0: log.rows}, {(0, 0): START_MS}, 1)
    line = answer(capsys, "why", "--store", location, "--group", "g\x1b[2J", "--topic", "t", "--partition", "0")
    assert "committed 7" in line
    assert "\x1b" not in line


def test_no_command_imports_spark(store: str) -> None:
    """It would take longer than the answer. A process is needed: other tests have imported it here."""
    code = (
        "import sys; from offsets_pipeline.cli import main; "
        f"assert main(['why', '--store', {store!r}, '--group', 'g-deloff', '--topic', 't2', '--partition', '1']) == 0; "
        f"assert main(['as-of', '--store', {store!r}, '--time', '{AT_END}']) == 0; "
        f"assert main(['history', '--store', {store!r}, '--group', 'g-stable']) == 0; "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_noted_retention_counts_unless_the_user_gives_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = Retention(60_000, 5_000, is_known=True, read_at_ms=START_MS)
    store = capture_store(tmp_path / "store", "4.2.0-expiry-after")
    assert retention_of(LogHistory(store), Settings(), None) == Retention()
    store = capture_store(tmp_path / "noted", "4.2.0-expiry-after", noted)
    found = json_of(capsys, "why", "--store", store, "--group", "e-empty", "--topic", "t1", "--partition", "0")
    assert found["cause"] == "expired (likely)"
    rows = read_views(store, ["deleted_offsets"], group_ids=["e-empty"])["deleted_offsets"]
    assert set(rows["cause"].to_pylist()) == {"expired (likely)"}
    found = json_of(
        capsys,
        "why",
        "--store",
        store,
        "--group",
        "e-empty",
        "--topic",
        "t1",
        "--partition",
        "0",
        "--retention-minutes",
        "2",
    )
    assert found["cause"] == "group removed"
    for given, cause in ((None, "expired (likely)"), (2, "group removed")):  # the report's
        retention = retention_of(LogHistory(store), Settings(), given)
        assert {each.cause for each in read_commits(store, ["e-empty"], retention=retention)[2]} == {cause}
    log = LogHistory(store)
    assert retention_of(log, Settings(), None) == noted
    assert retention_of(log, Settings(), 2) == Retention(120_000, 5_000, is_known=True)
