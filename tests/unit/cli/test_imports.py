"""Commands without Spark do not import it, and commands import their modules only when they run."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli.program import offsets
from offsets_pipeline.common.config import Settings
from tests.logs import LogPartition
from tests.unit.lag.stores import TimedRow
from tests.unit.lag.stores import folded_store as folded_store_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.cli.command import Command

PACKAGE = "offsets_pipeline"
SPARK = {"pyspark", "delta", "py4j"}
#: All other commands import no Spark, directly or by another module.
WITH_SPARK = {
    *("ingest-segments", "ingest-topic", "follow", "fold", "reload", "verify"),
    *("create-views", "maintain", "clean-log"),
}
#: The part of `sql` that runs with --spark.
IN_SPARK = "_run_in_spark"


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports when it is imported: not in functions, nor for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (name for each in node.orelse for name in imported(each))
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(node)


def imported_by_command(command: Command) -> set[str]:
    """The modules that a command imports when it runs: its classes, and the functions beside them."""
    of_command = {each.__name__ for each in command.options.__mro__}
    module = sys.modules[command.options.__module__]
    names = {module.__name__}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in of_command):
            bodies = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef) and each.name != IN_SPARK]
            names |= {name for body in bodies for name in imported(body)}
    return names


@cache
def imported_by_file(file: Path) -> frozenset[str]:
    return frozenset(imported(ast.parse(file.read_text(encoding="utf-8"))))


def spark_by_way_of(root: Path, modules: set[str]) -> list[str]:
    """The chain of imports from these modules to Spark; empty if there is none."""
    chains, seen = [[module] for module in sorted(modules)], set(modules)
    while chains:
        chain = chains.pop(0)
        if chain[-1].split(".")[0] in SPARK:
            return chain
        path = root.joinpath(*chain[-1].split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            names = imported_by_file(file) - seen
            seen |= names
            chains += [[*chain, name] for name in sorted(names)]
    return []


@pytest.mark.parametrize("name", offsets.leaves())
def test_command_without_spark_imports_none(root: Path, name: str) -> None:
    modules = imported_by_command(offsets.leaves()[name])
    assert len(modules) > 1  # that of its section, and those of its work
    chain = spark_by_way_of(root, modules)
    assert bool(chain) is (name in WITH_SPARK), chain


def test_help_imports_no_spark_by_way_of_any_module(root: Path) -> None:
    assert spark_by_way_of(root, {f"{PACKAGE}.cli.program"}) == []


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
