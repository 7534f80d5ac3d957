"""The views of history: every commit, every deletion, decoded records; the same for one group as for all."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.questions.history import history_tables
from offsets_pipeline.questions.history.decoded_log import decoded_log
from offsets_pipeline.questions.history.group_timeline import WhyAnswer, group_timeline, why
from offsets_pipeline.questions.history.history_schemas import (
    DELETED_OFFSETS,
    GROUP_HISTORY,
    HISTORY_VIEWS,
    OFFSET_HISTORY,
)
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.partition_state import PartitionState, TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.semantics.transactions import COMMITTED, OPEN, endings
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.folded_stores import new_store
from tests.logs import (
    CAPTURE_NAMES,
    LogPartition,
    capture_partitions,
    capture_rows,
    capture_semantics,
    commit_key,
    input_table,
)
from tests.member_bytes import assignment, subscription
from tests.random_logs import MANY, Shape, random_log
from tests.spark.stores import CLOCK, appended
from tests.unit.history.history_stores import START_MS, capture_store, random_store, table_of, times_of

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import CommittedOffset

Identity = tuple[int, str, str, int]
GROUP_VIEWS = (OFFSET_HISTORY, GROUP_HISTORY, DELETED_OFFSETS)
CAPTURES = ["4.2.0-txn-open", "4.2.0-kip848", "3.9.2-txn-open", "4.2.0-inject", "4.2.0-expiry-after", "4.2.0-share"]


class Seen:
    """Commits that became visible, and offsets that went: by comparing the specification's state row by row."""

    def __init__(self, partitions: dict[int, list[LogRow]], n: int, semantics: CoordinatorSemantics) -> None:
        self.commits: list[tuple[Identity, int, int | None]] = []
        self.gone: set[tuple[Identity, int]] = set()
        self.came_back: set[tuple[Identity, int]] = set()
        self.hidden: set[tuple[Identity, int]] = set()  # a marker made them visible when their group was removed
        self.lost: set[tuple[Identity, int]] = set()  # tombstones of nothing, where records are missing before them
        for at, rows in partitions.items():
            state = PartitionState(at, n, semantics=semantics)
            last: dict[Identity, int] = {}
            offsets = [-1, *(row.record_offset for row in rows)]
            after_gaps = [later for earlier, later in pairwise(offsets) if later != earlier + 1]
            before: dict[Identity, CommittedOffset] = {}
            known: set[tuple[Identity, int]] = set()
            for row in rows:
                identity = None if row.control_type is not None else identity_in(at, row)
                if identity is not None:
                    _, group_id, topic, partition = identity
                    where = TopicPartition(topic, partition)
                    holds = where in state.offsets.get(group_id, {}) or state.is_pending(group_id, where)
                    gaps = [gap for gap in after_gaps if last.get(identity, -1) < gap <= row.record_offset]
                    if row.value is None and not holds and gaps:
                        self.lost.add((identity, row.record_offset))
                    last[identity] = row.record_offset
                state.replay(row)
                after = {
                    (at, group_id, *where): offset
                    for group_id in state.groups.keys() & state.offsets.keys()
                    for where, offset in state.offsets[group_id].items()
                }
                self.hidden |= {
                    ((at, group_id, *where), offset.record_offset)
                    for group_id in state.offsets.keys() - state.groups.keys()
                    for where, offset in state.offsets[group_id].items()
                }
                for identity in before.keys() - after.keys():
                    self.gone.add((identity, before[identity].record_offset))
                for identity, offset in after.items():
                    held = before.get(identity)
                    if held is None or held.record_offset != offset.record_offset:
                        if (identity, offset.record_offset) in known:
                            self.came_back.add((identity, offset.record_offset))
                            continue
                        known.add((identity, offset.record_offset))
                        previous = None if held is None else held.committed_offset
                        self.commits.append((identity, offset.record_offset, previous))
                before = after


def identity_in(at: int, row: LogRow) -> Identity | None:
    """The identity that an offset commit or its tombstone is about; None if the record does not decode."""
    try:
        key = decode_key(row.key)
        if row.value is not None:
            decode_value(key.record_type, row.value)
    except (CorruptRecord, UnknownRecordType):
        return None
    if key.record_type not in (0, 1):
        return None
    return at, key.group_id, key.fields["topic"], key.fields["partition"]


def offset_history(store: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_views(store, [OFFSET_HISTORY.name])[OFFSET_HISTORY.name].to_pylist()
    return rows


def identity_of(row: dict[str, Any]) -> Identity:
    return row["log_partition"], row["group_id"], row["topic"], row["partition"]


def check(store: str, partitions: dict[int, list[LogRow]], n: int, semantics: CoordinatorSemantics) -> None:
    seen = Seen(partitions, n, semantics)
    tables = read_views(store, [each.name for each in GROUP_VIEWS])
    commits = [
        (identity_of(row), row["record_offset"], row["previous_offset"])
        for row in tables["offset_history"].to_pylist()
        if not row["superseded"]
    ]
    answered = {each[:2] for each in seen.commits}
    assert {each for each in commits if each[:2] in answered} == set(seen.commits)
    assert {each[:2] for each in commits} == answered | seen.hidden
    assert len(commits) == len({each[:2] for each in commits})
    deleted = tables["deleted_offsets"].to_pylist()
    lost = [row for row in deleted if row["committed_offset"] is None]
    assert {(identity_of(row), row["record_offset"]) for row in lost} == seen.lost
    assert all(row["cause"] == "unknown" for row in lost)
    gone = {(identity_of(row), row["commit_record_offset"]) for row in deleted if row not in lost}
    # a group that was converted kept its offsets; one that was removed and came back may have had them again
    assert seen.gone - seen.came_back <= gone <= seen.gone
    for group_id in {row[0][1] for row in commits}:
        one = read_views(store, [each.name for each in GROUP_VIEWS], group_ids=[group_id])
        for view in GROUP_VIEWS:
            whole = tables[view.name]
            whole = whole.filter(pc.equal(whole["group_id"], group_id))
            if not semantics.is_classic:
                whole = whole.filter(pc.invert(whole["misplaced"]))
            assert one[view.name].to_pylist() == whole.to_pylist(), (group_id, view.name)


@pytest.mark.parametrize("name", [name for name in CAPTURE_NAMES if name in CAPTURES])
def test_captures_show_every_commit_and_deletion(tmp_path: Path, name: str) -> None:
    store = capture_store(tmp_path / "store", name)
    check(store, capture_rows(name), capture_partitions(name), capture_semantics(name))


@pytest.mark.parametrize("semantics", [MODERN, CoordinatorSemantics.CLASSIC])
@pytest.mark.parametrize("logs", [3, pytest.param(150, marks=pytest.mark.long)])
def test_random_logs_show_every_commit_and_deletion(
    tmp_path: Path,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    semantics: CoordinatorSemantics,
    logs: int,
) -> None:
    for number in range(logs):
        monkeypatch.setattr(history_tables, "_PENDING_ROWS", (1, 60, 50_000)[number % 3])
        rows = random_log(chance, 150, Shape(groups=MANY[:5], log_partitions=2, strays=0.1)).partitions
        store = random_store(tmp_path / str(number), rows, times_of(rows, chance), 2, semantics=semantics)
        check(store, rows, 2, semantics)


@pytest.mark.parametrize("name", CAPTURES)
def test_decoded_log_has_each_record_as_it_decodes(tmp_path: Path, name: str) -> None:
    found = read_views(capture_store(tmp_path / "store", name), ["log_records"])["log_records"]
    by_place = {(row["log_partition"], row["record_offset"]): row for row in found.to_pylist()}
    partitions = capture_rows(name)
    assert len(by_place) == found.num_rows == sum(map(len, partitions.values()))
    for at, rows in partitions.items():
        ended = endings(input_table(rows)).outcome.tolist()
        for row, outcome in zip(rows, ended, strict=True):
            record = by_place[at, row.record_offset]
            assert (record["control_type"], record["tombstone"]) == (row.control_type, row.value is None)
            if row.control_type is not None:
                assert record["record_name"] == "ControlRecord"
                continue
            expected = None if row.producer_id is None else "open" if outcome == OPEN else "aborted"
            assert record["outcome"] == ("committed" if outcome == COMMITTED else expected)
            if record["record_name"] in {"Unknown", "Corrupt"}:
                assert record["problem"]
                continue
            key = decode_key(row.key)
            assert (record["group_id"], record["record_type"]) == (key.group_id, key.record_type)
            if key.record_type in (0, 1) and row.value is not None:
                value = decode_value(key.record_type, row.value)
                assert record["value_version"] == value.version
                assert record["committed_offset"] == value.fields["offset"]
                assert record["metadata"] == value.fields["metadata"]
                assert (record["topic"], record["partition"]) == (key.fields["topic"], key.fields["partition"])
            elif row.value is not None:
                assert record["value_json"].startswith("{")


def test_each_kind_of_record_is_decoded_in_its_place() -> None:
    log = LogPartition()
    log.commit(("g", "t", 3), 10, 7, leader_epoch=5, metadata="n", commit_timestamp=1)
    log.delete(("g", "t", 3), key_version=0)
    log.group_tombstone(5, "g", "a")
    log.group(3, "g", epoch=4)
    log.record(b"\x00\x63", b"v")
    log.record(b"\x00", None)
    log.record(None, b"")
    log.record(commit_key("g"), b"\x00")
    log.marker(7, "COMMIT")
    log.record(b"\x00\x00\x00\x02", None, 8, "OTHER")
    log.group_tombstone(16, "g", "a.*")
    log.commit(("h", "u", 0), 1, commit_timestamp=2)
    member = {"member_id": "m", "client_id": "c", "client_host": "/h", "rebalance_timeout": 1, "session_timeout": 1}
    member |= {"subscription": subscription("t"), "assignment": b"\xff"}
    log.group(2, "g", version=1, protocol_type="consumer", generation=1, members=[member])
    rows = decoded_log(table_of(log.rows, {(0, at): 9 for at in range(log.next_offset)}))
    values: list[Any] = [None if each is None else json.loads(each) for each in rows["value_json"].to_pylist()]
    given: dict[str, Any] = {"log_partition": 0, "log_incarnation": 0, "record_timestamp": 9}
    of_t: dict[str, Any] = {"group_id": "g", "topic": "t", "partition": 3}
    of_7: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    g, tombstone, control = {"group_id": "g"}, {"tombstone": True}, {"record_name": "ControlRecord"}
    commit, corrupt = {"record_name": "OffsetCommit", "record_type": 1}, {"record_name": "Corrupt"}
    expected: list[dict[str, Any]] = [
        commit | of_t | of_7 | {"value_version": 3, "committed_offset": 10, "leader_epoch": 5, "metadata": "n"},
        commit | of_t | tombstone | {"record_type": 0},
        g | tombstone | {"record_type": 5, "record_name": "ConsumerGroupMemberMetadata", "member_id": "a"},
        g | {"record_type": 3, "record_name": "ConsumerGroupMetadata", "value_version": 0},
        {"record_type": 99, "record_name": "Unknown", "problem": "unknown record type 99"},
        corrupt | tombstone | {"problem": "key: cannot read the record type: expected 2 bytes, found 1"},
        corrupt | {"problem": "key: record has no key"},
        corrupt | of_t | {"record_type": 1, "partition": 0},
        control | of_7 | {"control_type": "COMMIT"},
        control | tombstone | {"producer_id": 8, "producer_epoch": 0, "control_type": "OTHER"},
        g | tombstone | {"record_type": 16, "record_name": "ConsumerGroupRegularExpression", "member_id": "a.*"},
        commit | {"group_id": "h", "topic": "u", "partition": 0, "value_version": 3, "committed_offset": 1},
        g | {"record_type": 2, "record_name": "GroupMetadata", "value_version": 1},
    ]
    expected[0] |= {"commit_timestamp": 1}
    expected[7] |= {"problem": "OffsetCommitValue: cannot read the version: expected 2 bytes, found 1"}
    expected[11] |= {"commit_timestamp": 2, "metadata": ""}
    found = in_milliseconds(rows.drop_columns(["key_json", "value_json"])).to_pylist()
    assert [{name: each for name, each in row.items() if each is not None} for row in found] == [
        {"record_offset": at, "tombstone": False} | given | row for at, row in enumerate(expected)
    ]
    assert (values[3], {*values[:3], *values[4:12]}) == ({"epoch": 4, "metadata_hash": None}, {None})
    (shown,) = values[12]["members"]
    assert (shown["subscription"]["topics"], shown["assignment"]) == (["t"], "/w==")
    keys = [None if each is None else json.loads(each) for each in rows["key_json"].to_pylist()]
    assert keys[:4] == [None, None, {"group_id": "g", "member_id": "a"}, g]
    assert [keys[10], keys[12]] == [{"group_id": "g", "regular_expression": "a.*"}, {"group": "g"}]


def test_members_of_a_classic_group_are_readable(tmp_path: Path) -> None:
    store = capture_store(tmp_path / "store", "4.2.0-classic")
    found = read_views(store, ["log_records"], group_ids=["g-stable"])["log_records"]
    values = [row["value_json"] for row in found.to_pylist() if row["record_name"] == "GroupMetadata"]
    assert any('"assigned_partitions": [{"topic": "t2", "partitions": [0, 1]}' in value for value in values)


def test_a_member_that_holds_the_partition_could_have_made_the_commit(tmp_path: Path) -> None:
    rows = offset_history(capture_store(tmp_path / "store", "4.2.0-classic"))
    by_group = {row["group_id"]: row for row in rows}
    assert by_group["g-stable"]["committed_by"] != "unknown"
    assert by_group["g-stable"]["client_host"].startswith("/")
    assert by_group["g-admin"]["committed_by"] == "unknown"  # an administrator committed for an empty group
    assert by_group["g-admin"]["client_id"] is None


def test_a_commit_of_a_transaction_has_its_producer_and_shows_with_the_marker(tmp_path: Path) -> None:  # R10, R11
    log = LogPartition()
    log.commit(("g", "t", 0), 10, 7)
    log.commit(("g", "t", 0), 20)
    log.end_commit(7)
    log.commit(("g", "t", 1), 30, 7)
    log.end_abort(7)
    log.commit(("g", "t", 1), 40, 8, metadata="by 8")
    log.end_commit(8)
    log.commit(("g", "t", 1), 50)
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, at): START_MS + at for at in range(8)}, 1)
    columns = ("record_offset", "producer_id", "superseded", "previous_offset", "visible_offset")
    assert [tuple(row[name] for name in columns) for row in offset_history(store)] == [
        *((0, 7, True, None, 2), (1, None, False, None, 1)),
        *((5, 8, False, None, 6), (7, None, False, 40, 7)),
    ]
    events, _ = group_timeline(LogHistory(store), Retention(), "g", topic="t")
    assert [(each.offset, (each.time_ms or 0) - START_MS, each.detail) for each in events] == [
        (10, 2, "never answered: a newer commit was visible; in a transaction of producer 7"),
        (20, 1, ""),
        (40, 6, "in a transaction of producer 8; metadata 'by 8'"),
        (50, 7, ""),
    ]


def test_a_small_log_is_shown_whole(tmp_path: Path) -> None:
    """Worked by hand. The records are a millisecond apart; both tombstones are of one write."""
    log, g = LogPartition(), ("g", "t", 0)
    member: dict[str, object] = {"member_id": "m", "group_instance_id": None, "client_id": "c", "client_host": "/h"}
    member |= dict.fromkeys(("rebalance_timeout", "session_timeout"), 1)
    member |= {"subscription": subscription("t"), "assignment": assignment("t", 0)}
    of_group: dict[str, Any] = {"protocol_type": "consumer", "protocol": "range", "leader": "m"}
    log.group(2, "g", version=3, generation=1, members=[member], **of_group)
    log.commit(g, 10, leader_epoch=5, metadata="n", commit_timestamp=START_MS + 100)
    log.commit(g, 4, 7, version=1, expire_timestamp=START_MS + 900, commit_timestamp=START_MS + 101)
    log.end_commit(7)
    log.group(2, "g", version=3, generation=2, **of_group)
    log.delete(g)
    log.group_tombstone(2, "g")
    log.commit(g, 1, commit_timestamp=START_MS + 107)
    log.commit(("g", "t", 1), 1, 8)
    log.end_abort(8)
    log.skip(1)
    log.delete(("g", "t", 2))
    times = {(0, row.record_offset): START_MS + row.record_offset - (row.record_offset == 6) for row in log.rows}
    store = random_store(tmp_path / "store", {0: log.rows}, times, 1)
    found = {
        name: [
            tuple(each - START_MS if isinstance(each, int) and each >= START_MS else each for each in row.values())
            for row in in_milliseconds(rows).to_pylist()
        ]
        for name, rows in read_views(store, [each.name for each in GROUP_VIEWS]).items()
    }
    of_m, unknown, later = ("m", "c", "/h"), ("unknown", None, None), (False, False)
    assert found["offset_history"] == [
        (*g, 100, 10, None, None, False, False, *of_m, 5, "n", None, None, None, 1, 1, 1, 0, 0, 1, *later),
        (*g, 101, 4, 10, -6, True, False, *of_m, None, "", 900, None, 7, 3, 3, 2, 0, 0, 2, *later),
        (*g, 107, 1, None, None, False, False, *unknown, None, "", None, None, None, 7, 7, 7, 0, 0, 7, *later),
    ]
    classic, none = ("consumer", "range"), (None, None)
    assert found["group_history"] == [
        ("g", "created", 0, "Classic", "Stable", *classic, 1, *none, 1, ["m"], [], "m", 2, 0, 0, 0, *later),
        ("g", "left", 4, "Classic", "Empty", *classic, 2, *none, 0, [], ["m"], "m", 2, 0, 0, 4, *later),
        ("g", "removed", 5, None, "Dead", *none, None, *none, 0, [], [], None, 2, 0, 0, 6, *later),
        ("g", "created", 7, "Classic", "Empty", "", None, None, *none, 0, [], [], None, 1, 0, 0, 7, *later),
    ]
    reasons = [row[5] for row in found["deleted_offsets"]]
    candidates = ["expired", "deleted", "group removed", "topic gone"]
    assert found["deleted_offsets"] == [
        (*g, 5, "group removed", reasons[0], ["group removed"], 4, 101, 2, 0, 0, 5, False),
        ("g", "t", 2, 11, "unknown", reasons[1], candidates, None, None, None, 0, 0, 11, False),
    ]
    events, _ = group_timeline(LogHistory(store), Retention(), "g")
    gone = "the commit itself is no longer in the log"
    assert [(each.event, each.partition, each.offset, each.delta, each.by, each.detail) for each in events] == [
        ("group created", None, None, None, None, "Classic Stable; 1 member; generation 1"),
        ("commit", 0, 10, None, "m", "metadata 'n'"),
        ("rewind", 0, 4, -6, "m", "in a transaction of producer 7"),
        ("group left", None, None, None, None, "Classic Empty; 0 members; generation 2; left m"),
        ("deleted", 0, 4, None, "group removed", reasons[0]),
        ("group removed", None, None, None, None, "Dead; 0 members"),
        ("commit", 0, 1, None, "unknown", ""),
        ("group created", None, None, None, None, "Classic Empty; 0 members"),
        ("deleted", 2, None, None, "unknown", f"{reasons[1]}; {gone}"),
    ]
    assert [(each.time_ms or 0) - START_MS for each in events] == [0, 1, 3, 4, 5, 5, 7, 7, 11]
    assert [each.record_offset for each in events] == [0, 1, 2, 4, 5, 6, 7, 7, 11]
    since = shown_time(START_MS + 11)  # the tombstone after the gap
    cause = {"deleted_at": since, "cause": "unknown", "reason": reasons[1], "candidates": candidates}
    removed = {"deleted_at": shown_time(START_MS + 5), "cause": "group removed", "reason": reasons[0]}
    removed |= {"candidates": ["group removed"], "committed_offset": 4, "committed_at": shown_time(START_MS + 101)}
    at = {"committed_offset": 1, "committed_at": shown_time(START_MS + 107), "committed_by": "unknown"}
    assert [why(LogHistory(store), Retention(), "g", "t", partition) for partition in (0, 1, 2)] == [
        WhyAnswer(
            *("g", "t", 0, "committed", f"committed 1 at {at['committed_at']}"),
            **at,  # type: ignore[arg-type]
            log_partition=0,
            record_offset=7,
            complete_since=since,
            deletions=[removed | {"record_offset": 5}],
        ),
        WhyAnswer(
            *("g", "t", 1, "never committed"),
            "the log has no visible commit of t-1 by group 'g'; older records may be gone, the log is complete since "
            f"{since}",
            complete_since=since,
        ),
        WhyAnswer(
            *("g", "t", 2, "deleted", f"deleted at {since} for an unknown cause: {reasons[1]}; {gone}"),
            **cause,  # type: ignore[arg-type]
            log_partition=0,
            record_offset=11,
            complete_since=since,
            deletions=[cause | {"committed_offset": None, "committed_at": None, "record_offset": 11}],
        ),
    ]


def test_events_of_a_group_tell_who_joined_and_left(tmp_path: Path) -> None:
    log = LogPartition()
    log.group(5, "g", "a")
    log.group(3, "g", epoch=1)
    log.group(5, "g", "b")
    log.group(5, "g", "c")
    log.group_tombstone(5, "g", "a")
    log.group_tombstone(3, "g")
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, at): START_MS + at for at in range(6)}, 1)
    found, _ = group_timeline(LogHistory(store), Retention(), "g")
    epochs = "group_epoch 1; assignment_epoch 0"
    assert [(each.event, each.detail) for each in found] == [
        ("group created", "Consumer Stable; 1 member; group_epoch 0; assignment_epoch 0"),
        ("group epoch", f"Consumer Assigning; 1 member; {epochs}"),
        ("group joined", f"Consumer Assigning; 2 members; {epochs}; joined b"),
        ("group joined", f"Consumer Assigning; 3 members; {epochs}; joined c"),
        ("group left", f"Consumer Assigning; 2 members; {epochs}; left a"),
        ("group removed", "Dead; 0 members; left b, c"),
    ]


def test_history_spans_incarnations_and_marks_where_one_begins(tmp_path: Path) -> None:
    """The second incarnation has the last commit of the first again, and a new one."""
    log = LogPartition()
    identity = ("g", "t", 0)
    for offset in (10, 20):
        log.commit(identity, offset)
    first = list(log.rows)
    log.commit(identity, 5)
    second = log.rows[1:]
    times: dict[tuple[int, int], int | None] = {
        (0, row.record_offset): START_MS + row.record_offset for row in log.rows
    }
    store = random_store(tmp_path / "store", {0: first}, times, 1)
    write_deltalake(tmp_path / "store" / "log", table_of(second, times, log_incarnation=1), mode="append")
    row = {"log_partition": 0, "log_incarnation": 1, "start_offset": 1, "end_offset": 3, "updated_at": 0}
    noted = pa.Table.from_pylist([row], LOG_PARTITIONS.arrow_schema())
    write_deltalake(tmp_path / "store" / "log_partitions", noted, mode="append")
    rows = offset_history(store)
    columns = ("log_incarnation", "record_offset", "committed_offset", "delta", "is_rewind", "begins_incarnation")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (0, 0, 10, None, False, False),
        (0, 1, 20, 10, False, False),
        (1, 2, 5, -15, True, True),
    ]


def test_history_shows_offsets_that_lie_further_apart_than_64_bits(tmp_path: Path) -> None:
    log = LogPartition()
    offsets = (2**63 - 1, -5, -(2**63), 0)
    for offset in offsets:
        log.commit(("g", "t", 0), offset)
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, at): START_MS for at in range(4)}, 1)
    rows = offset_history(store)
    columns = ("committed_offset", "previous_offset", "delta", "is_rewind")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (2**63 - 1, None, None, False),
        (-5, 2**63 - 1, None, True),
        (-(2**63), -5, -(2**63) + 5, True),
        (0, -(2**63), None, False),
    ]


def test_a_later_incarnation_without_the_commit_takes_nothing_from_what_an_earlier_one_shows(tmp_path: Path) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 10, commit_timestamp=START_MS)
    log.delete(("g", "t", 0))
    times = {(0, 0): START_MS, (0, 1): START_MS + 1}
    store = random_store(tmp_path / "store", {0: log.rows}, times, 1, kind="owned", source="coordinator: OffsetDelete")
    read_again = table_of(log.rows[1:], times, log_incarnation=1)  # without the note
    write_deltalake(tmp_path / "store" / "log", read_again, mode="append")
    row = {"log_partition": 0, "log_incarnation": 1, "start_offset": 1, "end_offset": 2, "updated_at": 0}
    noted = pa.Table.from_pylist([row], LOG_PARTITIONS.arrow_schema())
    write_deltalake(tmp_path / "store" / "log_partitions", noted, mode="append")
    (deleted,) = read_views(store, ["deleted_offsets"])["deleted_offsets"].to_pylist()
    assert (deleted["log_incarnation"], deleted["committed_offset"], deleted["cause"]) == (0, 10, "deleted")
    answer = why(LogHistory(store), Retention(), "g", "t", 0)
    assert (answer.status, answer.committed_offset, answer.cause) == ("deleted", 10, "deleted")
    assert len(answer.deletions) == 1


def test_a_group_of_a_classic_log_is_read_wherever_it_was(tmp_path: Path) -> None:
    """R1: under `classic` it answers in any log partition. The state does not have it any more after its deletion."""
    log = LogPartition(2)
    log.commit(("g", "t", 0), 10, commit_timestamp=START_MS)
    log.delete(("g", "t", 0))
    assert partition_for("g", 3) != 2
    opened = new_store(tmp_path / "store", 3, CoordinatorSemantics.CLASSIC)
    store = opened.location
    appended(store, log.rows, record_timestamp=START_MS * 1000)
    LogMetadata(opened, CLOCK).bounds({at: (0, 2 * (at == 2)) for at in range(3)})
    fold_log(opened, Settings(), CLOCK)
    assert read_views(store, ["offset_history"], group_ids=["g"])["offset_history"].num_rows == 1
    assert why(LogHistory(store), Retention(), "g", "t", 0).status == "deleted"


def test_a_topic_that_was_created_again_has_other_events_at_the_same_record_offsets(tmp_path: Path) -> None:
    """Two days with a group, a commit, and their deletions; a third reading is of the second day's records again."""
    days, store, log = [START_MS, START_MS + 86_400_000, START_MS + 86_400_000], tmp_path / "store", LogPartition()
    log.group(2, "g")
    log.commit(("g", "t", 0), 10, commit_timestamp=START_MS)
    log.delete(("g", "t", 0))
    log.group_tombstone(2, "g")
    times = [{(0, at): day + at for at in range(4)} for day in days]
    random_store(store, {0: log.rows}, times[0], 1)
    for number in (1, 2):
        write_deltalake(store / "log", table_of(log.rows, times[number], log_incarnation=number), mode="append")
        row = {"log_partition": 0, "log_incarnation": number, "start_offset": 0, "end_offset": 4, "updated_at": 0}
        notes = pa.Table.from_pylist([row], LOG_PARTITIONS.arrow_schema())
        write_deltalake(store / "log_partitions", notes, mode="append")
    found = read_views(str(store), ["group_history", "deleted_offsets"])
    assert [(row["log_incarnation"], row["event"]) for row in found["group_history"].to_pylist()] == [
        *((0, "created"), (0, "removed"), (1, "created"), (1, "removed"))
    ]
    assert found["deleted_offsets"]["log_incarnation"].to_pylist() == [0, 1]
    answer = why(LogHistory(str(store)), Retention(), "g", "t", 0)
    assert (answer.status, len(answer.deletions)) == ("deleted", 2)


def test_why_says_that_a_share_group_answers_no_offset(tmp_path: Path) -> None:
    """R14: the offsets of a simple group that became a share group."""
    log = LogPartition()
    log.commit(("g", "t", 0), 10, commit_timestamp=START_MS)
    before = random_store(tmp_path / "before", {0: log.rows}, {(0, 0): START_MS}, 1)
    log.group(11, "g", epoch=1)
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, at): START_MS + at for at in range(2)}, 1)
    texts = [why(LogHistory(each), Retention(), "g", "t", 0).text for each in (before, store)]
    assert texts[1] == f"{texts[0]}; it is not answered: the group is a share group, or does not exist"


def test_views_are_documented_column_by_column(root: Path) -> None:
    text = (root / "docs" / "history.md").read_text(encoding="utf-8")
    for view in HISTORY_VIEWS.values():
        section = re.search(rf"^### {view.name}\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, view.name
        listed = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", section[1], re.MULTILINE)
        assert listed == [(each.name, each.comment) for each in view.columns], view.name
