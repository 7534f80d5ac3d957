"""The page: self-contained, whole, and safe whatever clients call their groups."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from offsets_pipeline.questions.report.model import CommitRates, Report
from offsets_pipeline.questions.report.page import fragment, page
from tests.unit.report.reports import EMPTY_REPORT, NAMES, full_report

_VOID = {"meta", "link", "input"}
_ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "script",
        "body",
        "header",
        "main",
        "footer",
        "section",
        "h1",
        "h2",
    ),
    *(
        "p",
        "a",
        "label",
        "input",
        "span",
        "dl",
        "div",
        "dt",
        "dd",
        "time",
        "figure",
        "figcaption",
        "ul",
        "li",
        "details",
    ),
    *(
        "summary",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "desc",
        "g",
        "text",
        "rect",
        "path",
        "circle",
    ),
}


class Outline(HTMLParser):
    """The elements of a page; fails where they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ALLOWED, tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


REPORTS = {"full": full_report(), "empty": EMPTY_REPORT, "one group": full_report(1)}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("live_every_ms", [None, 10_000])
def test_page_is_whole_and_refers_to_nothing(name: str, live_every_ms: int | None) -> None:
    found = Outline(page(REPORTS[name], live_every_ms))
    references = {value for _, attribute, value in found.attributes if attribute in {"src", "href", "data", "action"}}
    assert references == {"#content", "data:,"}
    assert not [name for _, name, _ in found.attributes if name == "style" or name.startswith("on")]
    names = [value for _, name, value in found.attributes if name == "id"]
    assert len(names) == len(set(names))
    pointed = {
        each for _, name, value in found.attributes if name.startswith("aria-labelledby") for each in value.split()
    }
    assert pointed <= set(names)
    policy = next(value for tag, name, value in found.attributes if tag == "meta" and name == "content")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    is_live = live_every_ms is not None
    assert ("script-src" in policy, "<script>" in page(REPORTS[name], live_every_ms)) == (is_live, is_live)


def test_names_of_clients_are_text() -> None:
    found = Outline(page(full_report()))
    texts = "\n".join(found.texts)
    assert "<script>alert(1)</script>" in texts
    assert "a\"b'c&amp;</td></svg><img src=x onerror=alert(1)>" in texts
    assert "\\u202egnillib\\x00\\x1b[31m" in texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", texts)
    assert NAMES[4] in texts


def test_charts_have_titles_and_descriptions_for_screen_readers() -> None:
    text = fragment(full_report())
    charts = re.findall(r'<svg [^>]*role="img"[^>]*>.*?</svg>', text, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        title, description = re.search(r"<title [^>]*>(.*?)</title><desc [^>]*>(.*?)</desc>", chart, re.DOTALL).groups()  # type: ignore[union-attr]
        assert title
        assert len(description) > 10
    assert text.count("<caption>") == text.count("<table>") == 6
    assert text.count("<th ") == text.count('<th scope="col"')


def test_a_line_has_the_same_style_in_both_charts() -> None:
    report = full_report()
    turned = replace(report, commit_rates=CommitRates(8, None, list(reversed(report.lag_over_time.series))))
    text = fragment(turned)
    styles = [
        dict(re.findall(r'<li class="(s\d)">.*?</svg>(.*?)</li>', legend))
        for legend in re.findall(r'<ul class="legend">(.*?)</ul>', text, re.DOTALL)
    ]
    assert [len(each) for each in styles] == [6, 6]
    names = [{name: style for style, name in each.items()} for each in styles]
    both = names[0].keys() & names[1].keys()
    assert len(both) == 4
    assert all(names[0][name] == names[1][name] for name in both)


def test_rows_left_out_are_counted() -> None:
    assert "Groups by lag (30 of 1,000)" in fragment(full_report())


def test_empty_store_is_told_in_words() -> None:
    texts = " ".join(Outline(page(EMPTY_REPORT)).texts)
    for said in (
        "The lag is not known",
        "The lag in this time is not known",
        "No group committed",
        "No group went back",
        "No offset expires within",
    ):
        assert said in texts


def test_page_of_many_groups_is_small() -> None:
    assert len(page(full_report(200)).encode()) < 200_000


def test_report_has_no_part_that_the_page_leaves_out() -> None:
    text = fragment(full_report())
    for heading in ("Groups by lag", "Lag over time", "Commit rates", "Rewinds", "Stale groups", "What expires soon"):
        assert f">{heading}</h2>" in text
    parts = set(Report.__dataclass_fields__) - {"store", "kind", "made_ms", "last_commit_ms"}
    parts -= {"from_ms", "until_ms", "sampled_ms"}
    assert parts == {
        *("states", "offsets", "warnings"),
        *("groups", "lag_over_time", "commit_rates", "rewinds", "stale", "expiring"),
    }
