"""`offsets status`, `check` and the rules for Prometheus tell of a group that stops, on what `follow` wrote."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.kafka.live import live_broker
from tests.programs import in_process
from tests.promtool import find_promtool

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.kafka.brokers import KafkaJvm

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def test_group_that_stops_has_an_alert_and_a_row_and_the_others_have_none(
    kafka: KafkaJvm, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    store, file = tmp_path / "store", tmp_path / "metrics.prom"
    scrapes = []
    with live_broker(kafka, tmp_path / "broker", 5) as broker:
        broker.create_topic("t", 1)
        command = ("follow", "--store", store, "--bootstrap-server", broker.address, "--available-now")
        ask = (
            "--store",
            store,
            "--bootstrap-server",
            broker.address,
            "--retention-minutes",
            "100000",
            "--behind",
            "PT0.5S",
        )
        for end in (10, 20):
            broker.produce("t", 0, 10)
            broker.commit("well", {("t", 0): end})
            if end == 10:
                broker.commit("stops", {("t", 0): end})
            time.sleep(1)  # so that the lag in time has a number
            done = in_process(root, *command, "--metrics-file", file)
            assert (done.returncode, done.stderr) == (0, "")
            scrapes.append((time.time(), file.read_text()))
            if end == 10:
                assert in_process(root, "status", *ask).stdout == ""
                assert in_process(root, "check", *ask).stdout.startswith("OK: 0 errors, 0 warnings, as of ")
        (row,) = json.loads(in_process(root, "status", *ask, "--format", "json").stdout)["problems"]
        assert (row["status"], row["problem"], row["group"], row["lag"]) == ("ERR", "stopped", "stops", 10)
        checked = in_process(root, "check", *ask)
        assert (checked.returncode, checked.stdout.count("\n")) == (2, 1)
    stopped = 'cluster_name="store", group="stops"'
    promtool = find_promtool(root / "conf" / "prometheus" / "offsets.rules.yml", tmp_path)
    # the second scrape lasts, as that of a process that hangs
    promtool.assert_firing(
        scrapes,
        {1: {}, 18: {"OffsetsNoCommits": [stopped], "OffsetsMirrorBehind": [""]}},
    )
