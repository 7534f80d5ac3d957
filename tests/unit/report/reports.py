"""Reports for tests."""

from __future__ import annotations

from dataclasses import replace

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, sample_rows
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.describe import MemberAnswer
from offsets_pipeline.questions.report.collect import commit_rates, lag_over_time, rewinds
from offsets_pipeline.questions.report.model import (
    Deletion,
    Expiring,
    ExpiringGroup,
    GroupLines,
    GroupPart,
    GroupRow,
    Point,
    Report,
    ReportedGroups,
    Rewind,
    Rewinds,
    StaleGroup,
    StaleGroups,
    TimeSeries,
)

NOW_MS = 1_795_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
AT_A_TICK_MS = NOW_MS - 5 * HOUR_MS - 6 * MINUTE_MS - 40_000  # 06:00, which has a label below the axis
#: Names that a client may choose: markup, a change of direction, wide characters, and one as long as Kafka allows.
NAMES = (
    "billing",
    "<script>alert(1)</script>",
    "a\"b'c&amp;</td></svg><img src=x onerror=alert(1)>",
    "\u202egnillib\x00\x1b[31m",
    "請求書システム" * 6,
    "connect-" + "x" * 241,
    "orders.fulfilment.eu-central-1.prod.v2",
    "",
)


def full_report(groups: int = 30) -> Report:
    """A report with something in every part, with names of every kind."""
    names = [*NAMES, *(f"group-{number}" for number in range(groups))][:groups]
    rows = [
        GroupRow(
            group=name,
            state=("Stable", "Empty", "Reconciling")[number % 3],
            type="Consumer",
            members=number,
            offsets=10 * number,
            last_commit_ms=NOW_MS - number * MINUTE_MS,
            lag=9_000_000_000_000_000 // 7**number if number < 12 else None,
            lag_seconds=3_000_000.0 / 3**number if number < 8 else None,
            lag_unknown=3 if number >= 12 else 0,
            lag_reason="no sample of the topic is as old as the commit" if number >= 12 else None,
            status=("ERR", "WARN", "OK", None)[number % 4],
        )
        for number, name in enumerate(names)
    ]
    span = range(NOW_MS - 24 * HOUR_MS, NOW_MS + 1, HOUR_MS // 2)
    lines = [
        TimeSeries(name, [Point(at, None if at % 7 == number else number * (1_000 + at % 9_973)) for at in span])
        for number, name in enumerate(names[:8])
    ]
    gone_back = [
        Rewind(AT_A_TICK_MS - number * 5 * HOUR_MS, name, name, 3, 1_000_000, 7, None if number else name)
        for number, name in enumerate(names[:3])
    ]
    expiring = [
        ExpiringGroup(name, 5, NOW_MS + (number - 1) * HOUR_MS, NOW_MS + 9 * HOUR_MS, "R18a", "no members", number == 5)
        for number, name in enumerate(names[:6])
    ]
    parts = [
        GroupPart(
            name,
            [MemberAnswer(name, None, name, "/10.0.0.1", [f"{name}-{at}" for at in range(12)], None)] * (number % 3),
            next((line for line in lines if line.name == name), None),
            next((line for line in lines if line.name == name), None),
            [each for each in gone_back if each.group == name],
            [Deletion(NOW_MS, name, name, 3, 7, "expired", f"the retention of {name} is over")] * (number % 2),
            [each for each in expiring if each.group == name],
        )
        for number, name in enumerate(names[:12])
    ]
    return Report(
        store="/data/offsets & more",
        kind="mirrored",
        made_ms=NOW_MS,
        last_commit_ms=NOW_MS - MINUTE_MS,
        from_ms=span[0],
        until_ms=NOW_MS,
        as_of_ms=NOW_MS,
        states={"Stable": 20, "Empty": 9, "Reconciling": 1},
        offsets=123_456,
        warnings=["The report lacks 7 records of store <b>."],
        groups=ReportedGroups(total=len(rows), rows=rows, parts=parts),
        lag_over_time=GroupLines(total=8, missing=None, series=lines),
        commit_rates=GroupLines(total=8, missing=None, series=[*lines, TimeSeries("one", [Point(NOW_MS, 3)])]),
        rewinds=Rewinds(
            total=3,
            missing=None,
            rows=gone_back,
        ),
        stale=StaleGroups(
            total=6,
            after_ms=24 * HOUR_MS,
            rows=[StaleGroup(name, "Empty", 3, NOW_MS - 90 * HOUR_MS, 90 * HOUR_MS) for name in names[:6]],
        ),
        expiring=Expiring(
            total=6,
            within_ms=168 * HOUR_MS,
            rows=expiring,
            by_time=TimeSeries(
                "expire", [Point(NOW_MS + number * 7 * HOUR_MS, number % 5 * 1_000) for number in range(24)]
            ),
        ),
    )


_HOUR = (NOW_MS - HOUR_MS, NOW_MS)
_NO_SAMPLES = SampledPositions(PositionSamples(sample_rows({}, NOW_MS, "")), NOW_MS)
#: A report of a store without groups.
EMPTY_REPORT = Report(
    *("store", "owned", NOW_MS, None, *_HOUR, NOW_MS),
    groups=ReportedGroups(missing="The lag is not known."),
    lag_over_time=lag_over_time({}, _NO_SAMPLES, [], _HOUR),
    commit_rates=commit_rates({}, _HOUR),
    rewinds=rewinds([], _HOUR),
)


def small_report() -> Report:
    """A report of three groups: the part of the first has everything, that of the second has nothing."""
    first = GroupRow("a", "Stable", "Consumer", 2, 1_000, NOW_MS, 1_500, 90.0, status="ERR")
    second = GroupRow("b", "Empty", "Classic", 0, 3, None, lag_unknown=2)
    third = GroupRow("", "Empty", "Classic", 1, 4, 10**17, 1_200, None, 1, "no sample", "OK")
    line = TimeSeries("a", [Point(NOW_MS - 2, 7.0), Point(NOW_MS - 1, 9.0), Point(NOW_MS, 8.0)])
    rewind = Rewind(NOW_MS - 1, "a", "t", 1, 1_500, 400)
    expiring = [
        ExpiringGroup("a", 2, NOW_MS, NOW_MS + 60_000, "R18a", "empty", held=False),
        ExpiringGroup("a", 1, NOW_MS + 1, NOW_MS + 1, "R18c", "simple", held=False),
        ExpiringGroup("b", 1, NOW_MS - 1, NOW_MS - 1, "R20", "pending", held=True),
    ]
    deletions = [
        Deletion(NOW_MS, "a", "t", 3, 1_007, "expired", "over"),
        Deletion(None, "a", "t", 4, None, "lost", "?"),
    ]
    member = MemberAnswer("m", None, "c", "/h", ["t-1", "t-2"], None)
    return replace(
        EMPTY_REPORT,
        from_ms=NOW_MS - 10,
        warnings=["the report lacks"],
        groups=ReportedGroups(
            3,
            None,
            [first, second, third],
            [
                GroupPart("a", [member], line, line, [rewind], deletions, expiring[:1]),
                GroupPart("b", [], None, None, [], [], []),
            ],
        ),
        lag_over_time=GroupLines(2, None, [line, TimeSeries("b", [Point(NOW_MS, None)])]),
        commit_rates=GroupLines(2, None, [TimeSeries("", [Point(NOW_MS, 2.0)]), line]),
        rewinds=Rewinds(2, None, [rewind, replace(rewind, by="m", to_offset=1_501)]),
        stale=StaleGroups(1, None, 24 * HOUR_MS, [StaleGroup("b", "Empty", 3_000, NOW_MS - 90_000, 90_000)]),
        expiring=Expiring(
            4, None, 2 * HOUR_MS, expiring, TimeSeries("e", [Point(NOW_MS, 3), Point(NOW_MS + HOUR_MS, 1)])
        ),
    )
