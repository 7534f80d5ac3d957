"""Random logs, each beside the replay of Kafka 4.2's own coordinator: the same groups and offsets, and what expires."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES, OFFSET_COMMIT_TYPES
from offsets_pipeline.semantics.log_row import COMMIT, LogRow
from offsets_pipeline.semantics.partition_state import replay
from offsets_pipeline.semantics.retention import Retention, forecast, holdings_of
from tests.random_logs import LEGAL, random_log

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.semantics.partition_state import PartitionState
    from tests.kafka.brokers import KafkaJvm

_RUNTIME = "org.apache.kafka.coordinator.common.runtime"
_END = 2**50  # of a log: a snapshot there has all records
_LATEST = 2**63 - 1  # a fetch of offsets as of here asks for stable ones
_UNSTABLE_OFFSET_COMMIT = 88
#: Times long before and long after any time at which an offset expires now.
_TIMES_MS = (0, 1_700_000_000_000, 2**62)


class Listed(NamedTuple):
    """A group as it is listed, and its offsets: (topic, partition) to offset, leader epoch and metadata."""

    group_type: str
    state: str
    protocol_type: str
    offsets: dict[tuple[str, int], tuple[int, int, str]]
    unstable: set[tuple[str, int]]


class Removed(NamedTuple):
    """What a run of the expiry removes: offsets by group, topic and partition; groups."""

    offsets: set[tuple[str, str, int]]
    groups: set[str]


class KafkaCoordinator:
    """The coordinator of Kafka 4.2 without a broker: it replays records, and answers requests."""

    def __init__(self, kafka: KafkaJvm) -> None:
        self._jvm = jvm = kafka.gateway.jvm
        self._kafka = jvm.org.apache.kafka
        self._group = self._kafka.coordinator.group
        self._serde = self._group.GroupCoordinatorRecordSerde()
        no_metrics = jvm.com.yammer.metrics.core.MetricsRegistry(), self._kafka.common.metrics.Metrics()
        self._metrics = self._group.metrics.GroupCoordinatorMetrics(*no_metrics)
        self._epoch = kafka.gateway.new_array(jvm.short, 2)  # Py4J has no short of its own
        self._epoch[0], self._epoch[1] = -1, 0
        self._idle = kafka.gateway.new_array(jvm.java.lang.Class, 2)
        self._idle[0], self._idle[1] = (self._class(f"{_RUNTIME}.Coordinator{each}") for each in ("Timer", "Executor"))

    def answers(self, rows: Iterable[LogRow]) -> tuple[dict[str, Listed], Removed]:
        """The listed groups after a replay of these rows, by group id, and what expires then."""
        snapshots, shard = self._shard()
        results = self._kafka.common.requests.TransactionResult
        for row in rows:
            if row.control_type is not None:
                result = results.COMMIT if row.control_type == COMMIT else results.ABORT
                shard.replayEndTransactionMarker(row.producer_id, self._epoch[1], result)
                continue
            record = self._serde.deserialize(self._wrapped(row.key), self._wrapped(row.value))
            producer_id, epoch = (-1, self._epoch[0]) if row.producer_id is None else (row.producer_id, self._epoch[1])
            shard.replay(row.record_offset, producer_id, epoch, record)
        snapshots.idempotentCreateSnapshot(_END)
        none = self._jvm.java.util.ArrayList()
        listed = {each.groupId(): each for each in shard.listGroups(none, none, _END)}
        found = {
            group_id: Listed(
                each.groupType(),
                each.groupState(),
                each.protocolType(),
                {
                    where: (offset.committedOffset(), offset.committedLeaderEpoch(), offset.metadata())
                    for where, offset in self._offsets(shard, group_id, _END)
                },
                {
                    where
                    for where, offset in self._offsets(shard, group_id, _LATEST)
                    if offset.errorCode() == _UNSTABLE_OFFSET_COMMIT
                },
            )
            for group_id, each in listed.items()
        }
        return found, self._removed(shard)

    def _offsets(self, shard: Any, group_id: str, as_of: int) -> Iterator[tuple[tuple[str, int], Any]]:  # noqa: ANN401 - of the JVM
        data = self._kafka.common.message.OffsetFetchRequestData
        request = data.OffsetFetchRequestGroup().setGroupId(group_id)
        for topic in shard.fetchAllOffsets(request, as_of).topics():
            for each in topic.partitions():
                yield (topic.name(), each.partitionIndex()), each

    def _removed(self, shard: Any) -> Removed:  # noqa: ANN401 - of the JVM
        removed = Removed(set(), set())
        for record in shard.cleanupGroupMetadata().records():
            assert record.value() is None
            key = decode_key(bytes(self._serde.serializeKey(record)))
            if key.record_type in OFFSET_COMMIT_TYPES:
                removed.offsets.add((key.group_id, key.fields["topic"], key.fields["partition"]))
            elif key.record_type in GROUP_REMOVING_TYPES:
                removed.groups.add(key.group_id)
        return removed

    def _shard(self) -> tuple[Any, Any]:
        log = self._kafka.common.utils.LogContext()
        snapshots = self._kafka.timeline.SnapshotRegistry(log)
        config = self._group.GroupCoordinatorConfig.fromProps(self._jvm.java.util.HashMap())
        groups = self._group.GroupConfigManager(self._jvm.java.util.HashMap())
        builder = self._group.GroupCoordinatorShard.Builder(config, groups)
        idle = self._does_nothing()
        shard = (
            builder.withAuthorizerPlugin(self._jvm.java.util.Optional.empty())
            .withSnapshotRegistry(snapshots)
            .withLogContext(log)
            .withTime(self._kafka.common.utils.Time.SYSTEM)
            .withTimer(idle)
            .withExecutor(idle)
            .withCoordinatorMetrics(self._metrics)
            .withTopicPartition(self._kafka.common.TopicPartition("__consumer_offsets", 0))
            .build()
        )
        return snapshots, shard

    def _does_nothing(self) -> Any:  # noqa: ANN401 - of the JVM
        """A timer and executor whose methods return null: a replay calls none."""
        handles, lang = self._jvm.java.lang.invoke.MethodHandles, "java.lang"
        null = handles.constant(self._class(f"{lang}.Object"), None)
        arguments = [self._class(f"{lang}.{each}") for each in ("Object", "reflect.Method")]
        null = handles.dropArguments(null, 0, [*arguments, self._class("[Ljava.lang.Object;")])
        proxies = self._jvm.java.lang.invoke.MethodHandleProxies
        handler = proxies.asInterfaceInstance(self._class(f"{lang}.reflect.InvocationHandler"), null)
        loader = self._serde.getClass().getClassLoader()
        return self._jvm.java.lang.reflect.Proxy.newProxyInstance(loader, self._idle, handler)

    def _class(self, name: str) -> Any:  # noqa: ANN401 - of the JVM
        return self._jvm.java.lang.Class.forName(name)

    def _wrapped(self, data: bytes | None) -> Any:  # noqa: ANN401 - of the JVM
        return None if data is None else self._jvm.java.nio.ByteBuffer.wrap(data)


def groups_of(state: PartitionState) -> dict[str, Listed]:
    """The listed groups of this project's replay."""
    found = {}
    for group_id in state.groups:
        group = state.group(group_id)
        if group is None:
            continue
        offsets = {
            (where.topic, where.partition): (
                each.committed_offset,
                -1 if each.leader_epoch is None else each.leader_epoch,
                each.metadata,
            )
            for where, each in state.offsets_of(group_id).items()
        }
        description = group.description
        unstable = {(where.topic, where.partition) for where in state.pending_of(group_id)} & offsets.keys()
        found[group_id] = Listed(
            group.group_type.lower(), description.state, description.protocol_type, offsets, unstable
        )
    return found


def removed_from(state: PartitionState, now_ms: int) -> Removed:
    """What a run of the expiry removes by the forecast of this project."""
    removed = Removed(set(), set())
    for group_id in state.groups:
        held = holdings_of(state, group_id)
        expired = None if held is None else forecast(held, Retention().retention_ms).expired(now_ms)
        if expired is not None:
            removed.offsets.update((group_id, *each.where) for each in expired.expired)
            removed.groups.update([group_id] if expired.is_removed else [])
    return removed


def is_expression(row: LogRow) -> bool:
    """Whether the row is about a regular expression.

    Kafka counts the topics of all expressions as subscribed. A coordinator removes one that no member uses; the random
    logs do not.
    """
    return (
        row.control_type is None
        and row.key is not None
        and decode_key(row.key).record_type == RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    )


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=pytest.mark.long)])
def test_random_logs_are_replayed_as_by_kafkas_coordinator(kafka: KafkaJvm, chance: random.Random, count: int) -> None:
    """R10 to R14, R17 to R21 and R33: also which offsets are unstable, and which offsets and groups expire."""
    coordinator = KafkaCoordinator(kafka)
    shape = replace(LEGAL, times_ms=_TIMES_MS, expire_times_ms=_TIMES_MS)
    seen: Counter[str] = Counter()
    for _ in range(count):
        rows = random_log(chance, chance.randrange(2, 40), shape).rows()
        if chance.choice([False, True]):
            rows = [row for row in rows if not is_expression(row)]
        has_expression = any(map(is_expression, rows))
        state = replay(rows, 0, 1)
        assert not state.quarantined
        found, expired = groups_of(state), removed_from(state, round(time.time() * 1000))
        listed, removed = coordinator.answers(rows)
        assert found == listed, rows
        assert has_expression or expired == removed, rows
        seen.update(each.state for each in found.values())
        for each in found.values():
            seen["offsets"] += len(each.offsets)
            seen["unstable"] += len(each.unstable)
        seen["expired"] += len(expired.offsets)
        seen["removed"] += len(expired.groups)
    kinds = ("Empty", "Stable", "offsets", "unstable", "expired", "removed")
    assert min(seen[each] for each in kinds) > count / 10, seen
