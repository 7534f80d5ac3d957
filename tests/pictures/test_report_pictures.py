"""The report and the page of `serve` in a browser: no message on the console, no text over another."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("width", "scheme"), [(1100, "light"), (1100, "dark"), (480, "light")], ids=["light", "dark", "narrow"]
)
def test_report_has_no_fault_in_its_layout(browser: Browser, width: int, scheme: str) -> None:
    seen = browser.look(page(full_report()), width, scheme=scheme)
    assert (seen.console, seen.faults) == ([], [])
    assert seen.chart_texts > 40


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
