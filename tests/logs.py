"""Rows of the log for tests: written by hand, a record at a time, or read from a recorded broker's log."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES
from offsets_pipeline.kafka.record.schema import ArrayOf, Field, Sized, StructOf
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.kafka.record.wire import UUID
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow

if TYPE_CHECKING:
    from collections.abc import Iterable

CAPTURES = Path(__file__).parent / "data" / "captures"
CAPTURE_NAMES = sorted(path.parent.name for path in CAPTURES.glob("*/oracle.json"))
#: Captures whose records come through the same code as those of another capture: other codecs of record batches, other
#: points in time of one script. Tests of bytes, replays and answers without Spark and brokers have all of them.
ALIKE = (
    "4.2.0-connect-altered",
    "4.2.0-connect-running",
    "4.2.0-connect-workerdown",
    "4.2.0-expiry-before",
    "4.2.0-expiry-mid",
    "4.2.0-old-codec1",
    "4.2.0-old-codec2",
    "4.2.0-old-codec3",
)
NO_TOPIC_ID = "A" * 22
#: Brokers before 1.0 lose the protocol type of an empty group when they load it.
LOST_BY_BROKER = {"0.10.2.2-old": ["'o-empty' protocol type: broker '', ours 'consumer'"]}

Identity = tuple[str, str, int]


def commit_key(group: str, topic: str = "t", partition: int = 0, *, version: int = 1) -> bytes:
    """The key of an offset commit; the two versions name the same identity (R9)."""
    return encode_key(DecodedKey(version, {"group": group, "topic": topic, "partition": partition}))


def commit_value(offset: int, version: int = 3, **fields: object) -> bytes:
    """The value of an offset commit."""
    given = {"offset": offset, "metadata": "", "commit_timestamp": 1_700_000_000_000, **fields}
    return encode_value(1, DecodedValue(version, given))


def group_key(record_type: int, group: str, name: str = "") -> bytes:
    """The key of a group's record; ``name`` is the member id or the regular expression."""
    fields = {field.name: name for field in MESSAGE_TYPES[record_type].key.fields}
    return encode_key(DecodedKey(record_type, fields | dict.fromkeys(("group", "group_id"), group)))


def group_value(record_type: int, version: int = 0, **fields: object) -> bytes:
    """The value of a group's record; fields that are not given are 0, "", [] or null."""
    schema = MESSAGE_TYPES[record_type].values[0]
    nothing = {field.name: _nothing(field) for field in schema.fields if field.in_version(version)}
    return encode_value(record_type, DecodedValue(version, nothing | fields))


def _nothing(field: Field) -> object:
    if field.nullable or field.tag is not None or field.sentinel is not None:
        return None
    if isinstance(field.type, ArrayOf):
        return []
    if isinstance(field.type, StructOf):
        return {part.name: _nothing(part) for part in field.type.fields}
    return {Sized.STRING: "", Sized.BYTES: b"", UUID: NO_TOPIC_ID}.get(field.type, 0)


class LogPartition:
    """The rows of one log partition, appended one by one; each call returns the record offset it gave."""

    def __init__(self, log_partition: int = 0, start: int = 0) -> None:
        self.log_partition = log_partition
        self.next_offset = start
        self.rows: list[LogRow] = []

    def record(
        self, key: bytes | None, value: bytes | None, producer_id: int | None = None, control_type: str | None = None
    ) -> int:
        """Append any row."""
        self.rows.append(LogRow(self.log_partition, self.next_offset, key, value, producer_id, control_type))
        self.next_offset += 1
        return self.rows[-1].record_offset

    def skip(self, offsets: int) -> None:
        """Leave a gap, as compaction does."""
        self.next_offset += offsets

    def commit(
        self,
        identity: Identity,
        offset: int,
        producer_id: int | None = None,
        *,
        key_version: int = 1,
        version: int | None = None,
        **fields: object,
    ) -> int:
        """Append an offset commit."""
        if version is None:
            version = 3 if key_version else 0
        value = commit_value(offset, version, **fields)
        return self.record(commit_key(*identity, version=key_version), value, producer_id)

    def delete(self, identity: Identity, producer_id: int | None = None, *, key_version: int = 1) -> int:
        """Append a tombstone of an offset."""
        return self.record(commit_key(*identity, version=key_version), None, producer_id)

    def group(self, record_type: int, group: str, name: str = "", version: int = 0, **fields: object) -> int:
        """Append a value of a group's record."""
        return self.record(group_key(record_type, group, name), group_value(record_type, version, **fields))

    def group_tombstone(self, record_type: int, group: str, name: str = "") -> int:
        """Append a tombstone of a group's record."""
        return self.record(group_key(record_type, group, name), None)

    def marker(self, producer_id: int, control_type: str) -> int:
        """Append a control record."""
        return self.record(b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00", producer_id, control_type)

    def end_commit(self, producer_id: int) -> int:
        """Append a COMMIT marker."""
        return self.marker(producer_id, COMMIT)

    def end_abort(self, producer_id: int) -> int:
        """Append an ABORT marker."""
        return self.marker(producer_id, ABORT)


def input_table(rows: Iterable[LogRow], *, carried: bool = False) -> pa.Table:
    """Rows as the fold takes them in."""
    rows = list(rows)
    columns = [
        *(pa.array([getattr(row, field.name) for row in rows], field.type) for field in list(INPUT_SCHEMA)[:-1]),
        pa.array([0 if carried else 1] * len(rows), pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=INPUT_SCHEMA)


@cache
def capture_rows(name: str) -> dict[int, list[LogRow]]:
    """The rows of a recorded log by log partition, in record-offset order."""
    return segment_rows(CAPTURES / name / "segments")


def segment_rows(folder: Path, log_partition: int | str = "*") -> dict[int, list[LogRow]]:
    """The rows of a broker's log by log partition, of all or of one, in record-offset order."""
    rows: dict[int, list[LogRow]] = {}
    for path in sorted(folder.glob(f"__consumer_offsets-{log_partition}/*.log")):
        at = int(path.parent.name.rpartition("-")[2])
        reader = read_segment(path.read_bytes(), source=str(path))
        for batch in reader.batches():
            rows.setdefault(at, []).extend(
                LogRow(
                    at,
                    row["record_offset"],
                    row["key"],
                    row["value"],
                    row["producer_id"],
                    row["control_type"],
                )
                for row in batch.to_pylist()
            )
        assert not reader.damage
    return rows


@cache
def oracle(name: str) -> dict[str, Any]:
    """The broker's answers, from after a reload of this log if they were recorded."""
    restarted = CAPTURES / name / "oracle_after_restart.json"
    return _json(restarted if restarted.exists() else CAPTURES / name / "oracle.json")


@cache
def capture_partitions(name: str) -> int:
    """R1's n of the broker that wrote the log."""
    return int(_json(CAPTURES / name / "oracle.json")["broker"]["config"]["offsets.topic.num.partitions"])


def capture_semantics(name: str) -> CoordinatorSemantics:
    """The semantics of the coordinator of the broker that wrote the log: of brokers up to 3.9 the classic ones."""
    return CoordinatorSemantics.MODERN if int(name.partition(".")[0]) >= 4 else CoordinatorSemantics.CLASSIC


def all_captures(semantics: CoordinatorSemantics) -> tuple[int, list[LogRow]]:
    """All recorded logs of these semantics as one log, side by side; the number of its log partitions, and its rows.

    Most groups are in other log partitions than R1 says.
    """
    rows, log_partitions = [], 0
    for name in CAPTURE_NAMES:
        if capture_semantics(name) == semantics:
            for at, of_one in capture_rows(name).items():
                rows += [row._replace(log_partition=log_partitions + at) for row in of_one]
            log_partitions += capture_partitions(name)
    return log_partitions, rows


def in_batches(rows: Iterable[LogRow], count: int) -> list[list[LogRow]]:
    """The rows in batches that each have a part of every log partition."""
    batches: list[list[LogRow]] = [[] for _ in range(count)]
    by_partition: dict[int, list[LogRow]] = {}
    for row in rows:
        by_partition.setdefault(row.log_partition, []).append(row)
    for of_one in by_partition.values():
        for number, row in enumerate(of_one):
            batches[number * count // len(of_one)].append(row)
    return batches


def _json(path: Path) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(path.read_text())
    return answers
