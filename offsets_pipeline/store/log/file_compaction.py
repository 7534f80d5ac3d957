"""Compacts small files of the table `log` to larger ones, in the order of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.semantics.compaction import gathered
from offsets_pipeline.semantics.log_row import in_log_order
from offsets_pipeline.store.log.file_writer import SCHEMA, LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.log_scan import LogScan

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.table_folder import TableFolder

#: Size of the rows that are sorted together in memory: enough for the rows of many small files.
SORT_BYTES = 64 * 1024 * 1024


def rewritten(folder: TableFolder, compression: str, files: list[DataFile]) -> list[DataFile]:
    """Write the rows of these files to new ones with this codec of Parquet; returns the new files.

    Raises DamagedTable if a file is missing or corrupt, OSError if the storage fails; then no new file is left.
    """
    writer = LogFileWriter(LogFilePlace(folder.folder, 0, compression=compression))
    try:
        for rows in gathered(LogScan(folder, SCHEMA).rows(files), size_bytes=SORT_BYTES):
            write_in_order(writer, rows)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def write_in_order(writer: LogFileWriter, rows: pa.Table) -> None:
    """Write the rows in the order of log partition and record offset."""
    for of_partition in log_partitions_of(in_log_order(rows).combine_chunks()):
        writer.write(of_partition)
