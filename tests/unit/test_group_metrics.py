"""Metrics of groups, and the dashboard that asks for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import LagSettings
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.observability import group_metrics
from offsets_pipeline.observability.group_metrics import GroupMetrics, _of_commits
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.service.metrics.exposition import FAMILIES
from tests.figures import exposed
from tests.logs import LogPartition, commit_key, commit_value
from tests.member_bytes import assignment, subscription
from tests.unit.lag.stores import TimedRow, folded_store

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.figures import Figures

NOW_MS = 1_795_000_000_000
RETENTION_MS = 3_600_000
LAG = "kafka_consumergroup_group_topic_sum_lag"


@pytest.fixture
def store(tmp_path: Path, settings: Settings) -> Path:
    """Groups a, b and c, each with commits in the topics t (two partitions) and u; positions of t alone."""
    log = LogPartition()
    rows = []
    for number, group in enumerate("abc"):
        for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
            at_ms = NOW_MS - 60_000 * (number + 1)
            log.record(
                commit_key(group, topic, partition), commit_value(10 * number + partition, commit_timestamp=at_ms)
            )
            rows.append(TimedRow(log.rows[-1], at_ms))
    store = folded_store(rows, tmp_path / "store", 1, settings)
    writer = SampleWriter(table_of(str(store)), "a test")
    for minute in range(4):
        writer.write({("t", 0): (0, 10 * minute), ("t", 1): (0, 10 * minute)}, NOW_MS - (3 - minute) * 60_000)
    return store


def counted(store: Path, settings: LagSettings, warnings: list[str]) -> Figures:
    counts = GroupMetrics(
        lambda: StateReader(str(store)),
        table_of(str(store)),
        settings,
        lambda _: RETENTION_MS,
        FixedClock(NOW_MS),
        warnings.append,
    )
    counts.count()
    return exposed(counts.count)


def test_metrics_are_those_of_the_state_and_the_newest_positions(store: Path) -> None:
    warnings: list[str] = []
    found = counted(store, LagSettings(), warnings)
    assert found["kafka_consumergroup_group_sum_lag"] == {
        'cluster_name="store",group="a"': 59,  # 30 and 29; the end of u is not known
        'cluster_name="store",group="b"': 39,
        'cluster_name="store",group="c"': 19,
    }
    assert found[LAG] == {
        f'cluster_name="store",group="{group}",topic="t"': lag for group, lag in zip("abc", (59, 39, 19), strict=True)
    }
    assert found["kminion_kafka_consumer_group_topic_offset_sum"].get('group_id="c",topic_name="t"') == 41
    # offset 10 came in the second of three minutes, 20 in the last one
    seconds = found["kafka_consumergroup_group_max_lag_seconds"]
    assert abs(seconds.get('cluster_name="store",group="b"', 0) - 117) < 1
    assert (
        found["offsets_group_topic_max_lag_seconds"].get('cluster_name="store",group="b",topic="t"')
        == seconds['cluster_name="store",group="b"']
    )
    assert (
        found["offsets_group_last_commit_timestamp_seconds"].get('cluster_name="store",group="b",topic="u"')
        == NOW_MS / 1000 - 120
    )
    assert found["kminion_kafka_consumer_group_info"] == {
        f'group_id="{group}",protocol="",protocol_type="",state="Empty"': 0 for group in "abc"
    }
    assert found["kminion_kafka_consumer_group_members"] == dict.fromkeys("abc", 0)
    # no commit followed the only one; c is behind for less than a minute
    assert found["offsets_group_partitions"] == {
        f'cluster_name="store",group="{group}",status="STOP"': 2 for group in "ab"
    }
    assert found["offsets_group_next_expiry_timestamp_seconds"] == {
        f'cluster_name="store",group="{group}"': (NOW_MS + RETENTION_MS) / 1000 - 60 * (number + 1)
        for number, group in enumerate("abc")
    }
    assert found["offsets_positions_timestamp_seconds"] == {"": NOW_MS / 1000}
    assert not any('partition="' in labels for series in found.values() for labels in series)
    assert warnings == []


def test_a_group_that_has_not_read_what_the_first_sample_saw_is_behind_since_then(
    tmp_path: Path, settings: Settings
) -> None:
    """Without a value the alert OffsetsGroupBehind is silent; a bound of less than a minute is none."""
    log = LogPartition()
    log.record(commit_key("g", "t", 0), commit_value(5, commit_timestamp=NOW_MS - 3_600_000))
    location = folded_store([TimedRow(log.rows[0], NOW_MS - 3_600_000)], tmp_path / "store", 1, settings)
    writer = SampleWriter(table_of(str(location)), "a test")
    at_ms = NOW_MS - 600_000
    writer.write({("t", 0): (0, 50)}, at_ms)
    labels = 'cluster_name="store",group="g"'
    seconds = list[float | None]()
    for later_ms in (0, 60_000, 61_000, 600_000):
        writer.write({("t", 0): (0, 50 + later_ms)}, at_ms + later_ms)
        found = counted(location, LagSettings(), [])
        seconds.append(found["kafka_consumergroup_group_max_lag_seconds"].get(labels))
    assert seconds == [None, None, 61, 600]


def test_partitions_have_metrics_if_the_settings_ask_for_them(store: Path) -> None:
    found = counted(store, LagSettings(metrics_partitions=True), [])
    labels = 'cluster_name="store",group="a",partition="1",topic="t"'
    assert found["kafka_consumergroup_group_offset"].get(labels) == 1
    assert found["kafka_consumergroup_group_lag"].get(labels) == 29
    assert found["kafka_partition_latest_offset"] == {
        f'cluster_name="store",partition="{partition}",topic="t"': 30 for partition in (0, 1)
    }
    assert found["kafka_partition_earliest_offset"] == dict.fromkeys(found["kafka_partition_latest_offset"], 0)
    assert len(found["kafka_consumergroup_group_offset"]) == 9


def test_number_of_series_is_bounded_and_groups_are_chosen(store: Path) -> None:
    warnings: list[str] = []
    found = counted(store, LagSettings(metrics_max_series=4), warnings)  # two topics a group
    assert {*found[LAG]} == {f'cluster_name="store",group="{group}",topic="t"' for group in "ab"}
    assert found["offsets_groups_without_metrics"] == {"": 1}
    assert len(warnings) == 1  # not again with the next count
    assert warnings[0].startswith("1 group without metrics, 'c' and those after it: raise metrics_max_series")
    chosen = counted(store, replace(LagSettings(), metrics_groups="b|none"), warnings)
    assert {*chosen["kminion_kafka_consumer_group_members"]} == {"b"}
    for name in ("offsets_group_next_expiry_timestamp_seconds", LAG):
        assert set(re.findall(r'group="(.*?)"', " ".join(chosen[name]))) == {"b"}, name
    assert chosen["offsets_groups_without_metrics"] == {"": 0}


def test_groups_with_any_id_have_metrics_and_an_assigned_partition_is_no_offset_0(
    tmp_path: Path, settings: Settings
) -> None:
    log = LogPartition()
    for group in ("a\nb", "", "c"):
        log.commit((group, "t", 0), 7)
    store = folded_store([TimedRow(row, NOW_MS) for row in log.rows], tmp_path / "odd", 1, settings)
    found = counted(store, LagSettings(), [])
    assert len(found["kminion_kafka_consumer_group_members"]) == 3
    assert found["offsets_groups_without_metrics"] == {"": 0}
    committed = {("g", "t", 0): None, ("g", "u", 0): None, ("g", "u", 1): 5}
    assert _of_commits("c", {}, committed)["kminion_kafka_consumer_group_topic_offset_sum"] == {("g", "u"): 5}


def test_a_status_is_judged_for_the_groups_that_are_behind_for_longest(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_metrics, "MANY_GROUPS", 1)
    log = LogPartition()
    for place, offset in ((("a", "t", 0), 10), (("b", "t", 0), 0), (("c", "u", 0), 5)):  # for 2, 3 and unknown minutes
        log.record(commit_key(*place), commit_value(offset, commit_timestamp=NOW_MS - 600_000))
    store = folded_store([TimedRow(row, NOW_MS - 600_000) for row in log.rows], tmp_path / "store", 1, settings)
    writer = SampleWriter(table_of(str(store)), "a test")
    for minute in range(4):
        writer.write({("t", 0): (0, 10 * minute)}, NOW_MS - (3 - minute) * 60_000)
    writer.write({("u", 0): (0, 9)}, NOW_MS)
    found = counted(store, LagSettings(), [])
    assert found["offsets_group_partitions"] == {'cluster_name="store",group="b",status="STOP"': 1}


@pytest.mark.parametrize(("behind_seconds", "partitions"), [(60, 0), (61, 1)])
def test_a_group_that_is_behind_for_a_minute_has_no_status_yet(
    tmp_path: Path, settings: Settings, behind_seconds: int, partitions: int
) -> None:  # docs/metrics.md: for over a minute
    log = LogPartition()
    begun_ms = NOW_MS - 2000 * behind_seconds
    log.record(commit_key("g", "t", 0), commit_value(0, commit_timestamp=begun_ms))
    location = folded_store([TimedRow(log.rows[0], begun_ms)], tmp_path / "store", 1, settings)
    writer = SampleWriter(table_of(str(location)), "a test")
    for end, at_ms in ((0, begun_ms), (1, NOW_MS)):  # the only record came halfway between the two
        writer.write({("t", 0): (0, end)}, at_ms)
    found = counted(location, LagSettings(), [])
    assert found["kafka_consumergroup_group_max_lag_seconds"] == {'cluster_name="store",group="g"': behind_seconds}
    assert len(found["offsets_group_partitions"]) == partitions


def test_groups_have_their_epoch_or_generation_from_their_own_log_partition(tmp_path: Path, settings: Settings) -> None:
    logs = [LogPartition(0), LogPartition(1)]
    member = {"member_id": "m", "client_id": "c", "client_host": "h", "session_timeout": 1}
    member |= {"subscription": b"", "assignment": b""}
    common: dict[str, Any] = {"protocol_type": "consumer", "protocol": "range", "members": [member]}
    homes = {name: partition_for(name, 2) for name in ("old", "older")}
    assert set(homes.values()) == {0, 1}
    for name, home in homes.items():  # a group is misplaced in the other log partition (R1)
        logs[home].group(2, name, generation=7, **common)
        logs[1 - home].group(2, name, generation=9, **common)
    logs[1 - partition_for("lost", 2)].group(2, "lost", generation=9, **common)
    logs[partition_for("new", 2)].group(3, "new", epoch=4)
    rows = [TimedRow(row, NOW_MS) for log in logs for row in log.rows]
    store = folded_store(rows, tmp_path / "store", 2, settings)
    found = counted(store, LagSettings(), [])
    assert found["offsets_group_epoch"] == {
        'cluster_name="store",group="old"': 7,
        'cluster_name="store",group="older"': 7,
        'cluster_name="store",group="new"': 4,
    }
    assert found["kminion_kafka_consumer_group_members"] == {"old": 1, "older": 1, "new": 0}
    assert found["kminion_kafka_consumer_group_info"] == {
        'group_id="old",protocol="range",protocol_type="consumer",state="Stable"': 1,
        'group_id="older",protocol="range",protocol_type="consumer",state="Stable"': 1,
        'group_id="new",protocol="uniform",protocol_type="consumer",state="Empty"': 0,
    }
    for most, left_out in ((3, 0), (2, 1)):  # a group without offsets counts as one series
        found = counted(store, LagSettings(metrics_max_series=most), [])
        assert found["offsets_groups_without_metrics"] == {"": left_out}


def test_an_assigned_partition_without_a_commit_has_no_committed_offset(tmp_path: Path, settings: Settings) -> None:
    log = LogPartition()
    member = {"member_id": "m", "client_id": "c", "client_host": "h", "session_timeout": 1}
    member |= {"subscription": subscription("t"), "assignment": assignment("t", 0, 1)}
    log.group(2, "g", protocol_type="consumer", protocol="range", generation=1, members=[member])
    log.commit(("g", "t", 0), 7)
    store = folded_store([TimedRow(row, NOW_MS) for row in log.rows], tmp_path / "store", 1, settings)
    SampleWriter(table_of(str(store)), "a test").write({("t", 0): (0, 10), ("t", 1): (0, 10)}, NOW_MS)
    found = counted(store, LagSettings(metrics_partitions=True), [])
    assert found["kafka_consumergroup_group_offset"] == {'cluster_name="store",group="g",partition="0",topic="t"': 7}
    assert len(found["kafka_partition_latest_offset"]) == 2


def test_dashboard_asks_for_metrics_and_labels_that_exist(root: Path) -> None:
    dashboard = json.loads((root / "conf" / "grafana" / "consumer-lag.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len(queries) > 15
    used = set()
    for query in queries:
        for name, labels in re.findall(r"\b((?:kafka|kminion|offsets)_\w+)(?:\{([^}]*)\})?", query):
            used.add(name)
            known = set(FAMILIES[name].labels)
            assert set(re.findall(r"(\w+)=~?", labels)) <= known, query
    assert len(used) > 8
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
