"""No secret of a Connect worker's configurations gets into the log."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from offsets_pipeline.connect.redaction import KEPT_SETTINGS, redacted_values
from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record.segment import SEGMENT_SCHEMA
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.unit.connect.connect_logs import WITH_ANSWERS, capture_rows

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("key", "value", "left"),
    [
        (
            b"connector-a",
            {"properties": {"name": "a", "connector.class": "x.Y", "db.password": SECRET, "topics": "t"}, "s": SECRET},
            {"properties": {"name": "a", "connector.class": "x.Y", "topics": "t"}},
        ),
        (
            b"task-a-0",
            {"properties": {"task.class": "T", "sasl.jaas.config": SECRET}},
            {"properties": {"task.class": "T"}},
        ),
        (b"target-state-a", {"state": "STOPPED", "state.v2": "STOPPED", "more": SECRET}, None),
        (b"session-key", {"key": SECRET, "algorithm": "HmacSHA256"}, {}),
        (b"of-a-newer-worker", {"x": SECRET}, {}),
        (b"\xff", {"x": SECRET}, {}),
        (None, {"x": SECRET}, {}),
        (b"connector-a", {"properties": {"name": {"nested": SECRET}, "topics": [SECRET]}}, {"properties": {}}),
        (b"connector-a", {"properties": SECRET}, {"properties": {}}),
        (b"target-state-a", {"state": {"nested": SECRET}}, {"state": None}),
    ],
)
def test_secrets_are_left_out(key: bytes | None, value: dict[str, object], left: dict[str, object] | None) -> None:
    (kept,) = redacted_values(pa.array([key], pa.binary()), pa.array([json.dumps(value).encode()], pa.binary()))
    assert SECRET.encode() not in kept.as_py()
    assert json.loads(kept.as_py()) == ({"state": "STOPPED", "state.v2": "STOPPED"} if left is None else left)


@pytest.mark.parametrize("value", [b"hunter2", b'["hunter2"]', b'{"properties": "hunter2"', b"\xffhunter2"])
def test_of_a_value_that_does_not_decode_nothing_is_kept(value: bytes) -> None:
    (kept,) = redacted_values(pa.array([b"connector-a"]), pa.array([value]))
    assert kept.as_py() == b"?"  # no JSON, so that the replay puts the record into quarantine


def test_an_ingest_leaves_secrets_of_configurations_out_and_markers_as_they_are() -> None:
    secret, marker = json.dumps({"key": SECRET}).encode(), b"\0\0\0\0\0\5"
    plain = {"record_offset": 0, "key": b"session-key", "value": secret, "producer_id": 7, "producer_epoch": 1}
    control = plain | {"record_offset": 1, "key": b"\0\0\0\1", "value": marker, "control_type": "COMMIT"}
    rows = [plain | {"is_transactional": False}, control | {"is_transactional": True}]
    batch = pa.RecordBatch.from_pylist(rows, SEGMENT_SCHEMA)
    for kind, value in ((TopicKind.CONNECT_CONFIGS, b"{}"), (TopicKind.CONNECT_OFFSETS, secret)):
        found = log_columns(batch, 3, "a source", StoreProperties(MIRRORED, 5, topic_kind=kind))
        assert found["value"].to_pylist() == [value, marker]
        assert found["producer_id"].to_pylist() == [None, 7]  # R11: the first is of no transaction
        assert found["producer_epoch"].to_pylist() == [None, 1]
        assert (found["log_partition"].to_pylist(), found["source"].to_pylist()) == ([3, 3], ["a source"] * 2)


def test_tombstones_stay_tombstones() -> None:
    kept = redacted_values(pa.array([b"connector-a", b"connector-b", b"session-key"]), pa.array([None, b"", b"null"]))
    assert kept.to_pylist() == [None, b"null", b"null"]


@pytest.mark.parametrize("capture", WITH_ANSWERS)
def test_the_log_of_a_recorded_worker_has_no_other_settings(capture: str) -> None:
    values = [
        json.loads(row.value)
        for row in capture_rows(capture, "connect-configs")
        if row.value and row.control_type is None
    ]
    kept = {name for value in values for name in value.get("properties", {})}
    assert {"connector.class", "name"} < kept <= KEPT_SETTINGS
    assert not any("key" in value or "file" in value.get("properties", {}) for value in values)
