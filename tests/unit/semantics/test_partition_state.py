"""The row-wise replay, rule by rule, on logs worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.group_types import (
    CLASSIC,
    CONSUMER,
    GROUP_REMOVING_TYPES,
    GROUP_TYPE_OF_RECORD_TYPE,
    SHARE,
    STREAMS,
)
from offsets_pipeline.semantics.partition_state import PartitionState, TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import NO_TOPIC_ID, Identity, LogPartition, commit_key, commit_value, group_key, group_value
from tests.random_logs import Log, examples, logs, several
from tests.replays import Replayed, replay, replayed_as_columns

A: Identity = ("g", "t", 0)
B: Identity = ("g", "t", 1)
PRODUCER, OTHER_PRODUCER = 7, 8
GROUP_REMOVALS = {2: CLASSIC, 3: CONSUMER, 11: SHARE, 17: STREAMS}


@pytest.fixture
def log() -> LogPartition:
    return LogPartition()


def replayed(log: LogPartition, offsets_partitions: int = 1) -> Replayed:
    return replay(log.rows, log.log_partition, offsets_partitions)


def committed(state: Replayed) -> dict[Identity, int]:
    return {identity: offset.committed_offset for identity, offset in state.offsets.items()}


def answered(state: Replayed) -> dict[Identity, int]:
    return {identity: offset.committed_offset for identity, offset in state.current.items()}


def test_misplaced_record_is_listed_and_answers_nothing() -> None:  # R1
    home = partition_for("g", 5)
    elsewhere = LogPartition((home + 1) % 5)
    elsewhere.commit(A, 1)
    elsewhere.commit(B, 2, PRODUCER)
    state = replayed(elsewhere, 5)
    assert list(state.groups) == ["g"]
    assert answered(state) == {}
    assert state.unstable == set()
    at_home = LogPartition(home)
    at_home.commit(A, 1)
    assert answered(replayed(at_home, 5)) == {A: 1}


def test_repeated_record_is_skipped(log: LogPartition) -> None:  # R2, R15
    log.commit(A, 1)
    log.delete(A)
    log.record(b"\x00\x63", b"")
    first = list(log.rows)
    log.rows += first
    state = replayed(log)
    assert answered(state) == {}
    assert state.unknown_records == 1
    assert state.end == 3


def test_gap_does_not_matter(log: LogPartition) -> None:  # R2
    log.skip(5)
    log.commit(A, 1)
    log.skip(100)
    log.commit(B, 2)
    state = replayed(log)
    assert answered(state) == {A: 1, B: 2}
    assert state.end == 107


def test_corrupt_record_is_quarantined_and_leaves_what_was_there(log: LogPartition) -> None:  # R6
    log.commit(A, 1)
    log.group(2, "h", protocol_type="consumer", protocol="range", leader="m")
    log.record(commit_key(*A), commit_value(9)[:-1])
    log.record(commit_key(*A), b"")
    log.record(commit_key(*A), b"\x00\x05" + commit_value(9)[2:])
    log.record(group_key(2, "h"), b"\x00\x00\x00")
    log.record(commit_key("broken")[:-1], commit_value(9))
    state = replayed(log)
    assert answered(state) == {A: 1}
    assert state.groups["h"].records[2, ""]["protocol"] == "range"
    assert set(state.groups) == {"g", "h"}
    assert sorted(state.quarantined) == [2, 3, 4, 5, 6]
    assert "unknown version 5" in state.quarantined[4]


@pytest.mark.parametrize("key", [None, b"", b"\x00"])
def test_record_without_a_type_is_corrupt(log: LogPartition, key: bytes | None) -> None:  # R3, R6
    log.record(key, commit_value(1))
    assert list(replayed(log).quarantined) == [0]


def test_corrupt_commit_creates_no_group_and_is_never_pending(log: LogPartition) -> None:  # R6
    log.record(commit_key(*A), commit_value(9)[:-1], PRODUCER)
    log.end_commit(PRODUCER)
    state = replayed(log)
    assert state.groups == {}
    assert committed(state) == {}


@pytest.mark.parametrize("record_type", [18, 24, 99, 32767, -1])
def test_unknown_record_type_is_counted_and_skipped(log: LogPartition, record_type: int) -> None:  # R6
    log.commit(A, 1)
    log.record(record_type.to_bytes(2, "big", signed=True) + b"anything", b"anything")
    state = replayed(log)
    assert state.unknown_records == 1
    assert state.quarantined == {}
    assert answered(state) == {A: 1}
    assert state.end == 2


def test_unused_record_type_makes_no_group_but_can_be_corrupt(log: LogPartition) -> None:  # R5, R6, R14
    log.group(9, "g")
    log.record(group_key(9, "g"), b"\x00\x00")
    state = replayed(log)
    assert state.groups == {}
    assert list(state.quarantined) == [1]


def test_sentinel_becomes_none(log: LogPartition) -> None:  # R7
    log.commit(A, 1, leader_epoch=None)
    log.commit(B, 2, version=1, expire_timestamp=None)
    assert commit_value(1, leader_epoch=None)[10:14] == b"\xff" * 4
    state = replayed(log)
    assert state.offsets[A].leader_epoch is None
    assert state.offsets[B].expire_timestamp_ms is None


def test_fields_of_each_value_version_are_kept(log: LogPartition) -> None:  # R7
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    log.commit(("g", "t", 0), 10, version=0, metadata="zero")
    log.commit(("g", "t", 1), 11, version=1, expire_timestamp=99)
    log.commit(("g", "t", 2), 12, version=2, commit_timestamp=5)
    log.commit(("g", "t", 3), 13, version=3, leader_epoch=3)
    log.commit(("g", "t", 4), 14, version=4, leader_epoch=4, topic_id=topic_id, metadata="four")
    log.commit(("g", "t", 5), -1, version=4)
    found = [replayed(log).offsets["g", "t", partition] for partition in range(6)]
    assert [each.committed_offset for each in found] == [10, 11, 12, 13, 14, -1]
    assert [each.metadata for each in found] == ["zero", "", "", "", "four", ""]
    assert [each.expire_timestamp_ms for each in found] == [None, 99, None, None, None, None]
    assert [each.leader_epoch for each in found] == [None, None, None, 3, 4, None]
    assert [each.topic_id for each in found] == [None, None, None, None, topic_id, None]
    assert found[2].commit_timestamp_ms == 5


def test_topic_id_of_zeros_is_none(log: LogPartition) -> None:  # R7: Kafka's ZERO_UUID stands for no topic id
    log.commit(A, 1, version=4, topic_id=NO_TOPIC_ID)
    assert replayed(log).offsets[A].topic_id is None


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_of_two_names_of_a_topic_id_the_first_in_order_counts(log: LogPartition, names: str) -> None:  # R35
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    for name in names:
        log.commit(("g", name, 0), 1, version=4, topic_id=topic_id)
    assert replayed(log).topic_names == {topic_id: "a"}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_key_version_0_takes_value_version_0_only(log: LogPartition, version: int) -> None:  # R7
    log.commit(A, 1, key_version=0)
    log.record(commit_key(*A, version=0), commit_value(2, version))
    state = replayed(log)
    assert answered(state) == {A: 1}
    assert list(state.quarantined) == [1]


def test_key_versions_name_one_identity(log: LogPartition) -> None:  # R9
    log.commit(A, 1, key_version=0)
    log.commit(A, 2, key_version=1)
    log.commit(B, 3, key_version=1)
    log.delete(B, key_version=0)
    assert answered(replayed(log)) == {A: 2}


def test_parts_of_an_identity_are_never_joined(log: LogPartition) -> None:  # R9
    identities = [("a", "b-c", 1), ("a-b", "c", 1), ("a", "b", 1), ("a", "b-1", 1), ("", "a-b-c", 1)]
    for offset, identity in enumerate(identities):
        log.commit(identity, offset)
    assert answered(replayed(log)) == dict(zip(identities, range(5), strict=True))


def test_last_record_wins_whatever_its_time(log: LogPartition) -> None:  # R10
    log.commit(A, 50, commit_timestamp=2_000)
    log.commit(A, 40, commit_timestamp=1_000)
    assert answered(replayed(log)) == {A: 40}


@pytest.mark.parametrize("first", [PRODUCER, OTHER_PRODUCER])
def test_higher_record_offset_wins_whichever_marker_comes_first(log: LogPartition, first: int) -> None:  # R10
    log.commit(A, 1, PRODUCER)
    log.commit(A, 2, OTHER_PRODUCER)
    log.end_commit(first)
    log.end_commit(PRODUCER + OTHER_PRODUCER - first)
    state = replayed(log)
    assert answered(state) == {A: 2}
    assert state.offsets[A].record_offset == 1


def test_committed_record_does_not_win_over_a_later_plain_one(log: LogPartition) -> None:  # R10
    log.commit(A, 1, PRODUCER)
    log.commit(A, 2)
    log.end_commit(PRODUCER)
    assert answered(replayed(log)) == {A: 2}


def test_transactional_commit_is_pending_until_its_marker(log: LogPartition) -> None:  # R11
    log.commit(A, 1)
    log.commit(A, 2, PRODUCER)
    log.end_commit(OTHER_PRODUCER)
    open_state = replayed(log)
    assert answered(open_state) == {A: 1}
    assert open_state.pending[PRODUCER][A].committed_offset == 2
    log.end_commit(PRODUCER)
    closed = replayed(log)
    assert answered(closed) == {A: 2}
    assert closed.unstable == set()


def test_aborted_commit_is_dropped(log: LogPartition) -> None:  # R11
    log.commit(A, 1)
    log.commit(A, 2, PRODUCER)
    log.end_abort(PRODUCER)
    state = replayed(log)
    assert answered(state) == {A: 1}
    assert state.unstable == set()


def test_records_behind_a_marker_belong_to_the_next_transaction(log: LogPartition) -> None:  # R11
    log.commit(A, 1, PRODUCER)
    log.end_commit(PRODUCER)
    log.commit(A, 2, PRODUCER)
    log.end_abort(PRODUCER)
    log.commit(B, 3, PRODUCER)
    state = replayed(log)
    assert answered(state) == {A: 1}
    assert state.unstable == {B}


def test_other_control_record_ends_no_transaction(log: LogPartition) -> None:  # R11
    log.commit(A, 1, PRODUCER)
    log.marker(PRODUCER, "OTHER")
    assert replayed(log).unstable == {A}


@pytest.mark.parametrize("producer_id", [None, PRODUCER, 99])
def test_tombstone_applies_at_once_and_empties_every_transaction(
    log: LogPartition, producer_id: int | None
) -> None:  # R12
    log.commit(A, 1)
    log.commit(A, 2, PRODUCER)
    log.commit(A, 3, OTHER_PRODUCER)
    log.commit(B, 4, OTHER_PRODUCER)
    log.delete(A, producer_id)
    at_once = replayed(log)
    assert answered(at_once) == {}
    assert at_once.unstable == {B}
    log.end_commit(PRODUCER)
    log.end_commit(OTHER_PRODUCER)
    assert answered(replayed(log)) == {B: 4}


def test_aborted_transaction_does_not_undo_its_tombstone(log: LogPartition) -> None:  # R12
    log.commit(A, 1)
    log.delete(A, PRODUCER)
    log.end_abort(PRODUCER)
    assert answered(replayed(log)) == {}


def test_commit_after_a_tombstone_is_pending_again(log: LogPartition) -> None:  # R12
    log.commit(A, 1, PRODUCER)
    log.delete(A)
    log.commit(A, 2, PRODUCER)
    log.end_commit(PRODUCER)
    assert answered(replayed(log)) == {A: 2}


@pytest.mark.parametrize("record_type", [1, *GROUP_TYPE_OF_RECORD_TYPE])
def test_tombstone_for_something_unknown_does_nothing(log: LogPartition, record_type: int) -> None:  # R13
    log.record(commit_key(*A) if record_type == 1 else group_key(record_type, "g", "m"), None)
    state = replayed(log)
    assert state.groups == {}
    assert state.quarantined == {}


@pytest.mark.parametrize("record_type", GROUP_TYPE_OF_RECORD_TYPE)
def test_value_of_any_group_type_creates_its_group(log: LogPartition, record_type: int) -> None:  # R14
    log.group(record_type, "g", "m")
    assert replayed(log).groups["g"].group_type == GROUP_TYPE_OF_RECORD_TYPE[record_type]


def test_record_types_are_of_the_group_type_in_their_names() -> None:  # R5, R14
    named = {record_type: each.key.name for record_type, each in MESSAGE_TYPES.items() if record_type not in (0, 1, 9)}
    expected = {at: name.partition("Group")[0] or CLASSIC for at, name in named.items()}
    assert expected == GROUP_TYPE_OF_RECORD_TYPE
    of_groups = {at for at, name in named.items() if name.partition("Group")[2] == "MetadataKey"}
    assert of_groups == GROUP_REMOVING_TYPES == GROUP_REMOVALS.keys()


def test_group_that_was_described_equals_one_that_was_not(log: LogPartition) -> None:
    log.group(2, "g", generation=3)
    one, other = (partition_state.replay(log.rows, 0, 1).groups["g"] for _ in range(2))
    assert one.description.generation == 3
    assert one == other
    one.put((2, ""), group_value(2, generation=4))
    assert one.description.generation == 4  # of the new record


@pytest.mark.parametrize("end", ["open", "COMMIT", "ABORT"])
def test_any_commit_creates_a_simple_group(log: LogPartition, end: str) -> None:  # R14
    log.commit(A, 1, PRODUCER)
    if end != "open":
        log.marker(PRODUCER, end)
    group = replayed(log).groups["g"]
    assert (group.group_type, group.records) == (CLASSIC, {})


@pytest.mark.parametrize("record_type", [record_type for record_type in GROUP_TYPE_OF_RECORD_TYPE if record_type != 2])
def test_group_value_replaces_a_simple_group_and_keeps_its_offsets(log: LogPartition, record_type: int) -> None:  # R14
    log.group(2, "g")
    log.commit(A, 1)
    log.group(record_type, "g", "m")
    state = replayed(log)
    assert state.groups["g"].group_type == GROUP_TYPE_OF_RECORD_TYPE[record_type]
    assert [record_type for record_type, _ in state.groups["g"].records] == [record_type]
    assert state.offsets.keys() == {A}
    # a share group has no committed offsets: a broker's fetch of them fails
    assert answered(state) == ({} if state.groups["g"].group_type == SHARE else {A: 1})


def test_commit_does_not_replace_a_group(log: LogPartition) -> None:  # R14
    log.group(5, "g", "m")
    log.group(3, "g", epoch=1)
    log.commit(A, 1)
    group = replayed(log).groups["g"]
    assert group.group_type == CONSUMER
    assert set(group.records) == {(5, "m"), (3, "")}


@pytest.mark.parametrize("record_type", GROUP_REMOVALS)
def test_group_tombstone_removes_the_group_and_its_offsets_from_answers(
    log: LogPartition, record_type: int
) -> None:  # R14
    log.group(record_type, "g")
    log.commit(A, 1)
    log.commit(B, 2, PRODUCER)
    log.group_tombstone(record_type, "g")
    state = replayed(log)
    assert state.groups == {}
    assert answered(state) == {}
    assert state.unstable == set()
    log.end_abort(PRODUCER)
    log.commit(("g", "u", 0), 3)
    assert answered(replayed(log)) == {A: 1, ("g", "u", 0): 3}  # what was left behind answers again


def test_group_tombstone_removes_a_simple_group(log: LogPartition) -> None:  # R14
    log.commit(A, 1)
    log.group_tombstone(2, "g")
    assert replayed(log).groups == {}


@pytest.mark.parametrize("record_type", [t for t in GROUP_TYPE_OF_RECORD_TYPE if t not in GROUP_REMOVALS])
def test_other_tombstone_removes_its_record_alone(log: LogPartition, record_type: int) -> None:  # R14
    log.group(record_type, "g", "m")
    log.group(record_type, "g", "n")
    log.group_tombstone(record_type, "g", "m")
    group = replayed(log).groups["g"]
    assert (record_type, "m") not in group.records
    assert group.group_type == GROUP_TYPE_OF_RECORD_TYPE[record_type]


def test_recreated_group_holds_nothing_of_the_old_one(log: LogPartition) -> None:  # R14
    log.group(5, "g", "m")
    log.group(3, "g", epoch=1)
    log.group_tombstone(3, "g")
    log.group(3, "g", epoch=2)
    assert set(replayed(log).groups["g"].records) == {(3, "")}


def test_downgraded_group_is_classic(log: LogPartition) -> None:  # R14
    log.group(5, "g", "m")
    log.group(3, "g", epoch=1)
    log.commit(A, 1)
    log.group_tombstone(5, "g", "m")
    log.group_tombstone(3, "g")
    log.group(2, "g", protocol_type="consumer")
    state = replayed(log)
    assert state.groups["g"].group_type == CLASSIC
    assert set(state.groups["g"].records) == {(2, "")}
    assert answered(state) == {A: 1}


def test_legal_compaction_gives_the_same(log: LogPartition) -> None:  # R16
    log.commit(A, 1)
    log.group(2, "g", protocol_type="consumer", generation=1)
    log.commit(A, 2, PRODUCER)  # aborted
    log.end_abort(PRODUCER)
    log.commit(A, 3)
    log.commit(B, 4)
    log.delete(B)
    log.group(2, "g", protocol_type="consumer", generation=2)
    log.commit(A, 5, OTHER_PRODUCER)  # open
    compacted = LogPartition()
    compacted.rows = [row for row in log.rows if row.record_offset in {4, 6, 7, 8}]
    whole, kept = replayed(log), replayed(compacted)
    assert kept.offsets == whole.offsets
    assert kept.pending == whole.pending
    assert kept.groups == whole.groups
    assert answered(kept) == {A: 3}


def test_pending_identity_is_unstable_and_the_visible_offset_still_answers(log: LogPartition) -> None:  # R17
    log.commit(A, 1)
    log.commit(A, 2, PRODUCER)
    log.commit(B, 3, OTHER_PRODUCER)
    state = replayed(log)
    assert state.unstable == {A, B}
    assert answered(state) == {A: 1}


def test_value_of_a_group_record_is_decoded(log: LogPartition) -> None:
    log.record(group_key(3, "g"), group_value(3, epoch=5))
    assert replayed(log).groups["g"].records[3, ""]["epoch"] == 5


def test_open_transaction_is_known_of_its_group_until_its_marker(log: LogPartition) -> None:  # R20
    log.commit(A, 1, PRODUCER)
    log.commit(("h", "t", 0), 1, PRODUCER)
    log.commit(A, 1, OTHER_PRODUCER)
    log.delete(A)
    state = partition_state.replay(log.rows, 0, 1)
    assert not state.is_pending("g", TopicPartition("t", 0))  # R12
    assert state.open_transactions == {"g": {PRODUCER, OTHER_PRODUCER}, "h": {PRODUCER}}
    log.end_abort(PRODUCER)
    assert partition_state.replay(log.rows, 0, 1).open_transactions == {"g": {OTHER_PRODUCER}}


@examples(150)
@given(logs(several(2), max_steps=40))
def test_any_log_replays_to_the_same_by_columns(log: Log) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for partition, rows in log.partitions.items():
            assert replayed_as_columns(rows, partition, 2, patch) == partition_state.replay(rows, partition, 2)


@examples(100)
@given(logs(), st.data())
def test_records_that_come_again_change_nothing(log: Log, data: st.DataObject) -> None:  # R15, R16
    rows = log.rows()
    state = PartitionState(0, 1)
    done = 0
    while done < len(rows):
        again = data.draw(st.integers(0, done))
        done = data.draw(st.integers(done + 1, len(rows)))
        for row in rows[again:done]:
            state.replay(row)
        assert state == partition_state.replay(rows[:done], 0, 1)
