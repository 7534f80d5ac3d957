"""Files of the layered state tables, written without Spark: by the tasks that replay log partitions, or of a few rows.

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

from offsets_pipeline.delta.data_file import WrittenFile, written_file
from offsets_pipeline.layers import DESCRIBED, LAYERED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, STATE_FILE, effect_rows
from offsets_pipeline.semantics.group_rows import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

_FILE_ROWS = 1_000_000
_SCHEMAS = {each.table.name: to_arrow_schema(each.schema(), timezone="UTC") for each in LAYERED}
_BOUNDED = {each.table.name: each.table.properties["delta.dataSkippingStatsColumns"].split(",") for each in LAYERED}


def write_state_files(
    effects: Iterator[pa.RecordBatch], folders: Mapping[str, str], offsets_partitions: int, log_epoch: int
) -> Iterator[pa.RecordBatch]:
    """Write what is for a layered table to files in its folder, and pass on the rest.

    ``effects`` are those of replaying whole log partitions, EFFECT_SCHEMA, each batch of one kind. What was written
    comes out as effects of the kind STATE_FILE.
    """
    offsets: list[pa.Table] = []
    records: list[pa.Table] = []
    files: list[str] = []

    def write(layered: LayeredTable, rows: pa.Table) -> None:
        name = layered.table.name
        written = layer_files(layered, rows, folders[name], settled=True)
        files.extend(json.dumps({"table": name, "file": asdict(file)}) for file in written)

    for batch in effects:
        kind = batch["kind"][0].as_py() if batch.num_rows else None
        if kind == OFFSET:
            offsets.append(layer_rows(OFFSETS, batch, log_epoch))
            if sum(each.num_rows for each in offsets) >= _FILE_ROWS:
                write(OFFSETS, in_order(OFFSETS, pa.concat_tables(offsets)))
                offsets = []
        elif kind in (GROUP_RECORD, GROUP_COMMIT):
            records.append(layer_rows(RECORDS, batch, log_epoch))
        else:
            yield batch
    if offsets:
        write(OFFSETS, in_order(OFFSETS, pa.concat_tables(offsets)))
    if records:
        of_groups = in_order(RECORDS, pa.concat_tables(records))
        write(RECORDS, of_groups)
        write(DESCRIBED, pa.Table.from_batches(described(of_groups.to_batches(), offsets_partitions)))
    if files:
        yield effect_rows(
            STATE_FILE,
            len(files),
            {"log_partition": pa.repeat(pa.scalar(-1, pa.int32()), len(files)), "state_file": pa.array(files)},
        )


def layer_files(layered: LayeredTable, rows: pa.Table, folder: str, *, settled: bool) -> Iterator[WrittenFile]:
    """Write rows to files of one layer of a table, in its folder; none for no rows.

    They are `in_order`, with the table's columns but for the layer.
    """
    name = layered.table.name
    rows = rows.cast(layer_schema(layered))
    for start in range(0, rows.num_rows, _FILE_ROWS):
        yield written_file(folder, rows.slice(start, _FILE_ROWS), _BOUNDED[name], {"settled": str(settled).lower()})


def in_order(layered: LayeredTable, rows: pa.Table) -> pa.Table:
    """The rows in the order of their keys."""
    ranks = [_ranks(rows[name].combine_chunks()) for name in reversed(layered.key)]
    return rows.take(pa.array(np.lexsort(ranks)))


def state_file(text: str) -> tuple[str, WrittenFile]:
    """The name of the table, and the file: what an effect of the kind STATE_FILE says."""
    said = json.loads(text)
    return said["table"], WrittenFile(**said["file"])


def layer_schema(layered: LayeredTable) -> pa.Schema:
    """A layered table's columns but for the layer."""
    return _SCHEMAS[layered.table.name]


def layer_rows(layered: LayeredTable, effects: pa.RecordBatch | pa.Table, log_epoch: int) -> pa.Table:
    """Effects as rows of a layered table, but for the layer."""
    epoch = pa.repeat(pa.scalar(log_epoch, pa.int32()), effects.num_rows)
    schema = layer_schema(layered)
    return pa.Table.from_arrays(
        [epoch if field.name == "log_epoch" else effects[field.name].cast(field.type) for field in schema],
        schema=schema,
    )


def _ranks(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers that sort as the values do: sorting on several columns of strings takes ten times as long."""
    if not pa.types.is_string(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return np.asarray(ranks[encoded.indices.to_numpy()])
