"""Reads the state tables without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import Clock, SystemClock
from offsets_pipeline.common.config.sections import QuestionSettings
from offsets_pipeline.fold.state.current import CurrentState, current_state
from offsets_pipeline.fold.state.fold_progress import FoldProgress, belonging
from offsets_pipeline.fold.state.merge_on_read import state_tables_of
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, TOPICS
from offsets_pipeline.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.relations import Relations


class StateReader(StoreSnapshot):
    """A snapshot of a store, for questions about its state.

    Questions answer as of the end of the log: `current` folds up to ``at_most`` records that are not folded yet.
    """

    def __init__(
        self,
        location: str,
        at_most: int = QuestionSettings().max_unfolded_records,
        clock: Clock = SystemClock(),  # noqa: B008 - immutable
    ) -> None:
        """Open the store in a folder. Raises as `StoreSnapshot`."""
        super().__init__(location, clock)
        self._at_most = at_most

    @cached_property
    def relations(self) -> Relations:
        """The tables of the store for the program's own queries in DuckDB's SQL."""
        from offsets_pipeline.questions.query.relations import Relations  # noqa: PLC0415 - importing DuckDB takes 0.1 s

        return Relations(self)

    @cached_property
    def current(self) -> CurrentState:
        """The state as of the end of the log. Fixes the versions of the tables that it consists of.

        Raises NoSuchTable for a store without state tables.
        """
        tables = state_tables_of(self.properties.topic_kind)
        facts = [each.name for each in tables]
        published = [each.published.name for each in tables if each.published is not None]
        while True:
            progress = self._progress()
            self._pin_log()  # not before: the progress may name a newer incarnation of the log
            self._pin(facts, progress)
            self._pin(published, progress)  # not before: see `belonging`
            if self._progress().says_same(progress):  # so nothing has dropped facts of theirs meanwhile
                self.versions[FOLD_PROGRESS.name] = progress.snapshot
                return current_state(self.table, self.properties, self._at_most)

    def _pin(self, names: Sequence[str], progress: FoldProgress) -> None:
        """Take the versions of these tables that belong to the progress: all at once, as object stores are slow."""
        with ThreadPoolExecutor(max_workers=max(1, len(names))) as threads:
            found = threads.map(lambda name: belonging(self.folder_of(name), progress, is_named=True), names)
            self.versions.update(zip(names, found, strict=True))

    def topic_names(self) -> dict[str, str]:
        """Return the names of topic ids (R35)."""
        stored = {row["topic_id"]: row["topic"] for row in self.table(TOPICS.name).rows().to_pylist()}
        unfolded = self.current.topics.items()
        return stored | {topic_id: min(name, stored.get(topic_id, name)) for topic_id, name in unfolded}

    def _progress(self) -> FoldProgress:
        return FoldProgress.read(self.folder_of(FOLD_PROGRESS.name))
