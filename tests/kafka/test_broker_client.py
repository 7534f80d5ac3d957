"""What our client of the broker gets from a real broker is what Kafka's own client and the broker's files say.

One broker serves all tests of this module; it listens with and without TLS and SASL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from offsets_pipeline.broker.client_settings import FetchLimits
from offsets_pipeline.broker.cluster import Cluster
from offsets_pipeline.broker.fetch import Fetcher, Position, Problem
from offsets_pipeline.broker.kafka_options import KafkaOptions
from offsets_pipeline.broker.log_offsets import Bounds, EpochEnd, bounds, epoch_ends, list_offsets
from offsets_pipeline.errors import NoSuchTopic
from offsets_pipeline.record.columns import SEGMENT_SCHEMA
from offsets_pipeline.record.segment import read_segment
from tests.kafka.live import TOPIC, live_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker

PARTITIONS = 3
ZSTD = 4
ONE_BATCH = FetchLimits(min_bytes=1, max_wait_ms=0, max_bytes=1, max_partition_bytes=1)
A_FEW_BATCHES = FetchLimits(min_bytes=1, max_wait_ms=0, max_bytes=2000, max_partition_bytes=700)


@pytest.fixture(scope="module")
def broker(kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """A broker with commits, deleted groups, and committed, aborted and open transactions."""
    folder = tmp_path_factory.mktemp("client") / "broker"
    with live_broker(kafka, folder, PARTITIONS, f"offsets.topic.compression.codec={ZSTD}\n") as live:
        live.create_topic("t", 3, {"delete.retention.ms": "4711"})
        for number in range(30):
            live.commit(f"g{number % 10}", {("t", partition): number for partition in range(3)}, "m" * 10 * number)
        live.delete_group("g7")
        for number in range(6):
            transaction = live.transaction(f"x{number}")
            transaction.begin(f"g{number}", {("t", 0): 100})
            transaction.abort()
            transaction.begin(f"g{number}", {("t", 0): 101})
            transaction.commit()
        live.transaction("open").begin("g1", {("t", 1): 102})
        live.commit("g1", {("t", 2): 103})
        yield live


@pytest.fixture
def cluster(broker: LiveBroker) -> Iterator[Cluster]:
    with Cluster(KafkaOptions(broker.address, {})) as cluster:
        yield cluster


def segment_bytes(broker: LiveBroker, partition: int) -> bytes:
    folder = broker.folder / f"{TOPIC}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def rows(data: bytes, least_offset: int = 0) -> list[dict[str, object]]:
    reader = read_segment(data, source="test")
    found = pa.Table.from_batches(reader.batches(), SEGMENT_SCHEMA).to_pylist()
    assert (reader.damage, reader.torn_tail) == ([], None)
    return [row for row in found if row["record_offset"] >= least_offset]


def fetched_rows(cluster: Cluster, limits: FetchLimits) -> dict[int, list[dict[str, object]]]:
    """Rows of each partition, from as many fetches as it takes."""
    topic = cluster.topic(TOPIC)
    found: dict[int, list[dict[str, object]]] = {partition: [] for partition in topic.partitions}
    positions = {partition: Position(0, leader.epoch) for partition, leader in topic.partitions.items()}
    with Fetcher(cluster, topic, 1) as fetcher:
        while positions:
            for partition, each in fetcher.fetch(positions, limits).items():
                assert each.problem is None
                found[partition] += rows(each.records, positions[partition].offset)
                del positions[partition]  # and to the end: each gets its turn to be the first
                if each.next_offset != each.high_watermark:
                    positions[partition] = Position(each.next_offset, topic.partitions[partition].epoch)
    return found


@pytest.mark.parametrize(
    "limits", [None, A_FEW_BATCHES, ONE_BATCH], ids=["all at once", "few batches", "single batches"]
)
def test_a_fetch_returns_the_rows_of_the_brokers_segment_files(
    broker: LiveBroker, cluster: Cluster, limits: FetchLimits | None
) -> None:
    of_files = {partition: rows(segment_bytes(broker, partition)) for partition in range(PARTITIONS)}
    everything = [row for of_partition in of_files.values() for row in of_partition]
    assert {row["control_type"] for row in everything} == {None, "COMMIT", "ABORT"}
    assert fetched_rows(cluster, limits or cluster.settings.fetch) == of_files


def test_a_fetch_tells_high_watermark_and_last_stable_offset_while_a_transaction_is_open(
    broker: LiveBroker, cluster: Cluster
) -> None:
    began = {at: start for (at, _), (_, start, _) in broker.answers.producers().items() if start is not None}
    expected = {at: Bounds(start, began.get(at, end), end) for at, (start, end) in broker.answers.bounds().items()}
    assert len(began) == 1
    assert bounds(cluster, TOPIC, range(PARTITIONS)) == expected
    topic = cluster.topic(TOPIC)
    with Fetcher(cluster, topic, 1) as fetcher:
        fetched = fetcher.fetch({at: Position(each.end, None) for at, each in expected.items()}, ONE_BATCH)
    assert {
        at: Bounds(each.log_start_offset or 0, each.last_stable_offset or 0, each.high_watermark or 0)
        for at, each in fetched.items()
    } == expected
    assert {(each.records, each.next_offset - expected[at].end) for at, each in fetched.items()} == {(b"", 0)}


def test_a_position_outside_the_log_and_a_wrong_leader_epoch_are_told_apart(cluster: Cluster) -> None:
    topic = cluster.topic(TOPIC)
    epoch = topic.partitions[0].epoch
    assert epoch is not None
    positions = {0: Position(0, epoch - 1), 1: Position(0, epoch + 1), 2: Position(10_000, epoch)}
    with Fetcher(cluster, topic, 1) as fetcher:
        assert {at: each.problem for at, each in fetcher.fetch(positions, ONE_BATCH).items()} == {
            0: Problem.STALE_METADATA,
            1: Problem.STALE_METADATA,
            2: Problem.OUT_OF_RANGE,
        }


def test_the_cluster_describes_itself_and_its_topics(broker: LiveBroker, cluster: Cluster) -> None:
    assert cluster.cluster_id() == broker.cluster_id()
    assert [(each.host, each.port) for each in cluster.brokers().values()] == [("127.0.0.1", broker.port)]
    assert cluster.topic_ids() == {name: broker.topic_id(name) for name in broker.topics()}
    assert list(cluster.topic("t").partitions) == [0, 1, 2]
    assert cluster.topic_configs("t", ["delete.retention.ms", "cleanup.policy", "no.such"]) == {
        "delete.retention.ms": "4711",
        "cleanup.policy": "delete",
    }
    assert cluster.finalized_features()["transaction.version"] == 2
    assert cluster.api_versions()[1][1] >= 17  # Fetch


def test_offsets_by_time_and_ends_of_leader_epochs(broker: LiveBroker, cluster: Cluster) -> None:
    times = [row["record_timestamp"] for row in rows(segment_bytes(broker, 1))]
    middle_ms = int(times[len(times) // 2].timestamp() * 1000)  # type: ignore[attr-defined]
    partitions = range(PARTITIONS)
    assert list_offsets(cluster, TOPIC, dict.fromkeys(partitions, middle_ms)) == broker.answers.offsets_since(middle_ms)
    assert set(list_offsets(cluster, TOPIC, dict.fromkeys(partitions, 2**60)).values()) == {None}
    epoch = cluster.topic(TOPIC).partitions[0].epoch
    assert epoch is not None
    ends = broker.answers.bounds()
    assert epoch_ends(cluster, TOPIC, dict.fromkeys(partitions, epoch)) == {
        at: EpochEnd(epoch, end) for at, (_, end) in ends.items()
    }


def test_a_topic_that_is_not_there_is_told_in_one_line_and_not_made(broker: LiveBroker, cluster: Cluster) -> None:
    with pytest.raises(NoSuchTopic, match=f"^{broker.address} cannot describe topic nope: there is no such topic"):
        cluster.topic("nope")
    assert "nope" not in broker.topics()
