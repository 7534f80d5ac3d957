"""Metrics of a coordinator for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.metrics.metric_registry import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.coordinator.gauges import Gauges

_MS_PER_SECOND = 1000


def coordinator_metrics(gauges: Callable[[], Gauges]) -> Metrics:
    """Return metrics that read ``gauges`` each time they are collected."""

    def collect(metrics: Metrics) -> None:
        found = gauges()
        for name, value in {
            "offsets_coordinator_groups": found.groups,
            "offsets_coordinator_offsets": found.offsets,
            "offsets_coordinator_commits_total": found.commits,
            "offsets_coordinator_committed_offsets_total": found.committed_offsets,
            "offsets_coordinator_lost_commits_total": found.lost,
            "offsets_coordinator_expired_offsets_total": found.expired_offsets,
            "offsets_coordinator_expired_groups_total": found.expired_groups,
            "offsets_coordinator_appends_total": found.appends,
            "offsets_coordinator_appended_records_total": found.appended_records,
            "offsets_coordinator_append_conflicts_total": found.conflicts,
        }.items():
            metrics.set(name, value)
        load_seconds = {at: load_ms / _MS_PER_SECOND for at, load_ms in found.load_ms.items()}
        metrics.set_all("offsets_coordinator_load_duration_seconds", "log_partition", load_seconds)
        metrics.set_all("offsets_coordinator_refused_requests_total", "error", found.refused)

    return Metrics(collect)
