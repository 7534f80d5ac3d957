"""Groups for tests of the coordinator: classic ones stored by it, others appended as another program writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import LogPartition
from tests.member_bytes import subscription
from tests.unit.coordinator.stores import append_rows

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 3


def stable(group_id: str = "g", *topics: str, generation: int = 3, protocol_type: str = "consumer") -> GroupMetadata:
    """A classic group with a dynamic member "m" and a static one, "s" as instance "i"."""
    sent = subscription(*(topics or ("t",)))
    return GroupMetadata(
        group_id,
        protocol_type,
        generation,
        "range",
        "m",
        (
            ClassicMember("m", subscription=sent),
            ClassicMember("s", group_instance_id="i", subscription=sent),
        ),
    )


def of_kip848(
    store: Path, group_id: str, *, epoch: int = 5, topics: tuple[str, ...] = ("t",), classic: bool = False
) -> None:
    """A consumer group with a member "m" in an epoch, which may speak the classic protocol."""
    log = LogPartition(partition_for(group_id, PARTITIONS))
    speaks_classic = {"session_timeout_ms": 1, "supported_protocols": []} if classic else None
    log.group(5, group_id, "m", subscribed_topic_names=list(topics), classic_member_metadata=speaks_classic)
    log.group(3, group_id, epoch=epoch)
    log.group(6, group_id, assignment_epoch=epoch)
    log.group(8, group_id, "m", member_epoch=epoch)
    append_rows(store, log.rows, PARTITIONS)


def emptied_kip848(store: Path, group_id: str) -> None:
    """That group, when its member has left."""
    log = LogPartition(partition_for(group_id, PARTITIONS))
    for record_type in (8, 7, 5):
        log.group_tombstone(record_type, group_id, "m")
    append_rows(store, log.rows, PARTITIONS)


def share_group(store: Path, group_id: str) -> None:
    """A share group without members."""
    log = LogPartition(partition_for(group_id, PARTITIONS))
    log.group(11, group_id, epoch=1)
    append_rows(store, log.rows, PARTITIONS)
