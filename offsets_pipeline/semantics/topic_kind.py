"""The kind of topic that a log holds. The kinds share the log and its fold, and differ in keys and values."""

from __future__ import annotations

from enum import StrEnum


class TopicKind(StrEnum):
    """Kind of topic. CONNECT is the log of an owned store: it has the records of the three topics of a worker.

    SHARE_STATE is `__share_group_state`, the log of Kafka's share coordinator.
    """

    CONSUMER_OFFSETS = "consumer-offsets"
    CONNECT_OFFSETS = "connect-offsets"
    CONNECT_STATUS = "connect-status"
    CONNECT_CONFIGS = "connect-configs"
    CONNECT = "connect"
    SHARE_STATE = "share-group-state"

    @property
    def has_groups(self) -> bool:
        """Whether a group coordinator writes such topics."""
        return self is TopicKind.CONSUMER_OFFSETS

    @property
    def is_connect(self) -> bool:
        """Whether Kafka Connect writes such topics."""
        return self.value.startswith("connect")
