"""Encodes rows of the log as batches: reading them back, and their headers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.log_batches import LogBatches, encode_log
from offsets_pipeline.kafka.record.segment import read_segment
from tests.log_tables import capture_records
from tests.logs import CAPTURE_NAMES

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.columns import Headers

REPEATABLE = settings(max_examples=60)
CODECS = [Codec.NONE, Codec.ZSTD]
COMPARED = (
    "record_offset",
    "record_timestamp",
    "key",
    "value",
    "producer_id",
    "producer_epoch",
    "is_transactional",
    "control_type",
)
MARKERS = {"COMMIT": b"\x00\x00\x00\x01", "ABORT": b"\x00\x00\x00\x00"}


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    """Rows of the log; columns that are not given are null."""
    types = {
        "record_offset": pa.int64(),
        "record_timestamp": pa.timestamp("ms", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "producer_id": pa.int64(),
        "producer_epoch": pa.int16(),
        "control_type": pa.string(),
    }
    return pa.table({name: pa.array([row.get(name) for row in rows], type_) for name, type_ in types.items()})


def marker(offset: int, control_type: str, producer_id: int, coordinator_epoch: int = 0) -> dict[str, Any]:
    return {
        "record_offset": offset,
        "key": MARKERS[control_type],
        "value": b"\x00\x00" + coordinator_epoch.to_bytes(4, "big"),
        "producer_id": producer_id,
        "producer_epoch": 0,
        "control_type": control_type,
    }


def read(batches: LogBatches) -> list[dict[str, Any]]:
    reader = read_segment(bytes(batches.data), source="test.log")
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert reader.damage == []
    assert reader.torn_tail is None
    return rows


def headers(batches: LogBatches) -> Headers:
    data = np.frombuffer(batches.data, np.uint8)
    places = batches.start[:, None] + np.arange(b.BATCH_HEADER_BYTES)
    found: Headers = data[places].view(BATCH_HEADER).reshape(-1)
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_recorded_logs_come_back_record_for_record(name: str, codec: Codec) -> None:
    for records in capture_records(name).values():
        expected = records.select(COMPARED).to_pylist()
        assert read(encode_log(records.drop(["is_transactional"]), codec)) == expected


OFFSETS = st.lists(st.sampled_from([1, 1, 1, 2, 50, 2**20, 2**25]), min_size=1, max_size=40)
KINDS = st.sampled_from(["plain", "plain", "of 7", "of 8", "COMMIT", "ABORT"])


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    offset = draw(st.integers(0, 2**40))
    for gap in draw(OFFSETS):
        offset += gap
        kind = draw(KINDS)
        row: dict[str, Any] = {"record_offset": offset}
        if kind in MARKERS:
            row = marker(offset, kind, draw(st.integers(7, 8)))
        row["record_timestamp"] = draw(st.one_of(st.none(), st.integers(0, 2**41)))
        if kind not in MARKERS:
            row["key"] = draw(st.one_of(st.none(), st.binary(max_size=12)))
            row["value"] = draw(st.one_of(st.none(), st.binary(max_size=300)))
        if kind.startswith("of"):
            row |= {"producer_id": int(kind[3:]), "producer_epoch": draw(st.integers(0, 1))}
        rows.append(row)
    return rows


@REPEATABLE
@given(logs(), st.sampled_from(CODECS), st.sampled_from([1, 200, 65_536]))
def test_any_rows_come_back(rows: list[dict[str, Any]], codec: Codec, batch_bytes: int) -> None:
    table = rows_of(*rows)
    batches = encode_log(table, codec, batch_bytes)
    expected = table.to_pylist()
    for row in expected:
        row["is_transactional"] = row["producer_id"] is not None
    assert [{name: row[name] for name in COMPARED} for row in expected] == read(batches)
    found = headers(batches)
    assert found["base_offset"].tolist() == batches.base_offset.tolist()
    assert (found["base_offset"] + found["last_offset_delta"]).tolist() == batches.last_offset.tolist()
    assert all(last < first for last, first in pairwise_of(batches))
    control = found["attributes"] & b.ATTRIBUTE_CONTROL != 0
    assert set(found["record_count"][control].tolist()) <= {1}  # a broker reads the first record of such a batch alone


def pairwise_of(batches: LogBatches) -> list[tuple[int, int]]:
    """Of neighbours the last offset of the one and the first of the other."""
    places = list(zip(batches.base_offset.tolist(), batches.last_offset.tolist(), strict=True))
    return [(before[1], after[0]) for before, after in pairwise(places)]


@pytest.mark.parametrize(("codec", "size"), [(Codec.NONE, 2000), (Codec.ZSTD, 1014), (Codec.ZSTD, 1015)])
def test_batch_headers_are_as_coordinators_write_them(codec: Codec, size: int) -> None:
    """The first record has nine bytes more than its value; batches from 1024 bytes on are compressed."""
    batches = encode_log(
        rows_of(
            {"record_offset": 3, "value": bytes(size), "record_timestamp": 5_000},
            {"record_offset": 5, "key": b"b", "producer_id": 9, "producer_epoch": 2, "record_timestamp": 6_000},
            {"record_offset": 7, "key": b"c", "producer_id": 9, "producer_epoch": 2, "record_timestamp": 5_500},
            {"record_offset": 8, "key": b"d", "producer_id": 9, "producer_epoch": 3},
            marker(9, "COMMIT", 9) | {"key": MARKERS["COMMIT"] + bytes(2000)},
        ),
        codec,
    )
    transactional, control = b.ATTRIBUTE_TRANSACTIONAL, b.ATTRIBUTE_CONTROL
    used = codec if size == 1015 else 0
    # what the recorded 4.x logs have in every batch
    names = "base_offset", "last_offset_delta", "record_count", "attributes", "base_timestamp", "max_timestamp"
    assert headers(batches)[[*names]].tolist() == [
        (3, 0, 1, used, 5_000, 5_000),
        (5, 2, 2, transactional, 6_000, 6_000),
        (8, 0, 1, transactional, -1, -1),
        (9, 0, 1, transactional | control, -1, -1),
    ]
    producer = "producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch", "magic"
    assert headers(batches)[[*producer]].tolist() == [
        *((-1, -1, 0, 0, 2), (9, 2, 0, 0, 2), (9, 3, 0, 0, 2), (9, 0, -1, 0, 2)),
    ]
    assert [row["record_timestamp"] is None for row in read(batches)] == [False, False, False, True, True]


def test_a_full_batch_ends_and_a_large_record_has_one_to_itself() -> None:
    rows = [{"record_offset": at, "value": bytes(5000 if at == 10 else 50)} for at in range(21)]
    batches = encode_log(rows_of(*rows), batch_bytes=700)
    assert batches.base_offset.tolist() == [0, 10, 11, 20]
    assert [row["record_offset"] for row in read(batches)] == list(range(21))
    assert len(encode_log(rows_of(*rows), batch_bytes=70)) == 21
    kibibytes = rows_of(*({"record_offset": at, "value": bytes(1004)} for at in range(65)))
    assert encode_log(kibibytes).base_offset.tolist() == [0, 64]


def test_batch_does_not_exceed_the_range_of_offset_deltas() -> None:
    places = [1, 2**30 - 1, 2**30, 2**31, 2**40]
    batches = encode_log(rows_of(*({"record_offset": at} for at in places)))
    assert batches.base_offset.tolist() == [1, 2**30, 2**31, 2**40]


@pytest.mark.parametrize("said", ["COMMIT", "ABORT"])
def test_a_marker_without_bytes_or_with_other_ones_gets_those_that_its_column_says(said: str) -> None:
    other = "ABORT" if said == "COMMIT" else "COMMIT"
    rows = [marker(0, other, 5), {"record_offset": 1, "producer_id": 5, "producer_epoch": 1}]
    for row in rows:
        row["control_type"] = said
    assert [(row["control_type"], row["key"], row["value"]) for row in read(encode_log(rows_of(*rows)))] == [
        (said, MARKERS[said], bytes(6))
    ] * 2


def test_a_marker_keeps_its_coordinator_epoch() -> None:
    (row,) = read(encode_log(rows_of(marker(0, "ABORT", 5, coordinator_epoch=77))))
    assert row["value"] == b"\x00\x00" + (77).to_bytes(4, "big")


def test_a_producer_without_an_epoch_has_epoch_0() -> None:
    assert headers(encode_log(rows_of({"record_offset": 0, "producer_id": 5})))["producer_epoch"].tolist() == [0]


def test_no_rows_are_no_batches() -> None:
    batches = encode_log(rows_of())
    assert (len(batches), bytes(batches.data)) == (0, b"")
