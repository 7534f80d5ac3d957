"""The benchmarks' parser of lines that Kafka 4.2 logged, and free ports for servers. No broker starts here."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import BrokerError, broker_load_seconds, free_ports, read_loading, running_broker

if TYPE_CHECKING:
    from pathlib import Path

LOG = """\
1750000000100 WARN [BrokerLifecycleManager id=1] Scheduling something else
1750000001000 INFO [ShareCoordinator id=1] Scheduling loading of metadata from __share_group_state-0 with epoch 0
1750000002000 INFO [GroupCoordinator id=1] Scheduling loading of metadata from __consumer_offsets-1 with epoch 3
1750000002001 INFO [GroupCoordinator id=1] Scheduling loading of metadata from __consumer_offsets-0 with epoch 3
1750000002005 INFO [GroupCoordinator id=1] Scheduling loading of metadata from __consumer_offsets-12 with epoch 4
1750000002430 INFO [GroupCoordinator id=1] Finished loading of metadata from __consumer_offsets-1 with epoch 3 in \
428ms where 2ms was spent in the scheduler. Loaded 20000 records which total to 2057675 bytes.
1750000002431 INFO [GroupCoordinator id=1] Finished loading of metadata from __consumer_offsets-0 with epoch 3 in \
430ms where 428ms was spent in the scheduler. Loaded 0 records which total to 0 bytes.
1750000003250 INFO [GroupCoordinator id=1] Finished loading of metadata from __consumer_offsets-12 with epoch 4 in \
1245ms where 430ms was spent in the scheduler. Loaded 41234 records which total to 4241235 bytes.
1750000004000 INFO [ShareCoordinator id=1] Finished loading of metadata from __share_group_state-0 with epoch 0 in \
3ms where 1ms was spent in the scheduler. Loaded 7 records which total to 700 bytes.
1750000009000 INFO [GroupCoordinator id=1] Scheduling unloading of metadata for __consumer_offsets-1 with epoch \
OptionalInt[4]
""".splitlines()


def test_a_load_lasts_from_the_first_partition_scheduled_to_the_last_one_finished() -> None:
    assert read_loading(LOG).seconds == 1.25


def test_a_load_counts_the_records_of_each_partition_of_the_offsets_log_and_of_no_other_topic() -> None:
    assert read_loading(LOG).records == {1: 20_000, 0: 0, 12: 41_234}


def test_a_line_that_is_still_being_written_does_not_count() -> None:
    half = [*LOG[:7], LOG[7][:-20]]
    assert read_loading(half).records == {1: 20_000, 0: 0}


def test_a_log_without_a_load_has_no_time() -> None:
    loading = read_loading(LOG[:2])
    assert loading.records == {}
    with pytest.raises(BrokerError, match="the broker loaded no partition of __consumer_offsets"):
        _ = loading.seconds


def test_a_partition_that_cannot_be_loaded_is_an_error_in_the_brokers_words() -> None:
    failed = (
        "1750000002430 ERROR [GroupCoordinator id=1] Failed to load metadata from __consumer_offsets-0 with epoch 3 "
        "due to java.lang.RuntimeException: Deserializing record failed."
    )
    with pytest.raises(
        BrokerError, match=r"the broker says: Failed to load metadata from __consumer_offsets-0 with .*"
    ):
        read_loading([*LOG, failed])


def test_without_a_brokers_jars_one_line_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.broker.KAFKA_JARS", tmp_path / "none")
    with pytest.raises(BrokerError, match=r"no broker in .*: run `make kafka`"):
        broker_load_seconds(tmp_path, 1, 0)
    with pytest.raises(BrokerError, match=r"no broker in .*: run `make kafka`"), running_broker(tmp_path, 1):
        pass


def test_two_workers_of_a_test_run_never_get_the_same_port_nor_one_that_an_outgoing_connection_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    found = {}
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        found[worker] = free_ports(50) + free_ports(50)
    assert [len(set(ports)) for ports in found.values()] == [100, 100]
    assert not set(found["gw0"]) & set(found["gw1"])
    assert max(map(max, found.values())) < 32_768


def test_a_port_that_is_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken, free) = free_ports(2)
    monkeypatch.setattr("benchmarks.broker._PORTS", [taken, free])
    monkeypatch.setattr("benchmarks.broker._HANDED_OUT", set())
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [free]
