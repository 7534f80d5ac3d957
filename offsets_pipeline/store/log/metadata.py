"""Metadata of a log: bounds of its partitions, quarantined records and damage, names of topic ids.

Every write is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from offsets_pipeline.common.clock import EPOCH, Clock
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.data_file import APPLICATION
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION, LOG_PARTITIONS, QUARANTINE, TOPICS

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.segment import Damage
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store


class TopicRead(NamedTuple):
    """Offsets and times of one log partition of a topic; times in milliseconds since 1970, or None.

    ``end_offset`` is the first unread record offset; ``stable_offset`` and ``topic_end_offset`` are the topic's own.
    The comments of the columns of `log_partitions` describe the other fields.
    """

    start_offset: int
    end_offset: int
    stable_offset: int
    topic_end_offset: int
    complete_since_ms: int | None
    read_at_ms: int | None
    open_since_ms: int | None
    leader_epoch: int | None
    open_producer_id: int | None = None
    open_transactional_id: str | None = None


def note_topics(store: Store, names: Iterable[tuple[str, str]]) -> None:
    """Write pairs of topic id and name to the table `topics`; keeps the lesser of two names of one id (R35).

    Raises WriteConflict if other writers came first too often.
    """
    given: dict[str, str] = {}
    for topic_id, name in names:
        given[topic_id] = min(name, given.get(topic_id, name))

    def write() -> None:
        table = store.table(TOPICS.name)
        seen = table.snapshot()
        rows = seen.rows()
        known = dict(zip(*(rows[name].to_pylist() for name in ("topic_id", "topic")), strict=True))
        merged = known | {topic_id: min(name, known.get(topic_id, name)) for topic_id, name in given.items()}
        if merged != known:
            columns = [list(each) for each in zip(*sorted(merged.items()), strict=True)]
            table.replace(pa.table(columns, schema=rows.schema), seen=seen)

    if given:
        with_retries(write, f"a change of {TOPICS.name}")


def note_quarantine(
    store: Store,
    records: Sequence[Mapping[str, Any]],
    log_incarnation: int,
    clock: Clock,
    *,
    replayed_to: Mapping[int, int],
) -> None:
    """Add records that do not decode to the quarantine, each once (R6).

    ``records`` are rows of `Effects.quarantine`. ``replayed_to`` has the log partitions that were replayed from their
    start, each with the record offset that the replay reached. Quarantined records before that offset leave the
    quarantine, unless they are in ``records``.

    Raises WriteConflict if other writers committed first too often.
    """
    place = ("log_partition", "record_offset")
    place_of = itemgetter(*place)
    places = set(map(place_of, records))

    def write() -> None:
        table = store.table(QUARANTINE.name)
        seen = table.snapshot()
        held = seen.rows([*place, "source"], {"log_incarnation": [log_incarnation]}).to_pylist()
        known = {place_of(row) for row in held if row["source"] is None}
        gone = {at for at in known - places if at[1] < replayed_to.get(at[0], 0)}
        stamp = {"log_incarnation": log_incarnation, "quarantined_at": _timestamp(clock.now_ms())}
        news = [{**row, **stamp} for row in records if place_of(row) not in known]
        if gone:
            stays = [
                row
                for row in seen.rows().to_pylist()
                if row["log_incarnation"] != log_incarnation or place_of(row) not in gone  # a stretch has no offset
            ]
            table.replace(pa.Table.from_pylist(stays + news, QUARANTINE.arrow_schema()), seen=seen)
        else:
            _append(table, news, seen)

    if records or (replayed_to and store.table(QUARANTINE.name).snapshot().files()):
        with_retries(write, f"a change of {QUARANTINE.name}")


class LogMetadata:
    """Writes metadata of one incarnation of a store's log.

    Every method raises WriteConflict if other writers committed first too often.
    """

    def __init__(self, store: Store, clock: Clock, log_incarnation: int = LOG_INCARNATION) -> None:
        self._store = store
        self._clock = clock
        self._log_incarnation = log_incarnation

    def bounds(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Widen the known range of offsets: log start and log end offset, by log partition."""
        self._note(
            {at: {"start_offset": start, "end_offset": end} for at, (start, end) in bounds.items()},
            {"start_offset": min, "end_offset": max},
        )

    def cleaned(self, cleaned_to: Mapping[int, int]) -> None:
        """Raise, by log partition, the record offset before which a cleaning removes records; never lowers it."""
        self._note(
            {at: {"start_offset": 0, "end_offset": to, "cleaned_to": to} for at, to in cleaned_to.items()},
            {"cleaned_to": max},
        )

    def read(self, reads: Mapping[int, TopicRead]) -> None:
        """Write the topic's offsets and the progress of the reading, for all log partitions in one commit.

        The first such commit makes this log incarnation count.
        """
        columns = [name.removesuffix("_ms") for name in TopicRead._fields]
        self._note(
            {
                at: {
                    name.removesuffix("_ms"): _timestamp(value) if name.endswith("_ms") else value
                    for name, value in each._asdict().items()
                }
                for at, each in reads.items()
            },
            {**dict.fromkeys(columns, lambda _, noted: noted), "end_offset": max},
        )

    def _note(
        self, noted: Mapping[int, Mapping[str, Any]], combined: Mapping[str, Callable[[Any, Any], object]]
    ) -> None:
        """Set columns of `log_partitions` by log partition, in one commit; no commit if nothing changes.

        ``combined`` maps each column that may change to a function of the stored and the new value.
        """

        def write() -> None:
            table = self._store.table(LOG_PARTITIONS.name)
            seen = table.snapshot()
            rows = {(row["log_incarnation"], row["log_partition"]): row for row in seen.rows().to_pylist()}
            stamp = {"updated_at": _timestamp(self._clock.now_ms())}
            changed = False
            for log_partition, news in noted.items():
                key = self._log_incarnation, log_partition
                known = rows.get(key)
                if known is None:
                    new = {"log_incarnation": self._log_incarnation, "log_partition": log_partition, **news}
                else:
                    new = known | {
                        name: news[name] if known[name] is None else combine(known[name], news[name])
                        for name, combine in combined.items()
                    }
                if new != known:
                    rows[key], changed = new | stamp, True
            if changed:
                in_order = [row for _, row in sorted(rows.items())]
                table.replace(pa.Table.from_pylist(in_order, LOG_PARTITIONS.arrow_schema()), seen=seen)

        if noted:
            with_retries(write, f"a change of {LOG_PARTITIONS.name}")

    def damage(self, damage: Sequence[tuple[int, str, Damage]]) -> None:
        """Add damaged stretches of files to the quarantine, each once: (log partition, file, stretch).

        Leaves out the bytes of a topic that holds secrets.
        """
        holds_secrets = self._store.properties.topic_kind is TopicKind.CONNECT_CONFIGS
        place = ("log_incarnation", "log_partition", "source", "position", "reason")

        def write() -> None:
            table = self._store.table(QUARANTINE.name)
            seen = table.snapshot()
            known = set(map(itemgetter(*place), seen.rows(place).to_pylist()))
            rows = {}
            for log_partition, source, each in damage:
                at = self._log_incarnation, log_partition, source, each.position, each.reason
                if at not in known:
                    bytes_ = {"length": each.length, "value": None if holds_secrets else each.raw}
                    now = _timestamp(self._clock.now_ms())
                    rows[at] = dict(zip(place, at, strict=True)) | bytes_ | {"quarantined_at": now}
            _append(table, list(rows.values()), seen)

        if damage:
            with_retries(write, f"an append to {QUARANTINE.name}")


def _append(quarantine: TableFolder, rows: list[dict[str, Any]], seen: Snapshot) -> None:
    """Append rows to the quarantine, on the condition that no other writer did so since ``seen``."""
    if rows:
        file = quarantine.write_file(pa.Table.from_pylist(rows, QUARANTINE.arrow_schema()))
        quarantine.commit([file], seen=seen, advance={APPLICATION: seen.transaction(APPLICATION) + 1})


def _timestamp(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)
