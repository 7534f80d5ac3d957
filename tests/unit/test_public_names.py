"""The names that users import from `offsets_pipeline`, and their reference."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import offsets_pipeline
from offsets_pipeline.common.extras import EXTRAS
from scripts import api_docs
from tests.import_graph import chain_to

if TYPE_CHECKING:
    from pathlib import Path

MODULES = offsets_pipeline._MODULES
#: The names whose modules import Spark.
WITH_SPARK = {"OffsetsListener", "Store", "build_session", "create_views", "register_views"}


@pytest.mark.parametrize("name", offsets_pipeline.__all__)
def test_a_public_name_is_defined_in_its_module(name: str) -> None:
    assert getattr(offsets_pipeline, name).__module__ == f"offsets_pipeline.{MODULES[name]}"


def test_readers_of_types_see_the_same_names(root: Path) -> None:
    tree = ast.parse((root / "offsets_pipeline" / "__init__.py").read_text(encoding="utf-8"))
    (for_types,) = (each for each in tree.body if isinstance(each, ast.If))
    imports = [each for each in for_types.body if isinstance(each, ast.ImportFrom)]
    assert {name.name: f"{each.module}" for each in imports for name in each.names} == {
        name: f"offsets_pipeline.{module}" for name, module in MODULES.items()
    }
    assert sorted(MODULES) == offsets_pipeline.__all__
    assert set(dir(offsets_pipeline)) >= {*MODULES, "__version__"}


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'offsets_pipeline' has no attribute 'Coordinater'"):
        offsets_pipeline.Coordinater  # noqa: B018


@pytest.mark.parametrize("name", offsets_pipeline.__all__)
def test_only_these_names_import_an_extra(root: Path, name: str) -> None:
    chain = chain_to(EXTRAS, root, {f"offsets_pipeline.{MODULES[name]}"})
    assert bool(chain) is (name in WITH_SPARK), chain


def test_the_coordinator_imports_only_what_it_needs() -> None:
    """Its import takes less than 0.3 s (docs/install.md), and it works beside any version of Spark."""
    code = (
        "import sys, offsets_pipeline.coordinator\nfrom offsets_pipeline import Coordinator, OwnedStore\n"
        f"heavy = {{*{[*EXTRAS]!r}, 'duckdb', 'kafka', 'cryptography', 'rich', 'click'}} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_itself_imports_no_public_name(root: Path) -> None:
    """Modules import from each other's modules: a name of the package would hide their order."""
    for module in (root / "offsets_pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "offsets_pipeline":
                assert {each.name for each in node.names}.isdisjoint(MODULES), module


def test_the_reference_is_what_the_docstrings_say(root: Path) -> None:
    """`make docs` writes it."""
    assert (root / "docs" / "api.md").read_text(encoding="utf-8") == api_docs.page()
    names = [name for of_section in api_docs.SECTIONS.values() for name in of_section]
    assert sorted(names) == offsets_pipeline.__all__


def test_examples_of_the_reference_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(
        r"^```pycon\n(.*?)^```", (root / "docs" / "api.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(examples) > 4
    runner = doctest.DocTestRunner()
    for number, example in enumerate(examples):
        runner.run(doctest.DocTestParser().get_doctest(example, {}, f"example {number}", "docs/api.md", None))
    assert runner.summarize(verbose=False).failed == 0
