from __future__ import annotations

import importlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.config import Settings
from offsets_pipeline.store.session import DELTA_CONF, build_session
from tests.programs import SPARK_SUBMIT, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

# A program in a process of its own. It prints all that is printed, but for the error of its last command. One without
# spark-submit is that of tests/spark/test_views.py.
PROGRAM = """
import sys
from offsets_pipeline.cli import main
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.store.session import build_session
table, store = sys.argv[1:]
spark = build_session("program", load_settings())
spark.range(3).write.format("delta").save(table)
print(spark.read.format("delta").load(table).count(), spark.conf.get("spark.sql.shuffle.partitions"), flush=True)
sys.exit(main(["sql", "--spark", "--store", store, "SELECT raise_error(group_id) FROM consumer_groups"]))
"""

SOURCE = """
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader

class Numbers(DataSource, SimpleDataSourceStreamReader):
    schema = lambda self: "number int"
    simpleStreamReader = lambda self, schema: self
    initialOffset = lambda self: {"next": 0}
    read = lambda self, start: (iter([(7,)] if start == {"next": 0} else []), {"next": 1})
    readBetweenOffsets = lambda self, start, end: iter([(7,)])
"""


def properties(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs}


def test_the_running_session_is_returned_with_what_is_asked_of_it(spark: SparkSession, settings: Settings) -> None:
    again = build_session("another", settings, {"spark.offsets.test": "yes"})
    assert again is spark
    assert spark.conf.get("spark.offsets.test") == "yes"
    spark.conf.unset("spark.offsets.test")


def test_variables_of_s3_that_change_reach_a_session_that_runs_but_options_of_its_user_stay(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def option(key: str) -> str | None:
        return spark.conf.get(f"fs.s3a.{key}", None)

    for port in (1, 2):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-{port}")
        with ThreadPoolExecutor() as threads:  # a new thread has no active session
            assert threads.submit(build_session, "another", settings).result() is spark
        assert (option("endpoint"), option("secret.key")) == (f"http://127.0.0.1:{port}", f"secret-{port}")
    spark.conf.set("fs.s3a.endpoint", "http://users:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:3")
    build_session("another", settings)
    assert option("endpoint") == "http://users:9"
    spark.conf.unset("fs.s3a.endpoint")


def test_session_of_a_streams_batch_is_not_the_running_session(spark: SparkSession, settings: Settings) -> None:
    of_the_batch = spark.newSession()
    of_the_batch.createDataFrame([(1,)], "n int")  # makes it the active one, as what a batch does makes its session
    assert spark.getActiveSession() is of_the_batch
    try:
        assert build_session("another", settings) is spark
    finally:
        spark.createDataFrame([(1,)], "n int")  # active again


def test_a_streaming_source_is_found_in_a_zip_file_that_spark_brings_along(spark: SparkSession, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "brought.zip", "w") as brought:
        brought.writestr("brought_source.py", SOURCE)
    spark.sparkContext.addPyFile(str(tmp_path / "brought.zip"))  # as --py-files does
    spark.dataSource.register(importlib.import_module("brought_source").Numbers)
    writer = spark.readStream.format("Numbers").load().writeStream.format("memory").queryName("numbers")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [row.number for row in spark.table("numbers").collect()] == [7]


def test_timestamps_are_utc_and_shuffles_small(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_delta_tables_can_be_written_and_read_with_no_more_options(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.sql(f"CREATE TABLE delta.`{table}` (group_id STRING NOT NULL) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES ('a'), ('b')")
    assert spark.read.format("delta").load(table).count() == 2


def test_spark_defaults_match_the_session(root: Path, spark: SparkSession) -> None:
    """spark-submit with conf/spark-defaults.conf and a session of our own are the same Spark."""
    defaults = properties(root / "conf" / "spark-defaults.conf")
    settings = Settings()
    assert defaults.items() >= DELTA_CONF.items()
    assert defaults["spark.master"] == settings.spark.master
    assert defaults["spark.driver.memory"] == "2g"  # what a session has with driver_memory = "auto"
    assert defaults["spark.sql.shuffle.partitions"] == str(settings.spark.shuffle_partitions)
    # The fixture runs on fewer cores and with a quicker start; everything else is as in any session of ours.
    differ = {"spark.master", "spark.driver.extraJavaOptions", "spark.log.level"}
    running = dict(spark.sparkContext.getConf().getAll())
    assert {key: running.get(key) for key in defaults.keys() - differ} == {
        key: value for key, value in defaults.items() if key not in differ
    }


@pytest.mark.slow  # a JVM: output, folder and options are those of a process
@pytest.mark.process
def test_a_program_of_its_own_is_quiet_leaves_nothing_obeys_spark_submit_and_fails_in_one_line(
    root: Path, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "a folder"
    program.write_text(PROGRAM, encoding="utf-8")
    folder.mkdir()
    submit: list[str | Path] = [SPARK_SUBMIT, "--properties-file", root / "conf" / "spark-defaults.conf"]
    given = ["--conf", "spark.sql.shuffle.partitions=3"]
    done = start(folder, *submit, *given, program, folder / "table", folded("4.2.0-kip848"))
    # spark-submit puts the program's stderr on stdout; Java itself prints a line before anything of ours runs
    noise = [line for line in done.stderr.splitlines() if "Using incubator modules" not in line]
    assert noise == []
    counted, error = done.stdout.splitlines()
    assert counted == "3 3", done.stdout
    assert error.startswith("offsets: error: the query failed: ")  # raised in a task, in the JVM
    assert done.returncode == 1
    assert [each.name for each in folder.iterdir()] == ["table"]
