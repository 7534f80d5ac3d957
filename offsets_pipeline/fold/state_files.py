"""Files of the state tables' settled layers, written by the tasks that replay log partitions.

A task replays whole log partitions, so it has all of each identity and of each group: what it brings forth is sorted
and written where it arises, and nothing but the files' names goes to the driver, for one commit a table to take in.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from offsets_pipeline.file_commit import WrittenFile, written_file
from offsets_pipeline.fold.described import described
from offsets_pipeline.fold.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, STATE_FILE, effect_rows
from offsets_pipeline.layers import DESCRIBED, LAYERED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.tables import LOG_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

_FILE_ROWS = 1_000_000
_SCHEMAS = {each.table.name: to_arrow_schema(each.schema(), timezone="UTC") for each in LAYERED}
_BOUNDED = {each.table.name: each.table.properties["delta.dataSkippingStatsColumns"].split(",") for each in LAYERED}
_SETTLED = {"settled": "true"}


def write_state_files(
    effects: Iterator[pa.RecordBatch], folders: Mapping[str, str], offsets_partitions: int
) -> Iterator[pa.RecordBatch]:
    """Write what is for a layered table to files in its folder, and pass on the rest.

    ``effects`` are those of replaying whole log partitions, EFFECT_SCHEMA, each batch of one kind. What was written
    comes out as effects of the kind STATE_FILE.
    """
    offsets: list[pa.RecordBatch] = []
    records: list[pa.RecordBatch] = []
    files: list[str] = []

    def write(layered: LayeredTable, batches: Sequence[pa.RecordBatch]) -> None:
        name = layered.table.name
        written = _written(layered, pa.Table.from_batches(batches), folders[name])
        files.extend(json.dumps({"table": name, "file": asdict(file)}) for file in written)

    for batch in effects:
        kind = batch["kind"][0].as_py() if batch.num_rows else None
        if kind == OFFSET:
            offsets.append(_of_table(batch, OFFSETS))
            if sum(each.num_rows for each in offsets) >= _FILE_ROWS:
                write(OFFSETS, offsets)
                offsets = []
        elif kind in (GROUP_RECORD, GROUP_COMMIT):
            records.append(_of_table(batch, RECORDS))
        else:
            yield batch
    if offsets:
        write(OFFSETS, offsets)
    if records:
        of_groups = _sorted(pa.Table.from_batches(records), RECORDS.key)
        write(RECORDS, of_groups.to_batches())
        write(DESCRIBED, list(described(of_groups.to_batches(), offsets_partitions)))
    if files:
        yield effect_rows(
            STATE_FILE,
            len(files),
            {"log_partition": pa.repeat(pa.scalar(-1, pa.int32()), len(files)), "state_file": pa.array(files)},
        )


def file_on_top(layered: LayeredTable, rows: pa.Table, folder: str, *, settled: bool) -> WrittenFile:
    """Write the rows, few, to a file in a layered table's folder; they have the table's columns but for the layer."""
    rows = _sorted(rows.cast(_SCHEMAS[layered.table.name]), layered.key)
    return written_file(folder, rows, _BOUNDED[layered.table.name], {"settled": str(settled).lower()})


def state_file(text: str) -> tuple[str, WrittenFile]:
    """The name of the table, and the file: what an effect of the kind STATE_FILE says."""
    said = json.loads(text)
    return said["table"], WrittenFile(**said["file"])


def _of_table(batch: pa.RecordBatch, layered: LayeredTable) -> pa.RecordBatch:
    schema = _SCHEMAS[layered.table.name]
    epoch = pa.repeat(pa.scalar(LOG_EPOCH, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays(
        [epoch if field.name == "log_epoch" else batch[field.name].cast(field.type) for field in schema], schema=schema
    )


def _written(layered: LayeredTable, rows: pa.Table, folder: str) -> Iterator[WrittenFile]:
    """Write the rows, sorted, to files of the settled layer."""
    rows = _sorted(rows, layered.key)
    for start in range(0, rows.num_rows, _FILE_ROWS):
        yield written_file(folder, rows.slice(start, _FILE_ROWS), _BOUNDED[layered.table.name], _SETTLED)


def _sorted(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.take(pa.array(np.lexsort([_ranks(rows[name].combine_chunks()) for name in reversed(key)])))


def _ranks(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers that sort as the values do: sorting on several columns of strings takes ten times as long."""
    if not pa.types.is_string(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return np.asarray(ranks[encoded.indices.to_numpy()])
