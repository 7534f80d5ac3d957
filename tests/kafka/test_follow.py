"""A live broker's offsets topic is followed: our answers become the broker's."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NoSuchTopic,
    NotAuthorized,
    StoreMismatch,
)
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.store import Store
from tests.kafka.client_actions import classic_clients, leaving_member
from tests.kafka.following import (
    Heard,
    answers_of,
    beside,
    caught_up,
    following,
    ingest_of,
    log_places,
    log_records,
    viewed,
)
from tests.kafka.live import SASL, TOPIC, LiveBroker, live_broker, wait_until
from tests.spark.stores import export_of, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming

CURRENT_OFFSETS = "SELECT group_id, topic, partition, committed_offset FROM current_offsets"


def clients_do_it_all(broker: LiveBroker, round_: str) -> None:
    """Clients of every kind commit, reset, delete; some stay members of their groups."""
    t = f"t{round_}"
    classic_clients(broker, t, round_)
    for at in range(3):
        broker.produce(t, at, 5)
    modern = broker.consumer(f"modern-{round_}", [t], group_protocol="consumer")
    modern.join(3)
    modern.commit({(t, 0): 4, (t, 2): 5})
    leaving_member(broker, t, f"gone-{round_}", "consumer")
    committed, aborted = broker.transaction(f"c-{round_}"), broker.transaction(f"a-{round_}")
    committed.begin(f"txn-{round_}", {(t, 0): 2})
    committed.commit()
    aborted.begin(f"txn-{round_}", {(t, 0): 3, (t, 1): 3})
    aborted.abort()


def test_clients_of_every_kind_are_followed_through_a_restart_of_the_broker(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with live_broker(kafka, tmp_path / "broker") as broker:
        clients_do_it_all(broker, "1")
        with following(workbench, store, broker, quick):
            caught_up(store, broker)
            clients_do_it_all(broker, "2")
            caught_up(store, broker)
            broker.stop()
            broker.start()
            clients_do_it_all(broker, "3")
            caught_up(store, broker)
        records = broker.log_records()
        assert log_records(store) == records
        assert {each.control_type for each in records} == {None, COMMIT, ABORT}
        assert workbench.verify(store).equal
        names = {row["topic"]: row["topic_id"] for row in rows_of(store, "topics")}
        assert names["t1"] == broker.topic_id("t1")
        properties = StateReader(str(store)).properties
        assert properties.topic_id == broker.topic_id(TOPIC)
        assert properties.cluster_id == broker.cluster_id()
    described = export_of(store)["groups"]
    (member,) = described["modern-1"]["members"]
    assert member["assignment"] == ["t1-0", "t1-1", "t1-2"]  # of a KIP-848 group: names of topic ids
    info = log_info(StateReader(str(store)))
    assert all(each.complete_since is not None and each.read_at is not None for each in info)


def test_topic_that_was_created_again_takes_over_in_one_commit(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    seen: list[dict[str, dict[tuple[str, int], int]]] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.1):
            seen.append(answers_of(store))

    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("t", 2)
        for number in range(20):  # so that record offsets of before are higher
            broker.commit("stays", {("t", 0): number})
        for name in ("a", "b", "c", "d", "e"):
            broker.commit(name, {("t", 0): 1, ("t", 1): 1})
        with following(workbench, store, broker, quick, heard):
            caught_up(store, broker)
            before = answers_of(store)
            thread = threading.Thread(target=watch)
            thread.start()
            try:
                broker.delete_topic(TOPIC)
                broker.commit("stays", {("t", 0): 7})
                wait_until(lambda: "a" not in answers_of(store), "what the topic no longer holds is still there")
                broker.commit("f", {("t", 1): 9})
                caught_up(store, broker)
            finally:
                watching.set()
                thread.join()
            seen.append(answers_of(store))  # the thread may have looked last before "f" was there
        assert log_places(store, 1) == broker.log_places()
        assert StateReader(str(store)).properties.topic_id == broker.topic_id(TOPIC)
    assert before in seen
    after = [each for each in seen if each != before]
    stays, newer = {"stays": {("t", 0): 7}}, {"f": {("t", 1): 9}}
    # the topic is there, and empty, before the first commit into it
    assert all(each in ({}, stays, stays | newer) for each in after), after
    assert after[-1] == stays | newer
    assert seen.index(after[0]) == sum(each == before for each in seen)  # and never back
    assert any("created again" in warning for warning in heard.warnings)
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {1}
    assert workbench.verify(store).equal
    workbench.reload(store)
    assert answers_of(store) == after[-1]
    assert viewed(store, CURRENT_OFFSETS) == {("stays", "t", 0, 7), ("f", "t", 1, 9)}


def test_pause_longer_than_tombstone_retention_leaves_no_deleted_offsets(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    with live_broker(kafka, tmp_path / "broker", 1, "log.cleaner.backoff.ms=50\n") as broker:
        broker.create_topic("t", 1)
        broker.commit("ghost", {("t", 0): 1})
        broker.commit("lives", {("t", 0): 2})
        ingest = ingest_of(workbench, store, broker, quick)
        assert ingest.prepare().properties.topic_id == broker.topic_id(TOPIC)
        ingest.run(available_now=True)
        workbench.fold(store)
        assert set(answers_of(store)) == {"ghost", "lives"}
        broker.delete_group("ghost")
        (_, tombstone) = broker.committed_records()[-1]
        broker.set_topic(TOPIC, delete_retention_ms="1", segment_ms="50", min_cleanable_dirty_ratio="0.0001")

        def is_cleaned() -> bool:
            broker.commit("lives", {("t", 0): 3})  # the segment that is written to is never cleaned
            return all(offset > tombstone for _, offset in broker.committed_records())

        wait_until(is_cleaned, "the broker keeps the tombstones")
        with following(workbench, store, broker, quick, heard):
            wait_until(lambda: set(answers_of(store)) == {"lives"}, "the ghost is still there")
            caught_up(store, broker)
    assert any("longer ago than the topic keeps tombstones" in warning for warning in heard.warnings)
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {1}


@pytest.mark.parametrize("seconds", [0, pytest.param(180, marks=pytest.mark.long)])
def test_hanging_transaction_hides_nothing_but_its_own_commits(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, seconds: int
) -> None:
    store, heard = tmp_path / "store", Heard()
    impatient = replace(quick, topic=replace(quick.topic, open_transaction_warning_ms=1))
    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        broker.commit("before", {("t", 0): 1})
        transaction, begun = broker.transaction("hangs", timeout_ms=900_000), time.monotonic()
        transaction.begin("in-it", {("t", 0): 2})
        broker.commit("behind", {("t", 0): 3})
        aborted = broker.transaction("is-aborted")
        aborted.begin("only-aborted", {("t", 0): 4})
        aborted.abort()
        with following(workbench, store, broker, impatient, heard):
            wait_until(lambda: set(answers_of(store)) >= {"before", "behind"}, "what is behind it is not there")
            caught_up(store, broker)
            assert set(answers_of(store)) == {"before", "in-it", "behind", "only-aborted"}
            assert answers_of(store)["in-it"] == answers_of(store)["only-aborted"] == {}
            assert viewed(store, "SELECT group_id, topic, partition FROM unstable_offsets") == {("in-it", "t", 0)}
            assert broker.answers.stable_offsets("in-it") == []  # with requireStable the broker answers UNSTABLE
            assert broker.answers.stable_offsets("behind") == [("t", 0)]
            wait_until(lambda: log_info(StateReader(str(store)))[0].open_since is not None, "log-info lacks it")
            (info,) = log_info(StateReader(str(store)))
            assert (info.stable, info.topic_end) == (1, info.end)
            wait_until(
                lambda: any("a transaction of 'hangs' (producer id" in each for each in heard.warnings), "no warning"
            )
            while time.monotonic() < begun + seconds:
                offset = int(1_000 * time.monotonic())
                broker.commit("behind", {("t", 0): offset})
                caught_up(store, broker)
                assert answers_of(store)["behind"] == {("t", 0): offset}
                assert answers_of(store)["in-it"] == {}
            transaction.commit()
            caught_up(store, broker)
            wait_until(lambda: log_info(StateReader(str(store)))[0].open_since is None, "log-info still has it")
            assert answers_of(store)["in-it"] == {("t", 0): 2}
        assert log_places(store) == broker.log_places()


def test_topic_that_gets_more_partitions_is_followed_in_its_new_places(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    with live_broker(kafka, tmp_path / "broker", 2) as broker:
        broker.create_topic("t", 1)
        groups = [f"group-{number}" for number in range(8)]
        for group in groups:
            broker.commit(group, {("t", 0): 1})
        with following(workbench, store, broker, quick, heard):
            caught_up(store, broker)
            broker.add_partitions(TOPIC, 5)
            wait_until(lambda: len(log_info(StateReader(str(store)))) == 5, "log-info has the old partitions")
            broker.stop()  # a running coordinator goes on with the old number
            broker.offsets_partitions = 5
            broker.start()
            for number, group in enumerate(groups):
                broker.commit(group, {("t", 0): 10 + number})
            wait_until(
                lambda: answers_of(store) == {group: {("t", 0): 10 + at} for at, group in enumerate(groups)},
                "the groups are not in their new places",
                say=lambda: str(answers_of(store)),
            )
        assert any("has 5 partitions, the log has 2" in each for each in heard.warnings)
        assert workbench.verify(store).equal
        assert viewed(store, CURRENT_OFFSETS) == {(group, "t", 0, 10 + at) for at, group in enumerate(groups)}


def test_store_of_an_older_broker_follows_its_upgrade(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        transaction = broker.transaction("x")
        transaction.begin("g", {("t", 0): 2})
        broker.commit("g", {("t", 0): 1})
        broker.delete_offsets("g", [("t", 0)])  # R12: a tombstone between the commit and its marker
        broker.commit("other", {("t", 0): 5})
        older = replace(quick, log=replace(quick.log, coordinator_semantics="classic"))
        ingest_of(workbench, store, broker, older).prepare()
        workbench.reload(store)
        assert {each.coordinator_semantics for each in log_info(StateReader(str(store)))} == {"classic"}
        with following(workbench, store, broker, quick, heard):
            caught_up(store, broker)
        assert {each.coordinator_semantics for each in log_info(StateReader(str(store)))} == {"modern"}
        assert any("the broker's coordinator is modern" in each for each in heard.warnings)
        assert workbench.verify(store).equal


@pytest.mark.long  # unit/ingest/test_mirrored_topic.py plans for a second follower, spark/test_topic_append.py appends
def test_two_followers_of_one_store_append_each_record_once_and_do_not_read_the_topic_again(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    """Without a lease, as two processes whose clocks are wrong."""
    store, heard = tmp_path / "store", [Heard(), Heard()]
    with live_broker(kafka, tmp_path / "broker", 5) as broker, ExitStack() as running:
        broker.create_topic("t", 1)
        for number in range(20):
            broker.commit(f"g{number}", {("t", 0): number})
        for each in heard:
            spark = workbench.spark.newSession()  # in which names of queries are free
            options = KafkaOptions(broker.address, {})
            ingest = TopicIngest(spark, str(store), options, quick, SystemClock(), each)
            ingest.prepare()
            running.enter_context(beside(ingest.run, ingest.stop))
        for number in range(20):
            broker.commit(f"g{number}", {("t", 0): 100 + number})
        wait_until(lambda: len(log_records(store)) >= len(broker.log_places()), "the log lacks records")
        running.close()
        assert log_records(store) == broker.log_records()
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {0}
    assert [text for each in heard for text in each.warnings if "read again" in text] == []


def test_topic_that_cannot_be_followed_is_refused_with_the_reason(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(options: KafkaOptions, store: str = "new", topic: str | None = None) -> TopicIngest:
        return TopicIngest(workbench.spark, str(tmp_path / store), options, quick, SystemClock(), topic=topic)

    for name, properties in {
        "of-another-cluster": StoreProperties(MIRRORED, 5, "another", None),
    }.items():
        Store.create(workbench.spark, str(tmp_path / name), properties)
    with live_broker(kafka, tmp_path / "broker", 5, SASL) as broker:
        plain = KafkaOptions(broker.address, {})
        with pytest.raises(StoreMismatch, match="mirrors cluster another, not "):
            refused(plain, "of-another-cluster").prepare()
        with pytest.raises(NoSuchTopic, match="has no topic nix; name another"):
            refused(plain, topic="nix").prepare()
        nowhere = KafkaOptions("127.0.0.1:1", {"default.api.timeout.ms": "1500", "request.timeout.ms": "1000"})
        with pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
            refused(nowhere).prepare()
        assert not (tmp_path / "new").exists()

        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{}";'
        sasl = {"kafka.security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "env:LOGIN"}
        monkeypatch.setenv("LOGIN", login.format("wrong-word"))
        with pytest.raises(AuthenticationFailed) as wrong:
            refused(KafkaOptions(f"127.0.0.1:{broker.sasl_port}", sasl)).prepare()
        assert "wrong-word" not in str(wrong.value)
        monkeypatch.setenv("LOGIN", login.format("open-sesame"))
        broker.create_topic("t", 1)
        broker.commit("g", {("t", 0): 1})
        ingest = refused(KafkaOptions(f"127.0.0.1:{broker.sasl_port}", sasl))
        with pytest.raises(NotAuthorized, match=r"not allow us to read topic __consumer_offsets .* DESCRIBE and READ"):
            ingest.prepare()
        broker.allow("me", "TOPIC", TOPIC, "DESCRIBE", "READ")
        ingest.prepare()
        assert ingest.run(available_now=True) == len(broker.log_places()) > 0
        assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]

        with pytest.raises(StoreMismatch, match="mirrors topic __consumer_offsets, not t; check --topic"):
            refused(plain, topic="t").prepare()
