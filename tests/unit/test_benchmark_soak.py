"""The soak's verdict on its alerts and commands, and its plot."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks.soak import Ran, Soak, charts_of, plot, summary

if TYPE_CHECKING:
    from pathlib import Path

OK, WARN, ERR = 0, 1, 2


@pytest.fixture
def run(tmp_path: Path) -> Soak:
    return Soak(tmp_path)


def check(at: float, status: int, seconds: float = 1) -> Ran:
    return Ran(at, "check mirror", seconds, status, "audit missing")


@pytest.mark.parametrize(
    ("checks", "faults"),
    [
        ([check(290, WARN), check(330, ERR), check(355, ERR), check(390, OK)], 0),
        ([check(290, ERR), check(330, ERR), check(390, OK)], 1),  # before the deletion
        ([check(310, OK), check(330, OK), check(350, ERR)], 1),  # 20 s after it the alert is due
        ([check(330, ERR), check(375, ERR), check(381, ERR)], 1),  # 20 s after the group is back
        ([check(290, OK), check(310, OK), check(359.5, OK)], 1),  # no alert at all
        ([], 1),
    ],
)
def test_alert_comes_with_the_deletion_and_goes_with_the_next_commit(run: Soak, checks: list[Ran], faults: int) -> None:
    run.deleted["mirror"].append(300)
    run.ran += checks
    assert len(run.faults()) == faults


def test_command_that_fails_is_a_fault(run: Soak) -> None:
    run.ran += [Ran(1, "verify owned", 2, 1, "they differ"), Ran(5, "verify mirror", 2, 0, "")]
    assert run.faults() == ["verify owned ended with 1: they differ"]


def test_plot_has_a_line_for_each_series_and_a_mark_for_each_alert(run: Soak) -> None:
    run.at = [0, 5, 10, 15]
    run.seen = {
        "memory of follow, MiB": [1, 2, 3, 2],
        "files, mirror store": [1, 1, 1, 1],
        "disk, mirror store, MiB": [0, 0, 0, 0],
    }
    run.ran += [check(1, OK), check(6, ERR), check(11, WARN)]
    root = ET.fromstring(plot(charts_of(run), 20))
    svg = "{http://www.w3.org/2000/svg}"
    assert [len(each.findall(f".//{svg}path[@class='mark']")) for each in root.findall(f"{svg}svg")] == [0, 0, 0, 1]
    assert [len(each.findall(f".//{svg}path[@class='line']")) for each in root.findall(f"{svg}svg")] == [1, 1, 1, 1]
    texts = [each.text for each in root.findall(f"{svg}text")]
    assert "Files on disk" in texts
    assert "memory of follow, MiB, at most" in summary(run)
