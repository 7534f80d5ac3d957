"""The replay of `__share_group_state`: rows of the log in, the state of share partitions out (R39).

A fold continues the state of each share partition that exists. It carries this state in `fold_progress`, where it
carries pending commits of other topics, as the snapshot that a coordinator would write there (docs/adr/0043).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.semantics.compaction import replaced
from offsets_pipeline.semantics.effects import Effects, ReplayProgress, within_bounds
from offsets_pipeline.semantics.facts import SHARE_COLUMNS, schema_of
from offsets_pipeline.semantics.log_row import in_log_order, of_each_row
from offsets_pipeline.semantics.share_state import DeliveryState, ShareRecord, read_record, snapshot_record
from offsets_pipeline.semantics.topic_replay import input_rows, pending_records, unfolded_rows

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Int64s
    from offsets_pipeline.semantics.share_state import SharePartition, ShareState

SHARE_SCHEMA = schema_of(SHARE_COLUMNS)


def replay_shares(tables: Iterable[pa.Table], folded_to: Mapping[int, int]) -> Effects:
    """The effects of rows of CONNECT_INPUT_SCHEMA: all unfolded rows of some log partitions, in any order."""
    progress = ReplayProgress(folded_to)
    table = in_log_order(unfolded_rows(tables, progress))
    states: dict[tuple[int, SharePartition], ShareState | None] = {}
    last: dict[tuple[int, SharePartition], int] = {}
    carried = set()
    numbered = zip(_rows(table), table["log_partition"].to_pylist(), table["records"].to_pylist(), strict=True)
    for at, (read, log_partition, records) in enumerate(numbered):
        if isinstance(read, ShareRecord):
            place = log_partition, read.share_partition
            states[place] = read.applied(states.get(place))
            last[place] = at
            if records:
                carried.discard(place)
            else:
                carried.add(place)
        elif read is not None:
            offset, key, value = (table[name][at].as_py() for name in ("record_offset", "key", "value"))
            reason = str(read) if isinstance(read, CorruptRecord) else None
            progress.note_unread(log_partition, offset, key, value, reason)
    alive = {place: state for place, state in states.items() if state is not None}
    changed = {place: state for place, state in states.items() if place not in carried}
    return Effects(
        progress.progress(),
        progress.quarantine(),
        _carried(table.take(pa.array([last[place] for place in alive], pa.int64())), alive),
        share_partitions=_facts(table.take(pa.array([last[place] for place in changed], pa.int64())), changed),
    )


def compact_shares(table: pa.Table, folded_to: Mapping[int, int]) -> pa.Table:
    """Rows of CONNECT_INPUT_SCHEMA without those before a later snapshot or tombstone of their share partition.

    The rows that stay replace the rows that went. ``key`` may be dictionary-encoded.
    """
    table = input_rows(table)
    partition, offset, records = (table[name].to_numpy() for name in ("log_partition", "record_offset", "records"))
    stays = (records > 0) & (offset >= of_each_row(folded_to, partition))
    table, records = table.filter(pa.array(stays)), records[stays].copy()
    by = superseded_by(table)
    removed = by >= 0
    np.add.at(records, by[removed], records[removed])
    return replaced(table, "records", pa.array(records)).filter(pa.array(~removed))


def superseded_by(table: pa.Table) -> Int64s:
    """For each row the last snapshot or tombstone of its share partition, if that is a later row; else -1.

    Records that do not decode, or of unknown types, stay (R6).
    """
    offsets, partitions = table["record_offset"].to_pylist(), table["log_partition"].to_pylist()
    whole: dict[tuple[int, SharePartition], int] = {}
    decoded = []
    for at, read in enumerate(_rows(table)):
        if not isinstance(read, ShareRecord):
            continue
        place = partitions[at], read.share_partition
        decoded.append((at, place))
        if not read.is_update and (place not in whole or offsets[whole[place]] < offsets[at]):
            whole[place] = at
    found = np.full(table.num_rows, -1, dtype=np.int64)
    for at, place in decoded:
        if place in whole and offsets[at] < offsets[whole[place]]:
            found[at] = whole[place]
    return found


def _rows(table: pa.Table) -> Iterable[ShareRecord | CorruptRecord | UnknownRecordType | None]:
    """Each row decoded, or why it does not decode; None for a control record."""
    columns = (table[name].to_pylist() for name in ("key", "value", "control_type"))
    for key, value, control_type in zip(*columns, strict=True):
        if control_type is not None:
            yield None
            continue
        try:
            yield read_record(key, value)
        except (CorruptRecord, UnknownRecordType) as error:
            yield error


def _carried(rows: pa.Table, states: Mapping[tuple[int, SharePartition], ShareState]) -> pa.Table:
    """The states as pending records; ``rows`` are the last records of the share partitions."""
    records = [snapshot_record(share_partition, state) for (_, share_partition), state in states.items()]
    for name, column in (("key", [key for key, _ in records]), ("value", [value for _, value in records])):
        rows = replaced(rows, name, pa.array(column, pa.binary()))
    return pending_records(replaced(rows, "producer_id", pa.nulls(rows.num_rows, pa.int64())))


def _facts(rows: pa.Table, states: Mapping[tuple[int, SharePartition], ShareState | None]) -> pa.Table:
    """The states as facts; ``rows`` are the last records of the share partitions."""
    found = [
        {"log_partition": at, **share_partition._asdict(), **_columns(state), "record_offset": record_offset}
        for ((at, share_partition), state), record_offset in zip(
            states.items(), rows["record_offset"].to_pylist(), strict=True
        )
    ]
    return replaced(pa.Table.from_pylist(found, schema=SHARE_SCHEMA), "record_timestamp", rows["record_timestamp"])


def _columns(state: ShareState | None) -> dict[str, Any]:
    if state is None:
        return {}
    batches = [{**each._asdict(), "delivery_state": _name(each.delivery_state)} for each in state.state_batches]
    times = {name: within_bounds(getattr(state, name)) * 1000 for name in ("create_timestamp", "write_timestamp")}
    return {**state._asdict(), **times, "state_batches": batches}


def _name(delivery_state: int) -> str:
    """The name of a delivery state; of one that a newer Kafka wrote its number."""
    known = delivery_state in DeliveryState._value2member_map_
    return DeliveryState(delivery_state).name if known else str(delivery_state)
