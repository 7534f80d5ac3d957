"""As of when commands answer, and the log partitions that they call stale. No Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, SystemClock, shown_time
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic_positions.position_samples import Sample, rows_of
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.questions.query.answer_time import (
    HELD_BACK,
    MIRROR_BEHIND,
    NOT_FOLDED,
    AnswerTime,
    Stale,
    answer_time,
    data_times,
    log_answer_at,
    log_answer_time,
)
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, SNAPSHOT
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from tests.logs import LogPartition
from tests.places import place_of
from tests.spark.stores import CLOCK, appended
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from offsets_pipeline.store.store import Store

HOME = partition_for("g", 2)
NOW_MS = 1_795_000_100_000
MINUTE_MS = 60_000
OLD_MS = NOW_MS - 5 * MINUTE_MS


def read(end: int, **fields: Any) -> TopicRead:  # noqa: ANN401 - of a TopicRead
    """What `follow` notes of a log partition that it has read to its end a second ago."""
    known = {"start_offset": 0, "end_offset": end, "topic_end_offset": end, "stable_offset": end}
    times = {"complete_since_ms": NOW_MS - 10**6, "read_at_ms": NOW_MS - 1_000}
    given: dict[str, Any] = {**dict.fromkeys(TopicRead._fields), **known, **times, **fields}
    return TopicRead(**given)


def answered(store: Store, at_most: int = 100) -> AnswerTime:
    return answer_time(StateReader(store.location, at_most, FixedClock(NOW_MS)), MINUTE_MS)


@pytest.fixture
def followed(store: Store) -> Store:
    """A followed store of two log partitions with two records each, folded a minute ago."""
    logs = [LogPartition(0), LogPartition(1)]
    for log in logs:
        log.commit(("g", "t", 0), 1)
        log.commit(("g", "t", 1), 2)
    rows = [row for log in logs for row in log.rows]
    appended(store.location, rows, record_timestamp=OLD_MS * 1000, appended_ms=OLD_MS)
    LogMetadata(store, CLOCK).read({0: read(2), 1: read(2)})
    fold_log(store, Settings(), FixedClock(NOW_MS - MINUTE_MS))
    return store


def test_a_followed_store_answers_as_of_its_last_complete_reading(followed: Store) -> None:
    assert answered(followed) == AnswerTime(shown_time(NOW_MS - 1_000), [])


def test_the_log_partition_that_was_read_longest_ago_counts(followed: Store) -> None:
    LogMetadata(followed, CLOCK).read({0: read(2, read_at_ms=NOW_MS - 500), 1: read(2)})
    assert answered(followed).as_of == shown_time(NOW_MS - 1_000)


def test_a_mirror_that_nothing_reads_is_behind(followed: Store) -> None:
    LogMetadata(followed, CLOCK).read({1: read(2, read_at_ms=NOW_MS + 1_000)})
    later = answer_time(StateReader(followed.location, 100, FixedClock(NOW_MS + MINUTE_MS)), MINUTE_MS)
    assert later.stale == [Stale(0, MIRROR_BEHIND, None, shown_time(NOW_MS - 1_000))]


def test_a_topic_with_more_records_than_the_log_is_ahead_of_its_mirror(followed: Store) -> None:
    LogMetadata(followed, CLOCK).read({1: read(2, topic_end_offset=9, stable_offset=9)})
    assert answered(followed).stale == [Stale(1, MIRROR_BEHIND, 7, shown_time(NOW_MS - 1_000))]


def test_an_open_transaction_holds_records_back(followed: Store) -> None:
    since = NOW_MS - 5 * MINUTE_MS
    LogMetadata(followed, CLOCK).read({0: read(2, topic_end_offset=6, open_since_ms=since)})
    assert answered(followed).stale == [Stale(0, HELD_BACK, 4, shown_time(since))]


def test_records_that_are_too_many_to_fold_make_answers_as_old_as_the_last_folded_record(followed: Store) -> None:
    log = LogPartition(0, start=2)
    for number in range(3):
        log.commit(("g", "t", number), 5)
    appended(followed.location, log.rows, record_timestamp=NOW_MS * 1000)
    LogMetadata(followed, CLOCK).read({0: read(5), 1: read(2)})
    assert answered(followed).stale == []
    folded = shown_time(OLD_MS)
    assert answered(followed, at_most=2) == AnswerTime(folded, [Stale(0, NOT_FOLDED, 3, folded)])


def test_a_log_partition_is_as_of_its_newest_record_while_the_mirror_catches_up(followed: Store) -> None:
    """R36: `follow` was away for a minute; it has read log partition 1, and two of six records of 0."""
    since, newest = NOW_MS - MINUTE_MS, NOW_MS - MINUTE_MS // 2
    log = LogPartition(0, start=2)
    for number in range(2):
        log.commit(("g", "t", number), 5)
    appended(followed.location, log.rows, record_timestamp=newest * 1000, appended_ms=NOW_MS)
    behind = read(4, topic_end_offset=8, stable_offset=8, read_at_ms=since)
    LogMetadata(followed, CLOCK).read({0: behind, 1: read(2)})
    found = answered(followed)
    assert found == AnswerTime(shown_time(newest), [Stale(0, MIRROR_BEHIND, 4, shown_time(newest))])
    assert found.data_ms == {0: newest, 1: NOW_MS - 1_000}


def test_answers_are_not_as_of_a_time_before_the_records_that_they_have(followed: Store) -> None:
    """R36: `follow` notes its progress twice a minute, and appends more often."""
    logs = [LogPartition(at, start=2) for at in range(2)]
    for log in logs:
        log.commit(("g", "t", 0), 5)
    rows = [row for log in logs for row in log.rows]
    appended(followed.location, rows, record_timestamp=(NOW_MS - 200) * 1000, appended_ms=NOW_MS)
    assert answered(followed) == AnswerTime(shown_time(NOW_MS - 200), [])


def test_answers_are_as_of_the_last_append_that_had_all_records(followed: Store) -> None:
    """R36: log partition 1 has no newer record, and an append says that there was none."""
    log = LogPartition(0, start=2)
    log.commit(("g", "t", 0), 5)
    appended(followed.location, log.rows, record_timestamp=(NOW_MS - 400) * 1000, appended_ms=NOW_MS)
    assert answered(followed).as_of == shown_time(NOW_MS - 1_000)
    LogAppender(followed).append_files([], NOW_MS - 300)
    assert answered(followed).as_of == shown_time(NOW_MS - 300)


def test_segment_files_answer_as_of_when_they_were_read(store: Store) -> None:
    log = LogPartition(0)
    log.commit(("g", "t", 0), 1)
    appended(store.location, log.rows)
    LogMetadata(store, FixedClock(NOW_MS - 10**9)).bounds({0: (0, 1)})
    assert answered(store) == AnswerTime(shown_time(NOW_MS - 10**9), [])


def test_an_owned_store_answers_as_of_now(place: Path) -> None:
    from offsets_pipeline.coordinator.owned_store import OwnedStore  # noqa: PLC0415

    OwnedStore.create(place, 2)
    with opened(place) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
    assert answer_time(StateReader(str(place), 100, FixedClock(NOW_MS)), MINUTE_MS) == AnswerTime(
        shown_time(NOW_MS), []
    )


def asked(
    notes: dict[int, dict[str, Any]],
    records: Sequence[tuple[int, int, int | None, int]] = (),
    kind: str = MIRRORED,
    complete_ms: int = 0,
    location: str = "",
    **current: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401 - what both questions read of a store
    """A store of log incarnation 1, opened at NOW_MS, without tables on a disk.

    ``notes`` by log partition. ``records``: log partition, record offset, timestamp and time of the append in ms; each
    is in a file of its own. ``complete_ms``: the last append that had all records.
    """
    names = [each.name for each in LOG_PARTITIONS.columns]
    rows = [
        dict.fromkeys(names)
        | {"log_partition": at, "log_incarnation": incarnation, "start_offset": 0, "updated_at": 0}
        | {name: value * 1_000 if name in TIMES else value for name, value in note.items() if value is not None}
        for at, note in notes.items()
        for incarnation in note.pop("incarnations", [1])
    ]
    files = [SimpleNamespace(row=row, highest={"appended_at": shown_time(row[3])}) for row in records]

    def tables(columns: list[str], only: dict[str, list[int]], of: list[SimpleNamespace]) -> Iterator[pa.Table]:
        assert only["log_incarnation"] == [1]
        for each in of:
            if each.row[0] in only.get("log_partition", [each.row[0]]):
                row = dict(zip(columns, each.row, strict=True))
                row |= {name: row[name] and row[name] * 1_000 for name in ("record_timestamp", "appended_at")}
                yield pa.Table.from_pylist(
                    [row], schema=pa.schema([LOG.arrow_schema().field(each) for each in columns])
                )

    log = SimpleNamespace(files=lambda: files, tables=tables, transaction=lambda _: complete_ms)
    return SimpleNamespace(
        notes=pa.Table.from_pylist(rows, schema=LOG_PARTITIONS.arrow_schema()),
        location=location,
        opened_ms=NOW_MS,
        properties=SimpleNamespace(kind=kind),
        table=lambda _: log,
        current_log=SimpleNamespace(number=1),
        current=SimpleNamespace(log_incarnation=1, **{"progress": {}, "stored": {}, "unfolded": {}, **current}),
    )


TIMES = ("complete_since", "read_at", "open_since", "updated_at")
FRESH_MS = NOW_MS - MINUTE_MS  # as old as a mirror may be
BEHIND = (MIRROR_BEHIND, None)


@pytest.mark.parametrize(
    ("end", "stable", "topic_end", "fields", "expected"),
    [
        # end of the log, last stable offset and end of the topic
        (5, 5, 5, {}, []),
        (5, 5, 9, {}, [(HELD_BACK, 4)]),
        (5, 3, 9, {}, [(HELD_BACK, 4)]),
        (5, 9, 9, {}, [(MIRROR_BEHIND, 4)]),
        (5, 8, 9, {}, [(HELD_BACK, 1), (MIRROR_BEHIND, 3)]),
        (5, None, 9, {}, [(MIRROR_BEHIND, 4)]),
        (5, 9, None, {}, []),
        (5, 5, 4, {}, []),
        (5, 5, 9, {"open_since": None}, []),
        (5, 6, 6, {"read_at": None}, []),
        (5, 5, 5, {"read_at": FRESH_MS - 1}, [BEHIND]),
        (5, 5, 5, {"read_at": FRESH_MS - 1, "incarnations": [0]}, []),
    ],
)
def test_a_log_partition_lacks_what_its_topic_has_and_what_a_transaction_holds(
    end: int, stable: int | None, topic_end: int | None, fields: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    """R36, by hand."""
    known = {"end_offset": end, "stable_offset": stable, "topic_end_offset": topic_end}
    note = {**known, "read_at": FRESH_MS, "open_since": OLD_MS, **fields}
    since = {HELD_BACK: shown_time(OLD_MS), MIRROR_BEHIND: shown_time(note["read_at"] or 0)}
    stale = [Stale(3, reason, records, since[reason]) for reason, records in expected]
    assert log_answer_time(asked({3: {**note}}), MINUTE_MS).stale == stale
    found = answer_time(asked({3: {**note}}), MINUTE_MS)
    assert (found.stale, found.of_partition(3), found.of_partition(2)) == (stale, tuple(stale), ())
    # at an earlier time that lacks nothing, and right after it
    for reason, at_ms in ((HELD_BACK, OLD_MS), (MIRROR_BEHIND, note["read_at"] or 0)):
        until = {
            until_ms: log_answer_time(asked({3: {**note}}), MINUTE_MS, until_ms) for until_ms in (at_ms, at_ms + 1)
        }
        assert reason not in {each.reason for each in until[at_ms].stale}
        assert [each for each in until[at_ms + 1].stale if each.reason == reason] == [
            each for each in stale if each.reason == reason
        ]
        assert [each.as_of for each in until.values()] == (
            [None, None]
            if "incarnations" in fields
            else [shown_time(min(each, note["read_at"])) if note["read_at"] else shown_time(0) for each in until]
        )
    # the state may have folded more than the note says
    progress = {3: SimpleNamespace(folded_to=9)}
    assert [each.records for each in answer_time(asked({3: {**note}}, progress=progress), MINUTE_MS).stale] == (
        [None] if BEHIND in expected else []
    )
    # of positions only those that the log does not have lack a record
    assert log_answer_at(asked({3: {**note}}), {3: end, 2: 99}) == AnswerTime(None, [])
    beyond = log_answer_at(asked({3: {**note}}), {3: end + 1})
    assert beyond == AnswerTime(None, [each for each in stale if (each.reason, each.records) != BEHIND])


def test_the_data_time_is_that_of_the_last_look_or_of_a_newer_record() -> None:
    """R36, by hand; log partitions of a topic, of segment files, and of an owned log."""
    notes = {at: {"end_offset": 9, "read_at": FRESH_MS + at} for at in range(4)}
    records = [
        (0, 0, FRESH_MS, FRESH_MS),  # appended before the last look at 0
        (1, 0, FRESH_MS + 20, FRESH_MS + 25),
        (1, 1, FRESH_MS + 15, FRESH_MS + 26),
        (2, 0, None, FRESH_MS + 9),
        (3, 0, NOW_MS + 5, NOW_MS),
    ]
    expected = {0: FRESH_MS, 1: FRESH_MS + 20, 2: FRESH_MS + 2, 3: NOW_MS}
    found = answer_time(asked(notes, records), MINUTE_MS)
    assert (found, found.data_ms) == (AnswerTime(shown_time(FRESH_MS), []), expected)
    assert [found.as_of_partition(at) for at in (1, 7)] == [shown_time(FRESH_MS + 20), shown_time(FRESH_MS)]
    assert data_times(asked(notes, records)).to_pylist() == [
        {"log_partition": at, "data_time": datetime.fromtimestamp(at_ms / 1_000, UTC)} for at, at_ms in expected.items()
    ]
    complete = log_answer_time(asked(notes, records, complete_ms=FRESH_MS + 17), MINUTE_MS)
    assert complete.data_ms == {0: FRESH_MS + 17, 1: FRESH_MS + 20, 2: FRESH_MS + 17, 3: NOW_MS}
    past = log_answer_time(asked(notes, records), MINUTE_MS, FRESH_MS + 2)
    assert past.data_ms == {0: FRESH_MS, 1: FRESH_MS + 2, 2: FRESH_MS + 2, 3: FRESH_MS + 2}
    assert log_answer_time(asked({}, records, OWNED), 0, 7) == AnswerTime(shown_time(7), [])
    assert answer_time(asked({}, records, OWNED), 0) == AnswerTime(shown_time(NOW_MS), [])
    files = {at: {"end_offset": 1, "updated_at": 70 + at} for at in range(2)}
    assert answer_time(asked(files, records), 0).data_ms == {0: 71, 1: 71}
    unread = answer_time(asked({}, records, complete_ms=NOW_MS), 0)  # segment files without a note
    assert unread.data_ms == {0: FRESH_MS, 1: FRESH_MS + 20, 3: NOW_MS}
    assert answer_time(asked({}), 0) == AnswerTime(None, [])


def test_a_record_with_a_time_ahead_does_not_hide_that_nothing_follows_any_more() -> None:
    """R36, by hand: the clock of the broker was an hour ahead of that of `follow`, which ended two minutes ago."""
    ended_ms = NOW_MS - 2 * MINUTE_MS
    notes = {0: {"end_offset": 2, "topic_end_offset": 2, "stable_offset": 2, "read_at": ended_ms - 5}}
    records = [(0, 0, ended_ms - 7, ended_ms - 6), (0, 1, NOW_MS + 60 * MINUTE_MS, ended_ms)]
    found = answer_time(asked(notes, records), MINUTE_MS)
    assert found == AnswerTime(shown_time(ended_ms), [Stale(0, MIRROR_BEHIND, None, shown_time(ended_ms))])


def test_a_log_of_snapshots_is_as_of_its_newest_record_or_sample(tmp_path: Path) -> None:
    """R36: each snapshot looks at all groups, and samples all topics."""
    records, store = [(0, 0, OLD_MS, OLD_MS), (1, 0, OLD_MS + 9, OLD_MS + 9)], str(tmp_path)
    assert answer_time(asked({}, kind=SNAPSHOT, location=store), 0) == AnswerTime(None, [])
    for sampled_ms, expected in (
        (None, OLD_MS + 9),
        (OLD_MS + 8, OLD_MS + 9),
        (FRESH_MS, FRESH_MS),
        (NOW_MS + 1, NOW_MS),
    ):
        if sampled_ms is not None:
            SampleWriter(table_of(store), "a test").append(rows_of([(("t", 0), Sample(0, 1, sampled_ms))], "a test"))
        assert answer_time(asked({}, records, SNAPSHOT, location=store), 0).data_ms == {0: expected, 1: expected}


def test_what_is_not_folded_is_as_old_as_the_last_folded_record() -> None:
    """R36, by hand: the state has offsets before 2 of log partition 0, of 1 nothing with a time, and none of 2."""
    notes = {at: {"end_offset": 9, "read_at": FRESH_MS} for at in range(4)}
    records = [(0, 0, 70, 99), (0, 1, 60, 99), (0, 2, 80, 99), (1, 0, None, 99), (3, 0, 5, 99)]
    stored = {at: SimpleNamespace(log_incarnation=1, folded_to=2, folded_at_us=90_999 + 1_000 * at) for at in (0, 1, 3)}
    found = answer_time(asked(notes, records, stored=stored, unfolded={2: 6, 1: 5, 0: 4}), MINUTE_MS)
    assert found.stale == [
        *(Stale(0, NOT_FOLDED, 4, shown_time(70)), Stale(1, NOT_FOLDED, 5, shown_time(91))),
        Stale(2, NOT_FOLDED, 6, None),
    ]
    assert found.data_ms == {0: 70, 1: 91, 2: FRESH_MS, 3: FRESH_MS}


def test_commands_say_it_in_json_and_warn_once_for_each_reason(
    followed: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ms = SystemClock().now_ms()
    fresh = {"read_at_ms": now_ms, "complete_since_ms": 0}
    held = read(2, topic_end_offset=6, open_since_ms=now_ms - 1_000, **fresh)
    LogMetadata(followed, CLOCK).read({0: held, 1: read(2, topic_end_offset=3, stable_offset=3, **fresh)})
    capsys.readouterr()
    of_group = ("--group", "g", "--topic", "t")
    for command, key in (
        (("describe", "--all-groups"), "groups"),
        (("describe", "--list"), "groups"),
        (("log-info",), "log_partitions"),
        (("groups",), "groups"),
        (("as-of", "--time", "2100-01-01"), "groups"),
        (("history", "--group", "g"), "history"),
        (("why", *of_group, "--partition", "0"), "status"),
        (("lag",), "group"),
        (("lag", "--summary"), "group"),
        (("lag", "--at", "2100-01-01"), "group"),
        (("fetch", *of_group), "group"),
    ):
        assert main([*command, "--store", followed.location, "--format", "json"]) == 0
        out, err = capsys.readouterr()
        is_rows = command[0] in ("lag", "fetch")
        document = json.loads(out.splitlines()[0] if is_rows else out)
        assert document[key]
        if is_rows:  # a row has what is stale in the log partition of its group
            assert all(json.loads(line)["stale"] == document["stale"] for line in out.splitlines())
            assert {each["log_partition"] for each in document["stale"]} == {HOME}
            assert document["as_of"] == shown_time(now_ms)
            continue
        if key in ("history", "status") or command[0] == "as-of":
            assert document["cluster"] == place_of(followed.location).name
        assert document["as_of"] == shown_time(now_ms)
        assert [(each["log_partition"], each["reason"], each["records"]) for each in document["stale"]] == [
            (0, HELD_BACK, 4),
            (1, MIRROR_BEHIND, 1),
        ]
        first, second = err.splitlines()
        assert first.startswith("offsets: warning: the answers lack 4 records ")
        assert "an open transaction holds back in log partition 0 since " in first
        assert second.startswith(f"offsets: warning: the answers of {followed.location} lack 1 record of its topic: ")


def test_old_data_and_old_transactions_are_problems_of_status(
    followed: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def problems(age_ms: int) -> dict[str, str]:
        """The problems of all groups where a transaction and a look of the mirror have this age, by their names."""
        at_ms = SystemClock().now_ms() - age_ms
        held = read(2, topic_end_offset=6, open_since_ms=at_ms, read_at_ms=at_ms, complete_since_ms=0)
        behind = read(2, topic_end_offset=3, stable_offset=3, read_at_ms=at_ms, complete_since_ms=0)
        LogMetadata(followed, CLOCK).read({0: held, 1: behind})
        capsys.readouterr()
        assert main(["status", "--store", followed.location, "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["as_of"] == shown_time(at_ms)
        return {row["problem"]: row["status"] for row in found["problems"] if row["group"] is None}

    known = {"old positions": "WARN"}  # there are no samples
    assert problems(1_000) == known
    assert problems(2 * MINUTE_MS) == {**known, "mirror behind": "ERR"}
    assert problems(20 * MINUTE_MS) == {**known, "mirror behind": "ERR", "open transaction": "WARN"}


def test_the_past_is_stale_only_where_the_log_lacks_records_of_it(
    followed: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*command: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*command, "--store", followed.location, "--format", "json"]) == 0
        out, err = capsys.readouterr()
        found: dict[str, Any] = json.loads(out.splitlines()[0])
        assert bool(found["stale"]) == err.startswith("offsets: warning: the answers ")
        return found

    since = NOW_MS - 5 * MINUTE_MS
    LogMetadata(followed, CLOCK).read({HOME: read(2, topic_end_offset=6, open_since_ms=since)})
    before, after = shown_time(since), shown_time(since + 1)
    assert (asked("as-of", "--time", before)["as_of"], asked("as-of", "--time", before)["stale"]) == (before, [])
    assert [each["reason"] for each in asked("as-of", "--time", after)["stale"]] == [HELD_BACK]
    assert [each["reason"] for each in asked("history", "--group", "g", "--until", after)["stale"]] == [HELD_BACK]
    assert asked("as-of", "--position", f"{HOME}:2")["stale"] == []
    beyond = asked("as-of", "--position", f"{HOME}:3")
    assert (beyond["as_of"], [each["log_partition"] for each in beyond["stale"]]) == (None, [HOME])


@pytest.mark.parametrize(
    "command",
    [["restore", "--bootstrap-server", "localhost:1", "--option", "default.api.timeout.ms=1"], ["export-segments"]],
)
def test_a_copy_of_a_time_that_the_log_has_not_reached_warns(
    followed: Store, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = NOW_MS - 5 * MINUTE_MS
    LogMetadata(followed, CLOCK).read({HOME: read(2, topic_end_offset=6, open_since_ms=since)})
    for time_ms, is_whole in ((since, True), (since + 1, False)):
        to = ["--to", str(tmp_path / f"to-{time_ms}")] if command == ["export-segments"] else []
        capsys.readouterr()
        main([*command, *to, "--store", followed.location, "--as-of", shown_time(time_ms)])
        err = capsys.readouterr().err
        assert ("offsets: warning: the answers lack 4 records of" in err) == (not is_whole)


def test_several_stores_are_as_of_the_earliest_and_stale_by_cluster(
    followed: Store, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from offsets_pipeline.coordinator.owned_store import OwnedStore  # noqa: PLC0415

    OwnedStore.create(place / "owned", 2)
    capsys.readouterr()
    both = ["--store", followed.location, "--store", str(place / "owned"), "--format", "json"]
    for command in (["groups"], ["log-info"], ["describe", "--list"]):
        assert main([*command, *both]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["as_of"] == shown_time(NOW_MS - 1_000)
        assert {each["cluster"] for each in document["stale"]} == {place.name}
    assert main(["log-info", *both[:-1], "csv"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith(",cluster")
    assert [row.rpartition(",")[2] for row in rows] == [place.name] * 2 + ["owned"] * 2
