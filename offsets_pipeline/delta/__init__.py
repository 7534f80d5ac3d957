"""Delta tables: creating, reading, committing and compacting them. The one package that does so, without Spark."""

from offsets_pipeline.delta.data_file import APPLICATION, COMPRESSION, FAST, AddFile
from offsets_pipeline.delta.reader import StoredFile, quoted
from offsets_pipeline.delta.snapshot import Snapshot, query
from offsets_pipeline.delta.table_folder import TableFolder

__all__ = ["APPLICATION", "COMPRESSION", "FAST", "AddFile", "Snapshot", "StoredFile", "TableFolder", "query", "quoted"]
