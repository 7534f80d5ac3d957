"""Writing to a table on the condition that nobody else did meanwhile."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.retry import CONFLICTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store import Store


class GuardedWriter:
    """Writes to one table, if nobody else wrote to it through such a writer since this one was made.

    Two plain appends never conflict in Delta. So each write carries the next number of one application's transactions:
    of two with the same number Delta refuses the later one, or skips it in silence, and then the commit's own note is
    not there. What merely rearranges rows, as OPTIMIZE does, carries none, and is nobody in this sense.

    ``version`` is that as of which the table is to be read, ``number`` that of the transaction which a write carries.
    ``files`` writes under the same condition what lies in files already; None where only a DataFrame can be written.
    """

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._table = table.name
        # where files can be taken in; open from here on, so that Delta refuses it too where the table itself changed
        self.files = FileCommit.begin(store, table)
        if self.files is None:
            self.version, last = store.version_and_transaction(table.name, APPLICATION)
            self.number = last + 1
        else:
            self.version, self.number = self.files.version, self.files.number

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
            raise WriteConflict(_overtaken(self._store, self._table)) from conflict
        for commit in self._store.commits(self._table, self.version + 1):
            if commit.get("userMetadata") == note:
                return commit
        raise WriteConflict(_overtaken(self._store, self._table))


def overwrite_unguarded(store: Store, table: Table, rows: DataFrame, where: str | None = None) -> None:
    """Put rows in place of all of a table's, or of those to which ``where`` applies; no guarded writer need notice.

    Raises WriteConflict when somebody wrote meanwhile: then nothing was written.
    """
    _save(store, table, _overwriting(rows, where))


def rearrange(store: Store, table: Table, rows: DataFrame) -> None:
    """Put rows that say the same in place of all of a table's; no guarded writer need notice.

    What others append meanwhile stays beside them. Raises WriteConflict when somebody removed rows meanwhile: then
    nothing was written.
    """
    _save(store, table, _overwriting(rows, None).option("dataChange", "false"))


def _save(store: Store, table: Table, writer: DataFrameWriter) -> None:
    try:
        store.save(writer.format("delta"), table.name)
    except CONFLICTS as conflict:
        raise WriteConflict(_overtaken(store, table.name)) from conflict


def _overtaken(store: Store, table: str) -> str:
    return f"another writer wrote to {store.table_name(table)}"


def _overwriting(rows: DataFrame, where: str | None) -> DataFrameWriter:
    writer = rows.write.mode("overwrite")
    return writer if where is None else writer.option("replaceWhere", where)
