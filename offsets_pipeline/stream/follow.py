"""The ingest of a topic and the fold of its log, as two streaming queries in one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pyspark import inheritable_thread_target

from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.state.fold import reload_partitions
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.stream.fold_stream import start_fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
    from offsets_pipeline.maintenance import Upkeep
    from offsets_pipeline.store import Store


class Follower:
    """Runs the ingest and the fold together: the end of one ends the other."""

    def __init__(self, ingest: TopicIngest, settings: Settings, clock: Clock) -> None:
        self._ingest = ingest
        self._settings = settings
        self._clock = clock
        self._stopped = threading.Event()
        self._errors: list[Exception] = []

    def stop(self) -> None:
        """End `run` soon. Do not call it from a signal handler: `run` may hold the lock that it takes."""
        self._ingest.stop()
        self._stopped.set()

    def run(
        self,
        on_batch: Callable[[int, int], None],
        warn: Callable[[str], None] | None = None,
        on_upkeep: Callable[[Sequence[Upkeep]], None] | None = None,
        *,
        available_now: bool = False,
    ) -> int:
        """Read and fold until `stop`, or with ``available_now`` until the end of the topic; returns the records read.

        Call `TopicIngest.prepare` first. ``on_batch``, ``warn`` and ``on_upkeep`` are those of `start_fold`. Raises the
        first error of either query.
        """
        store, reading = self._ingest.store, None
        self._adopt_semantics(store)
        if available_now:
            self._ingest.run(available_now=True)
            if self._stopped.is_set():
                return self._ingest.added
        fold = start_fold(
            store,
            self._settings,
            self._clock,
            available_now=available_now,
            on_batch=on_batch,
            on_upkeep=on_upkeep,
            warn=warn,
        )
        if not available_now:
            reading = self._beside(store.spark, "ingest-topic", self._ingest.run)
        folding = self._beside(store.spark, "fold", fold.await_end)
        try:
            self._stopped.wait()
        finally:
            if reading is not None:
                self._ingest.stop()
                reading.join()  # then its last records are in the log
            fold.stop()
            folding.join()
        if self._errors:
            raise self._errors[0]
        return self._ingest.added

    def _adopt_semantics(self, store: Store) -> None:
        """Replay the log if the state is of another coordinator than the store: the broker was upgraded."""
        semantics = store.properties.coordinator_semantics
        if FoldProgress.read(store.table(FOLD_PROGRESS.name)).semantics not in (None, semantics):
            reload_partitions(store, None, self._settings, self._clock, semantics)

    def _beside(self, spark: SparkSession, name: str, run: Callable[[], Any]) -> threading.Thread:
        def until_it_ends() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001 - the waiting thread raises it
                self._errors.append(error)
            finally:
                self._stopped.set()

        thread = threading.Thread(target=inheritable_thread_target(spark)(until_it_ends), name=name)
        thread.start()
        return thread
