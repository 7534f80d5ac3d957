"""A command imports an extra only if it needs it, and its modules only when it runs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli.program import offsets
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.extras import EXTRAS
from tests.import_graph import chain_to, imported
from tests.logs import LogPartition
from tests.unit.lag.stores import TimedRow
from tests.unit.lag.stores import folded_store as folded_store_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.cli.command import Command

PACKAGE = "offsets_pipeline"
#: The commands that import a package of an extra, directly or by another module; all other commands import none.
#: docs/install.md has the same.
WITH_EXTRA = {
    "spark": {
        *("ingest-segments", "ingest-topic", "follow", "fold", "reload", "verify"),
        *("create-views", "maintain", "clean-log"),
    },
    "s3": set(),  # imported when a storage is opened
    "serve": {"serve", "connect serve"},
    "zookeeper": {"import-zookeeper"},
}
#: The part of `sql` that runs with --spark.
IN_SPARK = "_run_in_spark"


def packages_of(extra: str) -> set[str]:
    return {package for package, (of, _) in EXTRAS.items() if of == extra}


def imported_by_command(command: Command) -> set[str]:
    """The modules that a command imports when it runs: its work, its classes, and the functions beside them."""
    of_command = {each.__name__ for each in command.options.__mro__}
    module = sys.modules[command.options.__module__]
    names = {module.__name__}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in of_command):
            bodies = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef) and each.name != IN_SPARK]
            names |= {name for body in bodies for name in imported(body)}
    return names | ({work_of(command)[0]} if hasattr(command.options, "work") else set())


def work_of(command: Command) -> tuple[str, str]:
    """The module and the function that a command names."""
    module, _, function = command.options.work.partition(".")
    return f"{PACKAGE}.cli.{module}", function


@pytest.mark.parametrize("name", [name for name, each in offsets.leaves().items() if hasattr(each.options, "work")])
def test_the_work_that_a_command_names_is_a_function_of_its_options(name: str) -> None:
    command = offsets.leaves()[name]
    module, function = work_of(command)
    options, settings, _ = inspect.get_annotations(getattr(import_module(module), function)).values()
    assert options in {each.__name__ for each in command.options.__mro__}
    assert settings == Settings.__name__


@pytest.mark.parametrize("name", offsets.leaves())
@pytest.mark.parametrize("extra", WITH_EXTRA)
def test_command_without_an_extra_imports_none_of_it(root: Path, name: str, extra: str) -> None:
    modules = imported_by_command(offsets.leaves()[name])
    assert len(modules) > 1  # that of its section, and those of its work
    chain = chain_to(packages_of(extra), root, modules)
    assert bool(chain) is (name in WITH_EXTRA[extra]), chain


def test_the_documents_name_the_commands_of_each_extra(root: Path) -> None:
    table = (root / "docs" / "install.md").read_text(encoding="utf-8")
    named = {
        row[1]: set(re.findall(r"`([^`]+)`", row[2]))
        for row in re.finditer(r"^\| `(\w+)` .*\| (.*) \|$", table, re.MULTILINE)
    }
    commands = offsets.leaves().keys()
    assert {extra: named[extra] & commands for extra in WITH_EXTRA} == WITH_EXTRA


def test_help_imports_no_extra_by_way_of_any_module(root: Path) -> None:
    everything = {package for extra in WITH_EXTRA for package in packages_of(extra)}
    assert chain_to(everything, root, {f"{PACKAGE}.cli.program"}) == []


@pytest.mark.parametrize(
    "command",
    [("describe", "--group", "g"), ("groups",), ("sql", "SELECT count(*) FROM current_offsets"), ("log-info",)],
)
def test_an_answer_imports_neither_pandas_nor_the_replay(folded_store: str, command: tuple[str, ...]) -> None:
    """They take longer to import than the answer takes; only records that are not folded yet need them."""
    code = (
        "import sys\nfrom offsets_pipeline.cli import main\n"
        f"status = main({[command[0], '--store', folded_store, *command[1:]]!r})\n"
        "heavy = {'pandas', 'pyspark', 'offsets_pipeline.semantics.columnar_replay'} & set(sys.modules)\n"
        f"heavy |= {{'duckdb'}} & set(sys.modules) if {command[0] == 'describe'} else set()\n"
        "sys.exit(str(sorted(heavy)) if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def folded_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("folded") / "store"
    log = LogPartition(0)
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 1), 1)
    log.delete(("g", "t", 1))  # stays a fact
    return str(folded_store_of([TimedRow(row, 0) for row in log.rows], store, 1, Settings()))


def test_help_imports_neither_spark_nor_arrow_nor_the_bars() -> None:
    code = (
        "import sys\nfrom offsets_pipeline.cli import main\nmain(['--help']), main(['fold', '--help'])\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'deltalake', 'rich'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
