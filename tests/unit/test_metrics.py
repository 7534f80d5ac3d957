"""Metrics in Prometheus' text format.

The expected text is worked out by hand from the definition of the format. The parser of prometheus_client would not be
an independent reader: the same package writes the text.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import ServiceUnavailable, TargetNotWritable
from offsets_pipeline.service.metrics.exposition import FAMILIES, registry_of, serve_metrics, write_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client.registry import CollectorRegistry

    from offsets_pipeline.service.metrics.exposition import Values

EXPECTED = """\
# HELP offsets_records_read_total Records of the topic that were appended to the log.
# TYPE offsets_records_read_total counter
offsets_records_read_total 5.0
# HELP offsets_topic_last_success_timestamp_seconds Time of the last successful request about the topic, in seconds \
since 1970.
# TYPE offsets_topic_last_success_timestamp_seconds gauge
offsets_topic_last_success_timestamp_seconds 1.795000000123e+09
# HELP offsets_log_behind_topic_records Record offsets up to the topic's high watermark that were not read yet.
# TYPE offsets_log_behind_topic_records gauge
offsets_log_behind_topic_records{log_partition="1"} 3.0
# HELP offsets_batch_duration_seconds Duration of the batches of a query.
# TYPE offsets_batch_duration_seconds summary
offsets_batch_duration_seconds_count{query="a\\"\\\\\\nb"} 2.0
offsets_batch_duration_seconds_sum{query="a\\"\\\\\\nb"} 0.75
# HELP kafka_consumergroup_group_sum_lag Offsets that a group is behind.
# TYPE kafka_consumergroup_group_sum_lag gauge
kafka_consumergroup_group_sum_lag{cluster_name="c",group="é"} 0.0
"""


def of_topic() -> Values:
    return {
        "offsets_records_read_total": 5,
        "offsets_topic_up": None,
        "offsets_topic_last_success_timestamp_seconds": 1_795_000_000.123,
        "offsets_log_behind_topic_records": {1: 3},
        "offsets_topic_open_transaction_seconds": {},
    }


def of_others() -> Values:
    return {
        "offsets_batch_duration_seconds": {'a"\\\nb': (2, 0.75)},
        "kafka_consumergroup_group_sum_lag": {("c", "é"): 0, ("c", "unknown"): None},
    }


@pytest.fixture
def metrics() -> CollectorRegistry:
    return registry_of(of_topic, of_others)


def test_metrics_are_in_prometheus_text_format(metrics: CollectorRegistry, tmp_path: Path) -> None:
    write_metrics(metrics, tmp_path / "metrics.prom")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]
    assert (tmp_path / "metrics.prom").read_text(encoding="utf-8") == EXPECTED
    with pytest.raises(TargetNotWritable, match="cannot write metrics to"):
        write_metrics(metrics, tmp_path / "none" / "metrics.prom")


def test_metrics_are_served_over_http(metrics: CollectorRegistry) -> None:
    server = serve_metrics(metrics, "127.0.0.1", 0)
    try:
        at = f"http://127.0.0.1:{server.port}"
        for path in ("/metrics", "/"):
            with urllib.request.urlopen(f"{at}{path}", timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert answer.read().decode() == EXPECTED
        head = urllib.request.Request(f"{at}/metrics", method="HEAD")
        with urllib.request.urlopen(head, timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, b"")
        for method, path, status, said, allowed in (
            ("GET", "/other", 404, "404: only /metrics is here\n", None),
            ("POST", "/metrics", 405, "405: only GET is allowed\n", "GET, HEAD"),
        ):
            with pytest.raises(urllib.error.HTTPError) as no:
                urllib.request.urlopen(urllib.request.Request(f"{at}{path}", method=method), timeout=10)
            with no.value as refused:
                assert (refused.code, refused.read().decode(), refused.headers["Allow"]) == (status, said, allowed)
        with pytest.raises(ServiceUnavailable, match=f"cannot listen at 127.0.0.1:{server.port}: "):
            serve_metrics(metrics, "127.0.0.1", server.port)
        for host in ("evil.example", "127.0.0.1.evil.example"):
            named = urllib.request.Request(f"{at}/metrics", headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError, match="400") as no:
                urllib.request.urlopen(named, timeout=10)
            no.value.close()
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_documentation_names_every_figure(root: Path) -> None:
    lines = (root / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")
    ]
    assert rows == [[name, of.kind(name, of.help).type, ", ".join(of.labels), of.help] for name, of in FAMILIES.items()]


def test_a_process_without_metrics_imports_neither_their_package_nor_the_http_server() -> None:
    code = (
        "import sys\nimport offsets_pipeline.coordinator.coordinator\nfrom offsets_pipeline.cli import main\n"
        "main(['--help'])\nheavy = {'prometheus_client', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
