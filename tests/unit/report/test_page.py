"""The page: self-contained, whole, and safe whatever clients call their groups."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from hashlib import sha256
from html import escape
from html.parser import HTMLParser

import pytest

from offsets_pipeline.questions.report.model import (
    GroupLines,
    GroupRow,
    Point,
    Report,
    ReportedGroups,
    Rewind,
    Rewinds,
    TimeSeries,
)
from offsets_pipeline.questions.report.page import fragment, page
from tests.unit.report.reports import EMPTY_REPORT, NAMES, NOW_MS, full_report, small_report

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
    assert not [name for _, name, _ in found.attributes if name == "style" or name.startswith("on")]
    names = [value for _, name, value in found.attributes if name == "id"]
    assert len(names) == len(set(names))
    links = {each for each in references if each.startswith("#group-")}
    assert references - links == {"#content", "data:,"}
    assert {each[1:] for each in links} == {each for each in names if each.startswith("group-")}
    assert len(links) == len(REPORTS[name].groups.parts)
    pointed = {
        each for _, name, value in found.attributes if name.startswith("aria-labelledby") for each in value.split()
    }
    assert pointed <= set(names)
    policy = next(value for tag, name, value in found.attributes if tag == "meta" and name == "content")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert ("script-src 'sha256-" in policy, "connect-src" in policy) == (True, live_every_ms is not None)


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
    report = full_report()
    assert len(charts) == 4 + sum((part.lag is not None) + (part.commits is not None) for part in report.groups.parts)
    for chart in charts:
        title, description = re.search(r"<title [^>]*>(.*?)</title><desc [^>]*>(.*?)</desc>", chart, re.DOTALL).groups()  # type: ignore[union-attr]
        assert title
        assert len(description) > 10
    of_parts = sum(
        map(bool, (list_ for each in report.groups.parts for list_ in (each.members, each.rewinds, each.deletions)))
    )
    of_parts += sum(bool(each.expiring) for each in report.groups.parts)
    assert text.count("<caption>") == text.count("<table>") == 7 + of_parts
    assert text.count("<th ") == text.count('<th scope="col"')


def test_a_line_has_the_same_style_in_both_charts() -> None:
    report = full_report()
    turned = replace(report, commit_rates=GroupLines(8, None, list(reversed(report.lag_over_time.series))))
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


def test_groups_that_are_behind_have_bars() -> None:
    report = full_report(3)
    for lags, expected in (
        ((1, 2, 0), ["&lt;script&gt;alert(1)&lt;/script&gt;: ", f"{NAMES[0]}: "]),
        ((0, None, 0), []),
    ):
        rows = [replace(row, lag=lag) for row, lag in zip(report.groups.rows, lags, strict=True)]
        text = fragment(replace(report, groups=replace(report.groups, rows=rows)))
        bars = re.findall(r'<g><title>([^<]*: )[^<]*</title><text [^>]*class="end"', text)
        assert bars == expected
        assert ("No group is behind." in text) == (not expected)


def test_what_expires_is_due_or_held() -> None:
    table = fragment(full_report()).partition('id="expiring"')[2].partition("</section>")[0]
    said = re.findall(r'</time>([^<]*)</td><td class="t"><time', table)  # the first expiry, before the last one
    assert said == [" (due)", " (due)", "", "", "", ", held"]


def test_times_that_are_not_that_of_the_data_are_told() -> None:
    def told(**times: int | None) -> list[str]:
        first = fragment(replace(full_report(1), **times)).partition("</p>")[0]  # type: ignore[arg-type]
        return [each.strip() for each in Outline(f"{first}</p>").texts]

    at = "2026-11-18 11:06:40"
    assert told() == ["A store of kind mirrored, as of", at, "."]
    assert told(as_of_ms=NOW_MS - 1_000, sampled_ms=NOW_MS - 2_000) == [
        *("A store of kind mirrored, as of", "2026-11-18 11:06:39", ". Made at", at),
        *(". Positions of topics are known up to", "2026-11-18 11:06:38", "."),
    ]


def test_a_rewind_has_a_mark_at_the_lag_of_that_time() -> None:
    line = TimeSeries("g", [Point(NOW_MS - 10, 5.0), Point(NOW_MS, 10.0)])
    gone_back = [Rewind(NOW_MS - ago, group, "t", 0, 9, 5, None) for ago, group in ((1, "g"), (11, "g"), (1, "h"))]
    report = replace(
        EMPTY_REPORT,
        from_ms=NOW_MS - 20,
        lag_over_time=GroupLines(1, None, [line]),
        rewinds=Rewinds(3, None, gone_back),
    )
    text = fragment(report)
    # 684 wide from x = 56, and 198 high above y = 212: 19 of 20 ms, and half of the highest lag
    assert re.findall('<path d="([^"]*)" class="mark"/>', text) == ["M705.8 111.0l-5 -9h10z"]
    assert "A triangle marks a rewind." in text
    assert "A triangle marks" not in fragment(replace(report, rewinds=Rewinds(2, None, gone_back[1:])))


def test_rows_left_out_are_counted() -> None:
    assert "Groups, the worst first (12 of 30)" in fragment(full_report())
    assert "18 more groups" in fragment(full_report())


def test_a_part_has_what_is_known_of_its_group_and_names_the_rest() -> None:
    report = full_report()
    parts = re.findall(r'<details class="part".*?</details>', fragment(report), re.DOTALL)
    assert len(parts) == 12
    for part, text in zip(report.groups.parts, parts, strict=True):
        said, (missing,) = "".join(Outline(text).texts), re.findall('<p class="soft">(.*?)</p>', text) or [""]
        for what, is_known in (
            ("known lag", part.lag),
            ("commits", part.commits),
            ("members", part.members),
            ("rewinds", part.rewinds),
            ("deleted offsets", part.deletions),
            ("offsets that expire soon", part.expiring),
        ):
            assert (f"o {what}" in missing) == (not is_known)
        assert f"{part.group}-11" in said or not part.members or not part.group.isprintable()
        assert all(escape(each.reason) in text for each in part.deletions if part.group.isprintable())


def tables(text: str) -> dict[str, list[list[str]]]:
    """The cells of each table by its caption; the first row has the headings."""
    found = {}
    for caption, table in re.findall("<table><caption>(.*?)</caption>(.*?)</table>", text, re.DOTALL):
        rows = re.findall("<tr>(.*?)</tr>", table, re.DOTALL)
        cells = [re.findall("<t[hd](?: [^>]*)?>(.*?)</t[hd]>", row) for row in rows]
        found[caption] = [["".join(Outline(cell).texts) for cell in row] for row in cells]
    return found


AT = "2026-11-18 11:06:40"


def test_tables_have_the_values_of_the_report() -> None:
    text = fragment(small_report())
    groups = ["Group", "Status", "Lag", "Lag in time", "Last commit", "State", "Members", "Offsets", "Lag not known"]
    rewinds = [["Time", "Group", "Partition", "From", "To", "Back by", "By"]]
    rewinds += [["2026-11-18 11:06:39", "a", "t-1", "1,500", "400", "1,100", "unknown"]]
    expiring = [["Group", "Offsets", "First expires", "Last expires", "Why"]]
    expiring += [["a", "2", f"{AT} (due)", "2026-11-18 11:07:40", "R18a: empty"]]
    assert tables(text.partition('id="parts"')[0]) == {
        "Groups, the worst first (2 of 3)": [
            groups,
            ["a", "ERR", "1,500", "1 min 30 s", AT, "Stable", "2", "1,000", ""],
            ["b", "-", "-", "-", "-", "Empty", "0", "3", "2 partitions: not known"],
        ],
        "More groups (1 of 3)": [
            groups,
            ['""', "OK", "1,200", "-", f"{10**17} ms", "Empty", "1", "4", "1 partitions: no sample"],
        ],
        # those of the second chart come after those of the first
        "Numbers of the chart": [["Group", "First", "Last", "Highest"], ['""', "2", "2", "2"], ["a", "7", "8", "9"]],
        "Rewinds, the latest first": [*rewinds, ["2026-11-18 11:06:39", "a", "t-1", "1,500", "1,501", "-1", "m"]],
        "Groups without a commit for 1 d or longer, the longest first": [
            ["Group", "State", "Offsets", "Last commit", "Ago"],
            ["b", "Empty", "3,000", "2026-11-18 11:05:10", "1 min 30 s"],
        ],
        "Offsets that expire within 2 h if their groups commit no more, the soonest first (3 of 4)": [
            *expiring,
            ["a", "1", AT, AT, "R18c: simple"],
            ["b", "1", "2026-11-18 11:06:39, held", "2026-11-18 11:06:39", "R20: pending"],
        ],
    }
    assert tables(text.partition('id="parts"')[2]) == {
        "Members": [["Member", "Client", "Host", "Partitions"], ["m", "c", "/h", "t-1, t-2"]],
        "Rewinds, the latest first": rewinds,
        "Deleted offsets, the latest first": [
            ["Time", "Partition", "Offset", "Cause"],
            [AT, "t-3", "1,007", "expired: over"],
            ["-", "t-4", "-", "lost: ?"],
        ],
        "Offsets that expire soon": expiring,
    }
    assert re.findall('<p class="note">(.*?)</p>', text) == ["The report lacks"]
    assert '<tr><td class="name">b</td><td>Empty</td><td class="n">3,000</td>' in text
    assert tables(text.partition('id="rates"')[0])["Numbers of the chart"][2:] == [["b", "-", "-", "-"]]
    known = replace(small_report().groups, rows=small_report().groups.rows[:1])
    assert "Lag not known" not in fragment(replace(small_report(), groups=known))
    assert "more groups" not in fragment(replace(small_report(), groups=known))


def test_charts_are_described_by_their_highest_and_newest_values() -> None:
    text = fragment(small_report())
    described = dict(re.findall('<desc id="([^"]*)-text">(.*?)</desc>', text))
    part = sha256(b"a").hexdigest()[:16]
    assert described == {
        "lag-bars": "Offsets behind the log end: a 1.5k, 1 min 30 s; &quot;&quot; 1,200",
        "lag-lines": "a: last 8, highest 9",
        "rate-lines": "&quot;&quot;: last 2, highest 2; a: last 8, highest 9",
        "expiry-columns": "Number of offsets that expire, by time, within 2 h.",
        f"lag-{part}": "a: last 8, highest 9",
        f"rate-{part}": "a: last 8, highest 9",
    }
    lines = [("0", "a"), ("1", "b"), ("1", "&quot;&quot;"), ("0", "a")]
    assert re.findall('<g class="s(.)"><title>(.*?)</title>', text) == [*lines, *[("0", "a")] * 2]
    # wide charts whose right end matters: all but the bars and the columns
    assert (text.count('class="scroll newest"'), text.count("<figure>")) == (4, 6)
    assert re.findall('<li class="s(.)">.*?</svg>(.*?)</li>', text) == lines
    # 684 wide from x = 56: the columns span the two hours, lines the ten milliseconds
    columns = text.partition('id="expiring"')[2].partition("</figure>")[0]
    assert re.findall('<rect x="([^"]*)"', columns) == ["57.0", "399.0"]
    paths = re.findall('<path d="M([^ ]*) [^"]*" class="line"/>', text)
    assert [each for each in paths if not each.startswith("0")] == ["603.2"] * 4
    quiet = [TimeSeries("a", [Point(NOW_MS, None)])]
    assert ">no values</desc>" in fragment(replace(EMPTY_REPORT, lag_over_time=GroupLines(1, None, quiet)))
    rows = [GroupRow(f"g{lag}", "Empty", "Classic", 0, 1, None, lag) for lag in range(17)]
    many = fragment(replace(EMPTY_REPORT, groups=ReportedGroups(17, None, rows)))
    assert re.findall("<g><title>(.*?)</title>", many) == [f"g{lag}: {lag}" for lag in range(16, 1, -1)]
    assert "log end: g16 16; g15 15; g14 14; g13 13; g12 12</desc>" in many


def test_a_live_page_asks_for_itself_and_its_policy_allows_no_other_script() -> None:
    for every_ms, connect in ((None, ""), (10_000, "; connect-src 'self'")):
        text = page(EMPTY_REPORT, every_ms)
        hashes = {
            kind: base64.b64encode(sha256(content.encode()).digest()).decode()
            for kind, content in re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL)
        }
        (said,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert said == (
            f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
            f"img-src data:; base-uri 'none'; form-action 'none'{connect}"
        )
        assert ("Update every 10 s" in text, ' data-every="10000"' in text, "fetch(" in text) == (bool(connect),) * 3


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


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        (
            "full",
            ["30", "20 Stable, 9 Empty, 1 Reconciling", "123,456", "2026-11-18 11:05:40", "9,000,000,000,000,000"],
        ),
        ("empty", ["0", "none", "0", "none", "not known"]),
    ],
)
def test_tiles_tell_the_whole_report(name: str, tiles: list[str]) -> None:
    texts = [each for each in Outline(page(REPORTS[name])).texts if each.strip()]
    start = texts.index("Groups")
    assert texts[start + 1 : start + 2 * len(tiles) : 2] == tiles


def test_page_of_many_groups_is_small() -> None:
    assert len(page(full_report(200)).encode()) < 200_000


def test_report_has_no_part_that_the_page_leaves_out() -> None:
    text = fragment(full_report())
    for heading in (
        "Groups",
        "Lag over time",
        "Commit rates",
        "Rewinds",
        "Stale groups",
        "What expires soon",
        "Group by group",
    ):
        assert f">{heading}</h2>" in text
    parts = set(Report.__dataclass_fields__) - {"store", "kind", "made_ms", "last_commit_ms"}
    parts -= {"from_ms", "until_ms", "as_of_ms", "sampled_ms"}
    assert parts == {
        *("states", "offsets", "warnings"),
        *("groups", "lag_over_time", "commit_rates", "rewinds", "stale", "expiring"),
    }
