"""The end of a streaming fold, without Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.warnings import Warnings
from offsets_pipeline.errors import DamagedTable, OffsetsError, StorageFailed, StreamFailed
from offsets_pipeline.fold.stream import fold_stream
from offsets_pipeline.fold.stream.fold_stream import FoldStream
from offsets_pipeline.ingest.batch_barrier import BatchBarrier
from tests.unit.coordinator.states import refusal

if TYPE_CHECKING:
    from collections.abc import Callable


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


class Streaming:
    """A stream whose query failed with these errors, what it asks of its folding, and its warnings."""

    def __init__(self, start: Callable[[], Any], *failures: OffsetsError) -> None:
        self.asked: list[str] = []
        self.warnings: list[str] = []
        self.at_warning: Callable[[], object] = lambda: None
        self.barrier = BatchBarrier()
        self.checkpoint = tempfile.TemporaryDirectory()
        self.stream = FoldStream(
            cast("Any", Query(fails=True)),
            start,
            list(failures),
            self.barrier,
            cast("Any", self),
            self.checkpoint,
            Warnings(self.warn, "the fold goes on"),
        )

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self.at_warning()

    def finish(self) -> None:
        self.asked.append("finish")

    def close(self) -> None:
        self.asked.append("close")

    def has_checkpoint(self) -> bool:
        return Path(self.checkpoint.name).exists()


def never_started() -> Any:  # noqa: ANN401 - of Spark
    pytest.fail("the query is started again")


def test_a_stop_while_the_query_is_started_again_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_stream, "_RETRY_SECONDS", 0.0)

    def stopped_meanwhile() -> Any:  # noqa: ANN401 - of Spark
        streaming.stream.stop()
        assert streaming.asked == ["finish", "close"]
        return Query(fails=False)

    streaming = Streaming(stopped_meanwhile, StorageFailed("away"))
    ended = Thread(target=streaming.stream.await_end, daemon=True)
    ended.start()
    ended.join(10)
    assert not ended.is_alive()
    assert streaming.warnings == ["away; trying again"]
    assert streaming.asked == ["finish", "close"] * 2
    assert not streaming.has_checkpoint()


def test_a_stop_before_the_query_is_started_again_leaves_it_ended() -> None:
    streaming = Streaming(never_started, StorageFailed("away"))
    streaming.at_warning = streaming.stream.stop
    streaming.stream.await_end()
    assert streaming.asked == ["finish", "close", "close"]


def test_an_error_that_lasts_ends_the_stream_and_is_raised() -> None:
    streaming = Streaming(never_started, StorageFailed("away"), DamagedTable("a file is missing"))
    assert streaming.has_checkpoint()
    with pytest.raises(DamagedTable, match="a file is missing"):
        streaming.stream.await_end()
    assert (streaming.warnings, streaming.asked) == ([], ["close"])
    assert not streaming.has_checkpoint()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_error_of_the_query_itself_is_raised_unless_the_stream_was_stopped(*, is_stopped: bool) -> None:
    streaming = Streaming(never_started)
    if is_stopped:
        streaming.barrier.close()
    assert refusal(streaming.stream.await_end) == ("" if is_stopped else "StreamFailed")
    assert streaming.asked == (["finish", "close"] if is_stopped else ["close"])


def test_an_error_counts_for_the_query_that_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_stream, "_RETRY_SECONDS", 0.0)
    started: list[Query] = []

    def start() -> Any:  # noqa: ANN401 - of Spark
        assert not started
        started.append(Query(fails=True))
        return started[0]

    with pytest.raises(StreamFailed, match=r"^the fold of the log stopped: .*the query failed"):
        Streaming(start, StorageFailed("away")).stream.await_end()
