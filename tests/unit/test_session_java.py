from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import SparkSettings
from offsets_pipeline.errors import DependencyMissing
from offsets_pipeline.store import session
from offsets_pipeline.store.session import check_java, require_context, require_lasting_catalog
from tests.unit.coordinator.states import refusal

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(("master", "python"), [("local[2]", sys.executable), ("spark://host:7077", None)])
def test_tasks_have_the_drivers_python_on_its_own_machine_only(
    monkeypatch: pytest.MonkeyPatch, master: str, python: str | None
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    no_spark = Mock()
    no_spark._instantiatedSession = None
    monkeypatch.setattr(session, "SparkSession", no_spark)
    monkeypatch.setattr(session, "_with_tasks_set_up", lambda started: started)
    monkeypatch.setattr(session, "_is_installed", lambda _: True)
    session.build_session("a test", Settings(spark=SparkSettings(master=master)))
    assert os.environ.get("PYSPARK_PYTHON") == python


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
