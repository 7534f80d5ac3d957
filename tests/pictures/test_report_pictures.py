"""The report and the page of `serve` in a browser: no message on the console, no text over another."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.report.live_report import LiveReport
from offsets_pipeline.questions.report.page import page
from offsets_pipeline.service.rest.server import Access, RestServer
from tests.browser import Browser, find_browser
from tests.unit.report.reports import EMPTY_REPORT, full_report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return find_browser(tmp_path_factory.mktemp("browser"))


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (800, "dark"), (1600, "light")])
@pytest.mark.parametrize("groups", [3, 200, 5_000])
def test_report_has_no_fault_in_its_layout(browser: Browser, width: int, scheme: str, groups: int) -> None:
    opened = page(full_report(groups)).replace("<details ", "<details open ")
    seen = browser.look(opened, width, scheme=scheme)
    assert (seen.console, seen.faults) == ([], [])
    assert seen.chart_texts > 40


def test_groups_are_found_and_a_narrow_screen_shows_the_newest(browser: Browser, tmp_path: Path) -> None:
    """A process: a script types into the field, scrolls to nothing, and writes what the reader sees."""
    looks = """<script>addEventListener("load",()=>{
      find.value="GROUP-19";find.dispatchEvent(new Event("input"));
      const shown=[...document.querySelectorAll("#groups tbody tr,.part")].filter(each=>!each.hidden);
      const ends=[...document.querySelectorAll("section>figure .newest")].map(
        each=>each.querySelector(":scope>svg").getBoundingClientRect().right<=each.getBoundingClientRect().right+1);
      document.title=JSON.stringify([shown.map(each=>each.querySelector("td,summary").textContent),ends]);
    })</script>"""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(full_report(200)))
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{looks}</body>"), encoding="utf-8")
    dom, console = browser.dom((tmp_path / "page.html").as_uri(), wait_ms=1_000, width=500)
    assert console == []
    found, ends = json.loads(unescape(re.findall("<title>(.*?)</title>", dom)[0]))
    assert found == ["group-19", *(f"group-{number}" for number in range(190, 192))]
    assert ends == [True, True]


def test_faults_of_a_layout_are_found(browser: Browser) -> None:
    texts = '<text x="10" y="20">one text</text><text x="30" y="22">another</text><text x="190" y="50">cut off</text>'
    seen = browser.look(
        f'<html><body><main><svg viewBox="0 0 200 60" width="200">{texts}</svg><p style="width:5px">wide</p></main>'
        "<script>console.error('said')</script></body></html>"
    )
    assert [each.partition(":")[0] for each in seen.faults] == [
        *("texts of a chart overlap", "a text of a chart is cut off", "a text is wider than its box")
    ]
    assert any("said" in line for line in seen.console)


def test_report_from_disk_has_a_silent_console(browser: Browser, tmp_path: Path) -> None:
    for name, report in (("full", full_report()), ("empty", EMPTY_REPORT)):
        (tmp_path / f"{name}.html").write_text(page(report), encoding="utf-8")
        assert browser.picture((tmp_path / f"{name}.html").as_uri(), tmp_path / f"{name}.png") == []
    assert (tmp_path / "full.png").read_bytes() != (tmp_path / "empty.png").read_bytes()


def test_live_page_replaces_its_contents_and_has_a_silent_console(browser: Browser, tmp_path: Path) -> None:
    """A process: the page asks for its contents again while the browser shows it."""
    reports = [EMPTY_REPORT, full_report()]
    live = LiveReport(lambda: reports.pop(0) if len(reports) > 1 else reports[0], 50)
    with RestServer("127.0.0.1", 0, Access(), lambda _: live.app, 4_096) as server:
        dom, console = browser.dom(server.url, wait_ms=2_000)
    assert console == []
    assert "connect-" in dom
    assert 'role="status"></span>' in dom  # no word of a failure
