"""As of when commands answer, and the log partitions that they call stale. No Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, SystemClock, shown_time
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.questions.query.answer_time import (
    HELD_BACK,
    MIRROR_BEHIND,
    NOT_FOLDED,
    AnswerTime,
    Stale,
    answer_time,
)
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from tests.logs import LogPartition
from tests.places import place_of
from tests.spark.stores import CLOCK, appended
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
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
    appended(store.location, [row for log in logs for row in log.rows], record_timestamp=OLD_MS * 1000)
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
        assert second.startswith(f"offsets: warning: the answers of {followed.location} lack 1 records of its topic: ")


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
