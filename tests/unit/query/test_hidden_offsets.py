"""Offsets that a store holds and does not answer (R1, R14): no question may count them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import LagSettings
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.observability.group_metrics import GroupMetrics
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.group_listing import list_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.report.collect import ReportOptions, collect_report, reported_state
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.figures import exposed
from tests.logs import LogPartition
from tests.spark.stores import appended

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.questions.report.model import Report

OLD_MS, LATE_MS = 1_700_000_000_000, 1_700_000_600_000
NOW_MS = LATE_MS + 600_000
PARTITIONS = 4
TOPIC, OTHER = "t", "u"


def store_of(folder: Path, semantics: CoordinatorSemantics) -> str:
    """The group `answers` committed to OTHER long ago. All other offsets are newer, and none of them is answered."""
    logs = [LogPartition(at) for at in range(PARTITIONS)]

    def commit(group: str, topic: str, at_ms: int, log_partition: int | None = None) -> None:
        at = partition_for(group, PARTITIONS) if log_partition is None else log_partition
        logs[at].commit((group, topic, 0), 7, commit_timestamp=at_ms)

    commit("answers", OTHER, OLD_MS)
    elsewhere = (partition_for("answers", PARTITIONS) + 1) % PARTITIONS
    commit("answers", TOPIC, LATE_MS, elsewhere)  # R1: the log partition of the group answers
    if semantics is CoordinatorSemantics.MODERN:
        commit("misplaced", TOPIC, LATE_MS, (partition_for("misplaced", PARTITIONS) + 1) % PARTITIONS)
        for name, record_type in (("removed", 2), ("shared", 11)):
            commit(name, TOPIC, LATE_MS)
            logs[partition_for(name, PARTITIONS)].group(record_type, name)
        logs[partition_for("removed", PARTITIONS)].group_tombstone(2, "removed")
    create_tables(str(folder), StoreProperties(MIRRORED, PARTITIONS, coordinator_semantics=semantics))
    appended(folder, [row for log in logs for row in log.rows])
    return str(folder)


@pytest.fixture(params=list(CoordinatorSemantics))
def store(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return store_of(tmp_path / "store", request.param)


def test_no_group_is_listed_for_a_topic_of_hidden_offsets(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    def groups(*options: str) -> list[dict[str, Any]]:
        assert main(["groups", "--store", store, *options, "--format", "json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["groups"]
        return found

    assert groups("--topic", TOPIC) == []
    assert [(each["group"], each["offsets"]) for each in groups("--topic", OTHER)] == [("answers", 1)]
    assert [(each["group"], each["offsets"]) for each in groups("--topic", TOPIC, "--topic", OTHER)] == [("answers", 1)]


def test_lists_and_descriptions_have_the_same_offsets(store: str) -> None:
    reader = StateReader(store)
    described = {name: len(group.offsets) for name, group in describe_groups(reader).items()}
    assert {each.group: each.offsets for each in list_groups(reader)} == described
    assert {name: count for name, count in described.items() if count} == {"answers": 1}


def test_a_misplaced_group_is_listed_and_does_not_exist_when_it_is_named(tmp_path: Path) -> None:
    """R1: as a broker does, which lists what it has loaded and looks for a group in its log partition alone."""
    reader = StateReader(store_of(tmp_path / "store", CoordinatorSemantics.MODERN))
    assert "misplaced" in describe_groups(reader)
    assert describe_groups(reader, ["misplaced", "answers"]).keys() == {"answers"}


@pytest.mark.parametrize("is_past", [False, True])
def test_report_has_the_last_commit_of_answered_offsets(store: str, *, is_past: bool) -> None:
    found = report_of(store, is_past=is_past)
    assert found.last_commit_ms == OLD_MS
    assert {row.group: row.last_commit_ms for row in found.groups.rows if row.last_commit_ms} == {"answers": OLD_MS}


def report_of(store: str, *, is_past: bool) -> Report:
    reader = StateReader(store)
    options = ReportOptions(rows=10, hours=1, stale_hours=0, expiry_hours=1, retention=Retention())
    of, inputs = reported_state(reader, 0, NOW_MS if is_past else None)
    return collect_report(of, inputs, store, options, SampledPositions(read_samples(table_of(store)), NOW_MS))


def test_metrics_have_the_last_commit_of_answered_offsets(store: str) -> None:
    samples = table_of(store)
    reader = lambda: StateReader(store)  # noqa: E731
    metrics = GroupMetrics(reader, samples, LagSettings(), lambda _: 1, FixedClock(NOW_MS), lambda _: None)
    assert exposed(metrics.count)["offsets_group_last_commit_timestamp_seconds"] == {
        f'cluster_name="store",group="answers",topic="{OTHER}"': OLD_MS / 1000
    }
