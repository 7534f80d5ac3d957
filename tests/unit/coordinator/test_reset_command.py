"""`offsets reset-offsets` of an owned store."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.registry import FOLDER
from offsets_pipeline.coordinator.requests import GroupMetadata, OffsetAndMetadata
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import commit_key, commit_value
from tests.unit.coordinator.groups import of_kip848, share_group, stable
from tests.unit.coordinator.stores import append_rows, log_of, opened, references_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator

POSITIONS = """\
topic,partition,earliest,latest,2026-11-20T12:00:00Z
t,0,10,100,50
t,1,0,20,
u,0,0,9,9
"""
HEADER = ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET"]
NOTHING_CHANGED = "offsets: nothing is changed: this is the plan; --execute commits it"


@pytest.fixture
def positions(tmp_path: Path) -> str:
    path = tmp_path / "positions.csv"
    path.write_text(POSITIONS, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _groups(store: Path) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("a", {("t", 0): OffsetAndMetadata(30, 4, "a note"), ("t", 1): OffsetAndMetadata(5)})
        coordinator.commit_offsets("b", {("u", 0): 3})


def committed(store: Path) -> dict[tuple[str, str, int], int]:
    return {
        identity: each.committed_offset
        for state in references_of(store, 3).values()
        for identity, each in state.current.items()
    }


BEFORE = {("a", "t", 0): 30, ("a", "t", 1): 5, ("b", "u", 0): 3}


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_a_plan_changes_nothing(store: Path, positions: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["reset-offsets", "--store", str(store), "--group", "a", "--all-topics", "--positions", positions]
    before = log_of(store)
    assert main([*at, "--shift-by", "-25"]) == 0
    out, err = capsys.readouterr()
    assert rows(out) == [HEADER, ["a", "t", "0", "10", "30"], ["a", "t", "1", "0", "5"]]
    assert err.splitlines() == [
        "offsets: warning: t-0: 5 is lower than the earliest offset; using 10",
        "offsets: warning: t-1: -20 is lower than the earliest offset; using 0",
        NOTHING_CHANGED,
    ]
    assert main([*at, "--to-latest", "--dry-run"]) == 0  # no notice about --execute
    assert capsys.readouterr().err == ""
    assert log_of(store) == before
    assert not (store / FOLDER).exists()


@pytest.mark.parametrize(
    ("scenario", "t0", "t1"),
    [
        (["--to-earliest"], 10, 0),
        (["--to-latest"], 100, 20),
        (["--to-offset", "60"], 60, 20),
        (["--to-current"], 30, 5),
        (["--shift-by", "3"], 33, 8),
        (["--to-datetime", "2026-11-20T12:00:00.000"], 50, 20),
        (["--to-datetime", "2026-11-20T13:00:00+01:00"], 50, 20),
    ],
)
def test_each_scenario_is_committed_as_one_commit_of_the_group(
    store: Path, positions: str, scenario: list[str], t0: int, t1: int
) -> None:
    records, versions = sum(map(len, log_of(store).values())), len(list((store / "log" / "_delta_log").glob("*.json")))
    at = ["reset-offsets", "--store", str(store), "--group", "a", "--topic", "t", "--positions", positions]
    assert main([*at, *scenario, "--execute"]) == 0
    assert committed(store) == BEFORE | {("a", "t", 0): t0, ("a", "t", 1): t1}
    assert sum(map(len, log_of(store).values())) == records + 2
    assert len(list((store / "log" / "_delta_log").glob("*.json"))) == versions + 1
    state = references_of(store, 3)[partition_for("a", 3)].current["a", "t", 0]
    assert (state.leader_epoch, state.metadata) == (None, "")  # Kafka's reset keeps neither


def test_a_reset_says_what_it_committed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["reset-offsets", "--store", str(store), "--group", "a", "--all-topics", "--to-offset", "7"]
    said = f"offsets: 2 offsets of group a committed in {store}"
    for format_ in ([], ["--format", "json"], ["--export"]):
        assert main([*at, *format_, "--execute"]) == 0
        assert capsys.readouterr().err.splitlines()[-1] == said
    assert committed(store) == BEFORE | {("a", "t", 0): 7, ("a", "t", 1): 7}
    for option, is_committed in (("--dry-run", False), ("--execute", True)):
        assert main([*at, "--format", "json", option]) == 0
        out, _ = capsys.readouterr()
        assert [json.loads(line)["committed"] for line in out.splitlines()] == [is_committed] * 2


def test_a_reset_says_what_it_committed_if_stdout_is_a_full_disk(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(store) as coordinator:
        coordinator.store_group(stable("b"))
    monkeypatch.setattr("offsets_pipeline.cli.repair_commands.write_rows", full)
    at = ["reset-offsets", "--store", str(store), "--all-topics", "--to-offset", "7", "--execute"]
    assert main([*at, "--group", "a"]) == 1
    assert committed(store) == BEFORE | {("a", "t", 0): 7, ("a", "t", 1): 7}
    *_, said, error = capsys.readouterr().err.splitlines()
    assert said == f"offsets: 2 offsets of group a committed in {store}"
    assert "No space left on device" in error
    assert main([*at, "--group", "a", "--group", "b"]) == 1
    *_, said, error = capsys.readouterr().err.splitlines()
    assert said == f"offsets: 2 offsets of group a committed in {store}"
    assert error.startswith("offsets: error: cannot reset groups with members: 'b' is Stable")


def test_time_counts_back_from_now(
    store: Path, positions: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noon_ms = 1_795_176_000_000  # 2026-11-20T12:00:00Z
    monkeypatch.setattr("offsets_pipeline.cli.repair_commands.SystemClock", lambda: FixedClock(noon_ms + 5_400_000))
    at = [
        "reset-offsets",
        "--store",
        str(store),
        "--group",
        "a",
        "--topic",
        "t:0",
        "--positions",
        positions,
        "--export",
    ]
    assert main([*at, "--by-duration", "PT1H30M", "--dry-run"]) == 0
    assert capsys.readouterr() == ("t,0,50\n", "")
    assert main([*at, "--by-duration", "PT1H30M0.001S", "--dry-run"]) == 1
    assert "positions.csv has no offset of t-0 for 2026-11-20T11:59:59.999Z" in capsys.readouterr().err
    assert main([*at, "--by-duration=-PT1H", "--dry-run"]) == 2
    assert "'-PT1H' is negative" in capsys.readouterr().err


def test_no_record_is_older_than_1970(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positions = tmp_path / "positions.csv"
    positions.write_text("topic,partition,earliest,latest,0\nt,0,10,100,10\n", encoding="utf-8")
    at = ["reset-offsets", "--store", str(store), "--group", "a", "--topic", "t:0", "--positions", str(positions)]
    for scenario in (["--to-datetime", "1969-12-31T23:59:59.999"], ["--by-duration", "P30000D"]):
        assert main([*at, *scenario, "--export", "--dry-run"]) == 0
        assert capsys.readouterr() == ("t,0,10\n", "")


def test_a_negative_commit_is_none(store: Path, positions: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_partition = partition_for("a", 3)
    append_rows(store, [LogRow(log_partition, 0, commit_key("a", "t", 1), commit_value(-1), None, None)], 3)
    at = ["reset-offsets", "--store", str(store), "--group", "a", "--positions", positions, "--to-current", "--dry-run"]
    assert main([*at, "--topic", "t"]) == 0
    assert rows(capsys.readouterr().out)[1:] == [["a", "t", "0", "30", "30"], ["a", "t", "1", "20", "-"]]
    assert main([*at, "--all-topics"]) == 0
    assert rows(capsys.readouterr().out)[1:] == [["a", "t", "0", "30", "30"]]


def test_an_exported_plan_is_read_again(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["reset-offsets", "--store", str(store)]
    one, all_of_them = tmp_path / "one.csv", tmp_path / "all.csv"
    assert main([*at, "--group", "a", "--all-topics", "--to-offset", "7", "--export", "--dry-run"]) == 0
    one.write_text(capsys.readouterr().out, encoding="utf-8")
    assert one.read_text() == "t,0,7\nt,1,7\n"
    assert main([*at, "--all-groups", "--all-topics", "--to-offset", "8", "--format", "csv", "--dry-run"]) == 0
    all_of_them.write_text(capsys.readouterr().out, encoding="utf-8")
    assert all_of_them.read_text() == "a,t,0,8\na,t,1,8\nb,u,0,8\n"
    assert main([*at, "--group", "a", "--group", "b", "--all-topics", "--to-offset", "8", "--export", "--dry-run"]) == 0
    assert capsys.readouterr().out == all_of_them.read_text()
    assert main([*at, "--group", "new", "--from-file", str(one), "--execute"]) == 0
    assert committed(store) == BEFORE | {("new", "t", 0): 7, ("new", "t", 1): 7}
    assert main([*at, "--group", "b", "--from-file", str(all_of_them), "--execute"]) == 0
    assert committed(store)["b", "u", 0] == 8
    assert committed(store)["a", "t", 0] == 30
    assert main([*at, "--from-file", str(all_of_them), "--execute", "--format", "json"]) == 0
    assert committed(store)["a", "t", 0] == 8
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert printed[0] == {
        "group": "a",
        "topic": "t",
        "partition": 0,
        "new_offset": 8,
        "current_offset": 30,
        "committed": True,
    }
    assert len(printed) == 3


def test_active_groups_are_named_after_the_others_are_reset(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("active", {("t", 0): 1})
        coordinator.store_group(stable("active"))
    of_kip848(store, "kip848")
    at = ["reset-offsets", "--store", str(store), "--topic", "t:0", "--to-offset", "6", "--execute"]
    assert main([*at, "--group", "active"]) == 1
    message = "offsets: error: cannot reset groups with members: 'active' is Stable"
    assert capsys.readouterr() == ("", f"{message}; stop the members first\n")
    assert main([*at, "--all-groups"]) == 1
    out, err = capsys.readouterr()
    assert rows(out) == [HEADER, ["a", "t", "0", "6", "30"], ["b", "t", "0", "6", "-"]]
    assert err.splitlines()[-2] == f"offsets: 2 offsets of 2 groups committed in {store}"
    assert err.splitlines()[-1] == f"{message}, 'kip848' is Stable; stop the members first"
    assert committed(store) == BEFORE | {("active", "t", 0): 1, ("a", "t", 0): 6, ("b", "t", 0): 6}


def test_all_groups_are_the_consumer_groups(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(store) as coordinator:
        coordinator.store_group(GroupMetadata("workers", "connect", 1))
        coordinator.store_group(GroupMetadata("idle", "consumer", 1))
    share_group(store, "share")
    at = ["reset-offsets", "--store", str(store), "--topic", "t:0", "--to-offset", "6", "--dry-run"]
    assert main([*at, "--all-groups"]) == 0
    assert [each[0] for each in rows(capsys.readouterr().out)] == ["GROUP", "a", "b", "idle"]
    assert main([*at, "--group", "share"]) == 1
    assert capsys.readouterr().err.startswith("offsets: error: group 'share' is a share group, which has no committed")


def test_a_group_that_gets_members_meanwhile_keeps_its_offsets(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from offsets_pipeline.cli import repair_commands  # noqa: PLC0415 - its own part is what is wrapped

    commit = repair_commands._commit

    def after_a_rebalance(coordinator: Coordinator, planned: list[object]) -> object:
        with opened(store) as another:
            another.store_group(stable("a"))
        return commit(coordinator, planned)  # type: ignore[arg-type]

    monkeypatch.setattr(repair_commands, "_commit", after_a_rebalance)
    at = ["reset-offsets", "--store", str(store), "--all-groups", "--all-topics", "--to-offset", "6", "--execute"]
    assert main(at) == 1
    out, err = capsys.readouterr()
    assert rows(out) == [HEADER, ["b", "u", "0", "6", "3"]]  # what was done
    assert err.splitlines()[-1].startswith("offsets: error: group 'a' has members: only members may commit")
    assert committed(store) == BEFORE | {("b", "u", 0): 6}


def test_invalid_plan_changes_nothing_and_is_one_line(
    store: Path, positions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("t,0,5\nt,1,-5\n", encoding="utf-8")
    before = log_of(store)
    for line, said in (
        ("--group a --all-topics --to-latest", "cannot reset t-0 of group 'a'"),
        (f"--group a --topic t:0,7 --to-latest --positions {positions}", f"{positions} has no partition t-7"),
        (
            "--group a --topic v --to-offset 1",
            "no offset is committed for topic 'v'; name its partitions, such as v:0,1",
        ),
        ("--group nobody --all-topics --to-offset 1", "no group 'nobody'; check the name"),
        ("--group nobody --topic t --to-offset 1", "no group 'nobody', and no offset is committed for topic 't'"),
        ("--group a --group b --topic t:0 --shift-by 1", "cannot shift t-0: group 'b' has no committed offset"),
        (f"--group a --from-file {bad}", f"{bad}, line 2: offset -5 is negative"),
        (f"--from-file {bad}", f"{bad} does not name groups"),
    ):
        arguments = ["reset-offsets", "--store", str(store), "--execute", *line.split()]
        assert main(arguments) == 1
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert err.startswith(f"offsets: error: {said}"), err
    assert log_of(store) == before


def test_thousands_of_groups_are_few_appends(store: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("".join(f"g{number},t,0,{number}\n" for number in range(3_000)), encoding="utf-8")
    assert main(["reset-offsets", "--store", str(store), "--from-file", str(plan), "--execute"]) == 0
    assert committed(store) == BEFORE | {(f"g{number}", "t", 0): number for number in range(3_000)}
    assert len(list((store / "log" / "_delta_log").glob("*.json"))) < 50
