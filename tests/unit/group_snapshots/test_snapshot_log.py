"""The changes between two looks at a cluster's groups, as records of a snapshot store."""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace as Answer
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, SystemClock, shown_time
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import BrokerUnreachable, NotAStore, StoreMismatch
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest import group_snapshot
from offsets_pipeline.ingest.group_snapshot import (
    GroupSnapshot,
    SnapshotLog,
    classic_values,
    consumer_values,
    streams_values,
)
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.kafka.broker.groups_client import GroupListing
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.kafka.record.wire import uuid_from_text
from offsets_pipeline.questions.history.group_timeline import why
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.query.as_of import offsets_as_of
from offsets_pipeline.semantics.group_description import describe_group
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.store.delta.properties import MIRRORED, SNAPSHOT, StoreProperties
from offsets_pipeline.store.delta.store_folder import properties_of
from offsets_pipeline.store.store import Store
from tests.unit.coordinator.stores import NOW_MS, log_of, references_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def classic_group(protocol_type: str, *member_ids: str) -> dict[tuple[int, str], bytes]:
    members = [
        Answer(
            member_id=each,
            group_instance_id=None,
            client_id="client",
            client_host="/10.0.0.1",
            member_metadata=b"",
            member_assignment=b"",
        )
        for each in member_ids
    ]
    protocol = "range" if members else ""
    return classic_values(Answer(protocol_type=protocol_type, protocol_data=protocol, members=members))


def assignment(*partitions: int) -> Answer:
    topics = [Answer(topic_id=UUID(bytes=uuid_from_text(TOPIC_ID)), topic_name="t", partitions=[*partitions])]
    return Answer(topic_partitions=topics if partitions else [])


def consumer_group(state: str = "Stable", **member: Any) -> Answer:  # noqa: ANN401 - of any field
    fields = {"member_id": "m", "instance_id": None, "rack_id": "r", "member_epoch": 7, "client_id": "c"} | {
        "client_host": "/10.0.0.2",
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None,
        "assignment": assignment(0, 1),
        "target_assignment": assignment(1, 0),
    }
    return described(state, 7, [Answer(**fields | member)])


def described(state: str, group_epoch: int, members: list[Answer], assignment_epoch: int = 7) -> Answer:
    return Answer(
        group_state=state,
        group_epoch=group_epoch,
        assignment_epoch=assignment_epoch,
        assignor_name="range",
        members=members,
    )


CLASSIC, EMPTY, SIMPLE = classic_group("consumer", "m-1"), classic_group("consumer"), classic_group("")
CONSUMER = consumer_values(consumer_group(), {TOPIC_ID: 2})


@contextmanager
def opened(folder: Path, at_ms: int = NOW_MS, cluster_id: str = "c") -> Iterator[SnapshotLog]:
    with SnapshotLog(str(folder), lambda: cluster_id, 3, Settings(), FixedClock(at_ms)) as log:
        yield log


def state_of(folder: Path) -> dict[str, tuple[str, dict[tuple[str, int], int]]]:
    """Type and offsets of each group, by a replay of the log with the specification."""
    return {
        group_id: (
            group.group_type,
            {where[1:]: each.committed_offset for where, each in state.current.items() if where[0] == group_id},
        )
        for state in references_of(folder, 3).values()
        for group_id, group in state.groups.items()
    }


def offsets(**of_topics: int) -> dict[tuple[str, int], tuple[int, int | None, str]]:
    return {(topic, 0): (offset, None, "") for topic, offset in of_topics.items()}


def decoded(values: Mapping[tuple[int, str], bytes]) -> list[tuple[int, str, int, dict[str, Any]]]:
    """Record type, key, version and fields of each value; leaves out fields that are null."""
    found = [(kind, name, decode_value(kind, value)) for (kind, name), value in values.items()]
    return [
        (kind, name, each.version, {field: value for field, value in each.fields.items() if value is not None})
        for kind, name, each in found
    ]


def test_values_of_a_described_group_are_those_of_its_coordinator_as_far_as_they_are_described() -> None:
    member: dict[str, Any] = {
        "group_instance_id": None,
        "client_id": "client",
        "client_host": "/10.0.0.1",
        "rebalance_timeout": -1,
    }
    member |= {"session_timeout": -1, "subscription": b"", "assignment": b""}
    members = [{"member_id": each} | member for each in ("m-1", "m-2")]
    fields = {"protocol_type": "consumer", "generation": -1, "protocol": "range", "members": members}
    assert decoded(classic_group("consumer", "m-2", "m-1")) == [(RecordType.GROUP_METADATA, "", 3, fields)]
    assert (SIMPLE, list(classic_group("", "m"))) == ({}, [(RecordType.GROUP_METADATA, "")])
    assert decoded(streams_values()) == [(RecordType.STREAMS_GROUP_METADATA, "", 0, {"epoch": 0, "metadata_hash": 0})]
    assigned = {"topic_id": TOPIC_ID, "partitions": [0, 1]}
    of_member: dict[str, Any] = {
        "rack_id": "r",
        "client_id": "c",
        "client_host": "/10.0.0.2",
        "subscribed_topic_names": ["t"],
    }
    of_member |= {"rebalance_timeout_ms": -1, "server_assignor": "range"}
    current: dict[str, Any] = {
        "member_epoch": 7,
        "previous_member_epoch": -1,
        "state": 0,
        "partitions_pending_revocation": [],
    }
    current |= {"assigned_partitions": [assigned | {"assignment_epochs": None}]}
    for counts, count in (({TOPIC_ID: 2}, 2), ({}, -1)):
        topic = {"topic_id": TOPIC_ID, "topic_name": "t", "num_partitions": count, "partition_metadata": []}
        assert decoded(consumer_values(consumer_group(), counts)) == [
            (RecordType.CONSUMER_GROUP_MEMBER_METADATA, "m", 0, of_member),  # R14: members come before their group
            (RecordType.CONSUMER_GROUP_METADATA, "", 0, {"epoch": 7}),
            (RecordType.CONSUMER_GROUP_PARTITION_METADATA, "", 0, {"topics": [topic]}),
            (RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, "m", 0, {"topic_partitions": [assigned]}),
            (RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, "", 0, {"assignment_epoch": 7}),
            (RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, "m", 0, current),
        ]


def test_only_changes_are_appended(tmp_path: Path) -> None:
    groups = {
        "simple": GroupSnapshot("Classic", offsets(t=1, u=2), SIMPLE),
        "classic": GroupSnapshot("Classic", offsets(t=3), CLASSIC),
        "consumer": GroupSnapshot("Consumer", offsets(t=4), CONSUMER),
        "streams": GroupSnapshot("Streams", offsets(t=5), streams_values()),
    }
    with opened(tmp_path / "s") as log:
        assert log.append(groups) == 5 + 1 + len(CONSUMER) + 1
        assert log.append(groups) == 0
        assert sorted(log.group_ids()) == sorted(groups)
        groups["simple"] = GroupSnapshot("Classic", offsets(t=1, u=9), SIMPLE)
        assert log.append(groups) == 1
    with opened(tmp_path / "s") as log:  # as another process does
        assert log.append(groups) == 0
        del groups["consumer"]
        assert log.append(groups) == 1 + len(CONSUMER)
    assert state_of(tmp_path / "s") == {
        "simple": ("Classic", {("t", 0): 1, ("u", 0): 9}),
        "classic": ("Classic", {("t", 0): 3}),
        "streams": ("Streams", {("t", 0): 5}),
    }


def test_a_commit_is_written_as_brokers_write_one_that_knows_no_topic_id(tmp_path: Path) -> None:
    """Version 3 of OffsetCommitValue has all that a look at a group tells; version 4 adds the id of the topic."""
    with opened(tmp_path / "s") as log:
        log.append({"g": GroupSnapshot("Classic", {("t", 0): (7, 5, "note")}, SIMPLE)})
    (rows,) = log_of(tmp_path / "s").values()
    (value,) = [row.value for row in rows if (row.key or b"")[:2] == b"\0\1"]
    # offset, leader epoch, metadata, and the time of the commit
    assert value == struct.pack(">hqih4sq", 3, 7, 5, 4, b"note", NOW_MS)


def test_commit_has_the_time_of_its_snapshot(tmp_path: Path) -> None:
    for at_ms, offset in ((NOW_MS, 1), (NOW_MS + 60_000, 2)):
        with opened(tmp_path / "s", at_ms) as log:
            log.append({"g": GroupSnapshot("Classic", offsets(t=offset, same=7), SIMPLE)})
    (state,) = references_of(tmp_path / "s", 3).values()
    assert {where[1]: each.commit_timestamp_ms for where, each in state.current.items()} == {
        "t": NOW_MS + 60_000,
        "same": NOW_MS,
    }


def test_history_of_snapshots_tells_when_an_offset_went_and_never_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tombstones are of the snapshot: what a coordinator writes for a cause is unknown."""
    store, later_ms = str(tmp_path / "s"), NOW_MS + 3_600_000
    with opened(tmp_path / "s") as log:
        log.append({name: GroupSnapshot("Classic", offsets(t=1, u=2), SIMPLE) for name in ("g", "other")})
    with opened(tmp_path / "s", later_ms) as log:
        log.append({"other": GroupSnapshot("Classic", offsets(u=2), SIMPLE)})
    found = {name: why(LogHistory(store), Retention(is_known=True), name, "t", 0) for name in ("g", "other")}
    assert {(each.status, each.cause, each.deleted_at) for each in found.values()} == {
        ("deleted", "unknown", shown_time(later_ms))
    }
    assert found["g"].candidates == ["expired", "group removed", "topic gone"]
    assert found["other"].candidates == ["expired", "deleted", "topic gone"]
    before, after = (offsets_as_of(store, time_ms=at).groups for at in (NOW_MS, later_ms))
    assert {name: [each.offset for each in group.offsets] for name, group in before.items()} == {
        "g": [1, 2],
        "other": [1, 2],
    }
    assert {name: [each.offset for each in group.offsets] for name, group in after.items()} == {"other": [2]}
    assert main(["history", "--store", store, "--group", "g", "--topic", "t", "--format", "json"]) == 0
    events = json.loads(capsys.readouterr().out)["history"]
    assert [(each["event"], each["offset"], each["by"]) for each in events] == [
        ("commit", 1, "unknown"),
        ("deleted", 1, "unknown"),
    ]


def test_answers_of_snapshots_that_ended_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, five_minutes_ms = str(tmp_path / "s"), 300_000
    with opened(tmp_path / "s") as log:
        log.append({"g": GroupSnapshot("Classic", offsets(t=1), SIMPLE)})
    writer = SampleWriter(table_of(store), "a test")
    writer.write({("t", 0): (0, 1)}, NOW_MS)

    def warned(minutes: int, *command: str) -> list[str]:
        """Warnings at this time after the second snapshot."""
        at_ms = NOW_MS + five_minutes_ms + minutes * 60_000
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: at_ms)
        assert main([*command, "--store", store]) == 0
        return capsys.readouterr().err.splitlines()

    commands = (
        *(("describe", "--group", "g"), ("groups",), ("lag",), ("history", "--group", "g")),
        ("as-of", "--time", shown_time(NOW_MS + 2 * five_minutes_ms)),
    )
    three_days = 3 * 24 * 60 - 5
    for command in commands[:-1]:  # how often snapshots come is not known yet: it may be once a day
        assert warned(three_days, *command) == []
        assert "its last snapshot" in warned(three_days + 1, *command)[0]
    writer.write({("t", 0): (0, 1)}, NOW_MS + five_minutes_ms)
    last = shown_time(NOW_MS + five_minutes_ms)
    ended = f"the answers of {store} may lack changes since its last snapshot, of {last}: run `offsets snapshot`"
    for command in commands:
        assert warned(15, *command) == []
        assert warned(16, *command)[:1] == [f"offsets: warning: {ended}"]
    assert warned(16, "as-of", "--time", last) == []
    assert main(["check", "--store", store]) == 2
    assert f"mirror behind: {ended}" in capsys.readouterr().out
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS + 4 * five_minutes_ms)
    assert main(["check", "--store", store]) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GroupSnapshot("Classic", offsets(t=1, u=1), CLASSIC), GroupSnapshot("Classic", offsets(t=1), SIMPLE)),
        (GroupSnapshot("Classic", offsets(t=1, u=1), CLASSIC), GroupSnapshot("Consumer", offsets(t=1), CONSUMER)),
        (GroupSnapshot("Consumer", offsets(t=1), CONSUMER), GroupSnapshot("Classic", offsets(t=2, u=1), EMPTY)),
        (GroupSnapshot("Consumer", offsets(t=1), CONSUMER), GroupSnapshot("Classic", offsets(t=1, u=1), SIMPLE)),
        (GroupSnapshot("Classic", offsets(t=1), SIMPLE), GroupSnapshot("Streams", offsets(t=1), streams_values())),
        (GroupSnapshot("Classic", offsets(t=1), CLASSIC), GroupSnapshot("Classic", {}, EMPTY)),
    ],
)
def test_group_that_became_another_one_is_replaced(tmp_path: Path, before: GroupSnapshot, after: GroupSnapshot) -> None:
    with opened(tmp_path / "s") as log:
        log.append({"g": before})
        log.append({"g": after})
        assert log.append({"g": after}) == 0
    expected = {where: offset for where, (offset, _, _) in after.offsets.items()}
    assert state_of(tmp_path / "s") == {"g": (after.group_type, expected)}


def test_group_keeps_its_members_while_it_rebalances(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as log:
        log.append({"g": GroupSnapshot("Classic", offsets(t=1), CLASSIC)})
        assert log.append({"g": GroupSnapshot("Classic", offsets(t=2), None)}) == 1
        assert log.append({"g": GroupSnapshot("Classic", offsets(t=2), CLASSIC)}) == 0
        assert log.append({"new": GroupSnapshot("Classic", {}, None)}) > 0  # `g` is gone, `new` has nothing yet
    assert state_of(tmp_path / "s") == {}


@pytest.mark.parametrize(
    ("group", "state"),
    [
        (consumer_group(), "Stable"),
        (consumer_group("Reconciling", assignment=assignment()), "Reconciling"),
        (consumer_group("Reconciling", member_epoch=6), "Reconciling"),
        (described("Assigning", 8, consumer_group().members), "Assigning"),
        (described("Empty", 9, [], 9), "Empty"),
    ],
)
def test_state_of_a_consumer_group_is_that_of_its_coordinator(group: Answer, state: str) -> None:
    found = describe_group("Consumer", consumer_values(group, {}))
    assert (found.state, found.group_epoch, found.assignment_epoch) == (
        state,
        group.group_epoch,
        group.assignment_epoch,
    )
    for member in found.members:
        assert (member.rack_id, member.subscribed_topics, found.protocol) == ("r", ["t"], "range")
        assert [each.topic_id for each in member.assignment] == [TOPIC_ID] * len(member.assignment)


@pytest.mark.parametrize(
    ("state", "of_first", "expected"),
    [
        ("Reconciling", {}, [0, 0]),
        ("Reconciling", {"member_epoch": 6}, [1, 0]),
        ("Reconciling", {"assignment": assignment()}, [1, 0]),
        ("Stable", {"member_epoch": 6}, [0, 0]),
    ],
)
def test_a_member_is_stable_at_the_epoch_and_the_assignment_of_its_group(
    state: str, of_first: dict[str, Any], expected: list[int]
) -> None:
    members = consumer_group(member_id="a", **of_first).members + consumer_group(member_id="b").members
    values = consumer_values(described(state, 7, members), {})
    record_type = RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT
    found = [decode_value(record_type, values[record_type, name] or b"").fields["state"] for name in ("a", "b")]
    assert found == expected  # 0: stable, 1: it has partitions to give up


def test_group_that_is_not_listed_is_gone_only_if_its_coordinator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {"listed": offsets(t=1), "unlisted": offsets(t=2), "gone": {}}
    monkeypatch.setattr(
        group_snapshot, "list_groups", lambda _: {"listed": GroupListing("listed", "Streams", "streams", "Stable")}
    )
    monkeypatch.setattr(group_snapshot, "fetch_group_offsets", lambda _, ids: {each: told[each] for each in ids})
    for name in ("describe_classic_groups", "describe_consumer_groups"):
        monkeypatch.setattr(group_snapshot, name, lambda *_: {})
    cluster: Any = None
    assert group_snapshot.take_snapshot(cluster, ["unlisted", "gone"]) == {
        "listed": GroupSnapshot("Streams", offsets(t=1), streams_values()),
        "unlisted": GroupSnapshot("Classic", offsets(t=2), None),
    }

    def away(*_: object) -> None:
        raise BrokerUnreachable("no coordinator")

    monkeypatch.setattr(group_snapshot, "fetch_group_offsets", away)
    with pytest.raises(BrokerUnreachable):
        group_snapshot.take_snapshot(cluster, ["unlisted", "gone"])


@pytest.mark.parametrize("state", ["Stable", "Empty", "PreparingRebalance"])
def test_groups_are_described_by_their_type_unless_they_rebalance(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    types = {"": "Classic", "classic": "Classic", "consumer": "Consumer", "share": "Share"}
    listed = {each: GroupListing(each, kind, "", None) for each, kind in types.items()}
    monkeypatch.setattr(group_snapshot, "list_groups", lambda _: listed)
    monkeypatch.setattr(group_snapshot, "fetch_group_offsets", lambda _, ids: {each: offsets(t=1) for each in ids})
    asked: list[list[str]] = []

    def describe(of_type: dict[str, Answer]) -> Any:  # noqa: ANN401 - a function
        def answer(_: object, group_ids: list[str]) -> dict[str, Answer]:
            asked.append(group_ids)
            return of_type

        return answer

    described_classic = Answer(group_state=state, protocol_type="consumer", protocol_data="", members=[])
    monkeypatch.setattr(group_snapshot, "describe_classic_groups", describe({"classic": described_classic}))
    topic = Answer(topic_id=TOPIC_ID, partitions=[0, 1])
    topics = {"t": topic, "old": Answer(topic_id=None, partitions=[0])}
    for members, count in ((consumer_group().members, 2), ([], None)):
        asked.clear()
        group = described("Stable", 7, members)
        monkeypatch.setattr(group_snapshot, "describe_consumer_groups", describe({"consumer": group}))
        cluster: Any = Answer(topics=lambda _: topics) if count else None  # asked if there are members
        found = group_snapshot.take_snapshot(cluster)
        assert asked == [["classic"], ["consumer"]]
        assert found == {
            "": GroupSnapshot("Classic", offsets(t=1), {}),
            "classic": GroupSnapshot("Classic", offsets(t=1), EMPTY if state in ("Stable", "Empty") else None),
            "consumer": GroupSnapshot("Consumer", offsets(t=1), consumer_values(group, {TOPIC_ID: 2})),
        }


def test_snapshot_store_is_of_its_own_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(tmp_path / "s")
    with opened(tmp_path / "s") as log:
        properties = log.store.properties
    assert main(["commit", "--store", location, "--group", "g", "t:0=1"]) == 1
    assert "in a snapshot store only the broker writes (R4)" in capsys.readouterr().err
    with pytest.raises(StoreMismatch, match="is a snapshot store, but this command needs a mirrored one"):
        Store(None, location, properties).require(MIRRORED)  # type: ignore[arg-type]
    for cluster_id, partitions, said in (("other", None, "has those of cluster c"), ("c", 5, "has 3 log partitions")):
        with pytest.raises(StoreMismatch, match=said):
            SnapshotLog(location, partial(str, cluster_id), partitions, Settings(), FixedClock(NOW_MS))
    OwnedStore.create(tmp_path / "owned", 1)
    with pytest.raises(StoreMismatch, match="it is a store of the kind owned"):
        SnapshotLog(str(tmp_path / "owned"), lambda: None, None, Settings(), FixedClock(NOW_MS))
    with pytest.raises(NotAStore, match="name the folder of the store"):
        SnapshotLog("schema:s", lambda: None, None, Settings(), FixedClock(NOW_MS))
    for ask in (lambda: None, lambda: "c"):
        with SnapshotLog(location, ask, None, Settings(), FixedClock(NOW_MS)) as log:
            assert log.store.properties == properties
    assert log_of(tmp_path / "s") == {}
    settings = Settings(log=LogSettings(offsets_partitions=7))
    with SnapshotLog(str(tmp_path / "new"), lambda: None, None, settings, FixedClock(NOW_MS)) as log:
        assert log.store.properties == StoreProperties(SNAPSHOT, 7, None)


def test_cluster_that_is_away_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", str(tmp_path / "s"), "--bootstrap-server", "127.0.0.1:1", "--once"]
    assert main(["snapshot", *at]) == 1
    assert capsys.readouterr().err.startswith("offsets: error: no broker answers at 127.0.0.1:1")
    assert not (tmp_path / "s").exists()


def test_state_lag_and_past_of_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, times = tmp_path / "s", [NOW_MS + minute * 60_000 for minute in range(3)]
    for at_ms, committed, end in zip(times, (1, 4, 4), (5, 9, 20), strict=True):
        with opened(folder, at_ms) as log:
            log.append({"g": GroupSnapshot("Classic", offsets(t=committed), CLASSIC)})
        SampleWriter(table_of(str(folder)), "a test").write({("t", 0): (0, end)}, at_ms)

    def asked(*command: str) -> dict[str, Any]:
        assert main([*command, "--store", str(folder), "--format", "json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    lags = [asked("lag", "--at", str(at_ms + 1)) for at_ms in times]
    assert [(each["current_offset"], each["log_end_offset"], each["lag"]) for each in lags] == [
        (1, 5, 4),
        (4, 9, 5),
        (4, 20, 16),
    ]
    for fold in (False, True):
        if fold:
            store = Store(cast("SparkSession", None), str(folder), properties_of(str(folder)))
            fold_log(store, Settings(), FixedClock(times[-1]))
        (group,) = asked("describe", "--all-groups")["groups"].values()
        assert (group["state"], [each["offset"] for each in group["offsets"]]) == ("Stable", [4])
    assert (
        main(["export-segments", "--store", str(folder), "--to", str(tmp_path / "to"), "--as-of", str(times[0])]) == 0
    )
    assert "2 records of 3 log partitions written" in capsys.readouterr().out  # those of the first snapshot
