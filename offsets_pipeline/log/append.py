"""Appending to the table `log`: one writer at a time, noticed by the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.log.file_writer import LogFilePlace
from offsets_pipeline.tables import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.store import Store
    from offsets_pipeline.written_file import WrittenFile


class LogAppender:
    """Appends on the condition that nobody else appended since it was made.

    Two that append the same records at once would write them twice.
    """

    def __init__(self, store: Store) -> None:
        self._guarded = GuardedWriter(store, LOG.name)
        # open while the tasks write: then Delta refuses the commit also where somebody changes the table meanwhile
        self._of_files = FileCommit.begin(store, LOG)

    def place(self, clock: Clock) -> LogFilePlace | None:
        """Where tasks may write files for `append_files`; None where only a DataFrame can be appended."""
        return None if self._of_files is None else LogFilePlace(self._of_files.folder, clock.now_ms())

    def append_files(self, files: Sequence[WrittenFile]) -> int:
        """Append what tasks wrote to files at `place`, all of it or nothing; returns how many records.

        Raises WriteConflict when somebody else appended meanwhile: then the files belong to nobody, and VACUUM
        removes them.
        """
        assert self._of_files is not None  # noqa: S101 - there is a place
        return self._of_files.append(files)

    def append(self, rows: DataFrame) -> int:
        """Append rows with the columns of the table `log`; returns how many.

        Raises WriteConflict when somebody else appended meanwhile: then nothing was written.
        """
        return self._guarded.append(rows.select(LOG.names()))
