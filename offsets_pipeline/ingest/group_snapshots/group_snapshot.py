"""One look at all groups of a cluster by its Admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.ingest.group_snapshots.described_records import classic_values, consumer_values, streams_values
from offsets_pipeline.ingest.group_snapshots.snapshot_log import GroupSnapshot
from offsets_pipeline.kafka.broker.group_offsets_client import fetch_group_offsets
from offsets_pipeline.kafka.broker.groups_client import describe_classic_groups, describe_consumer_groups, list_groups
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsets_pipeline.ingest.group_snapshots.described_records import GroupValues
    from offsets_pipeline.kafka.broker.cluster import Cluster

_SETTLED = frozenset({"Stable", "Empty"})  # between them a classic group rebalances


def take_snapshot(cluster: Cluster, known: Collection[str] = ()) -> dict[str, GroupSnapshot]:
    """All groups of a cluster with committed offsets or members, by group id; share groups have no offsets.

    ``known`` are groups of an earlier snapshot; the cluster is asked for each of them, too. A group that is not listed
    because its coordinator is unavailable is then an error, not a deleted group.

    Needs DESCRIBE on all groups and topics. Raises the errors of `Cluster`.
    """
    listed = {group_id: each for group_id, each in list_groups(cluster).items() if each.group_type != SHARE}
    offsets = fetch_group_offsets(cluster, sorted({*listed, *known}))
    values = _values(cluster, {group_id: each.group_type for group_id, each in listed.items()})
    found = {
        group_id: GroupSnapshot(each.group_type, offsets[group_id], values.get(group_id))
        for group_id, each in listed.items()
    }
    for group_id in known:
        if group_id not in listed and offsets[group_id]:  # created after the listing
            found[group_id] = GroupSnapshot(CLASSIC, offsets[group_id], None)
    return found


def _values(cluster: Cluster, group_types: dict[str, str]) -> dict[str, GroupValues]:
    """The values of the groups' records, without groups that rebalance or are gone meanwhile."""
    # no request describes the group with the empty id, which is always simple
    values: dict[str, GroupValues] = {"": {}}
    classic = describe_classic_groups(
        cluster, [group_id for group_id, kind in group_types.items() if kind == CLASSIC and group_id]
    )
    values |= {group_id: classic_values(each) for group_id, each in classic.items() if each.group_state in _SETTLED}
    consumer = describe_consumer_groups(
        cluster, [group_id for group_id, kind in group_types.items() if kind == CONSUMER]
    )
    topics = cluster.topics(None).values() if any(each.members for each in consumer.values()) else ()
    counts = {each.topic_id: len(each.partitions) for each in topics if each.topic_id}
    values |= {group_id: consumer_values(each, counts) for group_id, each in consumer.items()}
    return values | {group_id: streams_values() for group_id, kind in group_types.items() if kind == STREAMS}
