"""Random logs, each beside the replay of Kafka 4.2's own coordinator: the same groups and offsets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from offsets_pipeline.semantics.log_row import COMMIT, LogRow
from offsets_pipeline.semantics.partition_state import replay
from tests.random_logs import LEGAL, random_log

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from tests.kafka.brokers import KafkaJvm

_RUNTIME = "org.apache.kafka.coordinator.common.runtime"
_END = 2**50  # of a log: a snapshot there has all records


class Listed(NamedTuple):
    """A group as it is listed, and its offsets: (topic, partition) to offset, leader epoch and metadata."""

    group_type: str
    state: str
    protocol_type: str
    offsets: dict[tuple[str, int], tuple[int, int, str]]


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

    def groups(self, rows: Iterable[LogRow]) -> dict[str, Listed]:
        """The listed groups after a replay of these rows, by group id."""
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
        return {
            each.groupId(): Listed(
                each.groupType(), each.groupState(), each.protocolType(), dict(self._offsets(shard, each.groupId()))
            )
            for each in shard.listGroups(none, none, _END)
        }

    def _offsets(self, shard: Any, group_id: str) -> Iterator[tuple[tuple[str, int], tuple[int, int, str]]]:  # noqa: ANN401 - of the JVM
        data = self._kafka.common.message.OffsetFetchRequestData
        request = data.OffsetFetchRequestGroup().setGroupId(group_id)
        for topic in shard.fetchAllOffsets(request, _END).topics():
            for each in topic.partitions():
                answer = each.committedOffset(), each.committedLeaderEpoch(), each.metadata()
                yield (topic.name(), each.partitionIndex()), answer

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


def groups_of(rows: Iterable[LogRow]) -> dict[str, Listed]:
    """The same by the replay of this project."""
    state = replay(rows, 0, 1)
    assert not state.quarantined
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
        found[group_id] = Listed(group.group_type.lower(), description.state, description.protocol_type, offsets)
    return found


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=pytest.mark.long)])
def test_random_logs_are_replayed_as_by_kafkas_coordinator(kafka: KafkaJvm, chance: random.Random, count: int) -> None:
    coordinator = KafkaCoordinator(kafka)
    seen: Counter[str] = Counter()
    for _ in range(count):
        rows = random_log(chance, chance.randrange(2, 40), LEGAL).rows()
        found = groups_of(rows)
        assert found == coordinator.groups(rows), rows
        seen.update(each.state for each in found.values())
        seen["offsets"] += sum(len(each.offsets) for each in found.values())
    assert min(seen[each] for each in ("Empty", "Stable", "offsets")) > count / 10, seen
