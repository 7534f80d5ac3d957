"""Tables of a few rows: read and replaced as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.delta.snapshot import conformed

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.delta.table_folder import TableFolder


class SmallTable:
    """The rows of a small table, and the right to replace them unless another writer does first."""

    def __init__(self, folder: TableFolder) -> None:
        self._folder = folder
        self._seen = folder.snapshot()
        self.rows = self._seen.rows()

    def replace(self, rows: pa.Table) -> None:
        """Commit these rows in place of all.

        Adds columns that a table of an older version lacks. Raises WriteConflict if another writer committed since this
        object was made; then nothing is written. Raises as `TableFolder.commit`.
        """
        add = [self._folder.write_file(conformed(rows, self._folder.table))] if rows.num_rows else []
        self._folder.commit(
            add,
            self._seen.files(),
            seen=self._seen,
            advance={APPLICATION: self._seen.transaction(APPLICATION) + 1},
            metadata=self._folder.with_missing_columns(self._seen),
        )
