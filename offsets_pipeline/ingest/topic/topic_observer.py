"""Reports of an ingest of a topic while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.ingest.topic.topic_progress import TopicProgress


class TopicObserver:
    """Callbacks of `TopicIngest`; the methods of this base class do nothing."""

    def connected(self, address: str, cluster_id: str | None) -> None:
        """A broker answered at this address; the id is None if the cluster has none."""

    def missing(self, address: str) -> None:
        """The cluster at this address does not have the topic yet: the ingest waits for it."""

    def planned(self, progress: TopicProgress) -> None:
        """A reading starts or restarts."""

    def landed(self, records: int) -> None:
        """A batch appended this number of records to the log."""

    def looked(self, progress: TopicProgress) -> None:
        """A look at the topic succeeded."""

    def unreachable(self, error: OffsetsError) -> None:
        """A request about the topic failed, and is retried."""

    def transaction_ended(self, log_partition: int) -> None:
        """A transaction that a warning reported as open has ended."""

    def warned(self, text: str) -> None:
        """A warning of one line."""
