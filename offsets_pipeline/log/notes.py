"""What is known of a log beside its records: where its partitions start and end, damage, names of topic ids.

Each note says what is so, and may be made twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from offsets_pipeline.retry import with_retries
from offsets_pipeline.store import Store, timestamp_of
from offsets_pipeline.tables import LOG_EPOCH, LOG_PARTITIONS, QUARANTINE, TOPICS, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

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


def cleaned_to(store: Store, log_epoch: int) -> dict[int, int]:
    """The record offset by log partition before which a cleaning removed records; what was never cleaned is missing."""
    rows = store.read(LOG_PARTITIONS.name).where(F.col("log_epoch") == log_epoch)
    if "cleaned_to" not in rows.columns:
        return {}
    found = rows.where("cleaned_to IS NOT NULL").select("log_partition", "cleaned_to")
    return {row["log_partition"]: row["cleaned_to"] for row in found.collect()}


def is_followed(store: Store, log_epoch: int) -> bool:
    """Whether the records of this epoch are those of a live topic, which says how far it was read."""
    rows = store.read(LOG_PARTITIONS.name).where(F.col("log_epoch") == log_epoch)
    return "complete_since" in rows.columns and not rows.where("complete_since IS NOT NULL").isEmpty()


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
        self._merge(
            LOG_PARTITIONS,
            [(partition, self._log_epoch, start, end) for partition, (start, end) in bounds.items()],
            "log_partition int, log_epoch int, start_offset bigint, end_offset bigint",
            _SAME_PARTITION,
            "updated_at",
            {
                "start_offset": "least(t.start_offset, s.start_offset)",
                "end_offset": "greatest(t.end_offset, s.end_offset)",
            },
        )

    def cleaned(self, cleaned_to: Mapping[int, int]) -> None:
        """Note by log partition the record offset before which a cleaning removes records; it only ever grows."""
        self._add_columns()
        self._merge(
            LOG_PARTITIONS,
            [(partition, self._log_epoch, 0, to, to) for partition, to in cleaned_to.items()],
            "log_partition int, log_epoch int, start_offset bigint, end_offset bigint, cleaned_to bigint",
            _SAME_PARTITION,
            "updated_at",
            {"cleaned_to": "greatest(t.cleaned_to, s.cleaned_to)"},
        )

    def read(self, reads: Mapping[int, TopicRead]) -> None:
        """Note by log partition how a topic stands, and how far it was read: all of them in one commit.

        For an epoch of which there was no note yet this is what makes it count.
        """
        self._add_columns()
        self._merge(
            LOG_PARTITIONS,
            [(partition, self._log_epoch, *each) for partition, each in reads.items()],
            "log_partition int, log_epoch int, start_offset bigint, end_offset bigint, stable_offset bigint, "
            "topic_end_offset bigint, complete_since_ms bigint, read_at_ms bigint, open_since_ms bigint",
            _SAME_PARTITION,
            "updated_at",
            {
                "start_offset": "s.start_offset",
                "end_offset": "greatest(t.end_offset, s.end_offset)",
                **{name: f"s.{name}" for name in (each.removesuffix("_ms") for each in TopicRead._fields[2:])},
            },
        )

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
        self,
        table: Table,
        rows: Sequence[tuple[Any, ...]],
        schema: str,
        on: str,
        stamp: str | None = None,
        matched: Mapping[str, str] | None = None,
    ) -> None:
        """Insert the rows that are not there; where they are, set the columns of ``matched`` that change."""
        if not rows:
            return
        source = self._store.spark.createDataFrame(list(rows), schema)
        for name in (each for each in source.columns if each.endswith("_ms")):
            source = source.withColumn(name.removesuffix("_ms"), F.timestamp_millis(name)).drop(name)
        if stamp is not None:
            source = source.withColumn(stamp, timestamp_of(self._clock))
        stamped = {} if stamp is None else {stamp: f"s.{stamp}"}

        def write() -> None:
            merge = self._store.delta(table.name).alias("t").merge(source.alias("s"), on)
            if matched is not None:
                changes = " OR ".join(f"NOT (t.{name} <=> {value})" for name, value in matched.items())
                values: dict[str, str | Column] = {**matched, **stamped}
                merge = merge.whenMatchedUpdate(condition=changes, set=values)
            merge.whenNotMatchedInsert(values={name: f"s.{name}" for name in source.columns}).execute()

        with_retries(write, f"a merge into {table.name}", self._settings.fold)
