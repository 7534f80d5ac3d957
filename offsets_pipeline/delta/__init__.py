"""Delta tables: creating, reading, committing and compacting them. The one package that does so, without Spark."""

from offsets_pipeline.delta.data_file import APPLICATION, COMPRESSION, FAST, DataFile
from offsets_pipeline.delta.reader import quoted
from offsets_pipeline.delta.snapshot import Snapshot
from offsets_pipeline.delta.table_folder import TableFolder

__all__ = ["APPLICATION", "COMPRESSION", "FAST", "DataFile", "Snapshot", "TableFolder", "quoted"]
