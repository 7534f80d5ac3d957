"""The Prometheus port of a process that embeds a coordinator."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.requests import MemberOfGroup, OffsetAndMetadata
from offsets_pipeline.errors import (
    InvalidGroupId,
    InvalidRequiredAcks,
    NoSuchGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    ServiceUnavailable,
)
from offsets_pipeline.service.metrics.exposition import FAMILIES
from tests.unit.coordinator.stores import NOW_MS

if TYPE_CHECKING:
    from pathlib import Path

MINUTE_MS = 60_000
LABELS = re.compile(r'(\w+)(?:\{(\w+)="([^"]*)"\})? (\S+)')


def scraped(coordinator: Coordinator) -> dict[tuple[str, str], float]:
    """The values of a scrape by metric and value of its label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{coordinator.metrics_port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    found = [LABELS.fullmatch(line) for line in lines]
    assert all(found)
    return {(each[1], each[3] or ""): float(each[4]) for each in found if each is not None}


def opened(store: Path, clock: FixedClock) -> Coordinator:
    settings = Settings(coordinator=CoordinatorSettings(offsets_retention_minutes=5))
    return Coordinator.open(store, settings, clock=clock, housekeeping=False, metrics_port=0)


def test_a_scrape_tells_what_the_coordinator_did(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator:
        coordinator.commit_offsets("a", {("t", 0): 1, ("t", 1): 2})
        coordinator.commit_offsets("b", {("t", 0): 1})
        first = scraped(coordinator)
        clock.advance_ms(6 * MINUTE_MS)
        coordinator.commit_offsets("b", {("t", 0): 2})
        coordinator.expire_loaded()
        second = scraped(coordinator)
    name = "offsets_coordinator_{}".format
    assert (first[name("groups"), ""], first[name("offsets"), ""]) == (2, 3)
    assert (first[name("commits_total"), ""], first[name("committed_offsets_total"), ""]) == (2, 3)
    assert (first[name("appends_total"), ""], first[name("appended_records_total"), ""]) == (2, 3)
    assert (second[name("groups"), ""], second[name("offsets"), ""]) == (1, 1)
    assert second[name("commits_total"), ""] == 3
    assert (second[name("expired_offsets_total"), ""], second[name("expired_groups_total"), ""]) == (2, 1)
    loads = {at for of, at in second if of == name("load_duration_seconds")}
    assert loads == {"0", "1", "2"}
    assert all(0 < second[name("load_duration_seconds"), at] < 60 for at in loads)
    assert {of for of, _ in first | second} == {
        each for each in FAMILIES if each.startswith("offsets_coordinator") and "refused" not in each
    }


def test_refused_requests_are_counted_by_error(store: Path) -> None:
    with opened(store, FixedClock(NOW_MS)) as coordinator:
        coordinator.commit_offsets("a", {("t", 0): 1})
        too_large = {("t", 0): OffsetAndMetadata(1, None, "x" * 5_000)}
        for error, ask in (
            (NoSuchGroup, lambda: coordinator.remove_group("none")),
            (NoSuchGroup, lambda: coordinator.commit_offsets("none", {("t", 0): 1}, member=MemberOfGroup("m", 1))),
            (OffsetMetadataTooLarge, lambda: coordinator.commit_offsets("a", too_large)),
            (InvalidGroupId, lambda: coordinator.commit_offsets("\ud800", {("t", 0): 1})),
            (InvalidGroupId, lambda: coordinator.fetch_offsets("\ud800")),
            (InvalidGroupId, lambda: coordinator.delete_offsets("", [("t", 0)])),
            (InvalidRequiredAcks, lambda: coordinator.commit_offsets("a", {("t", 0): 1}, acks=7)),
        ):
            with pytest.raises(error):
                ask()
        coordinator.unload_partition(coordinator.partition_for("a"))
        with pytest.raises(NotCoordinator):
            coordinator.fetch_offsets("a")
        found = {of: value for (name, of), value in scraped(coordinator).items() if "refused" in name}
        assert found == {
            "GROUP_ID_NOT_FOUND": 2,
            "OFFSET_METADATA_TOO_LARGE": 1,
            "INVALID_GROUP_ID": 3,
            "INVALID_REQUIRED_ACKS": 1,
            "NOT_COORDINATOR": 1,
        }
        assert coordinator.gauges().refused == found


def test_the_port_is_there_while_the_coordinator_is_open(store: Path) -> None:
    coordinator = opened(store, FixedClock(NOW_MS))
    port = coordinator.metrics_port
    assert port
    with pytest.raises(ServiceUnavailable, match=f"cannot listen at 127.0.0.1:{port}"):
        Coordinator.open(store, housekeeping=False, metrics_port=("127.0.0.1", port))
    coordinator.close()
    assert coordinator.metrics_port is None
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    with Coordinator.open(store, housekeeping=False) as silent:
        assert silent.metrics_port is None
