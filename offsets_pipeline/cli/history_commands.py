"""`offsets as-of`, `history` and `why`. None imports Spark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.describe_command import show_groups
from offsets_pipeline.cli.opened import open_folder
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.clock import parse_time_ms, shown_time
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.history.deletion_causes import Retention
from offsets_pipeline.history.group_timeline import TimelineEvent, group_timeline
from offsets_pipeline.history.group_timeline import why as why_of
from offsets_pipeline.history.log_history import LogHistory
from offsets_pipeline.observability.warnings import warn
from offsets_pipeline.query.as_of import offsets_as_of
from offsets_pipeline.semantics.retention import MS_PER_MINUTE

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.as_of import AsOfAnswer

_EVENT_COLUMNS = [name for name in TimelineEvent.__dataclass_fields__ if name != "time_ms"]


@dataclass(frozen=True)
class AsOfOptions:
    """The options of `as-of`. ``positions`` has a record offset for each log partition."""

    time_: str | None
    positions: dict[int, int] | None
    groups: tuple[str, ...]
    members: bool
    format_: str


@dataclass(frozen=True)
class HistoryOptions:
    """The options of `history`."""

    group: str
    topic: str | None
    partition: int | None
    since: str | None
    until: str | None
    retention_minutes: int | None
    format_: str


@dataclass(frozen=True)
class WhyOptions:
    """The options of `why`."""

    group: str
    topic: str
    partition: int
    retention_minutes: int | None
    format_: str


def as_of(store: str, settings: Settings, options: AsOfOptions) -> int:
    """Show groups of the past; returns the exit status.

    Raises InvalidTime, and NoSuchGroup for named groups that did not exist, after the others are shown.
    """
    time_ms = None if options.time_ is None else parse_time_ms(options.time_)
    location = open_folder(store, settings)
    answer = offsets_as_of(location, time_ms=time_ms, positions=options.positions, group_ids=options.groups or None)
    if not answer.is_complete:
        warn(f"the answers may lack offsets: older records were cleaned or compacted away; {_since(answer)}")
    missing = [group_id for group_id in dict.fromkeys(options.groups) if group_id not in answer.groups]
    if options.format_ == "json":
        write_json({"groups": answer.groups, **_told(answer, time_ms)})
    elif answer.groups or not missing:
        show_groups(answer.groups, options.format_, members=options.members)
    if missing:
        raise NoSuchGroup.of(missing, f"{location} as of then")
    return 0


def history(store: str, settings: Settings, options: HistoryOptions) -> int:
    """Show the events of a group; returns the exit status. Raises InvalidTime, and NoSuchGroup for an unknown group."""
    since_ms, until_ms = (None if text is None else parse_time_ms(text) for text in (options.since, options.until))
    log = LogHistory(open_folder(store, settings))
    found = group_timeline(
        log,
        _retention(log, settings, options.retention_minutes),
        options.group,
        topic=options.topic,
        partition=options.partition,
        since_ms=since_ms,
        until_ms=until_ms,
    )
    if (
        not found.events
        and options.topic is None
        and since_ms is None
        and until_ms is None
        and options.partition is None
    ):
        raise NoSuchGroup(f"the log of {log.location} has no record of group {options.group!r} (GROUP_ID_NOT_FOUND)")
    rows = [[getattr(each, name) for name in _EVENT_COLUMNS] for each in found.events]
    if options.format_ == "json":
        since = None if found.complete_since_ms is None else shown_time(found.complete_since_ms)
        events = [dict(zip(_EVENT_COLUMNS, row, strict=True)) for row in rows]
        write_json({"group": options.group, "complete_since": since, "history": events})
        return 0
    if found.complete_since_ms is not None:
        warn(
            "older records were cleaned or compacted away: the history is complete since "
            f"{shown_time(found.complete_since_ms)}"
        )
    write_rows(_EVENT_COLUMNS, rows, options.format_)
    return 0


def why(store: str, settings: Settings, options: WhyOptions) -> int:
    """Tell why an offset is what it is; returns the exit status."""
    log = LogHistory(open_folder(store, settings))
    retention = _retention(log, settings, options.retention_minutes)
    answer = why_of(log, retention, options.group, options.topic, options.partition)
    if options.format_ == "json":
        write_json(asdict(answer))
    elif options.format_ == "csv":
        row = {name: value for name, value in asdict(answer).items() if name not in {"deletions", "candidates"}}
        write_rows(list(row), [list(row.values())], options.format_)
    else:
        print(f"{answer.group} {answer.topic}-{answer.partition}: {answer.text}")
    return 0


def _retention(log: LogHistory, settings: Settings, minutes: int | None) -> Retention:
    """The settings of retention. Those of a broker are known only if the user gives the option."""
    is_known = minutes is not None or log.is_owned
    retention_ms = (minutes or settings.coordinator.offsets_retention_minutes) * MS_PER_MINUTE
    return Retention(retention_ms, settings.coordinator.offsets_retention_check_interval_ms, is_known)


def _told(answer: AsOfAnswer, time_ms: int | None) -> dict[str, Any]:
    since_ms = answer.complete_since_ms
    return {
        "as_of": None if time_ms is None else shown_time(time_ms),
        "complete": answer.is_complete,
        "complete_since": None if since_ms is None else shown_time(since_ms),
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


def _since(answer: AsOfAnswer) -> str:
    since_ms = answer.complete_since_ms
    return "no time has complete answers" if since_ms is None else f"answers are complete since {shown_time(since_ms)}"
