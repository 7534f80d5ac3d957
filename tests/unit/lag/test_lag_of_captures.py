"""Lag of recorded brokers' groups: their committed offsets and topics' ends are the broker's own answers.

kafka-consumer-groups prints the log end minus the committed offset for each pair of a committed offset, and a line
without them for a partition that is assigned and has no commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, sample_rows
from offsets_pipeline.questions.lag.lag_rows import LagRow, lag_rows
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.as_of import offsets_as_of
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.logs import CAPTURE_NAMES, CAPTURES, capture_partitions, capture_semantics, oracle
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.lag.commit_windows import WindowColumns
    from offsets_pipeline.questions.query.describe import GroupAnswer

#: One of each broker, and all kinds of groups.
SOME = ["3.9.2-txn-open", "4.2.0-kip848", "4.2.0-share"]
Identity = tuple[str, str, int]
#: Committed offset, log end and lag.
Told = tuple[int | None, int | None, int | None]


def printed_by_the_tool(answers: dict[str, Any]) -> dict[Identity, Told]:
    """What kafka-consumer-groups prints of each group, by the oracle's committed offsets, members and log ends."""
    ends = {
        (topic, each["partition"]): each["end"]
        for topic, told in answers["topics"].items()
        for each in told["partitions"]
    }
    found: dict[Identity, Told] = {}
    for name, group in answers["groups"].items():
        described = group["describe"]
        if group["listed"] is not True or group.get("list_type") == "Share":
            continue
        held: dict[tuple[str, int], int | None] = {
            (each["topic"], each["partition"]): each["offset"]
            for each in group["offsets"]
            if each["offset"] is not None  # negative in the log: the state has no offset for it
        }
        for member in described.get("members", ()) if isinstance(described, dict) else ():
            for text in member["assignment"] or ():
                topic, _, partition = text.rpartition("-")
                held.setdefault((topic, int(partition)), None)
        for place, offset in held.items():
            end = ends.get(place)
            found[name, *place] = offset, end, None if offset is None or end is None else max(0, end - offset)
    return found


def lags(groups: dict[str, GroupAnswer], answers: dict[str, Any]) -> list[LagRow]:
    positions = {
        (topic, each["partition"]): (each["start"], each["end"])
        for topic, told in answers["topics"].items()
        for each in told["partitions"]
    }
    at_ms = answers["wall_clock_ms"]
    source = SampledPositions(PositionSamples(sample_rows(positions, at_ms, "the oracle")), at_ms)
    return lag_rows(groups, source, {}, nothing_read, with_status=False)


def nothing_read(*_: object) -> WindowColumns:
    raise AssertionError


@pytest.mark.parametrize(
    "capture",
    [
        each if each in SOME else pytest.param(each, marks=pytest.mark.long)
        for each in CAPTURE_NAMES
        if each != "4.2.0-inject-malformed"  # its broker loads no log partition with a malformed record
    ],
)
def test_lag_is_what_the_brokers_tool_prints(capture: str, tmp_path: Path, settings: Settings) -> None:
    answers = oracle(capture)
    expected = printed_by_the_tool(answers)
    assert expected
    store = folded_segments(
        CAPTURES / capture / "segments",
        tmp_path / "store",
        capture_partitions(capture),
        settings,
        capture_semantics(capture),
        {told["topic_id"]: topic for topic, told in answers["topics"].items() if "topic_id" in told},
    )
    reader = StateReader(str(store))
    now = lags(describe_groups(reader), answers)
    assert {
        (row.group, row.topic, row.partition): (row.current_offset, row.log_end_offset, row.lag) for row in now
    } == expected
    for row in now:
        assert (row.reason is None) == (
            row.lag_seconds is not None and not (row.current_offset or 0) > (row.log_end_offset or 0)
        ), row
    # the log itself answers the same, as of a time after its last record
    assert lags(offsets_as_of(str(store), time_ms=answers["wall_clock_ms"] + 60_000).groups, answers) == now


def test_commit_above_the_log_end_has_no_negative_lag(tmp_path: Path, settings: Settings) -> None:
    """The group g-beyond committed 1000000 in a topic of 10 records."""
    answers = oracle("4.2.0-classic")
    store = folded_segments(CAPTURES / "4.2.0-classic" / "segments", tmp_path / "store", 5, settings)
    groups = describe_groups(StateReader(str(store)), ["g-beyond"])
    (row,) = lags(groups, answers)
    assert (row.lag, row.lag_available, row.reason) == (0, 0, "the committed offset is above the log end")
