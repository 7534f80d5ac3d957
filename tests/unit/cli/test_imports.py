"""Commands without Spark do not import it, and commands import their modules only when they run."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli.program import offsets
from offsets_pipeline.config import Settings
from tests.logs import LogPartition
from tests.unit.lag.stores import TimedRow
from tests.unit.lag.stores import folded_store as folded_store_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "offsets_pipeline"
SPARK = {"pyspark", "delta", "py4j"}
#: The module in which a command runs, by the commands it holds: none imports Spark, directly or by another module.
WITHOUT_SPARK = {
    "answers": {"log-info"},
    "describe_command": {"describe"},
    "groups_command": {"groups", "top"},
    "cluster_command": {"name-cluster"},
    "upgrade_command": {"upgrade"},
    "sql_command": {"sql"},
    "history_commands": {"as-of", "history", "why"},
    "export_command": {"export-segments"},
    "lag_command": {"lag"},
    "fetch_command": {"fetch"},
    "sample_command": {"sample-topic-offsets"},
    "commit_commands": {"create", "commit", "delete-group", "delete-offsets"},
    "reset_command": {"reset-offsets"},
    "zookeeper_command": {"import-zookeeper"},
    "restore_command": {"restore"},
    "import_command": {"import-checkpoint"},
    "snapshot_command": {"snapshot"},
    "expire_command": {"expire-offsets"},
    "connect_commands": {"connect list", "connect describe"},
    "connect_changes": {f"connect {name}" for name in ("config", "stop", "pause", "resume", "alter", "reset")},
    "connect_serve": {"connect serve"},
    "report_command": {"report"},
    "serve_command": {"serve"},
}
WITH_SPARK = {
    "ingest_command": {"ingest-segments"},
    "follow_command": {"ingest-topic", "follow"},
    "state_commands": {"fold", "reload", "verify"},
    "spark_commands": {"create-views"},
    "upkeep_commands": {"maintain", "clean-log"},
}


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


def spark_by_way_of(root: Path, module: str) -> list[str]:
    """The chain of imports from a module to Spark; empty if there is none."""
    chains, seen = [[module]], {module}
    while chains:
        chain = chains.pop(0)
        if chain[-1].split(".")[0] in SPARK:
            return chain
        path = root.joinpath(*chain[-1].split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            names = set(imported(ast.parse(file.read_text(encoding="utf-8")))) - seen
            seen |= names
            chains += [[*chain, name] for name in sorted(names)]
    return []


@pytest.mark.parametrize("module", [*WITHOUT_SPARK, "program"])
def test_command_without_spark_imports_none(root: Path, module: str) -> None:
    assert spark_by_way_of(root, f"{PACKAGE}.cli.{module}") == []


@pytest.mark.parametrize("module", WITH_SPARK)
def test_imports_are_followed_as_far_as_spark(root: Path, module: str) -> None:
    assert importlib.util.find_spec(f"{PACKAGE}.cli.{module}") is not None
    assert spark_by_way_of(root, f"{PACKAGE}.cli.{module}")[-1].split(".")[0] in SPARK


def test_each_command_runs_in_one_of_these_modules() -> None:
    named = [*WITHOUT_SPARK.values(), *WITH_SPARK.values()]
    assert set().union(*named) == set(offsets.leaves())
    assert sum(map(len, named)) == len(offsets.leaves())


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
