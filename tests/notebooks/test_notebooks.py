"""The cells of each notebook run, top to bottom, and give the outputs that are saved in it."""

from __future__ import annotations

import base64
import io
import json
import re
from copy import deepcopy
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from scripts import run_notebooks
from tests.browser import find_browser
from tests.logs import oracle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

NAMES = ("lag_over_time", "lost_offsets", "tour")
_LARGEST_BYTES = 150_000
Names = dict[str, Any]


def saved(root: Path, name: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads((root / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def outputs(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (output for cell in notebook["cells"] for output in cell.get("outputs", ()))


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    return [
        base64.b64decode(each["data"]["image/png"]) for each in outputs(notebook) if "image/png" in each.get("data", ())
    ]


def texts(notebook: dict[str, Any]) -> list[str]:
    """The texts and tables of the outputs."""
    return [
        "".join(lines)
        for output in outputs(notebook)
        for kind, lines in {"text/plain": output.get("text", ()), **output.get("data", {})}.items()
        if kind.startswith("text/")
    ]


def overlapping(figure: Figure) -> list[str]:
    """The pairs of texts of a drawn figure that lie over each other."""
    drawn = []
    for axes in figure.axes:
        legend = axes.get_legend()
        ticks = [
            tick.label1
            for axis in (axes.xaxis, axes.yaxis)
            for tick in axis._update_ticks()  # type: ignore[union-attr] # those within the view
        ]
        labels = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]
        drawn += [each for each in (*ticks, *labels) if each.get_visible() and each.get_text().strip()]
    boxes = [(each.get_text(), each.get_window_extent()) for each in drawn]
    whole = figure.bbox
    cut_off = [
        text
        for text, box in boxes
        if box.x0 < whole.x0 - 1 or box.x1 > whole.x1 + 1 or box.y0 < whole.y0 - 1 or box.y1 > whole.y1 + 1
    ]
    return cut_off + [
        f"{one} / {other}"
        for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


def run(root: Path, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Names:
    """Run a notebook, and compare its outputs with the saved ones; returns the names that it defined."""
    from matplotlib import image  # noqa: PLC0415 - takes long to import

    (folder / "tests").symlink_to(root / "tests")
    monkeypatch.chdir(folder)
    found = deepcopy(saved(root, name))
    faults: list[str] = []
    names: Names = run_notebooks.run_notebook(found, name, lambda figure: faults.extend(overlapping(figure)))
    assert faults == []
    assert texts(found) == texts(saved(root, name))
    assert len(pictures(found)) == len(pictures(saved(root, name))) > 0
    for new, old in zip(pictures(found), pictures(saved(root, name)), strict=True):
        a, b = (image.imread(io.BytesIO(each)) for each in (new, old))
        assert a.shape == b.shape
        # the pixels of a shortest line; on one machine all are the same
        assert (abs(a - b).max(axis=2) > 0.1).sum() < 20
    return names


@pytest.mark.parametrize("name", NAMES)
def test_saved_outputs_are_whole_small_and_name_no_path_of_a_machine(root: Path, name: str) -> None:
    notebook = saved(root, name)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert all(picture.startswith(b"\x89PNG") for picture in pictures(notebook))
    assert not re.search(r"(^|[^\w.])/(tmp|root|home|work|Users)/|C:\\\\", "\n".join(texts(notebook)))
    assert (root / "notebooks" / f"{name}.ipynb").stat().st_size < _LARGEST_BYTES


def test_every_notebook_is_tested(root: Path) -> None:
    assert sorted(path.stem for path in (root / "notebooks").glob("*.ipynb")) == list(NAMES)


@pytest.mark.slow  # the notebook with most queries
def test_tour(spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(root, tmp_path, "tour", monkeypatch)
    broker = oracle("4.2.0-kip848")
    answered = {
        (group, offset["topic"], offset["partition"], offset["offset"])
        for group, answer in broker["groups"].items()
        for offset in answer["offsets"]
    }
    now = names["now"]
    columns = ("group_id", "topic", "partition", "committed_offset")
    assert set(zip(*(now[column] for column in columns), strict=True)) == answered
    assert now[now["unstable"]]["group_id"].tolist() == ["k-librd"]
    ends = {each["partition"]: each["end"] for each in broker["topics"]["__consumer_offsets"]["partitions"]}
    why = names["why"]
    assert dict(zip(why["log_partition"], why["folded_to"], strict=True)) == ends
    described = {
        member["client_id"] for answer in broker["groups"].values() for member in answer["describe"].get("members", ())
    }
    assert set(names["members"]["client_id"]) == described


def test_incident(spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(root, tmp_path, "lost_offsets", monkeypatch)
    before, after = (oracle(f"4.2.0-expiry-{when}")["groups"] for when in ("before", "after"))
    assert set(names["expired"]["group_id"]) == {"e-empty", "e-pending", "e-retdef"}
    assert not any(after.get(group, {}).get("offsets") for group in set(names["expired"]["group_id"]))
    restored = [(each.topic, each.partition, each.offset) for each in names["answer"].groups["e-empty"].offsets]
    assert restored == [(each["topic"], each["partition"], each["offset"]) for each in before["e-empty"]["offsets"]]


def test_lag_over_time(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(root, tmp_path, "lag_over_time", monkeypatch)
    last = {line.name: line.points[-1].value for line in names["lag"].series}
    assert last == {"stopped": 48_000, "slow": 9_600, "rewound": 0, "steady": 100}
    (rewind,) = names["went_back"].rows
    assert (rewind.from_offset, rewind.to_offset) == (63_000, 44_000)


@pytest.mark.process
def test_plots_are_pictures_in_a_browser(root: Path, tmp_path: Path) -> None:
    browser = find_browser(tmp_path)
    plots = [each for name in NAMES for each in pictures(saved(root, name))]
    shown = "".join(f'<p><img src="data:image/png;base64,{base64.b64encode(each).decode()}"></p>' for each in plots)
    seen = browser.look(f"<html><body><main>{shown}</main></body></html>")
    assert (seen.console, seen.faults) == ([], [])
    assert len(seen.images) == len(plots)
    assert all(width > 500 and height > 200 for width, height in seen.images)
