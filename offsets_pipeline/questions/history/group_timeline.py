"""The history of one group as a timeline, and why an offset is what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.questions.history.deletion_causes import (
    DELETED,
    EXPIRED,
    GROUP_REMOVED,
    LIKELY,
    TOPIC_GONE,
    UNKNOWN,
)
from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, GROUP_HISTORY, OFFSET_HISTORY
from offsets_pipeline.questions.history.history_tables import histories
from offsets_pipeline.questions.history.observed_partition import UNKNOWN as UNKNOWN_MEMBER
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.questions.history.log_history import Completeness, LogHistory
    from offsets_pipeline.semantics.partition_state import PartitionState
    from offsets_pipeline.semantics.retention import Retention

_BY = {
    EXPIRED: "by retention",
    DELETED: "by a request that deletes offsets",
    GROUP_REMOVED: "with its group",
    TOPIC_GONE: "with its topic",
    UNKNOWN: "for an unknown cause",
}
_LOST = "the commit itself is no longer in the log"
_Row = dict[str, Any]


@dataclass(frozen=True)
class TimelineEvent:
    """One event. ``time`` is in ISO 8601; None if the record has no timestamp.

    ``event`` is commit, rewind, deleted, or group and what happened to it. ``by`` is the member that could have made a
    commit, or unknown; of a deletion its cause. Fields that an event does not have are None.
    """

    time: str | None
    event: str
    topic: str | None
    partition: int | None
    offset: int | None
    delta: int | None
    by: str | None
    detail: str
    log_partition: int
    log_incarnation: int
    record_offset: int
    time_ms: int | None = field(default=None, repr=False)


#: The status of a group of which the log shows no commit, deletion or change.
UNKNOWN_GROUP = "unknown group"


@dataclass(frozen=True)
class WhyAnswer:
    """Why an offset is what it is.

    ``status`` is committed, deleted, never committed, or unknown group: the log shows no commit, deletion or change of
    it. ``text`` says it in a sentence. ``candidates`` are all causes that could have written the records of the
    deletion. ``deletions`` are all deletions of the offset. Times are in ISO 8601.
    """

    group: str
    topic: str
    partition: int
    status: str
    text: str
    committed_offset: int | None = None
    committed_at: str | None = None
    committed_by: str | None = None
    deleted_at: str | None = None
    cause: str | None = None
    reason: str | None = None
    candidates: list[str] = field(default_factory=list)
    log_partition: int | None = None
    record_offset: int | None = None
    complete_since: str | None = None
    deletions: list[dict[str, Any]] = field(default_factory=list)


def group_timeline(
    history: LogHistory,
    retention: Retention,
    group_id: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> tuple[list[TimelineEvent], int | None]:
    """Return the events of a group in the order of the log, and since when they are complete (ms; None: always).

    Args:
        history: the log.
        retention: the coordinator's settings of retention, as far as they are known.
        group_id: the group.
        topic: only offsets of this topic, and no changes of the group.
        partition: only offsets of partitions with this number.
        since_ms: leave out earlier events, in ms since 1970.
        until_ms: leave out later events.

    Raises DamagedTable, UnsupportedTable.
    """
    found, complete_since_ms, _ = _read(history, retention, group_id, repeats=False)
    events = [
        *map(_commit_event, found[OFFSET_HISTORY.name]),
        *map(_deletion_event, found[DELETED_OFFSETS.name]),
        *map(_group_event, found[GROUP_HISTORY.name]),
    ]
    events = [
        each
        for each in events
        if (topic is None or each.topic == topic)
        and (partition is None or each.partition == partition)
        and (since_ms is None or each.time_ms is None or each.time_ms >= since_ms)
        and (until_ms is None or each.time_ms is None or each.time_ms <= until_ms)
    ]
    events.sort(key=lambda each: (each.log_incarnation, each.log_partition, each.record_offset))
    return events, complete_since_ms


def why(history: LogHistory, retention: Retention, group_id: str, topic: str, partition: int) -> WhyAnswer:
    """Return why the offset of a group in a topic partition is what it is. Raises as `group_timeline`."""
    found, complete_since_ms, states = _read(history, retention, group_id, repeats=True)
    where = TopicPartition(topic, partition)
    waits = any(each.is_pending(group_id, where) for each in states)
    pending = "; a commit of an open transaction waits for its marker" if waits else ""

    def of_offset(view: str) -> list[_Row]:
        return [row for row in found[view] if (row["topic"], row["partition"]) == (topic, partition)]

    commits = [row for row in of_offset(OFFSET_HISTORY.name) if not row["superseded"]]
    deletions = _once(of_offset(DELETED_OFFSETS.name))
    deletion = max(deletions, key=lambda row: (row["log_incarnation"], row["record_offset"]), default=None)
    since = shown_time(complete_since_ms)

    def answer(status: str, text: str, **fields: Any) -> WhyAnswer:  # noqa: ANN401 - of each field
        all_deletions = [_deletion_fields(row) for row in deletions]
        return WhyAnswer(
            group_id, topic, partition, status, text + pending, complete_since=since, deletions=all_deletions, **fields
        )

    last = max(commits, key=lambda row: (row["log_incarnation"], row["visible_offset"]), default=None)
    if deletion is not None and _is_lost(deletion) and (last is None or _is_after(deletion, last)):
        at = {name: deletion[name] for name in ("log_partition", "record_offset")}
        return answer("deleted", f"{_deleted(deletion)}; {_LOST}", **at, **_cause_fields(deletion))
    if not any(found.values()) and not waits:
        return answer(UNKNOWN_GROUP, f"the log shows nothing of group {group_id!r}")
    if last is None:
        known = "" if since is None else f"; older records may be gone, the log is complete since {since}"
        return answer(
            "never committed", f"the log has no visible commit of {topic}-{partition} by group {group_id!r}{known}"
        )
    committed_at = shown_time(last["commit_timestamp"])
    committed = {name: last[name] for name in ("committed_offset", "committed_by", "log_partition")}
    committed["committed_at"] = committed_at
    by = "" if last["committed_by"] == UNKNOWN_MEMBER else f", probably by member {last['committed_by']}"
    text = f"committed {last['committed_offset']} at {committed_at}{by}"
    # R14: the group came back, and its offset with it
    is_back = any(each.group_with_offsets(group_id) and where in each.offsets_of(group_id) for each in states)
    if deletion is not None and _is_after(deletion, last) and not is_back:
        fields = _cause_fields(deletion) | committed
        return answer("deleted", f"{text}, {_deleted(deletion)}", record_offset=deletion["record_offset"], **fields)
    newest = history.current_log.number
    if last["log_incarnation"] < newest:
        reason = f"the log was read again (incarnation {newest}) and has no commit of it; the deletion was not read"
        text += f", deleted {_BY[UNKNOWN]}: {reason}"
        return answer("deleted", text, cause=UNKNOWN, reason=reason, **committed)
    if last["committed_offset"] < 0:
        text += "; a negative offset answers as no offset"
    elif not is_back:  # R14
        text += "; it is not answered: the group is a share group, or does not exist"
    return answer("committed", text, record_offset=last["record_offset"], **committed)


def _read(
    history: LogHistory, retention: Retention, group_id: str, *, repeats: bool
) -> tuple[dict[str, list[_Row]], int | None, list[PartitionState]]:
    completeness: dict[tuple[int, int], Completeness] = {}
    states: list[PartitionState] = []
    found: dict[str, list[_Row]] = {OFFSET_HISTORY.name: [], GROUP_HISTORY.name: [], DELETED_OFFSETS.name: []}
    for tables in histories(history, retention, [group_id], repeats=repeats, completeness=completeness, states=states):
        for name, rows in tables.items():
            found[name] += in_milliseconds(rows).to_pylist()
    since = [each.complete_since_ms for each in completeness.values()]
    complete_since_ms = max((each for each in since if each is not None), default=None)
    return found, complete_since_ms, states


def _commit_event(row: _Row) -> TimelineEvent:
    details = [
        *(["never answered: a newer commit was visible"] if row["superseded"] else []),
        *([f"in a transaction of producer {row['producer_id']}"] if row["producer_id"] is not None else []),
        *([f"metadata {row['metadata']!r}"] if row["metadata"] else []),
        *_begins(row),
    ]
    at_ms = row["visible_timestamp"] if row["visible_timestamp"] is not None else row["commit_timestamp"]
    return _event(row, at_ms, "rewind" if row["is_rewind"] else "commit", row["committed_by"], details)


def _deletion_event(row: _Row) -> TimelineEvent:
    details = [row["reason"], *([_LOST] if _is_lost(row) else [])]
    return _event(row, row["deleted_timestamp"], "deleted", row["cause"], details)


def _group_event(row: _Row) -> TimelineEvent:
    of_members = [
        f"{what} {', '.join(row[what])}" for what in ("joined", "left") if row[what] and row["event"] != "created"
    ]
    epochs = [
        f"{name} {row[name]}" for name in ("generation", "group_epoch", "assignment_epoch") if row[name] is not None
    ]
    state = [f"{row['group_type']} {row['state']}" if row["group_type"] else row["state"]]
    details = [*state, counted(row["member_count"], "member"), *epochs, *of_members, *_begins(row)]
    return _event(row, row["record_timestamp"], f"group {row['event']}", None, details)


def _event(row: _Row, at_ms: int | None, event: str, by: str | None, details: list[str]) -> TimelineEvent:
    of_offset = row.get("topic"), row.get("partition"), row.get("committed_offset"), row.get("delta")
    position = row["log_partition"], row["log_incarnation"], row["record_offset"]
    return TimelineEvent(shown_time(at_ms), event, *of_offset, by, "; ".join(details), *position, at_ms)


def _begins(row: _Row) -> list[str]:
    if not row["begins_incarnation"]:
        return []
    return [f"log incarnation {row['log_incarnation']} begins"]


def _once(deletions: list[_Row]) -> list[_Row]:
    """The deletions of all log incarnations, each once: with its commit if one has that, then of the latest one."""
    chosen = {
        (row["record_offset"], row["deleted_timestamp"]): row
        for row in sorted(deletions, key=lambda row: (not _is_lost(row), row["log_incarnation"]))
    }
    ids = {id(row) for row in chosen.values()}
    return [row for row in deletions if id(row) in ids]


def _is_lost(deletion: _Row) -> bool:
    """Whether the commit of a deleted offset is no longer in the log."""
    return deletion["committed_offset"] is None


def _is_after(deletion: _Row, commit: _Row) -> bool:
    deleted = deletion["log_incarnation"], deletion["record_offset"]
    return deleted > (commit["log_incarnation"], commit["visible_offset"])


def _deleted(deletion: _Row) -> str:
    cause = deletion["cause"]
    name = cause.removesuffix(LIKELY)
    by = f"{_BY[name]}{cause.removeprefix(name)}"
    joined = ": " if cause == UNKNOWN else ", because "
    at = shown_time(deletion["deleted_timestamp"]) or "an unknown time"
    return f"deleted at {at} {by}{joined}{deletion['reason']}"


def _cause_fields(row: _Row) -> dict[str, Any]:
    return {
        "deleted_at": shown_time(row["deleted_timestamp"]),
        **{name: row[name] for name in ("cause", "reason", "candidates")},
    }


def _deletion_fields(row: _Row) -> dict[str, Any]:
    return {
        **_cause_fields(row),
        "committed_offset": row["committed_offset"],
        "committed_at": shown_time(row["commit_timestamp"]),
        "record_offset": row["record_offset"],
    }
