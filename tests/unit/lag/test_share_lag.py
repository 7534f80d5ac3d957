"""Lag of share groups, in rows, problems and metrics, against what Kafka's tools said of a recorded log (R39)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, SystemClock, shown_time
from offsets_pipeline.common.config.sections import LagSettings
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.observability.group_metrics import GroupMetrics
from offsets_pipeline.questions.query.share_partitions import share_groups, share_groups_until, share_partitions
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.log.metadata import note_topics
from tests.figures import exposed
from tests.folded_stores import opened
from tests.logs import CAPTURES
from tests.spark.stores import CLOCK, appended
from tests.unit.lag.stores import note_files_read_now
from tests.unit.share_logs import IN_DRIVER, answers, share_rows, share_store

if TYPE_CHECKING:
    import random

MINUTE_MS = 60_000
START_MS = 1_795_000_000_000
NOW_MS = START_MS + 3 * MINUTE_MS


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The recorded log, read now. The last four records are two minutes younger than the others."""
    location = share_store(tmp_path / "share")
    rows = share_rows()
    note_topics(opened(tmp_path / "share"), {(key, name) for name, key in answers()["topic_ids"].items()})
    for at_ms, some in ((START_MS, rows[:-4]), (START_MS + 2 * MINUTE_MS, rows[-4:])):
        appended(location, some, record_timestamp=at_ms * 1000, appended_ms=at_ms)
    note_files_read_now(opened(tmp_path / "share"), rows)
    fold_log(opened(tmp_path / "share"), IN_DRIVER, CLOCK)
    return location


def sampled(store: str, minute: int, orders: int, gone: int) -> None:
    ends = {("orders", 0): (0, orders), ("gone", 0): (0, gone)}
    SampleWriter(table_of(store), "a test").write(ends, START_MS + minute * MINUTE_MS)


@pytest.fixture
def now_sampled(store: str) -> str:
    """The store with the log ends that the broker had, and with earlier ones."""
    for minute, orders, gone in ((-10, 0, 0), (1, 40, 20), (3, answers()["log_ends"]["orders"], 20)):
        sampled(store, minute, orders, gone)
    return store


def lags(capsys: pytest.CaptureFixture[str], store: str, *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["lag", "--store", store, "--format", "json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def counted(store: str, settings: LagSettings) -> dict[str, dict[str, float]]:
    found = GroupMetrics(
        *(lambda: StateReader(store), table_of(store), settings, lambda _: 1, FixedClock(NOW_MS), lambda _: None)
    )
    return exposed(found.count)


def test_lag_is_what_the_broker_answers(now_sampled: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = lags(capsys, now_sampled)
    names = {
        "group": "GROUP",
        "topic": "TOPIC",
        "partition": "PARTITION",
        "current_offset": "START-OFFSET",
        "lag": "LAG",
    }
    shown = [{to: "-" if row[name] is None else str(row[name]) for name, to in names.items()} for row in rows]
    assert shown == [{name: each[name] for name in names.values()} for each in answers()["described"]]
    mixed, open_, reset = rows
    assert (mixed["lag_seconds"], open_["lag_seconds"], reset["lag_seconds"]) == (87, 763.5, None)
    assert (mixed["log_end_offset"], mixed["status"], mixed["stale"]) == (60, None, [])
    assert {row["as_of"] for row in rows} == {shown_time(NOW_MS)}
    assert (mixed["reason"], reset["reason"]) == (None, "the broker wrote no count of complete deliveries")


def test_start_offset_is_of_the_time_of_the_newest_sample(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for minute, orders in ((-10, 0), (1, 40)):
        sampled(store, minute, orders, 20)
    (row,) = lags(capsys, store, "--group", "mixed")
    assert row["as_of"] == shown_time(START_MS + MINUTE_MS)
    assert (row["current_offset"], row["lag"]) == (3, 40 - 3 - 23)  # of record 2 of the recorded log
    assert counted(store, LagSettings())["kafka_consumergroup_group_sum_lag"] == {
        'cluster_name="share",group="mixed"': 14,
        'cluster_name="share",group="open"': 3,
    }


def test_a_state_that_is_not_known_at_that_time_has_no_lag(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    sampled(store, -1, 0, 0)
    (row,) = lags(capsys, store, "--group", "open")
    assert (row["current_offset"], row["lag"]) == (None, None)
    assert row["reason"] == "no start offset of the share partition is known"


def test_start_offsets_of_any_time_are_those_of_the_records_up_to_then(tmp_path: Path, chance: random.Random) -> None:
    rows = sorted(share_rows(), key=lambda row: (row.record_offset, row.log_partition))
    location = share_store(tmp_path / "whole")
    for number, row in enumerate(rows):
        appended(location, [row], record_timestamp=(START_MS + number) * 1000, appended_ms=START_MS + number)
    fold_log(opened(tmp_path / "whole"), IN_DRIVER, CLOCK)
    reader = StateReader(location)
    for count in chance.sample(range(1, len(rows)), 4):
        until = share_groups_until(reader, share_groups(reader, {}), START_MS + count - 1, 0)
        expected = share_groups(StateReader(share_store(tmp_path / str(count), rows[:count])), {})
        for name, group in until.items():
            (start,) = group.offsets
            (then,) = expected[name].offsets if name in expected else [replace(start, offset=-1, committed_ms=None)]
            assert start == then


def test_a_store_of_groups_has_no_share_partitions(tmp_path: Path) -> None:
    create_tables(str(tmp_path / "groups"), StoreProperties(MIRRORED, 1))
    reader = StateReader(str(tmp_path / "groups"))
    for ask in (lambda: share_groups(reader, {}), lambda: share_partitions(reader, {}, {})):
        with pytest.raises(StoreMismatch, match="holds a topic of the kind consumer-offsets"):
            ask()


def test_share_partitions_are_in_the_order_of_group_topic_and_partition() -> None:
    columns = (
        *("group_id", "topic_id", "partition", "start_offset", "delivery_complete_count", "state_epoch"),
        *("leader_epoch", "state_batches", "log_partition"),
    )
    of_all: tuple[object, ...] = 7, 0, [], 0  # state epoch, leader epoch, batches, log partition
    rows = [
        ("h", "A", 0, 5, 2, *of_all),
        ("g", "A", 1, 5, 2, *of_all),
        ("g", "C", 0, 5, 2, *of_all),
        ("g", "B", 0, 9, 2, *of_all),
        ("g", "A", 0, -1, 2, *of_all),  # no start offset
        ("g", "A", 2, 5, None, *of_all),
        ("g", "A", 3, 5, 2, None, *of_all[1:]),  # deleted
    ]
    table = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows])
    reader = SimpleNamespace(
        properties=SimpleNamespace(require_topic_kind=lambda *_: None),
        location="",
        current=SimpleNamespace(newest=lambda *_: table),
    )
    names = {"A": "z", "B": "a"}
    found = share_partitions(
        cast("StateReader", reader), names, {("z", 0): 10, ("z", 1): 10, ("z", 2): 10, ("a", 0): 10}
    )
    assert [(each.group, each.topic, each.topic_id, each.partition, each.lag) for each in found] == [
        ("g", None, "C", 0, None),
        ("g", "a", "B", 0, 0),  # the broker has not counted all of them yet
        ("g", "z", "A", 0, None),
        ("g", "z", "A", 1, 3),
        ("g", "z", "A", 2, None),
        ("h", "z", "A", 0, 3),
    ]


def test_topic_without_a_name_has_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = lags(capsys, share_store(tmp_path / "share", share_rows()), "--group", "op*")
    assert (row["topic"], row["lag"]) == (answers()["topic_ids"]["gone"], None)
    assert row["reason"] == "no position of the partition is known"


def test_groups_have_a_row_without_state_and_members(now_sampled: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = [(row["group"], row["state"], row["members"], row["lag"]) for row in lags(capsys, now_sampled, "--summary")]
    assert found == [("mixed", None, None, 2), ("open", None, None, 3), ("reset", None, None, None)]


def test_status_shows_a_share_group_that_is_behind(now_sampled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--store", now_sampled, "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["problems"]
    assert (found["problem"], found["group"], found["lag"], found["detail"]) == ("behind", "open", 3, "gone-0")
    assert main(["check", "--store", now_sampled, "--behind", "PT1H"]) == 0
    assert main(["check", "--store", now_sampled]) == 1


def test_metrics_have_the_lag_of_share_groups(now_sampled: str) -> None:
    found = counted(now_sampled, LagSettings(metrics_partitions=True))
    labels = {
        name: f'cluster_name="share",group="{name}",partition="0",topic="{topic}"'
        for name, topic in (("mixed", "orders"), ("open", "gone"), ("reset", "orders"))
    }
    assert found["kafka_consumergroup_group_lag"] == {labels["mixed"]: 2, labels["open"]: 3}
    assert found["kafka_consumergroup_group_offset"] == {labels["mixed"]: 45, labels["open"]: 0, labels["reset"]: 0}
    assert found["kafka_consumergroup_group_max_lag_seconds"]['cluster_name="share",group="mixed"'] == 87
    assert found["offsets_data_timestamp_seconds"] == {"": NOW_MS / 1000}
    assert not {name for name in found if name.startswith("kminion")}


def test_a_share_partition_that_no_member_has_read_has_no_start_offset(tmp_path: Path) -> None:
    """The broker initializes it with -1."""
    rows = [row for row in share_rows() if row.log_partition == 0 or (row.log_partition, row.record_offset) == (2, 0)]
    found = counted(share_store(tmp_path / "share", rows), LagSettings(metrics_partitions=True))
    assert found["kafka_consumergroup_group_offset"] == {
        f'cluster_name="share",group="open",partition="0",topic="{answers()["topic_ids"]["gone"]}"': 0
    }


#: Commands with their options, but for --store.
ANSWERED = ("lag", "share-partitions", "status", "check", "log-info", "sql --tables", "name-cluster lab")
#: The same, by a part of the one line of the error.
REFUSED = {
    "share-group-state": (
        *("describe --all-groups", "groups", "top --rounds 1", "fetch --group g --topic t", "report --html r.html"),
        *("as-of --group g --time 2026-11-20T19:07Z", "lag --at 2026-11-20T19:07Z", "history --group g", "serve"),
        *("why --group g --topic t --partition 0", "export-segments --to s", "expire-offsets --dry-run"),
        *("reset-offsets --group g --topic t --to-earliest", "connect list", "connect describe --connector c"),
        *(
            f"{words} --bootstrap-server localhost:1"
            for words in ("restore --as-of 2026-11-20T19:07Z", "delete-group --group g")
        ),
    ),
    "the broker": (
        *("commit --group g t:0=1", "delete-offsets --group g t:0", "delete-group --group g", "expire-offsets"),
        *("connect config --connector c", "connect stop --connector c", "connect pause --connector c"),
        *("connect resume --connector c", "connect reset --connector c", "connect delete --connector c"),
        *("connect serve", "connect alter --connector c --offsets offsets.json", "import-zookeeper --dump dump.txt"),
        f"import-checkpoint --group g {CAPTURES.parent}/checkpoints/spark-4.2-v1",
    ),
    "store": ("create", "snapshot --bootstrap-server localhost:1"),
    "format 6": ("upgrade --to new",),
}
#: These start Spark, or ask a broker, or read files in place of a store.
OTHERS = {
    *("ingest-segments", "ingest-topic", "follow", "fold", "reload", "verify", "maintain", "clean-log", "create-views"),
    *("sample-topic-offsets", "dump"),
}


def test_each_command_answers_or_refuses_in_one_line(
    now_sampled: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dump.txt").write_text("/consumers/g/offsets/t/0 1\n")
    Path("offsets.json").write_text('{"offsets": []}')
    every = re.findall(r"^\| `([a-z -]+)` \|", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    tried = [*ANSWERED, *(each for commands in REFUSED.values() for each in commands)]
    assert [each for each in every if each not in OTHERS and not any(words.startswith(each) for words in tried)] == []
    for words in ANSWERED:
        status = main([*words.split(), "--store", now_sampled])
        assert status == (words == "check"), words  # which has a warning
    wrong = []
    for reason, commands in REFUSED.items():
        for words in commands:
            capsys.readouterr()
            status = main([*words.split(), "--store", now_sampled])
            out, err = capsys.readouterr()
            if (status, out, err.count("\n")) != (1, "", 1) or reason not in err:
                wrong.append((words, status, out, err))
    assert wrong == []
