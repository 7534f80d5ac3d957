"""Commits the completed batches of a query's checkpoint to a group of an owned store, each batch once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offsets_pipeline.errors import InvalidRequest, NoSuchTopic
from offsets_pipeline.spark_query.kafka_source_offsets import BatchMark, commits_of, refuse_shared_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.coordinator.commits import FetchedOffset
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.partition_state import TopicPartition
    from offsets_pipeline.spark_query.kafka_source_offsets import CompletedBatch, SourceOffsets
    from offsets_pipeline.spark_query.query_checkpoint import QueryCheckpoint


@dataclass(frozen=True)
class ImportedBatches:
    """The result of an import: ids of the batches that it committed, and how many batches the group had before."""

    batch_ids: tuple[int, ...]
    known: int


def import_checkpoint(
    checkpoint: QueryCheckpoint, coordinator: Coordinator, group_id: str, sources: Collection[str] = ()
) -> ImportedBatches:
    """Commit the end offsets of a checkpoint's completed batches, oldest first, each with the batch's time.

    Skips batches that an earlier import, or an OffsetsListener, has committed. It knows them by the metadata of the
    group's offsets.

    Args:
        checkpoint: the query's checkpoint, of `read_checkpoint`.
        coordinator: an open coordinator that has loaded the group's log partition.
        group_id: the group; it has no members.
        sources: names or numbers of the Kafka sources to import; empty: all.

    Raises the errors of `Coordinator.commit_offsets`; StoreMismatch if two of the sources read one topic;
    NoSuchTopic if the query has no Kafka source; InvalidRequest for a source that it does not have.
    """
    batches = _of_sources(checkpoint, sources)
    known = _Known(checkpoint.query_id, coordinator.fetch_offsets(group_id))
    imported = []
    for batch in batches:
        new = known.without(batch)
        if any(new.offsets.values()):
            for offsets in commits_of(new, checkpoint.query_id):
                coordinator.commit_offsets(group_id, offsets)
            imported.append(batch.batch_id)
    return ImportedBatches(tuple(imported), len(batches) - len(imported))


def _of_sources(checkpoint: QueryCheckpoint, sources: Collection[str]) -> list[CompletedBatch]:
    """The batches, with offsets of the chosen sources only."""
    found = sorted({source for batch in checkpoint.batches for source in batch.offsets})
    at = f"the query of checkpoint {checkpoint.location}"
    if checkpoint.batches and not found:
        raise NoSuchTopic(f"{at} has no Kafka source; name the checkpoint of a query that reads Kafka")
    for source in sources:
        if found and source not in found:
            raise InvalidRequest(f"{at} has no Kafka source {source}; its Kafka sources are {', '.join(found)}")
    chosen = []
    for batch in checkpoint.batches:
        offsets = {source: each for source, each in batch.offsets.items() if not sources or source in sources}
        refuse_shared_topics(offsets, at, "import each source into a group of its own with --source")
        chosen.append(replace(batch, offsets=offsets))
    return chosen


class _Known:
    """The batches that a group's offsets show as imported."""

    def __init__(self, query_id: str | None, offsets: Mapping[TopicPartition, FetchedOffset]) -> None:
        marks = {where: BatchMark.parse(each.metadata) for where, each in offsets.items()}
        self._by_partition = {
            where: mark for where, mark in marks.items() if mark is not None and mark.query_id == query_id
        }
        self._by_source: dict[str | None, int] = defaultdict(lambda: -1)
        for mark in self._by_partition.values():
            self._by_source[mark.source] = max(self._by_source[mark.source], mark.batch_id)

    def without(self, batch: CompletedBatch) -> CompletedBatch:
        """The batch without the partitions for which the group has this batch or a later one."""
        return replace(
            batch, offsets={source: self._new(source, each, batch.batch_id) for source, each in batch.offsets.items()}
        )

    def _new(self, source: str, offsets: SourceOffsets, batch_id: int) -> SourceOffsets:
        # a batch may be imported in part: of each partition the last one counts, or else of its source
        of_source = max(self._by_source[source], self._by_source[None])
        return {
            where: offset
            for where, offset in offsets.items()
            if batch_id > (self._by_partition[where].batch_id if where in self._by_partition else of_source)
        }
