"""The baseline of the benchmarks: a real broker has to load every record of a generated log before its time counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import BrokerError, broker_load_seconds
from benchmarks.generate import generate
from benchmarks.log_content import Shape
from tests.kafka.brokers import fetch_kafka

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process  # brokers load the log


def test_a_brokers_time_counts_if_it_loaded_all_commits_and_markers(tmp_path: Path) -> None:
    fetch_kafka()
    log = generate(Shape(commits=2000, groups=50, offsets_partitions=2, transactional=0.5), tmp_path / "segments")
    assert log.records > 2000
    assert len(broker_load_seconds(log.folder, 2, log.records, repeats=1)) == 1
    with pytest.raises(BrokerError, match=rf"^the broker loaded {log.records} records of 2000: its time tells nothing"):
        broker_load_seconds(log.folder, 2, 2000, repeats=0)
