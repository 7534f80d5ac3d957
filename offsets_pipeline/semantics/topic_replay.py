"""The replay of topics of Kafka Connect over columns: rows of the log in, facts about the state out (R30).

It holds all rows that `compact_topic` leaves: the last ones of each raw key. `TopicPartitionState` specifies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA
from offsets_pipeline.semantics.compaction import distinct, last_of_each, paired, replaced
from offsets_pipeline.semantics.connect_keys import ConnectKey, parse_connect_key, parse_connect_value, state_value
from offsets_pipeline.semantics.effects import Effects, ReplayProgress
from offsets_pipeline.semantics.facts import CONNECT_COLUMNS, schema_of
from offsets_pipeline.semantics.log_row import as_bools, codes_of, of_each_row, of_partitions
from offsets_pipeline.semantics.topic_state import ConnectRow
from offsets_pipeline.semantics.transactions import COMMITTED, OPEN, endings, endings_within

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.semantics.topic_kind import TopicKind

Parsed = TypeVar("Parsed")

#: INPUT_SCHEMA with the record's timestamp, by which a view chooses among raw keys of one identity.
CONNECT_INPUT_SCHEMA = INPUT_SCHEMA.append(pa.field("record_timestamp", pa.timestamp("us", tz="UTC")))
CONNECT_SCHEMA = schema_of(CONNECT_COLUMNS)
_UNREAD = ["log_partition", "record_offset", "key", "value"]


def replay_topic(tables: Iterable[pa.Table], kind: TopicKind, folded_to: Mapping[int, int]) -> Effects:
    """The effects of rows of CONNECT_INPUT_SCHEMA: all unfolded rows of some log partitions, in any order."""
    progress = ReplayProgress(folded_to)
    table = unfolded_rows(tables, progress).combine_chunks()
    outcome = endings(table).outcome
    data = as_bools(table["control_type"].is_null())
    table, outcome = table.filter(pa.array(data)), outcome[data]
    parsed = ParsedRows(table, kind)
    unread = np.flatnonzero(~parsed.known)
    for row, at in zip(table.select(_UNREAD).take(pa.array(unread)).to_pylist(), unread.tolist(), strict=True):
        progress.note_unread(**row, reason=parsed.reason(at))
    plain = as_bools(table["producer_id"].is_null())
    offset = table["record_offset"].to_numpy()
    key = paired(parsed.key_code, table["log_partition"].to_numpy())
    visible = np.flatnonzero(parsed.known & (plain | (outcome == COMMITTED)))
    last = visible[last_of_each(key[visible], offset[visible])]  # R10
    waiting = np.flatnonzero(parsed.known & ~plain & (outcome == OPEN))
    transaction = paired(key[waiting], codes_of(table["producer_id"].take(pa.array(waiting))))
    return Effects(
        progress.progress(),
        progress.quarantine(),
        pending_records(table.take(pa.array(waiting[last_of_each(transaction, offset[waiting])]))),
        connect_records=_records(table.take(pa.array(last)), parsed.taken(last)),
    )


def unfolded_rows(tables: Iterable[pa.Table], progress: ReplayProgress) -> pa.Table:
    """The rows of CONNECT_INPUT_SCHEMA that are not folded; pending ones only of log partitions with new records."""
    unfolded = [progress.unfolded(table) for table in tables]
    return of_partitions(pa.concat_tables([CONNECT_INPUT_SCHEMA.empty_table(), *unfolded]), progress.records)


def input_rows(rows: pa.Table) -> pa.Table:
    """The columns of CONNECT_INPUT_SCHEMA; ``key`` may be dictionary-encoded."""
    columns = [rows[each.name].cast(each.type) for each in CONNECT_INPUT_SCHEMA]
    return pa.table(columns, schema=CONNECT_INPUT_SCHEMA)


def compact_topic(table: pa.Table, kind: TopicKind, folded_to: Mapping[int, int]) -> pa.Table:
    """Rows of CONNECT_INPUT_SCHEMA without those that other rows make superfluous, as `compact_early` for commits.

    Of the visible records the last of each raw key stays. A record is visible if it is plain, or if its COMMIT marker
    is surely among these rows; it then becomes plain. The rows that stay replace the rows that went. ``key`` may be
    dictionary-encoded.
    """
    table = input_rows(table).combine_chunks()
    partition, offset, records = (table[name].to_numpy() for name in ("log_partition", "record_offset", "records"))
    counts = records > 0
    folded = counts & (offset < of_each_row(folded_to, partition))
    parsed = ParsedRows(table, kind)
    outcome = endings_within(table).outcome
    data = as_bools(table["control_type"].is_null())
    plain = as_bools(table["producer_id"].is_null())
    removable = data & counts & ~folded & parsed.known & (plain | (outcome != OPEN))
    visible = np.flatnonzero(removable & (plain | (outcome == COMMITTED)))
    removed = removable.copy()
    removed[visible[last_of_each(paired(parsed.key_code[visible], partition[visible]), offset[visible])]] = False
    stays = ~folded & ~removed
    stands_for = records.copy()
    for at in np.unique(partition[removed]).tolist():  # the marker of an aborted record stays, or a visible record
        first = np.flatnonzero(stays & counts & (partition == at))[0]
        stands_for[first] += records[removed & (partition == at)].sum()
    committed = pa.array(removable & (outcome == COMMITTED))
    producers = pc.if_else(committed, pa.scalar(None, pa.int64()), table["producer_id"])
    table = replaced(replaced(table, "records", pa.array(stands_for)), "producer_id", producers)
    return table.filter(pa.array(stays))


def connect_rows(table: pa.Table) -> list[ConnectRow]:
    """The rows of a table with these columns, in its order."""
    timestamps = table["record_timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = [timestamps if name == "record_timestamp" else table[name] for name in ConnectRow._fields]
    return list(map(ConnectRow._make, zip(*(column.to_pylist() for column in columns), strict=True)))


class ParsedRows:
    """The parsed keys and values of rows. Parses each distinct key and each distinct value once."""

    def __init__(self, table: pa.Table, kind: TopicKind) -> None:
        keys, self.key_code = distinct(table["key"])
        values, self._value_code = distinct(table["value"])
        self._keys = [_parsed_or_corrupt(lambda raw: parse_connect_key(raw, kind), each) for each in keys.to_pylist()]
        self._values = [_parsed_or_corrupt(parse_connect_value, each) for each in values.to_pylist()]
        is_known = np.array([isinstance(each, ConnectKey) for each in self._keys], dtype=np.bool_)
        decodes = np.array([not isinstance(each, CorruptRecord) for each in self._values], dtype=np.bool_)
        #: Whether each row is a record that decodes, of a known type.
        self.known: Bools = is_known[self.key_code] & decodes[self._value_code]

    def reason(self, row: int) -> str | None:
        """Why the row is corrupt (R6); None for a record of an unknown type."""
        found = (self._keys[self.key_code[row]], self._values[self._value_code[row]])
        return next((str(each) for each in found if isinstance(each, CorruptRecord)), None)

    def taken(self, rows: Int64s) -> list[tuple[ConnectKey, str | None]]:
        """Keys and values of some rows, all known."""
        found = []
        for row in rows.tolist():
            key, value = self._keys[self.key_code[row]], self._values[self._value_code[row]]
            assert isinstance(key, ConnectKey)  # noqa: S101 - see `known`
            assert not isinstance(value, CorruptRecord)  # noqa: S101
            found.append((key, value))
        return found


def _parsed_or_corrupt(parse: Callable[[bytes | None], Parsed], raw: bytes | None) -> Parsed | CorruptRecord:
    try:
        return parse(raw)
    except CorruptRecord as corrupt:
        return corrupt


def _records(rows: pa.Table, parsed: list[tuple[ConnectKey, str | None]]) -> pa.Table:
    keys = [key for key, _ in parsed]
    columns = {
        "raw_key": rows["key"].cast(pa.string()),
        "record_type": [key.record_type.value for key in keys],
        "connector": [key.connector for key in keys],
        "source_partition": [key.source_partition for key in keys],
        "task": [key.task for key in keys],
        "value": [state_value(value) for _, value in parsed],
    }
    columns |= {name: rows[name] for name in ("log_partition", "record_timestamp", "record_offset")}
    return pa.table(columns, schema=CONNECT_SCHEMA)


def pending_records(rows: pa.Table) -> pa.Table:
    """Records that a fold carries, in columns of pending commits (R11)."""
    columns = {
        "commit_timestamp": rows["record_timestamp"],
        "position": rows["record_offset"],
        "misplaced": pa.repeat(pa.scalar(value=False), rows.num_rows),
    }
    taken = ("log_partition", "producer_id", "record_offset", "key", "value")
    return pa.table({name: rows[name] for name in taken} | columns)
