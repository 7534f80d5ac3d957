"""The end of a streaming fold, without Spark."""

from __future__ import annotations

import tempfile
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.warnings import Warnings
from offsets_pipeline.errors import OffsetsError, StorageFailed
from offsets_pipeline.fold.stream import fold_stream
from offsets_pipeline.fold.stream.fold_stream import FoldStream
from offsets_pipeline.ingest.batch_barrier import BatchBarrier

if TYPE_CHECKING:
    import pytest


class Query:
    """A query of Spark: it ends with a failure, or when it is stopped."""

    def __init__(self, *, fails: bool) -> None:
        self._fails, self._stopped = fails, Event()

    def awaitTermination(self) -> None:  # noqa: N802 - as Spark's
        if self._fails:
            raise StreamingQueryException("the query failed")
        self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


class NoFolding:
    def finish(self) -> None:
        """Nothing is left to fold."""

    close = finish


def test_a_stop_while_the_query_is_started_again_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_stream, "_RETRY_SECONDS", 0.0)

    def stopped_meanwhile() -> Any:  # noqa: ANN401 - of Spark
        stream.stop()
        return Query(fails=False)

    failures, warnings = list[OffsetsError]([StorageFailed("away")]), list[str]()
    stream = FoldStream(
        cast("Any", Query(fails=True)),
        stopped_meanwhile,
        failures,
        BatchBarrier(),
        cast("Any", NoFolding()),
        tempfile.TemporaryDirectory(),
        Warnings(warnings.append, "the fold goes on"),
    )
    ended = Thread(target=stream.await_end, daemon=True)
    ended.start()
    ended.join(10)
    assert not ended.is_alive()
    assert warnings == ["away; trying again"]
