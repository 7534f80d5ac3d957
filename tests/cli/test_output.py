"""Compares the output of commands, in each format, with the broker's answers."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from tests.compare import compare
from tests.logs import LogPartition, capture_rows, oracle
from tests.places import copied
from tests.spark.stores import appended, export_of, log_of, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

CAPTURE = "4.2.0-kip848"


@pytest.fixture
def store(folded: Callable[[str], Path]) -> str:
    return str(folded(CAPTURE))


@pytest.fixture
def offsets(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds without warnings; returns its output."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


def oracle_offsets() -> set[tuple[str, str, int, int]]:
    return {
        (name, each["topic"], each["partition"], each["offset"])
        for name, group in oracle(CAPTURE)["groups"].items()
        for each in group.get("offsets") or []
    }


def test_json_of_all_groups_is_what_the_broker_answered(store: str, offsets: Callable[..., str]) -> None:
    assert (
        compare(json.loads(offsets("describe", "--store", store, "--all-groups", "--format", "json")), oracle(CAPTURE))
        == []
    )


def test_csv_of_all_groups_holds_every_offset(store: str, offsets: Callable[..., str]) -> None:
    rows = list(csv.DictReader(io.StringIO(offsets("describe", "--store", store, "--all-groups", "--format", "csv"))))
    found = {
        (row["group"], row["topic"], int(row["partition"]), int(row["current_offset"]))
        for row in rows
        if row["current_offset"]
    }
    assert found == oracle_offsets()
    listed = {name: group["list_state"] for name, group in oracle(CAPTURE)["groups"].items() if group["listed"]}
    assert {row["group"]: row["state"] for row in rows} == listed


def test_table_of_one_group_has_a_line_for_each_offset(store: str, offsets: Callable[..., str]) -> None:
    name, _, _, _ = max(oracle_offsets())
    header, *lines = offsets("describe", "--store", store, "--group", name).splitlines()
    names = "GROUP TOPIC PARTITION CURRENT-OFFSET CONSUMER-ID HOST CLIENT-ID"  # without a broker no log end
    assert header.split() == names.split()
    cells = [line.split() for line in lines]
    assert {(row[0], row[1], int(row[2]), int(row[3])) for row in cells if row[3] != "-"} == {
        each for each in oracle_offsets() if each[0] == name
    }
    listed = offsets("describe", "--store", store, "--group", name, "--list", "--state").splitlines()
    assert [line.split() for line in listed] == [
        ["GROUP", "STATE"],
        [name, oracle(CAPTURE)["groups"][name]["list_state"]],
    ]


def test_all_groups_that_are_named_are_shown_and_those_that_are_missing_are_named(
    store: str, offsets: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sorted({name for name, *_ in oracle_offsets()})[:2]
    at = ("describe", "--store", store, "--format", "json", "--group")
    assert json.loads(offsets(*at, second, "--group", first, "--group", first))["groups"].keys() == {first, second}
    assert main([*at, "no", "--group", first, "--group", "nor"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["groups"].keys() == {first}
    assert err == f"offsets: error: no groups 'no', 'nor' in {store} (GROUP_ID_NOT_FOUND)\n"


def test_warning_counts_records_that_are_not_folded_and_too_many_for_a_question(
    workbench: Workbench,
    empty: Callable[[int], Path],
    folded: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    new, folded_before = copied(empty(5), tmp_path / "a ` store"), copied(folded(CAPTURE), tmp_path / "store")
    workbench.ingest(new, segments_of(CAPTURE))
    log = LogPartition(0, start=1_000_000)
    log.commit(("late", "t", 0), 1)
    appended(folded_before, log.rows)
    (tmp_path / "none.toml").write_text("[questions]\nmax_unfolded_records = 0\n")
    of_capture = f"{sum(map(len, capture_rows(CAPTURE).values()))} records"
    for location, records in ((new, of_capture), (folded_before, "1 record")):
        for command in (
            ("describe", "--all-groups", "--format", "json"),
            ("log-info", "--format", "json"),
            ("sql", "SELECT 1 AS one", "--format", "json"),
            ("expire-offsets", "--dry-run", "--format", "json"),
        ):
            capsys.readouterr()
            assert main([*command, "--store", str(location), "--config", str(tmp_path / "none.toml")]) == 0
            out, err = capsys.readouterr()
            for line in out.splitlines():
                json.loads(line)
            assert err == (
                f"offsets: warning: the answers lack {records} of {location} not folded yet; "
                f"run `offsets fold --store {shlex.quote(str(location))} --available-now`\n"
            )
            assert main([*command, "--store", str(location)]) == 0
            assert capsys.readouterr().err == ""
    # a path with a backtick is a path
    assert workbench.fold(new) > 0
    assert main(["maintain", "--store", str(new)]) == 0
    assert compare(export_of(new), oracle(CAPTURE)) == []


def test_members_have_a_line_each(store: str, offsets: Callable[..., str]) -> None:
    printed = offsets("describe", "--store", store, "--all-groups", "--members", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(printed)))
    members = {
        (name, each["member_id"], each["client_id"], each["host"])
        for name, group in oracle(CAPTURE)["groups"].items()
        if group["listed"]
        for each in group["describe"]["members"]
    }
    assert {(row["group"], row["consumer_id"], row["client_id"], row["host"]) for row in rows} == members
    assert len(rows) == len(members) > 0
    assert {row["subscribed_topics"] for row in rows if row["group"] == "k-regex"} == {"rx-a rx-b"}


def test_log_info_has_a_line_for_each_log_partition(store: str, offsets: Callable[..., str]) -> None:
    printed: dict[str, list[dict[str, Any]]] = json.loads(offsets("log-info", "--store", store, "--format", "json"))
    bounds = oracle(CAPTURE)["topics"]["__consumer_offsets"]["partitions"]
    assert [(row["log_partition"], row["start"], row["end"]) for row in printed["log_partitions"]] == [
        (each["partition"], each["start"], each["end"]) for each in bounds
    ]
    lines = offsets("log-info", "--store", store).splitlines()
    names = "LOG-PARTITION START END FOLDED-TO RECORDS"
    assert lines[0].split()[:5] == names.split()
    assert [line.split()[0] for line in lines[1:6]] == ["0", "1", "2", "3", "4"]
    assert lines[6:] == ["COORDINATOR-SEMANTICS: modern"]
    rows = list(csv.DictReader(io.StringIO(offsets("log-info", "--store", store, "--format", "csv"))))
    assert [int(row["records"]) for row in rows] == [len(capture_rows(CAPTURE)[at]) for at in range(5)]


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_query_prints_its_rows(store: str, offsets: Callable[..., str], format_: str) -> None:
    query = "SELECT count(*) AS offsets, sum(committed_offset) AS together, NULL AS nothing FROM current_offsets"
    printed = offsets("sql", "--store", store, query, "--format", format_)
    count, together = len(oracle_offsets()), sum(each[3] for each in oracle_offsets())
    if format_ == "json":
        assert json.loads(printed) == {"offsets": count, "together": together, "nothing": None}
    elif format_ == "csv":
        assert printed == f"offsets,together,nothing\n{count},{together},\n"
    else:
        assert [line.split() for line in printed.splitlines()] == [
            ["OFFSETS", "TOGETHER", "NOTHING"],
            [str(count), str(together), "-"],
        ]


def test_metadata_cannot_command_the_terminal(folded: Callable[[str], Path], offsets: Callable[..., str]) -> None:
    store = str(folded("4.2.0-txn-open"))  # one client library appends a NUL to its metadata
    assert (
        "\x00"
        in json.loads(offsets("describe", "--store", store, "--group", "x-live", "--format", "json"))["groups"][
            "x-live"
        ]["offsets"][0]["metadata"]
    )
    shown = offsets("describe", "--store", store, "--all-groups", "--verbose")
    assert "\x00" not in shown
    assert "\\x00" in shown


def test_ingest_fold_reload_and_verify_say_how_much(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path, offsets: Callable[..., str]
) -> None:
    store = str(copied(empty(5), tmp_path / "store"))
    records = sum(map(len, capture_rows("4.2.0-classic").values()))
    groups = sum(group["listed"] for group in oracle("4.2.0-classic")["groups"].values())
    source = str(segments_of("4.2.0-classic"))
    files = len(list(segments_of("4.2.0-classic").glob("__consumer_offsets-*/*.log")))
    ingested = f"added to {store} from {files} segment files (5 log partitions)\n"
    assert offsets("ingest-segments", "--store", store, source) == f"{records} records {ingested}"
    assert offsets("ingest-segments", "--store", store, source) == f"0 records {ingested}"
    two = ("--partition", "0", "--partition", "1")
    of_two = sum(row.log_partition < 2 for row in log_of(store))
    # the state has no log partition yet, so all of them are replayed
    assert offsets("reload", "--store", store, *two) == f"{records} records replayed in {store}\n"
    assert offsets("reload", "--store", store, *two).startswith(f"{of_two} records replayed in ")
    assert offsets("reload", "--store", store) == f"{records} records replayed in {store}\n"
    live = sum(len(group["offsets"]) for group in export_of(store)["groups"].values())
    said = offsets("verify", "--store", store)
    assert f" and {groups} groups match a replay of the {records} folded records of 5 log partitions" in said
    assert int(said.split()[1]) >= live


def test_cleaning_is_tried_then_done_and_then_there_is_nothing_to_do(
    folded: Callable[[str], Path], offsets: Callable[..., str], tmp_path: Path
) -> None:
    location = copied(folded(CAPTURE), tmp_path / "store")
    before, answers = len(log_of(location)), export_of(location)

    def clean(*more: str) -> dict[str, str]:
        said = offsets("clean-log", "--store", str(location), *more).splitlines()
        names, values = (line.split() for line in said[:2])  # below them is the path of the store
        return dict(zip(names, values, strict=True))

    assert clean("--older-than", "8000000")["REMOVED"] == "0"
    tried = clean("--dry-run")
    assert (tried["RECORDS-BEFORE"], "FILES" in tried, "BYTES" in tried) == (str(before), False, False)
    assert len(log_of(location)) == before
    done = clean()
    assert {name for name in done if done[name] != tried.get(name)} == {"FILES", "BYTES"}
    assert int(done["BYTES"]) < int(done["BYTES-BEFORE"])
    assert int(done["RECORDS"]) == len(log_of(location)) == before - int(done["REMOVED"]) < before
    assert export_of(location) == answers
    again = clean()
    assert (again["RECORDS"], again["BYTES"], again["REMOVED"]) == (done["RECORDS"], done["BYTES"], "0")
    rows = list(csv.DictReader(io.StringIO(offsets("log-info", "--store", str(location), "--format", "csv"))))
    assert sum(int(row["records"]) for row in rows) == int(done["RECORDS"])
    assert any(int(row["cleaned_to"] or 0) for row in rows)


def test_reset_of_a_mirrored_store_is_planned_for_its_broker(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    groups = oracle(CAPTURE)["groups"]
    at = ["reset-offsets", "--store", store, "--all-topics", "--export"]
    capsys.readouterr()
    assert main([*at, "--all-groups", "--shift-by", "-1"]) == 1
    out, err = capsys.readouterr()
    inactive = {name: group["offsets"] for name, group in groups.items() if group.get("list_state") == "Empty"}
    assert sorted(csv.reader(io.StringIO(out))) == sorted(
        [name, each["topic"], str(each["partition"]), str(max(0, each["offset"] - 1))]
        for name, offsets in inactive.items()
        for each in offsets
    )
    assert out
    assert "--export prints it for kafka-consumer-groups --reset-offsets --from-file" in err
    stable = sorted(name for name, group in groups.items() if group.get("list_state") == "Stable")
    assert err.splitlines()[-1] == (
        "offsets: error: cannot reset groups with members: "
        + ", ".join(f"{name!r} is Stable" for name in stable[:5])
        + f" and {len(stable) - 5} more; stop the members first"
    )
    assert main([*at, "--group", "k-reset", "--to-offset", "2", "--dry-run"]) == 0
    assert capsys.readouterr().out == "".join(
        f"{each['topic']},{each['partition']},2\n" for each in inactive["k-reset"]
    )
