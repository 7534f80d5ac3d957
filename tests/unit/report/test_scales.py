"""Ticks, labels and lines of charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.common.clock import shown_duration
from offsets_pipeline.questions.report.charts import (
    Bar,
    bar_chart,
    column_chart,
    cut,
    line_chart,
    number_ticks,
    shown_number,
    text_width,
    time_ticks,
)
from offsets_pipeline.questions.report.model import Point, TimeSeries
from offsets_pipeline.semantics.effects import LATEST_MS

DAY_MS = 86_400_000
START_MS = int(datetime(2026, 11, 20, 19, 7, 40, tzinfo=UTC).timestamp() * 1000)


@given(st.floats(min_value=1e-3, max_value=1e18))
def test_number_ticks_begin_at_0_and_cover_the_highest(highest: float) -> None:
    ticks = number_ticks(highest)
    assert ticks[0].value == 0
    assert ticks[-1].value >= highest * (1 - 1e-9)
    assert 2 <= len(ticks) <= 7
    assert len({tick.label for tick in ticks}) == len(ticks)


@given(st.integers(0, 4 * 10**12), st.integers(1_000, 20 * 365 * DAY_MS))
def test_time_ticks_lie_within_the_span_and_are_few(from_ms: int, span_ms: int) -> None:
    ticks = time_ticks(from_ms, from_ms + span_ms)
    assert len(ticks) <= 7
    assert all(from_ms <= tick.value <= from_ms + span_ms for tick in ticks)


@pytest.mark.parametrize(
    ("span_ms", "labels"),
    [
        (60_000, ["19:07:40", "19:07:50", "19:08:00", "19:08:10", "19:08:20", "19:08:30", "19:08:40"]),
        (3_600_000, ["19:10", "19:20", "19:30", "19:40", "19:50", "20:00"]),
        (2 * DAY_MS, ["21 Nov 00:00", "21 Nov 12:00", "22 Nov 00:00", "22 Nov 12:00"]),
        (7 * DAY_MS, ["21 Nov 2026", "23 Nov 2026", "25 Nov 2026", "27 Nov 2026"]),
    ],
)
def test_time_ticks_are_round_times_in_utc(span_ms: int, labels: list[str]) -> None:
    assert [tick.label for tick in time_ticks(START_MS, START_MS + span_ms)] == labels


def test_time_ticks_end_with_the_last_time_that_has_a_date() -> None:
    assert time_ticks(LATEST_MS - 3 * DAY_MS, LATEST_MS + DAY_MS)[-1].label == "30 Dec 9999"


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 s"),
        (250, "0.25 s"),
        (59_000, "59 s"),
        (60_000, "1 min"),
        (61_500, "1 min 1 s"),
        (60_999, "1 min"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h"),
        (DAY_MS - 1, "23 h 59 min"),
        (DAY_MS, "1 d"),
        (3 * DAY_MS, "3 d"),
        (3 * DAY_MS + 4 * 3_600_000 + 5, "3 d 4 h"),
        (7_260_000, "2 h 1 min"),
    ],
)
def test_durations_have_two_units(duration_ms: int, text: str) -> None:
    assert shown_duration(duration_ms) == text


def test_numbers_are_short() -> None:
    assert [shown_number(each) for each in (0, 0.25, 999, 1_500, 2_000_000, 9.2e18)] == [
        *("0", "0.25", "999", "1.5k", "2M", "9.2e+03P")
    ]
    assert [shown_number(each) for each in (1e3, 1e6, 1e9, 1e12, 1e15, -1_500)] == [
        "1k",
        "1M",
        "1G",
        "1T",
        "1P",
        "-1.5k",
    ]


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (1, "0 0.2 0.4 0.6 0.8 1"),
        (0.1 + 0.2, "0 0.1 0.2 0.3"),  # 0.30000000000000004
        (10, "0 2 4 6 8 10"),
        (11, "0 5 10 15"),
        (50, "0 10 20 30 40 50"),
        (51, "0 20 40 60"),
        (1e-9, "0 1e-09"),
        (0, "0 1"),
    ],
)
def test_number_ticks_are_at_most_six_round_numbers(highest: float, labels: str) -> None:
    assert " ".join(tick.label for tick in number_ticks(highest)) == labels


def test_steps_of_times_are_parts_of_minutes_hours_and_days() -> None:
    minutes = [1, 2, 5, 10, 15, 30]
    steps_ms = [
        *(number * 1_000 for number in minutes),
        *(number * 60_000 for number in minutes),
        *(number * 3_600_000 for number in (1, 2, 3, 6, 12)),
        *(number * DAY_MS for number in (1, 2, 7, 14, 28, 91, 182, 364, 1820)),
    ]
    for step_ms, next_ms in zip(steps_ms, [*steps_ms[1:], steps_ms[-1]], strict=True):
        assert [tick.value for tick in time_ticks(0, 6 * step_ms)] == [number * step_ms for number in range(7)]
        assert [tick.value for tick in time_ticks(0, 6 * step_ms + 1)][:2] == [0, next_ms]


@pytest.mark.parametrize(
    ("span_ms", "label"),
    [
        (6 * 30_000, "00:00:00"),
        (6 * 60_000, "00:00"),
        (DAY_MS - 1, "00:00"),
        (DAY_MS, "21 Nov 00:00"),
        (6 * DAY_MS, "21 Nov 2026"),
    ],
)
def test_labels_of_times_have_the_day_of_a_span_of_a_day(span_ms: int, label: str) -> None:
    midnight_ms = (START_MS // DAY_MS + 1) * DAY_MS
    assert time_ticks(midnight_ms, midnight_ms + span_ms)[0] == (midnight_ms, label)


def test_labels_of_times_do_not_overlap() -> None:
    # 40 ticks, 17.1 apart; a label of 11 characters is 81.84 wide, and 12 lie between two
    chart = line_chart("n", "", "", [], (0, 40 * 1820 * DAY_MS), [])
    found = re.findall('<text x="([^"]*)" y="232.0" class="middle">', chart)
    assert found == ["56.0", "158.6", "261.2", "363.8", "466.4", "569.0", "671.6"]
    assert re.findall('<path d="M([^ ]*) 212.0v4" class="axis"/>', chart) == found
    assert chart.count('<path d="M56.0 212.0H740.0" class="axis"/>') == 1
    assert re.findall('<text x="48.0" y="([^"]*)" class="end">([^<]*)<', chart) == [("216.0", "0"), ("18.0", "1")]


def test_a_wide_character_is_as_wide_as_high_and_a_text_is_cut_in_the_middle() -> None:
    assert [text_width(text, 100) for text in ("", "abc", "請求", "a請")] == [0, 186, 200, 162]
    found = [cut("abcdefghij", width, 100) for width in (620, 619, 558, 557)]
    assert found == ["abcdefghij", "abcd…ghij", "abcd…ghij", "abc…ghij"]
    assert [cut("abcdefg", width, 100) for width in (434, 433, 62, 0)] == ["abcdefg", "ab…efg", "…", "…"]


@given(st.text(max_size=300), st.integers(20, 400))
def test_a_cut_text_fits_and_keeps_both_ends(text: str, width: int) -> None:
    found = cut(text, width, 12)
    assert text_width(found, 12) <= max(width, 12)
    if found != text and len(found) > 2:
        assert found[0] == text[0] or found[-1] == text[-1]


def test_bars_are_as_long_as_their_values_and_lie_one_below_the_other() -> None:
    # 390 wide from x = 230: labels are 230 wide, values 140; a row is 26 high
    bars = [Bar("a", 10, "10"), Bar("", 5, "five"), Bar("c", 0, "0")]
    chart = bar_chart("n", "", "", bars)
    assert chart.startswith('<svg viewBox="0 0 760 86"')
    found = re.findall('<rect x="([^"]*)" y="([^"]*)" width="([^"]*)"', chart)
    assert found == [("230.0", "9.0", "390.0"), ("230.0", "35.0", "195.0"), ("230.0", "61.0", "1.0")]
    assert re.findall('<text x="([^"]*)" y="([^"]*)"(?: class="end")?>([^<]*)<', chart) == [
        *(("222.0", "21.0", "a"), ("626.0", "21.0", "10")),
        *(("222.0", "47.0", "&quot;&quot;"), ("431.0", "47.0", "five")),
        *(("222.0", "73.0", "c"), ("237.0", "73.0", "0")),
    ]


def test_labels_and_values_of_bars_are_cut_to_their_space() -> None:
    """Hand-worked: a character is 7.44 wide, so 28 fit into 214 and 18 into the 134 right of the longest bar."""
    bars = [Bar("a" * length, 0, "") for length in (28, 29)] + [Bar("b", 1, "1" * length) for length in (18, 19)]
    texts = re.findall(">([^<]*)</text>", bar_chart("n", "", "", bars))
    assert texts == ["a" * 28, "", "a" * 13 + "…" + "a" * 14, "", "b", "1" * 18, "b", "1" * 8 + "…" + "1" * 9]
    assert re.findall('<rect [^>]* width="([^"]*)"', bar_chart("n", "", "", bars[:2])) == ["1.0", "1.0"]
    assert bar_chart("n", "A & B", "d\x1b", []) == (
        '<svg viewBox="0 0 760 8" role="img" aria-labelledby="n-title n-text"><title id="n-title">A &amp; B</title>'
        '<desc id="n-text">d\\x1b</desc></svg>'
    )


def test_columns_have_the_height_of_their_values_and_share_the_span() -> None:
    points = [Point(0, 4.0), Point(25, 0.0), Point(50, 8.0), Point(75, None)]  # of four, three have a value
    chart = column_chart("n", "", "", TimeSeries("t", points), (0, 100))
    assert re.findall('<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"', chart) == [
        *(("57.0", "113.0", "226.0", "99.0"), ("399.0", "14.0", "226.0", "198.0"))
    ]
    assert re.findall('class="bar"><title>([^<]*)<', chart) == ["4", "8"]
    alone = column_chart("n", "", "", TimeSeries("t", [Point(0, 1.0)]), (0, 100))
    assert re.findall('<rect x="57.0" y="14.0" width="([^"]*)"', alone) == ["682.0"]
    narrow = column_chart("n", "", "", TimeSeries("t", [Point(0, 1.0)] * 400), (0, 100))
    assert set(re.findall('<rect x="57.0" y="14.0" width="([^"]*)"', narrow)) == {"1.0"}
    assert "<rect" not in column_chart("n", "", "", TimeSeries("t", []), (0, 100))


def test_only_the_first_six_lines_are_drawn_and_each_has_its_style() -> None:
    lines = [TimeSeries(f"<{at}", [Point(20, at), Point(-5, at), Point(5, at)]) for at in range(1, 8)]
    chart = line_chart("n", "", "", lines, (0, 10), [5, 4, 3, 2, 1, 0])
    drawn = re.findall('<g class="s(.)"><title>&lt;(.)</title><path d="([^"]*)" class="line"/></g>', chart)
    # the top is 6, so a line is 33 above the one before; what lies outside of the span is at its end
    assert drawn == [
        (str(6 - at), str(at), "M740.0 {0}L56.0 {0}L398.0 {0}".format(f"{212 - 33 * at}.0")) for at in range(1, 7)
    ]
    assert '<circle cx="56.0" cy="14.0"' in line_chart("n", "", "", [TimeSeries("t", [Point(7, 1.0)])], (7, 7), [0])


def test_marks_stand_on_their_values_and_labels_of_times_fit_into_the_chart() -> None:
    line = TimeSeries("t", [Point(START_MS, 5.0), Point(START_MS + 60_000, 10.0)])
    marks = [Point(START_MS + 6_000, 5.0), Point(START_MS, None)]
    chart = line_chart("n", "", "", [line], (START_MS, START_MS + 60_000), [3], marks)
    assert re.findall('<path d="([^"]*)" class="mark"/>', chart) == ["M124.4 111.0l-5 -9h10z"]
    labels = re.findall('<text x="([^"]*)" y="232.0" class="middle">([^<]*)<', chart)
    assert labels == [  # that of the last tick, at x = 740, would be cut
        *(("56.0", "19:07:40"), ("170.0", "19:07:50"), ("284.0", "19:08:00")),
        *(("398.0", "19:08:10"), ("512.0", "19:08:20"), ("626.0", "19:08:30")),
    ]
    assert re.findall('<path d="M56.0 ([^"H]*)H740.0" class="grid"/>', chart) == [
        *("212.0", "172.4", "132.8", "93.2", "53.6", "14.0")
    ]
    assert [tick.label for tick in number_ticks(0)] == ["0", "1"]


def test_a_line_has_a_path_for_each_run_of_values_and_a_dot_for_a_single_one() -> None:
    # 684 wide from x = 56, and 198 high above y = 212: a tenth of the span is 68.4, half of the top value 99
    def drawn(*values: tuple[int, float | None]) -> tuple[list[str], list[tuple[str, str]]]:
        line = TimeSeries("t", [Point(at_ms, value) for at_ms, value in values])
        chart = line_chart("n", "", "", [line], (0, 100), [0])
        paths = re.findall('<path d="([^"]*)" class="line"/>', chart)
        return paths, re.findall('<circle cx="([^"]*)" cy="([^"]*)"', chart)

    assert drawn((0, 5.0), (10, 10.0)) == (["M56.0 113.0L124.4 14.0"], [])
    assert drawn((50, 10.0)) == ([], [("398.0", "14.0")])
    assert drawn((0, 0.0), (10, 5.0), (20, None), (50, 10.0), (60, None), (70, None), (90, 10.0), (100, 0.0)) == (
        ["M56.0 212.0L124.4 113.0", "M671.6 14.0L740.0 212.0"],
        [("398.0", "14.0")],
    )
