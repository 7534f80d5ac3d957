"""Lag of a live broker's groups equals what Kafka's own kafka-consumer-groups prints; lag in seconds is the record's.

It needs a broker: the tool asks one. One broker serves all tests of this file.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.options import PositionsFrom, ReportCoverage
from offsets_pipeline.cli.status_commands import collected
from offsets_pipeline.common.clock import FixedClock, SystemClock, parse_time_ms
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.ingest.topic_positions.position_sampler import PositionSampler
from offsets_pipeline.ingest.topic_positions.position_samples import Sample, rows_of
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, read_samples, table_of
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.fetch import FirstRecord, first_records
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.log_offsets import LogBounds, bounds_of_topics
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from offsets_pipeline.store.store import Store
from tests.kafka.live import LiveBroker, live_broker
from tests.kafka.live_clients import wait_until
from tests.spark.stores import CLOCK, table
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

DAY_MS = 86_400_000
STARTED_MS = int(time.time() * 1000)
#: Seconds before now of the records of the topic `old`.
AGES = (1, 10, 1_799, 1_801, 3_600, 86_400, 7 * 86_400, 30 * 86_400)


@pytest.fixture(scope="module")
def broker(kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """A broker with topics of every kind that lag has to understand, and groups of all protocols."""
    with live_broker(kafka, tmp_path_factory.mktemp("lag") / "broker") as running:
        running.create_topic("plain", 2)
        running.produce("plain", 0, 10)
        running.produce("plain", 1, 5)
        running.create_topic("old", 1, {"retention.ms": "-1"})
        running.send_at("old", [(0, STARTED_MS - age * 1000) for age in sorted(AGES, reverse=True)])
        running.create_topic("marked", 1)
        with_marker = running.transaction("t")
        with_marker.produce("marked", 0, 3)
        running.create_topic("trimmed", 1)
        running.produce("trimmed", 0, 10)
        running.delete_records("trimmed", 0, 4)
        running.create_topic("big", 1, {"max.message.bytes": "3000000"})
        running.send("big", [(0, None, "x" * 900_000), (0, None, "y" * 900_000)])
        running.create_topic("empty", 1)
        yield running


@pytest.fixture(scope="module")
def groups(broker: LiveBroker) -> list[str]:
    """Groups of all protocols; each committed something."""
    classic = broker.consumer("classic", ["plain"], group_protocol="classic", client_id="c1")
    classic.join(2)
    classic.commit({("plain", 0): 4})  # nothing for partition 1
    modern = broker.consumer("modern", ["plain"], group_protocol="consumer", client_id="c2")
    modern.join(2)
    modern.commit({("plain", 0): 10, ("plain", 1): 3})
    broker.commit(
        "simple",
        {
            ("plain", 0): 7,
            ("marked", 0): 1,
            ("trimmed", 0): 2,
            ("big", 0): 1,
            ("empty", 0): 0,
        },
    )
    broker.commit("at-marker", {("marked", 0): 3})
    for offset, age in enumerate(sorted(AGES, reverse=True)):
        broker.commit(f"behind-{age}", {("old", 0): offset})
    return ["classic", "modern", "simple", "at-marker"]


@pytest.fixture(scope="module")
def store(broker: LiveBroker, groups: list[str], settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the broker's log, folded."""
    assert groups
    broker.wait_for_markers()
    return folded_segments(broker.folder, tmp_path_factory.mktemp("lag") / "store", 5, settings)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["lag", *arguments, "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lag_is_what_kafkas_own_tool_prints(
    broker: LiveBroker, groups: list[str], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for group in groups:
        for line in broker.tool("--describe", "--offsets", "--group", group).splitlines():
            found = re.match(r"(\S+)\s+(\S+)\s+(\d+)\s+(\d+|-)\s+(\d+|-)\s+(\d+|-)\s", line)
            if found is not None:
                printed[found[1], found[2], int(found[3])] = tuple(
                    None if text == "-" else int(text) for text in found.groups()[3:]
                )
    ours = {
        (row["group"], row["topic"], row["partition"]): (row["current_offset"], row["log_end_offset"], row["lag"])
        for row in rows(capsys, "--store", str(store), "--bootstrap-server", broker.address)
        if row["group"] in groups
    }
    assert len(printed) == 10
    assert ours == printed
    assert ours["classic", "plain", 1] == (None, 5, None)  # a member without a commit


#: Words in a line of the tool's table; a blank cell, such as the strategy of a simple group, leaves fewer.
TABLES = {
    "--offsets": 9,
    "--offsets --verbose": 10,
    "--members": 5,
    "--members --verbose": 9,
    "--state": 6,
    "--state --verbose": 8,
}


@pytest.mark.parametrize("options", TABLES)
def test_describe_prints_the_table_of_kafkas_own_tool(
    broker: LiveBroker, groups: list[str], store: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    printed = [broker.tool("--describe", "--group", group, *options.split()).splitlines() for group in groups]
    theirs = {tuple(line.split()) for lines in printed for line in lines}
    theirs = {words for words in theirs if len(words) == TABLES[options]}
    assert len(theirs) > 2
    named = [word for group in groups for word in ("--group", group)]
    at = ["--store", str(store), "--bootstrap-server", broker.address]
    capsys.readouterr()
    assert main(["describe", *at, *named, *options.split()]) == 0
    # --verbose has more columns at the end
    ours = {tuple(line.split()[: TABLES[options]]) for line in capsys.readouterr().out.splitlines()}
    assert theirs - ours == set()


def test_groups_are_listed_as_kafkas_own_tool_lists_them(
    broker: LiveBroker, groups: list[str], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = sorted(broker.tool("--list").split())
    assert listed == sorted([*groups, *(f"behind-{age}" for age in AGES)])
    capsys.readouterr()
    assert main(["describe", "--store", str(store), "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == listed
    states = {tuple(line.split()) for line in broker.tool("--list", "--state").splitlines() if line.strip()}
    assert main(["describe", "--store", str(store), "--list", "--state"]) == 0
    assert {tuple(line.split()) for line in capsys.readouterr().out.splitlines()} == states


def test_seconds_are_those_of_the_record_at_the_committed_offset(
    broker: LiveBroker, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        (row["group"], row["topic"], row["partition"]): row
        for row in rows(capsys, "--store", str(store), "--bootstrap-server", broker.address)
    }
    # only the marker of the transaction follows
    at_marker = found["at-marker", "marked", 0]
    assert (at_marker["lag"], at_marker["lag_seconds"], at_marker["method"]) == (1, 0.0, "exact")
    assert found["modern", "plain", 0]["lag_seconds"] == 0.0
    trimmed = found["simple", "trimmed", 0]
    assert (trimmed["lag"], trimmed["lag_available"], trimmed["log_start_offset"]) == (8, 6, 4)
    empty = found["simple", "empty", 0]
    assert (empty["lag"], empty["lag_seconds"]) == (0, 0.0)
    for row in found.values():
        assert row["method"] == ("exact" if row["lag"] is not None else "none"), row
        if row["lag"] and row["topic"] != "old":
            seconds = row["lag_seconds"]
            assert isinstance(seconds, float)
            assert 0 <= seconds <= time.time() - STARTED_MS / 1000 + 1, row


def test_consumers_from_a_second_to_thirty_days_behind_are_exact(
    broker: LiveBroker, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(capsys, "--store", str(store), "--bootstrap-server", broker.address, "--group", "behind-*")
    assert len(found) == len(AGES)
    for row in found:
        appended_ms = STARTED_MS - 1000 * int(str(row["group"]).partition("-")[2])
        # the log was read when the store was made
        expected = (parse_time_ms(str(row["as_of"])) - appended_ms) / 1000
        assert row["lag_seconds"] == pytest.approx(expected, abs=0.002), row
        assert (row["method"], row["status"]) == ("exact", "STOP"), row  # one commit, and time has passed


def test_first_records_are_found_whatever_their_batches(broker: LiveBroker) -> None:
    with Cluster(KafkaOptions(broker.address, {})) as cluster:
        ages = sorted(AGES, reverse=True)
        for offset, age in enumerate(ages):
            found = first_records(cluster, {("old", 0): offset, ("big", 0): 0, ("no such", 0): 3})
            assert found["old", 0] == FirstRecord(offset, STARTED_MS - age * 1000)
            assert isinstance(found["big", 0], FirstRecord)
            assert isinstance(found["no such", 0], OffsetsError)
        found = first_records(
            cluster,
            {("old", 0): len(ages), ("marked", 0): 3, ("trimmed", 0): 1, ("big", 0): 1, ("plain", 0): 99},
        )
        assert found["old", 0] is None
        assert found["marked", 0] is None
        assert found["plain", 0] is None
        trimmed, big = found["trimmed", 0], found["big", 0]
        assert isinstance(trimmed, FirstRecord)
        assert isinstance(big, FirstRecord)
        assert (trimmed.offset, big.offset) == (4, 1)
        bounds = bounds_of_topics(cluster, None)
        assert bounds["trimmed", 0] == LogBounds(4, 10)
        assert bounds["marked", 0] == LogBounds(0, 4)


def test_lag_of_the_past_is_exact_while_the_broker_has_the_records(
    broker: LiveBroker, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # every group committed after the records came, so an earlier time than the first commit knows no group
    before = rows(capsys, "--store", str(store), "--bootstrap-server", broker.address, "--at", str(STARTED_MS))
    assert before == []
    now = rows(capsys, "--store", str(store), "--bootstrap-server", broker.address)
    at = str(SystemClock().now_ms() + DAY_MS)
    later = rows(capsys, "--store", str(store), "--bootstrap-server", broker.address, "--at", at)
    assert [(row["group"], row["lag"]) for row in later] == [(row["group"], row["lag"]) for row in now]


def test_samples_of_a_broker_are_what_it_answers(broker: LiveBroker, store: Path) -> None:
    clock = FixedClock(CLOCK.now_ms())
    sampler = PositionSampler(KafkaOptions(broker.address, {}), table_of(str(store)), "plain|trimmed", clock)
    assert sampler.sample() == 3
    clock.advance_ms(30_000)
    broker.produce("plain", 0, 2)
    assert sampler.sample() == 3
    sampler.close()
    found = read_samples(table_of(str(store)))
    assert {*found.latest()} == {("plain", 0), ("plain", 1), ("trimmed", 0)}
    assert found.series(("plain", 0)).log_end_offset.tolist() == [10, 12]
    # at the end it writes the last sample of those that stayed as they were
    assert found.series(("plain", 1)).log_end_offset.tolist() == [5, 5]
    assert found.series(("trimmed", 0)).log_start_offset.tolist() == [4, 4]


def coverage(bootstrap_server: str | None) -> ReportCoverage:
    """What the report covers, with positions from these brokers, or from the samples of the store."""
    asked = PositionsFrom(bootstrap_server=bootstrap_server, positions=None, client_options=(), command_config=None)
    return ReportCoverage(
        groups=(), positions_from=asked, rows=100, hours=1, stale_hours=1, within_hours=1, retention_minutes=None
    )


def note_follow(store: Path, settings: Settings, read_at_ms: int, topic_ends: Mapping[int, int]) -> None:
    """Note what `follow` notes of a log that it has read to the end at this time; the topic may have more by now."""
    ends = {row["log_partition"]: row["end_offset"] for row in table(store, "log_partitions").to_pylist()}
    reads = {}
    for at in range(5):
        end = ends.get(at, 0)
        topic_end = topic_ends.get(at, end)
        reads[at] = TopicRead(0, end, topic_end, topic_end, read_at_ms - DAY_MS, read_at_ms, None, None)
    opened = Store(cast("SparkSession", None), str(store), StoreProperties(MIRRORED, 5))
    LogMetadata(opened, SystemClock()).read(reads)


def shown_by_all(
    store: Path, broker: LiveBroker, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> set[tuple[str, int | None, int]]:
    """Group, lag and time that each command shows of the topic `paced`: all commands show the same."""
    at, live = ["--store", str(store)], ["--bootstrap-server", broker.address]
    named = ["--group", "healthy", "--group", "slow"]
    found: dict[str, set[tuple[str, int | None, int]]] = {}
    for with_broker in (live, []):
        name = " ".join(with_broker[:1])
        found[f"lag {name}"] = {
            (str(row["group"]), cast("int", row["lag"]), parse_time_ms(str(row["as_of"])))
            for row in rows(capsys, *at, *named, *with_broker)
        }
        found[f"lag --summary {name}"] = {
            (str(row["group"]), cast("int", row["lag"]), parse_time_ms(str(row["as_of"])))
            for row in rows(capsys, *at, *named, *with_broker, "--summary")
        }
        assert main(["groups", *at, *named, *with_broker, "--format", "json"]) == 0
        listed = json.loads(capsys.readouterr().out)["groups"]
        found[f"groups {name}"] = {(each["group"], each["lag"], parse_time_ms(each["lag_as_of"])) for each in listed}
        assert main(["top", *at, *named, *with_broker, "--rounds", "1", "--absolute"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
        found[f"top {name}"] = {(line[0], int(line[-2]), parse_time_ms(line[-1])) for line in lines}
        covered = coverage(broker.address if with_broker else None)
        report = collected(str(store), settings, covered)
        found[f"report {name}"] = {
            (row.group, row.lag, parse_time_ms(str(row.lag_as_of)))
            for row in report.groups.rows
            if row.group in ("healthy", "slow")
        }
    assert main(["describe", *at, *named, *live, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (time_ms,) = {time_ms for _, _, time_ms in found["lag "]}
    found["describe"] = {(name, group["offsets"][0]["lag"], time_ms) for name, group in document["groups"].items()}
    query = "SELECT group_id, lag, epoch_ms(as_of) FROM consumer_lag WHERE topic = 'paced'"
    with closing(LocalSql([StateReader(str(store))])) as local:
        found["sql"] = {(row[0], row[1], row[2]) for row in local.run(query)[1]}
    (shown, *others) = found.values()
    assert [name for name, each in found.items() if each != shown] == [], found
    assert others
    return shown


def test_all_commands_show_one_lag_while_a_mirror_is_behind_and_catches_up(
    broker: LiveBroker,
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R37: `follow` has died; then the broker gets 1,000 records, and the healthy group reads them all."""
    monkeypatch.setenv("COLUMNS", "200")  # so that `top` has each time in its row
    broker.create_topic("paced", 1)
    broker.produce("paced", 0, 20)
    broker.commit("healthy", {("paced", 0): 20})
    broker.commit("slow", {("paced", 0): 5})
    broker.wait_for_markers()
    behind = folded_segments(broker.folder, tmp_path / "behind", 5, settings)
    died_ms = SystemClock().now_ms()
    wait_until(lambda: SystemClock().now_ms() > died_ms, "the clock stands still")
    broker.produce("paced", 0, 1_000)
    broker.commit("healthy", {("paced", 0): 1_020})
    caught_up_ms = SystemClock().now_ms()
    note_follow(behind, settings, died_ms, topic_ends={})
    samples = [(("paced", 0), Sample(0, end, at_ms)) for end, at_ms in ((20, died_ms), (1_020, caught_up_ms))]
    SampleWriter(table_of(str(behind)), "a test").append(rows_of(samples, "a test"))
    assert shown_by_all(behind, broker, settings, capsys) == {("healthy", 0, died_ms), ("slow", 15, died_ms)}
    # what the broker has by now is the answer once the log has it, too
    current = folded_segments(broker.folder, tmp_path / "current", 5, settings)
    note_follow(current, settings, caught_up_ms, topic_ends={})
    SampleWriter(table_of(str(current)), "a test").append(rows_of(samples, "a test"))
    assert shown_by_all(current, broker, settings, capsys) == {
        ("healthy", 0, caught_up_ms),
        ("slow", 1_015, caught_up_ms),
    }
    # while it catches up, the report is not as of now, and says so
    note_follow(current, settings, died_ms, topic_ends=dict.fromkeys(range(5), 1_000_000))
    report = collected(str(current), settings, coverage(None))
    assert report.until_ms < report.made_ms
    assert any("lack " in each and "records of its topic" in each for each in report.warnings)
