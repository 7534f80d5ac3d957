"""The commands that write to an owned store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.registry import FOLDER
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.stores import opened, references_of

if TYPE_CHECKING:
    from pathlib import Path


def committed(store: Path) -> dict[tuple[str, str, int], tuple[int, int | None, str, int | None]]:
    return {
        identity: (each.committed_offset, each.leader_epoch, each.metadata, each.expire_timestamp_ms)
        for state in references_of(store, 3).values()
        for identity, each in state.current.items()
    }


def test_a_store_is_created_where_a_commit_finds_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(place / "new")
    commit = ["commit", "--store", store, "--group", "g", "t:0=1"]
    assert main(commit) == 1
    assert capsys.readouterr().err == (
        f"offsets: error: no store at {store}; ingest a log, run offsets create for an owned store, or check the path\n"
    )
    assert main(["create", "--store", store, "--offsets-partitions", "3"]) == 0
    assert main(commit) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"owned store {store} created for groups, with 3 log partitions",
        f"1 offset of group g committed in {store}",
    ]
    assert committed(place / "new") == {("g", "t", 0): (1, None, "", None)}
    for count, said in ((3, "an owned store of 3 log partitions already; use it as it is"), (4, "a store with other")):
        assert main(["create", "--store", store, "--offsets-partitions", str(count)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"offsets: error: cannot create a store in {store}: it has {said}")
        assert error.endswith("name another folder\n")
        assert error.count("\n") == 1
    assert committed(place / "new") == {("g", "t", 0): (1, None, "", None)}


def test_group_ids_that_a_terminal_obeys_are_said_escaped(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", str(place / "new"), "--group", "d\x1b[31mx\ny"]
    assert main(["create", *at[:2]]) == 0
    for command in ("commit t:0=1", "delete-offsets t:1", "delete-offsets t:0", "commit t:0=1", "delete-group"):
        name, *places = command.split()
        assert main([name, *at, *places]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["d\\x1b[31mx\\ny" in line for line in lines] == [False, True, True, True, True, True]
    assert all(line.isprintable() for line in lines)


def test_a_store_is_created_for_connectors(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, settings = str(place / "new"), tmp_path / "files.json"
    settings.write_text('{"connector.class": "FileStreamSource"}', encoding="utf-8")
    assert main(["create", "--store", store, "--connect-cluster-id", "lab"]) == 0
    assert main(["connect", "config", "--store", store, "--connector", "files", "--settings", str(settings)]) == 0
    few = ["--store", f"{store} too", "--offsets-partitions", "3"]
    assert main(["create", *few, "--connect-cluster-id", "lab"]) == 0
    assert main(["create", "--store", store, "--connect-cluster-id", "lab"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"owned store {store} created for connectors of cluster lab, with 25 log partitions",
        f"connector files is created in {store}",
        f"owned store {store} too created for connectors of cluster lab, with 3 log partitions",
    ]
    assert err == (
        f"offsets: error: cannot create a store in {store}: it has an owned store of 25 log partitions already; "
        "use it as it is, or name another folder\n"
    )


def test_offsets_are_committed_and_deleted(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", str(store), "--group", "g"]
    assert main(["commit", *at, "t:0=5", "t:1=6", "u:0=7", "--metadata", "by hand", "--leader-epoch", "3"]) == 0
    assert committed(store) == {
        ("g", "t", 0): (5, 3, "by hand", None),
        ("g", "t", 1): (6, 3, "by hand", None),
        ("g", "u", 0): (7, 3, "by hand", None),
    }
    assert main(["delete-offsets", *at, "t", "u:5"]) == 0
    assert committed(store).keys() == {("g", "u", 0)}
    assert main(["delete-offsets", *at, "nope", "u:5"]) == 0  # as Kafka's tool
    assert main(["commit", *at, "u:0=8", "--retention-ms", "1000"]) == 0
    assert committed(store)["g", "u", 0][3] is not None
    assert main(["commit", *at, "u:0=9", "--retention-ms", "-1"]) == 0
    assert committed(store)["g", "u", 0] == (9, None, "", None)
    assert main(["delete-group", *at]) == 0
    assert committed(store) == {}
    assert capsys.readouterr().out.splitlines() == [
        f"3 offsets of group g committed in {store}",
        f"2 offsets of group g deleted from {store}",
        f"0 offsets of group g deleted from {store}: it has no committed offset of nope, u:5",
        f"1 offset of group g committed in {store}",
        f"1 offset of group g committed in {store}",
        f"group g deleted from {store}",
    ]
    assert not (store / FOLDER).exists()  # a command does not renew a file there


@pytest.mark.parametrize("named", ["t", "t:0"])
def test_deleted_offsets_are_those_of_open_transactions_too(
    store: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:  # R12
    with opened(store) as coordinator:
        coordinator.begin_transaction(1, 0)
        coordinator.txn_commit_offsets(1, 0, "g", {("t", 0): 5, ("u", 0): 6})
        assert main(["delete-offsets", "--store", str(store), "--group", "g", named]) == 0
        assert capsys.readouterr().out == f"1 offset of group g deleted from {store}\n"
        coordinator.end_transaction(1, 0, commit=True)
    assert committed(store) == {("g", "u", 0): (6, None, "", None)}


def test_refused_request_is_one_line(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(store) as coordinator:
        coordinator.store_group(stable("active"))
        coordinator.commit_offsets("idle", {("t", 0): 1})
    at = ["--store", str(store), "--group"]
    printed = ""
    for arguments, said in (
        (["commit", *at, "active", "t:0=1"], "group 'active' has members: only members may commit"),
        (
            ["commit", *at, "idle", "t:0=2", "--retention-ms", "0"],
            "retention_time_ms=0 is not allowed",
        ),
        (["delete-offsets", *at, "active", "t:0"], "group 'active' subscribes to t"),
        (["delete-offsets", *at, "active", "t"], "group 'active' subscribes to t"),  # it has no offset of t
        (["delete-offsets", *at, "nobody", "t:0"], "no group 'nobody'"),
        (["delete-group", *at, "active", "--group", "idle"], "group 'active' has 2 members"),
    ):
        assert main(arguments) == 1
        out, err = capsys.readouterr()
        printed += out
        assert err.startswith(f"offsets: error: {said}")
        assert len(err.splitlines()) == 1
    assert printed == f"group idle deleted from {store}\n"  # it does not wait for the other


def test_each_group_that_cannot_be_deleted_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(store) as coordinator:
        coordinator.store_group(stable("active"))
        coordinator.commit_offsets("idle", {("t", 0): 1})
    groups = [word for name in ("active", "none", "idle") for word in ("--group", name)]
    assert main(["delete-group", "--store", str(store), *groups]) == 1
    out, err = capsys.readouterr()
    assert out == f"group idle deleted from {store}\n"
    warning, error = err.splitlines()
    assert warning.startswith("offsets: warning: no group 'none'")
    assert error.startswith("offsets: error: group 'active' has 2 members")


@pytest.mark.parametrize(
    "command",
    [
        ["describe", "--all-groups"],
        ["log-info"],
        ["export-segments", "--to", "{to}"],
        ["expire-offsets", "--dry-run"],
        ["expire-offsets"],
        ["reset-offsets", "--group", "g", "--all-topics", "--to-offset", "1"],
        ["commit", "--group", "g", "t:0=2"],
        ["delete-group", "--group", "g"],
        ["delete-offsets", "--group", "g", "t"],
    ],
    ids=" ".join,
)
def test_a_store_of_a_newer_format_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    first = store / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(first.read_text().replace('"offsets.format.version": "6"', '"offsets.format.version": "7"'))
    name, *options = command
    assert main([name, "--store", str(store), *(each.format(to=tmp_path / "to") for each in options)]) == 1
    message = f"cannot open store {store}: it has format 7, this program reads 6; use a newer version of the program"
    assert capsys.readouterr() == ("", f"offsets: error: {message}\n")
    assert not (tmp_path / "to").exists()
