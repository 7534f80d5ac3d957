"""What is known of a log beside its records: where its partitions start and end, damage, names of topic ids.

Each note says what is so, and may be made twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from offsets_pipeline.clock import EPOCH
from offsets_pipeline.delta.schemas import LOG_EPOCH, LOG_PARTITIONS, QUARANTINE, TOPICS, Table
from offsets_pipeline.delta.small_table import SmallTable, read_rows
from offsets_pipeline.retry import with_retries
from offsets_pipeline.store import Store, timestamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import FoldSettings, Settings
    from offsets_pipeline.record.segment import Damage


_SAME_PARTITION = "t.log_partition = s.log_partition AND t.log_epoch = s.log_epoch"


class TopicRead(NamedTuple):
    """How a log partition of a topic stands; times in milliseconds since 1970, null where there is none.

    ``end_offset`` is what the log was read up to, ``stable_offset`` and ``topic_end_offset`` are the topic's own. What
    the columns of `log_partitions` say of the rest goes here too.
    """

    start_offset: int
    end_offset: int
    stable_offset: int
    topic_end_offset: int
    complete_since_ms: int | None
    read_at_ms: int | None
    open_since_ms: int | None


def partition_rows(store: Store, log_epoch: int) -> list[dict[str, Any]]:
    """The rows of `log_partitions` of one epoch of the log; None in columns that an older store lacks."""
    rows: list[dict[str, Any]] = read_rows(store, LOG_PARTITIONS).to_pylist()
    return [row for row in rows if row["log_epoch"] == log_epoch]


def cleaned_to(store: Store, log_epoch: int) -> dict[int, int]:
    """The record offset by log partition before which a cleaning removed records; what was never cleaned is missing."""
    rows = partition_rows(store, log_epoch)
    return {row["log_partition"]: row["cleaned_to"] for row in rows if row["cleaned_to"] is not None}


def is_followed(store: Store, log_epoch: int) -> bool:
    """Whether the records of this epoch are those of a live topic, which says how far it was read."""
    return any(row["complete_since"] is not None for row in partition_rows(store, log_epoch))


def merge_topic_names(store: Store, names: DataFrame, settings: FoldSettings) -> None:
    """Put names of topic ids into the table `topics`: of two names of one id the lesser stays (R35).

    ``names`` has the columns topic_id and topic. Raises WriteConflict if overtaken too often.
    """
    lesser = names.groupBy("topic_id").agg(F.min("topic").alias("topic"))

    def write() -> None:  # no append: others may tell the same names at this moment
        (
            store.delta(TOPICS.name)
            .alias("t")
            .merge(lesser.alias("s"), "t.topic_id = s.topic_id")
            .whenMatchedUpdate(condition="s.topic < t.topic", set={"topic": "s.topic"})
            .whenNotMatchedInsertAll()
            .execute()
        )

    with_retries(write, f"a merge into {TOPICS.name}", settings)


class LogNotes:
    """Makes notes about one epoch of a store's log. Every method raises WriteConflict if overtaken too often."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, log_epoch: int = LOG_EPOCH) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._log_epoch = log_epoch

    def bounds(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Note log start and log end offset by log partition; what is known is only ever widened."""
        self._note(
            {at: {"start_offset": start, "end_offset": end} for at, (start, end) in bounds.items()},
            {"start_offset": min, "end_offset": max},
        )

    def cleaned(self, cleaned_to: Mapping[int, int]) -> None:
        """Note by log partition the record offset before which a cleaning removes records; it only ever grows."""
        self._note(
            {at: {"start_offset": 0, "end_offset": to, "cleaned_to": to} for at, to in cleaned_to.items()},
            {"cleaned_to": max},
        )

    def read(self, reads: Mapping[int, TopicRead]) -> None:
        """Note by log partition how a topic stands, and how far it was read: all of them in one commit.

        For an epoch of which there was no note yet this is what makes it count.
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
            {**dict.fromkeys(columns, _newer), "end_offset": max},
        )

    def _note(
        self, noted: Mapping[int, Mapping[str, Any]], combined: Mapping[str, Callable[[Any, Any], object]]
    ) -> None:
        """Set columns of `log_partitions` by log partition, in one commit; no commit if nothing changes.

        ``combined`` says of the columns that may change how the known value and the noted one become one.
        """
        if noted:
            what = f"a change of {LOG_PARTITIONS.name}"
            with_retries(lambda: self._note_once(noted, combined), what, self._settings.fold)

    def _note_once(
        self, noted: Mapping[int, Mapping[str, Any]], combined: Mapping[str, Callable[[Any, Any], object]]
    ) -> None:
        self._add_columns()
        table = SmallTable(self._store, LOG_PARTITIONS)
        rows = {(row["log_epoch"], row["log_partition"]): row for row in table.rows.to_pylist()}
        stamp = {"updated_at": _timestamp(self._clock.now_ms())}
        changed = False
        for log_partition, news in noted.items():
            key = self._log_epoch, log_partition
            known = rows.get(key)
            if known is None:
                new = dict(zip(("log_epoch", "log_partition"), key, strict=True)) | dict(news)
            else:
                new = known | {
                    name: news[name] if known[name] is None else combine(known[name], news[name])
                    for name, combine in combined.items()
                }
            if new != known:
                rows[key], changed = new | stamp, True
        if changed:
            in_order = [row for _, row in sorted(rows.items())]
            table.replace(pa.Table.from_pylist(in_order, table.rows.schema), ["log_partition", "log_epoch"])

    def _add_columns(self) -> None:
        """To a store from before there was cleaning, or before topics were followed."""
        there = self._store.read(LOG_PARTITIONS.name).columns
        missing = [field for field in LOG_PARTITIONS.schema() if field.name not in there]
        if missing:
            table = self._store.table_name(LOG_PARTITIONS.name)
            listed = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
            self._store.spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({listed})")

    def damage(self, damage: Sequence[tuple[int, str, Damage]]) -> None:
        """Put stretches of files that could not be read into quarantine: log partition, file, stretch."""
        self._merge(
            QUARANTINE,
            [
                (partition, self._log_epoch, source, each.position, each.length, each.reason, each.raw)
                for partition, source, each in damage
            ],
            "log_partition int, log_epoch int, source string, position bigint, length bigint, "
            "reason string, value binary",
            f"{_SAME_PARTITION} AND t.source = s.source AND t.position = s.position AND t.reason = s.reason",
            "quarantined_at",
        )

    def topics(self, names: Mapping[str, str]) -> None:
        """Note names by topic id (R35)."""
        if names:
            named = self._store.spark.createDataFrame(list(names.items()), "topic_id string, topic string")
            merge_topic_names(self._store, named, self._settings.fold)

    def _merge(
        self, table: Table, rows: Sequence[tuple[Any, ...]], schema: str, on: str, stamp: str | None = None
    ) -> None:
        """Insert the rows that are not there."""
        if not rows:
            return
        source = self._store.spark.createDataFrame(list(rows), schema)
        if stamp is not None:
            source = source.withColumn(stamp, timestamp_of(self._clock))

        def write() -> None:
            merge = self._store.delta(table.name).alias("t").merge(source.alias("s"), on)
            merge.whenNotMatchedInsert(values={name: f"s.{name}" for name in source.columns}).execute()

        with_retries(write, f"a merge into {table.name}", self._settings.fold)


def _timestamp(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def _newer(_: object, noted: object) -> object:
    return noted
