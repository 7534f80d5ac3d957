"""The rules depend on the wire format alone."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALLOWED = (
    *("offsets_pipeline.semantics", "offsets_pipeline.kafka.record", "offsets_pipeline.errors"),
    *(
        "offsets_pipeline.common.foreign_errors",
        "offsets_pipeline.common.input_text",
        "numpy",
        "pyarrow",
    ),  # Connect's keys are JSON
)


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_semantics_imports_only_the_wire_format_and_arrow(root: Path) -> None:
    modules = list((root / "offsets_pipeline" / "semantics").glob("*.py"))
    assert len(modules) > 10
    third_party = {
        (module.name, name)
        for module in modules
        for name in imported(module)
        if name.split(".")[0] in {"offsets_pipeline", "pyspark", "deltalake", "delta"} and not name.startswith(ALLOWED)
    }
    assert third_party == set()
