"""Offsets in a real ZooKeeper: imported, and committed by a coordinator, as a broker of 0.10 answers them.

Only such a broker shows what OffsetFetch v0 reads from ZooKeeper, and only a ZooKeeper shows ACLs, TLS and a restart.
"""

from __future__ import annotations

import gc
import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from offsets_pipeline.cli import main
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import CoordinatorSettings, ZooKeeperSettings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import NodeOffset, read_dump, read_groups
from offsets_pipeline.errors import (
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    ZooKeeperFailed,
)
from offsets_pipeline.semantics.partition_state import TopicPartition
from tests.kafka.certificates import Authority
from tests.kafka.zookeeper import (
    KAFKA_0_10_JARS,
    ZOOKEEPER_JARS,
    OldBroker,
    ZooKeeperServer,
    fetch_zookeeper,
    old_broker,
    run_java,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    # kazoo leaves the socket of a failed TLS handshake open, until it is collected
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

GROUPS = 1000
TOPICS = {"orders": 3, "payments.eu_1": 2}
PLACES = [TopicPartition(topic, at) for topic, count in TOPICS.items() for at in range(count)]
TLS = """
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={{secure_port}}
ssl.keyStore.location={folder}/server.pem
ssl.keyStore.type=PEM
ssl.trustStore.location={folder}/authority.pem
ssl.trustStore.type=PEM
ssl.clientAuth=need
"""


@dataclass
class Servers:
    """ZooKeeper, the broker that keeps its metadata below its node /kafka, and a client of ZooKeeper there."""

    zookeeper: ZooKeeperServer
    broker: OldBroker
    client: KazooClient
    running: ExitStack

    @property
    def address(self) -> str:
        return f"{self.zookeeper.address}/kafka"

    def stop(self) -> None:
        self.running.close()

    def start(self) -> None:
        self.running.enter_context(self.zookeeper.running())

    def set(self, path: str, data: bytes) -> None:
        self.client.ensure_path(path)
        self.client.set(path, data)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    fetch_zookeeper()
    folder = tmp_path_factory.mktemp("zookeeper")
    authority = Authority("an authority")
    (folder / "authority.pem").write_text(authority.certificate_pem, encoding="utf-8")
    for name in ("server", "client"):
        identity = authority.issue(name, "127.0.0.1")
        (folder / f"{name}.pem").write_text(identity.key_pem() + identity.certificate_pem, encoding="utf-8")
    zookeeper = ZooKeeperServer(folder, TLS.format(folder=folder))
    with ExitStack() as all_of_them:
        running = all_of_them.enter_context(ExitStack())
        running.enter_context(zookeeper.running())
        broker = all_of_them.enter_context(old_broker(folder, f"{zookeeper.address}/kafka"))
        client = KazooClient(f"{zookeeper.address}/kafka")
        client.start()
        all_of_them.callback(client.close)
        all_of_them.callback(client.stop)
        for topic, partitions in TOPICS.items():
            broker.create_topic(topic, partitions)
        yield Servers(zookeeper, broker, client, running)
        gc.collect()


@pytest.fixture(autouse=True)
def _no_groups_of_other_tests(servers: Servers) -> Iterator[None]:
    yield
    if servers.client.connected:
        with_children = [["/consumers"] if servers.client.exists("/consumers") else []]
        while with_children[-1]:
            asked = {path: servers.client.get_children_async(path) for path in with_children[-1]}
            with_children.append([f"{path}/{name}" for path, names in asked.items() for name in names.get()])
        deleted = [servers.client.delete_async(path) for paths in reversed(with_children) for path in paths]
        for each in deleted:
            each.get()


@pytest.fixture
def store(tmp_path: Path) -> str:
    OwnedStore.create(tmp_path / "owned", 3)
    return str(tmp_path / "owned")


def coordinator(
    servers: Servers, store: str, *, storage: str = "kafka", dual: bool = False, timeout_ms: int = 2000
) -> Coordinator:
    settings = Settings(
        coordinator=CoordinatorSettings(offsets_storage=storage, dual_commit_enabled=dual),  # type: ignore[arg-type]
        zookeeper=ZooKeeperSettings(connect=servers.address, connection_timeout_ms=timeout_ms),
    )
    return Coordinator.open(store, settings, housekeeping=False)


def fetched(opened: Coordinator, group_id: str, places: list[TopicPartition] | None = None) -> dict[object, int | None]:
    return {where: each.offset for where, each in opened.fetch_offsets(group_id, places).items()}


def in_zookeeper(servers: Servers, group_id: str) -> dict[object, int]:
    """The offsets that a broker of 0.10 answers from ZooKeeper."""
    return {where: offset for where, (offset, error) in servers.broker.fetch(group_id, PLACES).items() if not error}


def test_a_thousand_groups_are_imported_with_the_offsets_that_a_broker_of_0_10_answers(
    servers: Servers, store: str, chance: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = {
        f"group {number}" if number % 2 else f"grüppe-{number}": {
            where: chance.randrange(2**63) for where in chance.sample(PLACES, chance.randint(1, len(PLACES)))
        }
        for number in range(GROUPS)
    }
    for group_id, offsets in committed.items():
        assert set(servers.broker.commit(group_id, offsets).values()) == {0}
    servers.set("/consumers/group 1/ids/group 1_host-1", b"{}")
    servers.set("/consumers/group 1/owners/orders/0", b"group 1_host-1-0")
    command = ["import-zookeeper", "--store", store, "--zookeeper", servers.address, "--format", "json"]
    assert main(command) == 0
    rows = {row["group"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {group_id: row["imported"] for group_id, row in rows.items()} == {
        group_id: len(offsets) for group_id, offsets in committed.items()
    }
    assert rows["group 1"]["consumer_ids"] == ["group 1_host-1"]
    assert rows["group 1"]["owners"] == {"orders-0": "group 1_host-1-0"}
    with Coordinator.open(store, housekeeping=False) as opened:
        for group_id in committed:
            answered = servers.broker.fetch(group_id, PLACES)
            assert fetched(opened, group_id) == {
                where: offset for where, (offset, error) in answered.items() if not error
            }
        assert {each.state for each in opened.list_groups()} == {"Empty"}  # R25: no members
    assert main(command) == 0
    assert {row["imported"] for row in map(json.loads, capsys.readouterr().out.splitlines())} == {0}


@pytest.mark.parametrize(
    "data", [b"0", b"+5", b"007", b"9223372036854775807", b"", b" 5", b"5\n", b"x", b"9223372036854775808"]
)
def test_node_is_imported_if_a_broker_of_0_10_reads_an_offset_in_it(servers: Servers, data: bytes) -> None:
    servers.set("/consumers/g/offsets/orders/0", data)
    with ZooKeeperClient(ZooKeeperSettings(connect=servers.address)) as client:
        (group,) = read_groups(client, ["g"])
    ((_, (offset, error)),) = servers.broker.fetch("g", [TopicPartition("orders", 0)]).items()
    assert {where: node.offset for where, node in group.offsets.items()} == ({} if error else {("orders", 0): offset})
    assert len(group.skipped) == bool(error)


def test_import_keeps_the_time_of_the_commit_to_zookeeper(servers: Servers, store: str) -> None:
    servers.set("/consumers/g/offsets/orders/0", b"5")
    modified_ms = servers.client.get("/consumers/g/offsets/orders/0")[1].mtime
    with ZooKeeperClient(ZooKeeperSettings(connect=servers.address)) as client:
        (group,) = read_groups(
            client,
            [
                "g",
            ],
        )
    assert group.offsets == {("orders", 0): NodeOffset(5, modified_ms)}


def test_import_of_the_file_of_kafkas_own_export_equals_that_of_the_server(servers: Servers, tmp_path: Path) -> None:
    servers.broker.commit("a", {PLACES[0]: 1, PLACES[2]: 2**60, PLACES[4]: 3})
    servers.broker.commit("b-c.d", {PLACES[1]: 4})
    exported = tmp_path / "offsets.txt"
    arguments = ["--zkconnect", servers.address, "--output-file", str(exported)]
    run_java(KAFKA_0_10_JARS, "kafka.tools.ExportZkOffsets", *arguments)
    with ZooKeeperClient(ZooKeeperSettings(connect=servers.address)) as client:
        direct = {group.group_id: group.offsets for group in read_groups(client, ["a", "b-c.d"])}
    assert {group.group_id: group.offsets for group in read_dump(exported)} == {
        group_id: {where: node._replace(modified_ms=None) for where, node in offsets.items()}
        for group_id, offsets in direct.items()
    }


def test_dual_commits_are_answered_by_the_log_and_by_a_broker_of_0_10(servers: Servers, store: str) -> None:
    orders, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with coordinator(servers, store, dual=True) as dual, coordinator(servers, store) as log:
        dual.commit_offsets("g", {orders: OffsetAndMetadata(10, metadata="mine"), other: OffsetAndMetadata(3)})
        assert fetched(dual, "g") == fetched(log, "g") == in_zookeeper(servers, "g") == {orders: 10, other: 3}
        assert dual.fetch_offsets("g")[orders].metadata == "mine"
        servers.broker.commit("g", {orders: 12, other: 2})  # an old consumer, which commits to ZooKeeper alone
        assert fetched(dual, "g") == {orders: 12, other: 3}
        assert fetched(dual, "g", [orders, TopicPartition("orders", 2)]) == {orders: 12, ("orders", 2): None}
        assert dual.fetch_all_offsets()["g"][orders].offset == 12
        dual.commit_offsets_async("g", {orders: 5, other: 5}).result()
        assert fetched(dual, "g") == fetched(log, "g") == in_zookeeper(servers, "g") == {orders: 5, other: 5}
        with pytest.raises(OffsetMetadataTooLarge):
            dual.commit_offsets("g", {orders: OffsetAndMetadata(6, metadata="x" * 5000), other: OffsetAndMetadata(6)})
        assert fetched(dual, "g") == in_zookeeper(servers, "g") == {orders: 5, other: 6}
        with pytest.raises(InvalidGroupId, match="ZooKeeper cannot hold the group id 'a/b'"):
            dual.commit_offsets("a/b", {orders: 1})
        assert fetched(log, "a/b") == {}
        log.commit_offsets("a/b", {orders: 1, TopicPartition("t/x", 0): 2})  # only the log can hold it
        assert fetched(dual, "a/b") == fetched(log, "a/b")
        assert dual.delete_offsets("a/b", [orders]) == 1
        assert dual.remove_group("a/b") == 1
        dual.begin_transaction(1, 0)
        with pytest.raises(InvalidRequest, match="transaction"):
            dual.txn_commit_offsets(1, 0, "g", {orders: 1})


def test_commits_to_zookeeper_alone_are_answered_and_not_in_the_log(servers: Servers, store: str) -> None:
    orders, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with coordinator(servers, store) as log, coordinator(servers, store, storage="zookeeper") as zookeeper:
        zookeeper.commit_offsets("g", {orders: 10})
        assert fetched(log, "g") == {}
        assert fetched(zookeeper, "g") == in_zookeeper(servers, "g") == {orders: 10}
        assert {name: list(found) for name, found in zookeeper.fetch_all_offsets().items()} == {"g": [orders]}
        log.commit_offsets("g", {orders: 20, other: 20})  # before the setting was changed
        zookeeper.commit_offsets("g", {other: 25})
        assert fetched(zookeeper, "g") == {orders: 20, other: 25}
        assert fetched(log, "g")[other] == 20
        zookeeper.commit_offsets(
            "g", {orders: 15}
        )  # a fetch answers what was committed, and no higher offset of the log
        assert fetched(zookeeper, "g") == {orders: 15, other: 25}


def test_deleted_offsets_and_groups_are_gone_from_both(servers: Servers, store: str) -> None:
    orders, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with coordinator(servers, store, dual=True) as dual:
        dual.commit_offsets("g", {orders: 1, other: 1})
        servers.broker.commit("only-there", {orders: 1, other: 2})
        assert dual.delete_offsets("g", [orders]) == 1
        assert dual.delete_offsets("only-there", [orders]) == 1
        assert fetched(dual, "g") == in_zookeeper(servers, "g") == {other: 1}
        assert fetched(dual, "only-there") == {other: 2}
        servers.set("/consumers/g/ids/g_host", b"{}")
        with pytest.raises(NonEmptyGroup, match="1 consumers in ZooKeeper"):
            dual.remove_group("g")
        servers.client.delete("/consumers/g/ids/g_host")
        answers = dual.delete_groups(["g", "only-there", "none"])
        assert {name: None if error is None else type(error) for name, error in answers.items()} == {
            "g": None,
            "only-there": None,
            "none": NoSuchGroup,
        }
        assert fetched(dual, "g") == {}
        assert servers.client.get_children("/consumers") == []


def test_node_without_an_offset_is_an_error_of_its_partition(servers: Servers, store: str) -> None:
    servers.set("/consumers/g/offsets/orders/0", b"x")
    servers.set("/consumers/g/offsets/orders/1", b"1")
    servers.set("/consumers/g/offsets/orders/no", b"1")
    with coordinator(servers, store, dual=True) as dual:
        found = dual.fetch_offsets("g")
    assert found.keys() == {("orders", 0), ("orders", 1)}
    assert "'x' is not a number" in str(found[TopicPartition("orders", 0)].error)
    assert found[TopicPartition("orders", 1)].offset == 1


def test_nodes_that_a_digest_protects_are_read_with_it_and_named_without(
    servers: Servers, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers.set("/consumers/open/offsets/orders/0", b"1")
    servers.set("/consumers/closed/offsets/orders/0", b"2")
    for path in ("/consumers/closed/offsets/orders/0", "/consumers/closed/offsets"):
        servers.client.set_acls(path, [make_digest_acl("me", "open-sesame", all=True)])
    command = ["import-zookeeper", "--store", store, "--zookeeper", servers.address]
    assert main(command) == 0
    assert "skipped /consumers/closed/offsets: the node's ACL does not allow reading it" in capsys.readouterr().err
    config = tmp_path / "offsets.toml"
    config.write_text('[zookeeper]\ndigest = "env:DIGEST"\n', encoding="utf-8")
    monkeypatch.setenv("DIGEST", "me:open-sesame")
    assert main([*command, "--config", str(config)]) == 0
    assert "1 offset of 2 groups imported" in capsys.readouterr().err
    with coordinator(servers, store) as log:
        assert fetched(log, "closed") == {("orders", 0): 2}
    with (
        coordinator(servers, store, dual=True) as dual,
        pytest.raises(ZooKeeperFailed, match="does not allow writing"),
    ):
        dual.commit_offsets("closed", {TopicPartition("orders", 0): 3})
    servers.client.add_auth("digest", "me:open-sesame")


def test_offsets_are_read_over_tls_from_a_server_whose_certificate_is_trusted(servers: Servers) -> None:
    servers.set("/consumers/g/offsets/orders/0", b"5")
    folder = servers.zookeeper.folder
    settings = ZooKeeperSettings(
        connect=f"127.0.0.1:{servers.zookeeper.secure_port}/kafka",
        connection_timeout_ms=3000,
        ssl_client_enable=True,
        ssl_truststore_location=str(folder / "authority.pem"),
        ssl_keystore_location=str(folder / "client.pem"),
    )
    with ZooKeeperClient(settings) as client:
        (group,) = read_groups(client, ["g"])
        assert group.offsets.keys() == {("orders", 0)}
    with pytest.raises(ZooKeeperFailed, match="cannot connect to ZooKeeper"):
        ZooKeeperClient(replace(settings, ssl_truststore_location="", connection_timeout_ms=500))
    named_otherwise = settings.connect.replace("127.0.0.1", "localhost")
    with pytest.raises(ZooKeeperFailed, match="check the address and the certificates"):
        ZooKeeperClient(replace(settings, connect=named_otherwise, connection_timeout_ms=500))


def test_wrong_path_and_wrong_address_are_one_line_and_create_no_store(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for address, message in (
        (f"{servers.zookeeper.address}/no", "has no node /no: check the path"),
        (servers.zookeeper.address, "has no node /consumers: add Kafka's chroot"),
        ("127.0.0.1:1", "cannot connect to ZooKeeper at 127.0.0.1:1"),
    ):
        config = tmp_path / "offsets.toml"
        config.write_text("[zookeeper]\nconnection_timeout_ms = 500\n", encoding="utf-8")
        command = ["import-zookeeper", "--store", str(tmp_path / "new"), "--zookeeper", address]
        assert main([*command, "--config", str(config)]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "new").exists()


def test_failure_of_zookeeper_is_reported_and_the_next_commit_after_it_goes_to_both(
    servers: Servers, store: str, tmp_path: Path
) -> None:
    orders = TopicPartition("orders", 0)
    with (
        coordinator(servers, store, dual=True, timeout_ms=400) as dual,
        coordinator(servers, store, storage="zookeeper", timeout_ms=400) as zookeeper,
        coordinator(servers, store) as log,
    ):
        dual.commit_offsets("g", {orders: 1})
        zookeeper.commit_offsets("g", {orders: 2})
        servers.stop()
        for opened in (dual, zookeeper):
            with pytest.raises(ZooKeeperFailed, match=r"commit of group 'g': .*ZooKeeper.*commit again"):
                opened.commit_offsets("g", {orders: 3})
            with pytest.raises(ZooKeeperFailed):
                opened.fetch_offsets("g")
            opened.commit_offsets("g", {orders: 3}, acks=0)
        assert fetched(log, "g") == {orders: 3}  # the log took the dual commit, and the caller knows of the rest
        # before ZooKeeper is back: it would take what still waits
        wait_until("both commits with acks=0 are lost", lambda: dual.gauges().lost + zookeeper.gauges().lost == 2)
        servers.start()
        assert {opened.gauges().commits for opened in (dual, zookeeper)} == {1}
        for opened, offset in ((dual, 4), (zookeeper, 5)):
            commit_again(opened, offset)
            assert fetched(opened, "g") == {orders: offset}
            assert opened.gauges().lost == 1
    assert fetched_at_last(servers) == {orders: 5}
    snapshot = tmp_path / "snapshot.txt"
    arguments = ["-Duser.timezone=UTC", "org.apache.zookeeper.server.SnapshotFormatter", "-d"]
    snapshot.write_text(
        run_java(ZOOKEEPER_JARS, *arguments, str(servers.zookeeper.newest_snapshot())), encoding="utf-8"
    )
    (group,) = read_dump(snapshot)
    assert group.offsets[orders].offset == 2
    assert group.offsets[orders].modified_ms is not None


def commit_again(opened: Coordinator, offset: int) -> None:
    """Commit as a client does that retries retriable errors."""
    for attempt in range(30):
        try:
            opened.commit_offsets("g", {TopicPartition("orders", 0): offset})
        except ZooKeeperFailed:
            assert attempt < 29
        else:
            return


def fetched_at_last(servers: Servers) -> dict[object, int]:
    """The broker's answer, once it is connected again."""
    for _ in range(30):
        found = in_zookeeper(servers, "g")
        if found:
            return found
    return {}
