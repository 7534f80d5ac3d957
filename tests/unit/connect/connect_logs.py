"""Rows of topics of Kafka Connect for tests: written by hand, or read from the log of a recorded worker."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.fold.state.merge_on_read import CONNECT
from offsets_pipeline.fold.state.published_rows import connect_rows
from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA
from offsets_pipeline.semantics.topic_state import ConnectRow
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.logs import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.effects import Effects

WITH_ANSWERS = sorted(path.parent.name for path in CAPTURES.glob("*connect*/rest.json"))
TOPICS = {
    "connect-offsets": TopicKind.CONNECT_OFFSETS,
    "connect-status": TopicKind.CONNECT_STATUS,
    "connect-configs": TopicKind.CONNECT_CONFIGS,
}


@cache
def capture_rows(capture: str, topic: str) -> list[ConnectRow]:
    """The rows of the log of a worker's topic, by log partition and record offset."""
    rows: list[ConnectRow] = []
    properties = StoreProperties(MIRRORED, 1, topic_kind=TOPICS[topic])
    for path in sorted((CAPTURES / capture / "segments").glob(f"{topic}-*/*.log")):
        log_partition = int(path.parent.name.rpartition("-")[2])
        reader = read_segment(memoryview(path.read_bytes()), source=path.name)
        for batch in reader.batches():
            columns = log_columns(batch, log_partition, path.name, properties)
            at = columns.schema.get_field_index("record_timestamp")
            columns = columns.set_column(at, "record_timestamp", columns["record_timestamp"].cast(pa.int64()))
            rows += map(ConnectRow._make, zip(*(columns[name].to_pylist() for name in ConnectRow._fields), strict=True))
    return sorted(rows, key=itemgetter(0, 1))


def answers(capture: str, connectors: str) -> dict[str, list[Any]]:
    """The last answer of the worker about the offsets of each connector that the pattern names."""
    found: dict[str, list[Any]] = {}
    for each in json.loads((CAPTURES / capture / "rest.json").read_text()):
        path = re.fullmatch(rf"/connectors/({connectors})/offsets", each.get("path", ""))
        if path and each["method"] == "GET":
            found[path[1]] = in_order(each["answer"]["offsets"])
    return found


def in_order(offsets: Iterable[Any]) -> list[Any]:
    """Offsets of an answer in an order of their own: a worker lists them in the order of a hash."""
    return sorted(offsets, key=lambda each: json.dumps(each, sort_keys=True))


def input_rows(rows: Iterable[ConnectRow]) -> pa.Table:
    """Rows as CONNECT_INPUT_SCHEMA."""
    dicts = [{**row._asdict(), "records": 1} for row in rows]
    return pa.Table.from_pylist(dicts, schema=CONNECT_INPUT_SCHEMA)


class Folded:
    """The state after batches of effects, merged as the state table merges its rows."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, str], dict[str, Any]] = {}
        self.pending: dict[int, list[dict[str, Any]]] = {}
        self.folded_to: dict[int, int] = {}
        self.count = 0

    def take(self, effects: Effects) -> None:
        """Merge the effects of one replay."""
        for row in _rows(effects.connect_records, "record_timestamp"):
            known = self.records.setdefault((row["log_partition"], row["raw_key"]), row)
            if row["record_offset"] > known["record_offset"]:
                self.records[row["log_partition"], row["raw_key"]] = row
        for at, each in effects.progress.items():
            self.folded_to[at] = each.folded_to
            self.pending[at] = []
            self.count += each.records
        for row in _rows(effects.pending, "commit_timestamp"):
            self.pending[row["log_partition"]].append(row)

    def carried(self) -> pa.Table:
        """Pending records, as the next replay takes them in."""
        rows = [
            {**row, "record_timestamp": row["commit_timestamp"], "records": 0}
            for of_partition in self.pending.values()
            for row in of_partition
        ]
        return pa.Table.from_pylist(rows, schema=CONNECT_INPUT_SCHEMA)

    def comparable(self) -> tuple[object, ...]:
        """What a specification's state can be compared with."""
        return (
            {
                at: (row["value"], row["record_timestamp"], row["record_offset"], row["connector"])
                for at, row in self.records.items()
            },
            {
                at: sorted((row["producer_id"], row["key"], row["record_offset"]) for row in of_partition)
                for at, of_partition in self.pending.items()
                if of_partition
            },
            self.folded_to,
        )

    def offsets(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of the view `connector_offsets`, by connector."""
        rows = pa.Table.from_pylist(list(self.records.values()), schema=CONNECT.row_schema())
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in connect_rows("connector_offsets", [(TopicKind.CONNECT_OFFSETS, rows)]).to_pylist():
            found[row["connector"]].append(row)
        return found


def _rows(rows: pa.Table, timestamp: str) -> list[dict[str, Any]]:
    """Rows with the timestamp as microseconds."""
    at = rows.schema.get_field_index(timestamp)
    found: list[dict[str, Any]] = rows.set_column(at, timestamp, rows[timestamp].cast(pa.int64())).to_pylist()
    return found
