"""Select the replay and the writer of the state by the kind of topic in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.state.changes import write_changes, write_topic_changes
from offsets_pipeline.state.replay_start import ReplayStart, TopicStart, pending_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from offsets_pipeline.delta.properties import StoreProperties
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.state.changes import Changes, StateFolders
    from offsets_pipeline.state.fold_progress import PartitionProgress


def replay_start(
    properties: StoreProperties,
    offsets_partitions: int,
    semantics: CoordinatorSemantics,
    progress: Mapping[int, PartitionProgress],
) -> ReplayStart | TopicStart:
    """Return the start of a replay that continues these log partitions."""
    folded_to = {at: each.folded_to for at, each in progress.items()}
    if properties.topic_kind.is_connect:
        return TopicStart(properties.topic_kind, folded_to, pending_rows(progress, TopicStart.schema))
    return ReplayStart(offsets_partitions, semantics, folded_to, pending_rows(progress))


def writer(properties: StoreProperties, folders: StateFolders) -> Callable[[Iterator[pa.RecordBatch]], Changes]:
    """Return a function that writes the changes of a replay, in a task or in the driver."""
    write = write_topic_changes if properties.topic_kind.is_connect else write_changes
    return lambda effects: write(effects, folders)
