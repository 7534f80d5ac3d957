"""Appending to the table `log`: one writer at a time, noticed by the others."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.retry import CONFLICTS
from offsets_pipeline.tables import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsets_pipeline.store import Store

_APPLICATION = "offsets-append"
_RECENT = 100  # commits that others may have made between an append and the look whether it is there


class LogAppender:
    """Appends on the condition that nobody else appended since it was made.

    Plain appends of two writers never conflict in Delta, and would write the same records twice. So each append
    carries an application transaction whose version is that of the table it started from: of two with the same
    number Delta refuses the later one, or skips it in silence, and then the commit's own note is not there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = store.version(LOG.name) + 1

    def append(self, rows: DataFrame) -> int:
        """Append rows with the columns of the table `log`; returns how many.

        Raises WriteConflict when somebody else appended meanwhile: then nothing was written.
        """
        note = uuid.uuid4().hex
        writer = (
            rows.select(LOG.names())
            .write.format("delta")
            .mode("append")
            .option("txnAppId", _APPLICATION)
            .option("txnVersion", self._version)
            .option("userMetadata", note)
        )
        try:
            self._store.save(writer, LOG.name)
        except CONFLICTS as conflict:
            raise WriteConflict("another writer appended to the log") from conflict
        commit = self._store.delta(LOG.name).history(_RECENT).where(F.col("userMetadata") == note).first()
        if commit is None:
            raise WriteConflict("another writer appended to the log")
        return int(commit["operationMetrics"]["numOutputRows"])
