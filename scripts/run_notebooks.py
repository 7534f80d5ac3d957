"""Runs the notebooks of notebooks/ and saves their outputs in them: texts, tables, plots.

    .venv/bin/python scripts/run_notebooks.py [NAME...]

Each notebook runs from top to bottom in an empty folder that has the project's tests/ beside it, so that its stores are
not made in the project and no path of the machine is in an output. It takes no Jupyter.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
_DPI = 80

Cell = dict[str, Any]


def run_notebook(
    notebook: dict[str, Any], name: str, on_figure: Callable[[Any], None] = lambda _: None
) -> dict[str, Any]:
    """Run the cells in the current folder, and set their outputs. Returns the names that the cells defined.

    ``on_figure`` gets each figure of matplotlib.
    """
    import matplotlib as mpl  # noqa: PLC0415 - before a cell imports pyplot

    mpl.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, start=1):
        cell["execution_count"] = count
        cell["outputs"] = _outputs("".join(cell["source"]), f"{name}, cell {count}", names, count, on_figure)
    return names


def _outputs(
    source: str, place: str, names: dict[str, Any], count: int, on_figure: Callable[[Any], None]
) -> list[dict[str, Any]]:
    body = ast.parse(source, place).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), place, "exec"), names)  # noqa: S102 - it is the notebook's code
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)  # noqa: S307 - as above
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    outputs += [
        {"data": {"image/png": picture, "text/plain": ["<Figure>"]}, "metadata": {}, "output_type": "display_data"}
        for picture in _figures(on_figure)
    ]
    if value is not None:
        outputs.append(
            {"data": _shown(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _figures(on_figure: Callable[[Any], None]) -> list[str]:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after its backend is chosen

    pictures = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        figure = plt.figure(number)
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
        on_figure(figure)
        pictures.append(base64.b64encode(file.getvalue()).decode())
    plt.close("all")
    return pictures


def _shown(value: object) -> dict[str, list[str]]:
    data = {"text/plain": _lines(repr(value))}
    as_html = getattr(value, "_repr_html_", None)
    if as_html is not None:
        data["text/html"] = _lines(as_html())
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def saved_text(notebook: dict[str, Any]) -> str:
    """The text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(names: list[str]) -> int:
    """Run these notebooks, or all; returns the exit status."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tests").symlink_to(ROOT / "tests")
            os.chdir(folder)
            run_notebook(notebook, path.stem)
            os.chdir(ROOT)
        path.write_text(saved_text(notebook), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
