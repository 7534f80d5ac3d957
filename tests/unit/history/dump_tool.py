"""What Kafka's dump tool prints of segment files, beside the rows of `offsets dump`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.clock import shown_time

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]
_FIELD = re.compile(r"(\w+): (OptionalLong\[\d+]|OptionalLong\.empty|\[\]|\S+)")
_COMMITS = ("0", "1")


@dataclass
class Batch:
    """A line about a batch, by Kafka's names, and the lines about its records with their keys and payloads."""

    fields: dict[str, str]
    records: list[tuple[dict[str, str], str, str]] = field(default_factory=list)


def batches_of(lines: Sequence[str]) -> dict[str, list[Batch]]:
    """The batches of each file, by its path as the tool got it."""
    found: dict[str, list[Batch]] = {}
    of_file: list[Batch] = []
    for line in lines:
        if line.startswith("Dumping "):
            of_file = found.setdefault(line.removeprefix("Dumping "), [])
        elif line.startswith(("| ", "baseOffset: ", "offset: ")):
            fields, _, rest = line.partition(" key: ")
            key, _, payload = rest.partition(" payload: ")
            named = dict(_FIELD.findall(fields))
            if line.startswith("| "):
                of_file[-1].records.append((named, key, payload))
            else:
                of_file.append(Batch(named))
    return found


def assert_same(rows: list[Row], batches: list[Batch]) -> int:
    """Compare the rows of a file with the tool's lines, of which each must have its row; returns the number of rows."""
    expected: list[tuple[Batch, tuple[dict[str, str], str, str] | None]] = []
    for batch in batches:
        expected += [(batch, record) for record in batch.records] or [(batch, None)]
    assert len(rows) == len(expected)
    for row, (batch, record) in zip(rows, expected, strict=True):
        _assert_batch(row, batch.fields)
        if record is None:
            assert row["record_offset"] is None
        else:
            _assert_record(row, *record)
    return len(rows)


def _assert_batch(row: Row, fields: dict[str, str]) -> None:
    assert (row["position"], row["size"], row["magic"], row["codec"], row["crc"]) == (
        *(int(fields[name]) for name in ("position", "size", "magic")),
        fields["compresscodec"].lower(),
        int(fields["crc"]),
    )
    assert fields["isvalid"] == "true"
    if row["magic"] < 2:
        assert row["last_offset"] == int(fields["offset"])
        return
    numbers = ("base_offset", "last_offset", "record_count", "partition_leader_epoch", "base_sequence")
    kafkas = ("baseOffset", "lastOffset", "count", "partitionLeaderEpoch", "baseSequence")
    assert [row[name] for name in numbers] == [int(fields[name]) for name in kafkas]
    assert row["max_timestamp"] == _time(fields["CreateTime"])
    horizon = re.findall(r"\d+", fields.get("deleteHorizonMs", ""))
    assert row["delete_horizon"] == (_time(horizon[0]) if horizon else None)
    if row["record_offset"] is None:
        return
    producer = [-1 if row[name] is None else row[name] for name in ("producer_id", "producer_epoch")]
    assert producer == [int(fields["producerId"]), int(fields["producerEpoch"])]
    assert row["is_transactional"] is (fields["isTransactional"] == "true")
    assert (row["control_type"] is not None) is (fields["isControl"] == "true")


def _assert_record(row: Row, fields: dict[str, str], key: str, payload: str) -> None:
    lower = {name.lower(): value for name, value in fields.items()}  # 2.4 writes keysize, 4.2 keySize
    assert row["record_offset"] == int(lower["offset"])
    assert row["record_timestamp"] == _time(lower.get("createtime", "-1"))
    assert row["key_size"] == int(lower["keysize"])
    assert row["value_size"] == (None if lower["valuesize"] == "-1" else int(lower["valuesize"]))
    assert row["control_type"] == fields.get("endTxnMarker")
    if row["control_type"] is not None:
        assert row["coordinator_epoch"] == int(fields["coordinatorEpoch"])
    elif key.startswith(("Unknown record type", "Error at offset")):
        assert row["problem"]
    elif key.startswith("{"):
        _assert_decoded(row, json.loads(key), None if payload == "<DELETE>" else json.loads(payload))


def _assert_decoded(row: Row, key: Row, payload: Row | None) -> None:
    assert row["problem"] is None
    assert row["record_type"] == int(key["type"])
    assert row["tombstone"] is (payload is None)
    if payload is not None:
        assert row["value_version"] == int(payload["version"])
    if key["type"] not in _COMMITS:
        assert _plain(json.loads(row["key_json"])) == _plain(key["data"])
        if payload is not None:
            assert _plain(json.loads(row["value_json"])) == _plain(payload["data"])
        return
    assert key["data"] == {"group": row["group_id"], "topic": row["topic"], "partition": row["partition"]}
    value = {} if payload is None else payload["data"]
    assert row["committed_offset"] == value.get("offset")
    assert row["metadata"] == value.get("metadata")
    assert row["leader_epoch"] == _present(value.get("leaderEpoch"))
    assert row["topic_id"] == value.get("topicId")
    for ours, kafkas in (("commit_timestamp", "commitTimestamp"), ("expire_timestamp", "expireTimestamp")):
        assert row[ours] == _time(str(value.get(kafkas, -1)))


def _time(milliseconds: str) -> str | None:
    return shown_time(_present(int(milliseconds)))


def _present(number: int | None) -> int | None:
    return None if number == -1 else number


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value with Kafka's names, without fields that are null, absent or -1."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {_camel(name): _plain(each) for name, each in value.items() if each not in (None, -1)}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)
