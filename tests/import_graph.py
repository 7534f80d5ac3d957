"""Which modules a module imports, directly or by way of others, as its source says."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


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


@cache
def imported_by_file(file: Path) -> frozenset[str]:
    return frozenset(imported(ast.parse(file.read_text(encoding="utf-8"))))


def chain_to(packages: Collection[str], root: Path, modules: set[str]) -> list[str]:
    """The chain of imports from these modules to one of the top-level packages; empty if there is none."""
    chains, seen = [[module] for module in sorted(modules)], set(modules)
    while chains:
        chain = chains.pop(0)
        if chain[-1].split(".")[0] in packages:
            return chain
        path = root.joinpath(*chain[-1].split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            names = imported_by_file(file) - seen
            seen |= names
            chains += [[*chain, name] for name in sorted(names)]
    return []
