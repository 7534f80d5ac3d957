"""The files of the table `log`, read by the tasks themselves.

Spark's own scan makes a row of every record and hands the rows to Python: five times the work of all the rest of a
reload. A task that opens a file itself gets its columns as they lie there, each distinct key once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offsets_pipeline.delta.schemas import LOG, LOG_EPOCH
from offsets_pipeline.errors import UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from offsets_pipeline.store import Store

#: What a fold reads of a file. Files of several writers differ in what they say may be null, and in the width of bytes.
SCHEMA = pa.schema(
    {
        "log_partition": pa.int32(),
        "record_offset": pa.int64(),
        "key": pa.dictionary(pa.int32(), pa.binary()),
        "value": pa.binary(),
        "producer_id": pa.int64(),
        "control_type": pa.string(),
        "backfill": pa.bool_(),
    }
)


@dataclass(frozen=True)
class LogFile:
    """A file of one snapshot of the table `log`, and between which log partitions its records lie."""

    path: str
    size_bytes: int
    first_partition: int
    last_partition: int


def log_files(
    store: Store, partitions: Collection[int] | None = None, log_epoch: int = LOG_EPOCH
) -> list[LogFile] | None:
    """The files that hold these log partitions (None: all) of an epoch now, in the order of their log partitions.

    None where they do not lie on a local disk, which tasks map into memory, or the table has a feature that this
    program does not read.
    """
    table = store.table(LOG.name)
    if "://" in table.folder:
        return None
    try:
        files = table.snapshot().files()
    except UnsupportedTable:
        return None
    found = []
    for file in files:
        first = file.lowest.get("log_partition", 0)
        last = file.highest.get("log_partition", store.properties.offsets_partitions - 1)
        if not file.lowest.get("log_epoch", log_epoch) <= log_epoch <= file.highest.get("log_epoch", log_epoch):
            continue
        if partitions is None or any(first <= partition <= last for partition in partitions):
            found.append(LogFile(f"{table.folder}/{unquote(file.name)}", file.size, first, last))
    return sorted(found, key=lambda file: (file.first_partition, file.last_partition, file.path))


def shared_out(files: Sequence[LogFile], tasks: int) -> list[list[LogFile]]:
    """The files as so many lists of nearly equal size or fewer; neighbours stay together."""
    sizes = [file.size_bytes for file in files]
    share = max(1, sum(sizes) / tasks)
    lists: dict[int, list[LogFile]] = {}
    for file, size, end in zip(files, sizes, accumulate(sizes), strict=True):
        lists.setdefault(int((end - size / 2) / share), []).append(file)
    return list(lists.values())


def read_log_file(path: str, partitions: Collection[int] | None, log_epoch: int = LOG_EPOCH) -> Iterator[pa.Table]:
    """The rows of these log partitions (None: all) of an epoch, a row group at a time, with SCHEMA."""
    with pq.ParquetFile(path, read_dictionary=["key"], memory_map=True) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=[*SCHEMA.names, "log_epoch"], use_threads=False)
            counts = rows["log_epoch"].to_numpy() == log_epoch
            rows = pa.Table.from_arrays([rows[each.name].cast(each.type) for each in SCHEMA], schema=SCHEMA)
            wanted = (
                counts if partitions is None else counts & np.isin(rows["log_partition"].to_numpy(), list(partitions))
            )
            rows = rows if wanted.all() else rows.filter(pa.array(wanted))
            if rows.num_rows:
                yield rows
