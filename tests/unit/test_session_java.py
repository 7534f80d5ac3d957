from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from offsets_pipeline.cli import main
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import SparkSettings
from offsets_pipeline.errors import DependencyMissing
from offsets_pipeline.store import session
from offsets_pipeline.store.delta import s3_access
from offsets_pipeline.store.session import check_java, require_context, require_lasting_catalog
from tests.unit.coordinator.states import refusal


def fake_java(home: Path, says: str) -> Path:
    """A `java` that prints `says`, as Java does, on stderr."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def _no_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_no_java_in_path_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DependencyMissing, match=r"^no Java in PATH: Spark needs Java 17 or newer; install one[^\n]*$"):
        check_java()


def test_no_java_in_java_home_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DependencyMissing, match=re.escape(f"no Java in JAVA_HOME, which is {tmp_path}: ")):
        check_java()


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_402"', 8)]
)
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: int
) -> None:
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("PATH", os.pathsep.join([str(java.parent), os.environ["PATH"]]))
    with pytest.raises(DependencyMissing, match=re.escape(f"{java} is Java {version}: Spark needs Java 17 or newer")):
        check_java()


def test_something_else_named_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "command not found")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DependencyMissing, match="cannot find out the version of"):
        check_java()


@pytest.mark.parametrize("says", ['openjdk version "17" 2021-09-14', 'openjdk version "21.0.2" 2024-01-16'])
def test_a_new_enough_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


def test_the_release_file_beside_java_saves_starting_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "not asked")
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="11.0.2"\n', encoding="utf-8")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    with pytest.raises(DependencyMissing, match="is Java 11"):
        check_java()


def test_the_java_of_this_machine_is_taken() -> None:
    if shutil.which("java") is None:
        pytest.fail("the tests need Java 17 or newer")
    check_java()


def test_a_store_on_s3_without_the_jars_is_one_line_that_names_make_s3_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offsets_pipeline.store.session._find_spark_home", lambda: str(tmp_path))
    monkeypatch.setattr("offsets_pipeline.store.session.SparkContext._jvm", None)
    monkeypatch.setattr("offsets_pipeline.store.session.build_session", lambda *_: pytest.fail("Spark starts"))
    assert main(["ingest-segments", "--store", "s3://bucket/store", str(tmp_path)]) == 1
    assert re.fullmatch(r"offsets: error: Spark cannot open s3://: .* run `make s3`, .*\n", capsys.readouterr().err)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of SparkSession: no session runs, and `options` are those of the session that the builder starts."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    found = Mock(_instantiatedSession=None, options={})
    builder = found.builder.appName.return_value
    builder.master.return_value = found.builder.remote.return_value = builder

    def config(key: str, value: str) -> Mock:
        found.options[key] = value
        return cast("Mock", builder)

    builder.config = config
    monkeypatch.setattr(session, "SparkSession", found)
    monkeypatch.setattr(session, "_with_tasks_set_up", lambda started: started)
    monkeypatch.setattr(session, "_is_installed", lambda _: True)
    return found


@pytest.mark.parametrize(("master", "python"), [("local[2]", sys.executable), ("spark://host:7077", None)])
def test_tasks_have_the_drivers_python_on_its_own_machine_only(no_spark: Mock, master: str, python: str | None) -> None:
    session.build_session("a test", Settings(spark=SparkSettings(master=master)))
    assert os.environ.get("PYSPARK_PYTHON") == python
    assert no_spark.options.get("spark.driver.host") == (None if python is None else "127.0.0.1")


@pytest.mark.parametrize(
    ("memory", "is_small", "heap"), [("auto", False, "2g"), ("auto", True, "512m"), ("3g", True, "3g")]
)
def test_a_jvm_has_the_heap_of_the_setting_or_of_its_command(
    no_spark: Mock, memory: str, *, is_small: bool, heap: str
) -> None:
    settings = Settings(spark=SparkSettings(master="local[2]", driver_memory=memory, shuffle_partitions=3))
    session.build_session("a test", settings, {"spark.ui.enabled": "true"}, is_small=is_small)
    assert no_spark.options["spark.driver.memory"] == heap
    assert ("UseSerialGC" in no_spark.options["spark.driver.extraJavaOptions"]) == is_small
    assert no_spark.options["spark.sql.shuffle.partitions"] == "3"
    assert no_spark.options["spark.ui.enabled"] == "true"  # the caller's option, not the program's
    assert "spark.jars.packages" not in no_spark.options


def test_a_session_of_spark_submit_keeps_the_options_of_its_user(
    no_spark: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"spark.master": "local[1]", "spark.ui.enabled": "true", "spark.executor.cores": "2"}
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "SparkContext", Mock())
    monkeypatch.setattr(session, "SparkConf", lambda: Mock(getAll=lambda: [*given.items()]))
    monkeypatch.setattr(session, "_is_installed", lambda _: False)
    monkeypatch.setattr(session, "check_java", lambda: pytest.fail("the JVM runs already"))
    session.build_session("a test", Settings(), {"spark.executor.cores": "3"})
    assert not no_spark.builder.appName.return_value.master.called
    assert no_spark.options["spark.executor.cores"] == "3"
    assert not no_spark.options.keys() & {"spark.ui.enabled", "spark.driver.memory", "spark.jars.packages"}
    assert no_spark.options["spark.sql.session.timeZone"] == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_a_spark_without_delta_gets_its_package(no_spark: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_installed", lambda _: False)
    no_spark.Builder = SparkSession.Builder
    session.build_session("a test", Settings())
    assert re.fullmatch(r"io\.delta:delta-spark_[\d._]+:[\d.]+", no_spark.options.get("spark.jars.packages", ""))


@pytest.mark.parametrize("remote", ["", "sc://of-the-variable"])
def test_a_session_of_a_server_has_the_options_that_a_session_may_set(
    no_spark: Mock, monkeypatch: pytest.MonkeyPatch, remote: str
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote)
    builder = no_spark.builder
    started = (builder if remote else builder.remote.return_value).getOrCreate.return_value
    given: Mock = started.conf.set
    spark = SparkSettings(master="local[2]" if remote else "sc://host", shuffle_partitions=3)
    assert session.build_session("a test", Settings(spark=spark), {"a": "b"}) is started
    assert [each.args for each in builder.remote.call_args_list] == ([] if remote else [("sc://host",)])
    options = dict(each.args for each in given.call_args_list)
    assert options | {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "3", "a": "b"} == options
    assert not options.keys() & session.DELTA_CONF.keys()
    assert no_spark.options == {}


@pytest.mark.parametrize(("master", "remote"), [("local[2]", "sc://host"), ("sc://host", ""), ("local[2]", "")])
def test_the_jars_of_a_server_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, remote: str
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("offsets_pipeline.store.session.SparkContext._jvm", None)
    monkeypatch.setattr(session, "_find_spark_home", lambda: str(tmp_path))
    is_local = "sc://host" not in (master, remote)
    settings = Settings(spark=SparkSettings(master=master))
    assert refusal(session.check_s3, settings) == ("DependencyMissing" if is_local else "")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-aws-3.4.1.jar").touch()
    assert refusal(session.check_s3, settings) == ""


@pytest.mark.parametrize("is_loadable", [True, False])
def test_a_jvm_that_runs_has_the_jars_that_it_can_load(monkeypatch: pytest.MonkeyPatch, *, is_loadable: bool) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    context = Mock()
    context._jvm.org.apache.spark.util.Utils.classIsLoadable.return_value = is_loadable
    monkeypatch.setattr(session, "SparkContext", context)
    monkeypatch.setattr(session, "_is_installed", lambda _: not is_loadable)
    assert refusal(session.check_s3, Settings()) == ("" if is_loadable else "DependencyMissing")


def test_a_session_that_runs_gets_the_options_of_the_caller_alone(no_spark: Mock) -> None:
    running = no_spark._instantiatedSession = Mock()
    assert session.build_session("a test", Settings(), {"a": "b"}) is running
    assert [each.args for each in running.conf.set.call_args_list] == [("a", "b")]
    assert no_spark.options == {}
    running.sparkContext._jsc = None  # it was stopped
    assert session.build_session("a test", Settings()) is not running


def test_options_for_s3_follow_the_variables_until_a_user_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_set_by_program", {})
    options = {"fs.a": "first", "fs.b": "first", "fs.c": "first", "fs.d": "first"}
    monkeypatch.setattr(s3_access, "hadoop_options", lambda: options)
    monkeypatch.setattr(s3_access, "hadoop_keys", dict)
    held = {"fs.b": "of the user"}
    running = Mock()
    running.conf.get.side_effect = held.get
    running.conf.set.side_effect = held.__setitem__
    started_with = [("spark.hadoop.fs.c", "of spark-submit"), ("spark.hadoop.fs.d", "first")]
    running.sparkContext.getConf.return_value.getAll.return_value = started_with
    options_of_start = session._program_conf(Settings())
    assert (options_of_start["spark.hadoop.fs.d"], Path(options_of_start["spark.sql.warehouse.dir"]).is_dir()) == (
        "first",
        True,
    )
    session._set_up_hadoop(running)
    assert held == {"fs.a": "first", "fs.b": "of the user", "fs.d": "first"}
    options |= {"fs.a": "second", "fs.d": "second"}
    session._set_up_hadoop(running)
    assert held == {"fs.a": "second", "fs.b": "of the user", "fs.d": "second"}


def test_what_a_jvm_prints_goes_to_stderr_without_its_noise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    before = threading.enumerate()  # of the JVMs of other tests, which run on
    with session._without_noise():
        os.write(1, b"Deleted 3 files and directories\nin the way of stdout\n")
        os.write(2, b"WARNING: Using incubator modules: jdk.incubator.vector\nan error\n")
        (thread,) = [each for each in threading.enumerate() if each.name == "jvm-stderr" and each not in before]
        assert thread.daemon  # else this process would live as long as the JVM
    os.write(1, b"of the program\n")
    thread.join(30)  # the pipe has no writer any more
    assert not thread.is_alive()
    assert capfd.readouterr() == ("of the program\n", "in the way of stdout\nan error\n")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # the JVM runs already
    with session._without_noise():
        os.write(1, b"of the program\n")
    assert capfd.readouterr() == ("of the program\n", "")


@pytest.mark.parametrize(
    ("schema", "implementation", "has_context", "refused"),
    [
        ("lab", "in-memory", True, True),
        ("spark_catalog.lab", "in-memory", True, True),
        ("lab", "hive", True, False),
        ("unity.lab", "in-memory", True, False),
        ("lab", "in-memory", False, False),  # a server's lasts
    ],
)
def test_catalog_in_the_memory_of_the_process_is_refused(
    schema: str, implementation: str, has_context: bool, refused: bool
) -> None:
    running = Mock(sparkContext=Mock() if has_context else None)
    running.conf.get.return_value = implementation
    assert (refusal(require_lasting_catalog, running, schema, "ingest") == "CatalogMissing") == refused
    assert (refusal(require_context, running, "a fold") == "NotOnConnect") == (not has_context)
