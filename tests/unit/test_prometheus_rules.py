"""The rules of conf/prometheus fire for incidents, and for nothing else, over the metrics of half an hour."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client.exposition import generate_latest

from offsets_pipeline.common.clock import FixedClock, SystemClock
from offsets_pipeline.common.config.sections import LagSettings
from offsets_pipeline.errors import BrokerUnreachable
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.observability.group_metrics import GroupMetrics
from offsets_pipeline.observability.operator_log import FollowedTopic, OperatorLog
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.service.metrics.exposition import FAMILIES, registry_of
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.store import Store
from tests.promtool import Promtool, find_promtool
from tests.unit.lag.stores import append_and_fold
from tests.unit.test_figures import progress
from tests.unit.test_status import MINUTE_MS, START_MS, TimedLog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings

#: Minutes of the incidents.
BROKEN, AWAY, END = 6, 24, 36
RETENTION_MS = 10_080 * MINUTE_MS


@pytest.fixture
def promtool(root: Path, tmp_path: Path) -> Promtool:
    return find_promtool(root / "conf" / "prometheus" / "offsets.rules.yml", tmp_path)


def write_minute(log: TimedLog, minute: int, at_ms: int) -> None:
    """What the coordinator writes in this minute; the topic `t` has 100 records more each minute."""
    end = 100 * minute
    log.commit("well", "t", end, at_ms)
    if minute < BROKEN:
        log.commit("stops", "t", end, at_ms)
    log.commit("rewinds", "t", end if minute < BROKEN else end - 500 + 10 * (minute - BROKEN), at_ms)
    if minute == 0:
        for group in ("loops", "leaves"):
            log.members(group, 1, "ab", at_ms)
        log.commit("expires", "t", 100 * END, at_ms - RETENTION_MS + 24 * 60 * MINUTE_MS + BROKEN * MINUTE_MS)
        log.at(at_ms).group(11, "shares", epoch=1)
        log.at(at_ms).group(10, "shares", "m")
    if minute == BROKEN:
        log.members("leaves", 2, "", at_ms)
        log.at(at_ms).group_tombstone(10, "shares", "m")
    if minute > BROKEN:
        log.members("loops", minute, "ab", at_ms)


@pytest.mark.slow  # 24 folds
def test_each_incident_has_its_alert(
    promtool: Promtool, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, clock = str(tmp_path / "store"), FixedClock(START_MS)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: clock.at_ms)
    create_tables(location, StoreProperties(MIRRORED, 1))
    store = Store.open(cast("SparkSession", None), location)
    samples = table_of(location)
    topic = FollowedTopic("t", OperatorLog(clock, only_warnings=True), clock)
    groups = GroupMetrics(
        lambda: StateReader(location), samples, LagSettings(), lambda _: RETENTION_MS, clock, pytest.fail
    )
    log, writer, scrapes = TimedLog(), SampleWriter(samples, "a test"), []
    for minute in range(END):
        clock.at_ms = START_MS + minute * MINUTE_MS
        if minute < AWAY:
            appended = len(log.log.rows)
            write_minute(log, minute, clock.at_ms)
            log.at(clock.at_ms)
            append_and_fold(store, log.rows[appended:], settings)
            writer.write({("t", 0): (0, 100 * minute)}, clock.at_ms)
            open_since = {} if minute < BROKEN else {0: START_MS + BROKEN * MINUTE_MS}
            topic.looked(progress({0: 5}, {0: LogPartitionBounds(0, 5, 6)}, open_since))
        else:
            topic.unreachable(BrokerUnreachable("away"))
        scrapes.append((clock.at_ms / 1000, generate_latest(registry_of(topic.values, groups.count)).decode()))

    def of(group: str) -> str:
        return f'cluster_name="store", group="{group}"'

    lasting = {
        "OffsetsGroupStopped": [of("stops")],
        "OffsetsGroupBehind": [of("stops")],
        "OffsetsExpireSoon": [of("expires")],
        "OffsetsGroupWithoutMembers": ['group_id="leaves"', 'group_id="shares"'],
        "OffsetsNoCommits": [of("stops")],
    }
    # a group is rewound as long as one of its last ten commits is above the last one
    first = {"OffsetsGroupRewound": [of("rewinds")], "OffsetsExpireSoon": [of("expires")]}
    passing = {"OffsetsRebalanceLoop": [of("loops")], "OffsetsOpenTransaction": ['log_partition="0"']}
    away = {"OffsetsBrokerAway": [""], "OffsetsMirrorBehind": [""]}
    promtool.assert_firing(
        scrapes,
        {BROKEN - 1: {}, BROKEN + 3: first, AWAY - 1: {**lasting, **passing}, END - 1: {**lasting, **away}},
    )


@pytest.mark.parametrize(("epochs", "is_loop"), [("500x3 _ 1x6", False), ("5+2x20", True), ("5+1x20", False)])
def test_a_group_that_was_removed_and_came_back_does_not_rebalance_without_end(
    promtool: Promtool, epochs: str, is_loop: bool
) -> None:
    firing = 'ALERTS{alertname="OffsetsRebalanceLoop",alertstate="firing"}'
    fired = [{"labels": firing.replace("}", ',group="g",severity="critical"}'), "value": 1}] if is_loop else []
    expected = {"expr": firing, "eval_time": "9m", "exp_samples": fired}
    promtool.test({'offsets_group_epoch{group="g"}': epochs}, [expected])


@pytest.mark.parametrize(("up", "is_away"), [("1 0x5", True), ("1 0 1x4", False), ("0x2 1x4", False)])
def test_a_store_that_cannot_be_written_is_away(promtool: Promtool, up: str, is_away: bool) -> None:
    firing = 'ALERTS{alertname="OffsetsStoreAway",alertstate="firing"}'
    fired = [{"labels": firing.replace("}", ',severity="critical"}'), "value": 1}] if is_away else []
    promtool.test({"offsets_store_up": up}, [{"expr": firing, "eval_time": "4m", "exp_samples": fired}])


def test_dashboard_has_data_in_each_panel(promtool: Promtool, root: Path) -> None:
    """Prometheus itself evaluates the queries, over a sample of each metric."""
    dashboard = json.loads((root / "conf" / "grafana" / "consumer-lag.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = [re.sub(r"\$\w+", ".*", query) for query in queries]
    promtool.assert_have_data(shown, {name: each.labels for name, each in FAMILIES.items()})


def test_rules_are_right_and_ask_for_metrics_that_exist(promtool: Promtool, root: Path) -> None:
    rules = root / "conf" / "prometheus" / "offsets.rules.yml"
    assert "SUCCESS: 13 rules found" in promtool.run("check", "rules", rules)
    asked = set(re.findall(r"\b(?:kafka|kminion|offsets)_\w+", rules.read_text(encoding="utf-8")))
    assert len(asked) > 8
    assert asked <= FAMILIES.keys()
    documented = re.findall(r"`(Offsets\w+)`", (root / "docs" / "operations.md").read_text(encoding="utf-8"))
    assert [*dict.fromkeys(documented)] == re.findall(r"alert: (\w+)", rules.read_text(encoding="utf-8"))
