"""The data time of answers: as fields of JSON, a status line on a terminal, and warnings on stderr."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.output import show_status, with_cluster, write_json, write_rows
from offsets_pipeline.common.clock import MS_OF_HOUR, parse_time_ms
from offsets_pipeline.common.input_text import counted, first_ones
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.ingest.topic_positions.sample_table import last_sample_times, table_of
from offsets_pipeline.questions.query.answer_time import (
    HELD_BACK,
    MIRROR_BEHIND,
    NOT_FOLDED,
    AnswerTime,
    answer_time,
    log_answer_at,
    log_answer_time,
)
from offsets_pipeline.store.delta.properties import MIRRORED, SNAPSHOT
from offsets_pipeline.store.delta.schemas import LOG

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.history.log_history import LogHistory
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

#: Name of the field that says what a row of JSON lacks.
STALE = "stale"
_SHOWN = 5  # log partitions of a warning
_SNAPSHOT_INTERVAL_MS = 60_000  # the least one that counts, and the default of `offsets snapshot`
_UNKNOWN_INTERVAL_MS = 24 * MS_OF_HOUR  # of a first snapshot: the longest that is usual
_MISSED = 3  # intervals without a snapshot
#: What reads a cluster into a store of this kind.
_READER = {MIRRORED: "`offsets follow`, or the ingest again", SNAPSHOT: "`offsets snapshot`"}


def answer_time_of(reader: StateReader, store: str, settings: Settings) -> AnswerTime:
    """Return the time that the reader's answers are as of; warn of what they lack."""
    found = answer_time(reader, mirror_interval_ms(settings))
    return _with_all_warnings(reader, store, found)


def not_read(of: StoreSnapshot, store: str, time: AnswerTime, until_ms: int | None = None) -> str | None:
    """Return a warning if nothing was ever read into the store, or if its snapshots have ended; else None.

    ``until_ms``: the past time of the answer.
    """
    if time.as_of is None:
        return None if of.table(LOG.name).files() else f"nothing was read into {store} yet: run {_reader(of)}"
    if of.properties.kind != SNAPSHOT or (until_ms is not None and until_ms <= parse_time_ms(time.as_of)):
        return None
    since_ms = of.opened_ms - parse_time_ms(time.as_of)
    if since_ms <= _MISSED * snapshot_interval_ms(of):
        return None
    return f"the answers of {store} may lack changes since its last snapshot, of {time.as_of}: run {_reader(of)}"


def snapshot_interval_ms(of: StoreSnapshot) -> int:
    """Return the time between the last two snapshots, at least a minute; a day while there is one."""
    times = last_sample_times(table_of(of.location))
    return max(times[0] - times[1], _SNAPSHOT_INTERVAL_MS) if times[1:] else _UNKNOWN_INTERVAL_MS


def _reader(of: StoreSnapshot) -> str:
    return _READER[of.properties.kind]


def log_answer_time_of(
    history: LogHistory,
    store: str,
    settings: Settings,
    until_ms: int | None = None,
    positions: Mapping[int, int] | None = None,
) -> AnswerTime:
    """Return the time that answers from the log are as of, and warn of what they lack.

    They are as of its end, as of an earlier time (``until_ms``), or as of positions, which have no time.
    """
    if positions is not None:
        return _with_warnings(log_answer_at(history, positions), store)
    found = log_answer_time(history, mirror_interval_ms(settings), until_ms)
    return _with_all_warnings(history, store, found, until_ms)


def time_fields(times: Iterable[tuple[str, AnswerTime]]) -> dict[str, Any]:
    """Return `as_of` and `stale` of one JSON document; ``times`` has the cluster of each answer.

    The answers are as of the earliest time. With several clusters each entry of `stale` names its own.
    """
    of_clusters = list(times)
    several = len({cluster for cluster, _ in of_clusters}) > 1
    return {
        "as_of": min((each.as_of for _, each in of_clusters if each.as_of is not None), default=None),
        "stale": [
            {**vars(row), "cluster": cluster} if several else row for cluster, each in of_clusters for row in each.stale
        ],
    }


def write_listing(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    times: Sequence[tuple[str, AnswerTime]],
    format_: str,
    *,
    absolute: bool = False,
    first: Sequence[str] = (),
) -> None:
    """Write rows with columns, or one JSON document with all fields of the rows as the list ``name``, and their time.

    ``times`` has the cluster of each answer, as for `time_fields`. With several clusters there is a column `cluster`.
    ``absolute`` and ``first`` are those of `write_rows`.
    """
    if format_ == "json":
        write_json({name: rows, **time_fields(times)})
        return
    shown = with_cluster(columns, {cluster for cluster, _ in times})
    cells = [[each[column] for column in shown] for each in rows]
    write_rows(shown, cells, format_, absolute=absolute, first=first)


def mirror_interval_ms(settings: Settings) -> int:
    """Return the age of its data time from which on a mirror is behind."""
    return 2 * settings.topic.note_interval_ms


def warnings_of(time: AnswerTime, store: str) -> list[str]:
    """Return what the answers of a store lack, a warning for each reason."""
    found = []
    for reason in (NOT_FOLDED, HELD_BACK, MIRROR_BEHIND):
        stale = [each for each in time.stale if each.reason == reason]
        if not stale:
            continue
        records = sum(each.records or 0 for each in stale)
        numbers = first_ones([str(each.log_partition) for each in stale], _SHOWN)
        partitions, are = ("log partitions", "are") if len(stale) > 1 else ("log partition", "is")
        partitions = f"{partitions} {numbers}"
        since = min((each.since for each in stale if each.since is not None), default=None)
        if reason == NOT_FOLDED:
            found.append(
                f"the answers lack {counted(records, 'record')} of {store} not folded yet; "
                f"run `offsets fold --store {shlex.quote(store)} --available-now`"
            )
        elif reason == HELD_BACK:
            found.append(
                f"the answers lack {counted(records, 'record')} of {store} that an open transaction holds back in "
                f"{partitions} since {since}; `offsets log-info` shows the transaction"
            )
        else:
            lacking = f"lack {counted(records, 'record')}" if records else "may lack newer records"
            found.append(
                f"the answers of {store} {lacking} of its topic: {partitions} {are} complete up to {since}; "
                "run `offsets follow`"
            )
    return found


def _with_all_warnings(of: StoreSnapshot, store: str, found: AnswerTime, until_ms: int | None = None) -> AnswerTime:
    if (text := not_read(of, store, found, until_ms)) is not None:
        warn(text)
    return _with_warnings(found, store)


def _with_warnings(found: AnswerTime, store: str) -> AnswerTime:
    if found.as_of is not None:
        show_status(f"{store} as of {found.as_of}")
    for each in warnings_of(found, store):
        warn(each)
    return found
