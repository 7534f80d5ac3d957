"""Keys and values of the topics of Connect: what is one, what goes to quarantine, and which are one identity (R30)."""

from __future__ import annotations

import pytest

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.semantics.connect_keys import (
    ConnectKey,
    ConnectRecordType,
    offset_key,
    offset_value,
    parse_connect_key,
    parse_connect_value,
    state_value,
)
from offsets_pipeline.semantics.topic_kind import TopicKind

OFFSETS, STATUS, CONFIGS, ALL = (
    TopicKind.CONNECT_OFFSETS,
    TopicKind.CONNECT_STATUS,
    TopicKind.CONNECT_CONFIGS,
    TopicKind.CONNECT,
)


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        (OFFSETS, b'["c",{"f":"a"}]', ConnectKey(ConnectRecordType.OFFSET, "c", '{"f":"a"}')),
        (OFFSETS, b'["c",null]', ConnectKey(ConnectRecordType.OFFSET, "c", "null")),
        (ALL, b'["c",{}]', ConnectKey(ConnectRecordType.OFFSET, "c", "{}")),
        (STATUS, b"status-connector-a-1", ConnectKey(ConnectRecordType.CONNECTOR_STATUS, "a-1")),
        (STATUS, b"status-task-a-1-0", ConnectKey(ConnectRecordType.TASK_STATUS, "a-1", task=0)),
        (STATUS, b"status-topic-t:connector-a", ConnectKey(ConnectRecordType.TOPIC_STATUS, "a")),
        (CONFIGS, b"connector-a", ConnectKey(ConnectRecordType.CONNECTOR_CONFIG, "a")),
        (CONFIGS, b"task-a-12", ConnectKey(ConnectRecordType.TASK_CONFIG, "a", task=12)),
        (CONFIGS, b"target-state-a", ConnectKey(ConnectRecordType.TARGET_STATE, "a")),
        (CONFIGS, b"tasks-fencing-a", ConnectKey(ConnectRecordType.TASK_COUNT, "a")),
        (CONFIGS, b"session-key", ConnectKey(ConnectRecordType.SESSION_KEY)),
        (CONFIGS, b"commit-a-1", ConnectKey(ConnectRecordType.TASKS_COMMIT, "a-1")),
        (CONFIGS, b"restart-connector-a", ConnectKey(ConnectRecordType.RESTART_REQUEST, "a")),
        (CONFIGS, b"logger-cluster-org.acme", ConnectKey(ConnectRecordType.LOGGER_LEVEL)),
        (ALL, b"flush-a-1-0", ConnectKey(ConnectRecordType.TASK_FLUSH, "a-1", task=0)),
        (CONFIGS, b"flush-a-1-0", None),
        (ALL, b"target-state-a", ConnectKey(ConnectRecordType.TARGET_STATE, "a")),
        (CONFIGS, b"of-a-newer-worker", None),
        (STATUS, b"connector-a", None),
    ],
)
def test_keys_of_a_worker_are_read(kind: TopicKind, key: bytes, expected: ConnectKey | None) -> None:
    assert parse_connect_key(key, kind) == expected


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"connector-a",
        b'["c"]',
        b'["c",{},{}]',
        b"[1,{}]",
        b'["c","p"]',
        b'["c",{"f":NaN}]',
        b'["c",{"f":1e400}]',
        b'["c",{"f":"\\ud800"}]',
        b'["\\ud800",{}]',
        b'["c",{"f":"\xff"}]',
        b'\xef\xbb\xbf["c",{}]',
        b'["c",' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"]",
        b'["c",{"f":' + b"9" * 5_000 + b"}]",
    ],
)
def test_malformed_keys_of_offsets_are_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptRecord, match=r"^key: "):
        parse_connect_key(key, OFFSETS)


def test_keys_have_at_most_500_levels_with_every_python() -> None:
    def key(levels: int) -> bytes:
        return b'["c",' + b'{"a":' * levels + b"1" + b"}" * levels + b"]"

    assert parse_connect_key(key(499), OFFSETS)
    with pytest.raises(CorruptRecord, match="too many levels of arrays and objects"):
        parse_connect_key(key(500), OFFSETS)


def test_a_long_text_is_shown_by_its_beginning() -> None:
    for length, shown in ((38, f"'\"{'a' * 38}\"'"), (39, f"'\"{'a' * 39}...'")):
        with pytest.raises(CorruptRecord) as raised:
            parse_connect_key(f'"{"a" * length}"'.encode(), OFFSETS)
        assert str(raised.value).endswith(f"of a connector's name and an object, found {shown}")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'["c",{"a":1,"b":{"x":1,"y":2}}]', b'[ "c", {"b": {"y":2,"x":1}, "a": 1} ]', True),
        (b'["c",{"f":"\xc3\xa9"}]', b'["c",{"f":"\\u00e9"}]', True),
        (b'["c",{"f":1}]', b'["c",{"f":1.0}]', False),
        (b'["c",{"f":[1,2]}]', b'["c",{"f":[2,1]}]', False),
        (b'["c",{"f":null}]', b'["c",{}]', False),
    ],
)
def test_equal_json_is_one_identity(one: bytes, other: bytes, *, same: bool) -> None:
    assert (parse_connect_key(one, OFFSETS) == parse_connect_key(other, OFFSETS)) is same


@pytest.mark.parametrize(
    "value",
    [b"1", b'"a"', b"[]", b"{", b'{"p":Infinity}', b"\xff", b'{"p":1e400}', b'{"p":-1e400}', b'{"p":"\\ud800"}'],
)
def test_values_that_are_no_json_object_are_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptRecord, match=r"^value: "):
        parse_connect_value(value)


def test_null_an_empty_value_and_json_null_are_tombstones_for_a_worker() -> None:
    assert list(map(parse_connect_value, (None, b"", b"null", b"{}"))) == [None, None, None, "{}"]


def test_written_keys_have_connects_form() -> None:
    assert offset_key("c", {"filename": "/é"}) == '["c",{"filename":"/é"}]'.encode()


def test_written_values_have_connects_form_and_others_are_refused() -> None:
    assert (offset_value({"q": "é", "p": 1}), offset_value(None)) == ('{"p":1,"q":"é"}'.encode(), None)
    for bad in (
        [1],
        1,
        {"p": float("nan")},
        {"p": "\ud800"},
        {"p": object()},
        {1: "p"},
        {"p": 1, None: 2},
        {"p": [{1: 2}]},
    ):
        with pytest.raises(CorruptRecord, match=r"^value: "):
            offset_value(bad)
        with pytest.raises(CorruptRecord, match=r"^key: "):
            offset_key("c", bad)


def test_the_state_holds_values_in_one_form() -> None:  # engines read equal names and numbers of one text differently
    assert state_value('{ "p" : 1, "n": [1E2, 2.50], "p": "\\u00e9\\u0001" }') == '{"p":"é\\u0001","n":[100.0,2.5]}'
    assert state_value(None) is None
