"""`follow`: one streaming query reads a topic, appends its records to the log, and folds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.stream.folding import Folding, nothing
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.fold.maintenance import Upkeep
    from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
    from offsets_pipeline.store.store import Store


def follow(
    ingest: TopicIngest,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool = False,
    on_fold: Callable[[int], object] = nothing,
    on_upkeep: Callable[[Sequence[Upkeep]], object] = nothing,
    warn: Callable[[str], None] = nothing,
) -> int:
    """Read and fold until ``ingest.stop``, or with ``available_now`` until the end of the topic.

    Call ``ingest.prepare`` first. The callbacks are those of `Folding`. Returns the number of records added to the log.
    Raises as ``ingest.run`` and `Folding.fold`.
    """
    store = ingest.store
    _adopt_semantics(store, settings, clock)
    folding = Folding(store, settings, clock, on_fold=on_fold, on_upkeep=on_upkeep, warn=warn)
    try:
        folding.fold(store)  # what an earlier process has appended
        if not available_now:
            folding.start()
        added = ingest.run(available_now=available_now, folding=folding)
        folding.fold(store)
        folding.finish()
    finally:
        folding.close()
    return added


def _adopt_semantics(store: Store, settings: Settings, clock: Clock) -> None:
    """Replay the log if the state is of another coordinator than the store: the broker was upgraded."""
    semantics = store.properties.coordinator_semantics
    if FoldProgress.read(store.table(FOLD_PROGRESS.name)).semantics not in (None, semantics):
        reload_partitions(store, None, settings, clock, semantics)
