"""Extras: their packages, their ranges, and the line of a command that lacks one."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from offsets_pipeline.cli import main
from offsets_pipeline.common.extras import EXTRAS, needed_extra

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BY_WAY_OF = {"py4j": "pyspark"}  # a module of a package that another one requires


def test_extras_of_errors_are_those_of_the_package(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for module, (extra, _) in EXTRAS.items():
        (distribution,) = set(distributions[BY_WAY_OF.get(module, module)])
        found.setdefault(extra, set()).add(canonicalize_name(distribution))
    declared = {
        extra: {canonicalize_name(Requirement(each).name) for each in project["optional-dependencies"][extra]}
        for extra in found
    }
    assert found == declared


def test_a_missing_module_of_an_extra_names_the_command_that_installs_it() -> None:
    said = needed_extra(ModuleNotFoundError("No module named 'kazoo.client'", name="kazoo.client"))
    assert said == "this command needs a client of ZooKeeper: pip install 'offsets-pipeline[zookeeper]'"
    assert needed_extra(ModuleNotFoundError("No module named 'sparkle'", name="sparkle")) is None
    assert needed_extra(ModuleNotFoundError("no name")) is None


def test_a_command_that_needs_spark_4_2_says_so_on_an_older_one() -> None:
    module = "pyspark.sql.streaming.datasource"
    said = needed_extra(ModuleNotFoundError(f"No module named '{module}'", name=module))
    assert said == "this command needs Spark 4.2: pip install 'pyspark==4.2.*'"


def test_a_command_without_its_extra_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)  # its import fails
    monkeypatch.delitem(sys.modules, "offsets_pipeline.coordinator.zookeeper.client", raising=False)
    assert main(["import-zookeeper", "--store", str(tmp_path / "store"), "--dump", str(tmp_path / "dump")]) == 1
    assert capsys.readouterr() == (
        "",
        "offsets: error: this command needs a client of ZooKeeper: pip install 'offsets-pipeline[zookeeper]'\n",
    )
