"""No secret of a Connect worker's configurations gets into the log."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from offsets_pipeline.connect.redaction import KEPT_SETTINGS, redacted_values
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
    assert kept.as_py() == b""


def test_tombstones_stay_tombstones() -> None:
    kept = redacted_values(pa.array([b"connector-a", b"session-key"]), pa.array([None, b"null"], pa.binary()))
    assert kept.to_pylist() == [None, b"null"]


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
