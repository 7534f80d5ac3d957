"""Figures in Prometheus' text format."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import MetricsUnavailable
from offsets_pipeline.metrics.metric_registry import HELP, Metrics
from offsets_pipeline.metrics.metrics_server import serve_metrics

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = """\
# HELP offsets_records_read_total Records of the topic that were appended to the log.
# TYPE offsets_records_read_total counter
offsets_records_read_total 5
# HELP offsets_log_behind_topic_records Record offsets up to the topic's high watermark that were not read yet.
# TYPE offsets_log_behind_topic_records gauge
offsets_log_behind_topic_records{log_partition="1"} 3
# HELP offsets_batch_duration_seconds Duration of the batches of a query.
# TYPE offsets_batch_duration_seconds summary
offsets_batch_duration_seconds_count{query="a\\"b"} 2
offsets_batch_duration_seconds_sum{query="a\\"b"} 0.75
"""


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics()
    for records in (2, 3):
        found.add("offsets_records_read_total", records)
    found.set_all("offsets_log_behind_topic_records", "log_partition", {0: 1})
    found.set_all("offsets_log_behind_topic_records", "log_partition", {1: 3})  # 0 is not there any more
    found.set_all("offsets_topic_open_transaction_seconds", "log_partition", {})
    for seconds in (0.5, 0.25):
        found.add("offsets_batch_duration_seconds_sum", seconds, query='a"b')
        found.add("offsets_batch_duration_seconds_count", 1, query='a"b')
    return found


def test_metrics_are_in_prometheus_text_format(metrics: Metrics, tmp_path: Path) -> None:
    assert metrics.text() == EXPECTED
    metrics.write(tmp_path / "metrics.prom")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]
    assert (tmp_path / "metrics.prom").read_text() == EXPECTED
    with pytest.raises(MetricsUnavailable, match="cannot write metrics to"):
        metrics.write(tmp_path / "none" / "metrics.prom")


def test_metrics_are_served_over_http(metrics: Metrics) -> None:
    server = serve_metrics(metrics, "127.0.0.1", 0)
    try:
        at = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{at}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == EXPECTED
        with pytest.raises(urllib.error.HTTPError) as no:
            urllib.request.urlopen(f"{at}/other", timeout=10)
        no.value.close()
        with pytest.raises(MetricsUnavailable, match="cannot serve metrics at"):
            serve_metrics(metrics, "127.0.0.1", server.port)
        for host in ("evil.example", "127.0.0.1.evil.example"):
            named = urllib.request.Request(f"{at}/metrics", headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError, match="400") as no:
                urllib.request.urlopen(named, timeout=10)
            no.value.close()
    finally:
        server.stop()


def test_documentation_names_every_figure(root: Path) -> None:
    lines = (root / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")
    ]
    assert rows == [[name, told.kind, told.label or "", told.text] for name, told in HELP.items()]
