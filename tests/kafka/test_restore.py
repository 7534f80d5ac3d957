"""Offsets of the past are committed to a live cluster: to the store's own, and to one with mirrored topics.

It needs brokers: they answer where records are, and which groups have members. Two serve all tests of this file.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, shown_time
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import NonEmptyGroup, NoSuchTopic
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import GroupListing, fetch_group_offsets, list_groups, refused_offsets
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.kafka.live import LiveBroker, live_broker, wait_until
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

#: Timestamp of the first record; the next ones follow every second.
FIRST_MS = 1_795_000_000_000
RECORDS = {0: 10, 1: 4}
Row = dict[str, object]


@dataclass
class Clusters:
    """The store's cluster, one to which its topic is mirrored, the store, and a time between two rounds of commits."""

    broker: LiveBroker
    mirror: LiveBroker
    store: Path
    then_ms: int


@pytest.fixture(scope="module")
def clusters(kafka: KafkaJvm, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("restore")
    with live_broker(kafka, folder / "broker") as broker, live_broker(kafka, folder / "mirror") as mirror:
        for topic in ("orders", "gone", "again"):
            broker.create_topic(topic, 2)
        records = [(at, FIRST_MS + number * 1000) for at, count in RECORDS.items() for number in range(count)]
        broker.send_at("orders", records)
        mirror.create_topic("orders", 2)
        mirror.send_at("orders", [(0, FIRST_MS - 3000 + number * 1000) for number in range(3)])  # of before the mirror
        mirror.send_at("orders", records)
        mirror.send_at("orders", [(1, FIRST_MS + 60_000)])  # produced there since
        topic_names = {broker.topic_id(topic): topic for topic in ("orders", "gone", "again")}

        broker.commit("g", {("orders", 0): 3, ("orders", 1): 4}, "a note")
        broker.commit("g", {("gone", 0): 0, ("again", 0): 5})
        broker.commit("early", {("orders", 0): 1})
        member = broker.consumer("active", ["orders"])
        member.join(2)
        member.commit({("orders", 0): 5})
        then_ms = int(time.time() * 1000)
        wait_until(lambda: time.time() * 1000 > then_ms + 1, "the clock stands")
        broker.commit("g", {("orders", 0): 9, ("orders", 1): 2})
        broker.commit("g", {("gone", 1): 0})
        broker.commit("early", {("orders", 0): 8})
        broker.commit("late", {("orders", 0): 8})
        member.commit({("orders", 0): 7})

        store = folded_segments(broker.folder, folder / "store", 5, settings, topic_names=topic_names)
        broker.delete_records("orders", 0, 2)
        broker.delete_topic("gone")
        broker.delete_topic("again")
        wait_until(lambda: not {"gone", "again"} & set(broker.topics()), "the topics were not deleted")
        broker.create_topic("again", 2)
        yield Clusters(broker, mirror, store, then_ms)


def rows(output: str) -> dict[tuple[object, object, object], tuple[object, object, object, object]]:
    """Past, new and current offset, and the method, by group, topic and partition."""
    found: list[Row] = [json.loads(line) for line in output.splitlines()]
    return {
        (row["group"], row["topic"], row["partition"]): (
            row["past_offset"],
            row["new_offset"],
            row["current_offset"],
            row["method"],
        )
        for row in found
    }


def restore(clusters: Clusters, server: LiveBroker, *more: str, store: object = None) -> list[str]:
    where = ["--store", str(store or clusters.store), "--as-of", str(clusters.then_ms)]
    return ["restore", *where, "--bootstrap-server", server.address, "--format", "json", *more]


def offsets_at(broker: LiveBroker, group_id: str) -> dict[tuple[object, ...], object]:
    """The broker's own answer."""
    return {(each["topic"], each["partition"]): each["offset"] for each in broker.answers.offsets([group_id])[group_id]}


def test_plan_shows_each_offset_of_the_past_and_changes_nothing(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    before = offsets_at(clusters.broker, "g")
    assert main(restore(clusters, clusters.broker)) == 0
    output = capsys.readouterr()
    assert rows(output.out) == {
        ("early", "orders", 0): (1, 2, 8, "log start"),
        ("g", "again", 0): (5, 0, None, "log end"),
        ("g", "gone", 0): (0, None, None, None),
        ("g", "orders", 0): (3, 3, 9, "committed"),
        ("g", "orders", 1): (4, 4, 2, "committed"),
    }
    details = {(row["group"], row["topic"]): row["detail"] for row in map(json.loads, output.out.splitlines())}
    assert details["g", "again"].endswith("; the topic was created again since")
    assert "has no partition gone-0" in details["g", "gone"]
    assert details["early", "orders"] == "1 is below the log start: its records were deleted"
    assert "this is the plan; --execute commits it" in output.err
    assert output.err.endswith(
        "offsets: warning: groups with members are skipped: 'active' is Stable; stop their members, and restore again\n"
    )
    assert main(restore(clusters, clusters.broker, "--group", "active")) == 1
    assert capsys.readouterr().err.endswith(
        "offsets: error: cannot restore groups with members: 'active' is Stable; stop the members first\n"
    )
    assert offsets_at(clusters.broker, "g") == before


def test_offsets_of_the_past_are_translated_by_the_timestamps_of_their_records(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--source-bootstrap-server", clusters.broker.address]
    command = restore(clusters, clusters.mirror, *source, "--group", "g", "--group", "early", "--execute")
    assert main(command) == 0
    output = capsys.readouterr()
    assert rows(output.out) == {
        ("early", "orders", 0): (1, 5, None, "timestamp"),  # of record 2: record 1 is deleted
        ("g", "again", 0): (5, None, None, None),
        ("g", "gone", 0): (0, None, None, None),
        ("g", "orders", 0): (3, 6, None, "timestamp"),
        ("g", "orders", 1): (4, 4, None, "timestamp"),  # all was consumed, but for the record that the mirror got since
    }
    details = {
        (row["group"], row["topic"], row["partition"]): row["detail"]
        for row in map(json.loads, output.out.splitlines())
    }
    assert details["g", "orders", 0] == f"record 3 has the timestamp {shown_time(FIRST_MS + 3000)}"
    assert details["early", "orders", 0].startswith("record 1 is gone; the next one, 2, has the timestamp ")
    assert details["g", "orders", 1] == (
        f"all records were consumed; the last one has the timestamp {shown_time(FIRST_MS + 3000)}"
    )
    assert "3 offsets committed to " in output.err
    assert offsets_at(clusters.mirror, "g") == {("orders", 0): 6, ("orders", 1): 4}
    assert offsets_at(clusters.mirror, "early") == {("orders", 0): 5}


def test_offsets_are_translated_by_samples_where_their_cluster_is_gone(
    clusters: Clusters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = OwnedStore.create(tmp_path / "owned", 3, cluster_id="of-another-cluster")
    with Coordinator.open(store, clock=FixedClock(clusters.then_ms - 1000), housekeeping=False) as coordinator:
        coordinator.commit_offsets("sampled", {("orders", 0): 6, ("orders", 1): 1})
    writer = SampleWriter(table_of(store.location), "a test")
    for number in range(4, 9):  # the log ended at `number` right before its record came
        writer.write({("orders", 0): (0, number)}, FIRST_MS + number * 1000 - 1)
    writer.close()
    assert main(restore(clusters, clusters.mirror, store=store.location)) == 0
    output = capsys.readouterr()
    assert rows(output.out) == {
        ("sampled", "orders", 0): (6, 9, None, "sample"),
        ("sampled", "orders", 1): (1, None, None, None),
    }
    assert "offsets are translated by the store's samples" in output.err
    assert "the store has no sample from before the record" in output.out
    assert main(restore(clusters, clusters.mirror, "--same-offsets", store=store.location)) == 0
    assert rows(capsys.readouterr().out) == {
        ("sampled", "orders", 0): (6, 6, None, "committed"),
        ("sampled", "orders", 1): (1, 1, None, "committed"),
    }
    named = ["--source-bootstrap-server", clusters.broker.address]
    assert main(restore(clusters, clusters.mirror, *named, store=store.location)) == 1
    assert "has the log of cluster of-another-cluster; name brokers of that cluster" in capsys.readouterr().err


def test_group_without_an_offset_at_the_time_is_an_error(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(restore(clusters, clusters.broker, "--group", "late")) == 1
    assert f"has no offset of group 'late' as of {shown_time(clusters.then_ms)}" in capsys.readouterr().err
    clusters = replace(clusters, then_ms=FIRST_MS - 10**9)
    assert main(restore(clusters, clusters.broker)) == 0
    assert "no consumer group of " in capsys.readouterr().err


def test_offsets_of_a_group_that_gets_members_meanwhile_are_refused_by_the_broker(clusters: Clusters) -> None:
    with Cluster(KafkaOptions(clusters.broker.address, {})) as cluster:
        assert list_groups(cluster)["active"] == GroupListing("active", "Classic", "consumer", "Stable")
        (error,) = refused_offsets(cluster, "active", {("orders", 0): (1, "")}).values()
        with pytest.raises(NonEmptyGroup, match="it has members"):
            raise error
        refused = refused_offsets(cluster, "other", {("orders", 0): (1, "x"), ("no-topic", 0): (1, "")})
        assert {place: type(error) for place, error in refused.items()} == {("no-topic", 0): NoSuchTopic}
        assert fetch_group_offsets(cluster, ["other", "none"]) == {"other": {("orders", 0): (1, None, "x")}, "none": {}}
    assert offsets_at(clusters.broker, "active") == {("orders", 0): 7}


def test_offsets_of_the_past_are_committed_with_their_metadata(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(restore(clusters, clusters.broker, "--group", "g", "--execute")) == 0
    assert "3 offsets committed" in capsys.readouterr().err
    answers = {(each["topic"], each["partition"]): each for each in clusters.broker.answers.offsets(["g"])["g"]}
    assert answers["orders", 0]["offset"] == 3
    assert answers["orders", 0]["metadata"] == "a note"
    assert answers["orders", 1]["offset"] == 4
