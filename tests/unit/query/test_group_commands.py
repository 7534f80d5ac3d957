"""`describe`, `groups` and `top` without Spark and without a fold, against what brokers answered."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.questions.query.describe import GroupAnswer, GroupState, MemberAnswer, OffsetAnswer, group_answers
from offsets_pipeline.questions.query.group_listing import is_pattern, matching, without_match
from offsets_pipeline.questions.query.log_info import LogPartitionInfo, log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, SNAPSHOT, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.compare import compare
from tests.folded_stores import folded_store
from tests.logs import LogPartition, capture_partitions, capture_rows, commit_key, oracle
from tests.spark.stores import appended
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from offsets_pipeline.fold.state.merge_on_read import StateTable

CAPTURE = "4.2.0-kip848"


@pytest.fixture(scope="module")
def unfolded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a recorded log that nothing has folded."""
    location = tmp_path_factory.mktemp("groups") / "prod"
    create_tables(str(location), StoreProperties(MIRRORED, capture_partitions(CAPTURE)))
    appended(location, [row for rows in capture_rows(CAPTURE).values() for row in rows])
    return str(location)


@pytest.fixture
def offsets(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds; returns its output."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        status = main(arguments)
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return out

    return run


@pytest.mark.parametrize(
    ("kind", "reader"), [(MIRRORED, "`offsets follow`, or the ingest again"), (SNAPSHOT, "`offsets snapshot`")]
)
@pytest.mark.parametrize("command", [["describe", "--all-groups"], ["groups"], ["log-info"]])
def test_questions_before_the_first_read_say_that_nothing_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, reader: str, command: list[str]
) -> None:
    store = tmp_path / "store"
    create_tables(str(store), StoreProperties(kind, 2))
    assert main([*command, "--store", str(store)]) == 0
    assert capsys.readouterr().err == f"offsets: warning: nothing was read into {store} yet: run {reader}\n"


@pytest.mark.parametrize(
    "command",
    [
        *("describe --all-groups", "describe --all-groups --members --verbose", "describe --all-groups --state"),
        *("groups", "groups --absolute", "top --rounds 1", "lag", "lag --absolute", "lag --summary", "log-info"),
        *("history --group k-reset", "history --group k-reset --absolute", "as-of --time 2026-11-20T19:07:40Z"),
        *("expire-offsets --dry-run --within 100000", "fetch --group k-reset --topic t1"),
    ],
)
def test_tables_of_80_columns_have_no_longer_line(
    unfolded: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--store", unfolded]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert [line for line in lines if len(line) > 80] == []


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_commit_is_described_at_once_without_a_fold(
    tmp_path: Path, offsets: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "owned")
    OwnedStore.create(store, 50)
    assert main(["commit", "--store", store, "--group", "billing", "orders:0=42", "orders:1=17"]) == 0
    table = offsets("describe", "--store", store, "--group", "billing").splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["billing", "orders", "0", "42"],
        ["billing", "orders", "1", "17"],
    ]
    document = json.loads(offsets("describe", "--store", store, "--group", "billing", "--format", "json"))
    found = [(each["topic"], each["partition"], each["offset"]) for each in document["groups"]["billing"]["offsets"]]
    assert found == [("orders", 0, 42), ("orders", 1, 17)]
    assert (document["stale"], document["cluster"]) == ([], "owned")
    assert document["as_of"].endswith("Z")
    assert main(["delete-group", "--store", store, "--group", "billing"]) == 0
    capsys.readouterr()
    assert main(["describe", "--store", store, "--group", "billing"]) == 1
    assert "no group 'billing'" in capsys.readouterr().err


def test_a_log_that_nothing_has_folded_answers_as_its_broker_did(unfolded: str, offsets: Callable[..., str]) -> None:
    answer = json.loads(offsets("describe", "--store", unfolded, "--all-groups", "--format", "json"))
    assert compare(answer, oracle(CAPTURE)) == []


def broker_members() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (name, member["member_id"]): {**member, "group": group["describe"]}
        for name, group in oracle(CAPTURE)["groups"].items()
        if group["listed"]
        for member in group["describe"]["members"]
    }


def assignment(places: list[str] | None) -> str:
    """A broker's assignment as Kafka's tool prints it."""
    topics: dict[str, list[int]] = {}
    for place in places or []:
        topic, _, partition = place.rpartition("-")
        topics.setdefault(topic, []).append(int(partition))
    return ";".join(f"{topic}:{','.join(map(str, sorted(each)))}" for topic, each in sorted(topics.items()))


def test_members_have_the_epochs_and_assignments_of_the_broker(unfolded: str, offsets: Callable[..., str]) -> None:
    printed = offsets("describe", "--store", unfolded, "--all-groups", "--members", "--verbose", "--format", "csv")
    expected = broker_members()
    rows = {(row["group"], row["consumer_id"]): row for row in rows_of(printed)}
    assert rows.keys() == expected.keys()
    targets = 0
    for at, row in rows.items():
        member = expected[at]
        assert row["current_assignment"] == assignment(member["assignment"])
        assert int(row["#partitions"]) == len(member["assignment"])
        if member["group"]["type"] == "Consumer":
            assert row["current_epoch"] == str(member["member_epoch"])
            assert row["target_epoch"] == str(member["group"]["target_assignment_epoch"])
            assert row["target_assignment"] == assignment(member["target_assignment"])
            targets += 1
    assert targets > 3
    short = offsets("describe", "--store", unfolded, "--all-groups", "--members").splitlines()[0]
    assert short.split()[-2:] == ["#PARTITIONS", "SUBSCRIBED-TOPICS"]
    header = offsets("describe", "--store", unfolded, "--all-groups", "--members", "--verbose").splitlines()[0]
    names = "GROUP CONSUMER-ID HOST CLIENT-ID #PARTITIONS CURRENT-EPOCH CURRENT-ASSIGNMENT "
    names += "TARGET-EPOCH TARGET-ASSIGNMENT SUBSCRIBED-TOPICS"
    assert [name for name in header.split() if name != "GROUP-INSTANCE-ID"] == names.split()


def streams_members(name: str) -> dict[str, tuple[str, str, str, list[str], list[str]]]:
    """Members of the streams groups of a capture, whose descriptions are texts: their active tasks, and the targets."""
    member = re.compile(
        r"memberId=([^,]+), memberEpoch=(\d+),.*?topologyEpoch=(\d+), processId=([^,]+),.*? assignment=\(activeTasks="
        r"(.*?), standbyTasks=.*?targetAssignment=\(activeTasks=(.*?), standbyTasks="
    )
    found = {}
    for group in oracle(name)["groups"].values():
        if group.get("list_type") == "Streams":
            for member_id, epoch, topology_epoch, process, tasks, targets in member.findall(str(group["describe"])):
                found[member_id] = (epoch, topology_epoch, process, tasks.split(","), targets.split(","))
    return found


def task_names(tasks: str) -> list[str]:
    """Names of active tasks, as Kafka Streams names them: 0_1 is partition 1 of subtopology 0."""
    of_kind = tasks.removeprefix("ACTIVE: ").split("; ")
    parts = [each.removesuffix("]").split(":[") for each in of_kind]
    return [f"{subtopology}_{partition}" for subtopology, partitions in parts for partition in partitions.split(",")]


def test_members_of_streams_groups_have_the_tasks_of_the_broker(tmp_path: Path, offsets: Callable[..., str]) -> None:
    capture = "4.2.0-share"
    create_tables(str(tmp_path), StoreProperties(MIRRORED, capture_partitions(capture)))
    appended(tmp_path, [row for rows in capture_rows(capture).values() for row in rows])
    options = ["--all-groups", "--members", "--verbose"]
    rows = [
        row
        for row in rows_of(offsets("describe", "--store", str(tmp_path), *options, "--format", "csv"))
        if row["process"]
    ]
    found = {
        row["consumer_id"]: (
            *(row["current_epoch"], row["topology_epoch"], row["process"]),
            *(task_names(row["tasks"]), task_names(row["target_tasks"])),
        )
        for row in rows
    }
    assert found == streams_members(capture)
    assert len(found) == 4
    for row in rows:
        (partition,) = {each.rpartition("_")[2] for each in task_names(row["tasks"])}
        again = f"{row['group']}-KSTREAM-REPARTITION-0000000002-repartition"
        assert row["current_assignment"] == row["target_assignment"] == f"in:{partition};{again}:{partition}"
    header = offsets("describe", "--store", str(tmp_path), *options).splitlines()[0].split()
    assert header[-4:] == ["TOPOLOGY-EPOCH", "PROCESS", "TASKS", "TARGET-TASKS"]
    document = json.loads(offsets("describe", "--store", str(tmp_path), *options, "--format", "json"))
    member = document["groups"]["st-live"]["members"][0]["streams"]
    assert member["tasks"] == {"active_tasks": {"0": [1], "1": [1]}, "standby_tasks": {}, "warmup_tasks": {}}
    assert document["groups"]["st-empty"]["members"] == []


def test_a_member_has_the_target_assignment_that_its_last_record_gives(
    tmp_path: Path, offsets: Callable[..., str]
) -> None:
    home, target = partition_for("g", 2), RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER
    log, stray = LogPartition(home), LogPartition(1 - home)
    topics = [{"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [0, 2]}]
    for member in ("kept", "gone", "again"):
        log.group(RecordType.CONSUMER_GROUP_MEMBER_METADATA, "g", member)
    log.group(RecordType.CONSUMER_GROUP_METADATA, "g", epoch=1)
    log.group(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, "g", assignment_epoch=1)
    for member in ("kept", "gone"):
        log.group(target, "g", member, topic_partitions=topics)
    for member in ("gone", "again"):
        log.group_tombstone(target, "g", member)
    log.group_tombstone(target, "g", "never had one")
    log.group(target, "g", "again", topic_partitions=topics)
    stray.group(target, "g", "gone", topic_partitions=topics)  # R1
    log.group(RecordType.CONSUMER_GROUP_METADATA, "removed", epoch=1)
    log.group(target, "removed", "gone", topic_partitions=topics)
    log.group_tombstone(RecordType.CONSUMER_GROUP_METADATA, "removed")
    create_tables(str(tmp_path), StoreProperties(MIRRORED, 2))
    appended(tmp_path, [*log.rows, *stray.rows])
    printed = offsets("describe", "--store", str(tmp_path), "--all-groups", "--members", "--verbose", "--format", "csv")
    assigned = "AAAAAAAAAAAAAAAAAAAAAQ:0,2"
    found = {row["consumer_id"]: row["target_assignment"] for row in rows_of(printed)}
    assert found == {"kept": assigned, "gone": "", "again": assigned}


def test_log_info_counts_the_records_of_each_log_partition(tmp_path: Path) -> None:
    first, last = LogPartition(0), LogPartition(2, start=5)
    for log in (first, last):
        log.commit(("g", "t", 0), 1)
    first.record(commit_key("g"), b"\0\x09")  # there is no version 9
    first.record(b"\0\x63", b"")  # nor a record type 99
    first.commit(("g", "t", 0), 2, producer_id=7)
    folded_store(tmp_path, StoreProperties(MIRRORED, 3), [*first.rows, *last.rows])
    assert log_info(StateReader(str(tmp_path))) == [
        LogPartitionInfo(0, 0, 4, 4, 4, 1, 1, 1, None, "modern", 0),
        LogPartitionInfo(1, 0, 0, None, 0, 0, 0, 0, None, "modern", 0),
        LogPartitionInfo(2, 5, 6, 6, 1, 0, 0, 0, None, "modern", 0),
    ]


def test_log_info_counts_what_is_not_folded_yet_and_does_not_know_what_is_quarantined(tmp_path: Path) -> None:
    log = LogPartition(0)
    log.commit(("g", "t", 0), 1)
    folded_store(tmp_path, StoreProperties(MIRRORED, 2), log.rows)
    log.record(b"\0\x63", b"")  # there is no record type 99
    log.record(commit_key("g"), b"\0\x09")  # nor a version 9
    for number in (2, 3):
        log.commit(("g", "t", number), 2, producer_id=7)
    appended(tmp_path, log.rows[1:])
    assert log_info(StateReader(str(tmp_path))) == [
        LogPartitionInfo(0, 0, 5, 1, 5, None, 1, 2, None, "modern", 0),
        LogPartitionInfo(1, 0, 0, None, 0, 0, 0, 0, None, "modern", 0),
    ]


def test_states_have_the_epochs_that_the_broker_told(unfolded: str, offsets: Callable[..., str]) -> None:
    rows = rows_of(offsets("describe", "--store", unfolded, "--all-groups", "--state", "--format", "csv"))
    groups = {name: group for name, group in oracle(CAPTURE)["groups"].items() if group["listed"]}
    assert {row["group"]: row["state"] for row in rows} == {name: group["list_state"] for name, group in groups.items()}
    for row in rows:
        described = groups[row["group"]]["describe"]
        assert row["#members"] == str(len(described["members"]))
        if described["type"] == "Consumer":
            epochs = described["group_epoch"], described["target_assignment_epoch"]
            assert (row["group_epoch"], row["target_assignment_epoch"]) == tuple(map(str, epochs))
    line = offsets("describe", "--store", unfolded, "--all-groups", "--state").splitlines()[0]
    assert " ".join(line.split()) == "GROUP ASSIGNMENT-STRATEGY STATE #MEMBERS"


def test_partitions_name_the_member_that_consumes_them(unfolded: str, offsets: Callable[..., str]) -> None:
    rows = rows_of(offsets("describe", "--store", unfolded, "--all-groups", "--format", "csv"))
    expected = {
        (name, *place.rsplit("-", 1), member_id)
        for (name, member_id), member in broker_members().items()
        for place in member["assignment"]
    }
    assert {
        (row["group"], row["topic"], row["partition"], row["consumer_id"]) for row in rows if row["consumer_id"]
    } == (expected)


def test_groups_are_chosen_by_pattern_state_type_and_topic(unfolded: str, offsets: Callable[..., str]) -> None:
    broker = {name: group for name, group in oracle(CAPTURE)["groups"].items() if group["listed"]}
    listed = offsets("describe", "--store", unfolded, "--list").splitlines()
    header, *rows = offsets("describe", "--store", unfolded, "--list", "--state").splitlines()
    assert header.split() == ["GROUP", "STATE"]
    assert [row.split()[0] for row in rows] == listed
    assert listed == sorted(broker)
    document = json.loads(offsets("describe", "--store", unfolded, "--group", "k-s*", "--format", "json"))
    assert sorted(document["groups"]) == [name for name in sorted(broker) if name.startswith("k-s")] != []
    stable = json.loads(offsets("groups", "--store", unfolded, "--state", "stable", "--format", "json"))["groups"]
    assert [each["group"] for each in stable] == [
        name for name in sorted(broker) if broker[name]["list_state"] == "Stable"
    ]
    of_type = ["groups", "--store", unfolded, "--type", "consumer", "--format", "json"]
    expected = {name: broker[name]["list_state"] for name in broker if broker[name]["list_type"] == "Consumer"}
    assert {each["group"]: each["state"] for each in json.loads(offsets(*of_type))["groups"]} == expected
    both = json.loads(offsets(*of_type, "--state", "empty"))["groups"]
    assert [each["group"] for each in both] == [name for name in sorted(expected) if expected[name] == "Empty"] != []
    of_topic = json.loads(offsets("groups", "--store", unfolded, "--topic", "t2", "--format", "json"))["groups"]
    assert [each["group"] for each in of_topic] == [
        name for name in sorted(broker) if any(each["topic"] == "t2" for each in broker[name].get("offsets") or [])
    ]
    for each in stable:
        group = broker[each["group"]]
        assert (each["members"], each["offsets"]) == (len(group["describe"]["members"]), len(group["offsets"]))
        assert each["last_commit"] is None or each["last_commit"].startswith("2026-")
        assert (each["lag"], each["cluster"]) == (None, "prod")


def test_list_has_whole_names_and_an_error_for_a_missing_one(
    tmp_path: Path, offsets: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, name = str(tmp_path / "owned"), 249 * "g"
    OwnedStore.create(store, 1)
    assert main(["commit", "--store", store, "--group", name, "orders:0=42"]) == 0
    listing = "describe", "--store", store, "--list"
    capsys.readouterr()
    assert offsets(*listing) == f"{name}\n"
    assert main([*listing, "--group", "g*", "--group", "none"]) == 1
    found = capsys.readouterr()
    assert (found.out, found.err) == (
        f"{name}\n",
        f"offsets: error: no group 'none' in {store} (GROUP_ID_NOT_FOUND)\n",
    )


def test_groups_of_a_classic_log_shows_the_group_that_describe_shows(
    tmp_path: Path, offsets: Callable[..., str]
) -> None:
    """Groups with records in two log partitions: in that of R1 and a lower one, and in two others."""
    logs = [LogPartition(at) for at in range(3)]
    by_home = {partition_for(name, 3): name for name in ("a", "b", "c")}
    assert sorted(by_home) == [0, 1, 2]
    at_home, away = by_home[2], by_home[0]
    for log, name, topics in ((0, at_home, 3), (2, at_home, 1), (2, away, 2), (1, away, 1)):
        for topic in range(topics):
            logs[log].commit((name, f"t{topic}", log), 10 * log + topic)
    store = tmp_path / "store"
    create_tables(str(store), StoreProperties(MIRRORED, 3, coordinator_semantics=CoordinatorSemantics.CLASSIC))
    appended(store, [row for log in logs for row in log.rows])
    described = json.loads(offsets("describe", "--store", str(store), "--all-groups", "--format", "json"))["groups"]
    listed = json.loads(offsets("groups", "--store", str(store), "--format", "json"))["groups"]
    assert {each["group"]: each["offsets"] for each in listed} == {at_home: 1, away: 1}
    assert {name: [each["partition"] for each in group["offsets"]] for name, group in described.items()} == {
        at_home: [2],  # R1
        away: [1],
    }


def test_a_pattern_without_a_group_is_an_error(unfolded: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["describe", "--store", unfolded, "--group", "zz*", "--group", "k-stable"]) == 1
    out, err = capsys.readouterr()
    assert "k-stable" in out
    assert err == f"offsets: error: no group 'zz*' in {unfolded} (GROUP_ID_NOT_FOUND)\n"


def test_patterns_match_whole_names_and_a_name_matches_itself() -> None:
    names = ["a", "ab", "a*", "b.c", "b-c", "a\nb"]
    assert matching(names, ["a*"]) == ["a", "ab", "a*", "a\nb"]
    assert matching(names, ["b?c"]) == ["b.c", "b-c"]
    assert matching(names, ["b.c", "a"]) == ["a", "b.c"]
    assert matching(names, ["[ab]"]) == []
    assert matching(names, []) == []
    assert [each for each in ("a*", "a?", "a", "[ab]", "") if is_pattern(each)] == ["a*", "a?"]
    assert without_match(["z", "b*", "z?", "a", "z", "c*"], names) == ["z", "z?", "c*"]


def test_a_group_is_described_with_its_members_and_the_offsets_that_it_answers() -> None:
    """Hand-worked rows of the state: R1 (misplaced groups), R17 (what is pending) and R35 (names of topics)."""
    home, other = partition_for("g", 2), 1 - partition_for("g", 2)
    member = {
        "member_id": "m",
        "instance_id": "i",
        "client_id": "c",
        "client_host": "/h",
        "member_epoch": 3,
        "assignment": [
            {"topic": topic, "topic_id": topic_id, "partition": at}
            for topic, topic_id, at in (("t", "A", 10), ("t", "A", 2), (None, "A", 1), (None, "B", 0))
        ],
        "subscribed_topics": ["t"],
    }
    of_group: dict[str, Any] = {"group_type": "Consumer", "protocol_type": "consumer", "protocol": None}
    of_group |= {"group_epoch": 7, "assignment_epoch": 6}
    rows = [
        {"log_partition": at, "group_id": name, "state": state, "misplaced": at != partition_for(name, 2), **of_group}
        | {"members": [member] if state == "Stable" else None}
        for at, name, state in (
            (home, "g", "Stable"),
            (other, "g", "Empty"),
            (other, "gone", "Dead"),
            (home, "x", "Stable"),
        )
    ]
    offsets = [
        {"log_partition": at, "group_id": "g", "topic": topic, "partition": partition, "committed_offset": offset}
        | {"leader_epoch": None, "metadata": "", "commit_timestamp": time_us, "misplaced": at != home}
        for at, topic, partition, offset, time_us in (
            *(
                (home, "u", 0, 4, 40_000),
                (home, "t", 10, 3, 30_000),
                (home, "t", 2, 2, 20_999),
                (home, "t", 1, None, None),
            ),
            (other, "t", 0, 1, 10_000),
        )
    ]
    tables = {"group_facts": rows, "offset_facts": offsets}
    pending = {(home, "g"): {("t", 10)}, (other, "g"): {("t", 2)}}

    def newest(table: StateTable, columns: Sequence[str]) -> pa.Table:
        return pa.Table.from_pylist(tables[table.name], schema=table.row_schema()).select(columns)

    state = GroupState(newest, pending, 2, CoordinatorSemantics.MODERN)
    assert partition_for("x", 2) == other
    expected = GroupAnswer(
        *("Consumer", "Stable", "consumer", "", 7, home, False),
        [MemberAnswer("m", "i", "c", "/h", ["B-0", "s-1", "t-10", "t-2"], ["t"], 3)],
        [
            *(OffsetAnswer("t", 2, 2, None, ""), OffsetAnswer("t", 10, 3, None, "", pending=True)),
            OffsetAnswer("u", 0, 4, None, ""),
        ],
        6,
    )
    assert group_answers(state, {"A": "s"}, are_named=True) == {"g": expected}
    misplaced = GroupAnswer("Consumer", "Stable", "consumer", "", None, other, misplaced=True)
    listed = group_answers(state, {"A": "s"}, are_named=False)
    assert listed == {"g": expected, "x": misplaced}
    assert [each.committed_ms for each in listed["g"].offsets] == [20, 30, 40]
    assert (listed["g"].last_commit_ms, listed["x"].last_commit_ms) == (40, None)
    assert listed["g"].assigned == dict.fromkeys((("B", 0), ("s", 1), ("t", 10), ("t", 2)), expected.members[0])


def test_top_refreshes_until_its_last_round(unfolded: str, offsets: Callable[..., str], signal_handlers: None) -> None:
    printed = offsets("top", "--store", unfolded, "--sort", "offsets", "--limit", "2", "--every", "1", "--rounds", "2")
    lines = printed.splitlines()
    assert len(lines) == 2 * (2 + 2)
    assert " groups, as of " in lines[0]
    assert lines[1].split()[:4] == ["GROUP", "TYPE", "STATE", "MEMBERS"]
    assert lines[1:4] == lines[5:8]


def test_a_cluster_gets_a_name_beside_a_coordinator(
    tmp_path: Path, offsets: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [str(tmp_path / each / "store") for each in ("a", "b")]
    for store in stores:
        OwnedStore.create(store, 1)
    with opened(stores[0]) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        at = ("--store", stores[0], "--store", stores[1])
        assert main(["groups", *at]) == 1
        assert "both have the cluster name 'store'" in capsys.readouterr().err
        assert offsets("name-cluster", "--store", stores[0], "prod") == f"the cluster of {stores[0]} is prod\n"
        coordinator.commit_offsets("h", {("t", 0): 1})
    OwnedStore.create(stores[0], 1)  # it is the store that it was
    listed = json.loads(offsets("groups", *at, "--format", "json"))["groups"]
    assert [(each["group"], each["cluster"]) for each in listed] == [("g", "prod"), ("h", "prod")]
    assert main(["name-cluster", "--store", stores[0], "no name"]) == 2


def test_a_list_without_a_group_of_a_name_ends_as_describe_does(
    unfolded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--store", unfolded, "--group", "none", "--group", "k-stable", "--group", "x*"]
    for command in ("groups", "describe"):
        assert main([command, *names]) == 1
        out, err = capsys.readouterr()
        assert "k-stable" in out
        assert err.endswith(f"offsets: error: no groups 'none', 'x*' in {unfolded} (GROUP_ID_NOT_FOUND)\n")
    assert main(["groups", "--store", unfolded, "--group", "none"]) == 1
    assert capsys.readouterr().out == ""


def test_a_group_that_other_options_leave_out_is_no_error(unfolded: str, offsets: Callable[..., str]) -> None:
    of_another_state = offsets("groups", "--store", unfolded, "--group", "k-stable", "--state", "Empty")
    assert of_another_state.splitlines()[1:] == []


def test_several_clusters_are_told_apart(unfolded: str, tmp_path: Path, offsets: Callable[..., str]) -> None:
    other = str(tmp_path / "test")
    OwnedStore.create(other, 1)
    assert main(["commit", "--store", other, "--group", "k-stable", "orders:0=1"]) == 0
    at = ("--store", unfolded, "--store", other)
    names = [line.split() for line in offsets("describe", *at, "--list").splitlines()]
    assert [cluster for name, *_, cluster in names if name == "k-stable"] == ["prod", "test"]
    rows = rows_of(offsets("describe", *at, "--group", "k-stable", "--format", "csv"))
    assert {row["cluster"] for row in rows} == {"prod", "test"}
    document = json.loads(offsets("describe", *at, "--group", "k-stable", "--format", "json"))
    assert [(each["cluster"], list(each["groups"])) for each in document["clusters"]] == [
        ("prod", ["k-stable"]),
        ("test", ["k-stable"]),
    ]
    listed = json.loads(offsets("groups", *at, "--group", "k-stable", "--format", "json"))["groups"]
    assert [(each["group"], each["cluster"]) for each in listed] == [("k-stable", "prod"), ("k-stable", "test")]
    query = "SELECT cluster, count(*) AS n FROM current_offsets WHERE group_id = 'k-stable' GROUP BY ALL ORDER BY ALL"
    counts = [json.loads(line) for line in offsets("sql", *at, query, "--format", "json").splitlines()]
    assert counts == [
        {"cluster": "prod", "n": len(oracle(CAPTURE)["groups"]["k-stable"]["offsets"])},
        {"cluster": "test", "n": 1},
    ]
