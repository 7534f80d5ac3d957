"""Write docs/api.md, the reference of the public names, from their docstrings.

    .venv/bin/python scripts/api_docs.py

It reads the source and imports nothing of it: so it needs no Spark.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
PACKAGE = ROOT / "offsets_pipeline"

SECTIONS: Mapping[str, Sequence[str]] = {
    "Coordinator": ("OwnedStore", "Coordinator", "OffsetAndMetadata"),
    "Kafka Connect": (
        "ConnectLog",
        "OffsetBackingStore",
        "OffsetStorageReader",
        "OffsetStorageWriter",
        "FlushSettings",
        "OffsetCommitter",
        "initialize_offsets",
        "OffsetManagementClient",
        "TargetTable",
        "ExactlyOnceTask",
    ),
    "Settings and errors": ("Settings", "load_settings", "OffsetsError"),
    "Spark": ("build_session", "Store", "register_views", "create_views", "OffsetsListener", "starting_offsets"),
}
#: Methods of classes that the package itself uses, too; all methods of the other classes are public.
METHODS: Mapping[str, Sequence[str]] = {
    "ConnectLog": ("create", "open", "close", "offsets", "connectors"),
    "OffsetsListener": ("close", "flush"),
    "OwnedStore": ("create", "open", "partition_for"),
    "Settings": (),
    "Store": ("open", "find", "folder", "read"),
    "TargetTable": (),
}
FIELDS_ELSEWHERE = ("Settings", "OffsetsError")  # conf/offsets.toml has the settings
INTRODUCTION = """# Python

Made by `make docs` from the docstrings. Import these names from `offsets_pipeline`; each import loads only the modules
that the name needs:

```python
from offsets_pipeline import Coordinator, OwnedStore
```

The names, methods and parameters on this page are public. They stay as long as the first number of the version stays,
before 1.0 the first two. The [changelog](../CHANGELOG.md) names each change. The errors in `offsets_pipeline.errors`
are public, too: each is an `OffsetsError`. All other modules may change in any version. R1 to R39 are the rules of
[semantics.md](semantics.md).

The names of the section Spark need the extra `spark` ([installing](install.md)), except `starting_offsets`. Without the
extra their import raises ModuleNotFoundError.
"""
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns):")


def page() -> str:
    """Return the text of docs/api.md."""
    modules = _modules()
    text = [INTRODUCTION]
    for title, names in SECTIONS.items():
        text.append(f"## {title}\n")
        for name in names:
            tree = ast.parse(_file(modules[name]).read_text(encoding="utf-8"))
            named = (each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef))
            found = next(each for each in named if each.name == name)
            text += _of_class(found) if isinstance(found, ast.ClassDef) else _of_function(found, "###", found.name)
    return "\n".join(text)


def _modules() -> dict[str, str]:
    """The module of each public name."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    assignments = (each for each in tree.body if isinstance(each, ast.Assign))
    (found,) = (each.value for each in assignments if ast.unparse(each.targets[0]) == "_MODULES")
    modules: dict[str, str] = ast.literal_eval(found)
    return modules


def _file(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _of_class(found: ast.ClassDef) -> Iterator[str]:
    methods = [each for each in found.body if isinstance(each, ast.FunctionDef)]
    yield f"### {found.name}\n"
    by_name = {each.name: each for each in methods}
    fields = [each for each in found.body if isinstance(each, ast.AnnAssign)]
    if "open" in by_name:  # the way to an object
        pass
    elif "__init__" in by_name:
        yield _code(found.name, by_name["__init__"], without_first=True)
    elif fields and found.name not in FIELDS_ELSEWHERE:
        yield f"```python\n{found.name}({', '.join(map(ast.unparse, fields))})\n```\n"
    yield _markdown(ast.get_docstring(found) or "")
    for each in methods:
        is_public = not each.name.startswith("_") and each.name in METHODS.get(found.name, (each.name,))
        if is_public:
            yield from _of_function(each, "####", f"{found.name}.{each.name}")


def _of_function(found: ast.FunctionDef, level: str, name: str) -> Iterator[str]:
    decorators = {ast.unparse(each) for each in found.decorator_list}
    yield f"{level} {name}\n"
    if "property" not in decorators:
        yield _code(name, found, without_first="." in name)
    yield _markdown(ast.get_docstring(found) or "")


def _code(name: str, function: ast.FunctionDef, *, without_first: bool) -> str:
    arguments = list(_arguments(function.args))[without_first:]
    returns = "" if function.returns is None or function.name == "__init__" else f" -> {ast.unparse(function.returns)}"
    signature = f"{name}({', '.join(arguments)}){returns}"
    if len(signature) > 100:
        lines = ",\n    ".join(arguments)
        signature = f"{name}(\n    {lines},\n){returns}"
    return f"```python\n{signature}\n```\n"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its annotation and default."""
    without = len(arguments.args) - len(arguments.defaults)
    yield from map(_argument, arguments.args, [*[None] * without, *arguments.defaults])
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    yield from map(_argument, arguments.kwonlyargs, arguments.kw_defaults)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _markdown(docstring: str) -> str:
    """A docstring as Markdown: its sections as lists, its examples as code."""
    lines: list[str] = []
    for paragraph in docstring.split("\n\n"):
        first, *rest = paragraph.splitlines() or [""]
        if _SECTION.fullmatch(first):
            lines += [f"{first}", "", *(_item(line) for line in rest), ""]
        elif first.lstrip().startswith(">>>"):
            lines += ["```pycon", *dedent(paragraph).splitlines(), "```", ""]
        else:
            lines += [*paragraph.splitlines(), ""]
    return re.sub(r"(?<!`)``(?!`)", "`", "\n".join(lines))


def _item(line: str) -> str:
    """A line of a section: an item of a list, or what goes on with it."""
    text = line.removeprefix("    ")
    return f"  {text.strip()}" if text.startswith(" ") else f"- {text}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
