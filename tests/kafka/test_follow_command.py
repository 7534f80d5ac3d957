"""`offsets follow` and `jobs/ingest_topic.py` give the broker's answers and right metrics.

They run in this process; a process that a signal stops is that of tests/kafka/test_follow_service.py.
"""

from __future__ import annotations

import re
import signal
import threading
import time
import urllib.request
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from benchmarks.broker import free_ports
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.service.metrics.exposition import FAMILIES
from offsets_pipeline.store.delta.schemas import LEASES
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.lease import END, FOLD, INGEST_TOPIC, Lease
from tests.figures import by_partition, extents, figures_of
from tests.kafka.live import TOPIC, live_broker, wait_until
from tests.programs import assert_refused, assert_said, in_process, job_in_process, stopped_in_process
from tests.spark.stores import differences, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.questions.query.log_info import LogPartitionInfo
    from tests.figures import Figures
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

PARTITIONS = 5
INTERRUPTED = 128 + signal.SIGTERM
ONE_BY_ONE = "[topic]\nmax_records_per_batch = 1\nmin_records_wait_ms = 0\n"
SHORT = "[topic]\nwatch_interval_ms = 300\nnote_interval_ms = 300\n[fold]\ntrigger_interval_ms = 300\n"
OFFSET_NAMES = ("offsets_fold_behind_log_records", "offsets_log_behind_topic_records", "offsets_topic_unstable_records")


def landed(store: Path) -> list[tuple[int, int]]:
    return [(row.log_partition, row.record_offset) for row in log_of(store)]


def assert_counts_are_the_brokers(figures: Figures, broker: LiveBroker) -> None:
    groups = broker.answers.groups()["groups"]
    assert figures["offsets_groups"] == {"": len(groups)}
    assert figures["offsets_committed_offsets"] == {"": sum(len(each["offsets"]) for each in groups.values())}
    assert figures["offsets_quarantined_records"] == {"": 0}


def test_available_records_are_followed_to_the_end_and_the_metrics_show_it(
    kafka: KafkaJvm, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    store, file = tmp_path / "a store", tmp_path / "metrics.prom"
    (tmp_path / "slow.toml").write_text(ONE_BY_ONE)
    with live_broker(kafka, tmp_path / "broker", PARTITIONS) as broker:
        broker.create_topic("t", 3)
        for number in range(150):
            broker.commit(f"g{number % 20}", {("t", number % 3): number})
        broker.delete_group("g7")
        broker.delete_offsets("g8", [("t", 0)])
        transaction = broker.transaction("x")
        transaction.begin("in-it", {("t", 0): 2})
        transaction.commit()  # so that a log partition ends with what no reader of committed records gets
        records = broker.log_places()

        # told to stop before the end, it says how far it came, and does not claim more
        now = ("--available-now", "--metrics-file", file)
        command = ("follow", "--store", store, "--bootstrap-server", broker.address)
        interrupted = stopped_in_process(
            root,
            lambda: wait_until(lambda: _version(store) > 3, "nothing landed"),
            *(*command, *now, "--config", tmp_path / "slow.toml"),
        )
        first = landed(store)
        assert (interrupted.returncode, interrupted.stderr) == (INTERRUPTED, "")
        said = re.fullmatch(rf"(\d+) records added to {re.escape(str(store))}, \1 folded\n", interrupted.stdout)
        assert said is not None, interrupted.stdout
        assert 0 < len(first) < len(records)
        assert len(first) == int(said[1])  # the batch that went on was ended
        figures = figures_of(file.read_text())
        assert figures["offsets_records_read_total"] == {"": int(said[1])}
        assert figures["offsets_records_folded_total"] == {"": int(said[1])}
        assert figures["offsets_fold_behind_log_records"] == by_partition({})

        # the next one comes to it
        done = in_process(root, *command, *now)
        read = len(records) - len(first)
        assert_said(done, f"{read} records added to {store}, {read} folded")
        assert landed(store) == records
        assert differences(store, broker.answers.groups()) == []
        figures = figures_of(file.read_text())
        assert figures["offsets_records_read_total"] == {"": read}
        assert figures["offsets_records_folded_total"] == {"": read}
        assert {name: figures[name] for name in OFFSET_NAMES} == {name: by_partition({}) for name in OFFSET_NAMES}
        assert_counts_are_the_brokers(figures, broker)
        assert (figures["offsets_log_incarnation"], figures["offsets_warnings_total"]) == ({"": 0}, {"": 0})
        assert figures["offsets_batches_total"].keys() == {"ingest-topic"}
        assert (
            min(figures["offsets_batches_total"].values()) >= 1
        )  # also the last batch, whose progress event comes late
        assert figures["offsets_batch_duration_seconds_count"] == figures["offsets_batches_total"]
        assert min(figures["offsets_batch_duration_seconds_sum"].values()) > 0
        told = {each if each in FAMILIES else each.removesuffix("_sum").removesuffix("_count") for each in figures}
        of_others = {
            name
            for name, of in FAMILIES.items()
            if name.startswith(("offsets_coordinator", "offsets_mirror")) or "partition" in of.labels
        }
        # no transaction is open, no group is behind, and groups without members never rebalanced
        of_others |= {"offsets_topic_open_transaction_seconds", "offsets_group_partitions", "offsets_group_epoch"}
        assert told == FAMILIES.keys() - of_others
        # the topic has no records, so all groups committed above its end
        assert set(figures["kafka_consumergroup_group_sum_lag"].values()) == {0}
        assert {*figures["kminion_kafka_consumer_group_members"]} == {*broker.answers.groups()["groups"]}
        assert {*read_samples(table_of(str(store)), ["t"]).latest()} == {("t", 0), ("t", 1), ("t", 2)}

        # the job lands what comes then, and the fold is behind by that
        for number in range(9):
            broker.commit(f"g{number}", {("t", 1): 1000 + number})
        more = broker.log_places()
        given = ("--store", store, "--bootstrap-server", broker.address, *now)
        assert_said(
            job_in_process(root, "ingest_topic", *given), f"{len(more) - len(records)} records added to {store}"
        )
        assert landed(store) == more
        figures = figures_of(file.read_text())
        assert figures["offsets_records_read_total"] == {"": 9}
        assert "offsets_records_folded_total" not in figures
        folded_to = {at: end for at, (_, end) in extents(records).items()}
        behind = {at: end - folded_to[at] for at, (_, end) in extents(more).items()}
        assert figures["offsets_fold_behind_log_records"] == by_partition(behind)
        assert figures["offsets_batches_total"].keys() == {"ingest-topic"}


def test_second_follow_says_who_follows_the_store_and_goes_on_when_the_first_one_ends(
    kafka: KafkaJvm, spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, warned = tmp_path / "store", threading.Event()
    first = Lease(str(store), "follow", (INGEST_TOPIC, FOLD), Settings(), SystemClock(), lambda _: None)
    first._own |= {"host": "first.example.com", "process_id": 4711}
    (tmp_path / "short.toml").write_text(SHORT)
    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        broker.commit("g", {("t", 0): 1})
        command = ("follow", "--store", store, "--bootstrap-server", broker.address)
        assert in_process(root, *command, "--available-now").returncode == 0
        broker.commit("g", {("t", 0): 2})
        waits = Lease._acquire
        with ExitStack() as of_first, monkeypatch.context() as context:
            of_first.enter_context(first.held(END))
            context.setattr("offsets_pipeline.store.session.build_session", _refused)
            said = "process 4711 on first.example.com runs `offsets follow` on this store since "
            # Spark does not start, whether the second one ends or waits
            assert_refused(in_process(root, *command, "--available-now"), f"cannot follow {store}: {said}")
            assert_refused(
                in_process(root, "fold", "--store", store, "--if-held", "end"), f"cannot fold {store}: {said}"
            )
            missing = ("ingest-topic", *command[1:], "--topic", "nope")
            assert_refused(in_process(root, *missing), f"{broker.address} has no topic nope")

            def acquire(lease: Lease, if_held: str, stopped: threading.Event) -> bool:
                lease._warn = _calling(lease._warn, warned.set)
                return waits(lease, if_held, stopped)

            context.setattr(Lease, "_acquire", acquire)

            def look() -> None:
                assert warned.wait(60)
                assert differences(store, broker.answers.groups()) != []
                context.undo()
                of_first.close()
                wait_until(lambda: differences(store, broker.answers.groups()) == [], "it does not go on")

            done = stopped_in_process(root, look, *command, "--config", tmp_path / "short.toml")
    assert done.returncode == 0
    assert done.stderr.count("warning") == done.stderr.count(f"warning: {said}") == 1
    assert TableFolder(f"{store}/leases", LEASES).snapshot().rows().num_rows == 0


def _refused(*_: object) -> NoReturn:
    raise AssertionError("Spark is started")


def _calling(say: Callable[[str], object], then: Callable[[], object]) -> Callable[[str], None]:
    def both(text: str) -> None:
        say(text)
        then()

    return both


def _version(store: Path) -> int:
    try:
        return DeltaTable(store / "log").version()
    except DeltaError:  # it is still to be made
        return -1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_topic_that_its_first_consumer_creates_is_followed_and_an_open_transaction_is_shown_with_its_age(
    kafka: KafkaJvm, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    store, file, (port,) = tmp_path / "store", tmp_path / "metrics.prom", free_ports(1)
    (tmp_path / "short.toml").write_text(f"{SHORT}[lag]\nsample_interval_ms = 300\n")
    open_, differing = "offsets_topic_open_transaction_seconds", "offsets_mirror_differing_groups"
    compared = "offsets_mirror_compared_groups_total"

    def told() -> Figures:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return figures_of(answer.read().decode())
        except OSError:  # the port is not open yet
            return {}

    def info() -> LogPartitionInfo:
        (at,) = log_info(StateReader(str(store)))
        return at

    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        broker.delete_topic(TOPIC)  # a new cluster has none

        def look() -> None:
            wait_until(lambda: told().get("offsets_topic_up") == {"": 0}, "it does not wait for the topic")
            broker.commit("before", {("t", 0): 1})
            before_ms = _now_ms()
            transaction = broker.transaction("hangs")
            transaction.begin("in-it", {("t", 0): 2})
            after_ms = _now_ms()
            broker.commit("behind", {("t", 0): 3})
            ((began,),) = [{start for _, start, _ in broker.answers.producers().values() if start is not None}]
            started_ms = _now_ms()

            wait_until(lambda: open_ in told(), "no figure shows the transaction")
            figures = told()
            asked_ms = _now_ms()
            age_ms = figures[open_]["0"] * 1000
            assert started_ms - after_ms <= age_ms <= asked_ms - before_ms
            end = broker.answers.bounds()[0][1]
            assert figures["offsets_topic_unstable_records"] == {"0": end - began}
            wait_until(lambda: told().get(open_, {}).get("0", 0) * 1000 > age_ms, "it grows no older")
            # an open transaction makes no difference: its records are read, and pending
            wait_until(lambda: told()[compared][""] > 0 and told()[differing][""] == 0, "the sample differs")

            wait_until(lambda: info().open_since is not None, "log-info tells nothing of it")
            at = info()
            assert at.open_since is not None
            since_ms = datetime.fromisoformat(at.open_since).timestamp() * 1000
            assert before_ms <= since_ms <= after_ms
            assert (at.stable, at.topic_end) == (began, end)

            transaction.commit()
            wait_until(lambda: differences(store, broker.answers.groups()) == [], "we answer otherwise than the broker")
            wait_until(lambda: open_ not in told(), "it is still told of")
            wait_until(lambda: info().open_since is None, "log-info still tells of it")
            wait_until(lambda: told()[differing][""] == 0, "the sample still differs")

        shown = (
            "--sample",
            "3",
            "--metrics-port",
            f"127.0.0.1:{port}",
            "--metrics-file",
            file,
            "--config",
            tmp_path / "short.toml",
        )
        command = ("follow", "--store", store, "--bootstrap-server", broker.address, *shown)
        done = stopped_in_process(root, look, *command)
        records = len(broker.log_places())
        said = f"{records} records added to {store}, {records} folded\n"
        assert (done.returncode, done.stdout) == (0, said)
        warnings = [line for line in done.stderr.splitlines() if "warning" in line]
        assert [each for each in warnings if "is not as its coordinator answers: " not in each] == []
        waited = (
            f"the cluster at {broker.address} has no topic {TOPIC} yet: waiting until its first consumer creates it"
        )
        assert done.stderr.count(waited) == done.stderr.count("waiting until") == 1
        figures = figures_of(file.read_text())
        assert figures["offsets_records_read_total"] == figures["offsets_records_folded_total"] == {"": records}
        assert {name: figures[name] for name in OFFSET_NAMES} == {name: {"0": 0} for name in OFFSET_NAMES}
        assert_counts_are_the_brokers(figures, broker)
