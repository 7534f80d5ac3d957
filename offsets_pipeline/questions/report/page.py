"""The page of a report: HTML with its style and its charts, and no reference to anything outside of it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.clock import MS_OF_SECOND, shown_duration, shown_time
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.questions.lag.position_sources import Method
from offsets_pipeline.questions.report.charts import (
    MAX_SERIES,
    NO_NAME,
    Bar,
    bar_chart,
    column_chart,
    line_chart,
    shown_number,
)
from offsets_pipeline.questions.report.model import Point
from offsets_pipeline.questions.report.style import FIND, REFRESH, STYLE
from offsets_pipeline.semantics.retention import RULES

if TYPE_CHECKING:
    from offsets_pipeline.questions.report.model import (
        ExpiringGroup,
        GroupLines,
        GroupPart,
        GroupRow,
        Report,
        ReportedGroups,
        TimeSeries,
    )

    #: The columns of a table: by heading, with the class of its cells before a colon, a row's cell in HTML.
    Columns = Mapping[str, Callable[[Any], str]]

_BARS = 15
_LATEST_REWINDS = "Rewinds, the latest first"
_REWINDS: Columns = {
    "t:Time": lambda row: _time(row.at_ms),
    "name:Group": lambda row: _group(row.group),
    "name:Partition": lambda row: _name(f"{row.topic}-{row.partition}"),
    "n:From": lambda row: _number(row.from_offset),
    "n:To": lambda row: _number(row.to_offset),
    "n:Back by": lambda row: _number(row.from_offset - row.to_offset),
    "name:By": lambda row: _name(row.by or "unknown"),
}
_STALE: Columns = {
    "name:Group": lambda row: _group(row.group),
    "State": lambda row: escape(row.state),
    "n:Offsets": lambda row: _number(row.offsets),
    "t:Last commit": lambda row: _time(row.last_commit_ms),
    "n:Ago": lambda row: shown_duration(row.idle_ms),
}
_MEMBERS: Columns = {
    "name:Member": lambda row: _name(row.member_id),
    "name:Client": lambda row: _name(row.client_id),
    "name:Host": lambda row: _name(row.host),
    "name:Partitions": lambda row: _name(", ".join(row.assignment)),
}
_DELETIONS: Columns = {
    "t:Time": lambda row: _time(row.at_ms),
    "name:Partition": lambda row: _name(f"{row.topic}-{row.partition}"),
    "n:Offset": lambda row: _number(row.offset),
    "name:Cause": lambda row: _name(f"{row.cause}: {row.reason}"),
}
#: Of a row that is a list of cells.
_NUMBERS: Columns = {name: itemgetter(at) for at, name in enumerate(("name:Group", "n:First", "n:Last", "n:Highest"))}


def page(report: Report, live_every_ms: int | None = None) -> str:
    """Return the whole page. With ``live_every_ms`` its script asks for `fragment` at this interval."""
    title = f"Offsets of {printable(report.store)}"
    every = "" if live_every_ms is None else f' data-every="{live_every_ms}"'
    return (
        f'<!DOCTYPE html>\n<html lang="en"{every}>\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(is_live=live_every_ms is not None)}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>\n'
        f'<a class="skip" href="#content">Skip to the report</a>\n<header>\n<h1>{escape(title)}</h1>\n'
        '<p hidden><label>Find groups <input type="search" id="find"></label></p>\n'
        f"{'' if live_every_ms is None else _live(live_every_ms)}</header>\n"
        f'<main id="content">\n{fragment(report)}</main>\n'
        "<footer>Made by offsets-pipeline. All times are in UTC.</footer>\n"
        f"<script>{_script(is_live=live_every_ms is not None)}</script></body>\n</html>\n"
    )


def policy(*, is_live: bool) -> str:
    """Return the page's Content-Security-Policy: nothing but its own style and script."""
    rules = [
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(_script(is_live=is_live))}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if is_live else rules)


def _script(*, is_live: bool) -> str:
    return FIND + REFRESH if is_live else FIND


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def fragment(report: Report) -> str:
    """Return the contents of the page, which a live page replaces."""
    sections = (_summary, _groups, _lag_over_time, _commit_rates, _rewinds, _stale, _expiring, _parts)
    return "".join(section(report) for section in sections)


def _live(every_ms: int) -> str:
    return (
        f'<p><label><input type="checkbox" id="live" checked> Update every {shown_duration(every_ms)}</label> '
        '<span id="said" role="status"></span></p>\n'
    )


def _summary(report: Report) -> str:
    states = ", ".join(f"{count:,} {state}" for state, count in report.states.items())
    lags = [row.lag for row in report.groups.rows if row.lag is not None]
    tiles = [
        ("Groups", f"{report.groups.total:,}"),
        ("By state", states or "none"),
        ("Committed offsets", f"{report.offsets:,}"),
        ("Last commit", "none" if report.last_commit_ms is None else _time(report.last_commit_ms)),
        ("Largest lag", f"{max(lags):,}" if lags else "not known"),
    ]
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value if '<time' in value else escape(value)}</dd></div>" for name, value in tiles
    )
    made = f" Made at {_time(report.made_ms)}." if report.made_ms != report.as_of_ms else ""
    sampled = f" Positions of topics are known up to {_time(report.sampled_ms)}." if report.sampled_ms else ""
    notes = "".join(f'<p class="note">{_name(each[:1].upper() + each[1:])}</p>\n' for each in report.warnings)
    return (
        f'<p class="soft">A store of kind {escape(report.kind)}, as of {_time(report.as_of_ms)}.{made}{sampled}</p>\n'
        f'{notes}<dl class="tiles">{cells}</dl>\n'
    )


def _groups(report: Report) -> str:
    found = report.groups
    behind = sorted(((lag, row) for row in found.rows if (lag := row.lag)), key=lambda each: -each[0])
    bars = [Bar(row.group, lag, _shown_lag(lag, row)) for lag, row in behind[:_BARS]]
    if bars:
        chart = _figure(
            bar_chart(
                "lag-bars",
                "Groups with the largest lag",
                "Offsets behind the log end: " + "; ".join(f"{bar.label or NO_NAME} {bar.shown}" for bar in bars[:5]),
                bars,
            ),
            "Lag: offsets behind the log end, summed over the partitions of a group.",
        )
    else:
        chart = f"<p>{escape(found.missing or 'No group is behind.')}</p>\n"
    shown, columns = len(found.parts), _group_columns(found)
    first = _table("Groups, the worst first", columns, found.rows[:shown], found.total)
    more = _table("More groups", columns, found.rows[shown:], found.total)
    summary = f"<summary>{len(found.rows) - shown:,} more groups</summary>"
    hidden = f'<details id="more">{summary}{more}</details>\n' if more else ""
    return _section("groups", "Groups", chart + first + hidden)


def _group_columns(found: ReportedGroups) -> Columns:
    has_part = {part.group for part in found.parts}

    def group(row: GroupRow) -> str:
        name = _group(row.group)
        return f'<a href="#{_id("group", row.group)}">{name}</a>' if row.group in has_part else name

    def unknown(row: GroupRow) -> str:
        return _name("" if not row.lag_unknown else f"{row.lag_unknown} partitions: {row.lag_reason or 'not known'}")

    return {
        "name:Group": group,
        "Status": lambda row: f'<span class="{escape(row.status)}">{escape(row.status)}</span>' if row.status else "-",
        "n:Lag": lambda row: _number(row.lag),
        "n:Lag in time": lambda row: _lag_in_time(row) or "-",
        "t:Last commit": lambda row: _time(row.last_commit_ms),
        "State": lambda row: escape(row.state),
        "n:Members": lambda row: _number(row.members),
        "n:Offsets": lambda row: _number(row.offsets),
        **({"name:Lag not known": unknown} if any(row.lag_unknown for row in found.rows) else {}),
    }


def _lag_in_time(row: GroupRow) -> str | None:
    at_least = "at least " if row.lag_method == Method.AT_LEAST else ""
    return None if row.lag_seconds is None else f"{at_least}{_duration(row.lag_seconds)}"


def _shown_lag(lag: int, row: GroupRow) -> str:
    in_time = _lag_in_time(row)
    return f"{lag:,}" if in_time is None else f"{shown_number(lag)}, {in_time}"


def _lag_over_time(report: Report) -> str:
    found = report.lag_over_time
    highest = {line.name: line for line in found.series[:MAX_SERIES]}
    marks = [
        Point(each.at_ms, value)
        for each in report.rewinds.rows
        if each.group in highest and (value := _value_at(highest[each.group], each.at_ms)) is not None
    ]
    caption = f"Lag of the worst groups, in offsets.{' A triangle marks a rewind.' if marks else ''}"
    return _lines("lag", "lag-lines", "Lag over time", caption, found, report, _styles(found.series), marks)


def _value_at(series: TimeSeries, at_ms: int) -> float | None:
    return next((each.value for each in reversed(series.points) if each.at_ms <= at_ms), None)


def _commit_rates(report: Report) -> str:
    found = report.commit_rates
    caption = "Offsets committed a minute, by the groups that commit most."
    styles = _styles(found.series, report.lag_over_time.series)
    return _lines("rates", "rate-lines", "Commit rates", caption, found, report, styles)


def _lines(
    name: str,
    chart_name: str,
    title: str,
    caption: str,
    found: GroupLines,
    report: Report,
    styles: Sequence[int],
    marks: Sequence[Point] = (),
) -> str:
    """Return a section with a line for each group, or with the reason why there is none."""
    series = found.series
    if not series:
        return _section(name, title, "", found.missing)
    span_ms = (report.from_ms, report.until_ms)
    chart = line_chart(chart_name, title, _described(series), series, span_ms, styles, marks)
    return _section(name, title, _figure(chart, caption, series, styles, shows_newest=True) + _data(name, series))


def _rewinds(report: Report) -> str:
    found = report.rewinds
    table = _table(_LATEST_REWINDS, _REWINDS, found.rows, found.total)
    return _section("rewinds", "Rewinds", table, found.missing)


def _stale(report: Report) -> str:
    found = report.stale
    after = shown_duration(found.after_ms)
    caption = f"Groups without a commit for {after} or longer, the longest first"
    table = _table(caption, _STALE, found.rows, found.total)
    return _section("stale", "Stale groups", table, f"Each group with offsets has committed within {after}.")


def _expiring(report: Report) -> str:
    found = report.expiring
    within = shown_duration(found.within_ms)
    if not found.rows:
        return _section("expiring", "What expires soon", "", f"No offset expires within {within}.")
    chart = column_chart(
        "expiry-columns",
        "Offsets that expire",
        f"Number of offsets that expire, by time, within {within}.",
        found.by_time,
        (report.made_ms, report.made_ms + found.within_ms),
    )
    caption = f"Offsets that expire within {within} if their groups commit no more, the soonest first"
    figure = _figure(chart, "Offsets by the time of their expiry; the first column has those that are due.")
    table = _table(caption, _expiry_columns(report), found.rows, found.total)
    return _section("expiring", "What expires soon", f'{figure}{table}<p class="soft">{RULES}</p>\n')


def _expiry_columns(report: Report) -> Columns:
    def first(row: ExpiringGroup) -> str:
        return _time(row.first_ms) + (", held" if row.held else " (due)" if row.first_ms <= report.made_ms else "")

    return {
        "name:Group": lambda row: _group(row.group),
        "n:Offsets": lambda row: _number(row.offsets),
        "t:First expires": first,
        "t:Last expires": lambda row: _time(row.last_ms),
        "name:Why": lambda row: _name(f"{row.rule}: {row.reason}"),
    }


def _parts(report: Report) -> str:
    """A part for each of the first groups, closed until a reader opens it or follows a link to it."""
    parts = "".join(_part(part, report) for part in report.groups.parts)
    return _section("parts", "Group by group", parts) if parts else ""


def _part(part: GroupPart, report: Report) -> str:
    def chart(name: str, title: str, line: TimeSeries | None) -> str:
        if line is None:
            return ""
        span_ms = report.from_ms, report.until_ms
        drawn = line_chart(_id(name, part.group), title, _described([line]), [line], span_ms, [0])
        return _figure(drawn, title, shows_newest=True)

    soon = "Offsets that expire soon"
    content = {
        "known lag": chart("lag", "Lag, in offsets", part.lag),
        "commits": chart("rate", "Offsets committed a minute", part.commits),
        "members": _table("Members", _MEMBERS, part.members),
        "rewinds": _table(_LATEST_REWINDS, _REWINDS, part.rewinds),
        "deleted offsets": _table("Deleted offsets, the latest first", _DELETIONS, part.deletions),
        "offsets that expire soon": _table(soon, _expiry_columns(report), part.expiring),
    }
    none = ", no ".join(what for what, shown in content.items() if not shown)
    nothing = f'<p class="soft">No {none}.</p>' if none else ""
    return (
        f'<details class="part" id="{_id("part", part.group)}"><summary>{_group(part.group)}</summary>'
        f'<div id="{_id("group", part.group)}">{"".join(content.values())}'
        f"{nothing}</div></details>\n"
    )


def _id(kind: str, group: str) -> str:
    """An id of the page: the same for a group in each update, whatever its name is."""
    return f"{kind}-{hashlib.sha256(group.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _section(name: str, title: str, content: str, nothing: str | None = None) -> str:
    """Return a section with its heading; ``nothing`` says why there is no content."""
    heading = f'<h2 id="{name}-heading">{title}</h2>'
    content = content or f"<p>{escape(nothing or '')}</p>\n"
    return f'<section id="{name}" aria-labelledby="{name}-heading">\n{heading}\n{content}</section>\n'


def _styles(series: Sequence[TimeSeries], other: Sequence[TimeSeries] = ()) -> list[int]:
    """Return the style of each line of a chart: a line that another chart has too keeps its style."""
    kept = {line.name: style for style, line in enumerate(other[:MAX_SERIES])}
    names = [line.name for line in series[:MAX_SERIES]]
    free = iter(sorted(set(range(MAX_SERIES)) - {kept[name] for name in names if name in kept}))
    return [kept[name] if name in kept else next(free) for name in names]


def _figure(
    chart: str,
    caption: str,
    series: Sequence[TimeSeries] = (),
    styles: Sequence[int] = (),
    *,
    shows_newest: bool = False,
) -> str:
    """Return a chart with its legend. A narrow screen shows its left end, or its right end (``shows_newest``)."""
    legend = "".join(
        f'<li class="s{style}"><svg viewBox="0 0 34 10" aria-hidden="true"><path d="M0 5H34" class="line"/></svg>'
        f"{_group(line.name)}</li>"
        for style, line in zip(styles, series, strict=False)
    )
    listed = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f'<figure>{listed}<div class="scroll{" newest" if shows_newest else ""}" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}">{chart}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _described(series: Sequence[TimeSeries]) -> str:
    parts = []
    for line in series[:MAX_SERIES]:
        values = [each.value for each in line.points if each.value is not None]
        if values:
            newest, highest = shown_number(values[-1]), shown_number(max(values))
            parts.append(f"{printable(line.name or NO_NAME)}: last {newest}, highest {highest}")
    return "; ".join(parts) or "no values"


def _data(name: str, series: Sequence[TimeSeries]) -> str:
    """The numbers behind a chart, for readers who do not see it."""
    rows = []
    for line in series[:MAX_SERIES]:
        values = [each.value for each in line.points if each.value is not None]
        shown = [shown_number(value) for value in (values[0], values[-1], max(values))] if values else ["-"] * 3
        rows.append([_group(line.name), *shown])
    table = _table("Numbers of the chart", _NUMBERS, rows)
    return f'<details id="{name}-numbers"><summary>Numbers of the chart</summary>{table}</details>\n'


def _table(caption: str, columns: Columns, rows: Sequence[object], total: int = 0) -> str:
    """Return a table in HTML, or nothing for no rows; ``total`` rows exist."""
    if not rows:
        return ""
    parts = [(*name.rpartition(":")[::2], cell) for name, cell in columns.items()]
    head = "".join(f'<th scope="col"{_class(kind)}>{heading}</th>' for kind, heading, _ in parts)
    body = "".join(
        "<tr>" + "".join(f"<td{_class(kind)}>{cell(row)}</td>" for kind, _, cell in parts) + "</tr>\n" for row in rows
    )
    more = f" ({len(rows):,} of {total:,})" if total > len(rows) else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _group(name: str) -> str:
    return _name(name or NO_NAME)


def _name(text: str) -> str:
    return escape(printable(text))


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    return shown_duration(seconds * MS_OF_SECOND)


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    iso = shown_time(at_ms)
    if not iso.endswith("Z"):
        return escape(iso)
    return f'<time datetime="{iso}">{iso[:10]} {iso[11:19]}</time>'
