"""The replay of one log partition of a topic of Kafka Connect, in plain Python: the specification (R30)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.semantics.connect_keys import ConnectKey, parse_connect_key, parse_connect_value
from offsets_pipeline.semantics.log_row import ABORT, COMMIT

if TYPE_CHECKING:
    from offsets_pipeline.semantics.topic_kind import TopicKind


class ConnectRow(NamedTuple):
    """One record of the log, as `LogRow`, and its timestamp in microseconds since 1970."""

    log_partition: int
    record_offset: int
    record_timestamp: int | None
    key: bytes | None
    value: bytes | None
    producer_id: int | None = None
    control_type: str | None = None


class ConnectRecord(NamedTuple):
    """A visible or pending record; a ``value`` of None is a tombstone."""

    key: ConnectKey
    value: str | None
    record_timestamp: int | None
    record_offset: int


class TopicPartitionState:
    """State of one log partition after the rows replayed so far.

    ``records`` has the visible record with the highest record offset of each raw key (R10), and ``pending`` the last
    record of each raw key in each open transaction, by producer id (R11).
    """

    def __init__(self, kind: TopicKind) -> None:
        self.end = 0
        self.records: dict[str, ConnectRecord] = {}
        self.pending: dict[int, dict[str, ConnectRecord]] = defaultdict(dict)
        self.quarantined: dict[int, str] = {}
        self.unknown_records = 0
        self._kind = kind

    def replay(self, row: ConnectRow) -> None:
        """Apply the next row of the log; skips a row that was applied before (R15)."""
        if row.record_offset < self.end:
            return
        self.end = row.record_offset + 1
        if row.control_type is not None:
            if row.producer_id is not None and row.control_type in (COMMIT, ABORT):
                self._end_transaction(row.producer_id, row.control_type)
            return
        try:
            key = parse_connect_key(row.key, self._kind)
            value = parse_connect_value(row.value)
        except CorruptRecord as corrupt:
            self.quarantined[row.record_offset] = str(corrupt)  # R6
            return
        if key is None or row.key is None:
            self.unknown_records += 1  # R6
            return
        record = ConnectRecord(key, value, row.record_timestamp, row.record_offset)
        # R30: a tombstone in a transaction waits for the marker as a value does
        target = self.records if row.producer_id is None else self.pending[row.producer_id]
        target[row.key.decode()] = record

    def _end_transaction(self, producer_id: int, control_type: str) -> None:
        for raw_key, record in self.pending.pop(producer_id, {}).items():
            known = self.records.get(raw_key)
            if control_type == COMMIT and (known is None or known.record_offset < record.record_offset):
                self.records[raw_key] = record
