"""A streaming source of Spark whose offsets are versions of the table `log`; its batches have no rows.

A fold needs to know only that the log has a new version: it reads the files of the log itself, from the version that
`fold_progress` names (fold/state/fold.py). So a checkpoint of such a query holds nothing that a fold
needs (docs/adr/0039).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from offsets_pipeline.store.store import Store

FORMAT = "offsets_log_versions"
#: A new version of `log_partitions` may make another incarnation of the log count.
_TABLES = (LOG, LOG_PARTITIONS)


def log_versions(store: Store) -> dict[str, str]:
    """Return the options of the source for a store."""
    return {table.name: store.arrow_folder(table.name) for table in _TABLES}


class LogVersionSource(DataSource):
    """The source; its options are those of `log_versions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the batches, which have no rows."""
        return "version bigint"

    def streamReader(self, schema: object) -> LogVersionReader:  # noqa: ARG002, N802 - Spark's
        """Return the reader."""
        return LogVersionReader({table.name: self.options[table.name] for table in _TABLES})


class LogVersionReader(DataSourceStreamReader):
    """Offsets of the source: versions by the names of the tables."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders
        self._tables = [TableFolder(folders[table.name], table) for table in _TABLES]

    def __reduce__(self) -> tuple[Any, ...]:
        return LogVersionReader, (self._folders,)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """Return an offset before all versions: the first batch folds what the state lacks."""
        return {table.name: -1 for table in _TABLES}

    def latestOffset(  # noqa: N802 - Spark's
        self,
        start: dict[str, int] | None = None,  # noqa: ARG002 - before Spark 4.2 there are no arguments
        limit: ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, int]:
        """Return the newest versions. Raises as `TableFolder.snapshot`."""
        return {each.table.name: each.snapshot().version for each in self._tables}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return one task without rows."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002
        """Return no rows."""
        return iter(())
