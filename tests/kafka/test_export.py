"""A real broker loads exported segments, and answers as with the original log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata, MemberOfGroup, OffsetAndMetadata
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export.segment_export import SEGMENT_BYTES, export_segments
from offsets_pipeline.semantics.group_description import describe_group
from offsets_pipeline.semantics.group_types import CONSUMER, GROUP_TYPE_OF_RECORD_TYPE, record_key_of
from offsets_pipeline.semantics.log_row import LogRow
from tests.compare import compare, compared_offsets
from tests.kafka.answers import coordinator_answers, group_answer, offset_answer
from tests.log_tables import capture_log, capture_records, log_store, log_table
from tests.logs import ALIKE, CAPTURE_NAMES, CAPTURES, LogPartition, capture_partitions, oracle
from tests.member_bytes import assignment, subscription
from tests.replays import Replayed, replay
from tests.spark.stores import export_of
from tests.unit.coordinator.stores import NOW_MS, opened
from tests.unit.coordinator.stores import log_of as owned_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from tests.kafka.broker_answers import Answer
    from tests.kafka.brokers import KafkaJvm
    from tests.replays import DecodedGroup


# what a 4.x broker loads; a value that is too short fails its log partition there
LOADED = [name for name in CAPTURE_NAMES if name.startswith("4.") and not name.endswith("malformed")]
# cut into in several places: rebalances, transactions of all kinds, share and streams groups, expiry
CUT_OFTEN = ("4.2.0-classic", "4.2.0-kip848", "4.2.0-share", "4.2.0-txn-open", "4.2.0-txnjava")
# the cuts that `make test` has
CUTS = dict.fromkeys(CUT_OFTEN, (1,)) | dict.fromkeys(("4.2.0-txn-open", "4.2.0-txnjava"), (1, 3))


def exported(
    location: Path, *, as_of_ms: int | None = None, codec: Codec = Codec.NONE, segment_bytes: int = SEGMENT_BYTES
) -> Path:
    """The segments of a store's log."""
    to = location.parent / "exported"
    export_segments(StateReader(str(location)), to, as_of_ms=as_of_ms, codec=codec, segment_bytes=segment_bytes)
    return to


def log_rows(name: str, as_of_ms: int | None = None) -> dict[int, list[LogRow]]:
    """The rows of a recorded log by log partition: those before the first that is younger."""
    found: dict[int, list[LogRow]] = {}
    for at, records in capture_records(name).items():
        found[at] = []
        for row in records.to_pylist():
            if as_of_ms is not None and milliseconds(row["record_timestamp"]) > as_of_ms:
                break
            columns = ("record_offset", "key", "value", "producer_id", "control_type")
            found[at].append(LogRow(at, *(row[column] for column in columns)))
    return found


def milliseconds(timestamp: datetime) -> int:
    return round(timestamp.timestamp() * 1000)


def reference_answers(rows: dict[int, list[LogRow]], offsets_partitions: int) -> Answer:
    """Output of `describe --all-groups` by the reference replay of these rows."""
    groups: dict[str, Answer] = {}
    for at, of_partition in rows.items():
        state = replay(of_partition, at, offsets_partitions)
        values = last_values(of_partition, state)
        for group_id, group in state.groups.items():
            if group_id not in groups or state.answers(group_id):  # R1: a misplaced one only where there is no other
                groups[group_id] = reference_group(group_id, group, values, state)
    return {"groups": groups}


def last_values(rows: Iterable[LogRow], state: Replayed) -> dict[tuple[str, int, str], bytes]:
    found = {}
    for row in rows:
        if row.control_type is None and row.value is not None and row.record_offset not in state.quarantined:
            try:
                key = decode_key(row.key)
            except (CorruptRecord, UnknownRecordType):
                continue
            if key.record_type in GROUP_TYPE_OF_RECORD_TYPE:
                found[key.group_id, key.record_type, record_key_of(key)] = row.value
    return found


def reference_group(
    group_id: str, group: DecodedGroup, values: dict[tuple[str, int, str], bytes], state: Replayed
) -> Answer:
    described = describe_group(group.group_type, {name: values[group_id, *name] for name in group.records})
    offsets = [
        offset_answer(*identity[1:], offset.committed_offset, offset.leader_epoch, offset.metadata)
        for identity, offset in state.current.items()
        if identity[0] == group_id
    ]
    answer = group_answer(group_id, described, offsets, state.offsets_partitions)
    if group.group_type == CONSUMER:  # that broker has no topics of these ids
        for member in answer["members"]:
            member["assignment"] = []
    return answer


def open_transactions(rows: dict[int, list[LogRow]]) -> dict[tuple[int, int], int]:
    """Where the transactions without a marker began, by log partition and producer id (R11)."""
    began: dict[tuple[int, int], int] = {}
    for at, of_partition in rows.items():
        for row in of_partition:
            if row.control_type is not None and row.producer_id is not None:
                began.pop((at, row.producer_id), None)
            elif row.producer_id is not None:
                began.setdefault((at, row.producer_id), row.record_offset)
    return began


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in ALIKE else name for name in LOADED]
)
def test_broker_answers_about_exported_segments_as_about_its_own(kafka: KafkaJvm, tmp_path: Path, name: str) -> None:
    n = capture_partitions(name)
    segments = exported(log_store(tmp_path / "store", n, [capture_log(name)]))
    with kafka.broker(CAPTURES / name / "segments", n) as broker:
        expected = broker.groups(), broker.bounds(), broker.producers()
    with kafka.broker(segments, n) as broker:
        answers = broker.groups()
        assert (answers, broker.bounds(), broker.producers()) == expected
    assert compare(reference_answers(log_rows(name), n), answers) == []
    assert compared_offsets(answers) == compared_offsets(oracle(name)) > 0


def times(name: str) -> list[int]:
    """Points in time at which a recorded log is cut: one, or several."""
    timestamps = [records["record_timestamp"] for records in capture_records(name).values()]
    ordered = sorted({milliseconds(each) for column in timestamps for each in column.to_pylist()})
    shares = (0.2, 0.4, 0.6, 0.8) if name in CUT_OFTEN else (0.5,)
    return [ordered[int(share * (len(ordered) - 1))] for share in shares]


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        pytest.param(name, cut, marks=[] if cut in CUTS.get(name, ()) else pytest.mark.long)
        for name in LOADED
        for cut in range(4 if name in CUT_OFTEN else 1)
    ],
)
def test_broker_answers_as_of_an_earlier_time_what_the_reference_replays(
    kafka: KafkaJvm, tmp_path: Path, name: str, cut: int
) -> None:
    n, as_of_ms = capture_partitions(name), times(name)[cut]
    segments = exported(log_store(tmp_path / "store", n, [capture_log(name)]), as_of_ms=as_of_ms)
    rows = log_rows(name, as_of_ms)
    with kafka.broker(segments, n) as broker:
        assert compare(reference_answers(rows, n), broker.groups()) == []
        began = {key: start for key, (_, start, _) in broker.producers().items() if start is not None}
        assert began == open_transactions(rows)
        ends = {at: of_one[-1].record_offset + 1 if of_one else 0 for at, of_one in rows.items()}
        assert {at: end for at, (_, end) in broker.bounds().items()} == dict.fromkeys(range(n), 0) | ends
    assert 0 < sum(map(len, rows.values())) < capture_log(name).num_rows


def test_some_logs_are_cut_within_transactions() -> None:
    assert sum(len(open_transactions(log_rows(name, at))) for name in LOADED for at in times(name)) > 5


def test_broker_waits_with_stable_reads_for_exported_transactions_that_are_open(
    kafka: KafkaJvm, tmp_path: Path
) -> None:  # R17
    name = "4.2.0-txn-open"
    n = capture_partitions(name)
    rows = log_rows(name)
    stable: dict[str, set[tuple[str, int]]] = {}
    for at, of_one in rows.items():
        state = replay(of_one, at, n)
        for identity in state.unstable:
            stable.setdefault(identity[0], set())
        for identity in state.current.keys() - state.unstable:
            stable.setdefault(identity[0], set()).add(identity[1:])
    unstable = sum(len(replay(of_one, at, n).unstable) for at, of_one in rows.items())
    with kafka.broker(exported(log_store(tmp_path / "store", n, [capture_log(name)])), n) as broker:
        assert {group_id: set(broker.stable_offsets(group_id)) for group_id in stable} == stable
    assert unstable > 3


def test_broker_takes_segments_of_any_size_with_gaps_where_the_log_starts_and_ends(
    kafka: KafkaJvm, tmp_path: Path
) -> None:
    log = LogPartition(0, start=5000)
    for number in range(10_000):
        log.skip(number % 3)
        log.commit(("f", "t", number % 7), number)
    log.skip(2**31)  # more than a segment's index can hold
    log.commit(("f", "t", 0), 1000)
    end = log.next_offset
    store = log_store(
        tmp_path / "store", 2, [log_table(records_of(log.rows), 0)], {0: (4000, end + 2**33), 1: (70, 90)}
    )
    segments = exported(store, segment_bytes=8_000, codec=Codec.ZSTD)
    names = sorted(path.name for path in segments.glob("__consumer_offsets-0/*"))
    assert len(names) > 5
    assert names[0] == f"{4000:020}.log"
    with kafka.broker(segments, 2) as broker:
        assert broker.bounds() == {0: (4000, end + 2**33), 1: (70, 90)}
        found = {each["partition"]: each["offset"] for each in broker.offsets(["f"])["f"]}
    assert found == {at: max(number for number in range(10_000) if number % 7 == at) for at in range(1, 7)} | {0: 1000}


@pytest.mark.parametrize(
    ("name", "codec"), [("4.2.0-kip848", "gzip"), ("4.2.0-txn-open", "snappy"), ("4.2.0-connect-eos-altered", "lz4")]
)
def test_broker_answers_about_an_exported_store_what_the_store_answers(
    kafka: KafkaJvm, folded: Callable[[str], Path], tmp_path: Path, name: str, codec: str
) -> None:
    store, to = folded(name), tmp_path / "exported"
    assert main(["export-segments", "--store", str(store), "--to", str(to), "--codec", codec]) == 0
    ours = export_of(store)
    for group in ours["groups"].values():
        if group["type"] == "Consumer":  # that broker has no topics of these ids
            for member in group["members"]:
                member["assignment"] = []
    with kafka.broker(to, capture_partitions(name)) as broker:
        assert compare(ours, broker.groups()) == []
        ends = {at: end for at, (_, end) in broker.bounds().items()}
    assert ends == {
        each["partition"]: each["end"] for each in oracle(name)["topics"]["__consumer_offsets"]["partitions"]
    }


def fill(coordinator: Coordinator, clock: FixedClock) -> Iterator[None]:
    """Groups, offsets and transactions of all kinds that a coordinator writes, in three parts, each later."""
    wanted = subscription("t", "u")
    members = (
        ClassicMember("m", "client", "/127.0.0.1", subscription=wanted, assignment=assignment("t", 0, 2)),
        ClassicMember("s", "client", "/127.0.0.1", "i", 60_000, 30_000, wanted, assignment("u", 1)),
    )
    active = GroupMetadata("active", "consumer", 3, "range", "m", members)
    coordinator.store_group(active)
    coordinator.commit_offsets("active", {("t", 0): 1, ("t", 2): 2}, member=MemberOfGroup("m", 3))
    coordinator.store_group(GroupMetadata("connect", "connect", 1, "sessioned", "w", (ClassicMember("w"),)))
    coordinator.store_group(GroupMetadata("empty", "consumer", 7))
    noted = OffsetAndMetadata(7, 5, "größe €", "AAAAAAAAAAAAAAAAAAAAAQ")
    three: dict[tuple[str, int], OffsetAndMetadata | int] = {("t", 0): noted, ("t", 1): 2, ("u", 0): 0}
    for group_id in ("simple", "empty", "deleted", "deleted and back", "", "größe"):
        coordinator.commit_offsets(group_id, three)
    coordinator.commit_offsets("short", {("t", 0): 3, ("t", 1): 4}, retention_time_ms=10_000)
    coordinator.commit_offsets("long", {("t", 0): 3}, retention_time_ms=10_000_000)
    for producer_id, groups in ((1, ("simple", "txn")), (2, ("txn", "aborted")), (3, ("open", "simple"))):
        coordinator.begin_transaction(producer_id, 0)
        for group_id in groups:
            coordinator.txn_commit_offsets(producer_id, 0, group_id, {("t", 0): 100 * producer_id, ("t", 3): 9})
    yield
    clock.advance_ms(20_000)
    coordinator.end_transaction(1, 0, commit=True)
    coordinator.end_transaction(2, 0, commit=False)
    coordinator.delete_offsets("simple", [("t", 1), ("t", 3)])  # one of them an open transaction holds too
    coordinator.delete_groups(["deleted", "deleted and back"])
    coordinator.commit_offsets("deleted and back", {("u", 0): 8})
    assert {each.group_id for report in coordinator.expire_loaded() for each in report.groups} == {"short", "aborted"}
    yield
    clock.advance_ms(20_000)
    coordinator.begin_transaction(3, 1)  # aborts what epoch 0 has open
    for group_id in ("open", "simple"):
        coordinator.txn_commit_offsets(3, 1, group_id, {("t", 0): 301, ("t", 1): 302})
    coordinator.store_group(replace(active, generation=4, leader="s", members=members[1:]))
    coordinator.commit_offsets("active", {("u", 1): 5}, member=MemberOfGroup("s", 4, "i"))
    coordinator.store_group(GroupMetadata("connect", "connect", 2))
    coordinator.commit_offsets("simple", {("t", 0): 1})  # lower than before
    yield


def test_broker_answers_about_an_exported_owned_store_what_its_coordinator_answers(
    kafka: KafkaJvm, tmp_path: Path
) -> None:
    n, clock = 3, FixedClock(NOW_MS)
    OwnedStore.create(tmp_path / "store", n)
    with opened(tmp_path / "store", clock) as coordinator:
        logs = [(clock.now_ms(), owned_log(tmp_path / "store")) for _ in fill(coordinator, clock)]
        ours = coordinator_answers(coordinator, n)
        stable = {
            group_id: {
                where
                for where, each in coordinator.fetch_offsets(group_id, require_stable=True).items()
                if each.error is None
            }
            for group_id in ours["groups"]
        }
    held = sum(len(group["offsets"]) for group in ours["groups"].values()) - sum(map(len, stable.values()))
    assert held == 1
    options = ["export-segments", "--store", str(tmp_path / "store"), "--to"]
    assert main([*options, str(tmp_path / "exported")]) == 0
    with kafka.broker(tmp_path / "exported", n) as broker:
        assert compare(ours, broker.groups()) == []
        assert {group_id: set(broker.stable_offsets(group_id)) for group_id in stable} == stable
        assert {at: end for at, (_, end) in broker.bounds().items()} == {
            at: rows[-1].record_offset + 1 for at, rows in logs[-1][1].items()
        }
    for as_of_ms, rows in logs:  # the reference has what was in the log then
        to = tmp_path / f"as of {as_of_ms}"
        assert main([*options, str(to), "--as-of", str(as_of_ms)]) == 0
        with kafka.broker(to, n) as broker:
            assert compare(reference_answers(rows, n), broker.groups()) == []
            began = {key: start for key, (_, start, _) in broker.producers().items() if start is not None}
            assert began == open_transactions(rows)
            unstable = {identity for at, each in rows.items() for identity in replay(each, at, n).unstable}
            assert unstable
            for group_id in {identity[0] for identity in unstable}:
                places = {identity[1:] for identity in unstable if identity[0] == group_id}
                assert not places & set(broker.stable_offsets(group_id))


def records_of(rows: Iterable[LogRow]) -> pa.Table:
    """Rows written by hand as records, a millisecond apart."""
    rows = list(rows)
    times_ms = pa.array(range(1_700_000_000_000, 1_700_000_000_000 + len(rows)), pa.timestamp("ms", tz="UTC"))
    return pa.table(
        {
            "record_offset": pa.array([row.record_offset for row in rows], pa.int64()),
            "record_timestamp": times_ms,
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "producer_id": pa.array([row.producer_id for row in rows], pa.int64()),
            "producer_epoch": pc.if_else(pa.array([row.producer_id is None for row in rows]), None, 0),
            "control_type": pa.array([row.control_type for row in rows], pa.string()),
        }
    )
