"""Packages have an order: each imports only those before it."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from offsets_pipeline.common.extras import EXTRAS
from tests.import_graph import imported_by_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


#: By extra, the packages with a module that imports it at its top level.
WITH_EXTRA = {
    "spark": {
        *("fold.state", "fold.stream", "ingest.segments", "ingest.topic", "observability", "questions.query"),
        *("spark_query", "store", "store.log"),
    },
    "s3": set(),
    "serve": {"connect", "questions.report", "service.rest"},
    "zookeeper": {"coordinator.zookeeper"},
}


def imported_of_ours(module: Path) -> Iterator[str]:
    """This project's modules that a module imports, also for types."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offsets_pipeline"):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_no_circle_of_packages(root: Path) -> None:
    """Neither of those at the top, nor of those in them."""
    package = root / "offsets_pipeline"
    for depth, at_least in (1, 10), (2, 25):

        def package_of(parts: Sequence[str], depth: int = depth) -> str:
            while parts and not package.joinpath(*parts).is_dir():
                parts = parts[:-1]
            return ".".join(parts[:depth])

        imports: dict[str, set[str]] = defaultdict(set)
        for module in package.glob("*/**/*.py"):
            of = package_of(module.relative_to(package).parts)
            imports[of] |= {package_of(name.split(".")[1:]) for name in imported_of_ours(module)} - {of, ""}
        assert len(imports) > at_least
        assert len([*TopologicalSorter(imports).static_order()]) >= len(imports)  # raises CycleError, with the circle


def test_no_module_has_the_name_of_another(root: Path) -> None:
    names = [module.stem for module in (root / "offsets_pipeline").rglob("*.py") if module.stem != "__init__"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_only_the_door_knows_how_delta_stores_tables(root: Path) -> None:
    package = root / "offsets_pipeline"
    others = [module for module in package.rglob("*.py") if module.parent != package / "store" / "delta"]
    for module in others:
        text = module.read_text(encoding="utf-8")
        assert "deltalake" not in text.replace("``deltalake``", ""), module
        assert "_delta_log" not in text, module


def test_only_these_packages_import_an_extra(root: Path) -> None:
    package = root / "offsets_pipeline"
    found: dict[str, set[str]] = {extra: set() for extra in WITH_EXTRA}
    for module in package.rglob("*.py"):
        for name in imported_by_file(module):
            extra, _ = EXTRAS.get(name.partition(".")[0], (None, ""))
            if extra is not None:
                found[extra].add(".".join(module.relative_to(package).parts[:-1]))
    assert found == WITH_EXTRA


def test_only_the_reading_of_a_topic_needs_spark_4_2(root: Path) -> None:
    """`fold`, `reload` and `verify` also run with 4.0 and 4.1 (docs/install.md)."""
    package, found = root / "offsets_pipeline", {"pyspark.sql.streaming.datasource"}
    imports = {
        ".".join(module.relative_to(root).with_suffix("").parts): imported_by_file(module)
        for module in package.rglob("*.py")
    }
    while more := {module for module, names in imports.items() if names & found} - found:
        found |= more
    assert {each.rpartition(".")[2] for each in found} == {
        *("datasource", "record_batch_source", "topic_ingest", "follow_command"),
    }
