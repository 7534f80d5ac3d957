"""Commands on a Spark Connect server: a capture is ingested, folded, reloaded, queried, cleaned and verified there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import SPARK_KAFKA_JARS, free_ports
from benchmarks.s3 import client_variables
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.compare import compare
from tests.kafka.brokers import fetch_kafka
from tests.kafka.live import live_broker
from tests.logs import CAPTURES, oracle
from tests.programs import PROPERTIES, QUICK, SPARK_SUBMIT, start
from tests.unit.coordinator.stores import references_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm

CAPTURE = "4.2.0-kip848"
RECORDS = 350  # of its segments, as Kafka's dump tool counts them
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SECONDS_TO_START = 120
# All commands in one process, whose one session is on the server; the output of each is a line of JSON.
COMMANDS = """
import contextlib, io, json, sys
from offsets_pipeline.cli import main

for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(words)
    print(json.dumps([status, out.getvalue()]), flush=True)

from pyspark import SparkContext
from pyspark.sql import SparkSession
assert SparkContext._jvm is None, "a JVM of this process"
spark = SparkSession.getActiveSession()
from offsets_pipeline.questions.query.views import register_views
register_views(spark, sys.argv[2])
print(json.dumps([type(spark).__module__, spark.table("current_offsets").count()]))
"""

# A job with a listener, as a user writes it.
LISTENER = """
import sys
from pyspark.sql import SparkSession
from offsets_pipeline import OffsetsListener

server, brokers, store, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", "orders")
rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10).load()
listener = OffsetsListener(store, "g", brokers)
spark.streams.addListener(listener)
query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
assert listener.close(60)
spark.streams.removeListener(listener)
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, root: Path, moto: str) -> Iterator[str]:
    """The URL of a server with the JARs of Delta, S3A and Spark's Kafka source, and this project's Python packages."""
    fetch_kafka()
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("server")
    set_here = {"spark.connect.grpc.binding.port": port, "spark.sql.warehouse.dir": folder / "warehouse"}
    options = [word for name, value in set_here.items() for word in ("--conf", f"{name}={value}")]
    jars = ",".join(map(str, sorted(SPARK_KAFKA_JARS.glob("*.jar"))))
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [SPARK_SUBMIT, *PROPERTIES, "--jars", jars, *options, "--class", SERVER, "spark-internal"],
            cwd=root,
            env={**os.environ, **QUICK, **client_variables(moto), "PYSPARK_PYTHON": sys.executable},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def listens() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until("a Spark Connect server", listens, SECONDS_TO_START)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow  # a server is a JVM, and its session is used by a process of its own
@pytest.mark.process
def test_a_capture_is_ingested_folded_reloaded_queried_cleaned_and_verified(
    server: str, place: Path, tmp_path: Path
) -> None:
    store, settings = str(place / "a store"), tmp_path / "offsets.toml"
    settings.write_text(f'[spark]\nmaster = "{server}"\n')
    segments = CAPTURES / CAPTURE / "segments"
    query = "SELECT group_id FROM consumer_groups WHERE state = 'Stable' ORDER BY 1"
    commands = [
        ["ingest-segments", str(segments)],
        ["fold", "--available-now"],
        ["reload"],
        ["verify"],
        ["sql", "--spark", "--format", "json", query],
        ["clean-log"],
        ["maintain"],
        ["verify"],
        ["describe", "--all-groups", "--format", "json"],
        ["fold"],
    ]
    words = [[command, "--store", store, "--config", str(settings), *rest] for command, *rest in commands]
    done = start(tmp_path, sys.executable, "-c", COMMANDS, json.dumps(words), store)
    assert done.returncode == 0, done.stderr
    *said, (session, offsets) = map(json.loads, done.stdout.splitlines())
    ingested, folded, reloaded, verified, listed, *_, verified_again, described, refused = said
    assert [status for status, _ in said] == [0] * 9 + [1], done.stderr
    assert ingested[1].startswith(f"{RECORDS} records added")
    assert folded[1] == f"{RECORDS} records folded in {store}\n"
    assert reloaded[1] == f"{RECORDS} records replayed in {store}\n"
    assert verified[1].startswith("equal: ")
    assert verified_again[1].startswith("equal: ")
    answers = oracle(CAPTURE)
    assert compare(json.loads(described[1]), answers) == []
    stable = [name for name, group in answers["groups"].items() if group.get("list_state") == "Stable"]
    assert [json.loads(line)["group_id"] for line in listed[1].splitlines()] == sorted(stable)
    assert refused[1] == ""
    assert done.stderr.startswith("offsets: error: a fold without --available-now is a stream of this process, which")
    assert len(done.stderr.splitlines()) == 1
    assert session.startswith("pyspark.sql.connect.")
    assert offsets == sum(len(group["offsets"]) for group in json.loads(described[1])["groups"].values())


@pytest.mark.slow  # as above
@pytest.mark.process
def test_a_store_in_a_catalog_of_the_server_is_folded_as_one_in_a_folder(server: str, tmp_path: Path) -> None:
    settings = tmp_path / "offsets.toml"
    settings.write_text(f'[spark]\nmaster = "{server}"\n')
    at = ["--store", "schema:offsets", "--config", str(settings)]
    owned = ["--store", "schema:owned_offsets", "--config", str(settings)]
    commands = [
        ["ingest-segments", *at, str(CAPTURES / CAPTURE / "segments")],
        ["fold", *at, "--available-now"],
        ["verify", *at],
        ["describe", *at, "--all-groups", "--format", "json"],
        ["create", *owned, "--offsets-partitions", "1"],
        ["commit", *owned, "--group", "expired", "--retention-ms", "1", "orders:0=42", "orders:1=17"],
        ["fold", *owned, "--available-now"],
    ]
    done = start(tmp_path, sys.executable, "-c", COMMANDS, json.dumps(commands), "schema:offsets")
    assert done.returncode == 0, done.stderr
    *said, _ = map(json.loads, done.stdout.splitlines())
    assert [status for status, _ in said] == [0] * len(commands), done.stderr
    assert compare(json.loads(said[3][1]), oracle(CAPTURE)) == []
    # two commits and three tombstones
    assert said[-1][1] == "5 records folded in schema:owned_offsets; 2 offsets and 1 group expired\n"


@pytest.mark.slow  # as above
@pytest.mark.process
def test_a_listener_commits_the_offsets_of_a_query_on_the_server(
    server: str, kafka: KafkaJvm, tmp_path: Path, root: Path
) -> None:
    store, records = tmp_path / "owned", {0: 25, 1: 12}
    OwnedStore.create(store, 1)
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("orders", len(records))
        for at, count in records.items():
            broker.produce("orders", at, count)
        done = start(root, sys.executable, "-c", LISTENER, server, broker.address, store, tmp_path / "checkpoint")
        assert (done.returncode, done.stderr) == (0, "")
        in_broker = {each["partition"]: each["offset"] for each in broker.answers.offsets(["g"])["g"]}
    (log,) = references_of(store, 1).values()  # of its one log partition
    assert in_broker == {at: each.committed_offset for (_, _, at), each in log.current.items()} == records
