"""State batches that overlap become one list, by Kafka's rule (R39); each case is worked by hand."""

from __future__ import annotations

from operator import itemgetter

import pyarrow as pa
import pytest

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.decode import DecodedKey
from offsets_pipeline.kafka.record.encode import encode_key
from offsets_pipeline.kafka.record.message_types import SHARE_MESSAGE_TYPES, ShareRecordType
from offsets_pipeline.semantics.effects import ReplayedPartition, in_milliseconds
from offsets_pipeline.semantics.share_replay import replay_shares, superseded_by
from offsets_pipeline.semantics.share_state import (
    DeliveryState,
    SharePartition,
    ShareRecord,
    ShareState,
    StateBatch,
    combined,
    is_share_key,
    read_record,
    snapshot_record,
)
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA

AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
Batch = tuple[int, int, int, int]
ORDERS = SharePartition("g", "EX0vH4LXQKuzehzfpxpGHw", 3)
#: Version 0: snapshot epoch 4, leader epoch 2, start offset 7, no batches, no tagged fields.
UPDATE = bytes.fromhex("0000 00000004 00000002 0000000000000007 01 00")


def state(start: int, *batches: Batch, leader: int = 5, complete: int | None = None) -> ShareState:
    return ShareState(2, 7, leader, start, complete, 100, 200, tuple(StateBatch(*each) for each in batches))


@pytest.mark.parametrize(
    ("batches", "start", "expected"),
    [
        pytest.param([], 0, [], id="none"),
        pytest.param([(5, 9, 1, 0)], 0, [(5, 9, 1, 0)], id="one"),
        pytest.param([(5, 9, 1, 0)], 10, [], id="all before the start offset"),
        pytest.param([(5, 9, 1, 0)], 7, [(7, 9, 1, 0)], id="cut by the start offset"),
        pytest.param([(5, 9, 1, 0)], 9, [(9, 9, 1, 0)], id="only its last record is left"),
        pytest.param([(5, 9, 1, 0)], -1, [(5, 9, 1, 0)], id="no start offset"),
        pytest.param([(0, 4, 1, 2), (5, 9, 1, 2)], 0, [(0, 9, 1, 2)], id="touch in the same state"),
        pytest.param([(0, 4, 1, 2), (5, 9, 2, 2)], 0, [(0, 4, 1, 2), (5, 9, 2, 2)], id="touch, counts differ"),
        pytest.param([(0, 4, 1, 2), (6, 9, 1, 2)], 0, [(0, 4, 1, 2), (6, 9, 1, 2)], id="a record between them"),
        pytest.param([(0, 9, 1, 2), (3, 5, 1, 2)], 0, [(0, 9, 1, 2)], id="inside, in the same state"),
        pytest.param([(0, 6, 1, 2), (3, 9, 1, 2)], 0, [(0, 9, 1, 2)], id="overlap in the same state"),
        pytest.param([(0, 9, 1, 0), (0, 9, 2, 0)], 0, [(0, 9, 2, 0)], id="same records, higher count"),
        pytest.param([(0, 9, 1, 4), (0, 9, 1, 2)], 0, [(0, 9, 1, 4)], id="same records, higher state"),
        pytest.param([(0, 9, 1, 4), (0, 9, 2, 0)], 0, [(0, 9, 2, 0)], id="the count counts before the state"),
        pytest.param([(0, 5, 1, 0), (0, 9, 2, 0)], 0, [(0, 9, 2, 0)], id="longer and higher"),
        pytest.param([(0, 5, 2, 0), (0, 9, 1, 0)], 0, [(0, 5, 2, 0), (6, 9, 1, 0)], id="longer and lower"),
        pytest.param([(0, 9, 1, 0), (3, 5, 1, 2)], 0, [(0, 2, 1, 0), (3, 5, 1, 2), (6, 9, 1, 0)], id="inside, higher"),
        pytest.param([(0, 9, 2, 0), (3, 5, 1, 2)], 0, [(0, 9, 2, 0)], id="inside, lower"),
        pytest.param([(0, 9, 1, 0), (6, 9, 1, 2)], 0, [(0, 5, 1, 0), (6, 9, 1, 2)], id="same end, higher"),
        pytest.param([(0, 9, 2, 0), (6, 9, 1, 2)], 0, [(0, 9, 2, 0)], id="same end, lower"),
        pytest.param([(0, 6, 1, 0), (4, 9, 1, 2)], 0, [(0, 3, 1, 0), (4, 9, 1, 2)], id="overlap, higher"),
        pytest.param([(0, 6, 2, 0), (4, 9, 1, 2)], 0, [(0, 6, 2, 0), (7, 9, 1, 2)], id="overlap, lower"),
        pytest.param(
            [(0, 9, 1, 0), (2, 3, 1, 2), (6, 7, 1, 4)],
            0,
            [(0, 1, 1, 0), (2, 3, 1, 2), (4, 5, 1, 0), (6, 7, 1, 4), (8, 9, 1, 0)],
            id="two inside one",
        ),
        # (0, 4) is final before (5, 12) takes the place of (5, 9): Kafka leaves the two apart
        pytest.param([(0, 4, 1, 2), (5, 9, 1, 0), (5, 12, 1, 2)], 0, [(0, 4, 1, 2), (5, 12, 1, 2)], id="stay apart"),
    ],
)
def test_batches_are_combined_as_kafka_does(batches: list[Batch], start: int, expected: list[Batch]) -> None:
    in_order = [StateBatch(*each) for each in batches]
    assert combined(in_order, start) == expected
    assert combined(reversed(in_order), start) == expected


@pytest.mark.parametrize(
    ("before", "update", "expected"),
    [
        # a start offset of -1 and a leader epoch of -1 leave what was there; the count is always the update's
        (state(3, (3, 4, 1, 2), complete=1), state(-1, (5, 6, 1, 4), leader=-1), state(3, (3, 4, 1, 2), (5, 6, 1, 4))),
        (state(3, (3, 4, 1, 2)), state(4, leader=6, complete=1), state(4, (4, 4, 1, 2), leader=6, complete=1)),
        (None, state(3, (3, 4, 1, 2)), state(3, (3, 4, 1, 2))),
    ],
)
def test_an_update_merges_into_the_state(before: ShareState | None, update: ShareState, expected: ShareState) -> None:
    update = update._replace(snapshot_epoch=9, state_epoch=0, create_timestamp=0, write_timestamp=0)
    if before is None:
        expected = update
    assert ShareRecord(ORDERS, update, is_update=True).applied(before) == expected


def test_a_snapshot_replaces_the_state_and_a_tombstone_deletes_it() -> None:
    before, snapshot = state(3, (3, 4, 1, 2)), state(0)
    assert ShareRecord(ORDERS, snapshot, is_update=False).applied(before) == snapshot
    assert ShareRecord(ORDERS, None, is_update=False).applied(before) is None


@pytest.mark.parametrize("complete", [None, 0, 17])
def test_a_state_is_written_as_a_snapshot(complete: int | None) -> None:
    written = state(3, (3, 4, 1, ACKNOWLEDGED), (7, 9, 2, ARCHIVED), (11, 11, 1, AVAILABLE), complete=complete)
    assert read_record(*snapshot_record(ORDERS, written)) == ShareRecord(ORDERS, written, is_update=False)


def test_an_update_without_a_snapshot_before_it_has_zeros_for_what_it_lacks() -> None:
    key = encode_key(DecodedKey(ShareRecordType.SHARE_UPDATE, ORDERS._asdict()), SHARE_MESSAGE_TYPES)
    (share_partition, found, is_update) = read_record(key, UPDATE)
    assert (share_partition, is_update) == (ORDERS, True)
    assert found is not None
    assert (found.snapshot_epoch, found.leader_epoch, found.start_offset, found.state_batches) == (4, 2, 7, ())
    assert (found.state_epoch, found.create_timestamp, found.write_timestamp) == (0, 0, 0)


def test_only_a_later_snapshot_or_tombstone_supersedes_a_record() -> None:  # R6, R39
    key, value = snapshot_record(ORDERS, state(3))
    update, of_other = (
        encode_key(DecodedKey(ShareRecordType.SHARE_UPDATE, each._asdict()), SHARE_MESSAGE_TYPES)
        for each in (ORDERS, ORDERS._replace(partition=4))
    )
    rows = [  # log partition, record offset, key, value, control type, and the row that supersedes this one
        (0, 8, key, None, None, -1),
        (0, 3, key, value, None, 0),
        (0, 1, update, UPDATE, None, 0),
        (0, 4, update, UPDATE, None, 0),
        (0, 9, update, UPDATE, None, -1),
        (0, 10, update, UPDATE, None, -1),
        (0, 2, key, b"", None, -1),  # does not decode
        (0, 5, None, None, "commit", -1),
        (0, 6, of_other, UPDATE, None, -1),
        (0, 7, of_other, UPDATE, None, -1),
        (1, 1, key, value, None, -1),
    ]
    names = ("log_partition", "record_offset", "key", "value", "control_type")
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
    assert superseded_by(table).tolist() == [row[-1] for row in rows]


def rows_of(*rows: tuple[int, int, bytes | None, bytes | None, str | None, int]) -> pa.Table:
    """Log partition, record offset, key, value, control type, and for how many records each row stands."""
    names = ("log_partition", "record_offset", "key", "value", "control_type", "records")
    found = [dict(zip(names, row, strict=True)) | {"record_timestamp": 1_000 * row[1]} for row in rows]
    return pa.Table.from_pylist(found, schema=CONNECT_INPUT_SCHEMA)


def test_a_replay_gives_the_facts_of_changed_share_partitions_and_carries_those_that_exist() -> None:
    other = ORDERS._replace(partition=4)
    (key, value), (other_key, other_value) = (snapshot_record(each, state(3, (3, 4, 1, 9))) for each in (ORDERS, other))
    update = encode_key(DecodedKey(ShareRecordType.SHARE_UPDATE, ORDERS._asdict()), SHARE_MESSAGE_TYPES)
    first = replay_shares(
        [
            rows_of((0, 9, update, UPDATE, None, 1), (1, 6, other_key, None, None, 1), (0, 1, key, value, None, 1)),
            rows_of(
                (0, 3, key, value, None, 2), (1, 5, other_key, other_value, None, 1), (0, 8, None, None, "COMMIT", 1)
            ),
            rows_of((1, 8, b"\0\7" + key[2:], value, None, 1), (0, 7, key, b"", None, 1)),
        ],
        {0: 2},
    )
    assert first.progress == {0: ReplayedPartition(10, 5), 1: ReplayedPartition(9, 3, 1)}
    assert [(row["log_partition"], row["record_offset"], row["key"]) for row in first.quarantine] == [(0, 7, key)]
    deleted, changed = sorted(in_milliseconds(first.share_partitions).to_pylist(), key=itemgetter("record_offset"))
    # the update starts at 7, so that the batch of records 3 and 4 goes; its leader epoch is 2
    names = ("snapshot_epoch", "state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")
    assert [changed[name] for name in names] == [2, 7, 2, 7, None]
    assert (changed["state_batches"], changed["create_timestamp"], changed["write_timestamp"]) == ([], 100, 200)
    place = {"log_partition": 1, "record_offset": 6, "record_timestamp": 6}
    assert {name: each for name, each in deleted.items() if each is not None} == place | other._asdict()
    (carried,) = first.pending.to_pylist()
    expected = state(7, leader=2)
    assert (carried["record_offset"], carried["position"], carried["log_partition"]) == (9, 9, 0)
    assert read_record(carried["key"], carried["value"]).state == expected
    pending = rows_of((0, 9, carried["key"], carried["value"], None, 0), (1, 5, other_key, other_value, None, 0))
    second = replay_shares([pending, rows_of((0, 10, None, None, "ABORT", 1))], {0: 10, 1: 9})
    assert second.share_partitions.num_rows == 0
    assert second.pending == first.pending  # nothing of log partition 1, which has no new records
    third = replay_shares([pending, rows_of((0, 11, key, value, None, 1), (1, 9, None, None, None, 1))], {0: 10, 1: 9})
    (row,) = third.share_partitions.to_pylist()
    assert row["state_batches"] == [
        {"first_offset": 3, "last_offset": 4, "delivery_state": "9", "delivery_count": 1}  # of a newer Kafka
    ]
    assert sorted(third.pending["record_offset"].to_pylist()) == [5, 11]


def test_garbage_does_not_decode() -> None:
    key, value = snapshot_record(ORDERS, state(3))
    update = encode_key(DecodedKey(ShareRecordType.SHARE_UPDATE, ORDERS._asdict()), SHARE_MESSAGE_TYPES)
    for bad_key, bad_value in ((None, value), (key[:-1], value), (key, value[:-3]), (key, b"\0\7"), (update, None)):
        with pytest.raises(CorruptRecord):
            read_record(bad_key, bad_value)
    assert is_share_key(key)
    assert is_share_key(update)
    assert not is_share_key(b"\0\2" + key[2:])
    assert not is_share_key(key + b"x")  # a key of a group's record, which is longer, may begin like one
