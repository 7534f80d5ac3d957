"""Writing to a table on the condition that nobody else did meanwhile."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.retry import CONFLICTS
from offsets_pipeline.written_file import APPLICATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

    from offsets_pipeline.store import Store


class GuardedWriter:
    """Writes to one table, if nobody else wrote to it through such a writer since this one was made.

    Two plain appends never conflict in Delta. So each write carries the next number of one application's transactions:
    of two with the same number Delta refuses the later one, or skips it in silence, and then the commit's own note is
    not there. What merely rearranges rows, as OPTIMIZE does, carries none, and is nobody in this sense.
    """

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table
        self.version, last = store.version_and_transaction(table, APPLICATION)  # as of which the table is to be read
        self.number = last + 1  # of the application's transaction that a write carries

    def append(self, rows: DataFrame) -> int:
        """Append rows that have the table's columns; returns how many.

        Raises WriteConflict when somebody else wrote meanwhile: then nothing was written.
        """
        return int(self._write(rows.write.mode("append"))["operationMetrics"]["numOutputRows"])

    def overwrite(self, rows: DataFrame, where: str | None = None) -> None:
        """Put these rows in place of all, or of those to which the predicate ``where`` applies.

        Raises WriteConflict as `append` does.
        """
        self._write(_overwriting(rows, where))

    def overwrite_unguarded(self, rows: DataFrame, where: str | None = None) -> None:
        """The same, but what others append meanwhile stays beside these rows.

        Raises WriteConflict when somebody removed rows meanwhile: then nothing was written.
        """
        try:
            self._store.save(_overwriting(rows, where).format("delta"), self._table)
        except CONFLICTS as conflict:
            raise WriteConflict(self._overtaken) from conflict

    def _write(self, writer: DataFrameWriter) -> dict[str, Any]:
        note = uuid.uuid4().hex
        writer = (
            writer.format("delta")
            .option("txnAppId", APPLICATION)
            .option("txnVersion", self.number)
            .option("userMetadata", note)
        )
        try:
            self._store.save(writer, self._table)
        except CONFLICTS as conflict:
            raise WriteConflict(self._overtaken) from conflict
        for commit in self._store.commits(self._table, self.version + 1):
            if commit.get("userMetadata") == note:
                return commit
        raise WriteConflict(self._overtaken)

    @property
    def _overtaken(self) -> str:
        return f"another writer wrote to {self._store.table_name(self._table)}"


def _overwriting(rows: DataFrame, where: str | None) -> DataFrameWriter:
    writer = rows.write.mode("overwrite")
    return writer if where is None else writer.option("replaceWhere", where)
