"""The causes of deletions: of recorded brokers, of this program's coordinator, and of records that two causes write."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from offsets_pipeline.common.clock import parse_time_ms, shown_time
from offsets_pipeline.questions.history.group_timeline import group_timeline, why
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.store.delta.properties import OWNED
from tests.logs import CAPTURE_NAMES, CAPTURES, LogPartition
from tests.unit.history.history_stores import START_MS, capture_store, random_store

CLASSIC = CoordinatorSemantics.CLASSIC
MINUTE_MS = 60_000
HISTORY_PAGE = Path(__file__).parents[3] / "docs" / "history.md"

#: What the clients of captures of the old formats did.
_OLD = {"o-gone": "topic gone, deleted", "o-deleted": "group removed, deleted", "o-deloff": "deleted"}
_OLD_BY_4_2 = _OLD | {"o-deleted": "group removed"}
_KIP_848 = {"k-deloff": "deleted", "k-topicgone": "topic gone", "k-deleted": "group removed"}
_SINK = {"connect-sink-3": "group removed"}
_INJECTED = {"i-key0": "deleted", "i-tombgm-offsets": "group removed"}
#: By capture, what its clients and administrators did to groups (tests/data/captures/README.md): the true cause first,
#: then the others for which the broker writes the same records.
TRUE_CAUSES: dict[str, dict[str, str]] = {
    "4.2.0-classic": {
        "g-simple-deleted": "group removed",
        "g-deleted": "group removed",
        "g-reborn": "group removed",
        "g-deloff": "deleted",
        "g-deloff-all": "deleted",
        "g-deloff-member": "deleted",
        "g-onlygone": "topic gone",
        "g-topicgone-member": "topic gone",
        "g-topicgone": "topic gone, deleted",
    },
    "3.9.2-classic": {
        "g-simple-deleted": "group removed, deleted",
        "g-deleted": "group removed, deleted",
        "g-reborn": "group removed, deleted",
        "g-deloff": "deleted",
        "g-deloff-all": "deleted, group removed",
        "g-deloff-member": "deleted",
        "g-onlygone": "topic gone, deleted, group removed",
        "g-topicgone-member": "topic gone, deleted",
        "g-topicgone": "topic gone, deleted",
    },
    "4.2.0-kip848": _KIP_848,
    "4.0.0-kip848": _KIP_848,
    "4.2.0-txn-open": {
        "x-delgrp": "group removed",
        "x-del": "deleted",
        "x-del2": "deleted",
        "x-topic": "topic gone, deleted",
    },
    "3.9.2-txn-open": {
        "x-delgrp": "group removed, deleted",
        "x-del": "deleted, group removed",
        "x-del2": "deleted",
        "x-topic": "topic gone, deleted, group removed",
    },
    "4.2.0-expiry-before": {"e-deleted": "group removed"},
    "4.2.0-expiry-mid": {"e-tomb": "deleted"},
    "4.2.0-expiry-after": {
        "e-tomb": "deleted",
        "e-retdef": "expired, group removed",
        "e-empty": "expired, group removed",
        "e-pending": "expired, deleted",
    },
    "4.4.0-groups": {"again": "topic gone", "simple": "topic gone", "deleted": "group removed"},
    "4.2.0-inject": _INJECTED,
    "4.2.0-inject-malformed": _INJECTED,
    "4.2.0-connect-altered": _SINK,
    "4.2.0-connect-eos-altered": _SINK,
    "4.2.0-connect-workerdown": _SINK,
    "0.10.2.2-old": {"o-gone": _OLD["o-gone"]},
    **dict.fromkeys((name for name in CAPTURE_NAMES if name.startswith("2.4.1-old")), _OLD),
    **dict.fromkeys((name for name in CAPTURE_NAMES if name.startswith("4.2.0-old")), _OLD_BY_4_2),
}


def causes(store: str, retention: Retention | None = None) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in read_views(store, ["deleted_offsets"], retention=retention)["deleted_offsets"].to_pylist():
        found.setdefault(row["group_id"], set()).add(row["cause"])
    return found


def retention_of(capture: str) -> Retention:
    """The settings of the recorded broker, as `follow` would have noted them."""
    recorded = json.loads((CAPTURES / capture / "oracle.json").read_text(encoding="utf-8"))
    config = recorded["broker"]["config"]
    minutes, interval_ms = config.get("offsets.retention.minutes"), config.get("offsets.retention.check.interval.ms")
    return Retention((minutes or 10_080) * MINUTE_MS, interval_ms or 600_000, is_known=True)


def answer_of(true_causes: str, *, is_retention_known: bool = True) -> str:
    """The answer of `why`: a run of expiry shows at its time, other causes only if no other writes the same."""
    true, *others = true_causes.split(", ")
    if not others:
        return true
    return "expired (likely)" if true == "expired" and is_retention_known else "unknown"


@pytest.mark.parametrize("is_retention_known", [True, False])
@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_the_true_cause_of_each_deletion_in_a_capture(tmp_path: Path, name: str, *, is_retention_known: bool) -> None:
    retention = retention_of(name) if is_retention_known else None
    assert causes(capture_store(tmp_path / "store", name), retention) == {
        group: {answer_of(true, is_retention_known=is_retention_known)}
        for group, true in TRUE_CAUSES.get(name, {}).items()
    }


def test_the_documentation_counts_the_true_causes_of_all_captures() -> None:
    answers = Counter(answer_of(each) for groups in TRUE_CAUSES.values() for each in groups.values())
    unknown, likely = answers["unknown"], answers["expired (likely)"]
    text = " ".join(HISTORY_PAGE.read_text(encoding="utf-8").split())
    assert (
        f"In the {len(CAPTURE_NAMES)} captures {answers.total()} groups lost offsets: `why` proves the true cause of "
        f"{answers.total() - unknown - likely}, names it as likely for {likely}, and answers `unknown` for {unknown}"
    ) in text


def test_a_cause_without_others_has_the_facts_that_rule_them_out(tmp_path: Path) -> None:
    store = LogHistory(capture_store(tmp_path / "store", "4.2.0-kip848"))
    reasons = {
        group: why(store, Retention(), group, *place).text.partition("deleted at ")[2][25:]
        for group, place in (("k-deloff", ("t1", 0)), ("k-topicgone", ("gone", 0)), ("k-deleted", ("t1", 0)))
    }
    assert reasons == {
        "k-deloff": "by a request that deletes offsets, because the group was empty, even a retention of 1 min did not "
        "end before 2026-11-20T19:08:29.028Z, the group kept other offsets, and another group kept an offset of t1",
        "k-topicgone": "with its topic, because no group in the log partition kept an offset of gone, the group "
        "subscribes to gone, and the group had members",
        "k-deleted": "with its group, because the group was empty and lost all its offsets, even a retention of 1 min "
        "did not end before 2026-11-20T19:08:25.249Z, the group was removed, and another group kept an offset of t1",
    }


def test_an_expiry_has_its_evidence(tmp_path: Path) -> None:
    read_at = "2026-11-20T19:11:00.000Z"
    noted = replace(retention_of("4.2.0-expiry-after"), read_at_ms=parse_time_ms(read_at))
    answer = why(LogHistory(capture_store(tmp_path / "store", "4.2.0-expiry-after")), noted, "e-empty", "t1", 0)
    assert answer.candidates == ["expired", "group removed"]
    assert answer.reason == (
        f"the group was empty since 2026-11-20T19:11:54.650Z, the retention of 1 min (read from the broker at "
        f"{read_at}) ended at 2026-11-20T19:12:54.650Z, the next expiry run deletes just these offsets, and "
        "tombstones of 2 groups were written at once"
    )
    expected = f"deleted at 2026-11-20T19:12:55.909Z by retention (likely), because {answer.reason}"
    assert answer.text.endswith(expected)


def test_every_candidate_of_an_unknown_cause_has_its_evidence(tmp_path: Path) -> None:
    store = capture_store(tmp_path / "store", "4.2.0-expiry-after")
    assert why(LogHistory(store), Retention(), "e-pending", "t1", 0).reason == (
        "expired: the group has no protocol, and the last commit was at 2026-11-20T19:11:57.189Z, 1 min before the "
        "deletion (--retention-minutes may rule this out), or deleted by an operator (OffsetDelete): the "
        "group was empty"
    )


def written(tmp_path: Path, log: LogPartition, at_ms: list[int], semantics: CoordinatorSemantics = MODERN) -> str:
    times = {(0, row.record_offset): time for row, time in zip(log.rows, at_ms, strict=True)}
    return random_store(tmp_path / "store", {0: log.rows}, dict(times), 1, semantics=semantics)


def committed(log: LogPartition, group: str, topic: str, partition: int, at_ms: int) -> None:
    log.commit((group, topic, partition), 120, commit_timestamp=at_ms)


def test_a_removed_group_was_probably_not_due_by_a_retention_that_was_read_later(tmp_path: Path) -> None:
    log, end_ms = LogPartition(), START_MS + 30 * MINUTE_MS
    committed(log, "g", "t", 0, START_MS)
    committed(log, "other", "t", 0, end_ms)
    log.delete(("g", "t", 0))
    log.group_tombstone(2, "g")
    store = written(tmp_path, log, [START_MS, end_ms, end_ms, end_ms])
    read_ms = end_ms + 1
    answer = why(LogHistory(store), Retention(60 * MINUTE_MS, is_known=True, read_at_ms=read_ms), "g", "t", 0)
    assert (answer.cause, answer.candidates) == ("group removed (likely)", ["expired", "group removed"])
    assert answer.reason == (
        "the group was empty and lost all its offsets, and the retention of 60 min (read from the broker at "
        f"{shown_time(read_ms)}) did not end before {shown_time(START_MS + 60 * MINUTE_MS)}"
    )
    noted = Retention(60 * MINUTE_MS, is_known=True, read_at_ms=end_ms)
    assert why(LogHistory(store), noted, "g", "t", 0).candidates == ["group removed"]


@pytest.mark.parametrize(
    ("semantics", "cause", "candidates"),
    [(CLASSIC, "expired (likely)", ["expired", "deleted"]), (MODERN, "deleted", ["deleted"])],
)
def test_a_pending_commit_does_not_keep_an_offset_of_a_classic_coordinator(
    tmp_path: Path, semantics: CoordinatorSemantics, cause: str, candidates: list[str]
) -> None:
    """R20: a broker of 3.9 expired an offset beside an open transaction, one of 4.2 did not."""
    log, end_ms = LogPartition(), START_MS + 60 * MINUTE_MS
    committed(log, "g", "t", 0, START_MS)
    committed(log, "g", "young", 0, end_ms)
    committed(log, "other", "t", 0, end_ms)
    log.commit(("g", "t", 0), 130, 7, commit_timestamp=end_ms)
    log.delete(("g", "t", 0))
    store = written(tmp_path, log, [START_MS, end_ms, end_ms, end_ms, end_ms], semantics)
    answer = why(LogHistory(store), Retention(60 * MINUTE_MS, is_known=True), "g", "t", 0)
    assert (answer.cause, answer.candidates) == (cause, candidates)


def test_an_offset_that_names_its_own_time_may_expire_by_it(tmp_path: Path) -> None:
    log, due_ms = LogPartition(), START_MS + 20_000
    log.commit(("g", "t", 0), 7, version=1, commit_timestamp=START_MS, expire_timestamp=due_ms)
    log.delete(("g", "t", 0))
    log.group_tombstone(2, "g")
    store = written(tmp_path, log, [START_MS, due_ms + 1000, due_ms + 1000])
    answer = why(LogHistory(store), Retention(), "g", "t", 0)
    assert (answer.cause, answer.candidates) == ("expired (likely)", ["expired", "group removed"])
    assert answer.reason is not None
    assert answer.reason.startswith("its commit named ")


#: What one expiry run writes at once: it removes the empty group g, and takes only one offset of the group kept.
def of_one_run(tmp_path: Path, *, removes_the_other: bool = False, after_minutes: int = 60) -> dict[str, set[str]]:
    log, end_ms = LogPartition(), START_MS + after_minutes * MINUTE_MS
    committed(log, "g", "t", 0, START_MS)
    committed(log, "kept", "t", 0, START_MS)
    if not removes_the_other:
        committed(log, "kept", "young", 0, end_ms)
    times = [START_MS] * len(log.rows)
    log.delete(("g", "t", 0))
    log.group_tombstone(2, "g")
    log.delete(("kept", "t", 0))
    if removes_the_other:
        log.group_tombstone(2, "kept")
    times += [end_ms] * (len(log.rows) - len(times))
    return causes(written(tmp_path, log, times), Retention(60 * MINUTE_MS, is_known=True))


def test_only_retention_removes_one_group_and_takes_an_offset_of_another_at_once(tmp_path: Path) -> None:
    assert of_one_run(tmp_path) == {"g": {"expired"}, "kept": {"expired"}}


def test_a_request_may_remove_several_groups_at_once(tmp_path: Path) -> None:
    found = of_one_run(tmp_path, removes_the_other=True)
    assert found == {"g": {"expired (likely)"}, "kept": {"expired (likely)"}}


def test_the_first_run_after_a_pause_of_the_broker_finds_several_groups(tmp_path: Path) -> None:
    found = of_one_run(tmp_path, removes_the_other=True, after_minutes=300)
    assert found == {"g": {"expired (likely)"}, "kept": {"expired (likely)"}}


def test_a_deleted_topic_and_retention_take_offsets_of_several_groups_at_once(tmp_path: Path) -> None:
    log, end_ms = LogPartition(), START_MS + 60 * MINUTE_MS
    for group in ("g", "other"):
        committed(log, group, "t", 0, START_MS)
        committed(log, group, "young", 0, end_ms)
    for group in ("g", "other"):
        log.delete((group, "t", 0))
    store = written(tmp_path, log, [START_MS, end_ms, START_MS, end_ms, end_ms, end_ms])
    likely = {"expired (likely)"}
    assert causes(store, Retention(60 * MINUTE_MS, is_known=True)) == {"g": likely, "other": likely}
    answer = why(LogHistory(store), Retention(60 * MINUTE_MS, is_known=True), "g", "t", 0)
    assert answer.candidates == ["expired", "topic gone"]


def tombstones_of_two_groups() -> tuple[LogPartition, list[int]]:
    """A log that deletes the only offsets of a topic, of two groups, at one time; and the times of its records."""
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    committed(log, "other", "t", 3, START_MS)
    log.delete(("g", "t", 0))
    log.delete(("other", "t", 3))
    times = [START_MS, START_MS, START_MS + 1, START_MS + 1]
    return log, times


def test_a_classic_coordinator_writes_group_by_group_so_requests_may_follow_each_other_at_once(tmp_path: Path) -> None:
    store = written(tmp_path, *tombstones_of_two_groups(), CLASSIC)
    assert why(LogHistory(store), Retention(), "g", "t", 0).candidates == ["deleted", "group removed", "topic gone"]


def test_a_topic_that_another_group_still_reads_was_not_deleted(tmp_path: Path) -> None:
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    committed(log, "other", "t", 3, START_MS)
    log.delete(("g", "t", 0))
    assert causes(written(tmp_path, log, [START_MS, START_MS, START_MS + 1])) == {"g": {"deleted"}}


def test_tombstones_of_two_groups_in_one_write_are_no_request(tmp_path: Path) -> None:
    found = causes(written(tmp_path, *tombstones_of_two_groups()))
    assert found == {"g": {"topic gone"}, "other": {"topic gone"}}


@pytest.mark.parametrize(("is_removed", "cause"), [(False, "topic gone"), (True, "unknown")])
def test_no_request_deletes_offsets_of_a_share_group(tmp_path: Path, is_removed: bool, cause: str) -> None:  # R14
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    log.group(11, "g", epoch=1)
    log.delete(("g", "t", 0))
    if is_removed:
        log.group_tombstone(11, "g")
    times = [START_MS, START_MS, *[START_MS + 1] * (len(log.rows) - 2)]
    assert causes(written(tmp_path, log, times)) == {"g": {cause}}


@pytest.mark.parametrize("stored", [0, -2])
def test_a_streams_group_whose_topology_a_plugin_holds_outlives_its_offsets(tmp_path: Path, stored: int) -> None:
    """R21: a broker of 4.4 wrote these tombstones, and that of the group with a later run."""
    log, end_ms = LogPartition(), START_MS + 60 * MINUTE_MS
    log.group(17, "g", epoch=4, stored_description_topology_epoch=stored)
    committed(log, "g", "t", 0, START_MS)
    committed(log, "other", "t", 0, end_ms)
    log.delete(("g", "t", 0))
    store = written(tmp_path, log, [START_MS, START_MS, end_ms, end_ms])
    answer = why(LogHistory(store), Retention(60 * MINUTE_MS, is_known=True), "g", "t", 0)
    assert answer.cause == "expired (likely)"


def test_a_group_that_changes_its_type_keeps_its_offsets(tmp_path: Path) -> None:
    """KIP-848: the broker removes the classic group and writes the new one at once."""
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    log.group_tombstone(2, "g")
    log.group(3, "g", epoch=1)
    store = written(tmp_path, log, [START_MS, START_MS + 1, START_MS + 1])
    assert causes(store) == {}
    assert why(LogHistory(store), Retention(), "g", "t", 0).status == "committed"


def test_an_offset_that_was_committed_again_is_there(tmp_path: Path) -> None:
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    log.delete(("g", "t", 0))
    committed(log, "g", "t", 0, START_MS + 5)
    answer = why(LogHistory(written(tmp_path, log, [START_MS, START_MS + 1, START_MS + 5])), Retention(), "g", "t", 0)
    assert (answer.status, answer.committed_offset, len(answer.deletions)) == ("committed", 120, 1)


def test_an_offset_that_came_back_with_its_group_is_there(tmp_path: Path) -> None:  # R14
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    log.group_tombstone(2, "g")
    times = [START_MS, START_MS + 1, START_MS + 5]
    gone = why(LogHistory(written(tmp_path / "gone", log, times[:2])), Retention(), "g", "t", 0)
    assert (gone.status, gone.cause) == ("deleted", "group removed")
    committed(log, "g", "u", 0, START_MS + 5)
    answer = why(LogHistory(written(tmp_path / "back", log, times)), Retention(), "g", "t", 0)
    assert (answer.status, answer.committed_offset, len(answer.deletions)) == ("committed", 120, 1)


def test_a_commit_that_waits_for_its_marker_is_named(tmp_path: Path) -> None:  # R11
    log = LogPartition()
    log.commit(("g", "t", 0), 1, commit_timestamp=START_MS)
    log.commit(("g", "t", 0), 2, producer_id=7, commit_timestamp=START_MS)
    log.commit(("g", "t", 1), 2, producer_id=7, commit_timestamp=START_MS)
    store = LogHistory(written(tmp_path, log, [START_MS] * 3))
    answers = [why(store, Retention(), "g", "t", partition) for partition in (0, 1)]
    assert [each.status for each in answers] == ["committed", "never committed"]
    assert all(each.text.endswith("; a commit of an open transaction waits for its marker") for each in answers)


def compacted(tmp_path: Path, kind: str = "mirrored", source: str = "a test") -> LogHistory:
    """A log of which a compaction took the commit of t-0 and kept its tombstone; t-1 has a commit."""
    log = LogPartition(start=7)
    log.delete(("g", "t", 0))
    committed(log, "g", "t", 1, START_MS)
    times = {(0, 7): START_MS + 5, (0, 8): START_MS + 6}
    location = random_store(tmp_path / "store", {0: log.rows}, times, 1, kind=kind, source=source)
    return LogHistory(location)


def test_a_tombstone_tells_a_deletion_although_its_commit_was_compacted_away(tmp_path: Path) -> None:
    history = compacted(tmp_path)
    answer = why(history, Retention(), "g", "t", 0)
    deleted_at = shown_time(START_MS + 5)
    assert (answer.status, answer.deleted_at, answer.cause) == ("deleted", deleted_at, "unknown")
    assert (answer.committed_offset, answer.committed_at, answer.record_offset) == (None, None, 7)
    assert answer.candidates == ["expired", "deleted", "group removed", "topic gone"]
    assert answer.text.startswith(f"deleted at {deleted_at} for an unknown cause: expired, deleted by an operator ")
    assert answer.text.endswith("; the commit itself is no longer in the log")
    (event,), _ = group_timeline(history, Retention(), "g", partition=0)
    assert (event.event, event.offset, event.by) == ("deleted", None, "unknown")
    assert event.detail.endswith("; the commit itself is no longer in the log")
    assert why(history, Retention(), "g", "t", 1).status == "committed"


def test_a_noted_request_tells_the_cause_without_the_commit(tmp_path: Path) -> None:
    answer = why(compacted(tmp_path, OWNED, "coordinator: OffsetDelete"), Retention(), "g", "t", 0)
    assert (answer.cause, answer.candidates) == ("deleted", ["deleted"])
    because = "the coordinator noted it with the tombstone"
    assert f"by a request that deletes offsets, because {because}" in answer.text


def test_a_later_tombstone_without_its_commit_does_not_take_an_older_commit(tmp_path: Path) -> None:
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    log.delete(("g", "t", 0))
    log.skip(1)  # the second commit is gone
    log.delete(("g", "t", 0))
    answer = why(LogHistory(written(tmp_path, log, [START_MS, START_MS + 1, START_MS + 5])), Retention(), "g", "t", 0)
    assert (answer.deleted_at, answer.committed_offset) == (shown_time(START_MS + 5), None)
    assert [each["committed_offset"] for each in answer.deletions] == [120, None]


def test_a_second_tombstone_lacks_no_commit_if_the_records_before_it_are_there(tmp_path: Path) -> None:
    log = LogPartition(start=7)
    committed(log, "g", "t", 0, START_MS)
    log.delete(("g", "t", 0))
    log.delete(("g", "t", 0))
    times = {(0, 7 + at): START_MS + at for at in range(3)}
    store = random_store(tmp_path / "store", {0: log.rows}, times, 1)
    assert [each["record_offset"] for each in why(LogHistory(store), Retention(), "g", "t", 0).deletions] == [8]


def test_an_offset_that_the_log_never_had(tmp_path: Path) -> None:
    log = LogPartition()
    committed(log, "g", "t", 0, START_MS)
    answer = why(LogHistory(written(tmp_path, log, [START_MS])), Retention(), "g", "t", 1)
    assert (answer.status, answer.text) == ("never committed", "the log has no visible commit of t-1 by group 'g'")
