"""Sampling at an interval, beside a stream."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import MS_OF_HOUR, FixedClock, SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings, LagSettings
from offsets_pipeline.errors import BrokerUnreachable
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler, SamplerThread
from offsets_pipeline.ingest.topic_positions.position_samples import Sample
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, read_samples, table_of
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.store import Store
from tests.spark.stores import CLOCK
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakePartition, batch, fake_topic, options_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession


def test_errors_are_one_warning_and_sampling_goes_on() -> None:
    warnings: list[str] = []
    done = threading.Event()
    calls: list[str] = []

    def sample() -> int:
        calls.append("sample")
        if len(calls) in (2, 3):
            raise BrokerUnreachable("no broker answers at x")
        if len(calls) == 6:
            done.set()
        return 1

    def make() -> Any:  # noqa: ANN401 - in place of a sampler
        calls.append("make")
        return SimpleNamespace(sample=sample, close=lambda: calls.append("close"))

    thread = SamplerThread(make, 1, SystemClock(), warnings.append)
    thread.close()  # before `start` it does nothing
    thread = SamplerThread(make, 1, SystemClock(), warnings.append)
    thread.start()
    assert done.wait(60)
    thread.close()
    assert calls[:6] == ["make", *["sample"] * 5]
    assert calls[-1] == "close"
    assert warnings == [
        "cannot sample positions of topics: no broker answers at x; the next sample tries again",
    ]


def test_sampler_that_cannot_be_made_is_made_again() -> None:
    warnings: list[str] = []

    def make() -> Any:  # noqa: ANN401
        raise BrokerUnreachable("no broker answers at x")

    SamplerThread(make, 1, SystemClock(), warnings.append).run_once()
    assert len(warnings) == 1


def test_a_sample_has_the_bounds_of_the_topics_that_match_and_answer(tmp_path: Path) -> None:
    partitions = {0: FakePartition([batch(4, 6)], start=4), 1: FakePartition([], leader=None)}
    table = TableFolder(f"{tmp_path}/topic_offsets", TOPIC_OFFSETS)
    with fake_topic(partitions) as topic:
        topic.topics = {"other": uuid.UUID(int=7)}
        for topics, count in (("__consumer", 0), ("__consumer.*", 1)):
            sampler = PositionSampler(
                options_of(topic, default_api_timeout_ms="50"), table, topics, FixedClock(1_000 + count)
            )
            assert sampler.sample() == count
            sampler.close()
            assert all(each.is_closed for each in sampler.cluster._connections.values())
    samples = read_samples(table)
    assert samples.latest() == {(TOPIC, 0): Sample(4, 10, 1_001)}


def test_sample_of_no_topic_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create_tables(str(tmp_path / "store"), StoreProperties(MIRRORED, 1))
    sampler = "offsets_pipeline.ingest.topic_positions.position_sampler"
    monkeypatch.setattr(f"{sampler}.Cluster.topics", lambda *_: {"orders": None})
    monkeypatch.setattr(f"{sampler}.bounds_of_topics", lambda *_: {})
    monkeypatch.setattr(f"{sampler}.Cluster.cluster_id", lambda _: None)
    at = ["sample-topic-offsets", "--store", str(tmp_path / "store"), "--bootstrap-server", "b:9092"]
    assert main([*at, "--topics", "nope"]) == 1
    assert capsys.readouterr().err == (
        "offsets: error: no positions sampled: no topic at b:9092 matches 'nope', or no leader of its partitions "
        "answers; check --topics\n"
    )


def test_upkeep_compacts_the_files_of_samples(tmp_path: Path) -> None:
    properties = StoreProperties(MIRRORED, 1)
    create_tables(str(tmp_path / "store"), properties)
    store = Store(cast("SparkSession", None), str(tmp_path / "store"), properties)
    assert TOPIC_OFFSETS.name not in {each.table for each in maintain_store(store, CLOCK, kept_for(0), publishes=False)}
    table = table_of(store.location)
    writer = SampleWriter(table, "a test")
    for number in range(5):
        writer.write({("t", 0): (0, number)}, number)
    by_table = {each.table: each for each in maintain_store(store, CLOCK, kept_for(0), publishes=False)}
    assert (by_table[TOPIC_OFFSETS.name].files_before, by_table[TOPIC_OFFSETS.name].files) == (5, 1)
    assert read_samples(table).series(("t", 0)).log_end_offset.tolist() == [0, 1, 2, 3, 4]
    assert FoldSettings().upkeep_interval_ms > 0  # `follow` does this by default
    long_after = FixedClock(2 * MS_OF_HOUR)
    maintain_store(store, long_after, kept_for(2), publishes=False)
    assert read_samples(table).series(("t", 0)).sampled_ms.tolist() == [0, 1, 2, 3, 4]
    by_table = {each.table: each for each in maintain_store(store, long_after, kept_for(1), publishes=False)}
    assert by_table[TOPIC_OFFSETS.name].bytes < by_table[TOPIC_OFFSETS.name].bytes_before
    assert read_samples(table).series(("t", 0)).sampled_ms.tolist() == [4]


def kept_for(hours: int) -> Settings:
    return Settings(lag=LagSettings(sample_retention_hours=hours))


def test_positions_of_another_cluster_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    create_tables(str(store), StoreProperties(MIRRORED, 1, cluster_id="ours"))
    monkeypatch.setattr(
        "offsets_pipeline.ingest.topic_positions.position_sampler.Cluster.cluster_id", lambda _: "theirs"
    )
    assert main(["sample-topic-offsets", "--store", str(store), "--bootstrap-server", "b:9092"]) == 1
    assert "b:9092 is cluster theirs, but" in capsys.readouterr().err
    assert read_samples(TableFolder(f"{store}/topic_offsets", TOPIC_OFFSETS)).latest() == {}
