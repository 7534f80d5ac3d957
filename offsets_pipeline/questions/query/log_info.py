"""Facts about each log partition: its bounds, its folded position, its counts of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.fold.state.data_time import notes_of
from offsets_pipeline.fold.state.fold_progress import PartitionProgress
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION, TABLE_BY_NAME

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.state_reader import StateReader


_TIMES = ("complete_since", "read_at", "open_since")
_OF_TRANSACTION = ("open_producer_id", "open_transactional_id")
#: What an operator asks first: how far the log and the fold are, and which transaction is open.
FIRST_COLUMNS = ("log_partition", "start", "end", "topic_end", "folded_to", "records", "open_since", "read_at")


@dataclass(frozen=True)
class LogPartitionInfo:
    """One log partition.

    ``start`` and ``end`` are its log start and log end offsets. ``folded_to`` is the first record offset not folded
    yet, None before the first fold. ``records`` counts the records in the log, ``pending`` the commits of open
    transactions. ``quarantined`` is None if records that do not decode may be among those that are not folded yet. A
    cleaning may have removed records before ``cleaned_to``; None: no cleaning did.
    ``coordinator_semantics`` are those of the state: modern or classic.

    ``log_incarnation`` counts how often a mirrored topic was read again from its beginning. The other fields describe a
    followed topic; times are in ISO 8601. Since ``complete_since`` the ingest missed no record that decides an answer.
    ``read_at`` is the last time at which the log held all records. ``topic_end`` is the topic's end at the last look,
    but not below ``end``. Records from ``stable`` on wait for a transaction. It is open since ``open_since``, and has
    the ``open_producer_id`` and ``open_transactional_id``; None: the cluster does not tell them.
    """

    log_partition: int
    start: int
    end: int
    folded_to: int | None
    records: int
    quarantined: int | None
    unknown: int
    pending: int
    cleaned_to: int | None
    coordinator_semantics: str
    log_incarnation: int = LOG_INCARNATION
    complete_since: str | None = None
    read_at: str | None = None
    stable: int | None = None
    topic_end: int | None = None
    open_since: str | None = None
    open_producer_id: int | None = None
    open_transactional_id: str | None = None


def log_info(reader: StateReader) -> list[LogPartitionInfo]:
    """Return all log partitions of the store in order, also the empty ones."""
    log_incarnation = reader.current_log.number
    bounds = notes_of(reader.notes, log_incarnation)

    def by_partition(table: str, figures: str) -> dict[int, dict[str, Any]]:
        source = f"FROM {reader.relations.stored(TABLE_BY_NAME[table])} WHERE log_incarnation = {log_incarnation}"
        rows = reader.relations.select(f"SELECT log_partition, {figures} {source} GROUP BY log_partition")
        return {row["log_partition"]: row for row in rows.to_pylist()}

    in_log = by_partition("log", "count(*) AS records, min(record_offset) AS first, max(record_offset) AS last")
    folded, current = reader.current.stored, reader.current.progress
    quarantined = by_partition("quarantine", "count(*) AS records")
    semantics = reader.coordinator_semantics.value
    has_transactions = reader.properties.topic_kind is not TopicKind.SHARE_STATE  # which carries states there (R39)
    answers = []
    for partition in range(max(reader.offsets_partitions, len(bounds))):
        held = in_log.get(partition, {"records": 0, "first": 0, "last": -1})
        bound = bounds.get(partition, {"start_offset": held["first"], "end_offset": 0})
        stored = folded.get(partition)
        folded_to = 0 if stored is None or stored.log_incarnation != log_incarnation else stored.folded_to
        is_folded = folded_to > held["last"]
        fold = current.get(partition, PartitionProgress(partition))
        of_topic: dict[str, Any] = {name: shown_time(bound.get(name)) for name in _TIMES}
        of_topic |= {name: bound.get(name) for name in _OF_TRANSACTION}
        end, topic_end = max(bound["end_offset"], held["last"] + 1), bound.get("topic_end_offset")
        answers.append(
            LogPartitionInfo(
                log_partition=partition,
                start=bound["start_offset"],
                end=end,
                folded_to=folded_to or None,
                records=held["records"],
                quarantined=quarantined.get(partition, {"records": 0 if is_folded else None})["records"],
                unknown=fold.unknown_records,
                pending=len(fold.pending) if has_transactions else 0,
                cleaned_to=bound.get("cleaned_to"),
                coordinator_semantics=semantics,
                log_incarnation=log_incarnation,
                stable=bound.get("stable_offset"),
                topic_end=None if topic_end is None else max(topic_end, end),
                **of_topic,
            )
        )
    return answers
