"""Segment files decoded: each record with the header of its batch, and the bytes that are no record in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.errors import NoSuchPath
from offsets_pipeline.kafka.record.batch import ATTRIBUTE_DELETE_HORIZON, LOG_OVERHEAD
from offsets_pipeline.kafka.record.columns import BATCH_HEADER, MESSAGE_HEADER, headers_at
from offsets_pipeline.kafka.record.compression import CODEC_MASK, Codec
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.questions.history.decoded_log import decoded_log
from offsets_pipeline.questions.history.history_schemas import LOG_RECORDS
from offsets_pipeline.store.delta.filesystems import opened
from offsets_pipeline.store.delta.s3_errors import storage_failed

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.scan import Run

    Row = dict[str, Any]

#: Of each batch, and of each message of formats 0 and 1.
_OF_BATCH = (
    *("position", "size", "magic", "codec", "crc", "base_offset", "last_offset", "record_count"),
    *("partition_leader_epoch", "base_sequence", "max_timestamp", "delete_horizon"),
)
_OF_STORE = ("log_partition", "log_incarnation", "outcome")  # a file has none of these
_OF_RECORD = tuple(name for name in LOG_RECORDS.arrow_schema().names if name not in _OF_STORE)
_OF_BYTES = ("is_transactional", "coordinator_epoch", "key_size", "value_size")
#: The file, the header of the batch, and the columns of LOG_RECORDS.
DUMP_COLUMNS = ("file", *_OF_BATCH, *_OF_BYTES, *_OF_RECORD)
#: Those that a table shows.
SHORT_COLUMNS = (
    *("position", "record_offset", "record_timestamp", "producer_id", "control_type", "record_name", "tombstone"),
    *("group_id", "topic", "partition", "committed_offset", "member_id", "value_json", "problem"),
)
_CODECS = {each.value: each.name.lower() for each in Codec}
_MAX_RECORDS = 65_536
# control record value: version int16, coordinator epoch int32
_COORDINATOR_EPOCH = slice(2, 6)


def dump_files(paths: Iterable[str], columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the rows of `dumped` with some of DUMP_COLUMNS, file by file.

    Raises NoSuchPath, NotASegment, StorageFailed.
    """
    for path in paths:
        try:
            with opened(path) as data:
                for row in dumped(data, path):
                    row["file"] = path
                    yield [row.get(name) for name in columns]
        except FileNotFoundError:
            raise NoSuchPath(f"no such file: {path}") from None
        except OSError as error:
            raise storage_failed(f"cannot read {path}", path, error, "name segment files") from error


def dumped(data: memoryview, source: str) -> Iterator[Row]:
    """Yield a row for each record, for each batch without records, and for damaged bytes, in the order of the file.

    A row has some of DUMP_COLUMNS; ``problem`` says why bytes are damaged, or why a record does not decode. ``source``
    names the file in errors. Raises NotASegment.
    """
    reader = read_segment(data, source=source, max_records=_MAX_RECORDS)
    shown = 0
    for run, parts in reader.runs():
        batches = _batches(data, run)
        rows = [row for records in parts for row in _records(records, batches)]
        damaged = {each.position: each for each in reader.damage[shown:]}
        shown = len(reader.damage)
        rest = {*run.positions} - {row["position"] for row in rows} - damaged.keys()
        rows += [row for row in batches.to_pylist() if row["position"] in rest]
        rows += [{"position": each.position, "size": each.length, "problem": each.reason} for each in damaged.values()]
        yield from sorted(rows, key=lambda row: int(row["position"]))
    torn = reader.torn_tail
    if torn is not None:
        yield {"position": torn.position, "size": torn.length, "problem": f"incomplete last batch: {torn.reason}"}


def _batches(data: memoryview, run: Run) -> pa.Table:
    """The columns _OF_BATCH that the batches of a run have."""
    if not run.positions:
        return pa.table({})
    headers = headers_at(data, np.array(run.positions, np.int64), MESSAGE_HEADER if run.messages else BATCH_HEADER)
    of = {name: headers[name].astype(np.int64) for name in headers.dtype.names or ()}
    columns = {
        "position": run.positions,
        "size": of["batch_length"] + LOG_OVERHEAD,
        "magic": of["magic"],
        "codec": [_CODECS.get(each) for each in (of["attributes"] & CODEC_MASK).tolist()],
        "crc": of["crc"],
    }
    if run.messages:
        records = [len(each) for each in run.messages]
        first = [each[0].offset for each in run.messages]
        return pa.table({**columns, "base_offset": first, "last_offset": of["base_offset"], "record_count": records})
    no_horizon = of["attributes"] & ATTRIBUTE_DELETE_HORIZON == 0
    columns |= {name: of[name] for name in ("base_offset", "record_count", "partition_leader_epoch", "base_sequence")}
    columns |= {
        "last_offset": of["base_offset"] + of["last_offset_delta"],
        "max_timestamp": _times(pa.array(of["max_timestamp"], mask=of["max_timestamp"] < 0)),
        # a cleaner puts it in the place of the base timestamp
        "delete_horizon": _times(pa.array(of["base_timestamp"], mask=no_horizon)),
    }
    return pa.table(columns)


def _records(records: pa.RecordBatch, batches: pa.Table) -> list[Row]:
    """The records of some batches, with the columns of these."""
    decoded = decoded_log(pa.Table.from_batches([records])).select(_OF_RECORD)
    # R2: record offsets increase, from batch to batch too
    index = np.searchsorted(batches["base_offset"].to_numpy(), records["record_offset"].to_numpy(), side="right") - 1
    control_value = pc.if_else(pc.is_valid(records["control_type"]), records["value"], None)
    columns = {
        **_columns_of(batches.take(pa.array(index))),
        **_columns_of(decoded),
        "is_transactional": records["is_transactional"],
        "coordinator_epoch": [
            None if each is None else int.from_bytes(each[_COORDINATOR_EPOCH], "big", signed=True)
            for each in control_value.to_pylist()
        ],
        "key_size": pc.binary_length(records["key"]),
        "value_size": pc.binary_length(records["value"]),
    }
    rows: list[Row] = pa.table(columns).to_pylist()
    return rows


def _columns_of(table: pa.Table) -> dict[str, Any]:
    """The columns of a table by name, times as text."""
    return {
        name: _times(column) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _times(times: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Times as text; whole numbers are milliseconds since 1970."""
    milliseconds = times.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return [shown_time(each) for each in milliseconds]
