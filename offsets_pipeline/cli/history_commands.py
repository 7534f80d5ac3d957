"""`offsets as-of`, `history` and `why`. None imports Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import log_answer_time_of, time_fields
from offsets_pipeline.cli.group_commands import StoreAnswer, show_groups
from offsets_pipeline.cli.opened import open_logs, retention_of
from offsets_pipeline.cli.output import with_cluster, write_documents, write_rows
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.questions.history.group_timeline import UNKNOWN_GROUP, TimelineEvent, WhyAnswer, group_timeline
from offsets_pipeline.questions.history.group_timeline import why as why_of
from offsets_pipeline.questions.history.history_schemas import LOG_RECORDS
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.query.as_of import AsOfAnswer, offsets_as_of
from offsets_pipeline.questions.query.group_listing import is_pattern, matching, without_match
from offsets_pipeline.semantics.retention import Retention

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_questions import AsOf, History, Why
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.history.log_history import LogHistory

_LISTS = {"candidates", "deletions"}  # fields of WhyAnswer that CSV lacks
_EVENT_COLUMNS = [name for name in TimelineEvent.__dataclass_fields__ if name != "time_ms"]

_FIRST_COLUMNS = ("cluster", "time", "event", "topic", "partition", "offset", "delta", "detail")


def as_of(options: AsOf, settings: Settings) -> None:
    """Show groups of the past.

    Raises NoSuchGroup for named groups that did not exist in any store, and for patterns that match none, after the
    others are shown.
    """
    time_ms, positions = options.time_ms, options.positions
    shown: list[StoreAnswer] = []
    logs = open_logs(options.stores, settings)
    named = None if not options.groups or any(map(is_pattern, options.groups)) else options.groups
    for store, log in logs.items():
        answer = offsets_as_of(log, time_ms=time_ms, positions=positions, group_ids=named)
        if options.groups:
            chosen = {name: answer.groups[name] for name in matching(answer.groups, options.groups)}
            answer = replace(answer, groups=chosen)
        time = log_answer_time_of(log, store, settings, time_ms, positions)
        warn_of_gaps(answer, store)
        for each in answer.partitions:
            if each.ends_early:
                warn(f"log partition {each.log_partition} of {store} ends at {each.end}, before position {each.asked}")
        shown.append(StoreAnswer(log.cluster, answer.groups, time, more=_replayed(answer)))
    missing = without_match(options.groups, {name for of in shown for name in of.groups})
    if options.format_ == "json" or any(each.groups for each in shown) or not missing:
        show_groups(shown, options.format_, members=options.members)
    if missing:
        then = "then" if time_ms is None else shown_time(time_ms)
        raise NoSuchGroup.of(missing, f"{_named(logs)} as of {then}")


def warn_of_gaps(answer: AsOfAnswer, store: str) -> None:
    """Warn if a record that decides an answer about the past may have been cleaned or compacted away."""
    if any(each.is_cleaned for each in answer.partitions):
        since = shown_time(answer.complete_since_ms)
        complete = "no time has complete answers" if since is None else f"answers are complete since {since}"
        warn(f"the answers of {store} may lack offsets: older records were cleaned or compacted away; {complete}")


def history(options: History, settings: Settings) -> None:
    """Show the events of a group. Raises NoSuchGroup for a group that no log knows."""
    rows: list[list[Any]] = []
    documents = []
    logs = open_logs(options.stores, settings)
    for store, log in logs.items():
        found, complete_since_ms = group_timeline(
            log,
            retention_of(log, settings, options.retention_minutes),
            options.group,
            topic=options.topic,
            partition=options.partition,
            since_ms=options.since_ms,
            until_ms=options.until_ms,
        )
        time = log_answer_time_of(log, store, settings, options.until_ms)
        since = shown_time(complete_since_ms)
        if since is not None and options.format_ != "json":
            warn(f"older records of {store} were cleaned or compacted away: the history is complete since {since}")
        events = [[getattr(each, name) for name in _EVENT_COLUMNS] for each in found]
        rows += [[*event, log.cluster] if len(logs) > 1 else event for event in events]
        documents.append(
            {
                "group": options.group,
                "cluster": log.cluster,
                **time_fields([(log.cluster, time)]),
                "complete_since": since,
                "history": [dict(zip(_EVENT_COLUMNS, event, strict=True)) for event in events],
            }
        )
    if not rows and not any(group_timeline(log, Retention(), options.group)[0] for log in logs.values()):
        raise _no_record(logs, options.group, documents)
    if options.format_ == "json":
        write_documents(documents)
    else:
        write_rows(
            with_cluster(_EVENT_COLUMNS, logs), rows, options.format_, absolute=options.absolute, first=_FIRST_COLUMNS
        )


def why(options: Why, settings: Settings) -> None:
    """Tell why an offset is what it is. Raises NoSuchGroup for a group that no log knows."""
    documents = []
    logs = open_logs(options.stores, settings)
    for store, log in logs.items():
        retention = retention_of(log, settings, options.retention_minutes)
        answer = why_of(log, retention, options.group, options.topic, options.partition)
        time = log_answer_time_of(log, store, settings)
        documents.append({**vars(answer), "cluster": log.cluster, **time_fields([(log.cluster, time)])})
    if all(each["status"] == UNKNOWN_GROUP for each in documents):
        raise _no_record(logs, options.group, documents)
    if options.format_ == "json":
        write_documents(documents)
    elif options.format_ == "csv":
        names = with_cluster((name for name in WhyAnswer.__dataclass_fields__ if name not in _LISTS), logs)
        write_rows(names, [[each[name] for name in names] for each in documents], options.format_)
    else:
        for each in documents:
            in_cluster = f" in {each['cluster']}" if len(logs) > 1 else ""
            text = f"{each['group']} {each['topic']}-{each['partition']}{in_cluster}: {each['text']}"
            sys.stdout.write(f"{printable(text)}\n")


def _no_record(logs: Mapping[str, LogHistory], group_id: str, answers: Iterable[Mapping[str, Any]]) -> NoSuchGroup:
    since = max(filter(None, (each["complete_since"] for each in answers)), default=None)
    known = "" if since is None else f", and is complete since {since}"
    records = [read_views(log, [LOG_RECORDS.name], group_ids=[group_id])[LOG_RECORDS.name] for log in logs.values()]
    what = f"no record of group {group_id!r}"
    if any(group_id in each["group_id"].to_pylist() for each in records):  # control records have no group
        what = f"no commit and no state of group {group_id!r}, only tombstones or records that do not decode"
    return NoSuchGroup(f"the log of {_named(logs)} has {what}{known} (GROUP_ID_NOT_FOUND)")


def _named(logs: Mapping[str, LogHistory]) -> str:
    return ", ".join(log.location for log in logs.values())


def _replayed(answer: AsOfAnswer) -> dict[str, Any]:
    """What was replayed, and whether that is complete, for JSON."""
    return {
        "complete": answer.is_complete,
        "complete_since": shown_time(answer.complete_since_ms),
        "log_incarnation": answer.log_incarnation,
        "log_partitions": [
            {
                "log_partition": each.log_partition,
                "end": each.end,
                "complete_from": each.complete_from,
                "complete": each.is_complete,
            }
            for each in answer.partitions
        ],
    }
